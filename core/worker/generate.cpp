#include "core/worker/generate.hpp"

#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <limits>
#include <random>

#include "core/base/exit_code.hpp"
#include "core/checkpoint/retention.hpp"
#include "core/model/adapters.hpp"
#include "core/model/family.hpp"
#include "core/model/hf_config.hpp"
#include "core/run/job.hpp"
#include "core/text/chat_template.hpp"
#include "core/text/sampling.hpp"
#include "core/text/tokenizer.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

struct Request {
  std::string checkpoint;
  std::optional<std::string> prompt;
  bool chat = false;
  std::string chat_template, system;
  std::string tokenizer;  // folder of a tokenizer, or kBytes; "" = that of the checkpoint
  int64_t tokens = 200;
  SamplingOptions sampling;
  uint64_t seed = 1;
};

constexpr char kBytes[] = "bytes";

double number(const std::string& flag, const std::string& text, double min, double max) {
  size_t used = 0;
  double value = min - 1;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
  }
  // Comparisons with NaN are false.
  if (used != text.size() || !(value >= min && value <= max)) {
    throw Refused(kExitUsage,
                  concat(flag, " ", text, "; allowed: a number from ", min) + concat(" to ", max));
  }
  return value;
}

int64_t whole_number(const std::string& flag, const std::string& text, double min, double max) {
  const double value = number(flag, text, min, max);
  if (value != std::floor(value))
    throw Refused(kExitUsage, concat(flag, " ", text, "; allowed: a whole number"));
  return static_cast<int64_t>(value);
}

Request parse(const std::vector<std::string>& args) {
  Request r;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& word = args[i];
    const auto value = [&]() -> const std::string& {
      if (i + 1 == args.size()) throw Refused(kExitUsage, word + " needs a value");
      return args[++i];
    };
    if (word == "--prompt") {
      r.prompt = value();
    } else if (word == "--chat") {
      r.chat = true;
    } else if (word == "--template") {
      r.chat_template = value();
    } else if (word == "--system") {
      r.system = value();
    } else if (word == "--tokens") {
      r.tokens = whole_number(word, value(), 1, 1e6);
    } else if (word == "--tokenizer") {
      r.tokenizer = value();
    } else if (word == "--temperature") {
      r.sampling.temperature = number(word, value(), 0, 100);
    } else if (word == "--top-k") {
      r.sampling.top_k = whole_number(word, value(), 0, 1e9);
    } else if (word == "--top-p") {
      r.sampling.top_p = number(word, value(), 0, 1);
    } else if (word == "--seed") {
      r.seed = static_cast<uint64_t>(whole_number(word, value(), 0, 9e15));
    } else if (word.rfind("--", 0) == 0 || !r.checkpoint.empty()) {
      throw Refused(kExitUsage,
                    "unexpected '" + word + "'; yoke generate --help lists the options");
    } else {
      r.checkpoint = word;
    }
  }
  if (r.checkpoint.empty()) throw Refused(kExitUsage, "no checkpoint was given; give its folder");
  if (r.prompt && r.prompt->empty())
    throw Refused(kExitUsage, "--prompt is empty; give at least one character");
  if (r.chat == r.chat_template.empty())
    throw Refused(kExitUsage,
                  "--chat and --template NAME belong together; give both, or none of "
                  "them");
  if (!r.chat && !r.system.empty()) throw Refused(kExitUsage, "--system needs --chat");
  return r;
}

// Returns the tokenizer that was asked for, or that of the folder. Without one, the tokens of a
// model with 256 ids are bytes.
std::shared_ptr<const Tokenizer> open_tokenizer(const Request& request, const ModelDims& dims) {
  const std::string& folder = request.tokenizer.empty() ? request.checkpoint : request.tokenizer;
  const bool found = !Tokenizer::file_in(folder).empty();
  std::shared_ptr<const Tokenizer> tokenizer;
  if (request.tokenizer == kBytes || (request.tokenizer.empty() && !found && dims.vocab == 256)) {
    tokenizer = Tokenizer::bytes();
  } else if (request.tokenizer.empty() && !found) {
    throw Refused(kExitUsage,
                  concat("the model has ", dims.vocab, " token ids, but ", folder) +
                      " holds no tokenizer; give the folder of its tokenizer with "
                      "--tokenizer FOLDER, or, if its tokens are bytes, --tokenizer bytes");
  } else {
    tokenizer = Tokenizer::open(folder);
  }
  if (tokenizer->facts().vocab_size > dims.vocab) {
    throw Refused(
        kExitUsage,
        concat("the tokenizer ", tokenizer->facts().path, " has ids up to ") +
            concat(tokenizer->facts().vocab_size - 1, ", but the model has ", dims.vocab) +
            " token ids; give the tokenizer with which the model was trained");
  }
  return tokenizer;
}

