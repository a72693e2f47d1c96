// Each schedule is a function that writes down the order of one rank; nothing here knows about
// messages, memory or collectives, which are added to any order in the same way (schedule.cpp).
// The checker then proves that the orders of all ranks fit together. Building the orders with a
// simulator, as planners do, would find slightly better ones for uneven stages, but a user could no
// longer look them up in a paper.
#include "plugins/ptd/schedule/pipeline.hpp"

#include <algorithm>

#include "yoke/text.hpp"

namespace yoke::ptd {
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

// Forwards until the pipeline below this rank is full, then a forward and a backward in turn.
// Micro-batches are visited in groups of p: a group passes through all chunks before the next one
// begins. With one chunk this is 1F1B.
Order depth_first(const Shape& s) {
  struct Visit {
    int chunk, micro;
  };
  std::vector<Visit> visits;
  for (int begin = 0; begin < s.micros; begin += s.ranks) {
    for (int c = 0; c < s.chunks; ++c) {
      for (int i = begin; i < std::min(begin + s.ranks, s.micros); ++i) visits.push_back({c, i});
    }
  }
  const int total = s.chunks * s.micros;
  // With several chunks, forwards run ahead further: by a round of the loop for each later chunk,
  // and twice the distance to the last rank, so that no rank waits for a message in between.
  const int below = s.ranks - 1 - s.rank;
  const int ahead =
      s.chunks == 1 ? below : (s.chunks - 1) * std::min(s.ranks, s.micros) + 2 * below;
  const int warm_up = std::min(ahead, total);
  Order order;
  const auto forward = [&](int k) {
    add(order, StageOp::kForward, visits[k].chunk * s.ranks + s.rank, visits[k].micro);
  };
  const auto backward = [&](int k) {
    const int chunk = s.chunks - 1 - visits[k].chunk;
    add(order, StageOp::kBackward, chunk * s.ranks + s.rank, visits[k].micro);
  };
  for (int k = 0; k < warm_up; ++k) forward(k);
  for (int k = 0; k + warm_up < total; ++k) {
    forward(warm_up + k);
    backward(k);
  }
  for (int k = total - warm_up; k < total; ++k) backward(k);
  return order;
}

}  // namespace

const std::vector<PipelineInfo>& pipeline_infos() {
  static const std::vector<PipelineInfo> infos{
      {PipelineKind::kGpipe, "gpipe", StagePlacement::kLoop, 1, false, true},
      {PipelineKind::k1F1B, "1f1b", StagePlacement::kLoop, 1, false, true},
      {PipelineKind::kInterleaved, "interleaved", StagePlacement::kLoop, 2, true, true},
      {PipelineKind::kLoopedBfs, "looped_bfs", StagePlacement::kLoop, 2, true, false},
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
      return depth_first(shape);
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

}  // namespace yoke::ptd
