// The part of a model that one rank has when the model is divided: the blocks of its pipeline
// stages, and of each parameter what tensor parallelism leaves it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sdk/mesh/collectives/comm.hpp"
#include "sdk/mesh/dtensor/model_on_mesh.hpp"
#include "sdk/mesh/schedule/param_cut.hpp"
#include "sdk/mesh/schedule/stages.hpp"
#include "yoke/backend.hpp"
#include "yoke/torch.hpp"

namespace yoke::mesh {

// How many ranks with the same part show the same elements of a parameter to a checkpoint.
struct Copies {
  int64_t trainable, frozen;
};

// Presents the part as a model of its own, so that an engine which knows only data parallelism can
// train it: the engine binds memory to parameters, receives their gradients, and shows its state to
// a checkpoint as if there were nothing else. Parameters and blocks are numbered within the part,
// in the order of the whole model. One thread at a time.
class RankModel {
 public:
  // stages: those of all ranks. Converts the model's parameters to distributed tensors where cp or
  // tp has several ranks. The model, the communicators and the host must outlive the object. Not
  // collective.
  // Throws Error(FAILED_PRECONDITION) if the host does not attach the model as LibTorch objects.
  RankModel(const YokeModel& model,
            const Stages& stages,
            const MeshOptions& options,
            const ModelComms& comms,
            const YokeHost& host);
  RankModel(const RankModel&) = delete;
  RankModel& operator=(const RankModel&) = delete;

  // Returns the part. init_param and bind_param work as the contract says; blocks run through a
  // StagePass, and have no callbacks.
  const YokeModel& part() const { return part_; }
  const YokeModelSummary& summary() const { return summary_; }

  // The blocks of the part as LibTorch objects, and the leaves of its parameters.
  const TorchModel& torch() const { return torch_; }
  const std::vector<int>& blocks() const { return blocks_; }  // their indices in the whole model
  const at::Tensor& leaf(int64_t param) const { return (*torch_.params)[whole_[param]]; }
  ModelOnMesh* on_mesh() const { return on_mesh_.get(); }  // NULL if all tensors are plain

  // Returns whether this rank counts the gradient of a parameter in the norm: of the ranks of pp
  // and tp that have the same parameter, only one does.
  bool counts(int64_t param) const;
  // Returns whether the gradient of a parameter is a partial sum over tp: under sequence
  // parallelism, if tp does not cut it.
  bool is_partial(int64_t param) const;
  // Returns the rank along pp that has the parameter too; OwnStage::kNoRank if none has.
  int partner(int64_t param) const { return partners_[param]; }

  // Passes what a part shows to a checkpoint on to `args`, in terms of the whole model. The part
  // numbers the copies of its pieces from 0. `visit` gets the arguments to call the part's
  // own checkpoint with. Throws what it throws.
  void checkpoint(const YokeCheckpointArgs& args,
                  const Copies& copies,
                  const std::function<void(const YokeCheckpointArgs&)>& visit) const;

 private:
  void add_params(const Stages& stages);
  void add_blocks();
  int32_t relay(const YokeCheckpointArgs& args,
                const Copies& copies,
                const YokePiece& piece,
                YokeError* err) const;
  void fill(int64_t param, int64_t begin, int64_t count, float* dst) const;

  const YokeModel& model_;
  const TorchModel& torch_;
  const ModelComms& comms_;
  const YokeHost& host_;
  const bool sequence_parallel_;
  const std::vector<ParamCut> cuts_;  // cut of each parameter of the whole model
  std::vector<int> blocks_;
  std::vector<int64_t> whole_;  // index of each parameter in the whole model
  std::vector<int> partners_;   // rank along pp that has the parameter, too
  std::map<std::string, int64_t, std::less<>> by_name_;
  std::unique_ptr<ModelOnMesh> on_mesh_;

  // The memory of summary_ and part_.
  std::vector<std::vector<int64_t>> shapes_, block_params_;
  std::vector<YokeParameter> params_;
  std::vector<YokeBlock> own_blocks_;
  std::vector<const YokeParameter*> param_pointers_;
  std::vector<const YokeBlock*> block_pointers_;
  YokeModelSummary summary_{};
  YokeModel part_{};
};

}  // namespace yoke::mesh
