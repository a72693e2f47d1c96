#include "plugins/ptd/executor/recorded_step.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace yoke::ptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A device that only logs its work. A replay reads the tensors that were the inputs during
// recording.
struct FakeDevice {
  struct Graph : DeviceGraph {
    explicit Graph(FakeDevice& d) : device(d) {}
    void begin() override { device.recording = true; }
    void end() override {
      device.recording = false;
      inputs = device.recorded;
    }
    void replay() override { device.log.push_back("repeat " + device.sum(inputs)); }
    FakeDevice& device;
    std::vector<TorchInputs> inputs;
  };

  std::string sum(const std::vector<TorchInputs>& inputs) const {
    int64_t total = 0;
    for (const TorchInputs& micro : inputs) total += input(micro, "x").sum().item<int64_t>();
    return std::to_string(total);
  }
  void issue(const std::vector<TorchInputs>& inputs) {
    recorded = inputs;
    log.push_back(recording ? "record" : "do " + sum(inputs));
  }

  TorchGraphs graphs{{},
                     this,
                     [](void* self) -> std::unique_ptr<DeviceGraph> {
                       return std::make_unique<Graph>(*static_cast<FakeDevice*>(self));
                     },
                     /*timeout_seconds=*/60};
  RecordedSteps steps{graphs};
  bool recording = false;
  std::vector<TorchInputs> recorded;
  std::vector<std::string> log;

  void run(const std::vector<int64_t>& micros, int64_t length = 1) {
    std::vector<TorchInputs> inputs;
    for (const int64_t value : micros)
      inputs.push_back({{"x", at::full({length}, value, at::kLong)}});
    steps.run(
        inputs, [this](const auto& own) { issue(own); }, [this] { log.push_back("keep"); });
  }
};

TEST(RecordedSteps, AreDoneThreeTimesThenRecordedThenRepeatedOnNewInputs) {
  FakeDevice device;
  for (int64_t step = 1; step <= 6; ++step) device.run({step, 10 * step});
  EXPECT_THAT(
      device.log,
      ElementsAre(
          "do 11", "do 22", "do 33", "keep", "record", "repeat 44", "repeat 55", "repeat 66"));
}

TEST(RecordedSteps, AreApartForOtherShapes) {
  FakeDevice device;
  for (int step = 0; step < 4; ++step) device.run({1});
  device.log.clear();
  device.run({1}, /*length=*/5);
  device.run({1, 1});
  EXPECT_THAT(device.log, ElementsAre("do 5", "do 2"));
  device.log.clear();
  device.run({7});
  EXPECT_THAT(device.log, ElementsAre("repeat 7"));
}

TEST(RecordedSteps, NeedADevice) {
  YokeHost host{};
  host.get_service = [](void*, const char*, uint64_t) -> const YokeHeader* { return nullptr; };
  try {
    graphs_of(host);
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("ptd.cuda_graph = true, but this run computes on the CPU"));
  }
}

}  // namespace
}  // namespace yoke::ptd
