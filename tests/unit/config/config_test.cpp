// Tests which layer of a configuration wins, and which origin a value reports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/config/options.hpp"
#include "tests/unit/config/support.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::least;
using testing::Loading;

TEST(LoadConfig, DefaultsHoldWhereNobodySaysAnything) {
  const Loading loaded({least()});
  EXPECT_EQ(loaded.run().parallel_backend, "ox");
  EXPECT_EQ(loaded.run().train.steps, 100);
  EXPECT_EQ(loaded.origin("train.steps"), "default");
  EXPECT_EQ(loaded.value("train.lr"), "3e-4");
}

TEST(LoadConfig, CommandLineWinsOverVariableOverFileOverDefault) {
  const std::string file = least("[train]\nsteps = 2\n");
  const Environment variable{{"YOKE_TRAIN_STEPS", "3"}};
  EXPECT_EQ(Loading({file}).run().train.steps, 2);
  EXPECT_EQ(Loading({file, {}, variable}).run().train.steps, 3);
  EXPECT_EQ(Loading({file, {"train.steps=4"}, variable}).run().train.steps, 4);
  EXPECT_EQ(Loading({least(), {}, variable}).run().train.steps, 3);
}

TEST(LoadConfig, EveryValueSaysWhereItComesFrom) {
  const Loading loaded({least("[train]\nsteps = 2\nlr = 1\n"),
                        {"seed=9"},
                        {{"YOKE_TRAIN_WARMUP", "5"}, {"YOKE_TRAIN_LR", "2"}}});
  EXPECT_EQ(loaded.origin("parallel_backend"), "run.toml:1");
  EXPECT_EQ(loaded.origin("data.path"), "run.toml:2");
  EXPECT_EQ(loaded.origin("train.steps"), "run.toml:4");
  EXPECT_EQ(loaded.origin("train.lr"), "YOKE_TRAIN_LR");
  EXPECT_EQ(loaded.origin("train.warmup"), "YOKE_TRAIN_WARMUP");
  EXPECT_EQ(loaded.origin("seed"), "command line");
  EXPECT_EQ(loaded.origin("clip"), "no such key");
  EXPECT_EQ(loaded.origin("train.clip"), "default");
}

TEST(LoadConfig, UnsetStaysUnset) {
  const Loading loaded({least()});
  for (size_t axis = 0; axis < Degrees::kAxes.size(); ++axis) {
    EXPECT_FALSE(loaded.run().degrees[axis].has_value());
  }
  EXPECT_FALSE(loaded.run().train.micro_batch.has_value());
  EXPECT_FALSE(loaded.run().model.tied.has_value());
  EXPECT_EQ(loaded.value("dp_shards"), "");
  EXPECT_EQ(loaded.value("model.dim"), "");
}

TEST(LoadConfig, ReadsEveryType) {
  const Loading loaded(
      {least("dp_shards = 2\nseed = 0x10\nbackend_path = [\"/a\", \"/b\"]\n"
             "[model]\ntied = true\nrope_theta = 500_000\ndim = 64\n"
             "[train]\nbetas = [0, 0.5]\nlr = 1\nmicro_batch = 4\n")});
  EXPECT_EQ(loaded.run().degrees.dp_shard, 2);
  EXPECT_EQ(loaded.run().seed, 16u);
  EXPECT_THAT(loaded.run().backend_path, ElementsAre("/a", "/b"));
  EXPECT_EQ(loaded.run().model.tied, true);
  EXPECT_EQ(loaded.run().model.rope_theta, 500000.0);
  EXPECT_EQ(loaded.run().model.dim, 64);
  EXPECT_THAT(loaded.run().train.betas, ElementsAre(0.0, 0.5));
  EXPECT_EQ(loaded.run().train.lr, 1.0);
  EXPECT_EQ(loaded.run().train.micro_batch, 4);
}

