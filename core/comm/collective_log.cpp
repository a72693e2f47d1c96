// The check of a step costs one small reduction: every rank hashes all collectives that it has
// issued, and the hashes are compared. Only when they differ are the histories themselves sent to
// rank 0, which finds the first collective that differs.
//
// A hash covers several communicators of a rank, so the check assumes that every rank issues the
// same list on its own communicators of each purpose. The ranks of different pipeline stages do
// not: on communicators within a stage, only the ranks of that stage are compared. Messages between
// two ranks are counted, but not compared.
#include "core/comm/collective_log.hpp"

#include <algorithm>
#include <utility>

#include "core/comm/divergence.hpp"
#include "yoke/error.hpp"

namespace yoke {

std::shared_ptr<Traffic> CollectiveLog::traffic(const std::string& axes) {
  auto& traffic = traffic_[axes];
  if (!traffic) traffic = std::make_shared<Traffic>();
  return traffic;
}

void CollectiveLog::add(const std::string& name,
                        uint32_t axes,
                        std::shared_ptr<const History> history) {
  const std::lock_guard lock(mutex_);
  records_.push_back({name, axes, std::move(history)});
}

std::map<std::string, std::vector<std::string>> CollectiveLog::latest() const {
  constexpr size_t kListed = 100;
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::vector<std::string>> latest;
  for (const Record& record : records_) {
    const std::vector<Signature> all = record.history->latest();
    for (size_t i = all.size() - std::min(all.size(), kListed); i < all.size(); ++i)
      latest[record.name].push_back(describe(all[i]));
  }
  return latest;
}

std::map<std::string, CommCount> CollectiveLog::totals() const {
  std::map<std::string, CommCount> totals;
  for (const auto& [name, traffic] : traffic_) {
    CommCount& sum = totals[name];
    for (const auto& [operation, count] : traffic->counts()) {
      sum.calls += count.calls;
      sum.bytes += count.bytes;
      sum.seconds += count.seconds;
    }
  }
  return totals;
}

std::map<std::string, CommCount> CollectiveLog::counts() const {
  std::map<std::string, CommCount> counts = totals();
  for (const auto& [name, before] : at_reset_) {
    CommCount& count = counts[name];
    count.calls -= before.calls;
    count.bytes -= before.bytes;
    count.seconds -= before.seconds;
  }
  return counts;
}

void CollectiveLog::reset_counts() {
  at_reset_ = totals();
}

std::vector<OperationCount> CollectiveLog::counts_by_operation() const {
  std::vector<OperationCount> all;
  for (const auto& [name, traffic] : traffic_) {
    for (const auto& [operation, count] : traffic->counts()) {
      all.push_back({name, name_of(operation.first), dtype_text(operation.second), count});
    }
  }
  return all;
}

uint64_t CollectiveLog::running_hash(bool across_stages) const {
  uint64_t hash = 0;
  for (const Record& record : records_) {
    if (((record.axes & YOKE_AXIS_BIT(YOKE_PP)) != 0) == across_stages)
      hash = mix_hash(hash, record.history->hash());
  }
  return hash;
}

std::optional<std::string> CollectiveLog::compare_histories(const Mesh& mesh) {
  std::vector<NamedHistory> histories;
  for (const Record& r : records_) histories.push_back({r.name, r.axes, *r.history});
  return control_.compare_on_rank0(
      "history", pack_histories(histories), [&](const std::vector<std::string>& all) {
        return differing_history(all, mesh);
      });
}

void CollectiveLog::check(const Mesh& mesh, int32_t rank) {
  if (check_ == CommCheck::kOff) return;
  // All ranks get the same result here, so all take the same branch.
  if (control_.are_equal(running_hash(true),
                         running_hash(false),
                         mesh.coordinate(rank, YOKE_PP),
                         mesh.degree(YOKE_PP),
                         "comparison of the collectives issued so far"))
    return;
  const auto difference = compare_histories(mesh);
  throw Error(
      YOKE_FAILED_PRECONDITION,
      difference.value_or("the ranks have issued different collectives on communicators that they "
                          "do not share; comm.check=off allows that"));
}

}  // namespace yoke
