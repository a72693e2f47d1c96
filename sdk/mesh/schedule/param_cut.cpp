#include "sdk/mesh/schedule/param_cut.hpp"

#include <algorithm>

namespace yoke::mesh {

ParamCut ParamCut::along(const std::vector<int64_t>& shape, int64_t dim, int rank, int ranks) {
  int64_t inner = 1, rows = 1;
  for (int64_t d = 0; d < static_cast<int64_t>(shape.size()); ++d) {
    (d < dim ? rows : inner) *= shape[d];
  }
  const int64_t run = inner / ranks;
  return {rank * run, run, rows == 1 ? 0 : inner};
}

std::vector<ParamSpan> ParamCut::spans(int64_t begin, int64_t count) const {
  if (count == 0) return {};
  if (run == 0 || stride == 0) return {{first + begin, count, count, 0, begin}};
  std::vector<ParamSpan> pieces;
  // If the range starts inside a run, the first span is the rest of that run, and the second span
  // is the runs after it.
  const int64_t inside = begin % run;
  const int64_t head = inside == 0 ? 0 : std::min(count, run - inside);
  const auto at = [&](int64_t i) { return first + i / run * stride + i % run; };
  if (head > 0) pieces.push_back({at(begin), head, head, 0, begin});
  const int64_t rest = count - head;
  if (rest == 0) return pieces;
  const bool one = rest <= run;
  pieces.push_back({at(begin + head), rest, one ? rest : run, one ? 0 : stride, begin + head});
  return pieces;
}

std::vector<ParamCut> param_cuts(const YokeModelSummary& model, int tp_rank, int tp) {
  std::vector<ParamCut> cuts(model.num_params);
  for (uint64_t p = 0; p < model.num_params; ++p) {
    const YokeParameter& param = *model.params[p];
    if (tp == 1 || param.tp_cut <= 0) continue;
    const std::vector<int64_t> shape(param.shape, param.shape + param.ndim);
    cuts[p] = ParamCut::along(shape, param.tp_cut - 1, tp_rank, tp);
  }
  return cuts;
}

}  // namespace yoke::mesh
