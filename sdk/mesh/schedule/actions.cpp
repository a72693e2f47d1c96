// The only table of action kinds. Messages, the checker and the executor's traces all read it, so a
// new kind of action is described in one place.
#include <iterator>
#include <string>

#include "sdk/mesh/schedule/schedule.hpp"

namespace yoke::mesh {
namespace {

using K = ActionKind;
using C = CommPurpose;

// clang-format off
constexpr ActionInfo kActions[] = {
// kind                      name                  issues on               waits for
  {K::kReduceScales,         "ReduceScales",       C::kUnshard,            K::kReduceScales},
  {K::kUnshard,              "Unshard",            C::kUnshard,            {}},
  {K::kWaitUnshard,          "WaitUnshard",        C::kNone,               K::kUnshard},
  {K::kReshard,              "Reshard",            C::kNone,               {}},
  {K::kForward,              "Forward",            C::kNone,               {}},
  {K::kRecompute,            "Recompute",          C::kNone,               {}},
  {K::kBackward,             "Backward",           C::kNone,               {}},
  {K::kBackwardInput,        "BackwardInput",      C::kNone,               {}},
  {K::kBackwardWeight,       "BackwardWeight",     C::kNone,               {}},
  {K::kSendCarry,            "SendCarry",          C::kNone,               {}, MessageInfo{false, MessageInfo::kSend}},
  {K::kReceiveCarry,         "ReceiveCarry",       C::kNone,               {}, MessageInfo{false, MessageInfo::kReceive}},
  {K::kWaitCarry,            "WaitCarry",          C::kNone,               {}, MessageInfo{false, MessageInfo::kWait}},
  {K::kFreeCarry,            "FreeCarry",          C::kNone,               {}, MessageInfo{false, MessageInfo::kFree}},
  {K::kSendCarryGrad,        "SendCarryGrad",      C::kNone,               {}, MessageInfo{true, MessageInfo::kSend}},
  {K::kReceiveCarryGrad,     "ReceiveCarryGrad",   C::kNone,               {}, MessageInfo{true, MessageInfo::kReceive}},
  {K::kWaitCarryGrad,        "WaitCarryGrad",      C::kNone,               {}, MessageInfo{true, MessageInfo::kWait}},
  {K::kFreeCarryGrad,        "FreeCarryGrad",      C::kNone,               {}, MessageInfo{true, MessageInfo::kFree}},
  {K::kReduceGrad,           "ReduceGrad",         C::kReduceGrad,         {}},
  {K::kWaitReduce,           "WaitReduce",         C::kNone,               K::kReduceGrad},
  {K::kAllReduceGrad,        "AllReduceGrad",      C::kAllReduceGrad,      {}},
  {K::kWaitGrad,             "WaitGrad",           C::kNone,               K::kAllReduceGrad},
  {K::kExchangeTied,         "ExchangeTied",       C::kNone,               {}},
  {K::kReducePartialGrads,   "ReducePartialGrads", C::kReducePartialGrads, K::kReducePartialGrads},
  {K::kReduceLoss,           "ReduceLoss",         C::kWorld,              K::kReduceLoss},
  {K::kReduceScalars,        "ReduceScalars",      C::kWorld,              K::kReduceScalars},
  {K::kUpdate,               "Update",             C::kNone,               {}},
};
// clang-format on

constexpr bool rows_are_in_order() {
  for (size_t i = 0; i < std::size(kActions); ++i) {
    if (static_cast<size_t>(kActions[i].kind) != i) return false;
  }
  return std::size(kActions) == static_cast<size_t>(K::kUpdate) + 1;
}
static_assert(rows_are_in_order(), "one row per kind, in the order of the enumeration");

}  // namespace

const ActionInfo& info_of(ActionKind kind) {
  return kActions[static_cast<size_t>(kind)];
}

bool is_computation(ActionKind kind) {
  return kind == ActionKind::kForward || kind == ActionKind::kRecompute ||
         kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput ||
         kind == ActionKind::kBackwardWeight;
}

std::string to_string(const Action& action) {
  std::string text = info_of(action.kind).name;
  if (action.unit >= 0) text += " unit " + std::to_string(action.unit);
  if (action.stage >= 0) text += " stage " + std::to_string(action.stage);
  if (action.block >= 0) text += " block " + std::to_string(action.block);
  if (action.micro >= 0) text += " micro " + std::to_string(action.micro);
  if (action.peer >= 0) text += ", peer rank " + std::to_string(action.peer) + " of pp";
  if (action.save == Save::kInput) text += " save input";
  if (action.save == Save::kAll) text += " save";
  if (action.bytes > 0) text += ", " + std::to_string(action.bytes) + " bytes";
  return text;
}

}  // namespace yoke::mesh
