// Reports the progress of a check, so that a crash or a hang can be attributed to a call of the
// backend.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <utility>

#include "sdk/conformance/check.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {

// Sets the function that receives the progress: "inside init" before a call of the backend, and
// "after init" when it has returned. Set it once, before any check. It is called from any thread.
void set_progress(std::function<void(const std::string& where)> sink);
// Calls the function that set_progress has set, if there is one.
void report_progress(const std::string& where);

// Calls the backend and reports the progress. Throws Failed if the call throws an exception, which
// the contract forbids.
template <class F>
auto call_backend(const char* slot, F&& call) {
  report_progress(concat("inside ", slot));
  struct Return {
    const char* slot;
    ~Return() { report_progress(concat("after ", slot)); }
  } on_return{slot};
  try {
    return std::forward<F>(call)();
  } catch (const std::exception& e) {
    throw Failed(std::string(slot) + " threw an exception across the C boundary ('" + e.what() +
                 "'); it would terminate a host written in C");
  } catch (...) {
    throw Failed(std::string(slot) +
                 " threw something across the C boundary; it would terminate a host written in C");
  }
}

}  // namespace yoke::conformance
