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

#include "core/model/init.hpp"
#include "core/model/param_table.hpp"
#include "yoke/backend.hpp"

namespace yoke {

at::Tensor unallocated(at::IntArrayRef shape, at::ScalarType dtype, at::Device device) {
  at::Tensor t = at::empty({0}, at::TensorOptions().dtype(dtype).device(device));
  t.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return t;
}

void add_block(BlockList& list, TorchBlock block, const std::string& prefix) {
  if (!block.module || !block.forward) {
    throw Error(YOKE_INVALID_ARGUMENT, "block '" + block.name + "' has no module or no forward");
  }
  for (const auto& buffer : block.module->named_buffers()) {
    throw Error(YOKE_INVALID_ARGUMENT,
                "block '" + block.name + "' has the buffer '" + buffer.key() +
                    "', and buffers are neither saved nor shared between ranks; allowed: "
                    "parameters alone");
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

// What one block_forward keeps for its block_backward.
struct Saved {
  uint64_t block;
  at::Tensor carry;   // leaf; undefined for the first block
  at::Tensor output;  // end of the graph
};

// Where gradients of the block_backward in progress go.
struct Backward {
  const YokeBackwardArgs& args;
  std::set<int64_t> reported;
  std::unique_ptr<Error> failure;  // of on_grad_ready
};

template <class T>
const T& checked(const T* p, uint32_t id, const char* what) {
  detail::require(p, id, what);
  return *p;
}

}  // namespace

struct TorchModelHost::Impl {
  Impl(BlockList list, int32_t dtype, uint64_t init_seed, bool decay_matrices, at::Device device)
      : blocks(std::move(list.blocks)),
        init(std::move(list.init)),
        stored(std::move(list.stored)),
        loss_weight(std::move(list.loss_weight)),
        seed(init_seed),
        table(list.params, dtype, decay_matrices, device) {
    if (blocks.empty() || blocks.size() != list.params.size() || !init || !loss_weight) {
      throw Error(YOKE_INVALID_ARGUMENT,
                  "a model needs blocks, their parameters, init and loss_weight; this one has " +
                      std::to_string(blocks.size()) + " blocks and " +
                      std::to_string(list.params.size()) + " lists of parameters");
    }
    table.describe_blocks(blocks, list.bytes);
    table.describe_cuts(list.tp, list.seq_len);
    torch_model.header = YOKE_HEADER(TorchModel, YOKE_ID_TORCH_MODEL);
    torch_model.blocks = &blocks;
    torch_model.params = &table.leaves();
    torch_model.loss_weight = loss_weight;
    fill_model();
  }
  ~Impl() { table.remove_grad_hooks(); }

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
                  "init_param: elements [" + std::to_string(begin) + ", " + std::to_string(begin) +
                      " + " + std::to_string(count) + ") of parameter '" + table.name(param) +
                      "', which has " + std::to_string(total) + ", or dst is NULL");
    }
    if (stored) return stored(table.name(param), begin, count, dst);
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
                  "block_forward: carry_in of block '" + blocks[args.block].name + "' is " +
                      (args.block == 0 ? "given, but the first block has none"
                                       : "NULL, but it is the output of the block before"));
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
      // Counting on a device would wait for it once more.
      const bool here = inputs.empty() || inputs.front().second.is_cpu();
      result.loss_weight = here ? loss_weight(inputs) : args.micro->token_weight;
    } else {
      at::Tensor out = output.detach();
      // A block that passes its input on would hand out memory that it does not own.
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
      throw Error(
          YOKE_INVALID_ARGUMENT,
          "block_backward: saved is not of a block_forward with save = 1 of block '" + name + "'");
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

  at::Tensor grad_of_output(const YokeBackwardArgs& args, const at::Tensor& output) const {
    if (args.block + 1 == blocks.size()) {
      return at::full(output.sizes(), args.loss_grad, output.options());
    }
    if (args.grad_out == nullptr) {
      throw Error(YOKE_INVALID_ARGUMENT,
                  "block_backward: grad_out of block '" + blocks[args.block].name +
                      "' is NULL; only the last block has none");
    }
    at::Tensor grad = borrow(*args.grad_out);
    if (grad.sizes() != output.sizes() || grad.scalar_type() != output.scalar_type()) {
      throw Error(YOKE_INVALID_ARGUMENT,
                  "block_backward: grad_out of block '" + blocks[args.block].name + "' is " +
                      shape_text(grad) + ", its carry_out was " + shape_text(output));
    }
    return grad;
  }

  // Runs the graph on this thread, also on a device: callbacks belong to the thread inside the
  // call.
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
      if (now.failure) throw *now.failure;
      throw;
    }
    restore();
  }

  // A leaf of a block has its gradient; runs inside the backward that made it.
  void on_grad(int64_t param, const at::Tensor& leaf) {
    if (active == nullptr) return;  // a backward of somebody else, through the LibTorch extension
    at::Tensor grad = std::exchange(leaf.mutable_grad(), at::Tensor());
    report(*active, param, grad.contiguous());
  }

  void report(Backward& now, int64_t param, const at::Tensor& grad) const {
    const TensorView view(grad);
    YokeError err = make_error();
    const int32_t code = now.args.on_grad_ready(now.args.on_grad_ctx, param, view.get(), &err);
    now.reported.insert(param);
    if (code == YOKE_OK) return;
    now.failure = std::make_unique<Error>(code, err.text, err.rank, err.step);
    throw *now.failure;
  }

  // Parameters that the loss does not depend on have a gradient too: zero.
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
                std::string(who) + ": block " + std::to_string(block) + "; allowed: 0 to " +
                    std::to_string(blocks.size() - 1));
  }

  std::vector<TorchBlock> blocks;
  std::function<ParamInit(const std::string&)> init;
  std::function<void(const std::string&, int64_t, int64_t, float*)> stored;
  std::function<double(const TorchInputs&)> loss_weight;
  uint64_t seed;
  ParamTable table;
  TorchModel torch_model{};
  YokeModel model{};
  Backward* active = nullptr;
};

TorchModelHost::TorchModelHost(
    BlockList blocks, int32_t param_dtype, uint64_t seed, bool decay_matrices, at::Device device)
    : impl_(std::make_unique<Impl>(std::move(blocks), param_dtype, seed, decay_matrices, device)) {}
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
