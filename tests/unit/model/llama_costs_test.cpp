// Compares what a block reports about itself with what its passes do: bytes with those that
// LibTorch allocates, FLOPs with those of the products that LibTorch runs.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <functional>

#include "core/kernels/cpu_kernels.hpp"
#include "core/kernels/fused_ops.hpp"
#include "core/model/family.hpp"
#include "core/model/model_dims.hpp"
#include "core/model/torch_model.hpp"
#include "tests/support/temp_folder.hpp"
#include "tests/unit/model/neutral_driver.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// Counts the bytes of tensors that this thread has allocated and not freed since construction, or
// since restart(). Tensors from before construction are not counted when they are freed.
class LiveBytes {
 public:
  LiveBytes()
      : count_(std::make_shared<Count>()), guard_(c10::DebugInfoKind::PROFILER_STATE, count_) {}
  int64_t now() const { return count_->live; }
  int64_t peak() const { return count_->peak; }  // the largest count so far, at least 0
  void restart() { count_->live = count_->peak = 0; }

 private:
  struct Count : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
      live += bytes;
      peak = std::max(peak, live);
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t live = 0, peak = 0;
  };
  std::shared_ptr<Count> count_;
  c10::DebugInfoGuard guard_;
};

// Counts the FLOPs of the matrix products that this thread runs, 2 m n k for each. Causal attention
// counts half of its two products.
class CountedFlops {
 public:
  CountedFlops() {
    flops = 0;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&count).needsInputs(true));
  }
  ~CountedFlops() { at::removeCallback(handle_); }
  CountedFlops(const CountedFlops&) = delete;
  double now() const { return flops; }

 private:
  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& call) {
    const std::string name = call.name();
    const auto size = [&](size_t input, int64_t dim) {
      return static_cast<double>(call.inputs()[input].toTensor().size(dim));
    };
    if (name == "aten::mm") flops += 2 * size(0, 0) * size(0, 1) * size(1, 1);
    if (name == "aten::addmm") flops += 2 * size(1, 0) * size(1, 1) * size(2, 1);
    EXPECT_NE(name, "aten::bmm");
    // Queries and keys are [sequences, heads, length, width].
    if (name == "aten::scaled_dot_product_attention") {
      EXPECT_TRUE(call.inputs()[5].toBool()) << "is_causal";
      flops += 2 * 2 * size(0, 0) * size(0, 1) * size(0, 2) * size(1, 2) * size(0, 3) / 2;
    }
    return nullptr;
  }

  static thread_local double flops;
  at::CallbackHandle handle_;
};
thread_local double CountedFlops::flops = 0;

constexpr int64_t kVocab = 203;

struct Shape {
  std::string model = "llama";
  std::string blocks = "layer";
  int32_t dtype = YOKE_F32;
  bool tied = true;
  int64_t sequences = 3, seq_len = 64;
  PrecisionConfig precision{};
};

// Returns the config.json of a model other than "llama"; "" for that.
std::string json_of(const std::string& model) {
  const std::string rotary =
      R"("hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6,
         "num_key_value_heads": 2, "intermediate_size": 256, "vocab_size": 203,
         "tie_word_embeddings": true)";
  if (model == "wide_heads") return R"({"model_type": "llama", "head_dim": 24, )" + rotary + "}";
  if (model == "narrow_heads") return R"({"model_type": "llama", "head_dim": 8, )" + rotary + "}";
  if (model == "biases")
    return R"({"model_type": "llama", "attention_bias": true, "mlp_bias": true, )" + rotary + "}";
  if (model == "qwen3") return R"({"model_type": "qwen3", "head_dim": 24, )" + rotary + "}";
  if (model == "gpt2") {
    return R"({"model_type": "gpt2", "n_embd": 96, "n_layer": 2, "n_head": 6, "vocab_size": 203,
               "n_positions": 2048})";
  }
  return "";
}

ModelConfig config_of(const Shape& shape) {
  static const testing::TempFolder folder;
  ModelConfig config;
  config.blocks = shape.blocks;
  if (const std::string json = json_of(shape.model); !json.empty()) {
    config.config = folder.write(shape.model + ".json", json);
    return config;
  }
  config.dim = 96;
  config.layers = 2;
  config.heads = 6;
  config.kv_heads = 2;
  config.ffn_dim = 256;
  config.vocab = kVocab;
  config.tied = shape.tied;
  return config;
}

// A small Llama whose parameters have memory.
class SmallLlama {
 public:
  explicit SmallLlama(const Shape& shape)
      : host_(builtin_family(config_of(shape), shape.precision)
                  .make_blocks({.options = {},
                                .param_dtype = shape.dtype,
                                .seq_len = shape.seq_len,
                                .data_path = ""}),
              shape.dtype,
              1,
              false) {
    for (size_t p = 0; p < torch().params->size(); ++p) {
      const at::Tensor& leaf = (*torch().params)[p];
      memory_.push_back(at::randn(leaf.sizes(), leaf.options()));
      const TensorView view(memory_.back());
      YokeError err = make_error();
      check(host_.model().bind_param(host_.model().ctx, static_cast<int64_t>(p), view.get(), &err),
            err);
    }
  }

