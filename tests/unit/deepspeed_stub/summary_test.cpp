// Compares what is announced about a step with what it does. The mock model has 133 trainable
// elements in 5 parameters, and a frozen parameter of 5 elements.
#include "plugins/deepspeed_stub/summary.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/deepspeed_stub/rig.hpp"

namespace yoke::deepspeed_stub::testing {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> log_of(const Job& job) {
  Job one = job;
  one.last_step = 1;
  return train(one).log;
}

TEST(Summary, RankZeroLogsTheStageAndTheBuckets) {
  for (const int stage : {0, 1, 2})
    EXPECT_THAT(log_of(Job{}.on(2).at_stage(stage)),
                ElementsAre("deepspeed_stub: ZeRO stage " + std::to_string(stage) +
                            " over 2 rank(s), 133 gradients in 1 bucket(s)"));
  Job job = Job{}.on(4).at_stage(2);
  job.options["reduce_bucket_size"] = "60";
  EXPECT_THAT(log_of(job),
              ElementsAre("deepspeed_stub: ZeRO stage 2 over 4 rank(s), 133 gradients in 3 "
                          "bucket(s)"));
}

TEST(Summary, StageThreeSaysWhichParametersItDoesNotShard) {
  Job job = Job{}.at_stage(3).on(2);
  const std::string head =
      "deepspeed_stub: ZeRO stage 3 over 2 rank(s), 133 gradients in 1 "
      "bucket(s); ";
  EXPECT_THAT(log_of(job),
              ElementsAre(head + "none of the 6 parameters is sharded, because none has more "
                                 "elements than stage3_param_persistence_threshold = 100000"));
  job.options["stage3_param_persistence_threshold"] = "54";
  EXPECT_THAT(log_of(job),
              ElementsAre(head + "5 of 6 parameters stay whole, by "
                                 "stage3_param_persistence_threshold = 54"));
  job.options["stage3_param_persistence_threshold"] = "0";
  EXPECT_THAT(log_of(job),
              ElementsAre(head + "0 of 6 parameters stay whole, by "
                                 "stage3_param_persistence_threshold = 0"));
}

// Returns the bytes that the collectives of one step transfer, without those of the scalars. Two
// runs of different length are compared, because wrap_model and a checkpoint communicate as well.
int64_t counted(const Job& job) {
  const auto sum = [&](int last_step) {
    Job other = job;
    other.last_step = last_step;
    int64_t bytes = 0;
    for (const auto& [collective, count] : train(other).bytes)
      bytes += collective.starts_with("scalars ") ? 0 : count;
    return bytes;
  };
  return sum(2) - sum(1);
}

int64_t predicted(const Job& job, int stage) {
  return train(job).wrapped.axis_bytes[stage == 0 ? YOKE_DP_REPLICATE : YOKE_DP_SHARD];
}

struct Options {
  const char* what;
  std::map<std::string, std::string> values;
};

TEST(Summary, PredictsTheTrafficExactly) {
  std::map<std::string, std::string> none = small_buckets(), eager = small_buckets();
  none["stage3_param_persistence_threshold"] = eager["stage3_param_persistence_threshold"] = "0";
  eager["stage3_max_live_parameters"] = "0";
  std::map<std::string, std::string> broadcast = small_buckets();
  broadcast["allgather_partitions"] = broadcast["reduce_scatter"] = "false";
  const Options all[] = {{"defaults", {}},
                         {"small buckets", small_buckets()},
                         {"all sharded", none},
                         {"nothing live", eager},
                         {"broadcast", broadcast}};
  for (const int stage : {0, 1, 2, 3}) {
    for (const int ranks : {2, 4}) {
      for (const int micros : {1, 4}) {
        if (ranks * micros > 8) continue;  // the batch has 8 sequences
        for (const auto& [dtype, reduce] : {std::pair{YOKE_F32, YOKE_F32},
                                            std::pair{YOKE_BF16, YOKE_F32},
                                            std::pair{YOKE_BF16, YOKE_BF16}}) {
          for (const Options& options : all) {
            Job job = Job{}.on(ranks);
            job.run.micro_batch = 8 / ranks / micros;
            job.run.dtype = dtype;
            job.reduce = reduce;
            job.options = options.values;
            job = job.at_stage(stage);
            EXPECT_EQ(predicted(job, stage), counted(job))
                << "stage " << stage << ", " << ranks << " ranks, " << micros << " micro-batches, "
                << options.what;
          }
        }
      }
    }
  }
  EXPECT_EQ(predicted(Job{}, 0), 0) << "one rank";
}

}  // namespace
}  // namespace yoke::deepspeed_stub::testing
