// Loading a backend for the first time in a process of its own, so that a crash or a hang in its
// constructors becomes a sentence. No LibTorch here; the process is yoke-worker.
#pragma once

#include <chrono>
#include <string>

namespace yoke {

// `yoke-worker --probe PATH`: loads the backend and prints its description as one JSON object, one
// line, on stdout. Returns the exit code: 0, or 3 with the reason on stderr. Whatever the backend
// itself prints goes to stderr.
int probe_main(const std::string& path);

// Runs `worker --probe path` and returns the JSON. Looks at the file first and starts nothing if
// that fails. Throws Error: what probe_main said, or "killed by signal 11 (SIGSEGV) while loading",
// or that it did not answer within the time. Callers exit with 3. INTERNAL: the worker itself could
// not be started.
std::string probe_backend(const std::string& worker,
                          const std::string& path,
                          std::chrono::milliseconds limit = std::chrono::seconds(30));

}  // namespace yoke
