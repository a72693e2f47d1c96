// Every layout of every backend trains like the plain loop: same losses and gradient norms at every
// step, over the real program. The bounds are those of DESIGN section 14: in fp64 correct layouts
// agree to rounding, while a defect of the logic shows at 1e-7 and above; fp32 is the sanity check.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "tests/ranks/parity_program.hpp"

namespace yoke::testing {

using Args = std::vector<std::string>;

// A problem that the plain loop solves once.
struct Problem {
  const char* name;
  PlainRun (*make)();
};
PlainRun base();
PlainRun tied();
// No dimension is a multiple of 2, 3 or 4 ranks' worth of anything.
PlainRun uneven();
PlainRun deep_tied_uneven();
PlainRun sgd();
PlainRun matrices();
inline constexpr Problem kBase{"base", base}, kTied{"tied", tied}, kUneven{"uneven", uneven},
    kDeepTied{"deep_tied", deep_tied_uneven}, kSgd{"sgd", sgd}, kMatrices{"matrices", matrices};

// How many bytes the layout may move along an axis: `least` to `most` times all parameters and
// `activations` times the residual stream of the global batch. The last two blocks may stay whole
// between forward and backward, where they would be gathered again at once: `kept` times their
// bytes less. Beside activations there are a few numbers for each token's loss and a gradient for
// each norm.
struct Traffic {
  const char* axis = "";  // "" = no communication
  double least = 0, most = 0, kept = 0;
  double activations = 0;
};

struct Layout {
  const char* name;
  const char* backend;
  Args args;
  Problem problem = kBase;
  Traffic traffic = {};
};
void PrintTo(const Layout& layout, std::ostream* out);

// To be instantiated with layouts, where the tests are listed.
class Parity : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override;
  void compare(bool fp64);
};

inline std::string layout_name(const ::testing::TestParamInfo<Layout>& info) {
  return info.param.name;
}

}  // namespace yoke::testing
