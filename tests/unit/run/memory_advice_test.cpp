#include "core/run/memory_advice.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "yoke/backend.hpp"
#include "yoke/options.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

// Returns a plan of 8 ranks: 4 replicas of 2 shards.
YokePlan eight_ranks(int32_t micro_batch) {
  YokePlan plan{};
  plan.degree[YOKE_DP_REPLICATE] = 4;
  plan.degree[YOKE_DP_SHARD] = 2;
  plan.micro_batch = micro_batch;
  return plan;
}

// A model whose states take 64 GiB and whose activations take 10 GiB for each sequence.
int64_t peak(const RunChange& change) {
  const YokePlan& plan = change.plan;
  return 64 * kGiB / plan.degree[YOKE_DP_SHARD] + 10 * kGiB * plan.micro_batch;
}

TEST(MemoryAdvice, NamesTheSmallestChangesAfterWhichAStepFits) {
  EXPECT_EQ(memory_advice(eight_ranks(6), "some", {}, peak, 85 * kGiB),
            "a step of this run is forecast to need up to 92.0 GiB in a rank, whose share of the "
            "memory is 85.0 GiB; this would need less: train.micro_batch=3 (62.0 GiB), or "
            "dp_degree=2 dp_shards=4 (76.0 GiB); `yoke backends info some` lists options that may "
            "save memory");
}

TEST(MemoryAdvice, LeavesAMargin) {
  // Nine tenths of 80 GiB are 72 GiB. 4 shards need 76 GiB, and 8 shards 68 GiB.
  EXPECT_THAT(memory_advice(eight_ranks(6), "some", {}, peak, 80 * kGiB),
              HasSubstr("train.micro_batch=3 (62.0 GiB), or dp_degree=1 dp_shards=8 (68.0 GiB); "));
}

TEST(MemoryAdvice, LeavesOutWhatIsNotEnough) {
  // One sequence with 2 shards takes 42 GiB, and 6 sequences take 60 GiB without any states.
  EXPECT_THAT(memory_advice(eight_ranks(6), "some", {}, peak, 50 * kGiB),
              HasSubstr("this would need less: train.micro_batch=1 (42.0 GiB); "));
  EXPECT_THAT(
      memory_advice(eight_ranks(6), "some", {}, peak, 45 * kGiB),
      HasSubstr("no smaller micro-batch, larger number of shards or other value of an option "
                "is known to be enough; "));
  EXPECT_THAT(memory_advice(eight_ranks(1), "some", {}, peak, 30 * kGiB),
              HasSubstr("this would need less: dp_degree=2 dp_shards=4 (26.0 GiB); "));
}

TEST(MemoryAdvice, SaysIfTheForecastWouldHaveFitted) {
  EXPECT_EQ(memory_advice(eight_ranks(6), "some", {}, peak, 500 * kGiB),
            "a step of this run is forecast to need up to 92.0 GiB in a rank, whose share of the "
            "memory is 500.0 GiB, so the forecast is too low, or another limit applies (a "
            "container, ulimit, other programs); this would need less: train.micro_batch=3 (62.0 "
            "GiB), or dp_degree=2 dp_shards=4 (76.0 GiB); `yoke backends info some` lists options "
            "that may save memory");
}

TEST(MemoryAdvice, LeavesOutImpossiblePlans) {
  const auto no_odd_micro_batches = [](const RunChange& change) {
    return change.plan.micro_batch % 2 == 1 ? -1 : peak(change);
  };
  EXPECT_THAT(memory_advice(eight_ranks(6), "some", {}, no_odd_micro_batches, 80 * kGiB),
              HasSubstr("train.micro_batch=2 (52.0 GiB)"));
}

// The backend "some" with the options that change the memory of a step, and some that do not.
struct SomeBackend {
  const YokeOptionInfo rows[6] = {
      option_info(YOKE_OPTION_STRING, "recompute", "none", "none|half|full", "what is recomputed"),
      option_info(YOKE_OPTION_BOOL, "keep", "true", "", "whether gathered parameters are kept"),
      changes_numbers(option_info(YOKE_OPTION_BOOL, "average", "true", "", "a hyperparameter")),
      option_info(YOKE_OPTION_INT, "bytes", "1", "", "bytes of a unit"),
      option_info(YOKE_OPTION_STRING, "cut", "auto", "", "any text"),
      option_info(YOKE_OPTION_FILE, "file", "", "*.yaml|*.yml", "a file"),
  };
  const std::vector<const YokeOptionInfo*> pointers = pointers_to(rows);
  YokeDescription description{};

