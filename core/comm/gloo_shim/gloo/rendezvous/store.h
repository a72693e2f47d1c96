// The declarations that c10d's Gloo backend needs from Gloo. See README.md of this folder.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#define GLOO_STORE_HAS_STORE_V2 1

namespace gloo::rendezvous {

// The key-value store through which the members of a group find each other. The order of the
// virtual functions is part of the ABI of LibTorch.
class Store {
 public:
  using Keys = std::vector<std::string>;
  using Bytes = std::vector<char>;

  virtual ~Store();
  virtual void set(const std::string& key, const Bytes& value) = 0;
  virtual Bytes get(const std::string& key) = 0;
  virtual void wait(const Keys& keys) = 0;
  virtual void wait(const Keys& keys, const std::chrono::milliseconds& timeout) = 0;
  virtual bool has_v2_support() = 0;
  virtual std::vector<Bytes> multi_get(const Keys& keys) = 0;
  virtual void multi_set(const Keys& keys, const std::vector<Bytes>& values) = 0;
  virtual void append(const std::string& key, const Bytes& value) = 0;
  virtual int64_t add(const std::string& key, int64_t value) = 0;
};

}  // namespace gloo::rendezvous
