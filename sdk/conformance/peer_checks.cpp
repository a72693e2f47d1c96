// Checks C28, C35 and C36: lost ranks, failing collectives and missing services.
#include <algorithm>
#include <chrono>
#include <future>
#include <mutex>

#include "sdk/conformance/layouts.hpp"
#include "sdk/conformance/level.hpp"
#include "sdk/conformance/library.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

// Ends the run of a rank, so that its peers do not wait for it.
struct Lost {};

// Runs `body` on every rank; a rank may throw Lost.
void on_ranks_until_lost(Subject& subject,
                         const ParallelBackend& b,
                         const RunSpec& spec,
                         const std::function<void(Instance& instance, TestModel& model)>& body) {
  try {
    on_ranks(subject, b, spec, body);
  } catch (const Lost&) {
  }
}

std::string lost_peer(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  std::mutex mutex;
  std::string wrong;
  const auto layouts = two_ranks(subject, b);
  require_layouts(layouts, subject, b, 2);
  for (const RunSpec& spec : layouts) {
    // Rank 1 waits until rank 0 has returned from wrap_model, which must not lose its peer yet.
    std::promise<void> wrapped;
    const auto is_wrapped = wrapped.get_future().share();
    on_ranks_until_lost(subject, b, spec, [&](Instance& instance, TestModel& model) {
      instance.must(instance.init(), "init");
      instance.must(instance.wrap(model.model()), "wrap_model");
      if (instance.host->rank == 1) {
        is_wrapped.wait_for(std::chrono::seconds(20));
        throw Lost{};
      }
      wrapped.set_value();
      Batch batch(instance.split(), 1);
      const int32_t code = instance.step(batch, 1, 0.01);
      const std::lock_guard lock(mutex);
      if (code != YOKE_UNAVAILABLE)
        wrong = concat("with ",
                       degrees_text(spec.degrees),
                       " and rank 1 lost, step of rank 0 returned ",
                       code_text(code, instance.err),
                       ", expected YOKE_UNAVAILABLE");
    });
    if (!wrong.empty()) throw Failed(wrong);
  }
  return "";
}

// Returns how many collectives, and waits for them, rank 0 issues in a step.
int64_t collectives_of_step(Subject& subject, const ParallelBackend& b, const RunSpec& spec) {
  int64_t count = 0;
  on_ranks(subject, b, spec, [&](Instance& instance, TestModel& model) {
    InstrumentedHost& host = instance.instrument_host();
    instance.must(instance.init(), "init");
    instance.must(instance.wrap(model.model()), "wrap_model");
    const int64_t before = host.collectives;
    Batch batch(instance.split(), 1);
    instance.must(instance.step(batch, 1, 0.01), "step");
    if (instance.host->rank == 0) count = host.collectives - before;
  });
  return count;
}

// Lets collective or wait number k (from 0) of a step fail on every rank.
void fail_collective(Subject& subject, const ParallelBackend& b, const RunSpec& spec, int64_t k) {
  std::mutex mutex;
  std::string wrong;
  on_ranks_until_lost(subject, b, spec, [&](Instance& instance, TestModel& model) {
    InstrumentedHost& host = instance.instrument_host();
    instance.must(instance.init(), "init");
    instance.must(instance.wrap(model.model()), "wrap_model");
    host.fail_collective = k;
    Batch batch(instance.split(), 1);
    const int32_t code = instance.step(batch, 1, 0.01);
    const bool happened = host.fail_collective < 0;
    if (happened && code != YOKE_UNAVAILABLE) {
      const std::lock_guard lock(mutex);
      wrong = concat("with ", degrees_text(spec.degrees), ", collective or wait number ", k + 1) +
              " of a step failed with YOKE_UNAVAILABLE, and step returned " +
              code_text(code, instance.err) + "; it must return the same code";
    }
    instance.destroy_model();
    instance.destroy();
    throw Lost{};
  });
  if (!wrong.empty()) throw Failed(wrong);
}

std::string failing_collective(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  constexpr int64_t kMost = 24;
  int64_t tried = 0;
  const auto layouts = two_ranks(subject, b);
  require_layouts(layouts, subject, b, 2);
  for (const RunSpec& spec : layouts) {
    const int64_t count = collectives_of_step(subject, b, spec);
    const int64_t stride = (count + kMost - 1) / kMost;
    for (int64_t k = count - 1; k >= 0; k -= std::max<int64_t>(1, stride), ++tried)
      fail_collective(subject, b, spec, k);
  }
  if (tried == 0) throw NotRun("it uses native process groups, not yoke.collectives/1");
  return concat(tried, " failures");
}

std::string no_services(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const auto layouts = two_ranks(subject, b);
  require_layouts(layouts, subject, b, 2);
  for (const RunSpec& spec : layouts) {
    on_ranks(subject, b, spec, [&](Instance& instance, TestModel& model) {
      instance.instrument_host().without_services = true;
      const bool made = instance.init() == YOKE_OK;
      if (made && instance.wrap(model.model()) == YOKE_OK)
        throw Failed("init and wrap_model of " + degrees_text(spec.degrees) +
                     " succeeded on a host without any service");
      const std::string slot = made ? "wrap_model" : "init";
      if (instance.err.text[0] == '\0')
        throw Failed(slot + " failed on a host without any service and gave no text");
      if (made ? instance.wrapped.model != nullptr : instance.context != nullptr)
        throw Failed(slot + " failed, but left a handle in its result");
    });
  }
  return "";
}

constexpr Check kRows[] = {
    {"C28",
     "a lost peer is an error",
     "On two ranks along each declared axis, rank 1 is lost before a step. The step of rank 0 "
     "returns YOKE_UNAVAILABLE.",
     "return the code of the collective that failed",
     lost_peer},
    {"C35",
     "the error of a collective is passed on",
     "Each collective of a step, and each wait for one, fails in turn with YOKE_UNAVAILABLE; of "
     "many, "
     "about 24. The step returns that code, and destroy works.",
     "check the code of every collective and of wait",
     failing_collective},
    {"C36",
     "a missing service is refused",
     "With two ranks and a host without services, init or wrap_model fails with a text and returns "
     "no handle.",
     "check whether get_service returned NULL",
     no_services},
};

}  // namespace

void add_peer_checks(std::vector<Check>& table) {
  table.insert(table.end(), std::begin(kRows), std::end(kRows));
}

}  // namespace yoke::conformance
