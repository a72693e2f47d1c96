// What the ranks of a run tell each other, so that each of them can check them all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "yoke/comm.hpp"

namespace yoke::validate {

// Collective over the world; one thread at a time.
class Ranks {
 public:
  explicit Ranks(const YokeHost& host) : comm_(host, YOKE_ALL_AXES, "validate") {}

  int size() const { return comm_.size(); }

  // Returns the numbers of every rank. All ranks pass equally many.
  std::vector<std::vector<uint64_t>> gather(const std::vector<uint64_t>& own) const;
  // Returns the bytes of every rank, of any size.
  std::vector<std::string> gather(const std::string& own) const;

 private:
  Comm comm_;
};

}  // namespace yoke::validate
