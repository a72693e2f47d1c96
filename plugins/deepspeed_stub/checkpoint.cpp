#include "plugins/deepspeed_stub/checkpoint.hpp"

namespace yoke::deepspeed_stub {
namespace {

// Completes a piece and passes it to the visitor. `values` is in the memory of `device`.
void show(const YokeCheckpointArgs& args,
          YokePiece piece,
          const Span& values,
          const YokeDevice& device) {
  piece.header = YOKE_HEADER(YokePiece, YOKE_ID_PIECE);
  piece.dtype = values.dtype;
  const FlatView view(values.data, values.count, values.dtype, device);
  if (args.op != YOKE_CHECKPOINT_DESCRIBE) piece.view = view.get();
  call([&](YokeError* err) { return args.visit(args.visit_ctx, &piece, err); });
}

// As show(), for a piece whose elements are in a file, or in part on the host and on a device.
void show_staged(const YokeCheckpointArgs& args,
                 const YokePiece& piece,
                 const Values& values,
                 int64_t offset,
                 const Setup& setup) {
  Span staging{nullptr, piece.count, values.dtype()};
  if (args.op == YOKE_CHECKPOINT_DESCRIBE) return show(args, piece, staging, setup.host.id());
  const Array memory = Array::to_be_written(setup.host, piece.count, values.dtype());
  staging = memory.span();
  values.state()->read(values.array(), offset, staging);
  show(args, piece, staging, setup.host.id());
  if (args.op == YOKE_CHECKPOINT_LOAD) values.state()->write(values.array(), offset, staging);
}

}  // namespace

void visit_state(const YokeCheckpointArgs& args,
                 const YokeModelSummary& model,
                 const Weights& weights,
                 Optimizer& optimizer,
                 const Replicas& replicas,
                 const Setup& setup) {
  const auto show_piece =
      [&](const Piece& where, const char* kind, const Values& all, int64_t replica) {
        const YokeParameter& param = *model.params[where.param];
        YokePiece piece{};
        piece.name = param.name;
        piece.kind = view(kind);
        piece.shape = param.shape;
        piece.ndim = param.ndim;
        piece.begin = where.begin;
        piece.count = piece.run = where.count;
        piece.replica = replica;
        if (!all.is_in_memory(where.offset, where.count))
          return show_staged(args, piece, all, where.offset, setup);
        const Device& device = all.is_on_host(where.offset) ? setup.host : setup.device;
        show(args, piece, all.window(where.offset, where.count), device.id());
      };
  for (const Piece& piece : weights.trainable().owned.pieces) {
    show_piece(piece, "param", weights.trainable().master, replicas.trainable);
    for (const Optimizer::Moment& moment : optimizer.moments())
      show_piece(piece, moment.kind, moment.values, replicas.trainable);
  }
  for (const Piece& piece : weights.frozen().owned.pieces)
    show_piece(piece, "param", weights.frozen().master, replicas.frozen);

  // The step count is always in host memory, even on a CUDA device.
  YokePiece step{};
  step.name = view("optimizer");
  step.kind = view("step");
  step.count = step.run = 1;
  step.replica = replicas.step;
  int64_t last_step = optimizer.last_step();
  show(args, step, {&last_step, 1, YOKE_I64}, {YOKE_DEVICE_CPU, 0});
  if (args.op == YOKE_CHECKPOINT_LOAD) optimizer.restore(last_step);
}

}  // namespace yoke::deepspeed_stub
