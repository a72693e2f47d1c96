#include "plugins/accelerate_compat/ddp/checkpoint.hpp"

namespace yoke::accelerate_compat {
namespace {

// Completes a piece and passes it to the visitor.
void show(const YokeCheckpointArgs& args, YokePiece piece, const YokeTensor* values) {
  piece.header = YOKE_HEADER(YokePiece, YOKE_ID_PIECE);
  if (args.op != YOKE_CHECKPOINT_DESCRIBE) piece.view = values;
  call([&](YokeError* err) { return args.visit(args.visit_ctx, &piece, err); });
}

}  // namespace

void visit_state(const YokeCheckpointArgs& args,
                 const Parameters& parameters,
                 Optimizer& optimizer,
                 int rank) {
  const auto show_whole = [&](const YokeParameter& param, const char* kind, const at::Tensor& t) {
    YokePiece piece{};
    piece.name = param.name;
    piece.kind = view(kind);
    piece.shape = param.shape;
    piece.ndim = param.ndim;
    piece.dtype = dtype_of(t.scalar_type());
    piece.count = piece.run = t.numel();
    piece.replica = rank;
    show(args, piece, TensorView(t.view({-1})).get());
  };
  const std::vector<Parameter>& all = parameters.all();
  for (size_t p = 0; p < all.size(); ++p) {
    show_whole(*all[p].info, "param", all[p].master);
    if (all[p].info->trainable == 0) continue;
    for (size_t k = 0; k < optimizer.kinds().size(); ++k)
      show_whole(*all[p].info, optimizer.kinds()[k].c_str(), optimizer.moment(k, p));
  }
  YokePiece step{};
  step.name = view("optimizer");
  step.kind = view("step");
  step.dtype = YOKE_I64;
  step.count = step.run = 1;
  step.replica = rank;
  int64_t last_step = optimizer.last_step();
  const FlatView value(&last_step, 1, YOKE_I64);
  show(args, step, value.get());
  if (args.op == YOKE_CHECKPOINT_LOAD) optimizer.restore(last_step);
}

}  // namespace yoke::accelerate_compat
