// Parts of the inputs are encoded by threads and written in order by the caller's thread. The
// bounds of the parts depend only on the inputs, so neither the number of threads nor an
// interruption changes the output. A part is taken under a lock: this finds the end of the part, or
// reads it if the input is a Parquet file. Threads that are ahead of the writer wait, so that the
// memory is bounded. The first wrong document of the inputs is reported, whichever thread meets one
// first.
#include "core/data/prepare.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <thread>

#include "core/data/data_files.hpp"
#include "core/data/prepared_output.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Clock = std::chrono::steady_clock;
using Inputs = std::vector<std::unique_ptr<DocumentInput>>;

constexpr std::chrono::milliseconds kReportEvery(100);
constexpr int kPartsAhead = 4;  // encoded parts per thread that may wait for the writer

struct Part {
  int64_t file = 0;
  InputPart of_file;
};

// The outcome of one part: its documents, or the error of the first wrong one.
struct Encoded {
  Part part;
  EncodedDocuments documents;
  std::exception_ptr error;
};

// Threads that encode the parts of the inputs, from a given place on. Each has one of the encoders.
class Encoders {
 public:
  Encoders(std::vector<DocumentEncoder> encoders,
           size_t part_bytes,
           const Inputs& inputs,
           const PreparedSoFar& from)
      : encoders_(std::move(encoders)),
        part_bytes_(part_bytes),
        inputs_(inputs),
        file_(from.file),
        begin_(static_cast<size_t>(from.offset)) {}
  // Ends the threads, however many of them start() has started.
  ~Encoders() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Encoders(const Encoders&) = delete;
  Encoders& operator=(const Encoders&) = delete;

  // Starts the threads. Throws Error(RESOURCE_EXHAUSTED) if the system refuses one of them.
  void start() {
    try {
      for (DocumentEncoder& encoder : encoders_)
        threads_.emplace_back([this, &encoder] { work(encoder); });
    } catch (const std::system_error& e) {
      throw Error(YOKE_RESOURCE_EXHAUSTED,
                  concat("only ", threads_.size(), " of ", encoders_.size(), " threads started: ") +
                      e.what() + "; give a smaller number with --threads");
    }
  }

  // Waits up to `limit` for the next part, in the order of the inputs. Returns nothing if it is not
  // encoded yet, or if there is none: see finished().
  std::optional<Encoded> next(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, limit, [&] { return ready_.contains(taken_) || exhausted(); });
    const auto found = ready_.find(taken_);
    if (found == ready_.end()) return std::nullopt;
    Encoded encoded = std::move(found->second);
    ready_.erase(found);
    ++taken_;
    changed_.notify_all();
    return encoded;
  }
  bool finished() {
    const std::lock_guard lock(mutex_);
    return exhausted();
  }

 private:
  bool exhausted() const { return taken_ == given_ && file_ == std::ssize(inputs_); }

  // Returns the next part of the inputs. The mutex is held.
  std::optional<Part> cut() {
    while (file_ < std::ssize(inputs_) && begin_ == inputs_[static_cast<size_t>(file_)]->size()) {
      ++file_;
      begin_ = 0;
    }
    if (file_ == std::ssize(inputs_)) return std::nullopt;
    Part part{file_, inputs_[static_cast<size_t>(file_)]->take(begin_, part_bytes_)};
    begin_ = part.of_file.end;
    return part;
  }

  // Returns the next part, or the error of taking it, after which there is no other part. The mutex
  // is held.
  std::optional<Encoded> start_next() {
    try {
      std::optional<Part> part = cut();
      if (!part) return std::nullopt;
      return Encoded{std::move(*part), {}, nullptr};
    } catch (...) {
      file_ = std::ssize(inputs_);
      return Encoded{{}, {}, std::current_exception()};
    }
  }

  void work(DocumentEncoder& encoder) {
    const int64_t ahead = kPartsAhead * std::ssize(encoders_);
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || given_ - taken_ < ahead; });
      if (stop_) return;
      std::optional<Encoded> encoded = start_next();
      if (!encoded) {
        changed_.notify_all();
        return;
      }
      const int64_t number = given_++;
      lock.unlock();
      if (!encoded->error) encode(encoder, *encoded);
      lock.lock();
      ready_.emplace(number, std::move(*encoded));
      changed_.notify_all();
    }
  }

  void encode(DocumentEncoder& encoder, Encoded& encoded) const {
    Part& part = encoded.part;
    try {
      encoder.encode(*inputs_[static_cast<size_t>(part.file)], part.of_file, encoded.documents);
    } catch (...) {
      encoded.error = std::current_exception();
    }
    part.of_file.content.reset();
  }

  std::vector<DocumentEncoder> encoders_;
  const size_t part_bytes_;
  const Inputs& inputs_;
  std::mutex mutex_;  // guards all that follows
  std::condition_variable changed_;
  bool stop_ = false;
  int64_t file_;  // the next part begins at byte begin_ of this input
  size_t begin_;
  int64_t given_ = 0;  // number of parts that threads have taken
  int64_t taken_ = 0;  // number of parts that next() has returned
  std::map<int64_t, Encoded> ready_;
  std::vector<std::thread> threads_;
};

