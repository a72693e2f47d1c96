// Which function of the contract a thread has called, so that the report of a crash can name it.
#pragma once

namespace yoke {

// Name of the function, such as "step"; NULL = none. A signal handler may read it: this model of
// thread-local storage allocates nothing at the first use in a thread.
[[gnu::tls_model("initial-exec")]] inline constinit thread_local const char* backend_call = nullptr;

// Stores the name while a call lasts. Calls may be nested.
class BackendCall {
 public:
  explicit BackendCall(const char* function) : outer_(backend_call) { backend_call = function; }
  ~BackendCall() { backend_call = outer_; }
  BackendCall(const BackendCall&) = delete;
  BackendCall& operator=(const BackendCall&) = delete;

 private:
  const char* outer_;
};

}  // namespace yoke
