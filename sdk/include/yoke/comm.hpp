// The host's collectives (service "yoke.collectives/1") in C++, on contiguous ranges of memory of
// YokeHost.device. Does not need LibTorch.
//
//   const yoke::Comm ranks(host, YOKE_AXIS_BIT(YOKE_DP_REPLICATE), "reduce");  // in init
//
//   yoke::Work work = ranks.all_reduce(gradients);                             // in step
//   ...                                                                        // other work
//   work.wait();                                                               // summed now
//
// Every operation but send and recv is collective over the ranks of its Comm: all of them issue the
// same operations, with the same counts and dtypes, in the same order. Operations throw Error:
// UNAVAILABLE if a peer is lost, DEADLINE_EXCEEDED after the timeout of the run, CANCELLED if the
// run is to stop, and INVALID_ARGUMENT for ranges with a wrong size or dtype.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "yoke/error.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke {

// A Work is a collective operation in flight. Its memory must stay alive and untouched until wait()
// returns or the Work is destroyed. Movable, not copyable; one thread at a time.
//
// The destructor waits as well, and ignores an error. Thus no operation writes into freed memory
// after its Work has gone out of scope, for example while an exception unwinds the stack. Call
// wait() wherever the result matters. On a CUDA device neither wait() nor the destructor blocks the
// thread: YokeHost.stream waits for the operation.
class Work {
 public:
  Work() = default;  // an operation that is complete
  // Takes over `work`, which an operation of `service` has returned.
  Work(const YokeCollectives* service, YokeWork* work) : service_(service), work_(work) {}
  // The other Work is complete afterwards.
  Work(Work&& other) noexcept
      : service_(other.service_), work_(std::exchange(other.work_, nullptr)) {}
  // Swaps the two: the destructor of `other` then waits for the former operation of this Work.
  Work& operator=(Work&& other) noexcept {
    std::swap(service_, other.service_);
    std::swap(work_, other.work_);
    return *this;
  }
  ~Work() {
    if (work_ != nullptr) service_->wait(work_, nullptr);
  }
  // Waits for the operation. Throws Error: UNAVAILABLE, DEADLINE_EXCEEDED, CANCELLED. A second call
  // does nothing, even after a failure.
  void wait() {
    YokeWork* const work = std::exchange(work_, nullptr);
    if (work != nullptr) call([&](YokeError* err) { return service_->wait(work, err); });
  }

 private:
  const YokeCollectives* service_ = nullptr;
  YokeWork* work_ = nullptr;  // NULL = complete
};

// A Comm is a communicator: the ranks along some axes, for one sequence of operations. It is a
// small handle that may be copied, and is valid until the context of the backend is destroyed. One
// thread at a time.
//
// A default Comm, and every Comm in a world of one rank, contains only this rank. all_reduce and
// broadcast then do nothing; all_gather, reduce_scatter, all_to_all and shift copy the input to the
// output. That copy works on the CPU only: on any other device they throw Error(UNIMPLEMENTED), and
// the caller must copy. send and recv throw Error(FAILED_PRECONDITION), because there is no peer.
class Comm {
 public:
  Comm() = default;  // contains only this rank

  // Connects the ranks that differ from this one only on `axes`, a mask of YOKE_AXIS_BIT. purpose
  // keeps two sequences of operations on the same axes apart, e.g. "reduce" and "gather".
  // Collective over the world. Throws Error(FAILED_PRECONDITION) if the host has no collectives.
  Comm(const YokeHost& host, uint32_t axes, const char* purpose) : device_(host.device) {
    if (host.world_size == 1) return;
    // Hosts of version 1.0 have the table up to `send`; see require().
    service_ = reinterpret_cast<const YokeCollectives*>(
        host.get_service(host.ctx, "yoke.collectives/1", offsetof(YokeCollectives, send)));
    if (service_ == nullptr) {
      throw Error(YOKE_FAILED_PRECONDITION,
                  "more than one rank needs the service yoke.collectives/1, which this host does "
                  "not have");
    }
    call([&](YokeError* err) { return service_->comm(service_->ctx, axes, purpose, &comm_, err); });
    size_ = service_->size(comm_);
    rank_ = service_->rank(comm_);
  }

