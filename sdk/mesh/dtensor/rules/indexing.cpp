// These rules cover operators that take elements from arbitrary positions of a tensor. They run on
// whole tensors, because the positions are values, which a rule does not read.
#include "sdk/mesh/dtensor/rules/rules.hpp"

namespace yoke::mesh {
namespace {

Decision whole(const OpCall& call, std::vector<Sizes> outputs) {
  const size_t n = outputs.size();
  return choose(
      call, [&](int) { return Ways{all_replicate(call, n)}; }, std::move(outputs));
}

// Makes a rule for operators on whole tensors whose result has the sizes of argument `arg`.
OpRule whole_like(size_t arg) {
  return [arg](const OpCall& call) { return whole(call, {call.tensor(arg).sizes}); };
}

Decision index_select(const OpCall& call) {
  Sizes out = call.operands[0].sizes;
  out[call.dim(1, call.operands[0].ndim())] = call.tensor(2).numel();
  return whole(call, {out});
}

}  // namespace

void add_indexing_rules(RuleTable& rules) {
  rules["aten::index_select"] = index_select;
  rules["aten::gather"] = whole_like(2);
  for (const char* name : {"gather_backward",
                           "cumsum",
                           "flip",
                           "roll",
                           "tril",
                           "triu",
                           "scatter.src",
                           "scatter.value",
                           "scatter_add",
                           "index_put_",
                           "_index_put_impl_",
                           "index_add_",
                           "index_add"})
    rules[std::string("aten::") + name] = whole_like(0);
}

}  // namespace yoke::mesh
