// Kinds of state that only one backend has: how it declares them, and which kinds a declaration
// covers. Does not need LibTorch.
//
//   static const std::vector<YokeStateKind> kinds = {
//       yoke::state_kind("feedback", "error of the compression", YOKE_STATE_PER_RANK),
//       yoke::state_kind("w#_param", "parameters of another worker")};
//   static const auto pointers = yoke::pointers_to(kinds);
//   yoke::set_state_kinds(description, pointers);                 // once, in describe
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "yoke/error.hpp"
#include "yoke/parallel_backend.h"

namespace yoke {

// Returns the declaration of a kind of state that only this backend has. The texts must be
// literals. flags: YOKE_STATE_PER_RANK or 0.
inline YokeStateKind state_kind(std::string_view kind, std::string_view doc, uint32_t flags = 0) {
  YokeStateKind k{};
  k.header = YOKE_HEADER(YokeStateKind, YOKE_ID_STATE_KIND);
  k.kind = view(kind);
  k.doc = view(doc);
  k.flags = flags;
  return k;
}

// Returns pointers to the rows of a table of kinds of state, as YokeDescription needs them. Both
// the table and the returned vector must live as long as the process: make them static.
inline std::vector<const YokeStateKind*> pointers_to(const std::vector<YokeStateKind>& rows) {
  std::vector<const YokeStateKind*> pointers;
  for (const YokeStateKind& row : rows) pointers.push_back(&row);
  return pointers;
}

// Adds kinds of state to a description. kinds must live as long as the process.
inline void set_state_kinds(YokeDescription& d, const std::vector<const YokeStateKind*>& kinds) {
  d.state_kinds = kinds.data();
  d.num_state_kinds = kinds.size();
}

// Returns whether a declared kind, in which a # stands for a decimal number, covers `kind`.
inline bool declares_kind(std::string_view declared, std::string_view kind) {
  for (const char c : declared) {
    if (c != '#') {
      if (kind.empty() || kind.front() != c) return false;
      kind.remove_prefix(1);
      continue;
    }
    const size_t digits = std::min(kind.find_first_not_of("0123456789"), kind.size());
    if (digits == 0) return false;
    kind.remove_prefix(digits);
  }
  return kind.empty();
}

}  // namespace yoke
