// Checks C14, C21 to C27 and C42: contexts, threads, memory and side effects.
//
// Most of these checks compare bits. A short run is trained once in the usual way and once under an
// unusual condition, such as another thread for each call. If the states differ in a single bit,
// the condition has had an influence that the contract forbids.
#include <sys/prctl.h>

#include <atomic>
#include <barrier>
#include <cstring>
#include <future>
#include <set>
#include <thread>

#include "sdk/conformance/behaviour_checks.hpp"
#include "sdk/conformance/level.hpp"
#include "sdk/conformance/library.hpp"
#include "sdk/conformance/progress.hpp"
#include "sdk/conformance/run.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

// Runs one rank from init to destroy, and calls every function in between at least once.
void run_lifecycle(Instance& instance, const YokeModel& model) {
  instance.must(instance.init(), "init");
  instance.must(instance.wrap(model), "wrap_model");
  for (const int64_t step : {1, 2}) {
    Batch batch(instance.split(), step);
    instance.must(instance.step(batch, step, 0.01), "step");
    instance.must(instance.step(batch, step, 0.01, YOKE_STEP_FORWARD_ONLY), "step");
  }
  const State state = assemble({instance.save()});
  instance.load(state);
  instance.destroy_model();
  instance.destroy();
}

std::string leaves_nothing_behind(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  on_ranks(subject, b, short_run(subject, b), [&](Instance& instance, TestModel& model) {
    constexpr int kLifecycles = 40, kWarmUp = 10;
    constexpr int64_t kLeak = 16 << 10;
    ProcessState warm;
    for (int i = 0; i < kLifecycles; ++i) {
      if (i == kWarmUp) warm = ProcessState::capture();
      run_lifecycle(instance, model.model());
    }
    if (!threads_return_to(warm.threads))
      throw Failed(concat("there are more threads after ",
                          kLifecycles,
                          " lifecycles than after ",
                          kWarmUp,
                          ", when there were ",
                          warm.threads));
    const ProcessState after = ProcessState::capture();
    if (after.files.size() > warm.files.size())
      throw Failed(concat("there are ",
                          after.files.size(),
                          " open descriptors after ",
                          kLifecycles,
                          " lifecycles, but there were ",
                          warm.files.size(),
                          " after ",
                          kWarmUp));
    if (after.resident_kib - warm.resident_kib > kLeak)
      throw Failed(concat("resident memory grew by ",
                          (after.resident_kib - warm.resident_kib) >> 10,
                          " MiB in ",
                          kLifecycles - kWarmUp,
                          " lifecycles of a model of a few KiB"));
  });
  return "";
}

// Throws Failed if resident memory grows during many steps of one model.
std::string long_life(Subject& subject) {
  // The kernel may join pages to a huge one at any time, which adds up to 2 MiB of resident memory.
  ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  const ParallelBackend& b = load_table(subject.path);
  on_ranks(subject, b, short_run(subject, b), [&](Instance& instance, TestModel& model) {
    constexpr int64_t kSteps = 600, kWarmUp = 100, kLeak = 1 << 10;
    instance.must(instance.init(), "init");
    instance.must(instance.wrap(model.model()), "wrap_model");
    int64_t warm = 0;
    for (int64_t step = 1; step <= kSteps; ++step) {
      Batch batch(instance.split(), step);
      instance.must(instance.step(batch, step, 0.01), "step");
      if (step == kWarmUp) warm = ProcessState::capture().resident_kib;
    }
    const int64_t grown = ProcessState::capture().resident_kib - warm;
    if (grown > kLeak)
      throw Failed(concat("resident memory grew by ", grown, " KiB in ", kSteps - kWarmUp) +
                   " steps of a model of a few KiB");
  });
  return "";
}

// Trains two contexts at once. Both are initialized before either of them takes its first step. A
// thread that fails before that point leaves the barrier, so that the other one does not wait
// forever.
std::string independent_contexts(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const RunSpec spec = short_run(subject, b);
  const Trace alone = train(subject, b, spec);
  Trace both[2];
  std::exception_ptr thrown[2];
  std::barrier both_ready(2);
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      bool ready = false;
      RunHooks hooks;
      hooks.prepare = [&](Instance&, FaultInjection&) {
        ready = true;
        both_ready.arrive_and_wait();
      };
      try {
        both[i] = train(subject, b, spec, hooks);
      } catch (...) {
        thrown[i] = std::current_exception();
      }
      if (!ready) both_ready.arrive_and_drop();
    });
  }
  for (std::thread& t : threads) t.join();
  for (int i = 0; i < 2; ++i) {
    if (thrown[i]) std::rethrow_exception(thrown[i]);
    const std::string off = difference(both[i].state, alone.state, 0);
    if (!off.empty()) throw Failed("with another context at work at the same time, " + off);
  }
  return "";
}

