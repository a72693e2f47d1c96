// What the gradient of a step is the gradient of, for backends whose model is another program that
// trains on the mean of the means of its micro-batches.
#pragma once

#include <string_view>

#include "yoke/parallel_backend.h"

namespace yoke::compat {

enum class Loss {
  kPerToken,     // the mean over all targets of the batch
  kMeanOfMeans,  // the mean of the means of the micro-batches
  kEven,         // the same, but only while both are equal: micro-batches have as many targets
};

// The names of the kinds of loss in a run file, and their translation. name: one of them.
inline constexpr const char* kLossNames = "per_token|even|mean_of_means";
Loss loss_of(std::string_view name);

// Returns what the gradient of the sum of losses of a micro-batch is multiplied by. Per token, each
// target has the same weight, and gradients are summed over the data ranks. Otherwise each
// micro-batch has the same weight, and gradients are averaged over the data ranks.
double loss_grad(Loss loss, const YokeBatch& batch, const YokeMicroBatch& micro);

// Returns whether a micro-batch has another number of targets than the mean of all micro-batches;
// false if the loss is per token. targets: as counted by the blocks. Throws Error(INVALID_ARGUMENT)
// if the host has announced another number, by which the gradient has been divided.
bool is_uneven(
    Loss loss, const YokeBatch& batch, const YokeMicroBatch& micro, double targets, int data_ranks);

// Throws Error(INVALID_ARGUMENT) if the loss is kEven and there are uneven micro-batches. uneven:
// their number on all ranks, so that every rank throws. who: the one that trains on the mean of
// means, as in "Megatron trains on"; fix: how to train nevertheless.
void require_even(Loss loss, double uneven, std::string_view who, std::string_view fix);

}  // namespace yoke::compat
