// The host's collectives ("yoke.collectives/1") over flat memory of its device. No LibTorch.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "yoke/error.hpp"
#include "yoke/tensor.hpp"

namespace yoke {

// A collective operation in flight. Its memory must stay alive and untouched until wait() returns
// or the Work is destroyed.
//
// The destructor waits too, and ignores an error: a Work that goes out of scope, for example while
// an exception unwinds the stack, never leaves an operation behind that still writes into freed
// memory. Call wait() wherever the result matters. On a CUDA device both return at once, and
// YokeHost.stream waits for the operation.
class Work {
 public:
  Work() = default;
  Work(const YokeCollectives* service, YokeWork* work) : service_(service), work_(work) {}
  Work(Work&& other) noexcept
      : service_(other.service_), work_(std::exchange(other.work_, nullptr)) {}
  Work& operator=(Work&& other) noexcept {
    std::swap(service_, other.service_);
    std::swap(work_, other.work_);
    return *this;
  }
  ~Work() {
    if (work_ != nullptr) service_->wait(work_, nullptr);
  }
  // Throws Error: UNAVAILABLE, DEADLINE_EXCEEDED, CANCELLED.
  void wait() {
    YokeWork* const work = std::exchange(work_, nullptr);
    if (work != nullptr) call([&](YokeError* err) { return service_->wait(work, err); });
  }

 private:
  const YokeCollectives* service_ = nullptr;
  YokeWork* work_ = nullptr;
};

// The ranks along some axes, for one stream of operations. A default one, and one of a world of
// one, is this rank alone: its operations are copies, or nothing. Copies on the CPU, that is: on
// another device an all_gather or reduce_scatter of one rank is for the caller.
class Comm {
 public:
  Comm() = default;
  // axes: bits. Collective over the world. Throws Error(FAILED_PRECONDITION) if the host has no
  // collectives.
  Comm(const YokeHost& host, uint32_t axes, const char* purpose) : device_(host.device) {
    if (host.world_size == 1) return;
    service_ = reinterpret_cast<const YokeCollectives*>(
        host.get_service(host.ctx, "yoke.collectives/1", sizeof(YokeCollectives)));
    if (service_ == nullptr) {
      throw Error(YOKE_FAILED_PRECONDITION,
                  "more than one rank needs the host's service yoke.collectives/1; this host has "
                  "none");
    }
    call([&](YokeError* err) { return service_->comm(service_->ctx, axes, purpose, &comm_, err); });
    size_ = service_->size(comm_);
    rank_ = service_->rank(comm_);
  }

  int size() const { return size_; }
  int rank() const { return rank_; }

  [[nodiscard]] Work all_reduce(const Span& inout, int32_t op = YOKE_SUM) const {
    if (size_ == 1 || inout.count == 0) return {};
    const FlatView view = on_device(inout);
    return issue([&](YokeWork** work, YokeError* err) {
      return service_->all_reduce(comm_, view.get(), op, work, err);
    });
  }
  // Waits. On the CPU only.
  template <size_t N>
  std::array<double, N> sum(std::array<double, N> values) const {
    require_cpu("Comm::sum");
    all_reduce({values.data(), static_cast<int64_t>(N), YOKE_F64}).wait();
    return values;
  }
  // Collects `in` of every rank into `out`, in rank order; out has size() times the elements of in.
  // The order of the arguments is that of the contract. The input must be a ConstSpan, so that
  // swapped arguments do not compile; for two Spans write all_gather(out, ConstSpan(in)).
  [[nodiscard]] Work all_gather(const Span& out, const ConstSpan& in) const {
    if (alone(out, in)) return {};
    const FlatView whole = on_device(out), part = on_device(in);
    return issue([&](YokeWork** work, YokeError* err) {
      return service_->all_gather(comm_, whole.get(), part.get(), work, err);
    });
  }
  Work all_gather(const Span&, const Span&) const = delete;
  // Sums `in` over the ranks and leaves this rank's part of the sum in `out`; in has size() times
  // the elements of out. Arguments as for all_gather.
  [[nodiscard]] Work reduce_scatter(const Span& out, const ConstSpan& in) const {
    if (alone(out, in)) return {};
    const FlatView part = on_device(out), whole = on_device(in);
    return issue([&](YokeWork** work, YokeError* err) {
      return service_->reduce_scatter(comm_, part.get(), whole.get(), YOKE_SUM, work, err);
    });
  }
  Work reduce_scatter(const Span&, const Span&) const = delete;
  [[nodiscard]] Work broadcast(const Span& inout, int root) const {
    if (size_ == 1 || inout.count == 0) return {};
    const FlatView view = on_device(inout);
    return issue([&](YokeWork** work, YokeError* err) {
      return service_->broadcast(comm_, view.get(), root, work, err);
    });
  }

 private:
  // Nothing to communicate; the result is where it belongs.
  bool alone(const Span& out, const ConstSpan& in) const {
    if (size_ > 1 && in.count > 0) return false;
    if (in.count == 0 || in.data == out.data) return true;
    require_cpu("a gather of one rank is a copy, which");
    std::memmove(out.data, in.data, static_cast<size_t>(in.bytes()));
    return true;
  }
  void require_cpu(const char* what) const {
    if (device_.type == YOKE_DEVICE_CPU) return;
    throw Error(YOKE_UNIMPLEMENTED,
                std::string(what) + " works in memory of the host; on a device of type " +
                    std::to_string(device_.type) + " the backend must do it");
  }
  FlatView on_device(const ConstSpan& span) const { return FlatView(span, device_); }
  // start(work, err): a collective of the table.
  template <class F>
  Work issue(F&& start) const {
    YokeWork* work = nullptr;
    call([&](YokeError* err) { return start(&work, err); });
    return Work(service_, work);
  }

  const YokeCollectives* service_ = nullptr;
  YokeComm* comm_ = nullptr;
  YokeDevice device_{YOKE_DEVICE_CPU, 0};
  int size_ = 1;
  int rank_ = 0;
};

}  // namespace yoke
