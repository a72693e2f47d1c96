// Gloo's algorithms are rings, built for large tensors: an operation takes as many rounds as there
// are ranks. Much of the traffic of a training step is small (scalars, norms, short shards), and
// there the latency of a round is all that counts. Up to kOneRoundBytes each rank therefore sends
// its contribution to every other rank at once, as an alltoall, and adds up what it has received.
//
// Adding up locally, in rank order, also gives every rank the same bits and gives reduce_scatter a
// Work that can be waited for repeatedly. Large all_reduces stay with Gloo's ring: above the limit
// the extra copies cost more than the rounds.
#include "core/comm/gloo.hpp"

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include "core/comm/local_reduce.hpp"
#include "core/comm/signature.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {

struct GlooDevice {
  std::shared_ptr<gloo::transport::Device> device;
};

namespace {

using c10d::ProcessGroupGloo;

// Worker threads per group. With one thread, small operations took ten times longer on a busy
// machine.
constexpr int kThreads = 2;

// Largest output, in bytes, for which every rank sends to every other. Measured at 2 and 4 ranks.
constexpr int64_t kOneRoundBytes = 256 * 1024;

// A reduction in flight. The contributions of all ranks arrive side by side in `parts`; the first
// thread that finds the exchange complete adds them up into `output`.
class ReduceWork final : public c10d::Work {
 public:
  ReduceWork(c10::intrusive_ptr<c10d::Work> exchange,
             at::Tensor parts,
             at::Tensor output,
             c10d::ReduceOp::RedOpType op)
      : Work(-1, c10d::OpType::UNKNOWN),
        exchange_(std::move(exchange)),
        parts_(std::move(parts)),
        output_(std::move(output)),
        op_kind_(op) {}

  bool isCompleted() override {
    if (!exchange_->isCompleted()) return false;
    if (exchange_->isSuccess()) add_up();
    return true;
  }
  bool isSuccess() const override { return exchange_->isSuccess(); }
  std::exception_ptr exception() const override { return exchange_->exception(); }
  bool wait(std::chrono::milliseconds timeout) override {
    exchange_->wait(timeout);
    add_up();
    return true;
  }
  std::vector<at::Tensor> result() override { return {output_}; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto self = c10::intrusive_ptr<ReduceWork>::reclaim_copy(this);
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    exchange_->getFuture()->addCallback([self, future](c10::ivalue::Future& exchanged) {
      if (exchanged.hasError()) return future->setError(exchanged.exception_ptr());
      self->add_up();
      future->markCompleted(c10::IValue(std::vector<at::Tensor>{self->output_}));
    });
    return future;
  }

 private:
  void add_up() {
    std::call_once(added_, [this] {
      const at::NoGradGuard no_grad;
      at::Tensor target =
          output_.is_contiguous() ? output_ : at::empty_like(output_, at::MemoryFormat::Contiguous);
      const auto bytes = static_cast<int64_t>(output_.nbytes());
      ReduceBuffers buffers{{}, {target.data_ptr()}, output_.scalar_type(), op_kind_};
      const char* first = static_cast<const char*>(parts_.data_ptr());
      for (int64_t at = 0; at < static_cast<int64_t>(parts_.nbytes()); at += bytes) {
        buffers.sources.push_back(first + at);
      }
      reduce(buffers, 0, output_.numel());
      if (!target.is_same(output_)) output_.copy_(target);
      parts_.reset();
    });
  }