TEST(LoadConfig, StringsOfTheCommandLineNeedNoQuotes) {
  const Loading loaded({least(),
                        {"data.path=my data/text=1.txt",
                         "run.dir=\"runs/x\"",
                         "model.preset=2024",
                         "checkpoint.resume=2024-01-01"}});
  EXPECT_THAT(loaded.run().data.path, ElementsAre("my data/text=1.txt"));
  EXPECT_EQ(loaded.run().run_dir, "runs/x");
  EXPECT_EQ(loaded.run().model.preset, "2024");
  EXPECT_EQ(loaded.run().checkpoint.resume, "2024-01-01");
}

TEST(LoadConfig, ListsOfTheCommandLineMayBeWrittenShort) {
  const Loading loaded({least(), {"train.betas=0.8, 0.9", "backend_path=/a:/b"}});
  EXPECT_THAT(loaded.run().train.betas, ElementsAre(0.8, 0.9));
  EXPECT_THAT(loaded.run().backend_path, ElementsAre("/a", "/b"));
  const Loading toml({least(), {"train.betas=[0.8,0.9]", "backend_path=[\"/a\"]"}});
  EXPECT_THAT(toml.run().train.betas, ElementsAre(0.8, 0.9));
  EXPECT_THAT(toml.run().backend_path, ElementsAre("/a"));
}

TEST(LoadConfig, OneStringStandsForAListOfPaths) {
  const Loading file({least("data.weights = [0.7, 3]\n[eval]\npath = [\"v\"]\nevery = 1\n"),
                      {"data.path=[\"a, b\", \"c:d\"]"}});
  EXPECT_THAT(file.run().data.path, ElementsAre("a, b", "c:d"));
  EXPECT_THAT(file.run().data.weights, ElementsAre(0.7, 3.0));
  EXPECT_THAT(file.run().eval.path, ElementsAre("v"));
  EXPECT_EQ(file.value("data.path"), "[\"a, b\", \"c:d\"]");
  EXPECT_EQ(file.value("eval.path"), "\"v\"");
  const Loading short_form({least(), {"data.path=a:b", "data.weights=2"}});
  EXPECT_THAT(short_form.run().data.path, ElementsAre("a:b"));
  EXPECT_THAT(short_form.run().data.weights, ElementsAre(2.0));
  EXPECT_EQ(Loading({least()}).value("eval.path"), "\"\"");
}

// A complete run file names every key, so what evaluation data of its own implies must be written.
TEST(LoadConfig, NothingIsHeldOutBesideEvaluationData) {
  const Loading loaded({least(), {"eval.path=v", "eval.every=1"}});
  EXPECT_EQ(loaded.run().data.holdout, 0);
  EXPECT_EQ(loaded.value("data.holdout"), "0.0");
  EXPECT_EQ(Loading({to_toml(loaded.config())}).run().data.holdout, 0);
  EXPECT_EQ(Loading({least(), {"eval.path=v", "eval.every=1", "data.holdout=0"}}).faults().size(),
            0u);
  EXPECT_EQ(Loading({least()}).run().data.holdout, 0.05);
}

TEST(LoadConfig, AHigherLayerCuresALowerOne) {
  const Loading loaded(
      {least("pp_degree = 0\n[train]\nsteps = \"many\"\n"), {"pp_degree=1", "train.steps=7"}});
  EXPECT_EQ(loaded.run().degrees.pp, 1);
  EXPECT_EQ(loaded.run().train.steps, 7);
}

TEST(LoadConfig, HandsBackendPathToTheSearch) {
  EXPECT_THAT(Loading({least(), {"backend_path=[\"/x\"]"}}).backend_path(), ElementsAre("/x"));
}

TEST(LoadConfig, InlineTablesAndDottedKeysAreTablesToo) {
  EXPECT_EQ(Loading({least("train = {steps = 5, lr = 0.1}\n")}).run().train.steps, 5);
  EXPECT_EQ(Loading({least("train.steps = 6\n")}).run().train.steps, 6);
}

