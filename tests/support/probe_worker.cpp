// A yoke-worker that can only probe. It does not link LibTorch, so tests of loading
// start in milliseconds.
#include <cstdio>
#include <cstring>
#include <exception>

#include "core/backend/probe.hpp"

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--probe") == 0) return yoke::probe_main(argv[2]);
  if (argc == 3 && std::strcmp(argv[1], "--first-load") == 0) {
    try {
      yoke::probe_in_copy(argv[2]);
      return 0;
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
      return 3;
    }
  }
  std::fprintf(stderr, "usage: probe_worker --probe PATH | --first-load PATH\n");
  return 2;
}
