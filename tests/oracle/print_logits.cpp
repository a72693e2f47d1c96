// print_logits FOLDER ID ... prints the logits that Yoke computes after each of the ids with the
// weights in FOLDER, one line of numbers for each id.
#include <ATen/ATen.h>

#include <cstdio>
#include <string>

#include "core/model/family.hpp"
#include "core/model/torch_model.hpp"
#include "yoke/backend.hpp"

int main(int argc, char** argv) try {
  yoke::ModelConfig config;
  config.from = argv[1];
  std::vector<int64_t> ids;
  for (int i = 2; i < argc; ++i) ids.push_back(std::stoll(argv[i]));
  const yoke::BlockList list = yoke::builtin_family(config).make_blocks({});
  const yoke::TorchModelHost host(list, YOKE_F32, 0, false);
  const YokeModel& model = host.model();
  std::vector<at::Tensor> params;
  YokeError err = yoke::make_error();
  for (uint64_t i = 0; i < host.summary().num_params; ++i) {
    const YokeParameter& p = *host.summary().params[i];
    const auto index = static_cast<int64_t>(i);
    const at::Tensor& values =
        params.emplace_back(at::empty(at::IntArrayRef(p.shape, p.ndim), at::kFloat));
    auto* data = values.data_ptr<float>();
    // The parameter is initialised in two parts, as for two shards.
    const int64_t half = values.numel() / 2;
    yoke::check(model.init_param(model.ctx, index, 0, half, data, &err), err);
    yoke::check(model.init_param(model.ctx, index, half, values.numel() - half, data + half, &err),
                err);
    yoke::check(model.bind_param(model.ctx, index, yoke::TensorView(values).get(), &err), err);
  }

  const at::NoGradGuard no_gradients;
  const auto count = static_cast<int64_t>(ids.size());
  const yoke::TorchInputs inputs{{"tokens", at::tensor(ids, at::kLong).view({1, count})},
                                 {"positions", at::arange(count, at::kLong).view({1, count})}};
  at::Tensor carry;
  for (size_t b = 0; b + 1 < list.blocks.size(); ++b) carry = list.blocks[b].forward(carry, inputs);
  const at::Tensor logits = list.logits(carry)[0].contiguous();
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t id = 0; id < logits.size(1); ++id)
      std::printf("%.9g ",
                  static_cast<double>(logits.data_ptr<float>()[row * logits.size(1) + id]));
    std::puts("");
  }
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
