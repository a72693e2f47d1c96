// block_forward() makes the carry, the tensor that blocks pass to each other, a leaf, runs the
// block under autograd and keeps both ends of its graph in a Saved. block_backward() runs autograd
// from the output of the block to that leaf. So every block has its own graph, and backends may
// recompute, reorder and interleave blocks. Parameters are leaves of all graphs; a hook takes each
// gradient from its leaf as soon as it is complete and passes it to on_grad_ready, so that the
// backend can reduce it while autograd continues.
//
// Autograd runs on the calling thread. Autograd's own threads would run the backend's callbacks on
// threads unknown to the backend, but the contract promises them within the call.
#include "core/model/torch_model.hpp"

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/kernels/cpu_products.hpp"
#include "core/kernels/ops.hpp"
#include "core/model/init.hpp"
#include "core/model/param_table.hpp"
#include "yoke/backend.hpp"
#include "yoke/text.hpp"

namespace yoke {

at::Tensor unallocated(at::IntArrayRef shape, at::ScalarType dtype, at::Device device) {
  at::Tensor t = at::empty({0}, at::TensorOptions().dtype(dtype).device(device));
  t.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return t;
}

void add_block(BlockList& list, TorchBlock block, const std::string& prefix) {
  if (!block.module || !block.forward) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("block '", block.name, "' has no module or no forward"));
  }
  for (const auto& buffer : block.module->named_buffers()) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("block '",
                       block.name,
                       "' has the buffer '",
                       buffer.key(),
                       "', and buffers are neither saved nor shared between ranks; allowed: only "
                       "parameters"));
  }
  std::vector<std::pair<std::string, at::Tensor>> params;
  for (const auto& item : block.module->named_parameters()) {
    params.emplace_back(prefix.empty() ? item.key() : prefix + "." + item.key(), item.value());
    ParamTable::make_unallocated(item.value(), item.value().scalar_type(), item.value().device());
  }
  list.params.push_back(std::move(params));
  list.blocks.push_back(std::move(block));
}

namespace {

// The graph that a block_forward keeps for its block_backward.
struct Saved {
  uint64_t block;
  at::Tensor carry;   // input, a leaf; undefined for the first block
  at::Tensor output;  // end of the graph
};

// The block_backward in progress.
struct Backward {
  const YokeBackwardArgs& args;
  std::set<int64_t> reported;      // parameters whose gradient has been passed on
  std::unique_ptr<Error> failure;  // error of on_grad_ready
};

// Returns *p. Throws unless it is a struct with this id.
template <class T>
const T& checked(const T* p, uint32_t id, const char* what) {
  detail::require(p, id, what);
  return *p;
}

}  // namespace

struct TorchModelHost::Impl {
  Impl(BlockList list, int32_t dtype, uint64_t init_seed, bool decay_matrices, at::Device device)
      : blocks(std::move(list.blocks)),
        more_blocks(std::move(list.more_blocks)),
        init(std::move(list.init)),
        stored(std::move(list.stored)),
        not_stored(std::move(list.not_stored)),
        loss_weight(std::move(list.loss_weight)),
        seed(init_seed),
        table(list.params, dtype, decay_matrices, device, list.stored_shapes) {
    if (blocks.empty() || blocks.size() != list.params.size() || !init || !loss_weight) {
      throw Error(
          YOKE_INVALID_ARGUMENT,
          concat("a model needs blocks, their parameters, init and loss_weight; this one has ",
                 blocks.size(),
                 " blocks, ",
                 list.params.size(),
                 " lists of parameters, ",
                 init ? "an init" : "no init",
                 loss_weight ? " and a loss_weight" : " and no loss_weight"));
    }
    table.describe_blocks(blocks, list.costs, more_blocks);
    table.describe_cuts(list.tp, list.seq_len);
    table.describe_distributed(list.costs);
    table.describe_fp8(list.fp8_uses);
    torch_model.header = YOKE_HEADER(TorchModel, YOKE_ID_TORCH_MODEL);
    torch_model.blocks = &blocks;
    torch_model.params = &table.leaves();
    torch_model.loss_weight = loss_weight;
    torch_model.defer_weights = ops::defer_weights;
    torch_model.add_gradients_to = ops::add_gradients_to;
    fill_model();
  }
  ~Impl() { table.remove_grad_hooks(); }