  const TorchModel& torch() const { return *torch_model(host_.model()); }
  const YokeModelSummary& summary() const { return host_.summary(); }

 private:
  TorchModelHost host_;
  std::vector<at::Tensor> memory_;
};

// A block with an input.
struct BlockRun {
  const YokeBlock& listed;
  const TorchModel& model;
  std::function<at::Tensor()> forward;  // records a graph if the grad mode is on
  const at::Tensor& input;              // a leaf; undefined for the first block

  void drop_gradients() const {
    if (input.defined()) input.mutable_grad().reset();
    for (const at::Tensor& leaf : *model.params) leaf.mutable_grad().reset();
  }
};

// Calls compare(run) for each block of a small Llama.
template <class Compare>
void for_each_block(const Shape& shape, const Compare& compare) {
  SmallLlama model(shape);
  TestBatch batch(shape.sequences, shape.seq_len, kVocab, 1);
  const TorchInputs inputs = borrow(*batch.micro());
  at::Tensor input;
  for (uint64_t b = 0; b < model.summary().num_blocks; ++b) {
    const YokeBlock& listed = *model.summary().blocks[b];
    SCOPED_TRACE(std::string(view(listed.name)));
    const auto forward = [&] { return (*model.torch().blocks)[b].forward(input, inputs); };
    // This also fills a cache of angles, which is not an activation.
    const at::Tensor output = forward().detach();
    compare(BlockRun{listed, model.torch(), forward, input});
    input = output.clone().set_requires_grad(true);
  }
}

// ---- Activations ----

class LlamaCosts : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  const std::string& model() const { return std::get<0>(GetParam()); }
  const std::string& blocks() const { return std::get<1>(GetParam()); }
};

TEST_P(LlamaCosts, ABlockKeepsTheBytesThatItReports) {
  const Shape shape{.model = model(), .blocks = blocks()};
  for_each_block(shape, [&](const BlockRun& run) {
    const LiveBytes live;
    const at::Tensor output = run.forward();
    const auto expected = static_cast<double>(
        shape.sequences * (run.listed.activation_bytes + run.listed.carry_bytes));
    EXPECT_NEAR(static_cast<double>(live.now()), expected, 0.02 * expected + 64);
  });
}

// Products keep the fp8 numbers of an input if the gradients of weights use these. A matrix that is
// skipped keeps the input as it is beside them.
TEST(LlamaFp8Costs, ABlockKeepsTheBytesThatItReports) {
  for (const char* recipe : {"tensorwise", "rowwise", "rowwise_gw_hp"}) {
    for (const char* skipped : {"lm_head", "q_proj", "layers.1.mlp.down_proj"}) {
      for (const char* blocks : {"layer", "half"}) {
        Shape shape{.blocks = blocks, .dtype = YOKE_BF16};
        shape.precision.product = "fp8";
        shape.precision.fp8_recipe = recipe;
        shape.precision.fp8_skip = {"lm_head", skipped};
        // The sequences of a micro-batch share the scales of columns, which are counted for each.
        if (recipe == std::string("rowwise")) shape.sequences = 1;
        SCOPED_TRACE(concat(recipe, " without ", skipped, " in blocks ", blocks));
        for_each_block(shape, [&](const BlockRun& run) {
          const LiveBytes live;
          const at::Tensor output = run.forward();
          const auto expected = static_cast<double>(
              shape.sequences * (run.listed.activation_bytes + run.listed.carry_bytes));
          EXPECT_NEAR(static_cast<double>(live.now()), expected, 0.005 * expected + 64);
        });
      }
    }
  }
}

