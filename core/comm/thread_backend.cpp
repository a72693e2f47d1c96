#include "core/comm/thread_backend.hpp"

#include <utility>

#include "yoke/text.hpp"

namespace yoke {
namespace {

// The c10d view of a ThreadOp, for one rank.
class ThreadWork final : public LocalWork {
 public:
  ThreadWork(int rank,
             c10d::OpType type,
             std::vector<at::Tensor> results,
             std::shared_ptr<ThreadHub> hub,
             std::shared_ptr<ThreadOp> op)
      : LocalWork(rank, type, std::move(results)), hub_(std::move(hub)), op_(std::move(op)) {}

 private:
  bool completed() const override { return op_->completed(); }
  void rethrow() const override { ThreadHub::rethrow(*op_); }
  bool wait_for(std::chrono::milliseconds timeout) override {
    return hub_->wait(*op_, timeout == kNoTimeout ? std::chrono::hours(24 * 365) : timeout);
  }
  // The callback may run on a thread of another rank.
  void when_done(std::function<void()> f) override { hub_->when_done(*op_, std::move(f)); }

  std::shared_ptr<ThreadHub> hub_;
  std::shared_ptr<ThreadOp> op_;
};

}  // namespace

ThreadBackend::ThreadBackend(std::shared_ptr<ThreadHub> hub, int rank)
    : LocalBackend(rank, hub->size()), hub_(std::move(hub)) {}

ThreadBackend::WorkPtr ThreadBackend::post(Contribution mine, c10d::OpType type, Tensors results) {
  auto op = hub_->post(rank_, std::move(mine));
  return c10::make_intrusive<ThreadWork>(rank_, type, std::move(results), hub_, std::move(op));
}

ThreadBackend::WorkPtr ThreadBackend::post_message(bool send,
                                                   int peer,
                                                   Contribution mine,
                                                   Tensors results) {
  auto op = hub_->post_message(send, send ? rank_ : peer, send ? peer : rank_, std::move(mine));
  const c10d::OpType type = send ? c10d::OpType::SEND : c10d::OpType::RECV;
  return c10::make_intrusive<ThreadWork>(rank_, type, std::move(results), hub_, std::move(op));
}

void ThreadBackend::abort() {
  hub_->kill(concat("rank ", hub_->ranks()[rank_], " gave up"));
}

}  // namespace yoke
