// A wrapped model that has state and nothing else.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "core/backend/loaded_backend.hpp"
#include "yoke/backend.hpp"
#include "yoke/torch.hpp"

namespace yoke::testing {

// A piece of state. The fields have the same meaning as in YokePiece.
struct StatePiece {
  std::string name, kind;
  at::Tensor values;
  int64_t begin = 0, replica = 0;
  int64_t run = values.numel(), stride = 0;
};

// Calls f with the piece as a backend shows it.
template <class F>
auto with_piece(const StatePiece& state, bool with_view, const F& f) {
  const TensorView values(state.values);
  YokePiece piece{};
  piece.header = YOKE_HEADER(YokePiece, YOKE_ID_PIECE);
  piece.name = view(state.name);
  piece.kind = view(state.kind);
  piece.dtype = dtype_of(state.values.scalar_type());
  piece.begin = state.begin;
  piece.count = state.values.numel();
  piece.run = state.run;
  piece.stride = state.stride;
  piece.replica = state.replica;
  piece.view = with_view ? values.get() : nullptr;
  return f(piece);
}

// Returns a wrapped model whose state are these pieces, which must outlive it.
inline WrappedModel fake_model(std::vector<StatePiece>& pieces) {
  const auto calls = std::make_shared<BackendCalls>();
  calls->table.checkpoint =
      [](YokeWrapped* model, const YokeCheckpointArgs* args, YokeError* err) -> int32_t {
    for (const StatePiece& state : *reinterpret_cast<std::vector<StatePiece>*>(model)) {
      const auto visit = [&](const YokePiece& piece) {
        return args->visit(args->visit_ctx, &piece, err);
      };
      const bool describes = args->op == YOKE_CHECKPOINT_DESCRIBE;
      if (const int32_t code = with_piece(state, !describes, visit); code != YOKE_OK) return code;
    }
    return YOKE_OK;
  };
  calls->table.destroy_model = [](YokeWrapped** model) { *model = nullptr; };
  YokeWrapResult result{};
  result.model = reinterpret_cast<YokeWrapped*>(&pieces);
  return {calls, result};
}

}  // namespace yoke::testing
