// yoke/torch.hpp converts LibTorch tensors to tensors of the contract and back, without a copy.
#include "yoke/torch.hpp"

#include <gtest/gtest.h>

namespace yoke {
namespace {

constexpr int32_t kDtypes[] = {
    YOKE_F64, YOKE_F32, YOKE_BF16, YOKE_F16, YOKE_I64, YOKE_I32, YOKE_U8};

TEST(TorchDtype, EveryContractDtypeGoesThereAndBack) {
  for (int32_t dtype : kDtypes) {
    EXPECT_EQ(dtype_of(scalar_type(dtype)), dtype);
    EXPECT_EQ(static_cast<int64_t>(c10::elementSize(scalar_type(dtype))), item_size(dtype));
  }
  EXPECT_THROW(scalar_type(4711), Error);
  EXPECT_THROW(dtype_of(at::kComplexFloat), Error);
}

TEST(TensorView, SharesMemoryShapeAndDtype) {
  for (int32_t dtype : kDtypes) {
    const at::Tensor t = at::arange(6, at::TensorOptions().dtype(scalar_type(dtype))).view({2, 3});
    const TensorView view(t);
    const YokeTensor& y = *view.get();
    EXPECT_EQ(y.data, t.data_ptr());
    ASSERT_EQ(y.ndim, 2);
    EXPECT_EQ(y.shape[0], 2);
    EXPECT_EQ(y.shape[1], 3);
    EXPECT_EQ(YOKE_DTYPE_OF(y.dtype), dtype);
    EXPECT_EQ(y.dtype.lanes, 1);
    EXPECT_EQ(y.device.type, YOKE_DEVICE_CPU);
    EXPECT_EQ(y.byte_offset, 0u);
    EXPECT_TRUE(at::equal(borrow(y), t));
  }
}

TEST(TensorView, KeepsTheStridesOfATransposedTensor) {
  const at::Tensor t = at::arange(6, at::kDouble).view({2, 3}).t();
  const TensorView view(t);
  EXPECT_EQ(view.get()->strides[0], 1);
  EXPECT_EQ(view.get()->strides[1], 3);
  EXPECT_TRUE(at::equal(borrow(*view.get()), t));
}

TEST(Borrow, WritesGoToTheOriginal) {
  at::Tensor t = at::zeros({4}, at::kFloat);
  const TensorView view(t);
  borrow(*view.get()).fill_(3);
  EXPECT_TRUE(at::equal(t, at::full({4}, 3.0f)));
}

TEST(Borrow, HonoursByteOffsetAndMissingStrides) {
  double values[] = {0, 1, 2, 3, 4, 5};
  int64_t shape[] = {2, 2};
  const YokeTensor y = {
      values, {YOKE_DEVICE_CPU, 0}, 2, data_type(YOKE_F64), shape, nullptr, 2 * sizeof(double)};
  EXPECT_TRUE(at::equal(borrow(y), at::tensor({2.0, 3.0, 4.0, 5.0}, at::kDouble).view({2, 2})));
}

TEST(Borrow, TakesScalarsAndEmptyTensors) {
  const TensorView scalar(at::scalar_tensor(2.5, at::kDouble));
  EXPECT_EQ(scalar.get()->ndim, 0);
  EXPECT_EQ(borrow(*scalar.get()).item<double>(), 2.5);
  const TensorView empty(at::empty({0, 3}, at::kFloat));
  EXPECT_EQ(borrow(*empty.get()).sizes(), at::IntArrayRef({0, 3}));
}

TEST(ToManaged, HoldsTheTensorUntilTheDeleterRuns) {
  at::Tensor t = at::ones({3}, at::kFloat);
  YokeManagedTensor* managed = to_managed(t);
  EXPECT_EQ(managed->dlpack_major, 1u);
  EXPECT_EQ(t.use_count(), 2u);
  void* memory = t.data_ptr();
  t = at::Tensor();
  EXPECT_EQ(managed->tensor.data, memory);
  EXPECT_TRUE(at::equal(borrow(managed->tensor), at::ones({3})));
  managed->deleter(managed);
}

TEST(ToManaged, IsFreedByTheRaiiHolder) {
  at::Tensor t = at::ones({3});
  {
    const ManagedTensor holder(to_managed(t));
    EXPECT_EQ(t.use_count(), 2u);
  }
  EXPECT_EQ(t.use_count(), 1u);
}

TEST(TorchModel, IsFoundBehindUnknownExtensions) {
  TorchModel torch{};
  torch.header = YOKE_HEADER(TorchModel, YOKE_ID_TORCH_MODEL);
  const YokeHeader unknown = {sizeof(YokeHeader), 4711, &torch.header};
  YokeModel model{};
  EXPECT_EQ(torch_model(model), nullptr);
  model.header.next = &unknown;
  EXPECT_EQ(torch_model(model), &torch);
}

TEST(TorchInputs, AreFoundByRoleAndAMissingOneIsNamed) {
  const TorchInputs inputs = {{"tokens", at::zeros({1})}, {"targets", at::ones({1})}};
  EXPECT_TRUE(at::equal(input(inputs, "targets"), at::ones({1})));
  try {
    input(inputs, "positions");
    FAIL() << "no exception";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("'positions'"), std::string::npos);
  }
}

}  // namespace
}  // namespace yoke
