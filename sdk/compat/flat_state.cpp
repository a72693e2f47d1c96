#include "sdk/compat/flat_state.hpp"

#include <ATen/ATen.h>

namespace yoke::compat {
namespace {

void show(const YokeCheckpointArgs& args, YokePiece piece, const at::Tensor& values) {
  piece.header = YOKE_HEADER(YokePiece, YOKE_ID_PIECE);
  piece.dtype = dtype_of(values.scalar_type());
  piece.count = piece.run = values.numel();
  const TensorView view(values);
  if (args.op != YOKE_CHECKPOINT_DESCRIBE) piece.view = view.get();
  call([&](YokeError* err) { return args.visit(args.visit_ctx, &piece, err); });
}

YokePiece piece_of(const YokeParameter& param, int64_t begin, const char* kind, int64_t replica) {
  YokePiece piece{};
  piece.name = param.name;
  piece.kind = view(kind);
  piece.shape = param.shape;
  piece.ndim = param.ndim;
  piece.begin = begin;
  piece.replica = replica;
  return piece;
}

}  // namespace

void visit(const FlatState& state, const YokeCheckpointArgs& args) {
  const auto& [model, layout, parameters, optimizer, replica, rank] = state;
  for (size_t i = 0; i < parameters.owned().size(); ++i) {
    const Range& range = parameters.owned()[i];
    for (const Piece& p : layout.pieces(range)) {
      const YokeParameter& param = *model.params[p.param];
      const auto part = [&](const at::Tensor& all) {
        return all.narrow(0, p.offset - range.begin, p.count);
      };
      show(args, piece_of(param, p.begin, "param", replica), part(parameters.master(i)));
      for (size_t k = 0; k < optimizer.kinds().size(); ++k)
        show(args,
             piece_of(param, p.begin, optimizer.kinds()[k].c_str(), replica),
             part(optimizer.moment(k, i)));
    }
  }
  for (int64_t p = 0; p < static_cast<int64_t>(model.num_params); ++p) {
    if (layout.offset(p) < 0)
      show(args, piece_of(*model.params[p], 0, "param", rank), parameters.frozen(p));
  }
  YokePiece step{};
  step.name = view("optimizer");
  step.kind = view("step");
  step.replica = rank;
  at::Tensor last_step = at::tensor(optimizer.last_step(), at::kLong);
  show(args, step, last_step);
  if (args.op != YOKE_CHECKPOINT_LOAD) return;
  optimizer.restore(last_step.item<int64_t>());
  parameters.publish();
}

}  // namespace yoke::compat
