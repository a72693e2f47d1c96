#include "core/kernels/neighbours.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace yoke::ops {
namespace {

TEST(Stacked, AreMatricesThatFollowEachOtherInMemory) {
  const at::Tensor all = at::randn({9, 4});
  const auto rows = [&](int64_t begin, int64_t count) { return all.narrow(0, begin, count); };
  const at::Tensor three = stacked({rows(1, 2), rows(3, 1), rows(4, 5)});
  ASSERT_TRUE(three.defined());
  EXPECT_TRUE(three.equal(rows(1, 8)));
  EXPECT_EQ(three.const_data_ptr(), rows(1, 8).const_data_ptr());
  EXPECT_TRUE(stacked({rows(2, 3)}).equal(rows(2, 3)));
  EXPECT_FALSE(stacked({rows(0, 2), rows(3, 2)}).defined());          // a gap
  EXPECT_FALSE(stacked({rows(2, 2), rows(0, 2)}).defined());          // the other order
  EXPECT_FALSE(stacked({rows(0, 2), rows(0, 2)}).defined());          // the same one twice
  EXPECT_FALSE(stacked({rows(0, 2), rows(2, 2).clone()}).defined());  // other memory
  EXPECT_FALSE(stacked({rows(0, 2), rows(2, 2).view({4, 2})}).defined());
  EXPECT_FALSE(stacked({rows(0, 2), rows(2, 2).view({8})}).defined());
  EXPECT_FALSE(stacked({rows(0, 2), rows(2, 4).t()}).defined());
  EXPECT_FALSE(stacked({rows(0, 2), rows(2, 2).view(at::kInt)}).defined());
}

TEST(SideBySide, AreTensorsWhoseRowsContinueEachOther) {
  const at::Tensor all = at::randn({2, 3, 12});
  const auto columns = [&](int64_t begin, int64_t count) { return all.narrow(2, begin, count); };
  const at::Tensor joint = side_by_side({columns(1, 4), columns(5, 2), columns(7, 3)});
  ASSERT_TRUE(joint.defined());
  EXPECT_TRUE(joint.equal(columns(1, 9)));
  EXPECT_EQ(joint.const_data_ptr(), columns(1, 9).const_data_ptr());
  EXPECT_FALSE(side_by_side({columns(0, 4), columns(5, 2)}).defined());  // a gap
  EXPECT_FALSE(side_by_side({columns(4, 4), columns(0, 4)}).defined());  // the other order
  EXPECT_FALSE(side_by_side({columns(0, 4), columns(4, 4).narrow(1, 0, 2)}).defined());
  EXPECT_FALSE(side_by_side({columns(0, 4), columns(4, 4).view(at::kInt)}).defined());
  // Matrices one after the other are not side by side, even if the second begins at the right
  // address.
  EXPECT_FALSE(side_by_side({all.flatten().narrow(0, 0, 4).view({1, 4}).expand({2, 4}),
                             all.flatten().narrow(0, 4, 4).view({1, 4}).expand({2, 4})})
                   .defined());
  // The sequences of a batch must be at the same distances as the rows.
  const at::Tensor gaps = all.narrow(1, 0, 2);
  EXPECT_FALSE(side_by_side({gaps.narrow(2, 0, 6), gaps.narrow(2, 6, 6)}).defined());
}

TEST(SideBySide, AreTheTensorsThatAreMadeSo) {
  const std::vector<at::Tensor> like{at::zeros({2, 3, 4}, at::kDouble),
                                     at::zeros({2, 3, 5}, at::kDouble)};
  const std::vector<at::Tensor> made = empty_side_by_side(like);
  ASSERT_EQ(made.size(), 2u);
  for (size_t i = 0; i < made.size(); ++i) {
    EXPECT_EQ(made[i].sizes(), like[i].sizes());
    EXPECT_EQ(made[i].scalar_type(), at::kDouble);
    made[i].fill_(static_cast<double>(i));
  }
  const at::Tensor joint = side_by_side(made);
  ASSERT_TRUE(joint.defined());
  EXPECT_TRUE(joint.equal(at::cat({at::zeros_like(like[0]), at::ones_like(like[1])}, -1)));
}

}  // namespace
}  // namespace yoke::ops
