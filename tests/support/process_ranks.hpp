// Ranks as processes with a World each, for tests.
#pragma once

#include <ATen/Parallel.h>

#include <memory>
#include <string>

#include "core/comm/world.hpp"
#include "tests/support/spawn_ranks.hpp"

namespace yoke::test {

inline std::unique_ptr<World> connect(int rank,
                                      int size,
                                      const std::string& socket,
                                      const CommOptions& options) {
  at::set_num_threads(1);
  Rendezvous rendezvous;
  rendezvous.rank = rank;
  rendezvous.world_size = size;
  rendezvous.control_socket = socket;
  return World::connect(rendezvous, options);
}

// Runs body on n ranks and then shuts their worlds down. Expects that every rank succeeds.
inline void processes(int n, const CommOptions& options, const std::function<void(World&)>& body) {
  run_ranks(n, [&](int rank, const std::string& socket) {
    const auto world = connect(rank, n, socket, options);
    body(*world);
    world->shutdown();
  });
}

}  // namespace yoke::test
