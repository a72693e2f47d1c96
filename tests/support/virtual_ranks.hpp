// Ranks as threads, for tests.
#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "core/comm/world.hpp"

namespace yoke::test {

// Runs body on n threads, each with its own World of one VirtualWorld. An uncaught exception
// fails the test. body must call shutdown() if the world is to be shut down cleanly.
inline void virtual_ranks(int n,
                          const CommOptions& options,
                          const std::function<void(World&)>& body) {
  const auto shared = make_virtual_world(n);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        Rendezvous rendezvous;
        rendezvous.rank = rank;
        rendezvous.world_size = n;
        rendezvous.virtual_world = shared;
        const auto world = World::connect(rendezvous, options);
        body(*world);
      } catch (const std::exception& e) {
        ADD_FAILURE() << "rank " << rank << ": " << e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

// Runs body like virtual_ranks, and calls shutdown() afterwards.
inline void orderly_virtual_ranks(int n,
                                  const CommOptions& options,
                                  const std::function<void(World&)>& body) {
  virtual_ranks(n, options, [&](World& world) {
    body(world);
    world.shutdown();
  });
}

}  // namespace yoke::test
