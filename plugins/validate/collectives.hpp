// The service yoke.collectives/1 that the inner backend gets: that of the host, with every call
// checked and traced.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "plugins/validate/monitor.hpp"

namespace yoke::validate {

// Any thread.
class WatchedCollectives {
 public:
  // host, real: those of the rank; they outlive this object. axes: those of the host's world.
  WatchedCollectives(const YokeHost& host,
                     uint32_t axes,
                     const YokeCollectives& real,
                     Monitor& monitor);
  ~WatchedCollectives();
  WatchedCollectives(const WatchedCollectives&) = delete;
  WatchedCollectives& operator=(const WatchedCollectives&) = delete;

  const YokeCollectives& table() const { return table_; }

  // The collective operations that were issued on a communicator.
  struct Issued {
    uint32_t axes = 0;  // the ranks of the communicator differ on these only
    std::string purpose;
    int64_t count = 0;
    uint64_t hash = 0;  // hash of all operations in their order
  };
  // Returns the operations since the last call, for each communicator in the order in which they
  // were made. That order is the same on every rank.
  std::vector<Issued> take_issued();
  // Reports works that nobody has waited for. Call it when the context has been destroyed.
  void check_works();

 private:
  struct Slots;
  struct Comm;
  struct Work;
  struct Operation;

  template <class Issue>
  int32_t run(const Operation& operation, YokeWork** work, YokeError* err, Issue&& issue);
  // Returns YOKE_OK, or the code of a violation.
  int32_t examine(const Operation& operation, YokeError* err);
  // Returns what is wrong with the arguments, or "".
  std::string fault_of(const Operation& operation) const;
  void count(const Operation& operation);
  int32_t require_collective(const char* name, YokeError* err);
  int32_t make_comm(uint32_t axes, const char* purpose, YokeComm** out, YokeError* err);
  int32_t wait(Work* work, YokeError* err);

  const YokeHost& host_;
  const uint32_t axes_;
  const YokeCollectives& real_;
  Monitor& monitor_;
  YokeCollectives table_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Comm>> comms_;
  std::set<Work*> works_;
  // The last works that were waited for. They are kept, so that a second wait is noticed.
  std::deque<std::unique_ptr<Work>> waited_;
};

}  // namespace yoke::validate