  int size() const { return size_; }  // number of ranks
  int rank() const { return rank_; }  // index of this rank among them, 0 <= rank() < size()

  // Replaces inout by its reduction over the ranks. op: YOKE_SUM, YOKE_AVG, YOKE_MAX, YOKE_MIN. All
  // ranks receive the same bits.
  [[nodiscard]] Work all_reduce(const Span& inout, int32_t op = YOKE_SUM) const {
    if (size_ == 1 || inout.count == 0) return {};
    const FlatView view = on_device(inout);
    return issue([&](YokeWork** work, YokeError* err) {
      return service_->all_reduce(comm_, view.get(), op, work, err);
    });
  }

  // Sums a few numbers over the ranks, waits, and returns the sums. Throws Error(UNIMPLEMENTED) if
  // YokeHost.device is not the CPU.
  //
  //   const auto [loss, targets] = ranks.sum<2>({own_loss, own_targets});
  template <size_t N>
  std::array<double, N> sum(std::array<double, N> values) const {
    require_cpu("Comm::sum");
    all_reduce({values.data(), static_cast<int64_t>(N), YOKE_F64}).wait();
    return values;
  }

  // Collects `in` of every rank into `out`, in rank order. out has size() times the elements of in;
  // in may be this rank's own part of out.
  //
  // The arguments are in the contract's order, (out, in). The input must be a ConstSpan, so that
  // swapped arguments do not compile. For two Spans write all_gather(out, ConstSpan(in)).
  [[nodiscard]] Work all_gather(const Span& out, const ConstSpan& in) const {
    if (alone(out, in)) return {};
    // The views live only during the call: the host copies what it needs of them.
    const FlatView whole = on_device(out), part = on_device(in);
    return issue([&](YokeWork** work, YokeError* err) {
      return service_->all_gather(comm_, whole.get(), part.get(), work, err);
    });
  }
  // Deleted, because two Spans do not show which one is the input.
  Work all_gather(const Span&, const Span&) const = delete;

  // Reduces `in` over the ranks and leaves this rank's part of the result in `out`. in has size()
  // times the elements of out; out may be this rank's own part of in. Arguments as for all_gather,
  // and op as for all_reduce.
  [[nodiscard]] Work reduce_scatter(const Span& out,
                                    const ConstSpan& in,
                                    int32_t op = YOKE_SUM) const {
    if (alone(out, in)) return {};
    const FlatView part = on_device(out), whole = on_device(in);
    return issue([&](YokeWork** work, YokeError* err) {
      return service_->reduce_scatter(comm_, part.get(), whole.get(), op, work, err);
    });
  }
  Work reduce_scatter(const Span&, const Span&, int32_t = YOKE_SUM) const = delete;

  // Copies inout of the rank with index `root` to all ranks.
  [[nodiscard]] Work broadcast(const Span& inout, int root) const {
    if (size_ == 1 || inout.count == 0) return {};
    const FlatView view = on_device(inout);
    return issue([&](YokeWork** work, YokeError* err) {
      return service_->broadcast(comm_, view.get(), root, work, err);
    });
  }

  // Sends `in` to rank `to`, or receives `out` from rank `from`, of this Comm. The two sides have
  // the same dtype and count, and messages from one rank to another arrive in the order in which
  // they are sent. Two ranks that both wait for their send first may block each other: issue the
  // receive before the wait, or use shift().
  //
  // These operations and the next ones throw Error(UNIMPLEMENTED) on a host of version 1.0.
  [[nodiscard]] Work send(const ConstSpan& in, int to) const {
    require(YOKE_HAS(YokeCollectives, need(), send), "send");
    if (in.count == 0) return {};
    const FlatView view = on_device(in);
    return issue([&](YokeWork** work, YokeError* err) {
      return service_->send(comm_, view.get(), to, work, err);
    });
  }
  [[nodiscard]] Work recv(const Span& out, int from) const {
    require(YOKE_HAS(YokeCollectives, need(), recv), "recv");
    if (out.count == 0) return {};
    const FlatView view = on_device(out);
    return issue([&](YokeWork** work, YokeError* err) {
      return service_->recv(comm_, view.get(), from, work, err);
    });
  }

