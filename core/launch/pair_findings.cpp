// The findings about the network between the machines. Up to kListed machines, each direction gets
// a line; above that, only those that fail or are much slower than the others.
#include <algorithm>

#include "core/launch/compare_machines.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr size_t kListed = 4;
constexpr double kSlowRoundTrip = 0.01;  // seconds
constexpr double kSlowBytes = 12.5e6;    // per second: 100 Mbit/s
constexpr double kFactor = 4;            // a pair that is slower than the median by this is named

std::string speed_text(const PairResult& p) {
  const double bits = p.bytes_per_second * 8, milliseconds = p.round_trip * 1e3;
  return string_printf("%.*f ms there and back, ", milliseconds < 10 ? 2 : 0, milliseconds) +
         (bits < 1e9 ? string_printf("%.3g Mbit/s", bits / 1e6)
                     : string_printf("%.3g Gbit/s", bits / 1e9));
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class PairCheck {
 public:
  PairCheck(const std::vector<Machine>& machines, const MachineReports& reports)
      : machines_(machines), reports_(reports) {
    std::vector<double> speeds, times;
    for (const PairResult& p : reports.pairs) {
      if (!p.fault.empty()) continue;
      speeds.push_back(p.bytes_per_second);
      times.push_back(p.round_trip);
    }
    if (!speeds.empty()) {
      speed_ = median(speeds);
      time_ = median(times);
    }
  }

  double median_speed() const { return speed_; }
  double median_time() const { return time_; }

  MachineFinding one(const PairResult& p) const {
    if (!p.fault.empty()) return unreachable(p);
    const std::string text = arrow(p) + ": " + speed_text(p);
    // A slow network slows down every run; a machine with less memory for its network may be
    // normal.
    if (p.round_trip > kSlowRoundTrip || p.bytes_per_second < kSlowBytes)
      return {"network",
              MachineFinding::kWarning,
              text + ", which is slow for training, unless one of the machines was busy",
              "ethtool " + interface_of(p.from) + ", on both machines"};
    // The medians of few pairs say nothing.
    const bool enough = reports_.pairs.size() >= 6;
    if (enough && (p.bytes_per_second * kFactor < speed_))
      return {"network",
              MachineFinding::kWarning,
              text + string_printf("; the median of all pairs is %.3g Gbit/s", speed_ * 8 / 1e9),
              "ethtool " + interface_of(p.from) + ", on both machines"};
    return {"network", MachineFinding::kOk, text, ""};
  }

 private:
  std::string arrow(const PairResult& p) const {
    return machines_[p.from].name + " to " + machines_[p.to].name;
  }
  const MachineFacts& facts(int machine) const {
    return reports_.facts[machines_[machine].ranks[0]];
  }
  std::string interface_of(int machine) const {
    const std::string& name = facts(machine).interface;
    return name.empty() ? "eth0" : name;
  }
  MachineFinding unreachable(const PairResult& p) const {
    const std::string &from = machines_[p.from].name, &to = machines_[p.to].name;
    const auto back = std::find_if(reports_.pairs.begin(), reports_.pairs.end(), [&](auto& other) {
      return other.from == p.to && other.to == p.from;
    });
    const bool one_way = back != reports_.pairs.end() && back->fault.empty();
    return {"network",
            MachineFinding::kProblem,
            concat(from, " cannot reach ", to, " at ", facts(p.to).address, ": ") + p.fault +
                (one_way ? concat("; ", to, " reaches ", from) : std::string()) +
                (p.fault == "no answer" ? "; a firewall drops the packets" : ""),
            concat("nft list ruleset, on ", to, ": let ", facts(p.from).address, " reach the ") +
                "TCP ports of /proc/sys/net/ipv4/ip_local_port_range"};
  }

  const std::vector<Machine>& machines_;
  const MachineReports& reports_;
  double speed_ = 0, time_ = 0;
};

}  // namespace

std::vector<MachineFinding> check_pairs(const std::vector<Machine>& machines,
                                        const MachineReports& reports) {
  if (machines.size() == 1) {
    return {{"network", MachineFinding::kOk, "not measured: all ranks are on one machine", ""}};
  }
  const PairCheck check(machines, reports);
  std::vector<MachineFinding> findings;
  for (const PairResult& p : reports.pairs) {
    MachineFinding f = check.one(p);
    if (machines.size() <= kListed || f.status != MachineFinding::kOk)
      findings.push_back(std::move(f));
  }
  if (machines.size() > kListed && check.median_speed() > 0) {
    PairResult middle;
    middle.round_trip = check.median_time();
    middle.bytes_per_second = check.median_speed();
    findings.insert(findings.begin(),
                    {"network",
                     MachineFinding::kOk,
                     concat("median of ", reports.pairs.size(), " pairs: ", speed_text(middle)),
                     ""});
  }
  return findings;
}

}  // namespace yoke
