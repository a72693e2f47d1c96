// Every operation of a rank passes through this class, whichever transport carries it and whether
// Yoke or a plugin issues it. Counters, checks and the translation of errors are here rather than
// in Communicator, because plugins built on LibTorch call the ProcessGroup directly.
//
// The order inside issue() matters: first the history, then the comparison, then the counters and
// the call. A collective that the comparison rejects is in the history of every rank, so all
// ranks still number their collectives alike and the communicator remains usable.
#include "core/comm/counting_backend.hpp"

#include <ATen/core/ivalue.h>

#include <cstring>
#include <utility>

#include "core/comm/compared_work.hpp"
#include "core/comm/divergence.hpp"
#include "core/comm/work_wait.hpp"
#include "core/control/member.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Clock = std::chrono::steady_clock;
using WorkPtr = CountingBackend::WorkPtr;

// Wraps the work of the transport: waits with a timeout and a cancel flag, counts the time, and
// translates exceptions.
class CountedWork final : public c10d::Work {
 public:
  CountedWork(c10::intrusive_ptr<CountingBackend> backend,
              const Signature& signature,
              const Link& link,
              WorkPtr inner)
      : Work(backend->getRank(), inner->retrieveOpType()),
        backend_(std::move(backend)),
        signature_(signature),
        link_(link),
        inner_(std::move(inner)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    if (done_) return true;
    if (backend_->on_device()) return done_ = inner_->wait();
    CommOptions options = backend_->options();
    if (timeout != kNoTimeout) options.timeout = timeout;
    const auto start = Clock::now();
    try {
      wait_for(*inner_, options, !is_message(signature_), [&] {
        return backend_->pending(signature_, link_);
      });
    } catch (const Error& e) {
      // The operation may still be in flight and write into the tensors, which the caller is about
      // to free. Only closing the connections stops it. If a rank of another group was lost, this
      // group does not know of it.
      const bool lost = e.code() == YOKE_UNAVAILABLE && !inner_->isCompleted();
      if (lost || e.code() == YOKE_CANCELLED || e.code() == YOKE_DEADLINE_EXCEEDED)
        backend_->abort();
      throw;
    }
    backend_->add_wait(signature_, Clock::now() - start);
    done_ = true;
    return true;
  }
  bool isCompleted() override { return done_ || inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override {
    const auto failure = inner_->exception();
    return failure ? translated(failure) : nullptr;
  }
  int sourceRank() const override { return inner_->sourceRank(); }
  std::vector<at::Tensor> result() override { return inner_->result(); }
  void synchronize() override { inner_->synchronize(); }
  void abort() override { inner_->abort(); }
  // The transport's future fails with the transport's exceptions; a second future fails with the
  // translated ones. The callback holds a reference to this work: callers may drop the work and
  // keep the future.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto theirs = inner_->getFuture();
    auto ours = c10::make_intrusive<c10::ivalue::Future>(theirs->elementType(), theirs->devices());
    auto self = c10::intrusive_ptr<CountedWork>::reclaim_copy(this);
    theirs->addCallback([self, ours](c10::ivalue::Future& done) {
      if (done.hasError()) {
        ours->setError(self->translated(done.exception_ptr()));
      } else {
        ours->markCompleted(done.constValue(), done.storages());
      }
    });
    return ours;
  }

 private:
  std::exception_ptr translated(const std::exception_ptr& failure) const {
    return std::make_exception_ptr(translate(
        failure, backend_->pending(signature_, link_), backend_->options(), YOKE_INTERNAL));
  }

  c10::intrusive_ptr<CountingBackend> backend_;
  Signature signature_;
  Link link_;
  WorkPtr inner_;
  bool done_ = false;
};

// A signature as a tensor, to be sent to other ranks.
static_assert(sizeof(Signature) % sizeof(int64_t) == 0);
constexpr int64_t kSignatureWords = sizeof(Signature) / sizeof(int64_t);

int64_t total(const std::vector<at::Tensor>& tensors) {
  int64_t count = 0;
  for (const at::Tensor& t : tensors) count += t.numel();
  return count;
}

