// Compares a call of `step` through a loaded backend with a call of the same function through a
// plain function pointer in this program. Usage: plugin_call /abs/nothing.so
#include <cstdio>

#include "bench/interleaved.hpp"
#include "core/backend/loader.hpp"

namespace {

using namespace yoke;
using namespace yoke::bench;

constexpr int kRounds = 41;
constexpr int64_t kCalls = 1'000'000;

// Does the same work as the step of nothing.c.
[[gnu::noinline]] int32_t local_step(YokeWrapped*,
                                     const YokeStepArgs* args,
                                     YokeStepResult* out,
                                     YokeError*) {
  out->loss_sum = args->batch->token_weight;
  out->loss_weight = args->batch->token_weight;
  out->grad_norm = 1;
  return YOKE_OK;
}

void measure(const char* path) {
  const LoadedBackend backend = load_backend(path);
  YokeInitArgs init{};
  init.header = YOKE_HEADER(YokeInitArgs, YOKE_ID_INIT_ARGS);
  BackendContext context = backend.init(init);
  YokeModel none{};
  none.header = YOKE_HEADER(YokeModel, YOKE_ID_MODEL);
  WrappedModel model = context.wrap_model(none);

  YokeBatch batch{};
  batch.header = YOKE_HEADER(YokeBatch, YOKE_ID_BATCH);
  batch.token_weight = 512;
  YokeStepArgs args{};
  args.header = YOKE_HEADER(YokeStepArgs, YOKE_ID_STEP_ARGS);
  args.batch = &batch;

  auto pointer = &local_step;
  YokeStepResult result{};
  Samples direct{"direct call through a function pointer", {}},
      loaded{"call through the loaded backend", {}};
  for (int round = 0; round < kRounds; ++round) {
    direct.seconds.push_back(time_calls(kCalls, [&] {
      hide(pointer);
      pointer(nullptr, &args, &result, nullptr);
      hide(result);
    }));
    loaded.seconds.push_back(time_calls(kCalls, [&] {
      YokeStepResult out = model.step(args);
      hide(out);
    }));
  }
  print(direct.name, spread(direct.seconds), 1e9, "ns");
  print(loaded.name, spread(loaded.seconds), 1e9, "ns");
  print("difference; target 10 ns for the call", difference(loaded, direct), 1e9, "ns");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: plugin_call /abs/nothing.so\n");
    return 2;
  }
  try {
    measure(argv[1]);
    return 0;
  } catch (const yoke::Error& error) {
    std::fprintf(stderr, "plugin_call: %s\n", error.what());
    return 1;
  }
}
