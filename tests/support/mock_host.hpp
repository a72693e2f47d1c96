// A host for one rank, a plan with all fields set, and RAII for a backend's handles. With these, a
// test can run any backend that uses only the callbacks of YokeModel.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "yoke/error.hpp"

namespace yoke::testing {

class MockWorld;

// The host of one rank: a log, a cancel flag, and the collectives of a MockWorld if there is one.
class MockHost {
 public:
  MockHost() : MockHost(nullptr, 0, 1) {}
  MockHost(MockWorld* world, int32_t rank, int32_t world_size);
  MockHost(const MockHost&) = delete;
  MockHost& operator=(const MockHost&) = delete;

  YokeHost host{};               // a test may change it before init
  std::vector<std::string> log;  // lines that the backend logged
  // The first `cancel_after` calls of check_cancel return 0, all later ones 1; -1 = always 0.
  int cancel_after = -1;

 private:
  MockWorld* world_;
};

// The values of all options of a backend, as a host passes them. `given` holds values by key; other
// options have their defaults. For an option of type file, the value is the content of the file,
// and the path is "<key>.file".
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

// A plan for one rank with every field that a host sets: AdamW, fp64. Tests change what they need.
struct MockPlan {
  MockPlan();
  MockPlan(const MockPlan&) = delete;
  MockPlan& operator=(const MockPlan&) = delete;

  YokeOptimizer optimizer{};
  YokePlan plan{};
  std::map<std::string, std::string> options;  // values that the user has set, by key
  const YokeHeader* extensions = nullptr;      // extensions of the arguments of plan

  struct Refused {
    std::string key, given, allowed, hint;
    bool note;
  };
  // Calls the backend's plan and collects its refusals. Returns its code.
  int32_t ask(const ParallelBackend& backend, const YokeModelSummary& model, YokeError* err);
  std::vector<Refused> refusals;
};

// Loads a .so and returns its table. The library is never unloaded. Throws Error.
const ParallelBackend& load_backend(const std::string& path);

// Calls plan, init and wrap_model, and destroys the handles in the right order. Throws Error.
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

// A copy of one piece of state from a SAVE. The key is "name/kind".
struct SavedPiece {
  std::string key;
  std::vector<int64_t> shape;
  int32_t dtype = 0;
  int64_t begin = 0, count = 0, replica = 0;
  std::vector<char> bytes;
  bool operator==(const SavedPiece&) const = default;
};
// save_state() copies the whole state of this rank, and load_state() loads such a copy.
// load_state() throws Error(NOT_FOUND) if the pieces differ from those that were saved.
std::vector<SavedPiece> save_state(Session& session);
void load_state(Session& session, const std::vector<SavedPiece>& pieces);

}  // namespace yoke::testing