  // Sends in_counts[r] elements of `in` to rank r and receives out_counts[r] elements of `out` from
  // it, for every rank r in order. Both arrays have size() counts, which may be 0; NULL stands for
  // equal parts. Arguments as for all_gather.
  [[nodiscard]] Work all_to_all(const Span& out,
                                const int64_t* out_counts,
                                const ConstSpan& in,
                                const int64_t* in_counts) const {
    if (service_ == nullptr) {
      require_equal(out, in);
      alone(out, in);
      return {};
    }
    require(YOKE_HAS(YokeCollectives, need(), all_to_all), "all_to_all");
    const FlatView received = on_device(out), sent = on_device(in);
    return issue([&](YokeWork** work, YokeError* err) {
      return service_->all_to_all(
          comm_, received.get(), out_counts, sent.get(), in_counts, work, err);
    });
  }

  // Sends `in` to the next rank and receives `out` from the previous one, in a circle.
  [[nodiscard]] Work shift(const Span& out, const ConstSpan& in) const {
    std::vector<int64_t> sent(static_cast<size_t>(size_), 0), received = sent;
    sent[static_cast<size_t>((rank_ + 1) % size_)] = in.count;
    received[static_cast<size_t>((rank_ + size_ - 1) % size_)] = out.count;
    return all_to_all(out, received.data(), in, sent.data());
  }

 private:
  // Returns the host's table. Throws Error(FAILED_PRECONDITION) if this is the only rank.
  const YokeCollectives* need() const {
    if (service_ != nullptr) return service_;
    throw Error(YOKE_FAILED_PRECONDITION, "a single rank has no peer to exchange messages with");
  }
  // Throws Error(INVALID_ARGUMENT) unless a rank can send `in` to itself as `out`.
  static void require_equal(const Span& out, const ConstSpan& in) {
    if (out.count == in.count && out.dtype == in.dtype) return;
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("a single rank receives what it sends, but out is ", out.count, " x ") +
                    concat(dtype_name(out.dtype), " and in ", in.count, " x ") +
                    dtype_name(in.dtype));
  }
  // Throws Error(UNIMPLEMENTED) unless the host has the function.
  static void require(bool host_has_it, const char* function) {
    if (host_has_it) return;
    throw Error(YOKE_UNIMPLEMENTED,
                concat("this host has no YokeCollectives.",
                       function,
                       ", which came with version 1.1 ",
                       "of the contract; update the host"));
  }
  // Returns whether there is nothing to communicate. In that case the input has been copied to the
  // output.
  bool alone(const Span& out, const ConstSpan& in) const {
    if (size_ > 1 && in.count > 0) return false;
    if (in.count == 0 || in.data == out.data) return true;
    require_cpu("the copy that replaces a gather of one rank");
    std::memmove(out.data, in.data, static_cast<size_t>(in.bytes()));
    return true;
  }
  // Throws Error(UNIMPLEMENTED) unless YokeHost.device is the CPU. `what` names the operation in
  // the message.
  void require_cpu(const char* what) const {
    if (device_.type == YOKE_DEVICE_CPU) return;
    throw Error(YOKE_UNIMPLEMENTED,
                concat(what,
                       " works only in memory of the CPU; on a device of type ",
                       device_.type,
                       " the backend must do it itself"));
  }
  // Returns a range as a tensor on YokeHost.device.
  FlatView on_device(const ConstSpan& span) const { return FlatView(span, device_); }
  // Calls start(work, err), which issues an operation of the service, and wraps its result.
  template <class F>
  Work issue(F&& start) const {
    YokeWork* work = nullptr;
    call([&](YokeError* err) { return start(&work, err); });
    return Work(service_, work);
  }

  const YokeCollectives* service_ = nullptr;  // NULL if this is the only rank
  YokeComm* comm_ = nullptr;
  YokeDevice device_{YOKE_DEVICE_CPU, 0};
  int size_ = 1;
  int rank_ = 0;
};

}  // namespace yoke
