// Which ranks are on one machine? Names of machines may be equal in two containers, or differ in
// two containers of one machine. So a rank names the running kernel and its table of processes, and
// it counts only if the segment can really be opened there and has the right number.
//
// All ranks of a machine must come to the same conclusion, or one would wait in Gloo and another in
// shared memory. So each says whether it has mapped all segments, and one failure counts for all.
#include "core/comm/shm/shared_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>

#include "core/comm/divergence.hpp"
#include "core/control/member.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// All segments of a rank together get at most this many addresses, of the 2^47 of a process.
constexpr uint64_t kAddresses = uint64_t{1} << 45;

// Returns a text that is equal for processes that can find each other in /proc; "" if that is not
// known.
std::string machine_of_process() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 64> processes{};
  const ssize_t n = ::readlink("/proc/self/ns/pid", processes.data(), processes.size() - 1);
  return boot.empty() || n <= 0 ? "" : boot + " " + processes.data();
}

uint64_t room_for(size_t segments) {
  const auto memory = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                      static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return std::min(memory, kAddresses / segments / 4096 * 4096);
}

std::string offer_key(int32_t rank) {
  return concat("shm/offer/", rank);
}
std::string result_key(int32_t rank) {
  return concat("shm/result/", rank);
}

std::string pack(const SegmentAddress& a) {
  return concat(a.process, " ", a.fd, " ", a.room, " ", a.number);
}
SegmentAddress unpack(const std::string& text) {
  SegmentAddress a;
  std::istringstream(text) >> a.process >> a.fd >> a.room >> a.number;
  return a;
}

void put(c10d::Store& store, const std::string& key, const std::string& value) {
  store.set(key, std::vector<uint8_t>(value.begin(), value.end()));
}

}  // namespace

SharedMemory::SharedMemory(c10d::Store& store,
                           const Member& member,
                           int32_t rank,
                           const std::vector<int32_t>& candidates)
    : member_(&member), rank_(rank), machine_(machine_of_process()) {
  if (machine_.empty()) problem_ = "/proc does not show the running kernel and its processes";
  try {
    if (problem_.empty()) own_ = std::make_unique<Segment>(room_for(candidates.size()));
  } catch (const Error& e) {
    problem_ = e.what();
  }
  put(store, offer_key(rank), join_fields({machine_, own_ ? pack(own_->address()) : ""}));
  map_peers(store, candidates);
}

void SharedMemory::map_peers(c10d::Store& store, const std::vector<int32_t>& candidates) {
  std::vector<int32_t> here;  // the other ranks of this machine
  for (const int32_t r : candidates) {
    if (r == rank_) continue;
    const auto offer = split_fields(store.get_to_str(offer_key(r)));
    if (machine_.empty() || offer.at(0) != machine_) continue;
    here.push_back(r);
    if (!problem_.empty() || offer.at(1).empty()) continue;
    try {
      peers_[r] = std::make_unique<MappedSegment>(unpack(offer.at(1)));
    } catch (const Error& e) {
      problem_ = e.what();
    }
  }
  put(store, result_key(rank_), problem_.empty() ? "ok" : problem_);
  for (const int32_t r : here) {
    const std::string result = store.get_to_str(result_key(r));
    if (result != "ok" && problem_.empty()) problem_ = concat("rank ", r, ": ", result);
  }
  if (!problem_.empty()) peers_.clear();
}

std::string SharedMemory::lost_rank() const {
  const std::lock_guard lock(mutex_);
  return member_ != nullptr && member_->lost() ? member_->cause() : "";
}

void SharedMemory::forget_member() {
  const std::lock_guard lock(mutex_);
  member_ = nullptr;
}

bool SharedMemory::reaches(const std::vector<int32_t>& ranks) const {
  return std::all_of(
      ranks.begin(), ranks.end(), [&](int32_t r) { return r == rank_ || peers_.count(r) != 0; });
}

}  // namespace yoke
