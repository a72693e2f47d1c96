// The collectives and messages that a rank issues while a device records its work. Their repetition
// by the device makes no call that could be counted, so it is counted here.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/comm/signature.hpp"
#include "core/control/member.hpp"

namespace yoke {

class Traffic;

// One thread at a time.
class RecordedOperations {
 public:
  // Where operations are counted. The member is NULL in a world without an agent.
  struct Counters {
    std::shared_ptr<Traffic> traffic;
    std::shared_ptr<History> history;
    Member* member;
  };

  // Counts an operation of `bytes` and sets the sequence number of its signature.
  static void count(const Counters& counters, Signature& signature, int64_t bytes);

  void add(Counters counters, const Signature& signature, int64_t bytes) {
    operations_.push_back({std::move(counters), signature, bytes});
  }
  // Counts all operations once more, in their order.
  void count_again() const;

 private:
  struct Operation {
    Counters counters;
    Signature signature;
    int64_t bytes;
  };
  std::vector<Operation> operations_;
};

// The recording in progress of a rank; empty if there is none.
using Recording = std::optional<RecordedOperations>;

}  // namespace yoke
