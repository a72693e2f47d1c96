// Calls of the functions of the inner backend.
#pragma once

#include <string>

#include "plugins/validate/guarded.hpp"
#include "plugins/validate/monitor.hpp"

namespace yoke::validate {

// Calls f(err), a function of the inner backend, and checks what every function must do. Throws
// the first violation or, if there is none, the Error of the function. fields: for the trace,
// called when f has returned. Returns the time that the function took.
template <class F, class FieldsOf>
std::chrono::nanoseconds call_backend(Monitor& monitor,
                                      const Monitor::Function& function,
                                      F&& f,
                                      FieldsOf&& fields);

// Checks code and error of a function that has returned.
void check_returned(Monitor& monitor, int32_t code, Guarded<YokeError>& err);

template <class F, class FieldsOf>
std::chrono::nanoseconds call_backend(Monitor& monitor,
                                      const Monitor::Function& function,
                                      F&& f,
                                      FieldsOf&& fields) {
  Stopwatch watch(monitor);
  Guarded<YokeError> err(make_error());
  monitor.begin(function);
  const int32_t code = watch.forward([&] { return f(&err.value()); });
  check_returned(monitor, code, err);
  if (monitor.trace().on()) monitor.trace_call("host", function.name, code, watch, fields());
  monitor.end();
  monitor.require_none();
  check(code, err.value());
  return watch.forwarded();
}

// Reports a result that a failed function has not cleared. cleared: T with its header and zeros.
template <class T>
void check_cleared(Monitor& monitor, Guarded<T>& result, bool failed) {
  if (result.overwritten())
    monitor.violated(Rule::kResultsStayInTheirStructs,
                     "",
                     "it has written behind its result, or into the header of it");
  T zero{};
  zero.header = result.value().header;
  if (failed && std::memcmp(static_cast<const void*>(&zero), &result.value(), sizeof(T)) != 0)
    monitor.violated(
        Rule::kFailuresAreExplained, "", "it fails and leaves a result that is not zero");
}

}  // namespace yoke::validate
