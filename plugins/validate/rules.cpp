#include "plugins/validate/rules.hpp"

#include <iterator>

#include "yoke/text.hpp"

namespace yoke::validate {

namespace {

constexpr RuleRow kRules[] = {
    {Rule::kPlanKeepsWhatIsSet,
     false,
     "plan leaves every field that is set as it is: degrees, world_size, global_batch, "
     "micro_batch, dtypes and the optimizer.",
     "refuse a value that the backend cannot use, and fill only fields that are 0"},
    {Rule::kPlanStaysWithinDescribe,
     false,
     "A plan that plan accepts uses only axes and dtypes that describe declares, and fp16 only "
     "if "
     "the backend knows version 1.1. reduce_dtype is a float at least as wide as param_dtype.",
     "declare it in describe, or refuse it in plan"},
    {Rule::kPlanIsPure,
     false,
     "plan is pure: a second call with the same arguments has the same result.",
     "keep no state in plan, and read nothing but its arguments"},
    {Rule::kRefusalsAndCodeAgree,
     false,
     "plan returns YOKE_INVALID_ARGUMENT if and only if it has reported a refusal or fills the "
     "text of the error. A refusal is a YokeRefusal with a key.",
     "count the refusals, and return YOKE_INVALID_ARGUMENT if there are any"},
    {Rule::kFailuresAreExplained,
     false,
     "A function that fails returns a code of the contract, fills the error with it and with a "
     "text, and sets its result to zero.",
     "fill *err, and clear the result at the start of the function"},
    {Rule::kErrorsArePassedOn,
     false,
     "If a callback, a collective or the visitor fails, the function that called it fails, too. "
     "The exception is YOKE_NOT_FOUND of the visitor for a kind of the backend's own.",
     "check the code of every call, and return it"},
    {Rule::kResultsStayInTheirStructs,
     false,
     "A backend writes at most struct_size bytes of a result, and leaves its header alone.",
     "write results field by field, or with write_result of yoke/backend.hpp"},
    {Rule::kByteCountsAreSensible,
     false,
     "A wrap_model that succeeds returns a handle, and byte counts of -1 or more.",
     "write -1 for a number that you do not know"},
    {Rule::kThreadOfTheCall,
     false,
     "Callbacks of the model are called only by the thread that is inside wrap_model, step, "
     "checkpoint or destroy_model.",
     "call the model from the thread of the call, not from a thread of the backend"},
    {Rule::kCallbackArguments,
     false,
     "The arguments of the model's callbacks are well formed: structs with their id, indices of "
     "parameters and blocks that exist, micro-batches of the step, carry_in and grad_out where "
     "the block has them, in the shape that the block returned.",
     "compare the call with the comments at YokeForwardArgs and YokeBackwardArgs"},
    {Rule::kBoundViews,
     false,
     "A view that is bound is compact, has the shape and the dtype of the parameter, lies on "
     "YokeHost.device, and is aligned to its elements.",
     "bind a view with the shape and dtype of YokeParameter"},
    {Rule::kBoundBeforeUse,
     false,
     "All parameters of a block are bound when the block runs.",
     "call bind_param for each parameter of the block first"},
    {Rule::kCarryStaysUnchanged,
     false,
     "The carry_in of a forward that saves stays valid and unchanged until its `saved` has been "
     "used.",
     "delete the output of a block after the backward of the next one"},
    {Rule::kSavedIsUsedOnce,
     false,
     "Every `saved` is passed to block_backward of its block, or to drop_saved, exactly once.",
     "forget the handle when you pass it on"},
    {Rule::kSavedEndsWithTheStep,
     false,
     "No `saved` is left when step returns, whether it succeeds or fails.",
     "call drop_saved for every forward that gets no backward"},
    {Rule::kManagedIsDeletedOnce,
     false,
     "The deleter of every carry_out and grad_in is called exactly once, before destroy returns.",
     "call the deleter after the last use, and forget the pointer"},
    {Rule::kGradientsAreNotKept,
     false,
     "A gradient is read only inside on_grad_ready. This backend overwrites it with NaN "
     "afterwards, and reports a norm that is not finite although every gradient was.",
     "copy or add up the gradient inside on_grad_ready"},
    {Rule::kEvaluationChangesNothing,
     false,
     "A step with YOKE_STEP_FORWARD_ONLY runs no backward, and leaves the whole state as it was, "
     "bit for bit.",
     "skip backward and update if the flag is set"},
    {Rule::kResultIsPlausible,
     false,
     "loss_weight equals token_weight. grad_norm is 0 or more, +infinity or NaN. loss_sum is "
     "finite unless grad_norm is +infinity. skipped is 1 exactly if grad_norm is +infinity, and "
     "loss_scale is that of the arguments. An evaluation has neither.",
     "fill the result with yoke_report_step of yoke/optimizer.h"},
    {Rule::kRanksAgree,
     false,
     "The result of a step is the same on every rank.",
     "sum loss, targets and norm over the ranks before you return them"},
    {Rule::kAsksForCancel,
     false,
     "A step calls check_cancel at least once for each micro-batch. This holds for backends of "
     "version 1.1.",
     "call check_cancel before each block"},
    {Rule::kOperationArguments,
     false,
     "Operations of YokeCollectives get a communicator and a work of this rank, compact tensors "
     "of the seven dtypes on YokeHost.device, sizes that fit, a known reduction and ranks that "
     "exist.",
     "compare the call with the comments at YokeCollectives"},
    {Rule::kWorksAreWaitedFor,
     false,
     "Every work is waited for exactly once, before destroy returns.",
     "call wait for every work that an operation has returned"},
    {Rule::kSameOrderOnAllRanks,
     false,
     "In a step, all ranks of a communicator issue the same collective operations with the same "
     "dtypes and counts in the same order.",
     "let the operations depend on plan, model and step only"},
    {Rule::kOnlyInCollectiveFunctions,
     false,
     "Communication happens only inside init, wrap_model, step, and checkpoint with SAVE or "
     "LOAD.",
     "move the operation into a collective function"},
    {Rule::kLogLines,
     false,
     "A log line has a level from 1 to 4, is UTF-8, and contains no newline.",
     "log one line at a time"},
    {Rule::kPiecesAreWellFormed,
     false,
     "A piece has the name, shape and dtype of its tensor, elements that exist, a kind of the "
     "contract or one of 1 to 31 characters [a-z0-9_], and a compact view in host memory; with "
     "DESCRIBE it has none.",
     "compare the piece with the comments at YokePiece"},
    {Rule::kPiecesAreComplete,
     false,
     "The pieces with replica 0 of all ranks cover every element of every parameter, of the "
     "moments of every trainable one, and of the step, exactly once. With YOKE_OWN_UPDATE the "
     "moments may be missing.",
     "give replica 0 to exactly one of the ranks that hold an element"},
    {Rule::kReplicasAreEqual,
     false,
     "Pieces with replica > 0 have the bits of the pieces with replica 0. With "
     "YOKE_LOCAL_UPDATES they may differ.",
     "update all copies from the same gradient in the same order"},
    {Rule::kSamePiecesEachTime,
     false,
     "A model shows the same pieces in the same order in every call of checkpoint.",
     "visit the pieces by one function for all values of op"},
    {Rule::kStepIsThatOfTheRun,
     false,
     "The piece `step` has the number of the last update. A step that was skipped does not "
     "count.",
     "store args->step after the update"},
    {Rule::kLoadIsKept,
     false,
     "What the visitor writes on LOAD is what the next SAVE shows.",
     "copy every view back into the state after the visit"},
    {Rule::kOrderOfCalls,
     true,
     "The host calls one function of a context at a time, wrap_model before step and checkpoint, "
     "and destroys all models before the context.",
     "repair the host or the outer backend"},
    {Rule::kPlanIsComplete,
     true,
     "The plan of init is complete: every degree is set and their product is world_size, both "
     "dtypes are set, and the batch divides evenly.",
     "repair the host or the outer backend"},
    {Rule::kBatchIsWellFormed,
     true,
     "A batch has at least one micro-batch and a token_weight above 0. All inputs of a "
     "micro-batch have micro_batch sequences, compact tensors and a role.",
     "repair the host or the outer backend"},
    {Rule::kStepNumbers,
     true,
     "The number of a step is one above that of the last update, and that of an evaluation is "
     "that of the last update. lr is finite and at least 0.",
     "repair the host or the outer backend"},
    {Rule::kRanksGetTheSameArguments,
     true,
     "Step number, flags, lr, loss_scale, token_weight and the number of micro-batches are the "
     "same on every rank.",
     "repair the host or the outer backend"},
    {Rule::kArgumentsLive,
     true,
     "Plan, optimizer and options of init stay as they are until destroy returns.",
     "repair the host or the outer backend"},
    {Rule::kBlocksReturnWhatTheyPromise,
     true,
     "The last block returns no carry; every other block returns one. `saved` is NULL exactly if "
     "save = 0. A backward reports the gradient of every trainable parameter of its block once, "
     "compact and in the shape and dtype of the parameter.",
     "repair the model"},
};

}  // namespace

const std::vector<RuleRow>& rule_table() {
  static const std::vector<RuleRow> rows(std::begin(kRules), std::end(kRules));
  return rows;
}

const RuleRow& row_of(Rule rule) {
  return rule_table().at(static_cast<size_t>(rule) - 1);
}

std::string id_of(Rule rule) {
  return concat("V", static_cast<int>(rule));
}

std::string violation_text(Rule rule, const std::string& where, const std::string& what) {
  const RuleRow& row = row_of(rule);
  return id_of(rule) + ", a fault of the " + (row.of_host ? "host" : "backend") + " (" + where +
         "): " + what + ". The contract: " + row.text + " Fix: " + row.fix;
}

}  // namespace yoke::validate
