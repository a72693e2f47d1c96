// Compares the idle time of pipelines with that of their lists. The blocks of the model sleep for
// fixed times instead of computing, so ranks do not compete for the CPU, and whatever is added to
// the idle time of the list is overhead of ptd and of its messages.
//
//   build/release/bench/pipeline_idle [MILLISECONDS]     time of a forward of one block; default 20
#include <ATen/ATen.h>
#include <sys/prctl.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <thread>

#include "bench/interleaved.hpp"
#include "core/model/torch_model.hpp"
#include "plugins/ptd/forecast.hpp"
#include "tests/unit/ptd/rig.hpp"

namespace yoke::ptd {
namespace {

using testing::Job;

double block_seconds = 0.02;
thread_local WeightQueue* queue = nullptr;

thread_local double slept = 0;  // seconds that this rank has really slept

void sleep_once() {
  const double start = bench::seconds_now();
  std::this_thread::sleep_for(std::chrono::duration<double>(block_seconds));
  slept += bench::seconds_now() - start;
}

// A block that sleeps for the same time in its forward and in each of the two parts of its
// backward.
struct Sleeping : torch::autograd::Function<Sleeping> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx,
                            const at::Tensor& x,
                            const at::Tensor& weight) {
    ctx->save_for_backward({weight});
    sleep_once();
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const at::Tensor weight = ctx->get_saved_variables()[0];
    sleep_once();
    const auto of_weight = [weight] {
      sleep_once();
      return at::zeros_like(weight);
    };
    if (queue == nullptr) return {grads[0], of_weight()};
    queue->push(weight, of_weight);
    return {grads[0], at::Tensor()};
  }
};

BlockList sleeping_blocks(int count) {
  BlockList list;
  for (int b = 0; b < count; ++b) {
    const std::string name = "block" + std::to_string(b);
    const at::Tensor weight = at::zeros({2, 2}, at::kDouble).set_requires_grad(true);
    list.params.push_back({{name + ".weight", weight}});
    list.blocks.push_back(
        {name, nullptr, [weight, last = b + 1 == count](const at::Tensor& x, const TorchInputs&) {
           const at::Tensor out =
               Sleeping::apply(x.defined() ? x : at::zeros({4}, at::kDouble), weight);
           return last ? out.sum() : out;
         }});
  }
  list.init = [](const std::string&) { return ParamInit{}; };
  list.loss_weight = [](const TorchInputs&) { return 1.0; };
  return list;
}

// The two idle times of a schedule, summed over all ranks, in seconds.
struct Idle {
  double of_list = 0, measured = 0, step = 0;
};

Idle idle_of(PipelineKind kind, int ranks, int micros) {
  Job job;
  job.pp = ranks;
  job.accumulation = micros;
  job.global_batch = micros;
  job.options["pp_schedule"] = info_of(kind).name;
  const YokeOptimizer optimizer = testing::optimizer_of(job);
  const YokePlan plan = testing::plan_of(job, optimizer);
  const int blocks = ranks * info_of(kind).chunks;
  Idle idle;
  std::mutex mutex;
  double end = 0, all_slept = 0;
  testing::on_ranks(yoke::Mesh({ranks, 1, 1, 1, 1}), [&](const testing::Rank& rank) {
    ::prctl(PR_SET_TIMERSLACK, 1);
    TorchModelHost host(sleeping_blocks(blocks), plan.param_dtype, 1, true);
    YokeModel model = host.model();
    TorchModel torch = *torch_model(model);
    torch.defer_weights = [](WeightQueue* next) { return std::exchange(queue, next); };
    model.header.next = &torch.header;
    testing::Session session(job, rank.host, model);
    const testing::TinyBatch batch(job, 0, 0);
    session.step(batch.get(), 1, 0);  // learns the shapes of the messages
    slept = 0;
    const double start = bench::seconds_now();
    session.step(batch.get(), 2, 0);
    const std::lock_guard lock(mutex);
    all_slept += slept;
    end = std::max(end, bench::seconds_now() - start);
    if (rank.host.rank != 0) return;
    const testing::OptionValues values(job.options);
    const Forecast forecast =
        forecast_step(host.summary(),
                      plan,
                      PtdOptions(Options(values.values.data(), values.values.size()), ranks));
    const std::vector<double> each = idle_times(forecast.timeline, forecast.lists);
    const double unit = work_of_blocks(host.summary())[0];  // time of a forward there
    idle.of_list = std::accumulate(each.begin(), each.end(), 0.0) / unit;  // unit: one forward
  });
  // A sleep takes longer than requested, in a way that has nothing to do with the pipeline. Every
  // rank sleeps three times for each of its blocks and micro-batches.
  idle.of_list *= all_slept / (3.0 * blocks * micros);
  idle.step = end;
  idle.measured = end * ranks - all_slept;
  return idle;
}

}  // namespace

int run(int argc, char** argv) {
  if (argc > 1) block_seconds = std::atof(argv[1]) / 1000;
  if (block_seconds <= 0) {
    std::fprintf(stderr, "pipeline_idle %s: not a number of milliseconds above 0\n", argv[1]);
    return 2;
  }
  std::printf("%-15s %5s %6s %10s %14s %14s %9s\n",
              "schedule",
              "ranks",
              "micros",
              "step, s",
              "idle, list, s",
              "idle, run, s",
              "ratio");
  for (const PipelineInfo& info : pipeline_infos()) {
    for (const int ranks : {2, 4}) {
      const int micros = 2 * ranks;
      const Idle idle = idle_of(info.kind, ranks, micros);
      std::printf("%-15s %5d %6d %10.3f %14.3f %14.3f %9.4f\n",
                  info.name,
                  ranks,
                  micros,
                  idle.step,
                  idle.of_list,
                  idle.measured,
                  idle.measured / idle.of_list);
    }
  }
  return 0;
}

}  // namespace yoke::ptd

int main(int argc, char** argv) {
  return yoke::ptd::run(argc, argv);
}
