// ptd.fp8_gather: parameters are gathered as fp8 numbers. The products round what was gathered to
// itself, so a run has the same bits as one that gathers in the compute type. Clipping is off: the
// option changes which parameters share a buffer, and so the order in which the norm is summed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>

#include "tests/ranks/parity_program.hpp"

namespace yoke::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Args = std::vector<std::string>;

constexpr double kNorm = 1e-6;  // a norm is a sum in fp32 or better, in another order

Args operator+(Args args, const Args& more) {
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

const Args kFp8{"parallel_backend=ptd", "precision.product=fp8", "train.clip=0"};

PlainRun problem() {
  PlainRun run;
  run.steps = 6;
  return run;
}

// Elements and number of the matrices that products in fp8 use.
int64_t elements_of_matrices(const PlainRun& r) {
  const int64_t kv_dim = r.dim / r.heads * r.kv_heads;
  return r.layers * r.dim * (2 * r.dim + 2 * kv_dim + 3 * r.ffn_dim);
}
int64_t number_of_matrices(const PlainRun& r) {
  return r.layers * 7;
}

struct Layout {
  const char* name;
  Args args;
};
void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.name;
}

class Fp8Gather : public ::testing::Test {
 protected:
  ProgramRun train(const Args& args) {
    ProgramRun run = program_.train(kFp8 + args);
    EXPECT_EQ(run.exit_code, 0) << run.output;
    return run;
  }
  std::string refusal(const Args& args) {
    const ProgramRun run =
        program_.train(Args{"parallel_backend=ptd", "ptd.fp8_gather=true"} + args);
    EXPECT_EQ(run.exit_code, 2);
    return run.output;
  }

 private:
  ParityProgram program_{problem(), parity_text(1 << 15)};
};

Args in(const char* param) {
  const bool is_double = param == std::string("fp64");
  return {std::string("precision.param=") + param,
          std::string("precision.reduce=") + (is_double ? "fp64" : "fp32")};
}

class Fp8GatherLayout : public Fp8Gather, public ::testing::WithParamInterface<Layout> {};

TEST_P(Fp8GatherLayout, HasTheBitsOfAGatherInTheComputeType) {
  for (const char* param : {"fp64", "fp32", "bf16"}) {
    SCOPED_TRACE(param);
    const Args args = in(param) + GetParam().args;
    const ProgramRun wide = train(args);
    const ProgramRun gathered = train(args + Args{"ptd.fp8_gather=true"});
    ASSERT_EQ(wide.steps.size(), 6u);
    EXPECT_LT(wide.losses().back(), wide.losses().front()) << "the problem teaches nothing";
    EXPECT_EQ(gathered.losses(), wide.losses());
    for (size_t i = 0; i < wide.steps.size(); ++i) {
      EXPECT_NEAR(
          gathered.steps[i].grad_norm, wide.steps[i].grad_norm, kNorm * wide.steps[i].grad_norm);
      EXPECT_LT(gathered.bytes(i, ""), wide.bytes(i, ""));
    }
  }
}

Args on(int ranks, const Args& more) {
  return Args{"--virtual", std::to_string(ranks), "ptd.unit_bytes=1"} + more;
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    Fp8GatherLayout,
    ::testing::Values(
        Layout{"fsdp_2", on(2, {"dp_shards=2"})},
        Layout{"fsdp_4_processes", {"--nproc", "4", "ptd.unit_bytes=1", "dp_shards=4"}},
        Layout{"fsdp_2_merged_blocks", {"--nproc", "2", "dp_shards=2"}},
        Layout{"hsdp_2_2", on(4, {"dp_degree=2", "dp_shards=2"})},
        Layout{"accumulation_4", on(2, {"dp_shards=2", "train.micro_batch=1"})},
        Layout{"zero_2",
               on(2, {"dp_shards=2", "train.micro_batch=2", "ptd.reshard_after_forward=false"})},
        Layout{"recompute", on(2, {"dp_shards=2", "ptd.activation_checkpoint=full"})},
        Layout{"cp_2", on(2, {"cp_degree=2"})},
        Layout{"pp_2", on(4, {"pp_degree=2", "dp_shards=2", "train.micro_batch=2"})}),
    [](const auto& info) { return std::string(info.param.name); });

// The head is a product in fp8, too. If it is tied, the embedding reads the same parameter.
TEST_F(Fp8Gather, KeepsParametersThatOthersReadInTheComputeType) {
  const auto losses = [&](const char* tied, bool gather) {
    return train(in("bf16") + on(2,
                                 {"dp_shards=2",
                                  std::string("model.tied=") + tied,
                                  "precision.fp8_skip=layers.1",
                                  gather ? "ptd.fp8_gather=true" : "ptd.fp8_gather=false"}))
        .losses();
  };
  for (const char* tied : {"false", "true"}) {
    SCOPED_TRACE(tied);
    EXPECT_EQ(losses(tied, true), losses(tied, false));
  }
}

TEST_F(Fp8Gather, ResumesBitForBit) {
  const Args args = in("bf16") + on(2, {"dp_shards=2", "ptd.fp8_gather=true"});
  const ProgramRun whole = train(args + Args{"checkpoint.every=3"});
  const ProgramRun rest = train(args + Args{"checkpoint.resume=" + whole.checkpoint(3)});
  const std::vector<double> losses = whole.losses();
  EXPECT_EQ(rest.losses(), std::vector<double>(losses.begin() + 3, losses.end()));
}

// With these sizes no buffer has padding.
TEST_F(Fp8Gather, MovesOneByteForEachElement) {
  const PlainRun shape = problem();
  struct Case {
    const char* param;
    int64_t item_size, scale_size;
  };
  for (const Case& c : {Case{"bf16", 2, 4}, {"fp32", 4, 4}, {"fp64", 8, 8}}) {
    SCOPED_TRACE(c.param);
    const Args args =
        in(c.param) + on(2, {"dp_shards=2", "ptd.reshard_after_forward=false", "train.steps=1"});
    const int64_t wide = train(args).bytes(0, "dp_shard");
    const int64_t gathered = train(args + Args{"ptd.fp8_gather=true"}).bytes(0, "dp_shard");
    EXPECT_EQ(
        wide - gathered,
        elements_of_matrices(shape) * (c.item_size - 1) - number_of_matrices(shape) * c.scale_size);
  }
}

TEST_F(Fp8Gather, IsRefusedWhereItCannotWork) {
  EXPECT_THAT(
      refusal({}),
      AllOf(HasSubstr("ptd.fp8_gather = true; allowed: false; no parameter is used by products in "
                      "fp8 alone; set precision.product = \"fp8\""),
            HasSubstr("dp_shards = 1 gathers nothing")));
  const Args product{"precision.product=fp8"};
  EXPECT_THAT(refusal(product + on(2, {"precision.fp8_skip=model:lm_head"})),
              HasSubstr("shorten precision.fp8_skip"));
  for (const char* recipe : {"rowwise", "rowwise_gw_hp"}) {
    EXPECT_THAT(refusal(product + on(2, {std::string("precision.fp8_recipe=") + recipe})),
                HasSubstr("this recipe rounds a parameter with more than one scale; set "
                          "precision.fp8_recipe = \"tensorwise\""));
  }
  EXPECT_THAT(refusal(product + on(2, {"dp_degree=2"})),
              HasSubstr("dp_shards = 1 gathers nothing"));
  EXPECT_THAT(refusal(product + on(4, {"tp_degree=2"})),
              HasSubstr("tp_degree = 2 cuts parameters"));
}

}  // namespace
}  // namespace yoke::testing
