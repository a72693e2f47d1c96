// Each piece that the visitor gets is a view into this rank's flat shards: no operation gathers or
// copies anything. Saving whole tensors instead would need a gather per parameter, and one rank
// with enough memory for the result. A shard may begin and end at any element of a parameter, which
// is why a piece is a span of the row-major tensor and not a box.
#include "plugins/ptd/checkpoint.hpp"

#include <ATen/core/Tensor.h>

namespace yoke::ptd {
namespace {

// Fills in the pieces of one call and passes them to its visitor.
class Visit {
 public:
  explicit Visit(const YokeCheckpointArgs& args) : args_(args) {}

  // values: the contiguous values of the span, a view into a shard.
  void piece(const YokeParameter& param,
             const char* kind,
             const ParamSpan& span,
             int64_t replica,
             const at::Tensor& values) {
    YokePiece p = make(param.name, kind, dtype_of(values.scalar_type()));
    p.shape = param.shape;
    p.ndim = param.ndim;
    p.begin = span.begin;
    p.count = span.count;
    p.run = span.run;
    p.stride = span.stride;
    p.replica = replica;
    const TensorView view(values);
    show(p, view.get());
  }

  // Passes the step count to the visitor. Returns it, or the value that the visitor wrote instead.
  int64_t step(int64_t step, int rank) {
    YokePiece p = make(YOKE_STRING("optimizer"), "step", YOKE_I64);
    p.count = p.run = 1;
    p.replica = rank;
    const FlatView value(&step, 1, YOKE_I64);
    show(p, value.get());
    return step;
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

  // DESCRIBE lists the pieces without their values.
  void show(YokePiece& p, const YokeTensor* values) {
    if (args_.op != YOKE_CHECKPOINT_DESCRIBE) p.view = values;
    call([&](YokeError* err) { return args_.visit(args_.visit_ctx, &p, err); });
  }

  const YokeCheckpointArgs& args_;
};

}  // namespace

void visit_state(const YokeCheckpointArgs& args,
                 const YokeModelSummary& model,
                 const ShardState& state,
                 Optimizer& optimizer,
                 const std::vector<ParamCut>& cuts,
                 const StateRank& rank) {
  Visit visit(args);
  for (size_t u = 0; u < state.units.size(); ++u) {
    const auto& [layout, trainable, begin] = state.units[u];
    for (const FlatLayout::Slot& slot : layout.slots()) {
      const ParamCut& cut = cuts[slot.param];
      const ShardPiece where = layout.piece(slot, state.shard);
      // A parameter that tp does not cut exists on every rank of tp, in every replica. One that two
      // ranks of pp have exists twice as often; those of the second rank have the higher numbers.
      const int copies = cut.run == 0 ? rank.tp_size : 1;
      const int64_t in_stage = int64_t{rank.replica} * copies + (cut.run == 0 ? rank.tp : 0);
      const bool first = layout.spans().front().counted;
      const int64_t replica = in_stage + (first ? 0 : int64_t{rank.replicas} * copies);
      // values: returns some of this rank's elements; undefined if they have no such values.
      const auto show = [&](const char* kind, const auto& values) {
        for (const ParamSpan& span : cut.spans(where.begin, where.count)) {
          const at::Tensor view = values(where.offset + span.local - where.begin, span.count);
          if (view.defined()) visit.piece(*model.params[slot.param], kind, span, replica, view);
        }
      };
      const at::Tensor shard = state.param_shard(u);
      show("param", [&](int64_t at, int64_t count) { return shard.narrow(0, at, count); });
      if (!trainable) continue;
      for (const Moment& moment : optimizer.moments())
        show(moment.kind, [&, first = begin](int64_t at, int64_t count) {
          return moment.of(first + at, count);
        });
    }
  }
  const int64_t step = visit.step(optimizer.last_step(), rank.world);
  if (args.op == YOKE_CHECKPOINT_LOAD) optimizer.restore(step);
}

}  // namespace yoke::ptd
