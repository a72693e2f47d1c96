#include "core/run/job_data.hpp"

#include <filesystem>

#include "core/config/families.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kByteVocab = 256;

bool is_text(const Source& source) {
  return std::string(source.stream->format()) == "text";
}

// Returns the file of the model's tokenizer, or "" if the model comes without one.
std::string tokenizer_of(const ModelConfig& model) {
  fs::path folder = model.from.empty() ? model.config : model.from;
  if (folder.empty()) return "";
  if (!fs::is_directory(folder)) folder = folder.parent_path();  // model.config may name the file
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json"}) {
    if (fs::exists(folder / name)) return (folder / name).string();
  }
  return "";
}

void check_vocabulary(const DataSet& data, int64_t vocab, std::vector<std::string>& faults) {
  for (const Source& source : data.sources) {
    const int64_t declared = source.stream->vocab();
    if (vocab == 0 || declared <= vocab) continue;
    return faults.push_back(concat("model.vocab = ", vocab, ", but ", source.files[0]) +
                            concat(" has token ids up to ", declared - 1, "; allowed: at least ") +
                            std::to_string(declared));
  }
}

// A family of the user does not know the input that separates documents.
void check_documents(const RunConfig& run,
                     const DataSet& data,
                     int64_t vocab,
                     std::vector<std::string>& faults) {
  if (run.data.documents == "separate" && !is_builtin_family(run.model.family))
    faults.push_back(
        "data.documents = \"separate\" needs a model whose attention stays in one "
        "document, which model family '" +
        run.model.family +
        "' is not known to have; allowed: data.documents = "
        "\"joined\", or a family of Yoke");
  if (data.document_end && vocab > 0 && *data.document_end >= vocab)
    faults.push_back(concat("data.document_end = ", *data.document_end, ", but model.vocab = ") +
                     concat(vocab, "; allowed: 0 to ", vocab - 1));
}

// The bytes of a text are ids that mean something else to such a model.
void check_text(const RunConfig& run, const DataSet& data, std::vector<std::string>& faults) {
  if (!data.has_tokens() || !is_text(data.sources[0]) || run.data.format == "text") return;
  const std::string tokenizer = tokenizer_of(run.model);
  if (tokenizer.empty()) return;
  faults.push_back(
      "\"" + data.sources[0].files[0] +
      "\" is a text, whose bytes would be the token ids, but the model has a tokenizer "
      "(" +
      tokenizer + "); give a file of token ids, or set data.format = \"text\" to train on bytes");
}

void check_evaluation(const RunConfig& run, const DataSet& data, std::vector<std::string>& faults) {
  const int64_t windows = data.held_out.num_windows();
  if (run.eval.every == 0 || windows >= run.train.global_batch) return;
  const Source* evaluation = data.evaluation();
  const bool split = run.data.order == "megatron";
  const char* more = evaluation != nullptr ? ""
                     : split               ? ", give it a larger share in data.split"
                                           : ", raise data.holdout";
  faults.push_back(
      concat("eval.every = ", run.eval.every, ", but ") +
      (evaluation != nullptr ? "eval.path = \"" + evaluation->name + "\""
       : split               ? std::string("the evaluation part of data.split")
                             : std::string("the held-out tail")) +
      concat(" has ", windows, windows == 1 ? " window" : " windows") +
      concat(", fewer than one global batch of ", run.train.global_batch, "; give a longer text") +
      more + " or set eval.every = 0");
}

}  // namespace

std::vector<std::string> data_faults(const RunConfig& run, const DataSet& data, int64_t vocab) {
  std::vector<std::string> faults;
  check_vocabulary(data, vocab, faults);
  check_documents(run, data, vocab, faults);
  check_text(run, data, faults);
  check_evaluation(run, data, faults);
  return faults;
}

std::vector<std::string> data_notes(const DataSet& data, int64_t vocab) {
  std::vector<std::string> notes = data.notes;
  if (data.has_tokens() && is_text(data.sources[0]) && vocab > kByteVocab)
    notes.push_back(concat("the tokens are the bytes of a text, so of the ", vocab) +
                    concat(" token ids of the model only the first ", kByteVocab, " occur"));
  return notes;
}

}  // namespace yoke
