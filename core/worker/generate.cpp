#include "core/worker/generate.hpp"

#include <ATen/ATen.h>

#include <cstdio>
#include <filesystem>
#include <random>

#include "core/base/exit_code.hpp"
#include "core/model/adapters.hpp"
#include "core/model/family.hpp"
#include "core/model/hf_config.hpp"
#include "core/run/job.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

struct Request {
  std::string checkpoint;
  std::string prompt = "\n";
  int64_t tokens = 200;
  double temperature = 0.8;  // 0 = always the most likely token
  uint64_t seed = 1;
};

double number(const std::string& flag, const std::string& text, double min, double max) {
  size_t used = 0;
  double value = min - 1;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
  }
  if (used != text.size() || value < min || value > max) {
    throw Refused(kExitUsage,
                  concat("yoke generate: ", flag, " ", text, "; allowed: a number from ", min) +
                      concat(" to ", max));
  }
  return value;
}

Request parse(const std::vector<std::string>& args) {
  Request r;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& word = args[i];
    const auto value = [&]() -> const std::string& {
      if (i + 1 == args.size())
        throw Refused(kExitUsage, "yoke generate: " + word + " needs a value");
      return args[++i];
    };
    if (word == "--prompt") {
      r.prompt = value();
    } else if (word == "--tokens") {
      r.tokens = static_cast<int64_t>(number(word, value(), 1, 1e6));
    } else if (word == "--temperature") {
      r.temperature = number(word, value(), 0, 100);
    } else if (word == "--seed") {
      r.seed = static_cast<uint64_t>(number(word, value(), 0, 9e15));
    } else if (word.rfind("--", 0) == 0 || !r.checkpoint.empty()) {
      throw Refused(kExitUsage,
                    "yoke generate: unexpected '" + word +
                        "'; usage: yoke generate CHECKPOINT --prompt TEXT [--tokens N] "
                        "[--temperature T] [--seed S]");
    } else {
      r.checkpoint = word;
    }
  }
  if (r.checkpoint.empty())
    throw Refused(kExitUsage, "yoke generate: no checkpoint was given; give its folder");
  if (r.prompt.empty())
    throw Refused(kExitUsage, "yoke generate: --prompt is empty; give at least one character");
  return r;
}

// Prompts are bytes, so a model must have been trained on bytes to continue them.
void require_byte_model(const std::string& folder, const ModelDims& dims) {
  if (dims.vocab < 256) {
    throw Refused(kExitUsage,
                  concat("yoke generate: the model has ", dims.vocab) +
                      " token ids; prompts are bytes, so 256 are needed");
  }
  for (const char* name : {"/tokenizer.json", "/tokenizer.model", "/vocab.json"}) {
    if (!std::filesystem::exists(folder + name)) continue;
    throw Refused(kExitUsage,
                  "yoke generate: " + folder + name +
                      ": the model's tokens are not bytes, and Yoke has no tokenizers yet; use "
                      "transformers");
  }
}

// A model of a checkpoint or folder, whose parameters have no memory yet.
struct Opened {
  HfConfig config;
  BlockList blocks;
};

Opened open_model(const std::string& folder) {
  const auto has = [&](const char* name) { return std::filesystem::exists(folder + name); };
  if (has("/manifest.json") && !has("/config.json")) {
    throw Refused(kExitUsage,
                  "yoke generate: " + folder +
                      " holds no built-in language model (it has no config.json); only those "
                      "can continue a text");
  }
  try {
    Opened opened{read_hf_config(folder), {}};
    require_byte_model(folder, opened.config.dims);
    ModelConfig model;
    model.from = folder;
    model.lora = stored_adapters(folder);
    opened.blocks = builtin_family(model).make_blocks({});
    return opened;
  } catch (const Refused&) {
    throw;
  } catch (const Error& e) {
    if (e.code() == YOKE_DATA_LOSS) throw;
    throw Refused(kExitUsage, std::string("yoke generate: ") + e.what());
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

// Draws a token from softmax(logits / temperature) by inverting its cumulative distribution.
int64_t sample(const at::Tensor& logits, double temperature, std::mt19937_64& random) {
  if (temperature == 0) return logits.argmax().item<int64_t>();
  const at::Tensor p = at::softmax(logits / temperature, 0).cumsum(0);
  const double u = std::uniform_real_distribution<double>(0, 1)(random) * p[-1].item<double>();
  return std::min(at::searchsorted(p, u).item<int64_t>(), logits.numel() - 1);
}

}  // namespace

int generate(const std::vector<std::string>& args) {
  const Request request = parse(args);
  const Opened opened = open_model(request.checkpoint);
  const BlockList& blocks = opened.blocks;
  const TorchModelHost host(blocks, YOKE_F32, 0, false);
  const std::vector<at::Tensor> params = load_params(host.model());

  const at::NoGradGuard no_gradients;
  const auto longest = static_cast<size_t>(opened.config.max_positions);
  std::mt19937_64 random(request.seed);
  std::vector<int64_t> text;
  for (const char c : request.prompt) text.push_back(static_cast<unsigned char>(c));
  std::fputs(request.prompt.c_str(), stdout);
  for (int64_t i = 0; i < request.tokens; ++i) {
    const size_t n = std::min(text.size(), longest);
    text.push_back(
        sample(next_logits(blocks, {text.end() - static_cast<std::ptrdiff_t>(n), text.end()}),
               request.temperature,
               random));
    std::fputc(text.back() < 256 ? static_cast<int>(text.back()) : '?', stdout);
    std::fflush(stdout);
  }
  std::fputc('\n', stdout);
  return kExitOk;
}

}  // namespace yoke
