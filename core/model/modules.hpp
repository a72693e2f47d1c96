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
#include <vector>

#include "core/config/run_config.hpp"
#include "core/kernels/ops.hpp"
#include "core/model/model_dims.hpp"
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
  // Adds a low-rank adapter, two parameters: see core/checkpoint/adapter.hpp.
  void adapt(int64_t rank, double scale);
  ops::Matrix matrix() const;
  int64_t inputs() const { return weight.size(input_first ? 0 : -1); }
  // Returns the shape of an output: the dims of the weight except for that of its inputs.
  std::vector<int64_t> out_shape() const;
  at::Tensor bias;
  bool input_first = false;  // see ops::Matrix
  ops::Product product = ops::Product::kPlain;
  std::shared_ptr<Weight> lora_a, lora_b;  // the adapter; null = none
  double lora_scale = 1;
};

// A matrix [in, ...out] and a bias of the later dims, as in GPT-2.
struct Conv1d : Linear {
  Conv1d(int64_t in, const std::vector<int64_t>& out, at::ScalarType dtype);
};

struct Embedding : Weight {
  Embedding(int64_t rows, int64_t dim, at::ScalarType dtype) : Weight({rows, dim}, dtype) {}
  at::Tensor operator()(const at::Tensor& ids) const { return ops::embedding(weight, ids); }
};

struct RmsNorm : Weight {
  RmsNorm(int64_t dim, double norm_eps, at::ScalarType dtype)
      : Weight({dim}, dtype), eps(norm_eps) {}
  at::Tensor operator()(const at::Tensor& x) const { return ops::rms_norm(x, weight, eps); }
  ops::Normed with_residual(const at::Tensor& x) const {
    return ops::norm_and_residual(x, weight, eps);
  }
  double eps;
};

// The final norm and the head. The nesting gives the parameters the names `body`.`norm`.weight and
// lm_head.weight. A tied head shares the matrix of the embedding.
template <class Norm>
struct Head : torch::nn::Module {
  struct Body : torch::nn::Module {
    Body(const char* name, const ModelDims& d, at::ScalarType dtype)
        : norm(register_module(name, std::make_shared<Norm>(d.dim, d.norm_eps, dtype))) {}
    std::shared_ptr<Norm> norm;
  };

  Head(std::array<const char*, 2> names,
       const ModelDims& d,
       at::ScalarType dtype,
       const at::Tensor& embedding)
      : body(register_module(names[0], std::make_shared<Body>(names[1], d, dtype))),
        lm_head(register_module("lm_head",
                                d.tied ? std::make_shared<Linear>(embedding)
                                       : std::make_shared<Linear>(d.dim, d.vocab, dtype))) {}
  at::Tensor logits(const at::Tensor& x) const {
    return ops::linears((*body->norm)(x), {lm_head->matrix()})[0];
  }
  std::shared_ptr<Body> body;
  std::shared_ptr<Linear> lm_head;
};

// Returns the documents of a micro-batch. They are undefined unless the run separates documents.
ops::Documents documents_of(const TorchInputs& inputs);

// Appends the head as the last block of a language model, whose inputs have seq_len tokens.
template <class Norm>
void add_head(BlockList& list, const std::shared_ptr<Head<Norm>>& head, int64_t seq_len) {
  add_block(list,
            {"lm_head",
             head,
             [head](const at::Tensor& x, const TorchInputs& in) {
               return ops::cross_entropy_sum(head->logits(x), input(in, "targets"));
             }},
            "");
  list.logits = [head](const at::Tensor& x) { return head->logits(x); };
  list.loss_weight = [](const TorchInputs& in) { return ops::count_targets(input(in, "targets")); };
  list.seq_len = seq_len;
}

// Returns the initial values of a matrix, those of GPT-2's authors with uniform instead of normal
// numbers: the output weights of the residual branches start smaller in deeper models, so that
// their sum does not grow with the depth.
ParamInit matrix_init(bool residual, int64_t layers);

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

// Decides how each Linear of the blocks is multiplied, and notes it in the list. Throws
// Error(INVALID_ARGUMENT) as choose_fp8() does.
void choose_products(BlockList& list, const PrecisionConfig& precision);

// Opens the parameters in `folder`. If the head is tied to the embedding, it may be stored there
// under its own name, although it is not a parameter of the model; it must then equal the
// embedding. optional_prefix: a prefix of names that the files may lack.
void open_stored(BlockList& list,
                 const std::string& folder,
                 const std::string& embedding,
                 bool tied,
                 const std::string& optional_prefix);

}  // namespace yoke
