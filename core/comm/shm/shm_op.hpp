// One operation of a rank that shares memory with the others.
#pragma once

#include <atomic>
#include <string>

#include "core/comm/contribution.hpp"

namespace yoke {

struct ShmOp {
  Contribution mine;
  int peer = -1;       // index of the rank that sends the message to receive; -1 = collective
  uint64_t index = 0;  // number of collectives before this one
  std::atomic<bool> done{false};
  // The error is final once done is set; "" = success.
  int32_t error_code = 0;
  std::string error;

  // Puts the results in place, unless there is an error, and marks the operation as done.
  void finish(int32_t code, const std::string& text) {
    if (text.empty()) {
      mine.finish();
    } else {
      error_code = code;
      error = text;
    }
    mine = {};
    done.store(true, std::memory_order_release);
  }
};

}  // namespace yoke
