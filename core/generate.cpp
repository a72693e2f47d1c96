#include "core/generate.hpp"

#include <ATen/ATen.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "core/checkpoint/checkpoint.hpp"
#include "core/job.hpp"
#include "core/launch/exit_code.hpp"
#include "yoke/tensor.hpp"

namespace yoke {
namespace {

struct Request {
  std::string checkpoint;
  std::string prompt = "\n";
  int64_t tokens = 200;
  double temperature = 0.8;  // 0 = always the likeliest token
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
    std::ostringstream allowed;
    allowed << min << " to " << max;
    throw Refused(
        kExitUsage,
        "yoke generate: " + flag + " " + text + "; allowed: a number from " + allowed.str());
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
    throw Refused(kExitUsage, "yoke generate: which checkpoint? Give its folder");
  if (r.prompt.empty())
    throw Refused(kExitUsage, "yoke generate: --prompt is empty; give at least one character");
  return r;
}

// The model as config.json of the checkpoint describes it.
ModelConfig model_config(const nlohmann::json& hf) {
  ModelConfig m;
  m.family = hf.at("model_type").get<std::string>();
  m.dim = hf.at("hidden_size");
  m.layers = hf.at("num_hidden_layers");
  m.heads = hf.at("num_attention_heads");
  m.kv_heads = hf.at("num_key_value_heads");
  m.ffn_dim = hf.at("intermediate_size");
  m.vocab = hf.at("vocab_size");
  m.tied = hf.at("tie_word_embeddings").get<bool>();
  m.rope_theta = hf.at("rope_theta").get<double>();
  m.norm_eps = hf.at("rms_norm_eps").get<double>();
  return m;
}

nlohmann::json read_hf_config(const std::string& checkpoint) {
  const std::string path = checkpoint + "/config.json";
  std::ifstream in(path);
  if (!in) {
    throw Refused(
        kExitUsage,
        "yoke generate: cannot read " + path +
            "; give the folder of a checkpoint, e.g. runs/novels/checkpoints/step-00000300");
  }
  try {
    return nlohmann::json::parse(in);
  } catch (const nlohmann::json::exception& e) {
    throw Error(YOKE_DATA_LOSS, path + " is damaged: " + e.what());
  }
}

// All parameters in memory, bound to the model.
std::vector<at::Tensor> load_params(const CheckpointReader& reader, const YokeModel& model) {
  std::vector<at::Tensor> owned;
  YokeError err = make_error();
  for (uint64_t i = 0; i < model.summary->num_params; ++i) {
    const YokeParameter& p = *model.summary->params[i];
    owned.push_back(at::empty(at::IntArrayRef(p.shape, p.ndim), at::kFloat));
    const TensorView whole(owned.back());
    const FlatView flat(owned.back().data_ptr(), owned.back().numel(), YOKE_F32);
    YokePiece piece{};
    piece.header = YOKE_HEADER(YokePiece, YOKE_ID_PIECE);
    piece.name = p.name;
    piece.kind = view("param");
    piece.shape = p.shape;
    piece.ndim = p.ndim;
    piece.dtype = YOKE_F32;
    piece.count = owned.back().numel();
    piece.view = flat.get();
    reader.visit(piece);
    check(model.bind_param(model.ctx, static_cast<int64_t>(i), whole.get(), &err), err);
  }
  return owned;
}

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

int64_t sample(const at::Tensor& logits, double temperature, std::mt19937_64& random) {
  if (temperature == 0) return logits.argmax().item<int64_t>();
  const at::Tensor p = at::softmax(logits / temperature, 0).cumsum(0);
  const double u = std::uniform_real_distribution<double>(0, 1)(random) * p[-1].item<double>();
  return std::min(at::searchsorted(p, u).item<int64_t>(), logits.numel() - 1);
}

}  // namespace

int generate(const std::vector<std::string>& args) {
  const Request request = parse(args);
  const nlohmann::json hf = read_hf_config(request.checkpoint);
  const ModelConfig config = model_config(hf);
  if (config.vocab < 256) {
    throw Refused(kExitUsage,
                  "yoke generate: the model has " + std::to_string(config.vocab) +
                      " token ids; prompts are bytes, so 256 are needed");
  }
  const BlockList blocks = builtin_families().at(config.family).make_blocks(config, {}, YOKE_F32);
  const TorchModelHost host(blocks, YOKE_F32, 0, false);
  const CheckpointReader reader(request.checkpoint);
  reader.check_model(host.summary());
  const std::vector<at::Tensor> params = load_params(reader, host.model());

  const at::NoGradGuard no_gradients;
  const size_t longest = hf.at("max_position_embeddings");
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
