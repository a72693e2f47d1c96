// Runs one case of a comparison. Does not need LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/compare/case_process.hpp"
#include "core/compare/comparison.hpp"

namespace yoke::compare {

// Runner runs the cases of a plan, one at a time. `plan` must outlive it.
class Runner {
 public:
  explicit Runner(const Plan& plan) : plan_(plan) {}

  // Runs a case once, in the folder `name` of the case. The run saves its state after each of the
  // steps in `states`. Throws Error with the reason if the run failed, and Error (CANCELLED) if a
  // signal interrupted it.
  RunFacts run(const CaseSpec& spec, const std::string& name, const std::vector<int64_t>& states);
  // Runs a case once more, in the folder "held-out" of the case, and returns its loss on the
  // evaluation data after the last step. The case must not be external. Throws like run().
  double held_out_loss(const CaseSpec& spec);

 private:
  // `ours` are keys that belong to the comparison, so they take precedence over those of the user.
  RunFacts run_yoke(const CaseSpec& spec,
                    const std::string& dir,
                    const std::vector<std::string>& ours);
  RunFacts run_external(const CaseSpec& spec, const std::string& dir);
  CommandResult run_to_end(const RankCommand& command, const std::string& dir);
  RankCommand yoke_command(const CaseSpec& spec,
                           const std::string& dir,
                           const std::vector<std::string>& ours) const;
  RankCommand external_command(const CaseSpec& spec, const std::string& dir) const;
  std::vector<std::pair<std::string, std::string>> variables() const;
  RunFacts external_facts(const std::string& dir, const CommandResult& result) const;

  const Plan& plan_;
};

}  // namespace yoke::compare
