// The table of all rules, made at the first look-up. No other file names all the families.
#include "sdk/mesh/dtensor/rules/rules.hpp"

namespace yoke::mesh {

const OpRule* find_rule(const std::string& name) {
  static const RuleTable table = [] {
    RuleTable rules;
    add_pointwise_rules(rules);
    add_factory_rules(rules);
    add_view_rules(rules);
    add_slice_rules(rules);
    add_matmul_rules(rules);
    add_embedding_rules(rules);
    add_norm_rules(rules);
    add_softmax_rules(rules);
    add_reduction_rules(rules);
    add_indexing_rules(rules);
    add_foreach_rules(rules);
    return rules;
  }();
  const auto it = table.find(name);
  return it == table.end() ? nullptr : &it->second;
}

}  // namespace yoke::mesh
