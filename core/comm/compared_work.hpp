// The work of a message that is compared before it is received (comm.check = full).
#pragma once

#include <functional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

namespace yoke {

// Compares the two sides of a message and then waits for it. `compare` waits for the exchange of
// the signatures and returns the work of the message itself. The first wait(), result(),
// synchronize() or getFuture() calls it; if it throws, the next of these calls it again. Until then
// isCompleted() and isSuccess() return false, so a caller must not poll.
class ComparedWork final : public c10d::Work {
 public:
  ComparedWork(int rank, c10d::OpType type, std::function<c10::intrusive_ptr<c10d::Work>()> compare)
      : Work(rank, type), compare_(std::move(compare)) {}

  bool wait(std::chrono::milliseconds timeout) override { return message().wait(timeout); }
  bool isCompleted() override { return message_ && message_->isCompleted(); }
  bool isSuccess() const override { return message_ && message_->isSuccess(); }
  std::exception_ptr exception() const override {
    return message_ ? message_->exception() : nullptr;
  }
  std::vector<at::Tensor> result() override { return message().result(); }
  void synchronize() override { message().synchronize(); }
  void abort() override {
    if (message_) message_->abort();
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return message().getFuture(); }

 private:
  c10d::Work& message() {
    if (!message_) message_ = compare_();
    return *message_;
  }

  std::function<c10::intrusive_ptr<c10d::Work>()> compare_;
  c10::intrusive_ptr<c10d::Work> message_;
};

}  // namespace yoke
