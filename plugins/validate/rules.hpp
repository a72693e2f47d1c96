// The rules of the contract that this backend checks, as one table. README.md contains the same
// table; a test compares the two.
#pragma once

#include <string>
#include <vector>

namespace yoke::validate {

// The number of a rule is its position here, starting with V1.
enum class Rule {
  // What plan does.
  kPlanKeepsWhatIsSet = 1,
  kPlanStaysWithinDescribe,
  kPlanIsPure,
  kRefusalsAndCodeAgree,
  // What every function of a backend returns.
  kFailuresAreExplained,
  kErrorsArePassedOn,
  kResultsStayInTheirStructs,
  kByteCountsAreSensible,
  // How a backend calls the model.
  kThreadOfTheCall,
  kCallbackArguments,
  kBoundViews,
  kBoundBeforeUse,
  kCarryStaysUnchanged,
  kSavedIsUsedOnce,
  kSavedEndsWithTheStep,
  kManagedIsDeletedOnce,
  kGradientsAreNotKept,
  // What a step does.
  kEvaluationChangesNothing,
  kResultIsPlausible,
  kRanksAgree,
  kAsksForCancel,
  // How a backend uses the services of the host.
  kOperationArguments,
  kWorksAreWaitedFor,
  kSameOrderOnAllRanks,
  kOnlyInCollectiveFunctions,
  kLogLines,
  // What a backend shows in a checkpoint.
  kPiecesAreWellFormed,
  kPiecesAreComplete,
  kReplicasAreEqual,
  kSamePiecesEachTime,
  kStepIsThatOfTheRun,
  kLoadIsKept,
  // What the host does.
  kOrderOfCalls,
  kPlanIsComplete,
  kBatchIsWellFormed,
  kStepNumbers,
  kRanksGetTheSameArguments,
  kArgumentsLive,
  kBlocksReturnWhatTheyPromise,
  kEnd,
};

// One row of the table.
struct RuleRow {
  Rule rule;
  bool of_host;      // the host must keep it, and not the backend
  const char* text;  // what must hold
  const char* fix;   // how to repair a violation
};

// Returns all rules in ascending order.
const std::vector<RuleRow>& rule_table();
// Returns the row of a rule.
const RuleRow& row_of(Rule rule);
// Returns the name of a rule, "V7".
std::string id_of(Rule rule);
// Returns the message about a violation. where: "rank 1, step 3". what: a clause.
std::string violation_text(Rule rule, const std::string& where, const std::string& what);

}  // namespace yoke::validate