Signature sign(Collective op, const at::Tensor& of, int64_t count, int64_t detail = 0) {
  return {op, static_cast<int32_t>(of.scalar_type()), count, detail, 0};
}

// Returns the first tensor of a list; all have its dtype. c10d expects at least one.
const at::Tensor& front(const std::vector<at::Tensor>& tensors, const char* what) {
  if (tensors.empty()) throw Error(YOKE_INVALID_ARGUMENT, concat(what, ": no tensor given"));
  return tensors.front();
}

}  // namespace

void Traffic::add_call(const Signature& signature, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  CommCount& count = counts_[{signature.op, signature.dtype}];
  count.calls += 1;
  count.bytes += bytes;
}

void Traffic::add_wait(const Signature& signature, std::chrono::nanoseconds time) {
  const std::lock_guard lock(mutex_);
  counts_[{signature.op, signature.dtype}].seconds += std::chrono::duration<double>(time).count();
}

Traffic::Counts Traffic::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

CountingBackend::CountingBackend(Setup setup, int rank)
    : Backend(rank, static_cast<int>(setup.ranks.size())), setup_(std::move(setup)) {}

PendingOperation CountingBackend::pending(const Signature& signature, const Link& link) const {
  return {concat(describe(signature), " of ", link.from < 0 ? title() : link_name(title(), link)),
          setup_.axes};
}

void CountingBackend::setTimeout(std::chrono::milliseconds timeout) {
  setup_.options.timeout = timeout;
  setup_.inner->setTimeout(timeout);
}

// NCCL reports only what kind of failure it was. For each kind, this passes to translate() the
// exception that a transport on the CPU would throw, so both give the same codes and messages.
void CountingBackend::require_alive() const {
  if (!setup_.on_device) return;
  const c10d::ErrorType error = setup_.inner->getError();
  if (error == c10d::ErrorType::SUCCESS) return;
  const PendingOperation collective{concat("a collective of ", title(), " on the device"),
                                    setup_.axes};
  const bool late = error == c10d::ErrorType::TIMEOUT;
  throw translate(
      std::make_exception_ptr(std::runtime_error(
          late ? "Operation timed out" : "NCCL reports that the connection was closed")),
      collective,
      setup_.options,
      YOKE_UNAVAILABLE);
}

void CountingBackend::abort() {
  setup_.inner->abort();
  if (setup_.check) setup_.check->abort();
}

void CountingBackend::count(const std::shared_ptr<History>& history,
                            Signature& signature,
                            int64_t bytes) const {
  const RecordedOperations::Counters counters{setup_.traffic, history, setup_.options.member};
  RecordedOperations::count(counters, signature, bytes);
  if (setup_.recording != nullptr && *setup_.recording)
    (*setup_.recording)->add(counters, signature, bytes);
}

template <class F>
WorkPtr CountingBackend::issue(Signature signature, int64_t bytes, F&& call) {
  count(setup_.history, signature, bytes);
  if (setup_.check) compare_with_peers(signature);
  return start(signature, {}, call);
}

template <class F>
WorkPtr CountingBackend::start(const Signature& signature, const Link& link, F&& call) {
  WorkPtr work;
  try {
    work = call();
  } catch (...) {
    throw translate(
        std::current_exception(), pending(signature, link), setup_.options, YOKE_INVALID_ARGUMENT);
  }
  return c10::make_intrusive<CountedWork>(
      c10::intrusive_ptr<CountingBackend>::reclaim_copy(this), signature, link, std::move(work));
}

