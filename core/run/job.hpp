// A run before it starts: configuration, backend, data, model family and plan, all checked. Every
// mode of the worker begins here, so a fault is found by `--plan` before any rank exists.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/backend/inner_backends.hpp"
#include "core/config/config.hpp"
#include "core/config/options.hpp"
#include "core/cuda/rank_device.hpp"
#include "core/data/data_set.hpp"
#include "core/model/family.hpp"
#include "core/model/torch_model.hpp"
#include "core/run/plan.hpp"
#include "core/verify/input_probe.hpp"

namespace yoke {

struct Job {
  LoadedConfig config;  // backend options checked and filled in
  LoadedBackend backend;
  std::unique_ptr<InnerBackends> inner;  // those that the backend stands on
  OptionList options;
  OptionList model_options;  // of the family
  DataSet data;
  Samples samples;  // instead of data.stream; read is empty if there is one
  Family family;
  ModelInfo model;
  std::unique_ptr<RunPlan> plan;   // complete
  bool on_cuda = false;            // where the ranks compute
  std::vector<std::string> notes;  // for the user, once
};

// A refusal that decides the exit code of the program.
class Refused : public Error {
 public:
  Refused(int exit_code, const std::string& text)
      : Error(YOKE_INVALID_ARGUMENT, text), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

// The ranks of a run, as far as this process knows them.
struct RankCount {
  int32_t world = 0;     // 0: the product of the given degrees
  bool here = false;     // all are to be processes of this machine
  bool threads = false;  // all are threads of this process
};

// families: of the worker's author, beside those of the house. Throws Refused (kExitUsage: every
// fault of configuration, data, options and plan at once; kExitPlugin: the backend cannot be used).
// No ranks, no device, no communication.
Job make_job(const std::string& config_path,
             const std::vector<std::string>& overrides,
             const RankCount& ranks,
             const std::map<std::string, Family>& families);

// The model's blocks and parameters as the contract shows them, on a device or (NULL) the CPU;
// attaches the LibTorch extension only if the backend, or one that it has opened, was built with
// the LibTorch of this program. probe may be NULL.
std::unique_ptr<TorchModelHost> make_model(const Job& job,
                                           InputProbe* probe = nullptr,
                                           const RankDevice* device = nullptr);

}  // namespace yoke
