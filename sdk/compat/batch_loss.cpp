#include "sdk/compat/batch_loss.hpp"

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke::compat {

Loss loss_of(std::string_view name) {
  if (name == "per_token") return Loss::kPerToken;
  if (name == "even") return Loss::kEven;
  if (name == "mean_of_means") return Loss::kMeanOfMeans;
  throw Error(YOKE_INVALID_ARGUMENT, concat("loss = ", name, "; allowed: ", kLossNames));
}

double loss_grad(Loss loss, const YokeBatch& batch, const YokeMicroBatch& micro) {
  if (loss == Loss::kPerToken) return 1 / batch.token_weight;
  const auto micros = static_cast<double>(batch.num_micros);
  return micro.token_weight > 0 ? 1 / (micro.token_weight * micros) : 0;
}

bool is_uneven(Loss loss,
               const YokeBatch& batch,
               const YokeMicroBatch& micro,
               double targets,
               int data_ranks) {
  if (loss == Loss::kPerToken) return false;
  if (micro.token_weight != targets)
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("a micro-batch announces ",
                       micro.token_weight,
                       " targets, but its losses have ",
                       targets,
                       "; a mean over its targets needs their number"));
  const auto micros = static_cast<double>(batch.num_micros);
  return targets * micros * data_ranks != batch.token_weight;
}

void require_even(Loss loss, double uneven, std::string_view who, std::string_view fix) {
  if (loss != Loss::kEven || uneven == 0) return;
  throw Error(
      YOKE_INVALID_ARGUMENT,
      concat("the micro-batches of this step have different numbers of targets, so the mean of "
             "their means, which ",
             who,
             ", depends on the layout; ",
             fix));
}

}  // namespace yoke::compat