WorkPtr CountingBackend::issue_message(Collective op, Tensors tensors, int peer, int tag) {
  const bool sends = op == Collective::kSend;
  const at::Tensor& t = front(tensors, name_of(op));
  if (peer < 0 || peer >= size_) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat(name_of(op), ": rank ", peer, "; allowed: 0 to ", size_ - 1));
  }
  Signature signature = sign(op, t, t.numel(), tag);
  const int32_t mine = setup_.ranks[rank_], other = setup_.ranks[peer];
  Messages& messages = messages_of(sends ? Link{mine, other} : Link{other, mine});
  count(messages.history, signature, static_cast<int64_t>(t.nbytes()));
  Start message = [this, sends, signature, link = messages.link, tensors, peer, tag]() mutable {
    return start(signature, link, [&] {
      return sends ? setup_.inner->send(tensors, peer, tag)
                   : setup_.inner->recv(tensors, peer, tag);
    });
  };
  if (!setup_.check) return message();
  return sends ? announce(signature, messages.link, peer, message)
               : compare_first(signature, messages, peer, std::move(message));
}

CountingBackend::Messages& CountingBackend::messages_of(const Link& link) {
  Messages& messages = links_[{link.from, link.to}];
  if (!messages.history) {
    messages = {link, std::make_shared<History>(), {}, nullptr};
    setup_.on_link(link, messages.history);
  }
  return messages;
}

// Sends the signature ahead of the message. Its tensor must live until it has been received.
WorkPtr CountingBackend::announce(const Signature& signature,
                                  const Link& link,
                                  int peer,
                                  const Start& message) {
  Tensors header{at::empty({kSignatureWords}, at::kLong)};
  std::memcpy(header[0].data_ptr(), &signature, sizeof signature);
  const WorkPtr announced = setup_.check->send(header, peer, 0), sent = message();
  const auto self = c10::intrusive_ptr<CountingBackend>::reclaim_copy(this);
  return c10::make_intrusive<ComparedWork>(rank_, c10d::OpType::SEND, [=] {
    self->finish_check([&] { return announced; }, signature, link);
    (void)header;  // lives as long as this work
    return sent;
  });
}

// Compares the message in wait(), and only then starts to receive it: this rank must not wait when
// it issues the message, because schedules issue receives ahead of time, and some transports end
// the process if more arrives than is expected. The messages of a link are started in the order in
// which they have been issued, because transports match those with equal tags by their order.
WorkPtr CountingBackend::compare_first(const Signature& signature,
                                       Messages& messages,
                                       int peer,
                                       Start message) {
  Tensors header{at::empty({kSignatureWords}, at::kLong)};
  const WorkPtr announced = setup_.check->recv(header, peer, 0);
  const auto started = std::make_shared<WorkPtr>();
  messages.to_start.push_back([=, this, link = messages.link, message = std::move(message)] {
    finish_check([&] { return announced; }, signature, link);
    Signature theirs;
    std::memcpy(static_cast<void*>(&theirs), header[0].data_ptr(), sizeof theirs);
    if (const auto text = mismatch({theirs, signature}, {link.from, link.to})) {
      throw Error(YOKE_FAILED_PRECONDITION,
                  concat("the messages of ", link_name(title(), link), " differ: ", *text));
    }
    *started = message();
  });
  const auto self = c10::intrusive_ptr<CountingBackend>::reclaim_copy(this);
  return c10::make_intrusive<ComparedWork>(rank_, c10d::OpType::RECV, [self, started, &messages] {
    while (!*started) {
      // After a message that differs, the later ones would be taken for it.
      if (messages.failure) std::rethrow_exception(messages.failure);
      const auto start = std::move(messages.to_start.front());
      messages.to_start.pop_front();
      try {
        start();
      } catch (...) {
        messages.failure = std::current_exception();
        throw;
      }
    }
    return *started;
  });
}

// If the ranks issue different collectives, some transports end the process from one of their
// threads, where no exception can be caught. So the ranks first exchange their signatures, which
// have the same size on all ranks.
void CountingBackend::compare_with_peers(const Signature& signature) {
  at::Tensor mine = at::empty({kSignatureWords}, at::kLong);
  at::Tensor all = at::empty({size_ * kSignatureWords}, at::kLong);
  std::memcpy(mine.data_ptr(), &signature, sizeof signature);
  finish_check([&] { return setup_.check->_allgather_base(all, mine, c10d::AllgatherOptions()); },
               signature,
               {});
  std::vector<Signature> signatures(size_);
  std::memcpy(static_cast<void*>(signatures.data()), all.data_ptr(), all.nbytes());
  if (const auto text = mismatch(signatures, setup_.ranks)) {
    throw Error(YOKE_FAILED_PRECONDITION,
                concat("the ranks of ", title(), " disagree about a collective: ", *text));
  }
}

