#include "core/backend/probe.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/abi/toys.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;
using testing::message_of;
using testing::this_abi;
using testing::Toys;

// Returns the error of both probes, which differ only in the name of the program.
std::string failure(const std::string& path,
                    std::chrono::milliseconds limit = std::chrono::seconds(10)) {
  const std::string text = message_of([&] { probe_backend(YOKE_PROBE_WORKER, path, limit); });
  std::string of_copy = message_of([&] { probe_in_copy(path, limit); });
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  if (const size_t at = of_copy.find(self); at != std::string::npos)
    of_copy.replace(at, self.size(), YOKE_PROBE_WORKER);
  EXPECT_EQ(of_copy, text);
  return text;
}

TEST(Probe, DescribesABackendAsJson) {
  const Toys toys;
  const Json d = Json::parse(probe_backend(YOKE_PROBE_WORKER, toys.copy("")));
  EXPECT_EQ(d["name"], "toy");
  EXPECT_EQ(d["version"], "1.2.3");
  EXPECT_EQ(d["vendor"], "the tests");
  EXPECT_EQ(d["summary"], "does next to nothing");
  EXPECT_EQ(d["torch_tag"], "");
  EXPECT_EQ(d["abi"], "1.0");
  EXPECT_EQ(d["axes"], Json({"dp_shard", "tp"}));
  EXPECT_EQ(d["zero_stages"], Json({0, 3}));
  EXPECT_EQ(d["param_dtypes"], Json({"fp32", "fp64"}));
  const Json gear = {{"key", "gear"},
                     {"type", "int"},
                     {"default", "3"},
                     {"choices", Json::array()},
                     {"min", 1},
                     {"max", 5},
                     {"doc", "how fast"}};
  const Json colour = {{"key", "colour"},
                       {"type", "string"},
                       {"default", "red"},
                       {"choices", {"red", "green"}},
                       {"min", nullptr},
                       {"max", nullptr},
                       {"doc", "colour of the box"}};
  EXPECT_EQ(d["options"], Json({gear, colour}));
}

TEST(Probe, KeepsWhatABackendPrintsOutOfTheAnswer) {
  const Toys toys;
  EXPECT_EQ(Json::parse(probe_backend(YOKE_PROBE_WORKER, toys.copy("prints")))["name"],
            "toy_prints");
}

TEST(Probe, OfAGoodBackendInACopySaysNothing) {
  const Toys toys;
  EXPECT_EQ(message_of([&] { probe_in_copy(toys.copy("")); }), "");
}

TEST(Probe, TurnsACrashInAConstructorIntoASentence) {
  const Toys toys;
  const std::string path = toys.copy("crash_on_load");
  EXPECT_THAT(failure(path),
              AllOf(HasSubstr(path),
                    HasSubstr("killed by signal 11 (SIGSEGV) while loading"),
                    HasSubstr(this_abi())));
}

TEST(Probe, EndsABackendThatHangs) {
  const Toys toys;
  EXPECT_THAT(failure(toys.copy("hang_on_load"), std::chrono::milliseconds(300)),
              HasSubstr("it did not finish loading within 0.3 s"));
}

TEST(Probe, NoticesABackendThatEndsTheProcess) {
  const Toys toys;
  EXPECT_THAT(failure(toys.copy("exit_on_load")),
              AllOf(HasSubstr("it ended the process with exit code 0"),
                    HasSubstr("its last line: no licence found")));
}

TEST(Probe, PassesOnWhatTheLoaderSaid) {
  const Toys toys;
  EXPECT_THAT(failure(toys.copy("unresolved")),
              HasSubstr("undefined symbol: toy_is_defined_nowhere"));
}

TEST(Probe, StartsNothingForAFileThatIsNoBackend) {
  const Toys toys;
  EXPECT_THAT(message_of([&] { probe_backend("/no/such/worker", toys.copy("no_entry")); }),
              HasSubstr("does not export the symbol"));
}

TEST(Probe, SaysThatTheWorkerItselfCannotRun) {
  const Toys toys;
  int32_t code = 0;
  const std::string text =
      message_of([&] { probe_backend("/no/such/worker", toys.copy("")); }, &code);
  EXPECT_THAT(text, HasSubstr("cannot start /no/such/worker: No such file or directory"));
  EXPECT_EQ(code, YOKE_INTERNAL);
}

}  // namespace
}  // namespace yoke
