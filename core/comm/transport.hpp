// The seam below the communicators: how the ranks of a world reach each other. A new way (shared
// memory) is one more class here.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "core/comm/communicator.hpp"

namespace yoke {

// The members of a new group, by global rank, ascending.
struct Members {
  std::vector<int32_t> ranks;
  int32_t rank = 0;  // of this process or thread, as an index into ranks
};

// One rank's view.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual c10d::Store& store() = 0;
  // Collective over the members. The name must be the same for all of them and for no other group.
  virtual c10::intrusive_ptr<c10d::Backend> connect(const std::string& name,
                                                    const Members& members) = 0;
  // The same for tensors on the device of the options.
  virtual c10::intrusive_ptr<c10d::Backend> connect_device(const std::string& name,
                                                           const Members& members) = 0;
  // Throws Error(UNAVAILABLE) if the world is known to be broken.
  virtual void require_alive() const = 0;
  // This rank leaves without shutdown.
  virtual void desert() = 0;
};

// Throws Error: INVALID_ARGUMENT if not exactly one way to meet is given, a number is out of range
// or the meeting place cannot be, UNAVAILABLE if the store cannot be reached.
std::unique_ptr<Transport> make_transport(const Rendezvous& rendezvous, const CommOptions& options);

// Short messages between all ranks through the store: slow (milliseconds), works before any group
// exists.
class Mailbox {
 public:
  Mailbox(Transport* transport, const CommOptions& options)
      : transport_(transport), options_(options) {}

  void put(const std::string& key, const std::string& value);
  // Puts the value unless the key has one; returns what it has now.
  std::string claim(const std::string& key, const std::string& value);
  bool has(const std::vector<std::string>& keys);
  // The value if it is there already. Throws Error(UNAVAILABLE).
  std::optional<std::string> peek(const std::string& key);
  // Waits for the key. `awaited`: who should have put it, for messages. Throws
  // Error(DEADLINE_EXCEEDED), CANCELLED, UNAVAILABLE.
  std::string get(const std::string& key, const std::string& awaited);

 private:
  Transport* transport_;  // null in a world of one rank, which exchanges nothing
  CommOptions options_;
};

}  // namespace yoke
