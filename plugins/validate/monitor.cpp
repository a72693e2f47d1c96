#include "plugins/validate/monitor.hpp"

#include "yoke/text.hpp"

namespace yoke::validate {
namespace {

// A rule whose violations do not stop the run is logged so often; then it is only counted.
constexpr int64_t kMostWarnings = 5;

}  // namespace

Monitor::Monitor(const YokeHost& host, bool stop, const std::string& trace_file)
    : host_(host), stop_(stop), trace_(trace_file, host.rank) {}

void Monitor::begin(const Function& function) {
  const std::lock_guard lock(mutex_);
  if (function_.name != nullptr) {
    throw Error(YOKE_FAILED_PRECONDITION,
                violation_text(Rule::kOrderOfCalls,
                               concat("rank ", host_.rank),
                               concat(function.name, " is called while ", function_.name, " runs")),
                host_.rank);
  }
  function_ = function;
  function_.thread = std::this_thread::get_id();
  failure_.clear();
}

void Monitor::end() {
  const std::lock_guard lock(mutex_);
  function_ = {};
}

Monitor::Function Monitor::current() const {
  const std::lock_guard lock(mutex_);
  return function_;
}

bool Monitor::violated(Rule rule, const std::string& call, const std::string& what) {
  const Function now = current();
  std::string where = concat("rank ", host_.rank);
  if (now.step >= 0) where += concat(", step ", now.step);
  if (!call.empty()) where += ", " + call;
  if (now.name != nullptr && call != now.name)
    where += concat(call.empty() ? ", " : " in ", now.name);
  const std::string text = violation_text(rule, where, what);
  const std::lock_guard lock(mutex_);
  if (stop_) {
    if (!first_) first_ = Error(YOKE_INTERNAL, text, host_.rank, now.step);
    return true;
  }
  const int64_t count = ++warned_[rule];
  if (count <= kMostWarnings) host_.log(host_.ctx, YOKE_LOG_WARNING, view(text));
  if (count == kMostWarnings) {
    const std::string rest = "further violations of " + id_of(rule) + " are not logged";
    host_.log(host_.ctx, YOKE_LOG_WARNING, view(rest));
  }
  return false;
}

int32_t Monitor::violated(Rule rule,
                          const std::string& call,
                          const std::string& what,
                          YokeError* err) {
  if (!violated(rule, call, what)) return YOKE_OK;
  const std::lock_guard lock(mutex_);
  return fill(err, first_->code(), first_->what(), first_->rank(), first_->step());
}

void Monitor::require_none() const {
  const std::lock_guard lock(mutex_);
  if (!first_) return;
  thrown_ = true;
  throw *first_;
}

void Monitor::note_failure(const std::string& call, int32_t code) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = concat(call, " failed with code ", code);
}

std::string Monitor::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Monitor::trace_call(
    const char* by, const char* name, int32_t code, const Stopwatch& watch, const Fields& fields) {
  if (!trace_.on()) return;
  const Function now = current();
  trace_.write({.by = by,
                .name = name,
                .function = now.name == nullptr ? "" : now.name,
                .step = now.step,
                .code = code,
                .time = watch.forwarded()},
               fields);
}

void Monitor::count_step(std::chrono::nanoseconds whole, std::chrono::nanoseconds own) {
  const std::lock_guard lock(mutex_);
  ++steps_;
  in_steps_ += whole;
  own_in_steps_ += own;
}

void Monitor::log_end(const std::string& inner) const {
  const std::lock_guard lock(mutex_);
  if (first_ && !thrown_)
    host_.log(host_.ctx, YOKE_LOG_ERROR, view(std::string_view(first_->what())));
  const std::string line = "validate: of " + inner + ", it has " + cost();
  if (host_.rank == 0) host_.log(host_.ctx, YOKE_LOG_INFO, view(line));
}

std::string Monitor::cost() const {
  int64_t warnings = 0;
  for (const auto& [rule, count] : warned_) warnings += count;
  const auto milliseconds = [](std::chrono::nanoseconds time) {
    return static_cast<double>(time.count()) / 1e6;
  };
  std::string text = concat("checked ", calls_.load(), " calls");
  if (steps_ > 0) {
    text += string_printf("; its checks took %.2f ms a step, %.1f %% of it",
                          milliseconds(own_in_steps_) / static_cast<double>(steps_),
                          100 * milliseconds(own_in_steps_) / milliseconds(in_steps_));
  }
  return text + concat("; ",
                       warnings == 0   ? "no violation"
                       : warnings == 1 ? "1 violation"
                                       : concat(warnings, " violations"));
}

}  // namespace yoke::validate