// The sequence is so long that LibTorch computes the attention.
TEST_P(LlamaCosts, ABlockRunsTheProductsThatItReports) {
  const Shape shape{.model = model(),
                    .blocks = blocks(),
                    .sequences = 2,
                    .seq_len = ops::fused::kLongestAttention + 8};
  double sum = 0;
  for_each_block(shape, [&](const BlockRun& run) {
    const CountedFlops counted;
    run.forward();
    EXPECT_EQ(counted.now(), shape.sequences * run.listed.forward_flops);
    sum += counted.now();
  });
  EXPECT_GT(sum, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Blocks,
    LlamaCosts,
    ::testing::Combine(::testing::Values("llama", "wide_heads", "biases", "qwen3", "gpt2"),
                       ::testing::Values("layer", "half")));

// ---- Passes ----

// Returns the largest sum among the points of a pass, or `otherwise` if that is more.
int64_t reported_peak(const YokeBlock& block, int32_t pass, int64_t sequences, int64_t otherwise) {
  int64_t most = otherwise;
  for (uint64_t i = 0; i < block.num_pass_bytes; ++i) {
    const YokePassBytes& at = block.pass_bytes[i];
    if (at.kind == pass) most = std::max(most, at.bytes_per_sequence * sequences + at.bytes);
  }
  return most;
}

// Returns the bytes that attention takes on one thread while it runs.
int64_t scratch_of_attention(const Shape& shape) {
  const ModelDims d = model_dims(config_of(shape));
  const AttentionShape sizes{shape.sequences, shape.seq_len, d.heads, d.kv_heads, d.head_size()};
  return shape.dtype == YOKE_F64 ? 8 * cpu_kernels_of<double>().attention_scratch(sizes)
                                 : 4 * cpu_kernels_of<float>().attention_scratch(sizes);
}

// The blocks do not report the buffers that oneDNN needs during a product, which depend on the
// processor.
class LlamaPasses : public ::testing::TestWithParam<Shape> {
 protected:
  LlamaPasses() {
    at::set_num_threads(1);
    at::globalContext().setUserEnabledMkldnn(false);
  }
  ~LlamaPasses() override {
    at::set_num_threads(threads_);
    at::globalContext().setUserEnabledMkldnn(true);
  }

  // Runs `pass` and compares its peak with the one that the block reports.
  template <class F>
  void expect_peak(const BlockRun& run, int32_t kind, const F& pass) {
    live_.restart();
    pass();
    const int64_t ends = std::max<int64_t>(live_.now(), 0);
    const int64_t expected = reported_peak(run.listed, kind, GetParam().sequences, ends);
    const int64_t slack = expected / 100 + kSmall;
    EXPECT_GE(live_.peak(), expected - slack) << "kind " << kind;
    EXPECT_LE(live_.peak(), expected + slack + not_reported(run.listed)) << "kind " << kind;
  }

 private:
  // One or two numbers for each row or head, and the gradients of norms.
  static constexpr int64_t kSmall = 1024;

  // Returns the scratch memory of operators. That of oneDNN, which computes products in bf16, is
  // not known.
  int64_t not_reported(const YokeBlock& block) const {
    if (GetParam().dtype == YOKE_BF16 && block.forward_flops > 0) return int64_t{1} << 40;
    const std::string_view name = view(block.name);
    return name.find("self_attn") == name.npos ? 0 : scratch_of_attention(GetParam());
  }

  const int threads_ = at::get_num_threads();
  LiveBytes live_;
};

TEST_P(LlamaPasses, NeedTheBytesThatTheBlockReports) {
  for_each_block(GetParam(), [&](const BlockRun& run) {
    at::Tensor output;
    expect_peak(run, YOKE_FORECAST_FORWARD, [&] {
      const at::AutoGradMode grad_mode(false);
      output = run.forward();
    });
    const at::Tensor grad = at::ones_like(output);
    output.reset();
    expect_peak(run, YOKE_FORECAST_FORWARD, [&] { output = run.forward(); });
    expect_peak(run, YOKE_FORECAST_BACKWARD, [&] { torch::autograd::backward({output}, {grad}); });
    run.drop_gradients();

    output = run.forward();
    WeightQueue queue;
    expect_peak(run, YOKE_FORECAST_BACKWARD_INPUT, [&] {
      run.model.defer_weights(&queue);
      torch::autograd::backward({output}, {grad});
      run.model.defer_weights(nullptr);
    });
    output.reset();
    expect_peak(run, YOKE_FORECAST_BACKWARD_WEIGHT, [&] {
      const at::AutoGradMode grad_mode(false);
      queue.run();
    });
    run.drop_gradients();
  });
}

// With few tokens, the gradients of weights are larger than activations.
std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const char* blocks : {"layer", "half"}) {
    for (const int32_t dtype : {YOKE_F32, YOKE_F64, YOKE_BF16}) {
      for (const bool tied : {true, false}) {
        for (const int64_t seq_len : {int64_t{8}, int64_t{48}, int64_t{300}})
          all.push_back({"llama", blocks, dtype, tied, seq_len == 8 ? 1 : 3, seq_len});
      }
    }
    for (const char* model : {"wide_heads", "narrow_heads", "biases"}) {
      for (const int64_t seq_len : {int64_t{8}, int64_t{48}, int64_t{300}})
        all.push_back({model, blocks, YOKE_F64, true, seq_len == 8 ? 1 : 3, seq_len});
    }
  }
  return all;
}

std::string name_of(const ::testing::TestParamInfo<Shape>& info) {
  const Shape& s = info.param;
  return concat(
      s.model, "_", s.blocks, "_", dtype_name(s.dtype), s.tied ? "_tied_" : "_untied_", s.seq_len);
}

INSTANTIATE_TEST_SUITE_P(Blocks, LlamaPasses, ::testing::ValuesIn(shapes()), name_of);

}  // namespace
}  // namespace yoke