// A model of a checkpoint or folder, whose parameters have no memory yet.
struct Opened {
  HfConfig config;
  BlockList blocks;
  std::shared_ptr<const Tokenizer> tokenizer;
};

Opened open_model(const Request& request) {
  const std::string& folder = request.checkpoint;
  const auto has = [&](const char* name) { return std::filesystem::exists(folder + name); };
  if (const std::string newest = checkpoint_near(folder); !has("/config.json") && !newest.empty()) {
    throw Refused(kExitUsage,
                  folder +
                      (has("") ? " is not a checkpoint, but holds some; the newest one is "
                               : " does not exist; the newest checkpoint there is ") +
                      newest);
  }
  if (has("/manifest.json") && !has("/config.json")) {
    throw Refused(kExitUsage,
                  folder +
                      " holds no built-in language model (it has no config.json); only those "
                      "can continue a text");
  }
  try {
    Opened opened{read_hf_config(folder), {}, nullptr};
    opened.tokenizer = open_tokenizer(request, opened.config.dims);
    ModelConfig model;
    model.from = folder;
    model.lora = stored_adapters(folder);
    opened.blocks = builtin_family(model).make_blocks({});
    return opened;
  } catch (const Refused&) {
    throw;
  } catch (const Error& e) {
    if (e.code() == YOKE_DATA_LOSS) throw;
    throw Refused(kExitUsage, e.what());
  }
}

// Allocates and fills all parameters and binds them to the model. The caller keeps the tensors.
std::vector<at::Tensor> load_params(const YokeModel& model) {
  std::vector<at::Tensor> owned;
  YokeError err = make_error();
  for (uint64_t i = 0; i < model.summary->num_params; ++i) {
    const YokeParameter& p = *model.summary->params[i];
    const auto param = static_cast<int64_t>(i);
    owned.push_back(at::empty(at::IntArrayRef(p.shape, p.ndim), at::kFloat));
    const at::Tensor& values = owned.back();
    check(model.init_param(model.ctx, param, 0, values.numel(), values.data_ptr<float>(), &err),
          err);
    check(model.bind_param(model.ctx, param, TensorView(values).get(), &err), err);
  }
  return owned;
}

// Runs the model on the last tokens and returns the logits of the next one, [vocab] in fp64.
// Nothing is cached between tokens: the texts are short.
at::Tensor next_logits(const BlockList& blocks, const std::vector<int64_t>& window) {
  const auto n = static_cast<int64_t>(window.size());
  const at::Tensor tokens = at::tensor(window, at::kLong).view({1, n});
  const TorchInputs inputs{{"tokens", tokens},
                           {"positions", at::arange(n, at::kLong).view({1, n})}};
  at::Tensor carry;
  for (size_t b = 0; b + 1 < blocks.blocks.size(); ++b)
    carry = blocks.blocks[b].forward(carry, inputs);
  return blocks.logits(carry.slice(1, n - 1, n)).flatten().to(at::kDouble);
}

// Continues a text token by token.
class Generator {
 public:
  Generator(const Opened& opened, const Request& request)
      : opened_(opened),
        sampling_(request.sampling),
        longest_(static_cast<size_t>(opened.config.max_positions)),
        random_(request.seed) {}

  // Returns the next token after `text`, which is not empty. Ids that are no tokens are not chosen.
  int32_t next(const std::vector<int64_t>& text) {
    const auto n = static_cast<std::ptrdiff_t>(std::min(text.size(), longest_));
    const at::Tensor logits =
        next_logits(opened_.blocks, {text.end() - n, text.end()}).contiguous();
    std::vector<double> values(logits.data_ptr<double>(),
                               logits.data_ptr<double>() + logits.numel());
    for (size_t id = 0; id < values.size(); ++id) {
      if (!opened_.tokenizer->contains(static_cast<int32_t>(id)))
        values[id] = -std::numeric_limits<double>::infinity();
    }
    return static_cast<int32_t>(sample(values, sampling_, random_));
  }

