// Where a check is, so that a crash or a hang can be told by the call in which it happened.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <utility>

#include "sdk/conformance/check.hpp"

namespace yoke::conformance {

// Told "inside init" before, and "after init" when a call of the backend has returned. Set once,
// before any check; called from any thread.
void set_progress(std::function<void(const std::string& where)> sink);
void report_progress(const std::string& where);

// Calls the backend. An exception that comes out is a failure of any check.
template <class F>
auto call_backend(const char* slot, F&& call) {
  report_progress(std::string("inside ") + slot);
  struct Left {
    const char* slot;
    ~Left() { report_progress(std::string("after ") + slot); }
  } left{slot};
  try {
    return std::forward<F>(call)();
  } catch (const std::exception& e) {
    throw Failed(std::string(slot) + " threw an exception across the C border ('" + e.what() +
                 "'); a C host would have died of it");
  } catch (...) {
    throw Failed(std::string(slot) +
                 " threw something across the C border; a C host would have died of it");
  }
}

}  // namespace yoke::conformance
