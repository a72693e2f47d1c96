// Tests how `yoke compare` treats backends that declare an update of their own.
#include "tests/compare/compare_fixture.hpp"

namespace yoke {
namespace {

class ByDesign : public Compare {
 protected:
  // Returns the loss on the held-out data after 4 steps of SGD.
  double held_out_loss(const std::string& backend, int ranks) const {
    const SubprocessResult r = playground.yoke({"train",
                                                "run.toml",
                                                "--nproc",
                                                std::to_string(ranks),
                                                "parallel_backend=" + backend,
                                                "dp_degree=" + std::to_string(ranks),
                                                "train.optimizer=sgd",
                                                "train.steps=4",
                                                "eval.every=4",
                                                "run.dir=evaluated-" + backend});
    EXPECT_EQ(r.ending.exit_code, 0) << r.err;
    std::ifstream metrics(playground.folder().path() / ("evaluated-" + backend) / "metrics.jsonl");
    for (std::string line; std::getline(metrics, line);) {
      const Json record = Json::parse(line);
      if (record.contains("eval_loss")) return record.at("eval_loss");
    }
    return -1;
  }
};

TEST_F(ByDesign, ReportsNoHeldOutLossOfAJobWithoutEvaluationData) {
  auto all = cases({"--case",
                    "signsgd:parallel_backend=signsgd,dp_degree=2",
                    "train.optimizer=sgd",
                    "data.holdout=0",
                    "--steps",
                    "4"},
                   0);
  EXPECT_TRUE(all.at("signsgd").at("held_out_loss").is_null());
  EXPECT_TRUE(json.at("reference").at("held_out_loss").is_null());
}

// diloco declares updates of single ranks and signsgd a rule of its own.
TEST_F(ByDesign, DoesNotJudgeWhatDiffersByDesign) {
  const std::vector<std::string> words = {"--case",
                                          "diloco:parallel_backend=diloco,dp_degree=2",
                                          "--case",
                                          "signsgd:parallel_backend=signsgd,dp_degree=2",
                                          "train.optimizer=sgd",
                                          "--steps",
                                          "4"};
  auto all = cases(words, 0);
  for (const char* name : {"diloco", "signsgd"}) {
    EXPECT_EQ(all.at(name).at("differs_by_design"), true);
    EXPECT_TRUE(all.at(name).at("passed"));
    EXPECT_TRUE(all.at(name).at("cause").is_null());
  }
  // The losses on held-out data are those of runs with an evaluation.
  const std::string judge = json.at("reference").at("backend");
  EXPECT_EQ(json.at("reference").at("held_out_loss"), held_out_loss(judge, 1));
  EXPECT_EQ(all.at("diloco").at("held_out_loss"), held_out_loss("diloco", 2));
  EXPECT_EQ(all.at("signsgd").at("held_out_loss"), held_out_loss("signsgd", 2));

  std::vector<std::string> strict = words;
  strict.insert(strict.end(), {"--level", "L1"});
  EXPECT_EQ(cases(strict, 4).at("diloco").at("passed"), false);
}

// Replicas must be equal whatever the rule is.
TEST_F(ByDesign, JudgesAnUpdateOfItsOwnWhoseReplicasDiffer) {
  auto all = cases({"--case", faulty_case("own_update"), "--steps", "4"}, 4);
  EXPECT_EQ(all.at("own_update").at("differs_by_design"), false);
  expect_found(all, {"own_update", "missing_reduction", 1, kFirst});
}

TEST_F(ByDesign, DoesNotLetABackendWithAnUpdateOfItsOwnJudge) {
  auto all = cases({"parallel_backend=signsgd",
                    "train.optimizer=sgd",
                    "--case",
                    "own:parallel_backend=signsgd",
                    "--case",
                    "serial:parallel_backend=serial",
                    "--steps",
                    "4"},
                   0);
  EXPECT_EQ(json.at("reference").at("backend"), "ptd");
  EXPECT_EQ(all.at("serial").at("verdict").at("level"), "L1");
  EXPECT_FALSE(all.at("serial").at("verdict").at("param").is_null());
  EXPECT_EQ(all.at("own").at("differs_by_design"), true);
}

}  // namespace
}  // namespace yoke
