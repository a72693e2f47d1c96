// The collectives and messages that one rank has issued: counters for the metrics, and histories
// that show at which of them ranks began to differ.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/comm/control_plane.hpp"
#include "core/comm/counting_backend.hpp"
#include "core/comm/mesh.hpp"

namespace yoke {

// One per rank; one thread at a time. Communicators with a single member are not logged.
class CollectiveLog {
 public:
  CollectiveLog(ControlPlane& control, CommCheck check) : control_(control), check_(check) {}

  // Returns the counters that all communicators of these axes share.
  std::shared_ptr<Traffic> traffic(const std::string& axes);
  // Registers the history of a new communicator, which keeps appending to it. All ranks register
  // their histories in the same order.
  void add(const std::string& name, uint32_t axes, std::shared_ptr<const History> history);
  // Registers the history of the messages on a link of that communicator. Not collective.
  void add_link(const std::string& name,
                uint32_t axes,
                const Link& link,
                std::shared_ptr<const History> history);

  // Returns the counts since the last reset; key: name of the axes.
  std::map<std::string, CommCount> counts() const;
  void reset_counts();
  // Returns the counts since the start.
  std::vector<OperationCount> counts_by_operation() const;

  // Returns the recording to which all communicators add what they issue; see World.
  Recording& recording() { return recording_; }

  // Returns the latest collectives of each communicator, and messages of each link, at most 100,
  // oldest first; key: name of the communicator or link. Any thread may call it.
  std::map<std::string, std::vector<std::string>> latest() const;

  // See World::check_collectives().
  std::vector<std::vector<int64_t>> check(const Mesh& mesh,
                                          int32_t rank,
                                          const std::vector<int64_t>& numbers);

 private:
  struct Record {
    std::string name;  // "dp_shard (unshard)"
    uint32_t axes;
    std::shared_ptr<const History> history;
    Link link;  // link of a history of messages; unset for collectives
  };

  std::map<std::string, CommCount> totals() const;
  // Returns the hash of the collectives of the communicators that connect pipeline stages, or of
  // all others.
  uint64_t running_hash(bool across_stages) const;
  // Returns the sum of the hashes of all messages sent, minus that of all messages received.
  uint64_t message_balance(int32_t rank) const;
  std::optional<std::string> compare_histories(const Mesh& mesh);

  ControlPlane& control_;
  const CommCheck check_;
  Recording recording_;
  std::map<std::string, std::shared_ptr<Traffic>> traffic_;  // key: name of the axes
  std::map<std::string, CommCount> at_reset_;                // totals at the last reset
  mutable std::mutex mutex_;                                 // protects records_ against latest()
  std::vector<Record> records_;
};

}  // namespace yoke