  // Fills the contract's table of functions. Each function translates exceptions into codes.
  void fill_model() {
    model.header = YOKE_HEADER(YokeModel, YOKE_ID_MODEL);
    model.header.next = &torch_model.header;
    model.summary = &table.summary();
    model.ctx = this;
    model.init_param =
        [](void* ctx, int64_t param, int64_t begin, int64_t count, float* dst, YokeError* err) {
          return guard(err, [&] { self(ctx).init_param(param, begin, count, dst); });
        };
    model.bind_param = [](void* ctx, int64_t param, const YokeTensor* view, YokeError* err) {
      return guard(err, [&] { self(ctx).table.bind(param, view); });
    };
    model.block_forward =
        [](void* ctx, const YokeForwardArgs* args, YokeForwardResult* out, YokeError* err) {
          return guard(err, [&] {
            detail::require(out, YOKE_ID_FORWARD_RESULT, "block_forward: out");
            write_result(out, YokeForwardResult{});
            write_result(
                out, self(ctx).forward(checked(args, YOKE_ID_FORWARD_ARGS, "block_forward: args")));
          });
        };
    model.block_backward =
        [](void* ctx, const YokeBackwardArgs* args, YokeManagedTensor** grad_in, YokeError* err) {
          return guard(err, [&] {
            if (grad_in != nullptr) *grad_in = nullptr;
            const YokeBackwardArgs& a =
                checked(args, YOKE_ID_BACKWARD_ARGS, "block_backward: args");
            // The call consumes `saved` even if it fails.
            std::unique_ptr<Saved> saved(static_cast<Saved*>(a.saved));
            if (grad_in == nullptr)
              throw Error(YOKE_INVALID_ARGUMENT, "block_backward: grad_in is NULL");
            *grad_in = self(ctx).backward(a, saved.get());
          });
        };
    model.drop_saved = [](void*, void* saved) { delete static_cast<Saved*>(saved); };
  }

  static Impl& self(void* ctx) { return *static_cast<Impl*>(ctx); }

  void init_param(int64_t param, int64_t begin, int64_t count, float* dst) const {
    const int64_t total = table.leaf(param).numel();
    if (begin < 0 || count < 0 || begin > total - count || (dst == nullptr && count > 0)) {
      throw Error(YOKE_INVALID_ARGUMENT,
                  concat("init_param: elements [",
                         begin,
                         ", ",
                         begin,
                         " + ",
                         count,
                         ") of parameter '",
                         table.name(param),
                         "'; allowed: a range of its ",
                         total,
                         " elements, and a dst that is not NULL"));
    }
    if (stored && !not_stored.contains(table.name(param)))
      return stored(table.name(param), begin, count, dst);
    const ParamInit start = init(table.name(param));
    if (start.kind == ParamInit::kConstant) {
      std::fill(dst, dst + count, static_cast<float>(start.value));
    } else {
      init_uniform(table.name(param), seed, start.value, begin, count, dst);
    }
  }

  YokeForwardResult forward(const YokeForwardArgs& args) {
    check_block(args.block, "block_forward");
    if (args.micro == nullptr) throw Error(YOKE_INVALID_ARGUMENT, "block_forward: micro is NULL");
    if ((args.carry_in == nullptr) != (args.block == 0)) {
      throw Error(YOKE_INVALID_ARGUMENT,
                  concat("block_forward: carry_in of block '",
                         blocks[args.block].name,
                         args.block == 0 ? "' is given, but the first block takes none"
                                         : "' is NULL; pass the output of the block before"));
    }
    table.require_bound(args.block, "block_forward");
    at::AutoGradMode grad_mode(args.save != 0);
    at::Tensor carry;
    if (args.carry_in != nullptr) carry = borrow(*args.carry_in).set_requires_grad(args.save != 0);
    const TorchInputs inputs = borrow(*args.micro);
    at::Tensor output = blocks[args.block].forward(carry, inputs);

    YokeForwardResult result{};
    if (args.block + 1 == blocks.size()) {
      result.loss_sum = output.item<double>();
      // The target count of the loss. Counting targets on a device would wait for it once more, so
      // there the count of the micro-batch is used, which the data loader has computed.
      const bool here = inputs.empty() || inputs.front().second.is_cpu();
      result.loss_weight = here ? loss_weight(inputs) : args.micro->token_weight;
    } else {
      at::Tensor out = output.detach();
      // A block may return its input. The carry must not be the caller's own memory.
      if (carry.defined() && out.is_alias_of(carry)) out = out.clone();
      result.carry_out = to_managed(out.contiguous());
    }
    if (args.save != 0) result.saved = new Saved{args.block, std::move(carry), std::move(output)};
    return result;
  }

  YokeManagedTensor* backward(const YokeBackwardArgs& args, Saved* saved) {
    check_block(args.block, "block_backward");
    const std::string& name = blocks[args.block].name;
    if (saved == nullptr || saved->block != args.block) {
      throw Error(YOKE_INVALID_ARGUMENT,
                  concat("block_backward: saved does not come from a block_forward of block '",
                         name,
                         "' with save = 1"));
    }
    if (args.on_grad_ready == nullptr)
      throw Error(YOKE_INVALID_ARGUMENT, "block_backward: on_grad_ready is NULL");
    const at::Tensor grad_out = grad_of_output(args, saved->output);
    table.require_bound(args.block, "block_backward");
    Backward now{args, {}, nullptr};
    if (saved->output.requires_grad()) run_graph(now, *saved, grad_out);
    report_missing(now);
    if (!saved->carry.defined()) return nullptr;
    at::Tensor grad_in = saved->carry.grad();
    if (!grad_in.defined()) grad_in = at::zeros_like(saved->carry);
    return to_managed(grad_in.detach().contiguous());
  }