TEST(LoadConfig, EmptyTablesOfTheSchemaAreFine) {
  EXPECT_EQ(Loading({least("[train]\n[ox]\n")}).run().train.steps, 100);
}

TEST(LoadConfig, OptionsOfBackendsKeepTheirValueAndOrigin) {
  const Loading loaded({least("[ox]\nunit_bytes = 1_000\nmode = \"fast\"\nratio = 1e-3\n"),
                        {"ox.mode=slow", "draught_horse.size=17"},
                        {{"YOKE_OX_RATIO", "0.5"}, {"YOKE_DRAUGHT_HORSE_NAME", "Bess"}}});
  const auto find = [&](const std::string& backend, const std::string& key) {
    for (const BackendOption& o : loaded.run().backend_options) {
      if (o.backend == backend && o.key == key) return o;
    }
    return BackendOption{};
  };
  EXPECT_EQ(loaded.run().backend_options.size(), 5u);
  EXPECT_EQ(find("ox", "unit_bytes").value, Value{int64_t{1000}});
  EXPECT_EQ(written(find("ox", "unit_bytes")), "1000");
  EXPECT_FALSE(find("ox", "unit_bytes").raw_text);
  EXPECT_EQ(loaded.origin("ox.unit_bytes"), "run.toml:4");
  EXPECT_EQ(find("ox", "mode").value, Value{std::string("slow")});
  EXPECT_EQ(written(find("ox", "mode")), "\"slow\"");
  EXPECT_EQ(find("ox", "mode").origin, "command line");
  EXPECT_EQ(find("ox", "ratio").value, Value{0.5});
  EXPECT_EQ(find("ox", "ratio").origin, "YOKE_OX_RATIO");
  EXPECT_EQ(find("draught_horse", "name").value, Value{std::string("Bess")});
  EXPECT_EQ(find("draught_horse", "size").value, Value{int64_t{17}});
  EXPECT_EQ(find("draught_horse", "size").raw_text, "17");
}

TEST(LoadConfig, NeedsNoFile) {
  const auto none = [](const auto&) { return std::vector<std::string>{}; };
  const LoadedConfig config = load_config(
      std::nullopt, {"parallel_backend=ox", "data.path=text", "train.steps=7"}, {}, none);
  EXPECT_EQ(config.run.train.steps, 7);
  try {
    load_config(std::nullopt, {"parallel_backend=ox"}, {}, none);
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_STREQ(e.what(), "data.path is not set; give data.path=FILE on the command line");
  }
}

TEST(LoadConfig, AnAbsolutePathNamesItsTableByTheStem) {
  const Loading loaded(
      {"parallel_backend = \"/opt/mule.so\"\ndata.path = \"t\"\n[mule]\nsize = 3\n"});
  ASSERT_EQ(loaded.run().backend_options.size(), 1u);
  EXPECT_EQ(loaded.run().backend_options[0].backend, "mule");
}

TEST(LoadConfig, TheChosenBackendHasATableEvenIfNotFound) {
  const Loading loaded({least("[mule]\nsize = 3\n"), {"parallel_backend=mule"}});
  EXPECT_EQ(loaded.run().backend_options.size(), 1u);
  const Loading variable({least("[mule]\nsize = 3\n"), {}, {{"YOKE_PARALLEL_BACKEND", "mule"}}});
  EXPECT_EQ(variable.run().parallel_backend, "mule");
}