void CountingBackend::finish_check(const Start& start,
                                   const Signature& signature,
                                   const Link& link) {
  const auto describe_check = [&] {
    PendingOperation comparison = pending(signature, link);
    comparison.operation = "comparison before " + comparison.operation;
    return comparison;
  };
  try {
    wait_for(*start(), setup_.options, !is_message(signature), describe_check);
  } catch (const Error& e) {
    if (e.code() == YOKE_CANCELLED || e.code() == YOKE_DEADLINE_EXCEEDED) abort();
    throw;
  } catch (...) {
    throw translate(std::current_exception(), describe_check(), setup_.options, YOKE_INTERNAL);
  }
}

WorkPtr CountingBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const at::Tensor& t = front(tensors, "all_reduce");
  const int64_t count = total(tensors);
  return issue(sign(Collective::kAllReduce, t, count, opts.reduceOp.op_),
               count * t.element_size(),
               [&] { return setup_.inner->allreduce(tensors, opts); });
}

WorkPtr CountingBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const at::Tensor& t = front(tensors, "broadcast");
  const int64_t count = total(tensors);
  return issue(sign(Collective::kBroadcast, t, count, opts.rootRank),
               count * t.element_size(),
               [&] { return setup_.inner->broadcast(tensors, opts); });
}

WorkPtr CountingBackend::allgather(std::vector<Tensors>& outputs,
                                   Tensors& inputs,
                                   const c10d::AllgatherOptions& opts) {
  const at::Tensor& t = front(inputs, "all_gather");
  const int64_t count = total(inputs) * size_;
  return issue(sign(Collective::kAllGather, t, count), count * t.element_size(), [&] {
    return setup_.inner->allgather(outputs, inputs, opts);
  });
}

WorkPtr CountingBackend::_allgather_base(at::Tensor& output,
                                         at::Tensor& input,
                                         const c10d::AllgatherOptions& opts) {
  return issue(sign(Collective::kAllGather, output, output.numel()), output.nbytes(), [&] {
    return setup_.inner->_allgather_base(output, input, opts);
  });
}

WorkPtr CountingBackend::_reduce_scatter_base(at::Tensor& output,
                                              at::Tensor& input,
                                              const c10d::ReduceScatterOptions& opts) {
  return issue(sign(Collective::kReduceScatter, input, input.numel(), opts.reduceOp.op_),
               input.nbytes(),
               [&] { return setup_.inner->_reduce_scatter_base(output, input, opts); });
}

WorkPtr CountingBackend::alltoall_base(at::Tensor& output,
                                       at::Tensor& input,
                                       std::vector<int64_t>& output_splits,
                                       std::vector<int64_t>& input_splits,
                                       const c10d::AllToAllOptions& opts) {
  // With uneven parts, the totals may differ between ranks, so the count is not compared.
  const bool even = output_splits.empty() && input_splits.empty();
  return issue(sign(Collective::kAllToAll, input, even ? input.numel() : -1), input.nbytes(), [&] {
    return setup_.inner->alltoall_base(output, input, output_splits, input_splits, opts);
  });
}

WorkPtr CountingBackend::send(Tensors& tensors, int to, int tag) {
  return issue_message(Collective::kSend, tensors, to, tag);
}

WorkPtr CountingBackend::recv(Tensors& tensors, int from, int tag) {
  return issue_message(Collective::kRecv, tensors, from, tag);
}

WorkPtr CountingBackend::barrier(const c10d::BarrierOptions& opts) {
  return issue(Signature{}, 0, [&] { return setup_.inner->barrier(opts); });
}

}  // namespace yoke
