// Parity: every layout of every backend trains like the plain loop. The real program runs, and its
// losses and gradient norms are compared at every step. In fp64 correct layouts agree up to
// rounding, while a logic error causes a difference of 1e-7 or more. fp32 is only a sanity check.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "tests/ranks/parity_program.hpp"

namespace yoke::testing {

using Args = std::vector<std::string>;

// A training problem. The plain loop solves it once for all layouts.
struct Problem {
  const char* name;
  PlainRun (*make)();
};
PlainRun base();
PlainRun tied();
// No dimension divides evenly between 2, 3 or 4 ranks.
PlainRun uneven();
PlainRun deep_tied_uneven();
PlainRun sgd();
PlainRun matrices();
PlainRun four_layers();
inline constexpr Problem kBase{"base", base}, kTied{"tied", tied}, kUneven{"uneven", uneven},
    kDeepTied{"deep_tied", deep_tied_uneven}, kSgd{"sgd", sgd}, kMatrices{"matrices", matrices},
    kFourLayers{"four_layers", four_layers};

// The bytes that a step of the layout may move along an axis: `least` to `most` times those of all
// parameters, minus `kept` times those of the last two blocks, plus `activations` times those of
// the residual stream of the global batch.
//
// The last two blocks may stay unsharded between forward and backward, because they would be
// gathered again at once. If `activations` is not 0, the traffic also contains a few numbers for
// the loss of each token, and the gradients of the norms.
struct Traffic {
  const char* axis = "";  // "" = no communication, NULL = not compared
  double least = 0, most = 0, kept = 0;
  double activations = 0;
  // Whether parameters are gathered in the step after their update, so that the first step moves
  // less than the others.
  bool gathers_later = false;
};
inline constexpr Traffic kAnyTraffic{nullptr};

struct Layout {
  const char* name;
  const char* backend;
  Args args;
  Problem problem = kBase;
  Traffic traffic = {};
};
void PrintTo(const Layout& layout, std::ostream* out);

// The test suites instantiate this with their layouts.
class Parity : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override;
  void compare(bool fp64);
};

inline std::string layout_name(const ::testing::TestParamInfo<Layout>& info) {
  return info.param.name;
}

}  // namespace yoke::testing
