// The c10d backend for ranks that are threads of one process.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "core/comm/local_backend.hpp"
#include "core/comm/thread_hub.hpp"

namespace yoke {

// One rank's side of a ThreadHub. Operations complete even if no rank calls wait(). Sums are
// computed in rank order, so a result has the same bits on every rank and in every run. Used by one
// thread at a time, except abort(), which any thread may call.
//
// Operations throw Error(INVALID_ARGUMENT) for unsuitable tensors, and UNAVAILABLE after abort().
// Their works fail with FAILED_PRECONDITION if the ranks do not issue the same collective.
class ThreadBackend final : public LocalBackend {
 public:
  // rank: index of this rank in the hub.
  ThreadBackend(std::shared_ptr<ThreadHub> hub, int rank);

  const std::string getBackendName() const override { return "threads"; }
  // Does nothing: the waiting rank passes a timeout to wait().
  void setTimeout(std::chrono::milliseconds) override {}
  // Makes every operation in flight fail, on all ranks of the hub, and every later one.
  void abort() override;

 private:
  WorkPtr post(Contribution mine, c10d::OpType type, Tensors results) override;
  WorkPtr post_message(bool send, int peer, Contribution mine, Tensors results) override;

  std::shared_ptr<ThreadHub> hub_;
};

}  // namespace yoke
