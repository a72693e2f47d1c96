// Tests the conformance checks with backends that have one known fault each. A hostile backend must
// fail the checks that are listed for its fault, and pass the related checks listed beside them.
// The backend without a fault must pass every check.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "tests/conformance/trial.hpp"

namespace yoke::testing {
namespace {

struct Hostile {
  const char* fault;   // enumerator in hostile_faults.h
  const char* fails;   // ids of the checks that must fail, separated by commas
  const char* passes;  // ids of the checks that must pass
  const char* says;    // part of the output of a failed check
};
void PrintTo(const Hostile& h, std::ostream* out) {
  *out << h.fault;
}

class HostileBackend : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileBackend, FailsExactlyItsOwnChecks) {
  const Hostile& h = GetParam();
  Trial trial(h.fault);
  const std::string fails = h.fails, passes = h.passes;
  const auto status = trial.check(fails + (passes.empty() ? "" : "," + passes), 1);
  for (const std::string& id : words(fails)) {
    EXPECT_EQ(status.count(id) == 0 ? "" : status.at(id), "failed") << id << "\n" << trial.output();
  }
  for (const std::string& id : words(passes)) {
    EXPECT_EQ(status.count(id) == 0 ? "" : status.at(id), "passed") << id << "\n" << trial.output();
  }
  EXPECT_NE(trial.output().find(h.says), std::string::npos) << trial.output();
}

// Without this test, a check that always fails would satisfy the tests above.
TEST(HonestBackend, FailsNothing) {
  Trial trial("HONEST");
  for (const auto& [id, status] : trial.check("", 0)) EXPECT_NE(status, "failed") << id;
}

// Backends that know only a part of what serial knows are good as well.
TEST(HonestBackend, FailsNothingWithOneDtypeOrOneOptimizer) {
  for (const char* only : {"HONEST_FP32", "HONEST_BF16", "HONEST_SGD"}) {
    Trial trial(only);
    size_t passed = 0;
    for (const auto& [id, status] : trial.check("", 0)) {
      EXPECT_NE(status, "failed") << only << " " << id << "\n" << trial.output();
      passed += status == "passed";
    }
    EXPECT_GT(passed, 60u) << only << "\n" << trial.output();
  }
}

// The same backend in fp16.
TEST(HonestBackend, FailsNothingInFp16) {
  Trial trial("HONEST_HALF");
  for (const auto& [id, status] : trial.check("N1,N2,N4,N12,N21,K1", 0))
    EXPECT_EQ(status, "passed") << id;
  EXPECT_EQ(trial.output().find("it declares no fp16"), std::string::npos);
}

const Hostile kHostiles[] = {
    {"UNRESOLVED", "L1", "S1,S3,S4", "undefined symbol: defined_nowhere"},
    {"NEEDS_THE_HOST", "S4,L1", "S3", "yoke_threads_of_the_host"},
    {"EXECUTABLE_STACK", "S6", "S3,S5", "executable stack"},
    {"NEEDS_A_PATH", "S5", "S3,S6,L1", "by a path"},
    {"CRASHES_WHEN_LOADED", "L1", "S3", "died of signal 11 (SIGSEGV), inside dlopen"},
    {"PRINTS_WHEN_LOADED", "L2", "L1", "welcome"},
    {"THREAD_WHEN_LOADED", "L2", "L1", "1 thread(s)"},
    {"ANOTHER_TABLE", "L3", "L7,L13", "another table"},
    {"REFUSES_NEWER_HOSTS", "L4", "L3,L7", "too new for me"},
    {"REFUSES_SILENTLY", "L6", "L1,L3", "no text"},
    {"NEEDS_A_NEWER_HOST", "L7", "L8,L12", "min_host_minor is 42"},
    {"OTHER_MAJOR", "L7", "L8", "abi_major is 2"},
    {"NO_CHECKPOINT", "L8", "L7", "checkpoint is NULL"},
    {"OTHER_NAME", "L12", "L13", "somebody_else"},
    {"UNKNOWN_DEFAULT", "L12", "L8", "gear"},
    {"IMPURE_DESCRIBE", "L13", "L3,L12", "another description"},

    {"THROWS", "C1", "C12", "threw an exception across the C boundary ('no arguments')"},
    {"CRASHES_ON_NULL", "C1", "C12,C13", "SIGSEGV), inside init"},
    {"REFUSES_LONGER", "C3", "C5,C6", "plan refuses it"},
    {"REFUSES_LONGER_BLOCKS", "C3", "C5,C6", "plan refuses it"},
    {"OVERWRITES_RESULT", "C4", "C3", "behind the caller's YokeStepResult"},
    {"REFUSES_EXTENSIONS", "C5", "C3", "extension"},
    {"TAKES_ANY_STRUCT", "C6", "C1", "args has a wrong struct_id: step returned 0"},
    {"STEPS_WITHOUT_MODEL", "C12", "C13", "step returned 0"},
    {"CRASHES_DESTROYING_NULL", "C13", "C12", "SIGSEGV), inside destroy"},
    {"OVERWRITES_TEXT", "C15", "C4", "room for 0 bytes"},

    {"NEEDS_DEGREES", "C9", "C33", "plan refuses"},
    {"TAKES_ANY_AXIS", "C10", "C9,C31", "no refusal with the key 'tp_degree'"},
    {"TAKES_ANY_DTYPE", "C31", "C10", "plan accepts bf16"},
    {"TAKES_ANY_OPTIMIZER", "C32", "C10", "optimizer that does not exist"},
    {"DECLARES_TOO_MUCH", "C33", "C31,C9", "bf16"},
    {"IMPURE_PLAN", "C11", "L13", "on another thread"},
    {"FIRST_REFUSAL_ONLY", "C34", "C31,C32", "train.optimizer"},
    {"FORECASTS_LESS", "C38", "C9", "plan forecasts param_bytes = 1 at coordinate 0 of pp"},

    {"LEAKS_MEMORY", "C14", "C24", "MiB in 30 lifecycles"},
    {"LEAKS_THREADS", "C14,C24", "C25", "more threads"},
    {"SHARED_STATE", "C21", "C22,N1", "another context at work"},
    {"TIED_TO_A_THREAD", "C22", "C21", "made on another thread"},
    {"PRINTS", "C23", "C25", "step 1"},
    {"LOGS_NEWLINES", "C23", "C25", "newline"},
    {"CALLS_AFTER_DESTROY", "C24", "C25", "after destroy"},
    {"CHANGES_FOLDER", "C25", "C24", "current directory is /usr"},
    {"CHANGES_LOCALE", "C25", "C24", "locale"},
    {"CATCHES_SIGNALS", "C25", "C24", "signal 10"},
    {"CHANGES_ROUNDING", "C25", "C24", "floating-point mode"},
    {"KEEPS_ARGS", "C26", "N1", "the arguments of init have become garbage"},
    {"KEEPS_GRADIENTS", "C26", "C1", "garbage"},
    {"KEEPS_CARRIES", "C26", "N1", "not passed to their deleter"},
    {"IGNORES_OFFSETS", "C27", "C26,N1", "byte_offset"},
    {"INVENTS_NORMS", "C30", "N11", "expected NaN"},

    {"HANGS", "C17", "S1", "did not return within 10 s, inside step"},
    {"SWALLOWS_FAILURES", "C18,C37", "C17", "returned 2"},
    {"IGNORES_LOST_PEERS", "C28", "C17", "rank 1 lost"},
    {"EXITS", "C36", "C28", "ended with exit code 0, inside init"},
    {"CRASHES_IN_STEP", "N1", "C13,L12", "SIGSEGV), inside step"},

    {"WRONG_BETA", "N1", "N13,N17", ", expected "},
    {"NO_REDUCTION", "N2", "N1", "the reduction over the data ranks is missing"},
    {"LOCAL_RESULTS", "N2", "N1", "same on every rank"},
    {"MEAN_OF_MEANS", "N5", "N2,N6", "the loss is a mean of means"},
    {"SCALES_BY_MICROS", "N6", "N1,N2", "divided by the number of micro-batches"},
    {"DROPS_TIED", "N8", "N13", "wrong gradients: embed.weight"},
    {"LOCAL_CLIP", "N9", "N1,N13", "before the reduction"},
    {"DECAYS_ALL", "N10", "N1", "weight decay is applied to every parameter"},
    {"TRAINS_ALWAYS", "N11", "N1,N13", "YOKE_STEP_FORWARD_ONLY"},
    {"UPDATES_INFINITE", "N12", "N1", "expected inf"},
    {"EVALUATES_PART", "N11", "N1,N13", "the loss of YOKE_STEP_FORWARD_ONLY"},
    {"COUNTS_EVERY_STAGE", "N2,N11", "N1,C33", "pp_degree 2"},
    {"DRIFTS", "N13", "N1", "second of two equal runs"},
    {"REPLICAS_DRIFT", "N17", "N2", "differs from the copy"},
    {"IGNORES_LOSS_SCALE", "N21", "N1,N12", "loss_scale of the result is 0"},
    {"KEEPS_LOSS_SCALE", "N21", "N1,N12", "the norm of step 1 with the loss scale 64"},
    {"HIDES_SKIPS", "N12,N21", "N1", "has skipped = 0, expected 1"},
    {"WRONG_MOMENTUM", "N19", "N1", ", expected "},

    {"FORGETS_MOMENTS", "K1,K3", "K8", "exp_avg"},
    {"OVERLAPS", "K8", "K10", "two pieces with replica 0"},
    {"HIDES_MOMENTS", "K8,K10", "C13", "no rank shows"},
    {"SAVES_EVERY_STAGE", "K8", "K10,C33", "two pieces with replica 0"},
    {"IGNORES_VISITOR", "K10", "K1,K8", "checkpoint returned 0"},
};

INSTANTIATE_TEST_SUITE_P(All, HostileBackend, ::testing::ValuesIn(kHostiles), [](const auto& info) {
  return std::string(info.param.fault);
});

// ---- Files that must be rejected without running any of their code ----

struct Spoiled {
  const char* what;
  const char* fault;  // enumerator in hostile_faults.h
  std::function<void(const std::string& path)> spoil;
  const char* fails;
  const char* says;
};
void PrintTo(const Spoiled& s, std::ostream* out) {
  *out << s.what;
}

class SpoiledFile : public ::testing::TestWithParam<Spoiled> {};

TEST_P(SpoiledFile, IsRejectedWithoutRunningALineOfIt) {
  const Spoiled& s = GetParam();
  Trial trial(s.fault);
  if (s.spoil) s.spoil(trial.path());
  const auto status = trial.check("S1,S2,S3,L1,C1", 1);
  for (const auto& [id, result] : status) {
    EXPECT_EQ(result,
              id == s.fails                                        ? "failed"
              : id == "S3" && *s.fails == 'S' && s.fails[1] == '1' ? "not run"
              : id.front() == 'S'                                  ? "passed"
                                                                   : "not run")
        << id << "\n"
        << trial.output();
  }
  EXPECT_NE(trial.output().find(s.says), std::string::npos) << trial.output();
  EXPECT_NE(trial.output().find(std::string(s.fails) + " failed"), std::string::npos);
  EXPECT_FALSE(trial.ran());
}

TEST(SpoiledFile, WouldHaveLeftACanaryOtherwise) {
  Trial trial("HONEST");
  EXPECT_EQ(trial.check("L1", 0).at("L1"), "passed");
  EXPECT_TRUE(trial.ran());
}

void write_text(const std::string& path) {
  std::ofstream(path) << "#!/bin/sh\necho no library\n";
}
void cut_in_half(const std::string& path) {
  fs::resize_file(path, fs::file_size(path) / 2);
}
void change_machine(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(18);  // e_machine
  file.put(static_cast<char>(0xf3));
  file.put(0);
}
void open_to_all(const std::string& path) {
  fs::permissions(path, static_cast<fs::perms>(0666));
}

const Spoiled kSpoiled[] = {
    {"Text", "HONEST", write_text, "S1", "not a shared library"},
    {"Truncated", "HONEST", cut_in_half, "S1", "truncated"},
    {"OtherMachine", "HONEST", change_machine, "S1", "riscv"},
    {"WritableByOthers", "HONEST", open_to_all, "S2", "chmod"},
    {"TwoSymbols", "TWO_SYMBOLS", nullptr, "S3", "helper"},
    {"EntryOfVersion2", "ENTRY_OF_VERSION_2", nullptr, "S1", "major version 2"},
};

INSTANTIATE_TEST_SUITE_P(All, SpoiledFile, ::testing::ValuesIn(kSpoiled), [](const auto& info) {
  return std::string(info.param.what);
});

}  // namespace
}  // namespace yoke::testing
