// How a process that cannot take part in a run tells the others, before it has joined them.
#pragma once

#include <cstdint>
#include <string>

#include "core/control/listening.hpp"
#include "core/control/secret.hpp"

namespace yoke {

// The rank that declines, and the address of the hub.
struct Declining {
  ControlAddress at;
  int32_t rank = 0;
  int32_t world_size = 1;
  bool one_machine = false;  // all ranks are on this machine
  std::string job = {};      // as in HubOptions
  Secret secret = {};
};

// Tells all ranks `why`, so that they end instead of waiting. Rank 0 starts a hub and serves it
// until every rank has been told, for at most five seconds; another rank tries to reach the hub for
// 30 seconds, because rank 0 may start later. Never throws: the caller prints the reason before.
void decline_run(const Declining& declining, const std::string& why) noexcept;

}  // namespace yoke
