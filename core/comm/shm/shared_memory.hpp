// The segments of the ranks of one machine, through which they exchange tensors.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "core/base/shared_segment.hpp"

namespace yoke {

class Member;

// One per rank. All functions may be called from any thread.
class SharedMemory {
 public:
  // Makes the segment of this rank and maps those of the other ranks of its machine. `candidates`
  // are the ranks that may be on it, ascending, among them `rank`. If that fails on any rank of the
  // machine, none of its ranks shares memory. `member` must live until forget_member(). Collective
  // over the candidates. Throws the errors of the store.
  SharedMemory(c10d::Store& store,
               const Member& member,
               int32_t rank,
               const std::vector<int32_t>& candidates);

  // Returns why this machine's ranks do not share memory; "" if they do.
  const std::string& problem() const { return problem_; }
  // Returns true if all these ranks share memory with this one, which is among them.
  bool reaches(const std::vector<int32_t>& ranks) const;
  // Returns the number of ranks that share memory, this one among them.
  int size() const { return static_cast<int>(peers_.size()) + 1; }

  Segment& own() { return *own_; }
  // Returns the segment of another rank that this one reaches.
  const MappedSegment& of(int32_t rank) const { return *peers_.at(rank); }

  // Returns the cause if a rank of the run is known to be lost, else "".
  std::string lost_rank() const;
  // Ends the use of the member.
  void forget_member();

 private:
  void map_peers(c10d::Store& store, const std::vector<int32_t>& candidates);

  mutable std::mutex mutex_;  // guards member_
  const Member* member_;
  int32_t rank_;
  std::string machine_;  // "" = unknown
  std::string problem_;
  std::unique_ptr<Segment> own_;
  std::map<int32_t, std::unique_ptr<MappedSegment>> peers_;
};

}  // namespace yoke
