// Tests the messages about values that users expect, but that this release refuses.
#include "tests/unit/config/fault_rows.hpp"

namespace yoke {
namespace {

using testing::Row;
using testing::word;

class PlannedValue : public ::testing::TestWithParam<Row> {};

TEST_P(PlannedValue, IsReportedWithOneMessage) {
  testing::expect_one_message(GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Planned,
    PlannedValue,
    ::testing::Values(
        word("device=gpu",
             "command line: device = \"gpu\": allowed: cpu, cuda, auto; did you mean 'cuda'?"),
        word("precision.param=fp8",
             "command line: precision.param = \"fp8\": only products can be in fp8; set "
             "precision.product = \"fp8\" and precision.param = \"bf16\"; allowed: fp64, fp32, "
             "bf16, fp16"),
        word("precision.reduce=fp8",
             "command line: precision.reduce = \"fp8\": gradients cannot be reduced in fp8; "
             "allowed: fp64, "
             "fp32, bf16, fp16")));

}  // namespace
}  // namespace yoke
