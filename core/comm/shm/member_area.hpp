// What a rank shows to the other members of a group, at a place in its segment.
#pragma once

#include <cstring>

#include "core/comm/shm/announcements.hpp"

namespace yoke {

// All bytes are 0 at first. Followed by one Link for each member, in rank order.
struct MemberArea {
  // Between the rank that owns the area and one other member.
  struct Link {
    QueueHead messages;   // messages from the owner to the member
    SharedCounter taken;  // number of messages from the member that the owner has taken
  };

  alignas(64) std::atomic<uint32_t> aborted;  // 1 = the owner completes nothing any more
  QueueHead collectives;
  SharedCounter taken;  // number of collectives of each member that the owner has taken

  static uint64_t bytes(int members) {
    return sizeof(MemberArea) + static_cast<uint64_t>(members) * sizeof(Link);
  }
  static MemberArea* at(const MappedSegment& segment, uint64_t offset) {
    return reinterpret_cast<MemberArea*>(segment.at(offset));
  }
  Link& link(int member) { return reinterpret_cast<Link*>(this + 1)[member]; }
};

}  // namespace yoke
