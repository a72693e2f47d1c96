// Measures the memory that is needed to build a large model.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/nn/module.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "core/model/llama.hpp"
#include "core/model/torch_model.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

// Returns an entry of /proc/self/status, in kilobytes. VmHWM is the peak resident memory of this
// process.
int64_t status_kb(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::stoll(line.substr(key.size() + 1));
  }
  return -1;
}

// Runs f in a forked child and returns the growth of the peak resident memory, in bytes.
template <class F>
int64_t peak_growth(F&& f) {
  int pipe_ends[2];
  EXPECT_EQ(::pipe(pipe_ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const int64_t before = status_kb("VmRSS");
    f();
    const int64_t growth = (status_kb("VmHWM") - before) * 1024;
    const ssize_t written = ::write(pipe_ends[1], &growth, sizeof growth);
    ::_exit(written == sizeof growth ? 0 : 1);
  }
  int64_t growth = -1;
  EXPECT_EQ(::read(pipe_ends[0], &growth, sizeof growth), static_cast<ssize_t>(sizeof growth));
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
  return growth;
}

ModelConfig two_layers_of_8b() {
  ModelConfig config;
  config.preset = "llama3-8b";
  config.layers = 2;
  return config;
}

constexpr int64_t kMegabyte = 1 << 20;

// The largest block, embedding or head, has 128256 x 4096 fp32 elements, 2 GB; the whole model has
// 5.9 GB. Without memory for the parameters, building must need less than 200 MB.
TEST(ModelMemory, BuildsALargeModelWithoutItsParameters) {
  const int64_t growth = peak_growth([] {
    TorchModelHost host(llama_family(two_layers_of_8b()).make_blocks({}), YOKE_F32, 1, false);
    std::vector<float> part(1024);
    YokeError err = make_error();
    const YokeModel& m = host.model();
    for (int64_t i = 0; i < static_cast<int64_t>(host.summary().num_params); ++i) {
      if (m.init_param(m.ctx, i, 1000, 1024, part.data(), &err) != YOKE_OK) ::_exit(2);
    }
  });
  EXPECT_GE(growth, 0);
  EXPECT_LT(growth, 200 * kMegabyte);
}

// Even if a user's modules allocate their parameters, only one block may be in memory at a time.
TEST(ModelMemory, HoldsOneBlockOfModulesThatAllocate) {
  struct Wide : torch::nn::Module {
    Wide() { register_parameter("weight", at::ones({32 * kMegabyte / 4})); }
  };
  const auto forward = [](const at::Tensor& x, const TorchInputs&) { return x; };
  const int64_t growth = peak_growth([&] {
    BlockList list;
    for (int i = 0; i < 8; ++i) {
      const std::string name = "block" + std::to_string(i);
      add_block(list, {name, std::make_shared<Wide>(), forward}, name);
    }
  });
  EXPECT_GE(growth, 32 * kMegabyte);  // an allocation is measured
  EXPECT_LT(growth, 2 * 32 * kMegabyte);
}

}  // namespace
}  // namespace yoke
