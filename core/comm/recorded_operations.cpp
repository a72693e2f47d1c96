#include "core/comm/recorded_operations.hpp"

#include "core/comm/counting_backend.hpp"

namespace yoke {

void RecordedOperations::count(const Counters& counters, Signature& signature, int64_t bytes) {
  counters.history->add(signature);
  if (counters.member != nullptr && !is_message(signature)) counters.member->count_collective();
  counters.traffic->add_call(signature, bytes);
}

void RecordedOperations::count_again() const {
  for (const Operation& operation : operations_) {
    Signature signature = operation.signature;
    count(operation.counters, signature, operation.bytes);
  }
}

}  // namespace yoke