  // Returns the gradient with which autograd starts. The output of the last block is the loss.
  at::Tensor grad_of_output(const YokeBackwardArgs& args, const at::Tensor& output) const {
    if (args.block + 1 == blocks.size()) {
      return at::full(output.sizes(), args.loss_grad, output.options());
    }
    if (args.grad_out == nullptr) {
      throw Error(YOKE_INVALID_ARGUMENT,
                  concat("block_backward: grad_out of block '",
                         blocks[args.block].name,
                         "' is NULL; only the last block takes none"));
    }
    at::Tensor grad = borrow(*args.grad_out);
    if (grad.sizes() != output.sizes() || grad.scalar_type() != output.scalar_type()) {
      throw Error(YOKE_INVALID_ARGUMENT,
                  concat("block_backward: grad_out of block '",
                         blocks[args.block].name,
                         "' is ",
                         shape_text(grad),
                         ", its carry_out was ",
                         shape_text(output)));
    }
    return grad;
  }

  // Runs the graph on this thread, even for a device, because the backend expects its callbacks on
  // the thread that called it.
  void run_graph(Backward& now, const Saved& saved, const at::Tensor& grad_out) {
    table.install_grad_hooks(
        [this](int64_t param, const at::Tensor& leaf) { on_grad(param, leaf); });
    Backward* const outer = std::exchange(active, &now);
    const bool threads = c10::AutogradState::get_tls_state().get_multithreading_enabled();
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    const auto restore = [&] {
      c10::AutogradState::get_tls_state().set_multithreading_enabled(threads);
      active = outer;
    };
    try {
      at::AutoGradMode grad_mode(true);
      torch::autograd::backward({saved.output}, {grad_out});
    } catch (...) {
      restore();
      // Autograd wraps the exception of a hook, so throw the backend's own error instead.
      if (now.failure) throw *now.failure;
      throw;
    }
    restore();
  }

  // The hook of a leaf, called inside the backward that has just completed its gradient.
  void on_grad(int64_t param, const at::Tensor& leaf) {
    // Outside of block_backward, the backend runs autograd itself, through the LibTorch extension.
    if (active == nullptr) return;
    at::Tensor grad = std::exchange(leaf.mutable_grad(), at::Tensor());
    report(*active, param, grad.contiguous());
  }

  // Passes one gradient to the backend.
  void report(Backward& now, int64_t param, const at::Tensor& grad) const {
    const TensorView view(grad);
    YokeError err = make_error();
    const int32_t code = now.args.on_grad_ready(now.args.on_grad_ctx, param, view.get(), &err);
    now.reported.insert(param);
    if (code == YOKE_OK) return;
    now.failure = std::make_unique<Error>(code, err.text, err.rank, err.step);
    throw *now.failure;
  }

  // Reports zeros for parameters on which the loss does not depend, so that every trainable
  // parameter of a block is reported once in each backward.
  void report_missing(Backward& now) const {
    for (const int64_t param : table.of_block(now.args.block)) {
      const at::Tensor& leaf = table.leaf(param);
      if (leaf.requires_grad() && now.reported.count(param) == 0)
        report(now, param, at::zeros(leaf.sizes(), leaf.options()));
    }
  }

  void check_block(uint64_t block, const char* who) const {
    if (block < blocks.size()) return;
    throw Error(YOKE_INVALID_ARGUMENT,
                concat(who, ": block ", block, "; allowed: 0 to ", blocks.size() - 1));
  }

  std::vector<TorchBlock> blocks;
  std::string more_blocks;
  std::function<ParamInit(const std::string&)> init;
  std::function<void(const std::string&, int64_t, int64_t, float*)> stored;
  std::set<std::string> not_stored;
  std::function<double(const TorchInputs&)> loss_weight;
  uint64_t seed;
  ParamTable table;
  TorchModel torch_model{};
  YokeModel model{};
  Backward* active = nullptr;  // null outside of block_backward
};

TorchModelHost::TorchModelHost(
    BlockList blocks, int32_t param_dtype, uint64_t seed, bool decay_matrices, at::Device device)
    : impl_(std::make_unique<Impl>(std::move(blocks), param_dtype, seed, decay_matrices, device)) {
  ops::use_fast_cpu_products();
}
TorchModelHost::~TorchModelHost() = default;
const YokeModel& TorchModelHost::model() const {
  return impl_->model;
}
const YokeModelSummary& TorchModelHost::summary() const {
  return impl_->table.summary();
}
void TorchModelHost::neutral_only() {
  impl_->model.header.next = nullptr;
}

}  // namespace yoke
