// Constructors of the two kinds of Communicator, for Communicators.
#pragma once

#include <memory>
#include <string>

#include "core/comm/communicator.hpp"
#include "core/comm/counting_backend.hpp"

namespace yoke {

// Makes a communicator of several ranks. `name` is the name of its c10d process group.
std::unique_ptr<Communicator> make_communicator(c10::intrusive_ptr<CountingBackend> backend,
                                                const std::string& name);
// Makes a communicator of one rank, which needs no transport: its operations at most copy memory.
std::unique_ptr<Communicator> make_self_communicator(int32_t global_rank,
                                                     const std::string& name,
                                                     bool on_device);

}  // namespace yoke
