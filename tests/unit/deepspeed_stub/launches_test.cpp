// Counts what a layer launches for each micro-batch, and compares runs on an emulated device with
// runs on the CPU.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <vector>

#include "core/model/llama.hpp"
#include "core/model/torch_model.hpp"
#include "tests/support/device_run.hpp"
#include "tests/support/launch_counter.hpp"
#include "tests/support/mock_element.hpp"
#include "tests/support/mock_host.hpp"
#include "tests/support/temp_folder.hpp"
#include "tests/support/token_batch.hpp"
#include "tests/unit/deepspeed_stub/emulated_cuda.hpp"
#include "yoke/error.hpp"
#include "yoke/plan.h"
#include "yoke/text.hpp"

namespace yoke::deepspeed_stub {
namespace {

using namespace yoke::testing;

decltype(YokeModel::block_backward) real_backward = nullptr;
decltype(YokeModel::bind_param) real_bind = nullptr;
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

// The model computes with CPU tensors in the memory of the emulated device.
int32_t bind_on_cpu(void* ctx, int64_t param, const YokeTensor* view, YokeError* err) {
  if (view == nullptr) return real_bind(ctx, param, nullptr, err);
  YokeTensor on_cpu = *view;
  on_cpu.device = {YOKE_DEVICE_CPU, 0};
  return real_bind(ctx, param, &on_cpu, err);
}

struct Layout {
  int layers = 2, micros = 3, sequences = 1;  // a sequence has 64 tokens
  int32_t dtype = YOKE_F32;

  TokenBatch::Size batch() const { return {.micros = micros, .sequences = sequences}; }
};

// Calls use(session) with a run of a Llama. device: where the plugin computes; NULL = on the CPU.
template <class F>
void with_session(const Layout& layout, testing::EmulatedCuda* device, const F& use) {
  const TempFolder folder;
  ModelConfig config;
  config.config = folder.write("config.json", counted_llama(layout.layers));
  const Family family = llama_family(config, PrecisionConfig());
  TorchModelHost torch(
      family.make_blocks(
          {.options = {}, .param_dtype = layout.dtype, .seq_len = 64, .data_path = ""}),
      layout.dtype,
      1,
      true);
  YokeModel model = torch.model();
  real_backward = model.block_backward;
  model.block_backward = counted_backward;
  real_bind = model.bind_param;
  model.bind_param = bind_on_cpu;
  MockPlan plan;
  plan.plan.param_dtype = layout.dtype;
  plan.plan.reduce_dtype = yoke_default_reduce_dtype(layout.dtype);
  plan.plan.global_batch = layout.micros * layout.sequences;
  plan.plan.micro_batch = layout.sequences;
  MockHost host;
  if (device != nullptr) {
    device->plug_into(host);
    model = device->on_device(model);
  }
  at::set_num_threads(1);  // the tensors are small
  YokeError err = make_error();
  Session session(*parallel_backend_entry_v1(YOKE_ABI_MINOR, &err), plan, host, model);
  use(session);
}

// Returns the launches of the second step.
Launches launches_of(const Layout& layout) {
  Launches counts;
  with_session(layout, nullptr, [&](Session& session) {
    const TokenBatch tokens(layout.batch());
    session.step(tokens.batch(), 1, 1e-4);
    const LaunchCounter counter;
    session.step(tokens.batch(), 2, 1e-4);
    counts = counter.counts();
  });
  return counts;
}

// With few tokens in a micro-batch, and with many.
TEST(Launches, OfALayerAreFew) {
  const EmulatedCuda cuda(/*everywhere=*/true);
  for (const int sequences : {1, 8}) {
    for (const int32_t dtype : {YOKE_F32, YOKE_BF16}) {
      const Launches launches =
          launches_of_a_layer([n = sequences, type = dtype](int layers, int micros) {
            return launches_of({layers, micros, n, type});
          });
      const auto [sum, all] = total_of(launches);
      EXPECT_EQ(sum, 38) << all;  // the number that ARCHITECTURE gives
      EXPECT_EQ(launches.at("gradient"), 9) << all;
      RecordProperty(concat("launches of dtype ", dtype, ", sequences ", sequences), sum);
    }
  }
}

struct Result {
  std::vector<double> loss, norm;
  std::vector<SavedPiece> state;
};

// Returns the outcome of several steps. on_device: the operators of the model and the kernels of
// the plugin are those of a device, emulated.
Result train(const Layout& layout, int steps, bool on_device) {
  std::optional<EmulatedCuda> operators;
  std::optional<testing::EmulatedCuda> device;
  if (on_device) {
    operators.emplace(/*everywhere=*/true);
    device.emplace();
  }
  Result run;
  with_session(layout, device ? &*device : nullptr, [&](Session& session) {
    for (int step = 1; step <= steps; ++step) {
      at::manual_seed(step);
      const TokenBatch tokens(layout.batch());
      const int64_t waits = device ? device->waits() : 0;
      const YokeStepResult result = session.step(tokens.batch(), step, 4e-3);
      run.loss.push_back(result.loss_sum / result.loss_weight);
      run.norm.push_back(result.grad_norm);
      if (device) {
        EXPECT_EQ(device->waits(), waits + 1);
      }
    }
    std::optional<testing::EmulatedCuda::Access> access;
    if (device) access.emplace(*device);
    run.state = save_state(session);
  });
  return run;
}

// Returns the difference of the parameters of two runs, in units of what the second has updated.
double distance(const Result& a, const Result& b, const Result& start) {
  double apart = 0, updated = 0;
  for (size_t i = 0; i < b.state.size(); ++i) {
    const SavedPiece& piece = b.state[i];
    EXPECT_EQ(a.state[i].key, piece.key);
    EXPECT_EQ(a.state[i].dtype, piece.dtype);
    if (!piece.key.ends_with("/param")) continue;
    for (int64_t k = 0; k < piece.count; ++k) {
      const auto at = [&](const Result& run) {
        return get_element(run.state[i].bytes.data(), piece.dtype, k);
      };
      apart += std::pow(at(a) - at(b), 2);
      updated += std::pow(at(b) - at(start), 2);
    }
  }
  return std::sqrt(apart / updated);
}

// Whole steps with everything that a device has, emulated: its operators in the model, and the
// plugin's own kernels and stream, in whose memory the host reads nothing before the end of a step.
// They are compared with the steps of the CPU.
TEST(Launches, OfADeviceGiveTheSameRun) {
  constexpr int kSteps = 5;
  for (const auto& [dtype, loss, norm, updates] : kDeviceBounds) {
    SCOPED_TRACE(dtype);
    const Layout layout{.micros = 2, .sequences = 5, .dtype = dtype};
    const Result start = train(layout, 0, /*on_device=*/false),
                 cpu = train(layout, kSteps, /*on_device=*/false),
                 ours = train(layout, kSteps, /*on_device=*/true);
    ASSERT_EQ(ours.state.size(), cpu.state.size());
    expect_near_cpu(ours.loss, cpu.loss, loss);
    expect_near_cpu(ours.norm, cpu.norm, norm);
    EXPECT_LE(distance(ours, cpu, start), updates);
  }
}

}  // namespace
}  // namespace yoke::deepspeed_stub