// Returns everything that the output depends on.
nlohmann::json job_of(const PrepareRequest& request, const Tokenizer& tokenizer) {
  nlohmann::json inputs = nlohmann::json::array();
  for (const std::string& path : request.inputs) {
    const auto changed = std::filesystem::last_write_time(path).time_since_epoch();
    inputs.push_back({std::filesystem::absolute(path).string(),
                      std::filesystem::file_size(path),
                      changed.count()});
  }
  return {{"version", 1},
          {"tokenizer", tokenizer.facts().hash},
          {"split", {static_cast<int>(request.split.kind), request.split.separator}},
          {"field", request.encoding.field},
          {"chat", request.encoding.chat},
          {"bos", request.encoding.bos ? nlohmann::json(*tokenizer.facts().bos) : nullptr},
          {"eos", request.encoding.end ? nlohmann::json(*request.encoding.end) : nullptr},
          {"part_bytes", request.part_bytes},
          {"inputs", std::move(inputs)}};
}

// A token that also ends the turns of conversations does not tell where one ends.
TokenInfo describe(const PrepareRequest& request,
                   const Tokenizer& tokenizer,
                   const PreparedSoFar& so_far) {
  const TokenizerFacts& facts = tokenizer.facts();
  const EncodingOptions& encoding = request.encoding;
  TokenInfo info{
      so_far.tokens, so_far.documents, facts.vocab_size, facts.hash, std::nullopt, false};
  info.document_end = encoding.end;
  if (!encoding.chat.empty()) {
    info.mask = true;
    if (encoding.end && ChatTemplate(encoding.chat, tokenizer).ends_turns_with(*encoding.end))
      info.document_end = std::nullopt;
  }
  return info;
}

// Opens the inputs. Conversations are objects of .jsonl files, or rows of Parquet files.
Inputs open_inputs(const PrepareRequest& request) {
  const std::string repeated = find_repeated_file(request.inputs);
  if (!repeated.empty())
    throw Error(YOKE_INVALID_ARGUMENT, path_is("input", repeated) + " is given twice");
  const bool chat = !request.encoding.chat.empty();
  Inputs inputs;
  for (const std::string& path : request.inputs) {
    inputs.push_back(open_input(path, {request.split, request.encoding.field, chat}));
    if (chat && inputs.back()->format() == DocumentInput::Format::kText) {
      throw Error(
          YOKE_INVALID_ARGUMENT,
          path_is("input", path) + " is a text; allowed with --chat: .jsonl and Parquet files");
    }
  }
  return inputs;
}

// Returns the bytes of the inputs before the place that is reached.
uint64_t bytes_before(const Inputs& inputs, const PreparedSoFar& so_far) {
  const auto file = static_cast<size_t>(so_far.file);
  uint64_t bytes = 0;
  for (size_t i = 0; i < file; ++i) bytes += inputs[i]->bytes_before(inputs[i]->size());
  return bytes + inputs[file]->bytes_before(static_cast<size_t>(so_far.offset));
}

}  // namespace

Prepared prepare(const PrepareRequest& request,
                 const Tokenizer& tokenizer,
                 const std::function<void(const PrepareProgress&)>& report) {
  const Inputs inputs = open_inputs(request);
  PrepareProgress progress;
  std::vector<uint64_t> sizes;  // the last place of each input
  for (const auto& input : inputs) {
    sizes.push_back(input->size());
    progress.total += input->bytes_before(input->size());
  }
  const bool chat = !request.encoding.chat.empty();
  std::vector<DocumentEncoder> document_encoders;
  for (int i = 0; i < request.threads; ++i)
    document_encoders.emplace_back(tokenizer, request.encoding);
  PreparedOutput output(
      request.out, job_of(request, tokenizer), tokenizer.facts().vocab_size, chat, sizes);
  PreparedSoFar so_far = output.so_far();
  progress.done = progress.resumed = bytes_before(inputs, so_far);
  progress.started_over = output.started_over();

  Encoders encoders(std::move(document_encoders), request.part_bytes, inputs, so_far);
  encoders.start();
  const std::chrono::duration<double> save_every(request.save_every);
  const auto report_every = std::min<std::chrono::duration<double>>(kReportEvery, save_every);
  Clock::time_point saved = Clock::now(), reported;
  while (!encoders.finished()) {
    if (Clock::now() - reported >= report_every) {
      report(progress);
      reported = Clock::now();
    }
    const std::optional<Encoded> encoded = encoders.next(std::chrono::milliseconds(100));
    if (!encoded) continue;
    if (encoded->error) std::rethrow_exception(encoded->error);
    so_far.file = encoded->part.file;
    so_far.offset = static_cast<int64_t>(encoded->part.of_file.end);
    so_far.tokens += std::ssize(encoded->documents.ids);
    so_far.documents += encoded->documents.documents;
    so_far.empty += encoded->documents.empty;
    output.append(encoded->documents.ids, encoded->documents.mask, so_far);
    progress.done = bytes_before(inputs, so_far);
    if (Clock::now() - saved >= save_every) {
      output.save();
      saved = Clock::now();
    }
  }
  report(progress);
  if (so_far.tokens == 0) {
    throw Error(YOKE_INVALID_ARGUMENT, "the inputs hold no text; there is nothing to write");
  }
  const TokenInfo info = describe(request, tokenizer, so_far);
  output.finish(info);
  return {info, so_far.empty};
}

}  // namespace yoke
