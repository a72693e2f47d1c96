// The modules that the families of Yoke share. None of them allocates memory or draws random
// numbers: backends provide the memory, and the initial values come from core/model/init.hpp. A
// module takes the number of heads from the shape of a tensor, because a rank may hold only some of
// them.
#pragma once

#include <torch/nn/module.h>

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "core/config/run_config.hpp"
#include "core/kernels/ops.hpp"
#include "yoke/model.hpp"

namespace yoke {

// A module with one parameter, "weight". With `tied` it shares the parameter of another module.
struct Weight : torch::nn::Module {
  Weight(at::IntArrayRef shape, at::ScalarType dtype) {
    weight = register_parameter("weight", unallocated(shape, dtype));
  }
  explicit Weight(const at::Tensor& tied) { weight = register_parameter("weight", tied); }
  at::Tensor weight;
};

// A matrix [out, in], and a bias [out] if there is one.
struct Linear : Weight {
  Linear(int64_t in, int64_t out, at::ScalarType dtype, bool has_bias = false)
      : Weight({out, in}, dtype) {
    if (has_bias) bias = register_parameter("bias", unallocated({out}, dtype));
  }
  explicit Linear(const at::Tensor& tied) : Weight(tied) {}
  ops::Matrix matrix() const { return {weight, product, bias}; }
  at::Tensor bias;
  ops::Product product = ops::Product::kPlain;
};

struct Embedding : Weight {
  Embedding(int64_t rows, int64_t dim, at::ScalarType dtype) : Weight({rows, dim}, dtype) {}
  at::Tensor operator()(const at::Tensor& ids) const { return ops::embedding(weight, ids); }
};

struct RmsNorm : Weight {
  RmsNorm(int64_t dim, double norm_eps, at::ScalarType dtype)
      : Weight({dim}, dtype), eps(norm_eps) {}
  at::Tensor operator()(const at::Tensor& x) const { return ops::rms_norm(x, weight, eps); }
  double eps;
};

// The parameters of a whole layer, with the same names as in its halves.
struct WholeLayer : torch::nn::Module {
  WholeLayer(const torch::nn::Module& first, const torch::nn::Module& second) {
    for (const torch::nn::Module* half : {&first, &second}) {
      for (const auto& child : half->named_children()) register_module(child.key(), child.value());
    }
  }
};

// A half of a layer: its module, and what it computes.
struct LayerHalf {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor& x, const TorchInputs& inputs)> forward;
};
// Appends a layer to the list, as one block or as two. names: the last parts of the names of its
// halves. Parameters are named after `prefix`.
void add_layer(BlockList& list,
               const std::string& prefix,
               const LayerHalf& first,
               const LayerHalf& second,
               std::array<const char*, 2> names,
               bool as_halves);

// Decides how each Linear of the blocks is multiplied. Throws Error(INVALID_ARGUMENT) as
// choose_fp8() does.
void choose_products(BlockList& list, const PrecisionConfig& precision);

// Opens the parameters in `folder`. If the head is tied to the embedding, it may be stored there
// under its own name, although it is not a parameter of the model; it must then equal the
// embedding. optional_prefix: a prefix of names that the files may lack.
void open_stored(BlockList& list,
                 const std::string& folder,
                 const std::string& embedding,
                 bool tied,
                 const std::string& optional_prefix = "");

}  // namespace yoke