 private:
  const Opened& opened_;
  SamplingOptions sampling_;
  size_t longest_;
  std::mt19937_64 random_;
};

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// Returns the ids of the prompt, after the tokens that the model expects before it. There is at
// least one: a model continues tokens.
std::vector<int64_t> prompt_ids(const Tokenizer& tokenizer, const std::string& prompt) {
  std::vector<int32_t> ids = tokenizer.facts().prefix;
  try {
    tokenizer.encoder()->encode(prompt, ids);
  } catch (const Error& e) {
    throw Refused(kExitUsage, std::string("--prompt: ") + e.what());
  }
  if (ids.empty()) {
    throw Refused(kExitUsage,
                  "the tokenizer " + tokenizer.facts().path +
                      " turns the prompt into no tokens; give another --prompt");
  }
  return {ids.begin(), ids.end()};
}

// Adds tokens to `text` until one of `stops` comes or `most` were added, and prints them. Returns
// what it has printed.
std::string print_continuation(Generator& generator,
                               const Tokenizer& tokenizer,
                               std::vector<int64_t>& text,
                               const std::vector<int32_t>& stops,
                               int64_t most) {
  StreamDecoder stream(tokenizer);
  for (const int64_t id : text) stream.push(static_cast<int32_t>(id));
  std::string printed;
  const auto show = [&](const std::string& part) {
    print(part);
    printed += part;
  };
  for (int64_t i = 0; i < most; ++i) {
    const int32_t id = generator.next(text);
    if (std::find(stops.begin(), stops.end(), id) != stops.end()) break;
    text.push_back(id);
    show(stream.push(id));
  }
  show(stream.finish());
  return printed;
}

// A conversation with the model. Every answer is a continuation of the whole conversation.
class Conversation {
 public:
  Conversation(const Request& request, const Tokenizer& tokenizer, Generator& generator)
      : tokenizer_(tokenizer),
        generator_(generator),
        most_(request.tokens),
        template_(request.chat_template, tokenizer),
        encoder_(tokenizer.encoder()),
        stops_(tokenizer.facts().stops) {
    stops_.push_back(template_.answer_end());
    if (!request.system.empty()) messages_.push_back({"system", request.system});
  }

  // Prints the answer to what the user says.
  void answer(const std::string& said) {
    messages_.push_back({"user", said});
    const std::vector<int32_t> ids = template_.encode_open(messages_, *encoder_);
    std::vector<int64_t> text(ids.begin(), ids.end());
    messages_.push_back(
        {"assistant", print_continuation(generator_, tokenizer_, text, stops_, most_)});
    print("\n");
  }

 private:
  const Tokenizer& tokenizer_;
  Generator& generator_;
  const int64_t most_;
  const ChatTemplate template_;
  const std::unique_ptr<TextEncoder> encoder_;
  std::vector<int32_t> stops_;
  std::vector<ChatMessage> messages_;
};

// Answers the prompt or, without one, each line of the input.
void chat(const Request& request, const Tokenizer& tokenizer, Generator& generator) {
  try {
    Conversation conversation(request, tokenizer, generator);
    if (request.prompt) return conversation.answer(*request.prompt);
    const bool terminal = ::isatty(STDIN_FILENO) == 1;
    if (terminal) print("> ");
    for (std::string line; std::getline(std::cin, line);) {
      if (!line.empty()) conversation.answer(line);
      if (terminal) print("> ");
    }
  } catch (const Error& e) {
    throw Refused(kExitUsage, e.what());
  }
}

}  // namespace

int generate(const std::vector<std::string>& args) {
  const Request request = parse(args);
  const Opened opened = open_model(request);
  const Tokenizer& tokenizer = *opened.tokenizer;
  const TorchModelHost host(opened.blocks, YOKE_F32, 0, false);
  const std::vector<at::Tensor> params = load_params(host.model());

  const at::NoGradGuard no_gradients;
  Generator generator(opened, request);
  if (request.chat) {
    chat(request, tokenizer, generator);
    return kExitOk;
  }
  const std::string prompt = request.prompt.value_or("\n");
  std::vector<int64_t> text = prompt_ids(tokenizer, prompt);
  print(prompt);
  print_continuation(generator, tokenizer, text, tokenizer.facts().stops, request.tokens);
  print("\n");
  return kExitOk;
}

}  // namespace yoke
