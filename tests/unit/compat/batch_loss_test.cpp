#include "sdk/compat/batch_loss.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "yoke/error.hpp"

namespace yoke::compat {
namespace {

using ::testing::HasSubstr;

// The micro-batches of one of two data ranks. The host announces their numbers of targets, and the
// number of all targets of the batch.
struct Batch {
  Batch(std::vector<double> targets, double all) : micros(targets.size()) {
    for (size_t m = 0; m < micros.size(); ++m) {
      micros[m].token_weight = targets[m];
      pointers.push_back(&micros[m]);
    }
    batch.micros = pointers.data();
    batch.num_micros = pointers.size();
    batch.token_weight = all;
  }
  Batch(const Batch&) = delete;
  double grad(Loss loss, size_t m) const { return loss_grad(loss, batch, micros[m]); }
  bool uneven(Loss loss, size_t m, double counted) const {
    return is_uneven(loss, batch, micros[m], counted, 2);
  }
  std::vector<YokeMicroBatch> micros;
  std::vector<const YokeMicroBatch*> pointers;
  YokeBatch batch{};
};

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
    return e.what();
  }
  return "";
}

TEST(LossOf, TranslatesTheNamesOfARunFile) {
  EXPECT_EQ(loss_of("per_token"), Loss::kPerToken);
  EXPECT_EQ(loss_of("even"), Loss::kEven);
  EXPECT_EQ(loss_of("mean_of_means"), Loss::kMeanOfMeans);
  EXPECT_EQ(message_of([] { loss_of("mean"); }),
            "loss = mean; allowed: per_token|even|mean_of_means");
}

TEST(LossGrad, GivesEveryTargetOrEveryMicroBatchTheSameWeight) {
  const Batch b({3, 5, 0}, 20);
  for (const size_t m : {0, 1, 2}) EXPECT_EQ(b.grad(Loss::kPerToken, m), 1.0 / 20);
  for (const Loss loss : {Loss::kMeanOfMeans, Loss::kEven}) {
    EXPECT_EQ(b.grad(loss, 0), 1.0 / 9);
    EXPECT_EQ(b.grad(loss, 1), 1.0 / 15);
    EXPECT_EQ(b.grad(loss, 2), 0);  // without targets there is no mean
  }
}

// Two ranks have two micro-batches each, so the mean of 16 targets is 4 per micro-batch.
TEST(IsUneven, ComparesAMicroBatchWithTheMeanOfAllRanks) {
  const Batch b({4, 5}, 16);
  for (const Loss loss : {Loss::kMeanOfMeans, Loss::kEven}) {
    EXPECT_FALSE(b.uneven(loss, 0, 4));
    EXPECT_TRUE(b.uneven(loss, 1, 5));
  }
  EXPECT_FALSE(b.uneven(Loss::kPerToken, 1, 5));
}

TEST(IsUneven, RefusesAnAnnouncedNumberThatIsWrong) {
  const Batch b({4, 5}, 16);
  EXPECT_EQ(message_of([&] { b.uneven(Loss::kMeanOfMeans, 1, 4); }),
            "a micro-batch announces 5 targets, but its losses have 4; a mean over its targets "
            "needs their number");
  EXPECT_EQ(message_of([&] { b.uneven(Loss::kPerToken, 1, 4); }), "");
}

TEST(RequireEven, RefusesUnevenMicroBatchesUnlessTheLossAllowsThem) {
  EXPECT_THAT(
      message_of([] { require_even(Loss::kEven, 1, "X trains on", "use Y"); }),
      HasSubstr("the mean of their means, which X trains on, depends on the layout; use Y"));
  EXPECT_EQ(message_of([] { require_even(Loss::kEven, 0, "", ""); }), "");
  EXPECT_EQ(message_of([] { require_even(Loss::kMeanOfMeans, 1, "", ""); }), "");
  EXPECT_EQ(message_of([] { require_even(Loss::kPerToken, 1, "", ""); }), "");
}

}  // namespace
}  // namespace yoke::compat