// Makes each call on a new thread. All threads exist until the end, because a thread that starts
// after another one has ended may get its id and its thread-local memory.
class FreshThreads {
 public:
  ~FreshThreads() {
    over_ = true;
    over_.notify_all();
    for (std::thread& t : threads_) t.join();
  }
  void run(const std::function<void()>& f) {
    const auto done = std::make_shared<std::promise<void>>();
    threads_.emplace_back([this, &f, done] {
      try {
        f();
        done->set_value();
      } catch (...) {
        done->set_exception(std::current_exception());
      }
      over_.wait(false);
    });
    done->get_future().get();
  }

 private:
  std::atomic<bool> over_{false};
  std::vector<std::thread> threads_;
};

std::string any_thread(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const RunSpec spec = short_run(subject, b);
  const Trace usual = train(subject, b, spec);
  on_ranks(subject, b, spec, [&](Instance& instance, TestModel& model) {
    State state;
    FreshThreads threads;
    threads.run([&] { instance.must(instance.init(), "init"); });
    threads.run([&] { instance.must(instance.wrap(model.model()), "wrap_model"); });
    for (int64_t step = 1; step <= spec.steps; ++step) {
      threads.run([&] {
        Batch batch(instance.split(), step);
        instance.must(instance.step(batch, step, spec.lr(step)), "step");
      });
    }
    threads.run([&] { state = assemble({instance.save()}); });
    threads.run([&] { instance.destroy_model(); });
    threads.run([&] { instance.destroy(); });
    const std::string off = difference(state, usual.state, 0);
    if (!off.empty()) throw Failed("with every call on another thread, " + off);
  });
  return "";
}

std::string prints_nothing(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  CapturedOutput output;
  on_ranks(subject, b, short_run(subject, b), [&](Instance& instance, TestModel& model) {
    InstrumentedHost& host = instance.instrument_host();
    run_lifecycle(instance, model.model());
    if (!host.log_fault().empty()) throw Failed(host.log_fault());
  });
  on_ranks(subject, b, short_run(subject, b), [&](Instance& instance, TestModel& model) {
    instance.must(instance.init(), "init");
    instance.must(instance.wrap(model.model()), "wrap_model");
    model.fault_injection().fail_forward = 1;
    Batch batch(instance.split(), 1);
    instance.step(batch, 1, 0.01);
  });
  const std::string printed = output.printed();
  if (!printed.empty())
    throw Failed(concat("it printed '", printed.substr(0, 100), "' on stdout or stderr"));
  return "";
}

std::string silent_after_destroy(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  on_ranks(subject, b, short_run(subject, b), [&](Instance& instance, TestModel& model) {
    // LibTorch and the C library start some threads once per process. This first lifecycle starts
    // them.
    run_lifecycle(instance, model.model());
    InstrumentedHost& host = instance.instrument_host();
    // Comparing numbers of threads would not be enough, because a thread of the first lifecycle may
    // end in the meantime.
    const std::set<int> before = thread_ids();
    run_lifecycle(instance, model.model());
    if (const size_t left = threads_left(before); left > 0)
      throw Failed(concat(left, left == 1 ? " thread" : " threads", " of this lifecycle ") +
                   "still run one second after destroy");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const int64_t late = host.calls - instance.calls_before_return;
    if (late != 0)
      throw Failed(concat("the host was called ", late, " times after destroy had returned"));
  });
  return "";
}

std::string process_unchanged(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  on_ranks(subject, b, short_run(subject, b), [&](Instance& instance, TestModel& model) {
    ProcessState before = ProcessState::capture();
    for (const char* which : {"the first", "the second"}) {
      run_lifecycle(instance, model.model());
      ProcessState after = ProcessState::capture();
      const ProcessState left = after;
      // A library may open a file once and keep it open. C14 reports a file that is opened in every
      // lifecycle.
      if (which[4] == 'f') after.files = before.files;
      const std::string changed = after.changed_since(before);
      if (!changed.empty())
        throw Failed(concat("after ", which, " lifecycle from init to destroy, ", changed));
      before = left;
    }
  });
  return "";
}

