// What a check of the state costs on a device, which is emulated, and what it finds.
#include "core/run/verifier.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "core/verify/state_hash.hpp"
#include "tests/support/emulated_cuda.hpp"
#include "tests/support/operator_counter.hpp"
#include "tests/support/virtual_ranks.hpp"
#include "tests/unit/run/fake_model.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::StatePiece;

using State = std::vector<StatePiece>;

// Two data ranks with the replicas "a" and "b", a shard of "c" each, and moments.
std::array<State, 2> two_replicas() {
  std::array<State, 2> states;
  for (int rank = 0; rank < 2; ++rank) {
    states[rank] = {{"a", "param", at::arange(5, at::kFloat), 0, rank},
                    {"a", "exp_avg", at::ones({5}), 0, rank},
                    {"b", "param", at::arange(40, at::kDouble), 0, rank},
                    {"b", "exp_avg", at::ones({40}), 0, rank},
                    {"c", "param", at::arange(6, at::kFloat) + rank, 6 * rank},
                    {"optimizer", "step", at::ones({}, at::kLong), 0, rank}};
  }
  return states;
}

// A model that has the parameters "a", "b" and "c".
struct Summary {
  Summary() {
    const char* names[] = {"a", "b", "c"};
    for (int i = 0; i < 3; ++i) {
      params[i].name = yoke_string(names[i]);
      list[i] = &params[i];
    }
    summary.params = list;
    summary.num_params = 3;
  }
  YokeParameter params[3] = {};
  const YokeParameter* list[3];
  YokeModelSummary summary{};
};

// What a rank has found, and what it has done for that in its second check.
struct Check {
  StepReport report;
  int hashes = 0, copies = 0, reads = 0;
};

std::array<Check, 2> check(std::array<State, 2>& states, bool with_hashes = false) {
  std::array<Check, 2> checks;
  test::orderly_virtual_ranks(2, {}, [&](World& world) {
    const Summary model;
    WrappedModel wrapped = testing::fake_model(states[world.rank()]);
    Verifier verifier({.every = 1, .with_hashes = with_hashes}, Mesh({1, 2, 1, 1, 1}), world);
    verifier.set_model(wrapped, model.summary);
    verifier.examine();
    std::map<std::string, int> launches;
    testing::OnCpu::launches = &launches;
    const testing::OperatorCounter counter;
    Check& mine = checks[world.rank()];
    mine.report = verifier.examine();
    testing::OnCpu::launches = nullptr;
    for (const auto& [name, count] : launches) mine.hashes += count;
    mine.copies = counter.calls("aten::copy_");
    mine.reads = counter.calls("aten::to") + counter.calls("aten::_local_scalar_dense");
  });
  return checks;
}

TEST(Verifier, HashesOnTheDeviceAndReadsOnce) {
  const testing::EmulatedCuda cuda(/*everywhere=*/true);
  auto states = two_replicas();
  for (const Check& c : check(states)) {
    EXPECT_FALSE(c.report.violation.has_value());
    EXPECT_EQ(c.hashes, 2) << "only the parameters that both ranks have";
    EXPECT_EQ(c.copies, 0) << "pieces that are copied";
    EXPECT_EQ(c.reads, 1) << "times that the host waits for the device";
  }
}

TEST(Verifier, ReadsNothingFromADeviceWithoutReplicas) {
  const testing::EmulatedCuda cuda(/*everywhere=*/true);
  std::array<State, 2> states;
  for (int rank = 0; rank < 2; ++rank)
    states[rank] = {{"c", "param", at::arange(6, at::kFloat), 6 * rank}};
  for (const Check& c : check(states)) {
    EXPECT_EQ(c.hashes, 0);
    EXPECT_EQ(c.reads, 0);
  }
}

TEST(Verifier, FindsADifferentReplica) {
  for (const bool on_device : {false, true}) {
    const testing::EmulatedCuda cuda(on_device);
    auto states = two_replicas();
    states[1][2].values[39] = 1000;
    for (const Check& c : check(states)) {
      ASSERT_TRUE(c.report.violation.has_value());
      EXPECT_EQ(c.report.violation->tensor, "b");
      EXPECT_EQ(c.report.violation->rank, 1);
    }
  }
}

TEST(Verifier, HashesOfParametersAreTheSameOnADevice) {
  auto states = two_replicas();
  const std::vector<uint64_t> expected = check(states, /*with_hashes=*/true)[0].report.param_hashes;
  const testing::EmulatedCuda cuda(/*everywhere=*/true);
  for (const Check& c : check(states, /*with_hashes=*/true)) {
    EXPECT_EQ(c.report.param_hashes, expected);
    EXPECT_EQ(c.reads, 1);
  }
}

}  // namespace
}  // namespace yoke
