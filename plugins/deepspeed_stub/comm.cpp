#include "plugins/deepspeed_stub/comm.hpp"

namespace yoke::deepspeed_stub {
namespace {

const YokeCollectives& collectives_of(const YokeHost& host) {
  const YokeHeader* service =
      host.get_service(host.ctx, "yoke.collectives/1", sizeof(YokeCollectives));
  if (service != nullptr) return *reinterpret_cast<const YokeCollectives*>(service);
  throw Error(YOKE_FAILED_PRECONDITION,
              "deepspeed_stub needs the host's service yoke.collectives/1 for more than one rank; "
              "this host has none");
}

// start(work, err): issues a collective of the table.
template <class F>
Work issue(const YokeCollectives* collectives, F&& start) {
  YokeWork* work = nullptr;
  YokeError err = make_error();
  check(start(&work, &err), err);
  return Work(collectives, work);
}

}  // namespace

Work::~Work() {
  if (work_ != nullptr) collectives_->wait(work_, nullptr);
}

void Work::wait() {
  YokeWork* const work = std::exchange(work_, nullptr);
  if (work == nullptr) return;
  YokeError err = make_error();
  check(collectives_->wait(work, &err), err);
}

Comm::Comm(const YokeHost& host, uint32_t axes, const char* purpose) {
  if (host.world_size == 1) return;
  collectives_ = &collectives_of(host);
  YokeError err = make_error();
  check(collectives_->comm(collectives_->ctx, axes, purpose, &comm_, &err), err);
  size_ = collectives_->size(comm_);
  rank_ = collectives_->rank(comm_);
}

Work Comm::all_reduce(const Span& inout) const {
  if (size_ == 1 || inout.count == 0) return {};
  const FlatView view(inout.data, inout.count, inout.dtype);
  return issue(collectives_, [&](YokeWork** work, YokeError* err) {
    return collectives_->all_reduce(comm_, view.get(), YOKE_SUM, work, err);
  });
}

Work Comm::all_gather(const Span& in, const Span& out) const {
  if (size_ == 1 || in.count == 0) {
    copy(in, out);
    return {};
  }
  const FlatView part(in.data, in.count, in.dtype), whole(out.data, out.count, out.dtype);
  return issue(collectives_, [&](YokeWork** work, YokeError* err) {
    return collectives_->all_gather(comm_, whole.get(), part.get(), work, err);
  });
}

Work Comm::reduce_scatter(const Span& in, const Span& out) const {
  if (size_ == 1 || in.count == 0) {
    copy(in, out);
    return {};
  }
  const FlatView whole(in.data, in.count, in.dtype), part(out.data, out.count, out.dtype);
  return issue(collectives_, [&](YokeWork** work, YokeError* err) {
    return collectives_->reduce_scatter(comm_, part.get(), whole.get(), YOKE_SUM, work, err);
  });
}

Work Comm::broadcast(const Span& inout, int root) const {
  if (size_ == 1 || inout.count == 0) return {};
  const FlatView view(inout.data, inout.count, inout.dtype);
  return issue(collectives_, [&](YokeWork** work, YokeError* err) {
    return collectives_->broadcast(comm_, view.get(), root, work, err);
  });
}

}  // namespace yoke::deepspeed_stub
