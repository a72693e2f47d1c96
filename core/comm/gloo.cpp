#include "core/comm/gloo.hpp"

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include "core/comm/local_reduce.hpp"
#include "yoke/error.hpp"

namespace yoke {

struct GlooDevice {
  std::shared_ptr<gloo::transport::Device> device;
};

namespace {

using c10d::ProcessGroupGloo;

// One worker: the operations of a group run in order. A second one makes them compete for the
// cores.
constexpr int kThreads = 1;

// A reduce_scatter on its way: the parts of all ranks for this one arrive side by side in `parts`.
class ReduceScatterWork final : public c10d::Work {
 public:
  ReduceScatterWork(int rank,
                    c10::intrusive_ptr<c10d::Work> exchange,
                    at::Tensor parts,
                    at::Tensor output,
                    c10d::ReduceOp::RedOpType op)
      : Work(rank, c10d::OpType::_REDUCE_SCATTER_BASE),
        exchange_(std::move(exchange)),
        parts_(std::move(parts)),
        output_(std::move(output)),
        op_kind_(op) {}

  bool isCompleted() override { return exchange_->isCompleted(); }
  bool isSuccess() const override { return exchange_->isSuccess(); }
  std::exception_ptr exception() const override { return exchange_->exception(); }
  bool wait(std::chrono::milliseconds timeout) override {
    exchange_->wait(timeout);
    add_up();
    return true;
  }
  std::vector<at::Tensor> result() override { return {output_}; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto self = c10::intrusive_ptr<ReduceScatterWork>::reclaim_copy(this);
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
      const int64_t count = output_.numel();
      const int64_t bytes = static_cast<int64_t>(output_.nbytes());
      ReduceBuffers buffers{{}, {output_.data_ptr()}, output_.scalar_type(), op_kind_};
      const char* first = static_cast<const char*>(parts_.data_ptr());
      for (int64_t at = 0; at < static_cast<int64_t>(parts_.nbytes()); at += bytes) {
        buffers.sources.push_back(first + at);
      }
      reduce(buffers, 0, count);
      parts_.reset();
    });
  }

  c10::intrusive_ptr<c10d::Work> exchange_;
  at::Tensor parts_, output_;
  c10d::ReduceOp::RedOpType op_kind_;
  std::once_flag added_;
};

class Gloo final : public ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override {
    const c10d::ReduceOp::RedOpType op = opts.reduceOp;
    check_reducible(input.scalar_type(), op);
    if (!input.is_cpu() || !output.is_cpu() || !input.is_contiguous() || !output.is_contiguous() ||
        input.scalar_type() != output.scalar_type() || input.numel() != output.numel() * size_) {
      throw Error(YOKE_INVALID_ARGUMENT,
                  "reduce_scatter: in has " + std::to_string(input.numel()) + " x " +
                      c10::toString(input.scalar_type()) + ", out has " +
                      std::to_string(output.numel()) + " x " + c10::toString(output.scalar_type()) +
                      "; in has size() times the elements of out, both contiguous on the CPU");
    }
    at::Tensor bytes = input.view(-1).view(at::kByte);
    at::Tensor parts = at::empty_like(bytes);
    std::vector<int64_t> equal;
    c10d::AllToAllOptions exchange_opts;
    exchange_opts.timeout = opts.timeout;
    auto exchange = alltoall_base(parts, bytes, equal, equal, exchange_opts);
    return c10::make_intrusive<ReduceScatterWork>(
        rank_, std::move(exchange), std::move(parts), output, op);
  }

  // Resets the connections: peers fail at once, and nothing is written into tensors of this rank
  // any more. Nothing can wake an operation of this rank that is under way, so the destructor would
  // wait for it until the timeout; an aborted group therefore stays until the process ends.
  void abort() override {
    if (std::exchange(aborted_, true)) return;
    c10::intrusive_ptr<Gloo>::reclaim_copy(this).release();
    for (auto& context : contexts_) context->closeConnections();
  }

 private:
  bool aborted_ = false;
};

// LibTorch's exceptions carry a backtrace; what failed is in the first lines.
template <class F>
auto during(const std::string& what, F&& f) {
  try {
    return f();
  } catch (const std::exception& e) {
    throw Error(YOKE_UNAVAILABLE, what + ": " + first_part(e.what()));
  }
}

}  // namespace

std::shared_ptr<GlooDevice> loopback_gloo_device() {
  return during("opening the loopback address 127.0.0.1 for Gloo", [] {
    return std::make_shared<GlooDevice>(ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  });
}

std::shared_ptr<GlooDevice> network_gloo_device(const std::string& interface) {
  if (interface.empty()) {
    return during("opening this machine's address for Gloo", [] {
      return std::make_shared<GlooDevice>(ProcessGroupGloo::createDefaultDevice());
    });
  }
  return during("opening the network interface '" + interface + "' for Gloo", [&] {
    return std::make_shared<GlooDevice>(ProcessGroupGloo::createDeviceForInterface(interface));
  });
}

c10::intrusive_ptr<c10d::Backend> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                               const std::shared_ptr<GlooDevice>& device,
                                               const GlooGroup& group) {
  auto options = ProcessGroupGloo::Options::create(group.timeout);
  options->devices = {device->device};
  options->threads = kThreads;
  return during(
      "connecting " + std::to_string(group.size) + " ranks of " + group.name + " over Gloo",
      [&]() -> c10::intrusive_ptr<c10d::Backend> {
        return c10::make_intrusive<Gloo>(store, group.rank, group.size, options);
      });
}

}  // namespace yoke
