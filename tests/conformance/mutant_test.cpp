// Tests that the conformance checks find small mistakes, that they say what is wrong once, and that
// they find nothing in a correct backend. The backends are built from mutant.c.
#include <gtest/gtest.h>

#include "tests/conformance/trial.hpp"

namespace yoke::testing {
namespace {

struct Mutant {
  const char* fault;  // enumerator in mutant_faults.h
  const char* found;  // id of the check that must find it
  const char* says;   // part of the output
};
void PrintTo(const Mutant& m, std::ostream* out) {
  *out << m.fault;
}

class MutantBackend : public ::testing::TestWithParam<Mutant> {};

TEST_P(MutantBackend, IsFound) {
  const Mutant& m = GetParam();
  Trial trial(m.fault);
  EXPECT_EQ(trial.check(m.found, 1, "3")[m.found], "failed") << trial.output();
  EXPECT_NE(trial.output().find(m.says), std::string::npos) << trial.output();
}

class CorrectBackend : public ::testing::TestWithParam<const char*> {};

// Without this test, a check that always fails would satisfy the test above.
TEST_P(CorrectBackend, FailsNothing) {
  Trial trial(GetParam());
  for (const auto& [id, status] : trial.check("", 0, "4"))
    EXPECT_NE(status, "failed") << id << "\n" << trial.output();
}

INSTANTIATE_TEST_SUITE_P(All,
                         CorrectBackend,
                         ::testing::Values("NO_FAULT", "SLOWS_DOWN"),
                         [](const auto& info) { return std::string(info.param); });

const Mutant kMutants[] = {
    {"SKIPS_BY_SLICE", "N12", "after a step whose gradient norm is not finite"},
    {"EMPTY_RANK_SKIPS_REDUCTION", "N5", "with dp_shards 2"},
    {"COUNTS_SKIPPED_STEPS", "N12", "after a step that was skipped"},
    {"IGNORES_REDUCE_DTYPE", "N22", "fp32 reduced in fp64"},
    {"POWERS_OF_TWO", "N23", "with dp_shards 3"},
    {"POWERS_OF_TWO", "K11", "is in no piece with replica 0"},
    {"SHARES_STATIC_MEMORY", "N24", "ranks as processes"},
    {"DROPS_LATE_ELEMENTS", "N7", "wrong gradients: mlp."},
    {"STEP_IN_A_BYTE", "K12", "3 steps from number 1000"},
    {"CUTS_GRADIENTS", "N4", "every gradient is off by rounding to 16 bits"},
    {"NEGATIVE_NORM", "N1", "reports grad_norm -"},
    {"TREATS_LION_AS_ADAMW", "N19", "lion: with 1 rank"},
    {"DECOUPLES_DECAY", "N19", "with Adam applied to the parameter"},
    {"ALWAYS_CORRECTS", "N19", "made in a kind that has none"},
    {"UPDATES_LION_FIRST", "N19", "the direction from the new moment"},
    {"MUON_IGNORES_SHAPE", "N19", "Muon's step does not depend on the shape of the matrix"},
    {"MUON_UPDATES_TABLES", "N19", "muon: with 1 rank"},
    {"DROPS_LAST_ERROR", "C35", "collective or wait number"},
    {"DROPS_ERROR_OF_WAIT", "C35", "collective or wait number"},
    {"NEVER_CANCELS", "C17", "called check_cancel 0 times"},
    {"REPORTS_MUCH_MEMORY", "C30", "param_bytes"},
    {"REPORTS_LITTLE_TRAFFIC", "C43", "axis_bytes of dp_shard"},
    {"LEAKS_IN_STEPS", "C42", "resident memory grew"},
    {"PRINTS_FAILURES", "C23", "a step has failed"},
    {"TAKES_ANY_FLAG", "C39", "step with an unknown flag returned 0"},
    {"TAKES_ANY_OP", "C39", "checkpoint with an unknown op"},
    {"TAKES_ANY_DTYPE_IN_INIT", "C39", "init with an unknown dtype"},
    {"TAKES_ANY_DLPACK", "C41", "dlpack_major 2"},
    {"CHANGES_DEGREE", "C40", "plan changed dp_degree from 2 to 1"},
    {"CHANGES_BATCH", "C40", "plan changed train.global_batch from 8 to 4"},
    {"CHANGES_OPTIMIZER", "C40", "plan->optimizer to another struct"},
    {"HIDES_KIND", "K8", "does not declare the kind 'number'"},
    {"WRONG_ROW", "K8", "a rank shows its own row"},
    {"MALFORMED_KIND", "L12", "'Moves!'"},
};

INSTANTIATE_TEST_SUITE_P(All, MutantBackend, ::testing::ValuesIn(kMutants), [](const auto& info) {
  return std::string(info.param.fault) + "_" + info.param.found;
});

// ---- One reason is one message ----

struct Reason {
  const char* fault;
  const char* root;  // id of the check that fails as the root cause
  const char* says;  // part of the output
  const char* fix;
};
void PrintTo(const Reason& r, std::ostream* out) {
  *out << r.fault;
}

class OneReason : public ::testing::TestWithParam<Reason> {};

TEST_P(OneReason, IsOneMessage) {
  const Reason& r = GetParam();
  Trial trial(r.fault);
  trial.check("C3,C17,C22,C43,N,K", 1);
  EXPECT_EQ(trial.roots(), std::vector<std::string>{r.root}) << trial.output();
  EXPECT_NE(trial.output().find(r.says), std::string::npos) << trial.output();
  EXPECT_NE(trial.output().find(r.fix), std::string::npos) << trial.output();
  EXPECT_NE(trial.output().find(std::string("follow from ") + r.root), std::string::npos)
      << trial.output();
}

const Reason kReasons[] = {
    {"NO_ALL_REDUCE",
     "N2",
     "the reduction over the data ranks is missing",
     "all-reduce the gradients"},
    {"REDUCES_TWICE", "N2", "multiplied by the number of data ranks", "reduce every gradient once"},
    {"NORM_BEFORE_REDUCTION", "N2", "the norm is that of the rank's own gradient", "reduce first"},
    {"CRASHES_IN_SECOND_STEP", "C3", "SIGSEGV), inside step", "addr2line"},
    {"EMPTY_CHECKPOINT", "K8", "no rank shows", "call visit for every tensor"},
    {"RAW_GRADIENT_KEPT",
     "N1",
     "still contains that of the step before",
     "set the gradients to zero"},
};

INSTANTIATE_TEST_SUITE_P(All, OneReason, ::testing::ValuesIn(kReasons), [](const auto& info) {
  return std::string(info.param.fault);
});

TEST(Unoptimised, IsNoted) {
  constexpr char kNote[] = "it is built without optimisation";
  Trial slow("UNOPTIMISED"), fast("NO_FAULT");
  EXPECT_EQ(slow.check("C1", 0)["C1"], "passed");
  EXPECT_NE(slow.output().find(kNote), std::string::npos) << slow.output();
  fast.check("C1", 0);
  EXPECT_EQ(fast.output().find(kNote), std::string::npos) << fast.output();
}

// ---- What was not run ----

TEST(NotRun, IsNotPassed) {
  Trial trial("REFUSES_RANKS");
  auto status = trial.check("N2,N3,N7,N17,C28,K11", 1);
  for (const auto& [id, is] : status) EXPECT_EQ(is, "not run") << id << "\n" << trial.output();
  EXPECT_NE(trial.output().find("plan refuses dp_shards 2"), std::string::npos) << trial.output();
  EXPECT_NE(trial.output().find("needs --nproc 4"), std::string::npos) << trial.output();
}

TEST(NotRun, FailsTheKitForADeclaredAxis) {
  Trial trial("REFUSES_RANKS");
  trial.check("", 1);
  EXPECT_NE(trial.output().find("no check could run more than one rank with dp_shards"),
            std::string::npos)
      << trial.output();
}

TEST(NotRun, FailsTheKitWithOneRank) {
  Trial trial("NO_FAULT");
  for (const auto& [id, status] : trial.check("", 1, "1")) EXPECT_NE(status, "failed") << id;
  EXPECT_NE(trial.output().find("use --nproc 2 or more"), std::string::npos) << trial.output();
}

}  // namespace
}  // namespace yoke::testing
