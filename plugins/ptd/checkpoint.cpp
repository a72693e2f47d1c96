#include "plugins/ptd/checkpoint.hpp"

#include <ATen/core/Tensor.h>

namespace yoke::ptd {
namespace {

class Visit {
 public:
  Visit(const YokeCheckpointArgs& args, int replica) : args_(args), replica_(replica) {}

  void piece(const YokeParameter& param,
             const char* kind,
             const ShardPiece& where,
             const at::Tensor& shard) {
    YokePiece p = make(param.name, kind, dtype_of(shard.scalar_type()));
    p.shape = param.shape;
    p.ndim = param.ndim;
    p.begin = where.begin;
    p.count = p.run = where.count;
    p.replica = replica_;
    const TensorView values(shard.narrow(0, where.offset, where.count));
    call(p, values.get());
  }

  void step(int64_t& step, int rank) {
    YokePiece p = make(YOKE_STRING("optimizer"), "step", YOKE_I64);
    p.count = p.run = 1;
    p.replica = rank;
    const FlatView value(&step, 1, YOKE_I64);
    call(p, value.get());
  }

 private:
  static YokePiece make(YokeString name, const char* kind, int32_t dtype) {
    YokePiece p{};
    p.header = YOKE_HEADER(YokePiece, YOKE_ID_PIECE);
    p.name = name;
    p.kind = view(kind);
    p.dtype = dtype;
    return p;
  }

  void call(YokePiece& p, const YokeTensor* values) {
    if (args_.op != YOKE_CHECKPOINT_DESCRIBE) p.view = values;
    YokeError err = make_error();
    check(args_.visit(args_.visit_ctx, &p, &err), err);
  }

  const YokeCheckpointArgs& args_;
  int replica_;
};

}  // namespace

void visit_state(const YokeCheckpointArgs& args,
                 const YokeModelSummary& model,
                 const ShardState& state,
                 Optimizer& optimizer,
                 int replica,
                 int rank) {
  Visit visit(args, replica);
  for (size_t u = 0; u < state.units.size(); ++u) {
    const auto& [layout, trainable, begin] = state.units[u];
    for (const FlatLayout::Slot& slot : layout.slots()) {
      const YokeParameter& param = *model.params[slot.param];
      const ShardPiece where = layout.piece(slot, state.shard);
      if (where.count == 0) continue;
      visit.piece(param, "param", where, state.param_shard(u));
      if (!trainable) continue;
      for (const Moment& moment : optimizer.moments()) {
        visit.piece(
            param, moment.kind, where, moment.values.narrow(0, begin, layout.shard_numel()));
      }
    }
  }
  visit.step(optimizer.step(), rank);
}

}  // namespace yoke::ptd
