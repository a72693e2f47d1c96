#include "core/metrics/merged_trace.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/temp_folder.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A trace of a rank as the profiler writes it: a program with one step and one connection, a GPU
// that is process 0 on every rank, and the profiler's report about itself.
json trace_of(int64_t pid, int64_t base) {
  const auto event = [](const char* name, const json& pid, const json& args = json::object()) {
    return json{{"ph", "M"}, {"name", name}, {"pid", pid}, {"ts", 100.0}, {"args", args}};
  };
  json events = {event("process_name", pid, {{"name", "yoke-worker"}}),
                 event("process_sort_index", pid, {{"sort_index", pid}}),
                 event("process_name", 0, {{"name", "yoke-worker"}}),
                 event("ProfilerStep#7", pid),
                 {{"ph", "s"}, {"name", "fwdbwd"}, {"id", 4}, {"pid", pid}, {"ts", 101.5}},
                 event("PyTorch Profiler (0)", "Spans")};
  return {{"schemaVersion", 1}, {"baseTimeNanoseconds", base}, {"traceEvents", events}};
}

class MergedTrace : public ::testing::Test {
 protected:
  MergedTrace() { std::filesystem::create_directories(folder_ / "profile"); }
  void write(const std::string& name, const std::string& text) {
    folder_.write("profile/" + name, text);
  }
  json merge() const { return json::parse(merge_traces(trace_files(folder_.path().string()))); }
  // Returns the values of `key` of the merged events, by rank: the event's process / 1000.
  std::vector<json> of(const json& trace,
                       int rank,
                       const std::string& name,
                       const char* key) const {
    std::vector<json> values;
    for (const json& event : trace.at("traceEvents"))
      if (event.at("name") == name && event.at("pid").get<int>() / 1000 == rank)
        values.push_back(event.at(key));
    return values;
  }

  testing::TempFolder folder_;
};

TEST_F(MergedTrace, KeepsRanksApart) {
  write("rank_000.json", trace_of(21, 5'000'000).dump());
  write("rank_001.json", trace_of(21, 5'000'000).dump());  // the same process id on another machine
  const json merged = merge();
  EXPECT_EQ(merged.at("traceEvents").size(), 10u);  // without the two reports of the profiler
  for (const int rank : {0, 1}) {
    const json name = {{"name", "rank " + std::to_string(rank)}};
    EXPECT_THAT(of(merged, rank, "process_name", "args"), ElementsAre(name, name));
    EXPECT_THAT(of(merged, rank, "process_name", "pid"), ElementsAre(1000 * rank, 1000 * rank + 1));
    EXPECT_THAT(of(merged, rank, "step 7", "ph"), ElementsAre("M"));
  }
  EXPECT_NE(of(merged, 0, "fwdbwd", "id"), of(merged, 1, "fwdbwd", "id"));
}

TEST_F(MergedTrace, HasTheClockOfTheFirstRank) {
  write("rank_000.json", trace_of(21, 5'000'000).dump());
  write("rank_001.json", trace_of(22, 7'000'000).dump());
  const json merged = merge();
  EXPECT_EQ(merged.at("baseTimeNanoseconds"), 5'000'000);
  EXPECT_THAT(of(merged, 0, "fwdbwd", "ts"), ElementsAre(101.5));
  EXPECT_THAT(of(merged, 1, "fwdbwd", "ts"), ElementsAre(2101.5));
}

TEST_F(MergedTrace, FindsTheFilesOfRanksOnly) {
  EXPECT_THAT(trace_files((folder_ / "none")), IsEmpty());
  for (const char* name : {"rank_000.json", "rank_012.json", "all_ranks.json", "rank_x.json"})
    write(name, "{}");
  std::vector<int> ranks;
  for (const auto& [rank, path] : trace_files(folder_.path().string())) ranks.push_back(rank);
  EXPECT_THAT(ranks, ElementsAre(0, 12));
}

TEST_F(MergedTrace, NamesAFileThatIsCutOff) {
  const std::string whole = trace_of(21, 0).dump();
  write("rank_000.json", whole);
  write("rank_001.json", whole.substr(0, whole.size() / 2));
  try {
    merge();
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_DATA_LOSS);
    EXPECT_THAT(e.what(), HasSubstr("rank_001.json is not a trace"));
  }
}

// The values have other types than the profiler writes.
TEST_F(MergedTrace, NamesAFileThatIsNoTrace) {
  for (const char* text : {R"({"traceEvents":[{"pid":1,"ts":"now"}]})",
                           R"({"traceEvents":[{"pid":1,"name":7}]})",
                           R"({"traceEvents":[{"pid":1,"name":"process_name","args":3}]})",
                           R"({"traceEvents":[],"baseTimeNanoseconds":"x"})",
                           R"({"traceEvents":7})",
                           R"(7)"}) {
    write("rank_000.json", text);
    try {
      merge();
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), YOKE_DATA_LOSS);
      EXPECT_THAT(e.what(), HasSubstr("rank_000.json is not a trace"));
    }
  }
}

TEST_F(MergedTrace, LeavesOutFilesWhoseRankIsNoNumber) {
  write("rank_99999999999999999999.json", "{}");
  EXPECT_THAT(trace_files(folder_.path().string()), IsEmpty());
}

}  // namespace
}  // namespace yoke
