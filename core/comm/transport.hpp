// The interface below the communicators: how the ranks of a world reach each other.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/comm/rendezvous.hpp"

namespace yoke {

// The members of a new group.
struct Members {
  std::vector<int32_t> ranks;  // global ranks, ascending
  int32_t rank = 0;            // index of this process or thread in ranks
};

// The connections of one rank. One thread at a time.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual c10d::Store& store() = 0;
  // Connects a group for tensors in CPU memory. Collective over the members. The name must be the
  // same on all members and belong to no other group.
  virtual c10::intrusive_ptr<c10d::Backend> connect(const std::string& name,
                                                    const Members& members) = 0;
  // Like connect(), for tensors on CommOptions::device. parent: see DeviceGroup.
  virtual c10::intrusive_ptr<c10d::Backend> connect_device(const std::string& name,
                                                           const Members& members,
                                                           c10d::Backend* parent) = 0;
  // Throws Error(UNAVAILABLE) if the world is known to be broken. Not collective.
  virtual void require_alive() const = 0;
  // Records that this rank leaves without shutdown, so that waiting peers fail at once.
  virtual void leave_early() = 0;
  // Returns the control connection; NULL if the ranks are threads.
  virtual Member* member() = 0;
  // Returns how tensors travel, for the user: "shared memory of this machine".
  virtual std::string name() const = 0;
};

// Returns nullptr for a world of one rank. Throws Error: INVALID_ARGUMENT unless exactly one of
// control_socket, master_addr and virtual_world is set, if a number is out of range, or if the
// store cannot be served at its address; UNAVAILABLE if the store cannot be reached.
std::unique_ptr<Transport> make_transport(const Rendezvous& rendezvous, const CommOptions& options);

// Short messages between all ranks through the store of a transport. An operation takes
// milliseconds, but works before any group exists. One thread at a time. Every function throws
// Error(UNAVAILABLE) if the store or the world is lost.
class Mailbox {
 public:
  // `transport` is null in a world of one rank, where no function may be called.
  Mailbox(Transport* transport, const CommOptions& options)
      : transport_(transport), options_(options) {}

  void put(const std::string& key, const std::string& value);
  // Adds 1 to the number of the key, which begins with 0. Returns the sum.
  int64_t count(const std::string& key);
  // Sets the value unless the key has one. Returns the value that the key has now.
  std::string claim(const std::string& key, const std::string& value);
  bool has(const std::vector<std::string>& keys);
  // Returns the value if the key is set already. Does not wait.
  std::optional<std::string> peek(const std::string& key);
  // Waits for the key. `sender` names the rank that should set it and appears in messages. Throws
  // Error: DEADLINE_EXCEEDED after the timeout, CANCELLED.
  std::string get(const std::string& key, const std::string& sender);

 private:
  Transport* transport_;
  CommOptions options_;
};

}  // namespace yoke
