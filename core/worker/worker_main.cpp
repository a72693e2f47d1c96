// The process ends by _Exit(), without the destructors of static objects: those of LibTorch take a
// quarter of the time that a worker needs to start and end, and a destructor that uses a library
// which is gone already would make a run that has succeeded look like a crash. Whatever must be
// kept is written before worker_main() returns. A sanitizer reports leaks while a process ends, so
// a build with one ends as usual.
#include <cstdio>
#include <cstdlib>

#include "yoke/worker.hpp"

int main(int argc, char** argv) {
  const int exit_code = yoke::worker_main(argc, argv);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return exit_code;
#else
  std::fflush(nullptr);
  std::_Exit(exit_code);
#endif
}