  SomeBackend() {
    description.name = YOKE_STRING("some");
    set_options(description, pointers);
  }
  // Returns the other values of the options, some of which the user has set.
  std::vector<std::vector<RunChange>> others(const std::vector<BackendOption>& given) const {
    const OptionList now =
        check_options(given, {"some", "backend 'some'"}, option_infos(description));
    return other_values(description, now, eight_ranks(6));
  }
};

TEST(MemoryAdvice, TriesTheOtherValuesOfOptionsThatDoNotChangeResults) {
  const SomeBackend backend;
  std::vector<std::string> keys;
  for (const auto& changes : backend.others({}))
    for (const RunChange& change : changes) keys.push_back(change.keys);
  EXPECT_THAT(keys, ElementsAre("some.recompute=half", "some.recompute=full", "some.keep=false"));

  const auto others = backend.others({loose_option("some", "recompute", "half", "test"),
                                      loose_option("some", "keep", "false", "test")});
  ASSERT_EQ(others.size(), 2u);
  EXPECT_EQ(others[0][0].keys, "some.recompute=none");
  EXPECT_EQ(others[0][0].option.value().string_value, "none");
  EXPECT_EQ(others[1][0].keys, "some.keep=true");
  EXPECT_EQ(others[1][0].option.value().int_value, 1);
}

TEST(MemoryAdvice, NamesTheFirstValueOfAnOptionThatIsEnough) {
  // Recomputation saves a half or two thirds of the activations; nothing else saves any memory.
  const auto recomputes = [](const RunChange& change) {
    const std::string how = change.option ? change.option->string_value : "";
    return 32 * kGiB + 60 * kGiB / (how == "half" ? 2 : how == "full" ? 3 : 1);
  };
  const auto others = SomeBackend().others({});
  EXPECT_THAT(memory_advice(eight_ranks(6), "some", others, recomputes, 85 * kGiB),
              HasSubstr("this would need less: some.recompute=half (62.0 GiB); "));
  EXPECT_THAT(memory_advice(eight_ranks(6), "some", others, recomputes, 60 * kGiB),
              HasSubstr("this would need less: some.recompute=full (52.0 GiB); "));
}

TEST(MemoryAdvice, IsGeneralIfTheBackendForecastsNothing) {
  const auto advice = [](int32_t micro_batch) {
    return memory_advice(
        eight_ranks(micro_batch), "some", {}, [](const RunChange&) { return -1; }, 80 * kGiB);
  };
  EXPECT_EQ(advice(6),
            "use smaller micro-batches (train.micro_batch, now 6); `yoke backends info some` lists "
            "options that may save memory");
  EXPECT_EQ(advice(1), "`yoke backends info some` lists options that may save memory");
}

TEST(MemoryWarning, IsGivenIfAStepNeedsMoreThanTheDeviceHasForIt) {
  DeviceMemory memory{.total_bytes = 140 * kGiB, .other_bytes = kGiB};
  EXPECT_EQ(memory_warning(139 * kGiB, memory, "cuda:1, GPU"), "");
  EXPECT_EQ(memory_warning(150 * kGiB, memory, "cuda:1, GPU"),
            "a step is forecast to need at least 150.0 GiB, but only 139.0 GiB are available to "
            "this rank (cuda:1, GPU); if an allocation fails, the run says which changes would "
            "need less");
  memory.other_bytes = 100 * kGiB;
  EXPECT_EQ(memory_warning(50 * kGiB, memory, "cuda:1, GPU"),
            "a step is forecast to need at least 50.0 GiB, but only 40.0 GiB are available to this "
            "rank (cuda:1, GPU), because other programs, or CUDA itself, use 100.0 GiB; if an "
            "allocation fails, the run says which changes would need less");
}

TEST(MemoryWarning, IsGivenIfAnotherProgramUsesMuch) {
  const DeviceMemory memory{.total_bytes = 140 * kGiB, .other_bytes = 20 * kGiB};
  EXPECT_EQ(memory_warning(50 * kGiB, memory, "cuda:0, GPU"),
            "other programs, or CUDA itself, use 20.0 GiB of the memory of cuda:0, GPU; nvidia-smi "
            "lists them");
}

}  // namespace
}  // namespace yoke
