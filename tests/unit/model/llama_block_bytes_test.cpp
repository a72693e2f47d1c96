// Compares the predicted activation bytes of a block with the bytes that LibTorch allocates.
#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

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

TEST(BlockBytes, OfALlamaAreWhatItsBlocksKeep) {
  ModelConfig config;
  config.dim = 48;
  config.layers = 2;
  config.heads = 6;
  config.kv_heads = 2;
  config.ffn_dim = 112;
  config.vocab = 97;
  constexpr int64_t kSequences = 3, kSeqLen = 64;
  const FamilyArgs args{
      .options = {}, .param_dtype = YOKE_F32, .seq_len = kSeqLen, .data_path = ""};
  TorchModelHost host(llama_family(config).make_blocks(args), YOKE_F32, 1, false);
  NeutralDriver<float> driver(host.model());
  driver.bind_all();
  TestBatch batch(kSequences, kSeqLen, config.vocab, 1);

  const YokeTensor* carry = nullptr;
  std::vector<YokeForwardResult> results;
  for (uint64_t b = 0; b < host.summary().num_blocks; ++b) {
    // The block runs twice: the first run also fills a cache of angles, which is not an activation.
    const YokeForwardResult warm = driver.forward(b, batch.micro(), carry, true);
    const LiveBytes live;
    const YokeForwardResult result = driver.forward(b, batch.micro(), carry, true);
    const YokeBlock& block = *host.summary().blocks[b];
    const auto expected =
        static_cast<double>(kSequences * (block.activation_bytes + block.carry_bytes));
    EXPECT_NEAR(static_cast<double>(live.now()), expected, 0.02 * expected + 64)
        << view(block.name);
    for (const YokeForwardResult& r : {warm, result})
      host.model().drop_saved(host.model().ctx, r.saved);
    if (warm.carry_out != nullptr) warm.carry_out->deleter(warm.carry_out);
    results.push_back(result);
    if (result.carry_out != nullptr) carry = &result.carry_out->tensor;
  }
  for (const YokeForwardResult& r : results) {
    if (r.carry_out != nullptr) r.carry_out->deleter(r.carry_out);
  }
}

}  // namespace
}  // namespace yoke
