// Models of your own: blocks of plain torch::nn code, the initial values of their parameters, and
// the family by which a run file selects them. There is no parallelism here: backends shard, gather
// and reduce what this file describes. sdk/examples/own_model is a complete model.
//
//   yoke::BlockList make_blocks(const yoke::FamilyArgs& args) {
//     yoke::BlockList list;
//     yoke::add_block(list, {"mlp", module, forward}, "mlp");
//     list.init = [](const std::string& name) { return yoke::ParamInit{}; };
//     list.loss_weight = [](const yoke::TorchInputs& inputs) { return ...; };
//     return list;
//   }
//   int main(int argc, char** argv) {
//     return yoke::worker_main(argc, argv, {{"mine", {make_blocks}}});    // yoke/worker.hpp
//   }
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "yoke/cut_costs.hpp"
#include "yoke/fp8_params.hpp"
#include "yoke/options.hpp"
#include "yoke/torch.hpp"

#define YOKE_WORKER_API __attribute__((visibility("default")))

namespace yoke {

// The initial values of a parameter. Each element is computed from the seed and its row-major
// index, so it has the same bits in every layout. Values that a module's constructor wrote
// into its parameters are discarded.
struct ParamInit {
  enum Kind { kUniform, kConstant } kind = kUniform;
  double value = 0.02;  // standard deviation for kUniform, the value itself for kConstant
};

// What a block costs a rank whose tensors are distributed; see yoke/cut_costs.hpp. For estimates
// only. Empty passes = unknown.
struct DistributedCosts {
  CutBytes kept, carry;
  std::vector<CutPass> passes{};
};

// What a block costs for one sequence; -1 = unknown. For estimates only.
struct BlockCosts {
  int64_t activation_bytes = -1;  // bytes kept from its forward to its backward, without its input
  int64_t carry_bytes = -1;       // bytes of its output
  double forward_flops = -1;      // see YokeBlock.forward_flops
  // The points at which its passes need the most memory, see YokeBlock.pass_bytes. Empty = unknown.
  std::vector<YokePassBytes> pass_bytes{};
  // The same with tensor or context parallelism. Unset: unknown with tensor parallelism, and with
  // context parallelism each rank has an equal part of the above.
  std::optional<DistributedCosts> distributed{};
};

// How tensor parallelism may shard a parameter. Without a hint, backends refuse tensor parallelism.
struct TpHint {
  int32_t cut = 0;    // see YokeParameter.tp_cut
  int64_t parts = 0;  // see YokeParameter.tp_parts

