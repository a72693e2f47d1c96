// Keys of offload_optimizer, offload_param and aio: what they set, what is refused, and the lines
// of a run file that they become.
#include "plugins/deepspeed_stub/config/offload.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/deepspeed_stub/plan_request.hpp"

namespace yoke::deepspeed_stub::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

std::string zero(int stage, const std::string& keys, const std::string& more = "") {
  return R"({"zero_optimization": {"stage": )" + std::to_string(stage) + ", " + keys + "}" + more +
         "}";
}

constexpr const char* kAllKeys =
    R"("sub_group_size": 1000, "offload_optimizer": {"device": "nvme", "nvme_path": "/disk/o",
       "buffer_count": 9, "pipeline_read": true, "pipeline_write": true, "pin_memory": false,
       "ratio": 0.5}, "offload_param": {"device": "nvme", "nvme_path": "/disk/p",
       "buffer_count": 1, "buffer_size": 2000, "max_in_cpu": 0, "pin_memory": false})";
constexpr const char* kAio =
    R"(, "aio": {"block_size": 4096, "queue_depth": 32, "intra_op_parallelism": 2,
                 "single_submit": true})";

TEST(Offload, EveryKeyIsHonouredAndBecomesALine) {
  PlanRequest run(2, zero(3, kAllKeys, kAio));
  EXPECT_THAT(run.ask(), IsEmpty());
  const auto line = [](const std::string& text) { return "deepspeed_stub." + text; };
  EXPECT_THAT(run.lines,
              UnorderedElementsAre("parallel_backend = \"deepspeed_stub\"",
                                   line("zero_stage = 3"),
                                   line("sub_group_size = 1000"),
                                   line("offload_optimizer_device = \"nvme\""),
                                   line("offload_optimizer_nvme_path = \"/disk/o\""),
                                   line("offload_optimizer_buffer_count = 9"),
                                   line("offload_optimizer_pipeline_read = true"),
                                   line("offload_optimizer_pipeline_write = true"),
                                   line("offload_optimizer_pin_memory = false"),
                                   line("offload_optimizer_ratio = 0.5"),
                                   line("offload_param_device = \"nvme\""),
                                   line("offload_param_nvme_path = \"/disk/p\""),
                                   line("offload_param_buffer_count = 1"),
                                   line("offload_param_buffer_size = 2000"),
                                   line("offload_param_max_in_cpu = 0"),
                                   line("offload_param_pin_memory = false"),
                                   line("aio_block_size = 4096"),
                                   line("aio_queue_depth = 32"),
                                   line("aio_intra_op_parallelism = 2"),
                                   line("aio_single_submit = true")));
}

TEST(Offload, SetsTheSettingsOfTheEngine) {
  PlanRequest run(2, zero(3, kAllKeys, kAio));
  const yoke::testing::MockOptions options(plugin(), run.plan.options);
  PlanMessages messages;
  const OffloadSettings s = read_offload(
      DsConfig(Options(options.values().data(), options.values().size())), 3, messages);
  EXPECT_THAT(messages, IsEmpty());
  EXPECT_EQ(s.optimizer.place, Place::kFile);
  EXPECT_EQ(s.optimizer.folder, "/disk/o");
  EXPECT_EQ(s.optimizer.buffers, 9);
  EXPECT_TRUE(s.optimizer.read_ahead && s.optimizer.write_behind && !s.optimizer.pinned);
  EXPECT_EQ(s.optimizer.ratio, 0.5);
  EXPECT_EQ(s.params.place, Place::kFile);
  EXPECT_EQ(s.params.folder, "/disk/p");
  EXPECT_EQ(s.params.buffers, 1);
  EXPECT_EQ(s.params.buffer_size, 2000);
  EXPECT_EQ(s.params.max_in_cpu, 0);
  EXPECT_FALSE(s.params.pinned);
  EXPECT_EQ(s.io.block_size, 4096);
  EXPECT_EQ(s.io.queue_depth, 32);
  EXPECT_EQ(s.io.threads, 2);
  EXPECT_TRUE(s.io.single_submit);
  EXPECT_EQ(s.tile, 1000);
}

TEST(Offload, ToTheCpuSaysWhatItMeans) {
  const auto explains =
      HasSubstr("moves state from a GPU to host memory; on the CPU it is there already");
  EXPECT_THAT(ask(zero(2, R"("offload_optimizer": {"device": "cpu", "pin_memory": true})")),
              ElementsAre(AllOf(HasSubstr("note: "), HasSubstr("device = \"cpu\""), explains)));
  EXPECT_THAT(ask(zero(1, R"("cpu_offload": true)")),
              ElementsAre(AllOf(HasSubstr("note: "), HasSubstr("cpu_offload = true"), explains)));
  EXPECT_THAT(ask(zero(3, R"("cpu_offload_param": true)")), ElementsAre(explains));
  EXPECT_THAT(ask(zero(3, R"("cpu_offload": false)")), IsEmpty());
}

