// A struct of the contract with bytes behind it that nobody may write.
#pragma once

#include <cstring>

#include "yoke/parallel_backend.h"

namespace yoke::validate {

template <class T>
class Guarded {
 public:
  explicit Guarded(const T& value) : block_{value, {}}, header_(value.header) {
    std::memset(block_.canary, kCanary, sizeof block_.canary);
  }
  T& value() { return block_.value; }
  // Returns whether the header of the struct, or the bytes behind it, have changed.
  bool overwritten() const {
    for (const unsigned char byte : block_.canary)
      if (byte != kCanary) return true;
    const YokeHeader& now = block_.value.header;
    return now.struct_size != header_.struct_size || now.struct_id != header_.struct_id ||
           now.next != header_.next;
  }

 private:
  static constexpr unsigned char kCanary = 0xa5;
  struct {
    T value;
    unsigned char canary[64];
  } block_;
  const YokeHeader header_;
};

}  // namespace yoke::validate
