// A host without services for one rank, a filled-in plan, and RAII around a backend's handles:
// enough to drive any backend of the neutral model in a test.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "yoke/error.hpp"

namespace yoke::testing {

class MockWorld;

// One rank's host: a log, a cancel flag, and the collectives of a MockWorld if there is one.
class MockHost {
 public:
  MockHost() : MockHost(nullptr, 0, 1) {}
  MockHost(MockWorld* world, int32_t rank, int32_t world_size);
  MockHost(const MockHost&) = delete;
  MockHost& operator=(const MockHost&) = delete;

  YokeHost host{};               // may be changed by the test before init
  std::vector<std::string> log;  // lines as the backend gave them
  int cancel_after = -1;  // check_cancel says 1 from this call on (0 = the next one); -1 = never

 private:
  MockWorld* world_;
};

// The values of all options of a backend, as a host passes them: `given` by key, the others at
// their defaults. Of a file the text is its content, and its path is "<key>.file".
class MockOptions {
 public:
  MockOptions(const ParallelBackend& backend, const std::map<std::string, std::string>& given);
  MockOptions(const MockOptions&) = delete;
  MockOptions& operator=(const MockOptions&) = delete;
  const std::vector<YokeOption>& values() const { return values_; }

 private:
  std::map<std::string, std::string> texts_, paths_;
  std::vector<YokeOption> values_;
};

// A plan of one rank with every field set that the host sets: AdamW, fp64. Tests change what they
// need.
struct MockPlan {
  MockPlan();
  MockPlan(const MockPlan&) = delete;
  MockPlan& operator=(const MockPlan&) = delete;

  YokeOptimizer optimizer{};
  YokePlan plan{};
  std::map<std::string, std::string> options;  // that the user gives
  const YokeHeader* extensions = nullptr;      // chained on the arguments of plan

  struct Refused {
    std::string key, given, allowed, hint;
    bool note;
  };
  // Calls the backend's plan; refusals are collected. Returns its code.
  int32_t ask(const ParallelBackend& backend, const YokeModelSummary& model, YokeError* err);
  std::vector<Refused> refusals;
};

// The table of a .so, by its path. Throws Error. Never unloaded.
const ParallelBackend& load_backend(const std::string& path);

// plan, init and wrap_model in one go, destroyed in the right order. Throws Error.
class Session {
 public:
  Session(const ParallelBackend& backend, MockPlan& plan, MockHost& host, const YokeModel& model);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  YokeStepResult step(const YokeBatch& batch, int64_t step, double lr, uint32_t flags = 0);
  void checkpoint(int32_t op, const std::function<void(const YokePiece&)>& visit);

  const ParallelBackend& backend;
  YokeContext* context = nullptr;
  YokeWrapResult wrapped{};
};

// A whole state in memory, by "name/kind": what SAVE showed, to be given back on LOAD.
struct SavedPiece {
  std::string key;
  std::vector<int64_t> shape;
  int32_t dtype = 0;
  int64_t begin = 0, count = 0, replica = 0;
  std::vector<char> bytes;
  bool operator==(const SavedPiece&) const = default;
};
std::vector<SavedPiece> save_state(Session& session);
void load_state(Session& session, const std::vector<SavedPiece>& pieces);

}  // namespace yoke::testing
