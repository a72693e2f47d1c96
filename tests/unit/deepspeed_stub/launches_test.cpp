// Counts what a layer launches for each micro-batch, on an emulated device.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "core/model/llama.hpp"
#include "core/model/torch_model.hpp"
#include "tests/support/launch_counter.hpp"
#include "tests/support/mock_host.hpp"
#include "tests/support/temp_folder.hpp"
#include "tests/support/token_batch.hpp"
#include "yoke/error.hpp"
#include "yoke/plan.h"
#include "yoke/text.hpp"

namespace yoke::deepspeed_stub {
namespace {

using namespace yoke::testing;

decltype(YokeModel::block_backward) real_backward = nullptr;
const YokeBackwardArgs* real_args = nullptr;

// Passes a gradient to the backend, which adds it to its sum with one kernel.
int32_t count_gradient(void* ctx, int64_t param, const YokeTensor* grad, YokeError* err) {
  OnCpu::count("gradient");
  return real_args->on_grad_ready(ctx, param, grad, err);
}

int32_t counted_backward(void* ctx,
                         const YokeBackwardArgs* args,
                         YokeManagedTensor** grad_in,
                         YokeError* err) {
  real_args = args;
  YokeBackwardArgs counted = *args;
  counted.on_grad_ready = count_gradient;
  return real_backward(ctx, &counted, grad_in, err);
}

// Calls observe(step) with a function that makes the second step of a run with a Llama.
template <class F>
void observe_second_step(int layers, int micros, int32_t dtype, const F& observe) {
  const TempFolder folder;
  ModelConfig config;
  config.config = folder.write("config.json", counted_llama(layers));
  const Family family = llama_family(config, PrecisionConfig());
  TorchModelHost torch(
      family.make_blocks({.options = {}, .param_dtype = dtype, .seq_len = 64, .data_path = ""}),
      dtype,
      1,
      false);
  YokeModel model = torch.model();
  real_backward = model.block_backward;
  model.block_backward = counted_backward;
  MockPlan plan;
  plan.plan.param_dtype = dtype;
  plan.plan.reduce_dtype = yoke_default_reduce_dtype(dtype);
  plan.plan.global_batch = micros;
  plan.plan.micro_batch = 1;
  MockHost host;
  at::set_num_threads(1);  // the tensors are small
  at::manual_seed(1);
  const TokenBatch tokens({.micros = micros});
  YokeError err = make_error();
  Session session(*parallel_backend_entry_v1(YOKE_ABI_MINOR, &err), plan, host, model);
  session.step(tokens.batch(), 1, 1e-4);
  observe([&] { return session.step(tokens.batch(), 2, 1e-4); });
}

TEST(Launches, OfALayerAreFew) {
  for (const int32_t dtype : {YOKE_F32, YOKE_BF16}) {
    const EmulatedCuda cuda(/*everywhere=*/true);
    const Launches launches = launches_of_a_layer([type = dtype](int layers, int micros) {
      Launches counts;
      observe_second_step(layers, micros, type, [&](const auto& step) {
        const LaunchCounter counter;
        step();
        counts = counter.counts();
      });
      return counts;
    });
    const auto [sum, all] = total_of(launches);
    EXPECT_EQ(sum, 38) << all;  // the number that ARCHITECTURE gives
    EXPECT_EQ(launches.at("gradient"), 9) << all;
    RecordProperty(concat("launches of dtype ", dtype), sum);
  }
}

// A whole step with the kernels of a device, emulated, and with those of the CPU.
TEST(Launches, OfADeviceGiveTheSameStep) {
  for (const auto& [dtype, bound] :
       {std::pair{YOKE_F64, 1e-12}, {YOKE_F32, 1e-5}, {YOKE_BF16, 1e-2}}) {
    const auto second_step = [type = dtype] {
      YokeStepResult result{};
      observe_second_step(2, 3, type, [&](const auto& step) { result = step(); });
      return result;
    };
    const YokeStepResult expected = second_step();
    const EmulatedCuda cuda(/*everywhere=*/true);
    const YokeStepResult got = second_step();
    EXPECT_NEAR(got.loss_sum / expected.loss_sum, 1, bound) << dtype;
    EXPECT_NEAR(got.grad_norm / expected.grad_norm, 1, bound) << dtype;
    EXPECT_EQ(got.loss_weight, expected.loss_weight);
  }
}

}  // namespace
}  // namespace yoke::deepspeed_stub
