// Compares what a block reports about itself with what its forward does: activation bytes with the
// bytes that LibTorch allocates, FLOPs with those of the products that LibTorch runs.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include "core/kernels/fused_ops.hpp"
#include "core/model/llama.hpp"
#include "core/model/torch_model.hpp"
#include "tests/unit/model/neutral_driver.hpp"

namespace yoke {
namespace {

// Counts the bytes of tensors that this thread has allocated and not freed since construction.
class LiveBytes {
 public:
  LiveBytes()
      : count_(std::make_shared<Count>()), guard_(c10::DebugInfoKind::PROFILER_STATE, count_) {}
  int64_t now() const { return count_->live; }

 private:
  struct Count : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
      live += bytes;
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t live = 0;
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

constexpr int64_t kVocab = 97;

// Calls compare(block, sequences, forward) for each block of a small Llama. forward() runs the
// block, keeps its result alive, and may be called several times.
template <class Compare>
void for_each_block(const std::string& blocks,
                    int64_t sequences,
                    int64_t seq_len,
                    const Compare& compare) {
  ModelConfig config;
  config.dim = 48;
  config.layers = 2;
  config.heads = 6;
  config.kv_heads = 2;
  config.ffn_dim = 112;
  config.vocab = kVocab;
  config.blocks = blocks;
  const FamilyArgs args{
      .options = {}, .param_dtype = YOKE_F32, .seq_len = seq_len, .data_path = ""};
  TorchModelHost host(llama_family(config).make_blocks(args), YOKE_F32, 1, false);
  NeutralDriver<float> driver(host.model());
  driver.bind_all();
  TestBatch batch(sequences, seq_len, kVocab, 1);

  const YokeTensor* carry = nullptr;
  std::vector<YokeForwardResult> results;
  for (uint64_t b = 0; b < host.summary().num_blocks; ++b) {
    const YokeBlock& block = *host.summary().blocks[b];
    SCOPED_TRACE(std::string(view(block.name)));
    compare(block, [&] { results.push_back(driver.forward(b, batch.micro(), carry, true)); });
    if (results.back().carry_out != nullptr) carry = &results.back().carry_out->tensor;
  }
  for (const YokeForwardResult& r : results) {
    host.model().drop_saved(host.model().ctx, r.saved);
    if (r.carry_out != nullptr) r.carry_out->deleter(r.carry_out);
  }
}

class LlamaCosts : public ::testing::TestWithParam<std::string> {};

TEST_P(LlamaCosts, ABlockKeepsTheBytesThatItReports) {
  constexpr int64_t kSequences = 3, kSeqLen = 64;
  for_each_block(GetParam(), kSequences, kSeqLen, [](const YokeBlock& block, const auto& forward) {
    forward();  // also fills a cache of angles, which is not an activation
    const LiveBytes live;
    forward();
    const auto expected =
        static_cast<double>(kSequences * (block.activation_bytes + block.carry_bytes));
    EXPECT_NEAR(static_cast<double>(live.now()), expected, 0.02 * expected + 64);
  });
}

// The sequence is so long that LibTorch computes the attention.
TEST_P(LlamaCosts, ABlockRunsTheProductsThatItReports) {
  constexpr int64_t kSequences = 2, kSeqLen = ops::fused::kLongestAttention + 8;
  double sum = 0;
  for_each_block(GetParam(), kSequences, kSeqLen, [&](const YokeBlock& block, const auto& forward) {
    const CountedFlops counted;
    forward();
    EXPECT_EQ(counted.now(), kSequences * block.forward_flops);
    sum += counted.now();
  });
  EXPECT_GT(sum, 0);
}

INSTANTIATE_TEST_SUITE_P(Blocks, LlamaCosts, ::testing::Values("layer", "half"));

}  // namespace
}  // namespace yoke