  c10::intrusive_ptr<c10d::Work> exchange_;
  at::Tensor parts_, output_;
  c10d::ReduceOp::RedOpType op_kind_;
  std::once_flag added_;
};

bool is_reducible(at::ScalarType dtype, c10d::ReduceOp::RedOpType op) {
  try {
    check_reducible(dtype, op);
    return true;
  } catch (const Error&) {
    return false;
  }
}

at::Tensor as_bytes(const at::Tensor& t) {
  return t.contiguous().view(-1).view(at::kByte);
}

// c10d's Gloo backend with our algorithms for small operations and reduce_scatter. All ranks must
// choose the same algorithm, so the choice depends only on values that are equal on all of them:
// sizes, dtype and operation.
class Gloo final : public ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& opts) override {
    if (tensors.size() != 1 || !tensors[0].is_cpu() || !one_round(tensors[0].nbytes() * size_) ||
        !is_reducible(tensors[0].scalar_type(), opts.reduceOp.op_)) {
      return ProcessGroupGloo::allreduce(tensors, opts);
    }
    const at::NoGradGuard no_grad;
    return exchange_and_reduce(
        as_bytes(tensors[0]).repeat({size_}), tensors[0], opts.reduceOp.op_, opts.timeout);
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output,
                                                 at::Tensor& input,
                                                 const c10d::AllgatherOptions& opts) override {
    if (!output.is_cpu() || !output.is_contiguous() || output.nbytes() == 0 ||
        input.nbytes() * size_ != output.nbytes()) {
      return ProcessGroupGloo::_allgather_base(output, input, opts);
    }
    const at::NoGradGuard no_grad;
    if (!one_round(output.nbytes())) {
      // c10d rejects shapes that differ; only the number of elements matters here.
      at::Tensor flat = output.view(-1), part = input.contiguous().view(-1);
      return ProcessGroupGloo::_allgather_base(flat, part, opts);
    }
    at::Tensor whole = as_bytes(output);
    return exchange(whole, as_bytes(input).repeat({size_}), opts.timeout);
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override {
    const c10d::ReduceOp::RedOpType op = opts.reduceOp;
    check_reducible(input.scalar_type(), op);
    if (!input.is_cpu() || !output.is_cpu() || input.scalar_type() != output.scalar_type() ||
        input.numel() != output.numel() * size_) {
      throw Error(YOKE_INVALID_ARGUMENT,
                  concat("reduce_scatter: in has ",
                         input.numel(),
                         " x ",
                         dtype_text(static_cast<int32_t>(input.scalar_type())),
                         ", out has ",
                         output.numel(),
                         " x ",
                         dtype_text(static_cast<int32_t>(output.scalar_type())),
                         "; allowed: in has size() times the elements of out, in the same dtype, "
                         "both on the CPU"));
    }
    const at::NoGradGuard no_grad;
    return exchange_and_reduce(as_bytes(input), output, op, opts.timeout);
  }

  // Resets the connections: peers fail at once, and nothing is written into tensors of this rank
  // any more. An operation in flight on this rank cannot be interrupted, and the destructor would
  // wait for it until the timeout. An aborted group is therefore leaked on purpose.
  void abort() override {
    if (std::exchange(aborted_, true)) return;
    c10::intrusive_ptr<Gloo>::reclaim_copy(this).release();
    for (auto& context : contexts_) context->closeConnections();
  }

 private:
  // Returns false for empty tensors, so that they reach c10d, which rejects them.
  static bool one_round(size_t bytes) {
    return bytes > 0 && static_cast<int64_t>(bytes) <= kOneRoundBytes;
  }

  c10::intrusive_ptr<c10d::Work> exchange(at::Tensor& into,
                                          at::Tensor from,
                                          std::chrono::milliseconds timeout) {
    std::vector<int64_t> equal;
    c10d::AllToAllOptions opts;
    opts.timeout = timeout;
    return alltoall_base(into, from, equal, equal, opts);
  }

  c10::intrusive_ptr<c10d::Work> exchange_and_reduce(at::Tensor from,
                                                     const at::Tensor& output,
                                                     c10d::ReduceOp::RedOpType op,
                                                     std::chrono::milliseconds timeout) {
    at::Tensor parts = at::empty_like(from);
    auto exchanged = exchange(parts, std::move(from), timeout);
    return c10::make_intrusive<ReduceWork>(std::move(exchanged), std::move(parts), output, op);
  }

  bool aborted_ = false;
};

// Runs f and turns its failure into an Error that begins with `what`. LibTorch's exceptions carry a
// backtrace; only their first lines name the failure.
template <class F>
auto during(const std::string& what, F&& f) {
  try {
    return f();
  } catch (const std::exception& e) {
    throw Error(YOKE_UNAVAILABLE, concat(what, ": ", first_part(e.what())));
  }
}

}  // namespace

std::shared_ptr<GlooDevice> address_gloo_device(const std::string& address) {
  return during(concat("opening the address ", address, " for Gloo"), [&] {
    return std::make_shared<GlooDevice>(ProcessGroupGloo::createDeviceForHostname(address));
  });
}

std::shared_ptr<GlooDevice> interface_gloo_device(const std::string& interface) {
  return during(concat("opening the network interface '", interface, "' for Gloo"), [&] {
    return std::make_shared<GlooDevice>(ProcessGroupGloo::createDeviceForInterface(interface));
  });
}

c10::intrusive_ptr<c10d::Backend> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                               const std::shared_ptr<GlooDevice>& device,
                                               const GlooGroup& group) {
  auto options = ProcessGroupGloo::Options::create(group.timeout);
  options->devices = {device->device};
  options->threads = kThreads;
  return during(concat("connecting ", group.size, " ranks of ", group.name, " over Gloo"),
                [&]() -> c10::intrusive_ptr<c10d::Backend> {
                  return c10::make_intrusive<Gloo>(store, group.rank, group.size, options);
                });
}

}  // namespace yoke
