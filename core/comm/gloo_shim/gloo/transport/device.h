// The declarations that c10d's Gloo backend needs from Gloo. See README.md of this folder.
#pragma once

namespace gloo::transport {

class Device;

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer();
};

}  // namespace gloo::transport
