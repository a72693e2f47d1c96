// A Llama whose layers are two blocks each (model.blocks = "half") trains like one with a block for
// each layer: the same products run on the same numbers, so every result is equal bit for bit.
#include <gtest/gtest.h>

#include <ostream>

#include "tests/ranks/parity_program.hpp"

namespace yoke::testing {
namespace {

using Args = std::vector<std::string>;

constexpr int64_t kSteps = 6;

// Without clipping. The gradient norm is a sum over the units of ptd, which differ.
PlainRun problem() {
  PlainRun run;
  run.steps = kSteps;
  run.clip = 0;
  return run;
}

Args joined(Args args, const Args& more) {
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

void expect_equal_steps(const ProgramRun& ours, const ProgramRun& expected) {
  ASSERT_EQ(ours.exit_code, 0) << ours.output;
  ASSERT_EQ(expected.exit_code, 0) << expected.output;
  ASSERT_EQ(ours.steps.size(), expected.steps.size());
  EXPECT_EQ(ours.losses(), expected.losses());
}

// Compares every tensor: parameters, moments and the step.
void expect_equal_states(const ProgramRun& ours, const ProgramRun& expected) {
  for (const char* file : {"/model.safetensors", "/optimizer.safetensors"}) {
    const auto a = read_safetensors(ours.checkpoint(kSteps) + file);
    EXPECT_GT(a.size(), 0u);
    EXPECT_EQ(a, read_safetensors(expected.checkpoint(kSteps) + file)) << file;
  }
}

struct Layout {
  const char* name;
  const char* backend;
  Args args;
};
void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.name;
}

class HalfBlocks : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    if (!backend_built(GetParam().backend))
      GTEST_SKIP() << "no backend " << GetParam().backend << " in this build";
  }
};

TEST_P(HalfBlocks, TrainLikeWholeLayersBitForBit) {
  ParityProgram program(problem(), parity_text(1 << 15));
  for (const auto& [param, reduce] :
       {std::pair("fp64", "fp64"), {"fp32", "fp32"}, {"bf16", "fp32"}}) {
    if (GetParam().backend == std::string("serial") && param == std::string("bf16")) continue;
    SCOPED_TRACE(param);
    const Args args = joined(GetParam().args,
                             {std::string("parallel_backend=") + GetParam().backend,
                              std::string("precision.param=") + param,
                              std::string("precision.reduce=") + reduce,
                              "checkpoint.every=6",
                              "verify.every=1"});
    const ProgramRun layers = program.train(joined(args, {"model.blocks=layer"}));
    const ProgramRun halves = program.train(joined(args, {"model.blocks=half"}));
    expect_equal_steps(halves, layers);
    if (HasFatalFailure()) return;
    expect_equal_states(halves, layers);
  }
}

// A checkpoint of one run continues in the other, in both directions.
TEST_P(HalfBlocks, ContinueTheCheckpointsOfWholeLayers) {
  ParityProgram program(problem(), parity_text(1 << 15));
  const Args args =
      joined(GetParam().args,
             {std::string("parallel_backend=") + GetParam().backend, "checkpoint.every=3"});
  const ProgramRun whole = program.train(args);
  ASSERT_EQ(whole.exit_code, 0) << whole.output;
  const ProgramRun halves = program.train(
      joined(args, {"model.blocks=half", "checkpoint.resume=" + whole.checkpoint(3)}));
  ASSERT_EQ(halves.exit_code, 0) << halves.output;
  expect_equal_states(halves, whole);
  const ProgramRun from_start = program.train(joined(args, {"model.blocks=half"}));
  const ProgramRun layers =
      program.train(joined(args, {"checkpoint.resume=" + from_start.checkpoint(3)}));
  ASSERT_EQ(layers.exit_code, 0) << layers.output;
  expect_equal_states(layers, whole);
}

const Args kTwo{"--virtual", "2", "ptd.unit_bytes=1"};
const Args kFour{"--virtual", "4", "ptd.unit_bytes=1"};

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    HalfBlocks,
    ::testing::Values(
        Layout{"serial", "serial", {}},
        Layout{"ptd", "ptd", {}},
        Layout{"recompute", "ptd", {"ptd.activation_checkpoint=full"}},
        Layout{"shards_2", "ptd", joined(kTwo, {"dp_shards=2", "train.micro_batch=1"})},
        Layout{"shards_2_one_unit", "ptd", {"--virtual", "2", "dp_shards=2"}},
        Layout{"pp_2", "ptd", joined(kTwo, {"pp_degree=2", "train.micro_batch=1"})},
        Layout{"zb_v_2",
               "ptd",
               joined(kTwo, {"pp_degree=2", "ptd.pp_schedule=zb_v", "train.micro_batch=1"})},
        Layout{"tp_2", "ptd", joined(kTwo, {"tp_degree=2"})},
        Layout{"tp_2_without_sequence_parallelism",
               "ptd",
               joined(kTwo, {"tp_degree=2", "ptd.sequence_parallel=false"})},
        Layout{"cp_2", "ptd", joined(kTwo, {"cp_degree=2"})},
        Layout{"pp_2_shards_2",
               "ptd",
               joined(kFour, {"pp_degree=2", "dp_shards=2", "train.micro_batch=1"})},
        Layout{"pp_2_tp_2",
               "ptd",
               joined(kFour, {"pp_degree=2", "tp_degree=2", "train.micro_batch=1"})}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace yoke::testing
