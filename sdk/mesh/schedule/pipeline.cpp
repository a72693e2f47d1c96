// Each schedule is a function that writes down the order of one rank; nothing here knows about
// messages, memory or collectives, which are added to any order in the same way (schedule.cpp).
// The checker then proves that the orders of all ranks fit together. Building the orders with a
// simulator, as planners do, would find slightly better ones for uneven stages, but a user could no
// longer look them up in a paper.
#include "sdk/mesh/schedule/pipeline.hpp"

#include <algorithm>

#include "sdk/mesh/schedule/pipeline_vee.hpp"
#include "yoke/text.hpp"

namespace yoke::mesh {
namespace {

struct Shape {
  int rank, ranks, chunks, micros;
};

using Order = std::vector<StageStep>;

void add(Order& order, StageOp op, int stage, int micro) {
  order.push_back({op, stage, micro});
}

// A whole chunk at a time: forward in ascending, backward in descending order of the chunks. With
// one chunk this is GPipe.
Order breadth_first(const Shape& s) {
  Order order;
  for (int c = 0; c < s.chunks; ++c) {
    for (int i = 0; i < s.micros; ++i) add(order, StageOp::kForward, c * s.ranks + s.rank, i);
  }
  for (int c = s.chunks - 1; c >= 0; --c) {
    for (int i = 0; i < s.micros; ++i) add(order, StageOp::kBackward, c * s.ranks + s.rank, i);
  }
  return order;
}

// The chunk and micro-batch of each operation: micro-batches are visited in groups of p, and a
// group passes through all chunks before the next one begins.
struct Visit {
  int chunk, micro;
};

std::vector<Visit> visits_of(const Shape& s) {
  std::vector<Visit> visits;
  for (int begin = 0; begin < s.micros; begin += s.ranks) {
    for (int c = 0; c < s.chunks; ++c) {
      for (int i = begin; i < std::min(begin + s.ranks, s.micros); ++i) visits.push_back({c, i});
    }
  }
  return visits;
}

// Forwards until the pipeline below this rank is full, then a forward and a backward in turn. With
// split backwards, the gradients of weights lag behind by as many operations as the rank's number:
// ranks at the end, which begin later, so fill the time in which they wait for the first ranks.
Order depth_first(const Shape& s, bool split) {
  const std::vector<Visit> visits = visits_of(s);
  const int total = s.chunks * s.micros, below = s.ranks - 1 - s.rank;
  // With several chunks, forwards run ahead further: by a round of the loop for each later chunk,
  // and, unless backwards are split, twice the distance to the last rank, so that no rank waits for
  // a message in between.
  const int rounds = (s.chunks - 1) * std::min(s.ranks, s.micros);
  const int warm_up = std::min(rounds + (s.chunks > 1 && !split ? 2 * below : below), total);
  Order order;
  const auto forward = [&](int k) {
    add(order, StageOp::kForward, visits[k].chunk * s.ranks + s.rank, visits[k].micro);
  };
  const auto backward = [&](StageOp op, int k) {
    add(order, op, (s.chunks - 1 - visits[k].chunk) * s.ranks + s.rank, visits[k].micro);
  };
  for (int k = 0; k < warm_up; ++k) forward(k);
  for (int k = 0; k < total; ++k) {
    if (warm_up + k < total) forward(warm_up + k);
    backward(split ? StageOp::kBackwardInput : StageOp::kBackward, k);
    if (split && k >= s.rank) backward(StageOp::kBackwardWeight, k - s.rank);
  }
  if (split) {
    for (int k = std::max(0, total - s.rank); k < total; ++k) backward(StageOp::kBackwardWeight, k);
  }
  return order;
}

}  // namespace

const std::vector<PipelineInfo>& pipeline_infos() {
  static const std::vector<PipelineInfo> infos{
      {PipelineKind::kGpipe, "gpipe", StagePlacement::kLoop, 1, false, true},
      {PipelineKind::k1F1B, "1f1b", StagePlacement::kLoop, 1, false, true},
      {PipelineKind::kInterleaved, "interleaved", StagePlacement::kLoop, 2, true, true},
      {PipelineKind::kLoopedBfs, "looped_bfs", StagePlacement::kLoop, 2, true, false},
      {PipelineKind::kZbH1, "zb_h1", StagePlacement::kLoop, 1, false, true},
      {PipelineKind::kZbInterleaved, "zb_interleaved", StagePlacement::kLoop, 2, true, true},
      {PipelineKind::kZbV, "zb_v", StagePlacement::kVee, 2, false, true},
      {PipelineKind::kVHalf, "v_half", StagePlacement::kVee, 2, false, true},
      {PipelineKind::kVMin, "v_min", StagePlacement::kVee, 2, false, true},
      {PipelineKind::kDualPipeV, "dual_pipe_v", StagePlacement::kVee, 2, false, true},
  };
  return infos;
}

const PipelineInfo& info_of(PipelineKind kind) {
  return pipeline_infos()[static_cast<size_t>(kind)];
}

std::string micros_fault(PipelineKind kind, int ranks, int micros) {
  if (kind == PipelineKind::kInterleaved && micros % ranks != 0) {
    return concat("interleaved needs a multiple of pp_degree = ", ranks, " micro-batches");
  }
  if (kind == PipelineKind::kDualPipeV && micros < 2 * ranks)
    return concat("dual_pipe_v needs at least 2 x pp_degree = ", 2 * ranks, " micro-batches");
  return "";
}

std::vector<StageStep> training_order(
    PipelineKind kind, int rank, int ranks, int chunks, int micros) {
  const Shape shape{rank, ranks, chunks, micros};
  switch (kind) {
    case PipelineKind::kGpipe:
    case PipelineKind::kLoopedBfs:
      return breadth_first(shape);
    case PipelineKind::k1F1B:
    case PipelineKind::kInterleaved:
      return depth_first(shape, false);
    case PipelineKind::kZbH1:
    case PipelineKind::kZbInterleaved:
      return depth_first(shape, true);
    case PipelineKind::kZbV:
      return zb_v(rank, ranks, micros);
    case PipelineKind::kVHalf:
      return v_half(rank, ranks, micros);
    case PipelineKind::kVMin:
      return v_min(rank, ranks, micros);
    case PipelineKind::kDualPipeV:
      return dual_pipe_v(rank, ranks, micros);
  }
  return {};
}

std::vector<StageStep> evaluation_order(const std::vector<OwnStage>& stages, int micros) {
  Order order;
  for (const OwnStage& stage : stages) {
    for (int i = 0; i < micros; ++i) add(order, StageOp::kForward, stage.index, i);
  }
  return order;
}

}  // namespace yoke::mesh