// Trains with an instrumented model and returns the state. Throws Failed if the backend has not
// released everything after destroy. If `poison` is true, the arguments of init are overwritten
// after the call, and each gradient as soon as the on_grad_ready that delivered it has returned.
// Sets `note` if the backend does not use the callbacks.
State instrumented_run(Subject& subject, const RunSpec& spec, bool poison, std::string& note) {
  State state;
  on_ranks(subject, load_table(subject.path), spec, [&](Instance& instance, TestModel& model) {
    InstrumentedModel& watched = instance.instrument(model.model());
    watched.poison = poison;
    instance.must(instance.init(), "init");
    // What the struct points to stays: a backend copies the struct.
    if (poison) std::memset(&instance.init_args, 0xff, sizeof instance.init_args);
    instance.must(instance.wrap(watched.model()), "wrap_model");
    for (int64_t step = 1; step <= spec.steps; ++step) {
      Batch batch(instance.split(), step);
      instance.must(instance.step(batch, step, spec.lr(step)), "step");
    }
    state = assemble({instance.save()});
    {
      Batch batch(instance.split(), 1);
      instance.must(instance.step(batch, spec.steps, 0, YOKE_STEP_FORWARD_ONLY), "step");
    }
    instance.destroy_model();
    instance.destroy();
    if (!watched.leaks().empty()) throw Failed("after destroy, " + watched.leaks());
    if (watched.calls[InstrumentedModel::kForward] == 0)
      note = "it uses the LibTorch blocks and not the callbacks";
  });
  return state;
}

std::string returns_what_it_owns(Subject& subject) {
  const RunSpec spec = short_run(subject, load_table(subject.path));
  std::string note;
  const State usual = instrumented_run(subject, spec, false, note);
  const std::string off = difference(instrumented_run(subject, spec, true, note), usual, 0);
  if (!off.empty())
    throw Failed("with arguments and gradients that become garbage when their call returns, " +
                 off);
  return note;
}

std::string offsets_and_strides(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const RunSpec spec = short_run(subject, b);
  const Trace usual = train(subject, b, spec);
  on_ranks(subject, b, spec, [&](Instance& instance, TestModel& model) {
    InstrumentedModel& watched = instance.instrument(model.model());
    watched.use_offsets = true;
    instance.must(instance.init(), "init");
    instance.must(instance.wrap(watched.model()), "wrap_model");
    for (int64_t step = 1; step <= spec.steps; ++step) {
      Batch batch(instance.split(), step);
      batch.use_offsets();
      instance.must(instance.step(batch, step, spec.lr(step)), "step");
    }
    const std::string off = difference(assemble({instance.save()}), usual.state, 0);
    if (!off.empty())
      throw Failed("with a byte_offset and strides in inputs and gradients, " + off);
  });
  return "";
}

constexpr Check kRows[] = {
    {"C14",
     "repeated lifecycles leak nothing",
     "A lifecycle from init to destroy runs 40 times. Afterwards there are no more threads and "
     "descriptors than after the 10th time, and resident memory has grown by at most 16 MiB.",
     "free in destroy_model what wrap_model made, and in destroy what init made",
     leaves_nothing_behind},
    {"C42",
     "steps leak nothing",
     "A model trains for 600 steps. After the first 100, resident memory grows by at most 1 MiB.",
     "free at the end of a step what it has allocated",
     long_life},
    {"C21",
     "contexts are independent",
     "Two threads train two contexts at the same time. Each ends with the same bits as a context "
     "that trains alone.",
     "keep state in the context and in the model, never in static variables",
     independent_contexts},
    {"C22",
     "calls are not tied to a thread",
     "init, wrap_model, every step, checkpoint and both destroys run on different threads. The "
     "state has the same bits as with one thread.",
     "keep nothing in thread_local variables between calls",
     any_thread},
    {"C23",
     "it prints nothing and logs well-formed lines",
     "A lifecycle prints nothing on stdout and stderr, and neither does a step that fails. Log "
     "lines "
     "have a level from 1 to 4, are UTF-8 and contain no newline.",
     "pass lines to host->log",
     prints_nothing},
    {"C24",
     "nothing runs after destroy",
     "One second after destroy, no thread that the lifecycle started is still running, and the "
     "host is not called any more.",
     "join every thread in destroy",
     silent_after_destroy},
    {"C25",
     "the state of the process is unchanged",
     "A lifecycle leaves the current directory, locale, umask, environment, signal handlers and "
     "floating-point mode unchanged. The second lifecycle leaves the descriptors unchanged as "
     "well.",
     "remove the call, or restore what it changed before the function returns",
     process_unchanged},
    {"C26",
     "owned objects are released and borrowed memory is not kept",
     "Each `saved` is passed to block_backward or drop_saved once, and each managed tensor to its "
     "deleter before destroy returns. Gradients, inputs and the struct of arguments of init become "
     "garbage after their call, and the state has the same bits.",
     "copy a gradient inside on_grad_ready and the struct that init receives, and delete carry_out "
     "after the backward that used it",
     returns_what_it_owns},
    {"C27",
     "tensors may have offsets and strides",
     "Inputs and gradients have a byte_offset, and strides that describe a compact tensor. The "
     "state has the same bits as without them.",
     "read from data + byte_offset (yoke::data does), and treat NULL strides as compact",
     offsets_and_strides},
};

}  // namespace

void add_lifecycle_checks(std::vector<Check>& table) {
  table.insert(table.end(), std::begin(kRows), std::end(kRows));
}

}  // namespace yoke::conformance
