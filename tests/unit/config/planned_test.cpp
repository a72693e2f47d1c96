// Tests the messages about values that only a later release will accept.
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
             "command line: device = \"gpu\": allowed: cpu, cuda, auto; did you mean 'cpu'?"),
        word("precision.param=fp8",
             "command line: precision.param = \"fp8\": fp8 is not implemented yet; allowed: fp64, "
             "fp32, bf16")));

}  // namespace
}  // namespace yoke