// For a family that is not built in, every key below [model] except for model.family and
// model.freeze is an option of the family, even if the built-in family has a key of that name.
TEST(LoadConfig, KeysOfAnOwnModelAreOptions) {
  const Loading loaded({least("[model]\nfamily = \"mine\"\nhidden = 32\ndim = \"a lot\"\n"),
                        {"model.rate=0.5"},
                        {{"YOKE_MODEL_DEPTH", "3"}}});
  ASSERT_EQ(loaded.run().backend_options.size(), 4u);
  for (const BackendOption& o : loaded.run().backend_options) EXPECT_EQ(o.backend, "model");
  EXPECT_EQ(loaded.run().model.dim, 0);
  EXPECT_EQ(loaded.origin("model.hidden"), "run.toml:5");
  EXPECT_EQ(loaded.origin("model.rate"), "command line");
  EXPECT_EQ(loaded.origin("model.depth"), "YOKE_MODEL_DEPTH");
  EXPECT_EQ(loaded.value("model.dim"), "\"a lot\"");
  EXPECT_EQ(loaded.origin("model.preset"), "no such key");
  const std::string text = to_toml(loaded.config());
  EXPECT_NE(text.find("[model]\nfamily = \"mine\"\n"), std::string::npos);
  EXPECT_EQ(text.find("[model]"), text.rfind("[model]"));
  EXPECT_EQ(to_toml(Loading({text}).config()), text);
}

// The host freezes parameters of any family.
TEST(LoadConfig, AnOwnModelMayHaveFrozenParameters) {
  const Loading loaded({least("[model]\nfamily = \"mine\"\nfreeze = [\"first\", \"h.*.a\"]\n")});
  EXPECT_THAT(loaded.run().model.freeze, ElementsAre("first", "h.*.a"));
  EXPECT_THAT(loaded.run().backend_options, IsEmpty());
}

// The build names the default, but it is used only where it is installed.
TEST(LoadConfig, TheBackendHasADefault) {
  const testing::TempFolder folder;
  const std::string path = folder.write("run.toml", "data.path = \"text\"\n");
  const auto load = [&](const std::vector<std::string>& words) {
    return load_config(path, words, {}, [](const auto&) {
      return std::vector<std::string>{"ox", "ptd"};
    });
  };
  const LoadedConfig unset = load({"ptd.cuda_graph=true"});
  EXPECT_EQ(unset.run.parallel_backend, "ptd");
  EXPECT_THAT(unset.notes, ElementsAre("parallel_backend is not set, so ptd is used"));
  EXPECT_EQ(unset.run.backend_options.size(), 1u);
  const LoadedConfig set = load({"parallel_backend=ox"});
  EXPECT_EQ(set.run.parallel_backend, "ox");
  EXPECT_THAT(set.notes, IsEmpty());
  EXPECT_THROW(load({"parallel_backend="}), ConfigError);
}

TEST(LoadConfig, AnOwnModelMayHaveDataOfItsOwn) {
  const Loading mine({"parallel_backend = \"ox\"\nmodel.family = \"mine\"\n"});
  EXPECT_THAT(mine.run().data.path, IsEmpty());
  EXPECT_EQ(Loading({"parallel_backend = \"ox\"\n"}).faults().size(), 1u);
}

TEST(LoadConfig, KeysOfAnOwnModelMustStayWhenARunIsResumed) {
  const auto digest = [](const std::string& more) {
    return resume_digest(
        Loading({least("model.family = \"mine\"\nox.size = 1\n"), {more}}).config());
  };
  EXPECT_NE(digest("model.hidden=1"), digest("model.hidden=2"));
  EXPECT_EQ(digest("ox.speed=1"), digest("ox.speed=2"));
}

TEST(LoadConfig, WhatIsSoundCanBeReadInSpiteOfFaults) {
  const Loading loaded({least("dp_shards = 3\n[train]\nsteps = -1\nlr = 0.5\n")});
  EXPECT_EQ(loaded.faults().size(), 1u);
  EXPECT_EQ(loaded.sound_part().parallel_backend, "ox");
  EXPECT_EQ(loaded.sound_part().degrees.dp_shard, 3);
  EXPECT_EQ(loaded.sound_part().train.lr, 0.5);
  EXPECT_EQ(loaded.sound_part().train.steps, 100);
}

}  // namespace
}  // namespace yoke
