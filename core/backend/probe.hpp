// Loads a backend for the first time in a separate process, so that a crash or a hang in its
// constructors becomes an error message. No LibTorch.
#pragma once

#include <chrono>
#include <string>

namespace yoke {

// The body of `yoke-worker --probe PATH`: loads the backend and prints its description to stdout,
// as a JSON object on one line. Returns the exit code: 0; 3 with the reason on stderr if the
// backend cannot be loaded; 1 if stdout cannot be written. Everything that the backend itself
// prints goes to stderr.
int probe_main(const std::string& path);

// Runs `worker --probe path` and returns the JSON. Examines the file first, and starts nothing if
// it is broken. Throws Error with the text that reject.hpp describes: the reason that probe_main()
// printed, or "killed by signal 11 (SIGSEGV) while loading", or that loading took longer than
// `limit`, which only bounds a hang: a busy machine loads LibTorch slowly. Callers exit with 3.
// Throws Error(INTERNAL) if the worker itself could not be started.
std::string probe_backend(const std::string& worker,
                          const std::string& path,
                          std::chrono::milliseconds limit = std::chrono::minutes(3));

// The same for a worker that is going to load the backend at `path` itself: probe_main() runs in a
// copy of this process, which has loaded LibTorch already. Call it while the process has one
// thread.
void probe_in_copy(const std::string& path,
                   std::chrono::milliseconds limit = std::chrono::minutes(3));

}  // namespace yoke
