// A yoke-worker that can only probe. It does not link LibTorch, so tests of loading
// start in milliseconds.
#include <cstdio>
#include <cstring>

#include "core/backend/probe.hpp"

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--probe") == 0) return yoke::probe_main(argv[2]);
  std::fprintf(stderr, "usage: probe_worker --probe PATH\n");
  return 2;
}
