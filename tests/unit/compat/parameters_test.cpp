#include "sdk/compat/parameters.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace yoke::compat {
namespace {

constexpr int64_t kLarge = (1 << 20) + 5;  // more elements than are initialised at a time

// A model of four parameters, of which the second one is frozen. The initial value of an element is
// its index in the parameter, plus 2^21 times the index of the parameter, which is exact in fp32.
struct Model {
  Model() {
    for (size_t p = 0; p < params.size(); ++p) {
      params[p].name = view(names[p]);
      params[p].shape = &counts[p];
      params[p].ndim = 1;
      params[p].trainable = p == 1 ? 0 : 1;
      pointers.push_back(&params[p]);
    }
    summary.params = pointers.data();
    summary.num_params = pointers.size();
    model.summary = &summary;
    model.ctx = this;
    model.init_param =
        [](void*, int64_t param, int64_t begin, int64_t count, float* dst, YokeError*) -> int32_t {
      for (int64_t i = 0; i < count; ++i) dst[i] = static_cast<float>(value(param, begin + i));
      return YOKE_OK;
    };
    model.bind_param =
        [](void* ctx, int64_t param, const YokeTensor* view, YokeError* err) -> int32_t {
      Model& self = *static_cast<Model*>(ctx);
      return guard(err, [&] {
        if (view == nullptr) {
          EXPECT_EQ(self.bound.erase(param), 1u);
          return;
        }
        if (param == self.fails) throw Error(YOKE_RESOURCE_EXHAUSTED, "no memory");
        self.bound.insert(param);
      });
    };
  }
  Model(const Model&) = delete;
  static int64_t value(int64_t param, int64_t element) { return (param << 21) + element; }
  // Returns the initial values of a contiguous part of a parameter.
  static at::Tensor values(int64_t param, int64_t begin, int64_t count) {
    return at::arange(value(param, begin), value(param, begin + count)).to(at::kFloat);
  }
  FlatLayout layout() const {
    std::vector<Slot> slots = slots_of(summary, Names{});
    int64_t size = 0;
    for (Slot& slot : slots) {
      slot.begin = size;
      slot.end = size += elements(summary, slot.params[0]);
    }
    return {summary, slots, size};
  }

  std::vector<std::string> names{"large", "frozen", "small", "last"};
  std::vector<int64_t> counts{kLarge, 6, 7, 8};
  std::vector<YokeParameter> params{4};
  std::vector<const YokeParameter*> pointers;
  YokeModelSummary summary{};
  YokeModel model{};
  std::set<int64_t> bound;
  int64_t fails = -1;  // parameter whose bind_param fails
};

at::TensorOptions options(at::ScalarType dtype) {
  return at::TensorOptions().dtype(dtype);
}

// This rank owns the end of the large parameter and the begin of the small one.
TEST(Parameters, HaveTheInitialValuesInTheBufferAndInMasterCopies) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Model m;
    const FlatLayout layout = m.layout();
    const Parameters parameters(m.model, layout, options(dtype), {{kLarge - 3, 5}});
    EXPECT_TRUE(at::equal(parameters.part({0, kLarge}), Model::values(0, 0, kLarge).to(dtype)));
    EXPECT_TRUE(at::equal(parameters.part({kLarge, 7}), Model::values(2, 0, 7).to(dtype)));
    EXPECT_TRUE(at::equal(parameters.part({kLarge + 7, 8}), Model::values(3, 0, 8).to(dtype)));
    EXPECT_TRUE(at::equal(parameters.frozen(1), Model::values(1, 0, 6).to(dtype)));
    const at::Tensor own = at::cat({Model::values(0, kLarge - 3, 3), Model::values(2, 0, 2)});
    EXPECT_TRUE(at::equal(parameters.master(0), own)) << "not rounded";
  }
}

TEST(Parameters, ArePublishedWhereThisRankOwnsThem) {
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
    Model m;
    const FlatLayout layout = m.layout();
    const Parameters parameters(m.model, layout, options(dtype), {{kLarge, 2}});
    parameters.master(0).fill_(1.5);
    parameters.publish();
    EXPECT_TRUE(parameters.part({kLarge, 2}).eq(1.5).all().item<bool>());
    EXPECT_TRUE(at::equal(parameters.part({kLarge + 2, 5}), Model::values(2, 2, 5).to(dtype)));
  }
}

TEST(Parameters, CountTheBytesOfAllThatTheyKeep) {
  constexpr int64_t kTrainable = kLarge + 7 + 8, kFrozen = 6, kOwned = 10 + 5;
  const auto bytes = [](at::ScalarType dtype) {
    Model m;
    const FlatLayout layout = m.layout();
    return Parameters(m.model, layout, options(dtype), {{0, 10}, {20, 5}}).bytes();
  };
  EXPECT_EQ(bytes(at::kFloat), 4 * (kTrainable + kFrozen));
  EXPECT_EQ(bytes(at::kBFloat16), 2 * (kTrainable + kFrozen) + 4 * kOwned);
}

TEST(Parameters, AreUnboundAtTheEndAndAfterAFailure) {
  Model m;
  const FlatLayout layout = m.layout();
  {
    const Parameters parameters(m.model, layout, options(at::kFloat), {});
    EXPECT_EQ(m.bound, (std::set<int64_t>{0, 1, 2, 3}));
  }
  EXPECT_TRUE(m.bound.empty());
  m.fails = 2;
  EXPECT_THROW(Parameters(m.model, layout, options(at::kFloat), {}), Error);
  EXPECT_TRUE(m.bound.empty());
}

}  // namespace
}  // namespace yoke::compat