TEST(Offload, KeysWithoutEffectAreNoted) {
  EXPECT_THAT(ask(zero(0, R"("offload_optimizer": {"device": "cpu"})")),
              ElementsAre(AllOf(HasSubstr("note: "), HasSubstr("no effect at ZeRO stage 0"))));
  EXPECT_THAT(ask(zero(2, R"("offload_param": {"device": "nvme", "nvme_path": "/disk"})")),
              UnorderedElementsAre(HasSubstr("no effect at ZeRO stage 2"),
                                   AllOf(HasSubstr("nvme_path"), HasSubstr("without offload"))));
  EXPECT_THAT(ask(zero(1,
                       R"("sub_group_size": 5, "offload_optimizer": {"device": "none",
                          "buffer_count": 5, "pin_memory": true, "ratio": 0.5,
                          "pipeline_read": true, "fast_init": true})",
                       R"(, "aio": {"block_size": 1, "overlap_events": false})")),
              ::testing::AllOf(::testing::SizeIs(8), ::testing::Each(HasSubstr("no effect"))));
  EXPECT_THAT(ask(zero(2, R"("offload_optimizer": {"device": "cpu", "ratio": 0.3})")),
              Contains(AllOf(HasSubstr("ratio = 0.3"), HasSubstr("no effect at ZeRO stage 2"))));
}

TEST(Offload, AFolderThatIsMissingInTheRunFileHasItsName) {
  PlanRequest run;
  run.plan.options["zero_stage"] = "1";
  run.plan.options["offload_optimizer_device"] = "nvme";
  EXPECT_THAT(run.ask(),
              Contains(StartsWith("deepspeed_stub.offload_optimizer_nvme_path = unset; allowed: a "
                                  "folder on a local disk")));
}

TEST(Offload, WrongValuesAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("offload_optimizer": {"device": "disk"})",
       "offload_optimizer.device = \"disk\"; allowed: \"none\", \"cpu\", \"nvme\""},
      {R"("offload_optimizer": {"device": "nvme"})",
       "offload_optimizer.nvme_path = unset; allowed: a folder on a local disk"},
      {R"("offload_param": {"device": "nvme", "nvme_path": "none"})",
       "offload_param.nvme_path = \"none\"; allowed: a folder on a local disk"},
      {R"("cpu_offload": true, "offload_optimizer": {"device": "none"})",
       "cpu_offload = true; allowed: false; zero_optimization.offload_optimizer.device = \"none\""},
      {R"("offload_optimizer": {"device": "cpu", "ratio": 1.5})", "ratio = 1.5; allowed: 0 to 1"},
      {R"("offload_optimizer": {"device": "nvme", "nvme_path": "/d", "buffer_count": 1})",
       "buffer_count = 1; allowed: 2 or more; the state is 2 arrays"},
      {R"("sub_group_size": 0)", "sub_group_size = 0; allowed: 1 or more"},
      {R"("offload_optimizer": {"super_offload": true})", "super_offload = true; allowed: false"},
      {R"("offload_optimizer": {"pipeline": true})", "DeepSpeed has no such key"}};
  for (const auto& [keys, message] : cases)
    EXPECT_THAT(ask(zero(3, keys)), Contains(HasSubstr(message))) << keys;
  EXPECT_THAT(ask(R"({"aio": {"use_gds": true, "queue_depth": 0}})"),
              UnorderedElementsAre(HasSubstr("aio.use_gds = true; allowed: false"),
                                   HasSubstr("aio.queue_depth = 0; allowed: 1 or more")));
}

TEST(Offload, BuffersThatPipelinesNeedAreNoted) {
  const auto ask_with = [](int buffers, int32_t dtype) {
    PlanRequest run(2,
                    zero(1,
                         R"("offload_optimizer": {"device": "nvme", "nvme_path": "/d",
                            "pipeline_read": true, "pipeline_write": true, "buffer_count": )" +
                             std::to_string(buffers) + "}"));
    run.plan.plan.param_dtype = run.plan.plan.reduce_dtype = dtype;
    return run.ask();
  };
  EXPECT_THAT(ask_with(6, YOKE_F32), IsEmpty());
  EXPECT_THAT(ask_with(5, YOKE_F32), ElementsAre(HasSubstr("full effect from 6 on")));
  EXPECT_THAT(ask_with(8, YOKE_BF16),
              ElementsAre(AllOf(HasSubstr("3 arrays, of which one is master weights"),
                                HasSubstr("full effect from 9 on"))));
}

}  // namespace
}  // namespace yoke::deepspeed_stub::testing
