#include "sdk/mesh/executor/flat_buffer.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

namespace yoke::mesh {
namespace {

TEST(DevicePool, IdleMemoryIsUsedAgain) {
  DevicePool pool(at::kCPU);
  DevicePool::Buffer first = pool.take(1000);
  void* const address = first.data.get();
  pool.give_back(std::move(first));
  EXPECT_EQ(pool.take(1000).data.get(), address);
}

TEST(DevicePool, ABufferAQuarterTooLargeWillDoAndALargerOneNot) {
  DevicePool pool(at::kCPU);
  pool.give_back(pool.take(1250));
  EXPECT_EQ(pool.take(1000).capacity, 1250u);
  DevicePool other(at::kCPU);
  other.give_back(other.take(1260));
  EXPECT_EQ(other.take(1000).capacity, 1000u);
}

TEST(DevicePool, TheBestFitIsTaken) {
  DevicePool pool(at::kCPU);
  DevicePool::Buffer large = pool.take(1100), small = pool.take(1010);
  pool.give_back(std::move(large));
  pool.give_back(std::move(small));
  EXPECT_EQ(pool.take(1000).capacity, 1010u);
}

// No buffer can be reused for a request of a different size, and the requests are in random order.
TEST(DevicePool, HoldsNeverMoreThanWasInUseAtOneTime) {
  DevicePool pool(at::kCPU);
  std::vector<DevicePool::Buffer> taken;
  size_t in_use = 0, most = 0;
  uint64_t state = 1;
  for (int i = 0; i < 2000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    if (taken.size() < 5 && (state >> 33) % 2 == 0) {
      taken.push_back(pool.take(size_t{100} << ((state >> 40) % 6)));
      in_use += taken.back().capacity;
      most = std::max(most, in_use);
    } else if (!taken.empty()) {
      in_use -= taken.back().capacity;
      pool.give_back(std::move(taken.back()));
      taken.pop_back();
    }
    ASSERT_EQ(pool.most_in_use(), most);
    ASSERT_LE(pool.held(), most);
  }
}

// Three units of nearly equal size are taken in the order of a step. After the first steps nothing
// may be allocated.
TEST(DevicePool, AStepOfNearlyEqualUnitsAllocatesNothing) {
  DevicePool pool(at::kCPU);
  constexpr size_t kA = 1247232, kB = 1231360, kC = 1001472;
  std::set<void*> before, now;
  for (int step = 0; step < 6; ++step) {
    before = std::exchange(now, {});
    const auto take = [&](size_t bytes) {
      DevicePool::Buffer buffer = pool.take(bytes);
      now.insert(buffer.data.get());
      return buffer;
    };
    DevicePool::Buffer a = take(kA), b = take(kB);
    pool.give_back(std::move(a));
    DevicePool::Buffer c = take(kC), grads_c = take(kC);
    pool.give_back(std::move(c));
    a = take(kA);
    DevicePool::Buffer grads_b = take(kB);
    pool.give_back(std::move(b));
    pool.give_back(std::move(grads_c));
    DevicePool::Buffer grads_a = take(kA);
    pool.give_back(std::move(a));
    pool.give_back(std::move(grads_b));
    pool.give_back(std::move(grads_a));
  }
  EXPECT_EQ(now, before);
  EXPECT_LE(now.size(), 5u);
}

TEST(FlatBuffer, ViewsFollowTheMemory) {
  DevicePool pool(at::kCPU);
  FlatBuffer flat(100, at::kFloat, pool);
  const at::Tensor middle =
      flat.tensor().narrow(0, 40, 12).view({3, 4});  // a view that is made while there is no memory
  flat.attach();
  flat.tensor().copy_(at::arange(100));
  EXPECT_EQ(middle[1][0].item<float>(), 44);
  flat.detach();
  FlatBuffer other(100, at::kFloat, pool);
  other.attach();  // the idle memory is taken by another buffer
  flat.attach();
  flat.tensor().fill_(7);
  EXPECT_EQ(middle[1][0].item<float>(), 7);
}

TEST(FlatBuffer, PermanentMemoryStays) {
  FlatBuffer flat(at::ones({5}));
  void* const address = flat.tensor().data_ptr();
  flat.attach();
  flat.detach();
  EXPECT_TRUE(flat.attached());
  EXPECT_EQ(flat.tensor().data_ptr(), address);
}

// Tensors that autograd saved share the storage of a parameter, so backward reads the memory to
// which that storage points at that time.
TEST(BindStorage, SavedTensorsSeeTheMemoryThatIsBoundAtTheirBackward) {
  at::Tensor weight = at::empty({3, 2}, at::kDouble).set_requires_grad(true);
  at::Tensor first = at::full({6}, 2.0, at::kDouble), second = at::full({6}, 2.0, at::kDouble);
  at::Tensor x = at::ones({1, 2}, at::kDouble).set_requires_grad(true);
  bind_storage(weight, first.data_ptr());
  const at::Tensor y = at::linear(x, weight);
  bind_storage(weight, nullptr);
  EXPECT_EQ(weight.storage().nbytes(), 0u);
  first.fill_(1e300);  // the old memory has been reused
  bind_storage(weight, second.data_ptr());
  y.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full({1, 2}, 6.0, at::kDouble)));
}

}  // namespace
}  // namespace yoke::mesh
