// A connection to the hub, as messages.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "core/base/file_descriptor.hpp"
#include "core/control/message.hpp"
#include "core/control/secret.hpp"

namespace yoke {

// One thread at a time. Every function throws Error(UNAVAILABLE) if the connection is closed, or if
// the other side does not behave like a hub.
class HubConnection {
 public:
  // place: the address; noun: what joins the hub, "rank" or "machine". Both are for messages.
  HubConnection(FileDescriptor fd, std::string place, std::string noun = "rank")
      : fd_(std::move(fd)), place_(std::move(place)), noun_(std::move(noun)) {}

  int fd() const { return fd_.get(); }
  // Returns true once the other side has closed the connection.
  bool closed() const { return closed_; }
  // Waits at most three seconds until the kernel has accepted the next part of the message.
  void send(const Message& message);
  // Returns the next message, or nothing if none is complete after `limit`.
  std::optional<Message> receive(std::chrono::milliseconds limit);
  // Proves to the hub that this process knows the secret, and requires the same of the hub. Throws
  // Error(INVALID_ARGUMENT) if the two have different secrets or versions.
  void greet(const Secret& secret);

 private:
  Message expect(MessageType type, size_t num_fields);
  [[noreturn]] void fail(const std::string& why) const;

  static constexpr size_t kLargestFrame = size_t{64} << 20;
  FileDescriptor fd_;
  std::string place_, noun_;
  bool closed_ = false;
  FrameReader reader_{kLargestFrame};
};

}  // namespace yoke
