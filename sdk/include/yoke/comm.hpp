// The host's collectives ("yoke.collectives/1") over flat memory of the CPU. No LibTorch.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "yoke/error.hpp"
#include "yoke/tensor.hpp"

namespace yoke {

// A collective on its way; its memory must live and stay untouched until wait() has returned or
// this is destroyed, which waits too.
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
// one, is this rank alone: its operations are copies, or nothing.
class Comm {
 public:
  Comm() = default;
  // axes: bits. Collective over the world. Throws Error(FAILED_PRECONDITION) if the host has no
  // collectives.
  Comm(const YokeHost& host, uint32_t axes, const char* purpose) {
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
    const FlatView view(inout);
    return issue([&](YokeWork** work, YokeError* err) {
      return service_->all_reduce(comm_, view.get(), op, work, err);
    });
  }
  // Waits.
  template <size_t N>
  std::array<double, N> sum(std::array<double, N> values) const {
    all_reduce({values.data(), static_cast<int64_t>(N), YOKE_F64}).wait();
    return values;
  }
  // out: size() times the elements of in.
  [[nodiscard]] Work all_gather(const Span& in, const Span& out) const {
    if (alone(in, out)) return {};
    const FlatView part(in), whole(out);
    return issue([&](YokeWork** work, YokeError* err) {
      return service_->all_gather(comm_, whole.get(), part.get(), work, err);
    });
  }
  // The sum; in: size() times the elements of out.
  [[nodiscard]] Work reduce_scatter(const Span& in, const Span& out) const {
    if (alone(in, out)) return {};
    const FlatView whole(in), part(out);
    return issue([&](YokeWork** work, YokeError* err) {
      return service_->reduce_scatter(comm_, part.get(), whole.get(), YOKE_SUM, work, err);
    });
  }
  [[nodiscard]] Work broadcast(const Span& inout, int root) const {
    if (size_ == 1 || inout.count == 0) return {};
    const FlatView view(inout);
    return issue([&](YokeWork** work, YokeError* err) {
      return service_->broadcast(comm_, view.get(), root, work, err);
    });
  }

 private:
  // Nothing to communicate; the result is where it belongs.
  bool alone(const Span& in, const Span& out) const {
    if (size_ > 1 && in.count > 0) return false;
    std::memmove(out.data, in.data, static_cast<size_t>(in.bytes()));
    return true;
  }
  // start(work, err): a collective of the table.
  template <class F>
  Work issue(F&& start) const {
    YokeWork* work = nullptr;
    call([&](YokeError* err) { return start(&work, err); });
    return Work(service_, work);
  }

  const YokeCollectives* service_ = nullptr;
  YokeComm* comm_ = nullptr;
  int size_ = 1;
  int rank_ = 0;
};

}  // namespace yoke
