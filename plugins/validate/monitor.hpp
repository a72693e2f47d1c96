// The Monitor of a rank: which function of the backend runs, what violations were found, and how
// much time the checks took.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "plugins/validate/rules.hpp"
#include "plugins/validate/trace.hpp"
#include "yoke/error.hpp"

namespace yoke::validate {

class Stopwatch;

// All members may be called from any thread, unless a comment says otherwise.
class Monitor {
 public:
  // host: where warnings go; it outlives the monitor. stop: whether a violation ends the run.
  Monitor(const YokeHost& host, bool stop, const std::string& trace_file);

  // The function of the backend that runs; name is NULL between the calls of the host.
  struct Function {
    const char* name = nullptr;
    int64_t step = -1;        // -1 = not in a step
    bool collective = false;  // whether the backend may communicate
    std::thread::id thread{};
  };
  // Start and end a function. Called by the thread that calls it. Throws Error if another function
  // runs at that time, which is a violation by the host.
  void begin(const Function& function);
  void end();
  Function current() const;

  // Records a violation. what: a clause such as "block_forward ran block 'a' while ..."; `call`
  // names the callback or service, "" = the function itself. Returns whether the run must stop.
  bool violated(Rule rule, const std::string& call, const std::string& what);
  // Reports a violation as an error of the contract, for callbacks that can fail. Returns YOKE_OK
  // if the run continues.
  int32_t violated(Rule rule, const std::string& call, const std::string& what, YokeError* err);
  // Throws the first violation as an Error if the run must stop.
  void require_none() const;

  // Records that a callback, an operation or the visitor has failed in the current function.
  void note_failure(const std::string& call, int32_t code);
  // Returns the first of these failures, "" = none.
  std::string failure() const;

  const Trace& trace() const { return trace_; }
  // Adds a call that has returned to the trace. by: the side that made it.
  void trace_call(
      const char* by, const char* name, int32_t code, const Stopwatch& watch, const Fields& fields);
  // Adds time that the checks took, and time and number of calls.
  void add_own_time(std::chrono::nanoseconds time) { own_ns_ += time.count(); }
  void count_call() { ++calls_; }
  std::chrono::nanoseconds own_time() const { return std::chrono::nanoseconds(own_ns_); }
  void count_step(std::chrono::nanoseconds whole, std::chrono::nanoseconds own);
  // Logs the first violation that could not end the run, because it was found while handles were
  // destroyed, and on rank 0 what the checks have cost. inner: name of the backend.
  void log_end(const std::string& inner) const;

 private:
  std::string cost() const;

  const YokeHost& host_;
  const bool stop_;
  Trace trace_;
  mutable std::mutex mutex_;
  Function function_;
  std::optional<Error> first_;
  mutable bool thrown_ = false;  // whether first_ has reached the host
  std::map<Rule, int64_t> warned_;
  std::string failure_;
  std::atomic<int64_t> own_ns_{0}, calls_{0};
  int64_t steps_ = 0;
  std::chrono::nanoseconds in_steps_{0}, own_in_steps_{0};
};

using Clock = std::chrono::steady_clock;

// Measures a call that this backend forwards. The time outside of forward() is that of the checks.
class Stopwatch {
 public:
  explicit Stopwatch(Monitor& monitor) : monitor_(monitor) { monitor_.count_call(); }
  ~Stopwatch() { stop(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  // Returns f(), which runs code of the other side.
  template <class F>
  auto forward(F&& f) {
    const struct Timed {
      Stopwatch& watch;
      Clock::time_point begin = Clock::now();
      ~Timed() { watch.forwarded_ += Clock::now() - begin; }
    } timed{*this};
    return f();
  }
  std::chrono::nanoseconds forwarded() const { return forwarded_; }
  // Ends the measurement. Returns the time since it began.
  std::chrono::nanoseconds stop() {
    const std::chrono::nanoseconds whole = Clock::now() - begin_;
    if (running_) monitor_.add_own_time(whole - forwarded_);
    running_ = false;
    return whole;
  }

 private:
  Monitor& monitor_;
  bool running_ = true;
  const Clock::time_point begin_ = Clock::now();
  std::chrono::nanoseconds forwarded_{0};
};

}  // namespace yoke::validate