  // The parameter is replicated over the ranks, for example the weight of a norm.
  static TpHint whole() { return {YOKE_TP_WHOLE, 0}; }
  // The parameter may be cut along dimension dim, between any two of `parts` equal parts: heads,
  // columns, ids of a vocabulary.
  static TpHint along(int32_t dim, int64_t parts) { return {dim + 1, parts}; }
};

// The model that a family builds: its blocks in execution order, and properties of its parameters.
// If the same tensor is a parameter of two blocks, it is a tied parameter and keeps its first name.
// Its functions may be called from any thread. `name` is always the full name of a parameter.
struct BlockList {
  // The blocks; append them with add_block.
  std::vector<TorchBlock> blocks;
  // For each block, its parameters: full name and leaf tensor. add_block fills it.
  std::vector<std::vector<std::pair<std::string, at::Tensor>>> params;
  // The line of a run file that divides the model into more blocks; see
  // YokeModelSummary.more_blocks. Empty = there is no such setting.
  std::string more_blocks;
  // What each block costs. Empty = unknown.
  std::vector<BlockCosts> costs;
  // Returns how a parameter is initialised. Required.
  std::function<ParamInit(const std::string& name)> init;
  // If set, it is used instead of init: writes elements [begin, begin + count) of a parameter, from
  // files, to dst[0, count).
  std::function<void(const std::string& name, int64_t begin, int64_t count, float* dst)> stored;
  // Names of parameters that are not in the files of `stored`; they start as init says.
  std::set<std::string> not_stored{};
  // Returns how tensor parallelism may shard a parameter. Empty = no hint for any parameter.
  std::function<TpHint(const std::string& name)> tp;
  // Set by a sequence model: every input is [B, seq_len, ...], and the blocks allow dimension 1 of
  // all inputs to be sliced and permuted together, as context parallelism does. 0 = not a
  // sequence model.
  int64_t seq_len = 0;
  // Returns the number of targets of a micro-batch. Required.
  std::function<double(const TorchInputs& inputs)> loss_weight;
  // The last block without its loss, for sampling: maps its input [B, S, dim] to logits [B, S,
  // vocab]. Empty = the model cannot be sampled.
  std::function<at::Tensor(const at::Tensor& carry)> logits;
  // The shapes under which checkpoints and exports store parameters, by name; a parameter that is
  // absent is stored in its own shape. Both shapes have the same elements in the same order. So a
  // matrix whose columns are those of queries, keys and values, [dim, 3 * dim] in files, can be a
  // parameter [dim, 3, dim], whose last dim may be cut by heads.
  std::map<std::string, std::vector<int64_t>> stored_shapes{};
  // How products in fp8 use parameters, by name; a parameter that is absent has other uses. Only
  // models of Yoke fill it, because the host's operators know the products.
  std::map<std::string, Fp8Use> fp8_uses{};
};

// Appends a block to the list and frees the memory of its parameters at once, so that a model may
// be larger than the memory. The full name of a parameter is "<prefix>.<its name in the module>",
// or only the latter if the prefix is empty. Throws Error(INVALID_ARGUMENT) for a block without
// module or forward, or with buffers.
YOKE_WORKER_API void add_block(BlockList& list, TorchBlock block, const std::string& prefix);

// Returns a contiguous tensor of a shape whose storage has no memory yet, for parameters that are
// built by hand.
YOKE_WORKER_API at::Tensor unallocated(at::IntArrayRef shape,
                                       at::ScalarType dtype,
                                       at::Device device = at::kCPU);

// Properties of a model that cannot be derived from its blocks.
struct ModelInfo {
  int64_t num_params = 0;  // number of elements, tied ones once; 0 = the host counts them
  int64_t vocab = 0;       // upper bound of the token ids; 0 = the model takes no tokens
  // Floating-point operations of the forward and the backward of one token, by the convention of
  // torchtitan: 6 N + 12 L H Q T. N excludes an input embedding that is only looked up, and T is
  // the sequence length. 0 = unknown.
  double flops_per_token = 0;
  // The file config.json to write next to exported weights, which are fp32. "" = none.
  std::string hf_config_json;
  // Sentences for the log of a run, about what a user might not expect of this model.
  std::vector<std::string> notes{};
};

// The part of a run file that a family receives.
struct FamilyArgs {
  Options options{};               // values of the family's own options, from [model]
  int32_t param_dtype = YOKE_F32;  // dtype of parameters and activations
  int64_t seq_len = 0;             // value of data.seq_len
  std::string data_path{};         // data.path, "" if it is not given or names several
};

// A family's own data, instead of the tokens in data.path. The host decides which rank receives
// which sample in which step, by data.order, data.holdout and the seed, the same in every layout.
struct Samples {
  int64_t count = 0;    // number of samples; the last data.holdout are for evaluation
  int64_t targets = 1;  // number of targets in each sample; the loss is the mean over all targets
  // Returns sample `index`, in [0, count): its inputs by role, without the batch dimension, which
  // the host adds in front. A sample is the same at every call and on every rank. Roles, shapes and
  // dtypes are the same for all samples. May be called from any thread.
  std::function<TorchInputs(int64_t index)> read;
};

// A kind of model, which a run file selects by `[model] family`. The functions may be called from
// any thread. They throw Error(INVALID_ARGUMENT) with a text that names every error in the
// configuration.
struct Family {
  // Builds the model. add_block frees the parameters of each block, so building needs at most the
  // memory of one block.
  std::function<BlockList(const FamilyArgs& args)> make_blocks;
  // Returns the properties of the model. Empty = all are unknown.
  std::function<ModelInfo(const FamilyArgs& args)> info{};
  // Declares the family's own keys of the section [model].
  std::vector<OptionInfo> options{};
  // Opens the family's own data. Empty = the tokens in data.path.
  std::function<Samples(const FamilyArgs& args)> samples{};
};

}  // namespace yoke
