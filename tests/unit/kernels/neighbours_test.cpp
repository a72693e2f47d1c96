#include "core/kernels/neighbours.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace yoke::ops {
namespace {

TEST(Stacked, AreMatricesThatFollowEachOtherInMemory) {
  const at::Tensor all = at::randn({9, 4});
  const auto rows = [&](int64_t begin, int64_t count) { return all.narrow(0, begin, count); };
  ASSERT_TRUE(are_stacked({rows(1, 2), rows(3, 1), rows(4, 5)}));
  const at::Tensor three = stacked({rows(1, 2), rows(3, 1), rows(4, 5)});
  EXPECT_TRUE(three.equal(rows(1, 8)));
  EXPECT_EQ(three.const_data_ptr(), rows(1, 8).const_data_ptr());
  EXPECT_TRUE(stacked({rows(2, 3)}).equal(rows(2, 3)));
  EXPECT_FALSE(are_stacked({rows(0, 2), rows(3, 2)}));          // a gap
  EXPECT_FALSE(are_stacked({rows(2, 2), rows(0, 2)}));          // the other order
  EXPECT_FALSE(are_stacked({rows(0, 2), rows(0, 2)}));          // the same one twice
  EXPECT_FALSE(are_stacked({rows(0, 2), rows(2, 2).clone()}));  // other memory
  EXPECT_FALSE(are_stacked({rows(0, 2), rows(2, 2).view({4, 2})}));
  EXPECT_FALSE(are_stacked({rows(0, 2), rows(2, 2).view({8})}));
  EXPECT_FALSE(are_stacked({rows(0, 2), rows(2, 4).t()}));
  EXPECT_FALSE(are_stacked({rows(0, 2), rows(2, 2).view(at::kInt)}));
}

TEST(SideBySide, AreTensorsWhoseRowsContinueEachOther) {
  const at::Tensor all = at::randn({2, 3, 12});
  const auto columns = [&](int64_t begin, int64_t count) { return all.narrow(2, begin, count); };
  ASSERT_TRUE(are_side_by_side({columns(1, 4), columns(5, 2), columns(7, 3)}));
  const at::Tensor joint = side_by_side({columns(1, 4), columns(5, 2), columns(7, 3)});
  EXPECT_TRUE(joint.equal(columns(1, 9)));
  EXPECT_EQ(joint.const_data_ptr(), columns(1, 9).const_data_ptr());
  EXPECT_FALSE(are_side_by_side({columns(0, 4), columns(5, 2)}));  // a gap
  EXPECT_FALSE(are_side_by_side({columns(4, 4), columns(0, 4)}));  // the other order
  EXPECT_FALSE(are_side_by_side({columns(0, 4), columns(4, 4).narrow(1, 0, 2)}));
  EXPECT_FALSE(are_side_by_side({columns(0, 4), columns(4, 4).view(at::kInt)}));
  // Matrices one after the other are not side by side, even if the second begins at the right
  // address.
  const at::Tensor line = all.flatten();
  const auto matrix = [&](int64_t begin) { return line.narrow(0, begin, 4).view({1, 4}); };
  EXPECT_FALSE(are_side_by_side({matrix(0), matrix(4)}));
  EXPECT_FALSE(are_side_by_side({matrix(0).expand({2, 4}), matrix(4).expand({2, 4})}));
  // The rows of the second tensor are less far apart.
  EXPECT_FALSE(are_side_by_side({columns(0, 4), line.as_strided({2, 3, 4}, {36, 11, 1}, 4)}));
  // The sequences of a batch must be at the same distances as the rows.
  const at::Tensor gaps = all.narrow(1, 0, 2);
  EXPECT_FALSE(are_side_by_side({gaps.narrow(2, 0, 6), gaps.narrow(2, 6, 6)}));
}

TEST(SideBySide, AreTheTensorsThatAreMadeSo) {
  const std::vector<at::Tensor> made =
      empty_side_by_side({2, 3}, {4, 5}, at::TensorOptions(at::kDouble));
  ASSERT_EQ(made.size(), 2u);
  EXPECT_EQ(made[0].sizes(), at::IntArrayRef({2, 3, 4}));
  EXPECT_EQ(made[1].sizes(), at::IntArrayRef({2, 3, 5}));
  made[0].zero_();
  made[1].fill_(1);
  ASSERT_TRUE(are_side_by_side(made));
  const auto options = at::TensorOptions(at::kDouble);
  EXPECT_TRUE(side_by_side(made).equal(
      at::cat({at::zeros({2, 3, 4}, options), at::ones({2, 3, 5}, options)}, -1)));
}

TEST(Neighbours, AreNeverEmpty) {
  const at::Tensor none = at::empty({0, 4});
  EXPECT_FALSE(are_stacked({none, none}));
  EXPECT_FALSE(are_side_by_side({none, none}));
}

}  // namespace
}  // namespace yoke::ops
