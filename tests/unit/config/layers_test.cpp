// Tests assignments on the command line and in environment variables.
#include "tests/unit/config/fault_rows.hpp"

namespace yoke {
namespace {

using testing::file;
using testing::least;
using testing::Loading;
using testing::Row;
using testing::variable;
using testing::word;

class LayerFault : public ::testing::TestWithParam<Row> {};

TEST_P(LayerFault, IsReportedWithOneMessage) {
  testing::expect_one_message(GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Syntax,
    LayerFault,
    ::testing::Values(
        word("train.steps",
             "command line: 'train.steps' is not of the form key=value, like train.steps=10"),
        word("=3", "command line: '=3' is not of the form key=value, like train.steps=10"),
        word("", "command line: '' is not of the form key=value, like train.steps=10"),
        Row{{least(), {"seed=1", "seed=2"}}, "command line: seed is given twice"},
        file("\"train.steps\" = 1\n[train]\nsteps = 2",
             "run.toml:5: train.steps is given twice; first at run.toml:3")));

INSTANTIATE_TEST_SUITE_P(
    Variables,
    LayerFault,
    ::testing::Values(
        variable("YOKE_TRAIN_STEP",
                 "3",
                 "YOKE_TRAIN_STEP: no key of the run file has this variable; did you mean "
                 "'YOKE_TRAIN_STEPS'?"),
        variable("YOKE_SEEDS",
                 "3",
                 "YOKE_SEEDS: no key of the run file has this variable; did you mean 'YOKE_SEED'?"),
        variable("YOKE_MODEL_SHAPE_OF_THINGS",
                 "3",
                 "YOKE_MODEL_SHAPE_OF_THINGS: no key of the run file has this variable")));

TEST(LoadConfig, AnEmptyVariableIsNotSet) {
  EXPECT_EQ(Loading({least(), {}, {{"YOKE_TRAIN_STEPS", ""}}}).run().train.steps, 100);
}

TEST(LoadConfig, LeavesVariablesOfOthersAlone) {
  const Loading loaded({least(),
                        {},
                        {{"YOKE_BACKEND_PATH", "/x"},
                         {"YOKE_DEPS", "/y"},
                         {"YOKE_SOMETHING", "z"},
                         {"TRAIN_STEPS", "1"}}});
  EXPECT_TRUE(loaded.run().backend_path.empty());
  EXPECT_EQ(loaded.run().train.steps, 100);
}

// Values of another program's config are above the defaults and below everything else.
TEST(LoadConfig, TakesValuesOfAnotherConfigWhereARunLeavesThemUnset) {
  const testing::TempFolder folder;
  const std::string path = folder.write("run.toml", least("train.clip = 2.0\n"));
  const auto load = [&](const std::vector<OtherValue>& other) {
    return load_config(
        path,
        {"train.eps=1e-7"},
        {{"YOKE_SEED", "3"}},
        [](const auto&) { return std::vector<std::string>{"ox"}; },
        other);
  };
  const LoadedConfig config = load({{"train.clip", "5.0", "ds.json: clip"},
                                    {"train.eps", "1e-5", "ds.json: eps"},
                                    {"seed", "9", "ds.json: seed"},
                                    {"precision.param", "\"bf16\"", "ds.json: bf16"},
                                    {"train.betas", "[0.5,0.75]", "ds.json: betas"}});
  EXPECT_EQ(config.run.train.clip, 2.0);
  EXPECT_EQ(config.run.train.eps, 1e-7);
  EXPECT_EQ(config.run.seed, 3u);
  EXPECT_EQ(config.run.precision.param, "bf16");
  EXPECT_EQ(config.run.train.betas[1], 0.75);
  const auto found = std::find_if(config.values.begin(), config.values.end(), [](const auto& v) {
    return v.key == "precision.param";
  });
  EXPECT_EQ(found->origin, "ds.json: bf16");
  try {
    load({{"train.eps", "big", "ds.json: eps"}, {"train.steps", "big", "ds.json: steps"}});
    ADD_FAILURE();
  } catch (const ConfigError& e) {
    ASSERT_EQ(e.faults().size(), 1u) << "the command line has replaced the other one";
    EXPECT_TRUE(e.faults()[0].starts_with("ds.json: steps: train.steps = \"big\": ")) << e.what();
  }
}

TEST(ProcessEnvironment, HoldsTheVariablesOfThisProcess) {
  ASSERT_EQ(::setenv("YOKE_TEST_VARIABLE", "a=b", 1), 0);
  EXPECT_EQ(process_environment()["YOKE_TEST_VARIABLE"], "a=b");
}

}  // namespace
}  // namespace yoke
