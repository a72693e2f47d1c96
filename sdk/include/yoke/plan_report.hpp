// PlanReport, through which a backend reports the keys of a run that it does not accept, and notes
// for the user. yoke/backend.hpp includes this header. Does not need LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "yoke/error.hpp"
#include "yoke/parallel_backend.h"

namespace yoke {

// A refusal or a note that is collected first and reported later, for example by code that reads
// another program's config. The members are the arguments of PlanReport::refuse and note.
struct PlanMessage {
  std::string key, given, allowed, hint;
  bool is_note = false;
};
using PlanMessages = std::vector<PlanMessage>;

// The report of plan on a run: refusals, notes and equivalents. Each goes to the host at once, and
// its texts are copied.
//
//   report.refuse("tp_degree", "3", "1, 2, 4", "set tp_degree = 2");
//   report.note("mine.overlap", "true", "it has no effect on the CPU");
//   report.equivalent("mine.json: stage", "3", "dp_shards = 8");
//
// Report every refusal, not only the first one. After a refusal the plan fails with
// INVALID_ARGUMENT, and what it has filled in is not used. One thread, for the duration of plan.
class PlanReport {
 public:
  // args must outlive this object.
  explicit PlanReport(const YokePlanArgs& args) : args_(args) {}

  // Reports a key that this backend does not accept. key: its full name in a run file, such as
  // "tp_degree" or "mine.unit_bytes". given: the value there. allowed: the values that are
  // accepted. hint: what to write instead.
  void refuse(std::string_view key,
              std::string_view given,
              std::string_view allowed,
              std::string_view hint) {
    send(key, given, allowed, hint, 0);
    ++count_;
  }
  // Reports something that the user should know. The plan is accepted all the same.
  void note(std::string_view key, std::string_view given, std::string_view hint) {
    send(key, given, "", hint, 1);
  }
  // Reports the line of a run file, "tp_degree = 2", that means the same as a key of another
  // program's config. `yoke config import` prints these lines.
  void equivalent(std::string_view key, std::string_view given, std::string_view line) {
    send(key, given, line, "", 1);
  }
  // Reports messages that were collected before, in their order.
  void add(const PlanMessages& messages) {
    for (const PlanMessage& m : messages) {
      if (m.is_note) {
        note(m.key, m.given, m.hint);
      } else {
        refuse(m.key, m.given, m.allowed, m.hint);
      }
    }
  }
  // Refuses every parameter that no block uses. hint: why this backend needs it in a block.
  void refuse_unused_params(const YokeModelSummary& model, std::string_view hint) {
    std::vector<bool> used(model.num_params, false);
    for (uint64_t b = 0; b < model.num_blocks; ++b) {
      const YokeBlock& block = *model.blocks[b];
      for (uint64_t i = 0; i < block.num_params; ++i) used[block.params[i]] = true;
    }
    for (uint64_t p = 0; p < model.num_params; ++p) {
      if (used[p]) continue;
      refuse("model",
             "parameter '" + std::string(view(model.params[p]->name)) + "' in no block",
             "every parameter in at least one block",
             hint);
    }
  }
  // Counts refusals that were reported without this object, as the functions of yoke/author.h do.
  void add(int refused) { count_ += refused; }

  // Returns true if the host asks for forecasts of a training step.
  bool wants_forecasts() const { return forecasts() != nullptr; }
  // Reports the forecast of one coordinate on YOKE_PP. Call it for each of them, in ascending
  // order, and only if wants_forecasts() is true and count() is 0. Copies the forecast.
  void forecast(const YokeForecast& forecast) { forecasts()->add(forecasts()->ctx, &forecast); }

  // Returns the number of refusals so far.
  int count() const { return count_; }

 private:
  const YokeForecasts* forecasts() const {
    for (const YokeHeader* h = args_.header.next; h != nullptr; h = h->next) {
      if (h->struct_id == YOKE_ID_FORECASTS) return reinterpret_cast<const YokeForecasts*>(h);
    }
    return nullptr;
  }

  void send(std::string_view key,
            std::string_view given,
            std::string_view allowed,
            std::string_view hint,
            int note) {
    // Strings of the contract end with a 0, which a string_view need not.
    const std::string k(key), g(given), a(allowed), h(hint);
    YokeRefusal r{};
    r.header = YOKE_HEADER(YokeRefusal, YOKE_ID_REFUSAL);
    r.key = view(k);
    r.given = view(g);
    r.allowed = view(a);
    r.hint = view(h);
    r.note = note;
    args_.refuse(args_.refuse_ctx, &r);
  }

  const YokePlanArgs& args_;
  int count_ = 0;
};

}  // namespace yoke
