// The two kinds of Communicator, for CommWorld.
#pragma once

#include <memory>
#include <string>

#include "core/comm/communicator.hpp"
#include "core/comm/counting_backend.hpp"

namespace yoke {

// name: of the c10d process group in front of it.
std::unique_ptr<Communicator> make_communicator(c10::intrusive_ptr<CountingBackend> backend,
                                                const std::string& name);
// A communicator of one rank: needs no transport and costs nothing.
std::unique_ptr<Communicator> make_self_communicator(int32_t global_rank,
                                                     const std::string& name,
                                                     bool on_device);

}  // namespace yoke
