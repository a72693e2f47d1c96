// A model of your own: a small convolutional net that classifies the direction of a noisy bar.
// Model, data and loss are in this file; parallelism, optimizer, checkpoints and metrics are
// Yoke's.
#include <ATen/ATen.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cmath>

#include "yoke/tensor.hpp"
#include "yoke/worker.hpp"

namespace {

using yoke::input;
using yoke::TorchInputs;

constexpr int64_t kSide = 12, kDirections = 4;

// Builds the three blocks of the model. Each block passes one tensor to the next block; the last
// block returns the loss, summed over the samples.
yoke::BlockList make_blocks(const yoke::FamilyArgs& args) {
  const int64_t width = args.options.integer("width");
  const torch::nn::Conv2d first(torch::nn::Conv2dOptions(1, width, 3).padding(1));
  const torch::nn::Conv2d second(torch::nn::Conv2dOptions(width, width, 3).stride(2));
  const torch::nn::Linear head(width, kDirections);

  // A block is a module and the function that calls it. The images are always fp32 and are
  // converted to the dtype of the run.
  yoke::BlockList list;
  const auto see = [m = first.ptr()](const at::Tensor&, const TorchInputs& in) {
    return at::relu(m->forward(input(in, "image").to(m->weight.scalar_type())));
  };
  const auto combine = [m = second.ptr()](const at::Tensor& x, const TorchInputs&) {
    return at::relu(m->forward(x)).mean({2, 3});
  };
  const auto decide = [m = head.ptr()](const at::Tensor& x, const TorchInputs& in) {
    return at::cross_entropy_loss(m->forward(x), input(in, "direction"), {}, at::Reduction::Sum);
  };
  yoke::add_block(list, {"first", first.ptr(), see}, "first");
  yoke::add_block(list, {"second", second.ptr(), combine}, "second");
  yoke::add_block(list, {"head", head.ptr(), decide}, "head");
  // The bytes that a sample needs, for the estimates of Yoke: what each block keeps for its
  // backward besides its input, and its output. The second one keeps its 5 x 5 numbers before the
  // mean.
  const int64_t item = yoke::item_size(args.param_dtype);
  list.costs = {{0, width * kSide * kSide * item},
                {width * 25 * item, width * item},
                {kDirections * item, 0}};
  // Initial values by name: Yoke computes any part of a parameter on any rank.
  list.init = [](const std::string& name) -> yoke::ParamInit {
    if (name.ends_with("bias")) return {yoke::ParamInit::kConstant, 0};
    return {yoke::ParamInit::kUniform, name == "head.weight" ? 0.3 : 0.15};
  };
  list.loss_weight = [](const TorchInputs& in) {
    return static_cast<double>(input(in, "direction").numel());
  };
  return list;
}

// Returns sample number `index`: an image with a bar in one of four directions, and the direction.
// It depends only on the index, so every rank can generate every sample.
TorchInputs draw(int64_t index) {
  const int64_t direction = index % kDirections;
  const double angle = M_PI * static_cast<double>(direction) / kDirections;
  const double shift = static_cast<double>(index / kDirections % 7 - 3);
  at::Tensor image = at::empty({1, kSide, kSide}, at::kFloat);
  auto noise = static_cast<uint64_t>(index);
  for (int64_t i = 0; i < image.numel(); ++i) {
    const double x = static_cast<double>(i % kSide) - 5.5, y = static_cast<double>(i / kSide) - 5.5;
    const bool on_bar = std::abs(x * std::sin(angle) - y * std::cos(angle) - shift) < 1;
    noise = noise * 6364136223846793005u + 1442695040888963407u;
    const double grain = static_cast<double>(noise >> 40) / (1 << 24);
    image.data_ptr<float>()[i] = static_cast<float>((on_bar ? 1 : 0) + 0.5 * grain);
  }
  return {{"image", image}, {"direction", at::scalar_tensor(direction, at::kLong)}};
}

}  // namespace

int main(int argc, char** argv) {
  yoke::Family bars;
  bars.make_blocks = make_blocks;
  bars.samples = [](const yoke::FamilyArgs&) {
    return yoke::Samples{.count = 2000, .targets = 1, .read = draw};
  };
  bars.options = {{.key = "width",
                   .type = YOKE_OPTION_INT,
                   .default_value = "8",
                   .min = 1,
                   .max = 1024,
                   .doc = "channels of the convolutions"}};
  return yoke::worker_main(argc, argv, {{"bars", bars}});
}
