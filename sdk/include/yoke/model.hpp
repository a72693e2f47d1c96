// What an author of models needs: blocks of plain torch::nn code, how their parameters start, and
// the family under which a run file names them (sdk/examples/own_model). No parallelism anywhere:
// backends cut, gather and reduce what is described here.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "yoke/options.hpp"
#include "yoke/torch.hpp"

#define YOKE_WORKER_API __attribute__((visibility("default")))

namespace yoke {

// Initial value of a parameter, one element from its row-major index; the same bits in every
// layout. What a module's constructor wrote into its parameters is dropped.
struct ParamInit {
  enum Kind { kUniform, kConstant } kind = kUniform;
  double value = 0.02;  // kUniform: standard deviation; kConstant: the value
};

// What a block needs for one sequence, in bytes; -1 = not known.
struct BlockBytes {
  int64_t activation = -1;  // kept from its forward to its backward, without its input
  int64_t carry = -1;       // its output
};

// How tensor parallelism may hold a parameter; nothing said, no tensor parallelism.
struct TpHint {
  int32_t cut = 0;    // as YokeParameter.tp_cut
  int64_t parts = 0;  // as YokeParameter.tp_parts

  // Every rank keeps all of it, as of a norm.
  static TpHint whole() { return {YOKE_TP_WHOLE, 0}; }
  // Cut along dim, between any two of `parts` equal parts.
  static TpHint along(int32_t dim, int64_t parts) { return {dim + 1, parts}; }
};

// A model family's answer: the blocks in execution order, and how each parameter starts. A
// parameter that stands in two blocks (the same tensor) is tied and keeps its first name.
struct BlockList {
  std::vector<TorchBlock> blocks;
  std::vector<std::vector<std::pair<std::string, at::Tensor>>>
      params;                     // per block: full name, leaf
  std::vector<BlockBytes> bytes;  // per block; empty = not known. For estimates only
  std::function<ParamInit(const std::string& name)> init;
  // Instead of init, if set: dst[0, count) = elements [begin, begin + count) of a parameter, from
  // files.
  std::function<void(const std::string& name, int64_t begin, int64_t count, float* dst)> stored;
  std::function<TpHint(const std::string& name)> tp;  // empty = nothing said of any parameter
  // Set by a sequence model: every input is [B, seq_len, ...], and no block minds if dim 1 of all
  // of them is sliced and permuted together, as context parallelism does. 0 = no such model.
  int64_t seq_len = 0;
  std::function<double(const TorchInputs& inputs)> loss_weight;  // targets of a micro-batch
  // The last block without its loss: its carry [B, S, dim] to [B, S, vocab]. Empty = nothing to
  // sample.
  std::function<at::Tensor(const at::Tensor& carry)> logits;
};

// Appends a block and frees the memory of its parameters at once, so that a model may be larger
// than memory. The full name of a parameter is "<prefix>.<its name in the module>"; an empty prefix
// adds none. Throws Error(INVALID_ARGUMENT) for a block without module or forward, or with buffers.
YOKE_WORKER_API void add_block(BlockList& list, TorchBlock block, const std::string& prefix);

// A contiguous tensor of this shape whose storage has no memory yet; what parameters start as.
YOKE_WORKER_API at::Tensor unallocated(at::IntArrayRef shape,
                                       at::ScalarType dtype,
                                       at::Device device = at::kCPU);

struct ModelInfo {
  int64_t num_params = 0;  // tied parameters once; 0 = the host counts them
  int64_t vocab = 0;       // token ids are below it; 0 = the model takes no tokens
  // Forward + backward of one token, torchtitan's convention: 6 N + 12 L H Q T, where N leaves out
  // an input embedding that is only looked up, and T is the sequence length. 0 = not known.
  double flops_per_token = 0;
  std::string hf_config_json;  // config.json of the checkpoint, whose weights are fp32; "" = none
};

// What a run asks of a family.
struct FamilyArgs {
  Options options;                 // below [model]: every option of the family
  int32_t param_dtype = YOKE_F32;  // of parameters and activations
  int64_t seq_len = 0;             // data.seq_len
  std::string data_path;           // data.path, "" = not given
};

// Data of a family's own, in place of the tokens of data.path. The host decides which rank gets
// which sample when (data.order, data.holdout, seed), the same in every layout.
struct Samples {
  int64_t count = 0;    // data.holdout of them, at the end, are kept for evaluation
  int64_t targets = 1;  // in every sample; the loss is the sum over all targets by their number
  // Sample `index` in [0, count): its inputs by role, without the dimension of the batch, which the
  // host adds in front. The same at every call and on every rank, with the same roles, shapes and
  // dtypes for every index. Any thread.
  std::function<TorchInputs(int64_t index)> read;
};

// A kind of model, by the name that `[model] family` gives it. The functions throw
// Error(INVALID_ARGUMENT) naming every fault of the configuration; any thread.
struct Family {
  // Blocks whose parameters have no memory: building needs none, or one block's.
  std::function<BlockList(const FamilyArgs& args)> make_blocks;
  std::function<ModelInfo(const FamilyArgs& args)> info{};   // empty = nothing to tell
  std::vector<OptionInfo> options{};                         // its own keys below [model]
  std::function<Samples(const FamilyArgs& args)> samples{};  // empty = tokens of data.path
};

}  // namespace yoke
