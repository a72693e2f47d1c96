// A job is everything that is known about a run before it starts: configuration, backend, data,
// model and plan, all checked. Planning and training both make the job first, so `yoke-worker
// --plan` finds every fault before a rank exists.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/backend/inner_backends.hpp"
#include "core/checkpoint/shapes.hpp"
#include "core/config/config.hpp"
#include "core/config/options.hpp"
#include "core/cuda/rank_device.hpp"
#include "core/data/data_set.hpp"
#include "core/model/family.hpp"
#include "core/model/torch_model.hpp"
#include "core/run/plan.hpp"
#include "core/verify/input_probe.hpp"

namespace yoke {

// Complete and immutable; shared by the ranks of a process.
struct Job {
  LoadedConfig config;  // options of the backend and the family are checked, defaults filled in
  LoadedBackend backend;
  std::unique_ptr<InnerBackends> inner;  // other backends that the backend uses
  OptionList options;                    // options of the backend
  OptionList model_options;              // options of the model family
  DataSet data;
  Samples samples;  // samples of the family; `read` is empty if `data` has tokens
  Family family;
  ModelInfo model;
  Shapes stored_shapes;            // see BlockList::stored_shapes
  std::unique_ptr<RunPlan> plan;   // complete; the backend may keep pointers into it
  bool on_cuda = false;            // whether the ranks compute on CUDA devices
  std::vector<std::string> notes;  // notes of the backend, printed once
};

// An error that decides the exit code of the program.
class Refused : public Error {
 public:
  Refused(int exit_code, const std::string& text)
      : Error(YOKE_INVALID_ARGUMENT, text), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

// What this process knows about the ranks of the run.
struct RankCount {
  int32_t world_size = 0;  // 0 = the product of the given degrees
  int32_t machines = 0;    // machines that start equally many ranks each; 0 = unknown
  bool threads = false;    // all ranks are threads of this process
};

// What a job is made for. kForecast: the run may be meant for other machines, so make_job() opens
// no data and chooses no device, and Job::data is empty.
enum class JobPurpose { kTrain, kForecast };

// Checks a run. families: families of the worker's author, in addition to the built-in ones. Starts
// no rank, uses no device and does not communicate. Throws Refused: with kExitUsage and every fault
// of configuration, data, options and plan at once, or with kExitPlugin if the backend cannot be
// used.
Job make_job(const std::string& config_path,
             const std::vector<std::string>& overrides,
             const RankCount& ranks,
             const std::map<std::string, Family>& families,
             JobPurpose purpose = JobPurpose::kTrain);

// Makes the model's blocks and parameters as the contract's structs, on a device, or on the CPU if
// `device` is NULL. Parameters have no memory yet. The LibTorch extension is attached only if the
// backend, or a backend that it has opened, was built with the LibTorch of this program. probe:
// observes the inputs of the model; may be NULL.
std::unique_ptr<TorchModelHost> make_model(const Job& job,
                                           InputProbe* probe = nullptr,
                                           const RankDevice* device = nullptr);

}  // namespace yoke
