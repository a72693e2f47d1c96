// What the numbers of a run must be, and how close to it.
#pragma once

#include <string>

#include "sdk/conformance/layouts.hpp"
#include "sdk/conformance/reference.hpp"

namespace yoke::conformance {

// The allowed relative differences between two correct runs in one dtype.
struct Bounds {
  double loss, norm;
  double state;  // difference of an element, relative to the largest one of the tensor
  // If above 0, the state is compared as a whole instead: distance of all parameters together,
  // relative to their norm, and four times as much for moments.
  double whole;
};
Bounds bounds_of(int32_t dtype);

// Returns a sentence on the first difference between two states, without the kinds that only one
// backend knows, or "".
std::string state_difference(const State& state, const State& expected, const Bounds& bounds);
// Returns a sentence on the first difference between the losses, the norms that are known, and the
// states of two runs, or "".
std::string difference(const Trace& trace, const Trace& expected, const Bounds& bounds);

// Compares runs with what the contract predicts.
//
// The prediction for most backends is the reference. A backend with the trait YOKE_OWN_UPDATE is
// compared with its own run on one rank. Two layouts have no prediction and are left out: ranks
// that update on their own (YOKE_LOCAL_UPDATES), and data ranks on which an own update depends
// (YOKE_RANKS_CHANGE_UPDATE).
class Numbers {
 public:
  Numbers(Subject& subject, const ParallelBackend& backend)
      : subject_(subject), backend_(backend) {}

  // Returns whether there is a prediction for this run.
  bool predicts(const RunSpec& spec) const;
  // Returns the prediction, which must exist.
  Trace expected(const RunSpec& spec) const;

  // Trains with this spec and compares, if there is a prediction. Throws Failed with the layout and
  // the likely cause.
  void expect(const RunSpec& spec);
  // Compares a run that the caller has made.
  void expect(const RunSpec& spec, const Trace& trace);

  // Returns the layouts that were compared, as text. Throws NotRun if none was.
  std::string compared() const;

 private:
  Subject& subject_;
  const ParallelBackend& backend_;
  std::vector<std::string> compared_;
  std::string left_out_;
};

// Returns a failure of a run that names its layout. Its root is the check that examines the numbers
// of as many ranks, unless the failure has another root.
Failed with_layout(const RunSpec& spec, const Failed& failed);

}  // namespace yoke::conformance
