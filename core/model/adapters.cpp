#include "core/model/adapters.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "core/model/modules.hpp"
#include "yoke/error.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr char kWeight[] = ".weight";

bool matches(const std::string& param, const std::string& pattern) {
  const std::string parts = "." + param + ".", wanted = "*." + pattern + ".*";
  return !pattern.empty() && ::fnmatch(wanted.c_str(), parts.c_str(), 0) == 0;
}

// Returns the ends of a name that begin with a whole part: "q_proj", "self_attn.q_proj" and so on.
void add_ends(const std::string& name, std::set<std::string>& ends) {
  for (size_t dot = name.size(); dot != std::string::npos && dot > 0;) {
    dot = name.rfind('.', dot - 1);
    ends.insert(dot == std::string::npos ? name : name.substr(dot + 1));
  }
}

std::string nearest(const std::string& given, const std::set<std::string>& ends) {
  return did_you_mean(given, {ends.begin(), ends.end()});
}

// A matrix that can have an adapter.
struct Target {
  size_t block;
  std::string name;  // without ".weight"
  Linear* linear;
  bool tied;  // true if an earlier block has the same parameter
};

std::vector<Target> linear_layers(const BlockList& list) {
  std::vector<Target> all;
  std::set<const at::TensorImpl*> seen;
  for (size_t block = 0; block < list.blocks.size(); ++block) {
    for (const auto& module : list.blocks[block].module->modules()) {
      auto* const linear = dynamic_cast<Linear*>(module.get());
      if (linear == nullptr) continue;
      const auto& params = list.params[block];
      const auto named = std::find_if(params.begin(), params.end(), [&](const auto& p) {
        return p.second.is_same(linear->weight);
      });
      const std::string name = named->first.substr(0, named->first.rfind(kWeight));
      all.push_back({block, name, linear, seen.contains(linear->weight.unsafeGetTensorImpl())});
    }
    for (const auto& [name, leaf] : list.params[block]) seen.insert(leaf.unsafeGetTensorImpl());
  }
  return all;
}

void check_targets(const std::vector<Target>& layers, const LoraConfig& lora) {
  std::vector<std::string> faults;
  std::set<std::string> ends;
  for (const Target& t : layers) add_ends(t.name, ends);
  for (const std::string& target : lora.targets) {
    const bool found = std::any_of(layers.begin(), layers.end(), [&](const Target& t) {
      return is_adapter_target(t.name, {target});
    });
    if (!found)
      faults.push_back("lora.targets: \"" + target + "\" names no matrix of a linear layer" +
                       nearest(target, ends));
  }
  for (const Target& t : layers) {
    if (t.tied && is_adapter_target(t.name, lora.targets))
      faults.push_back("lora.targets: " + t.name +
                       " shares its matrix with the embedding, which an adapter would not change; "
                       "leave it out");
  }
  if (lora.targets.empty()) faults.push_back("lora.targets is empty; allowed: at least one name");
  if (!faults.empty()) throw Error(YOKE_INVALID_ARGUMENT, join(faults, "\n"));
}

// Returns how tensor parallelism may cut A and B of a matrix. They are cut along the side that they
// share with the matrix, if that side is cut.
std::pair<TpHint, TpHint> adapter_hints(const TpHint& weight) {
  if (weight.cut == 1) return {TpHint::whole(), weight};
  if (weight.cut == 2) return {weight, TpHint::whole()};
  return {weight, weight};
}

// What the host asks about the parameters of the adapters, by their names.
struct Answers {
  std::map<std::string, ParamInit> init;
  std::map<std::string, TpHint> tp;
};

void add_adapter(BlockList& list, const Target& t, const LoraConfig& lora, Answers& answers) {
  t.linear->adapt(lora.rank, adapter_config(lora).scale());
  const std::string weight = t.name + kWeight, a = adapter_a(weight), b = adapter_b(weight);
  list.params[t.block].emplace_back(a, t.linear->lora_a->weight);
  list.params[t.block].emplace_back(b, t.linear->lora_b->weight);
  // A uniform number has the standard deviation of its bound over the root of 3. The bound of PEFT
  // is 1 / sqrt(in).
  const auto in = static_cast<double>(t.linear->weight.size(1));
  answers.init[a] = {ParamInit::kUniform, 1 / std::sqrt(3 * in)};
  answers.init[b] = {ParamInit::kConstant, 0};
  if (list.tp) std::tie(answers.tp[a], answers.tp[b]) = adapter_hints(list.tp(weight));
  if (t.block >= list.costs.size()) return;
  BlockCosts& costs = list.costs[t.block];
  const int64_t sides = t.linear->weight.size(0) + t.linear->weight.size(1);
  costs.activation_bytes +=
      list.seq_len * lora.rank * static_cast<int64_t>(t.linear->weight.element_size());
  costs.forward_flops += 2 * static_cast<double>(list.seq_len * lora.rank * sides);
  // The passes also differ because frozen weights need no gradients.
  costs.pass_bytes.clear();
  if (!costs.distributed) return;
  costs.distributed->kept.stream +=
      list.seq_len * lora.rank * static_cast<int64_t>(t.linear->weight.element_size());
  costs.distributed->passes.clear();
}

void freeze_params(BlockList& list, const std::vector<std::string>& patterns) {
  std::vector<std::string> faults;
  std::set<std::string> ends;
  bool any_trained = false;
  for (const std::string& pattern : patterns) {
    bool found = false;
    for (const auto& of_block : list.params) {
      for (const auto& [name, leaf] : of_block) {
        add_ends(name, ends);
        add_ends(name.substr(0, name.rfind('.')), ends);
        if (!matches(name, pattern)) continue;
        found = true;
        leaf.set_requires_grad(false);
      }
    }
    if (!found)
      faults.push_back("model.freeze: \"" + pattern + "\" names no parameter" +
                       nearest(pattern, ends));
  }
  for (const auto& of_block : list.params) {
    for (const auto& [name, leaf] : of_block) any_trained = any_trained || leaf.requires_grad();
  }
  if (!any_trained)
    faults.emplace_back(
        "model.freeze names every parameter; allowed: patterns that leave one to train");
  if (!faults.empty()) throw Error(YOKE_INVALID_ARGUMENT, join(faults, "\n"));
}

// Another alpha would change the products of the stored matrices without a sign of it.
void require_same_adapters(const LoraConfig& lora, const std::string& folder) {
  const AdapterConfig here = adapter_config(lora), there = read_adapter_config(folder);
  std::vector<std::string> faults;
  const auto differ = [&](const char* key, const auto& given, const auto& stored) {
    faults.push_back(concat("lora.", key, " = ", given, ", but ", folder, " has ") +
                     concat(stored, "; set lora.", key, " to that"));
  };
  if (here.rank != there.rank) differ("rank", here.rank, there.rank);
  if (here.alpha != there.alpha) differ("alpha", here.alpha, there.alpha);
  if (!faults.empty()) throw Error(YOKE_INVALID_ARGUMENT, join(faults, "\n"));
}

}  // namespace

Family with_frozen(Family family, const std::vector<std::string>& patterns) {
  if (patterns.empty()) return family;
  family.make_blocks = [build = family.make_blocks, patterns](const FamilyArgs& args) {
    BlockList list = build(args);
    freeze_params(list, patterns);
    return list;
  };
  return family;
}

void add_adapters(BlockList& list, const LoraConfig& lora) {
  if (lora.rank == 0) return;
  const std::vector<Target> layers = linear_layers(list);
  check_targets(layers, lora);
  for (const auto& of_block : list.params) {
    for (const auto& [name, leaf] : of_block) leaf.set_requires_grad(false);
  }
  Answers answers;
  for (const Target& t : layers) {
    if (is_adapter_target(t.name, lora.targets)) add_adapter(list, t, lora, answers);
  }
  list.init = [base = list.init, own = std::move(answers.init)](const std::string& name) {
    const auto at = own.find(name);
    return at == own.end() ? base(name) : at->second;
  };
  if (!list.tp) return;
  list.tp = [base = list.tp, own = std::move(answers.tp)](const std::string& name) {
    const auto at = own.find(name);
    return at == own.end() ? base(name) : at->second;
  };
}

void open_adapters(BlockList& list, const ModelConfig& model) {
  const LoraConfig& lora = model.lora;
  if (lora.rank > 0 && !model.from.empty() && has_adapter_config(model.from))
    require_same_adapters(lora, model.from);
  if (lora.from.empty()) return;
  require_same_adapters(lora, lora.from);
  Shapes shapes;
  for (const auto& of_block : list.params) {
    for (const auto& [name, leaf] : of_block) {
      if (is_adapter(name)) shapes[name] = leaf.sizes().vec();
    }
  }
  const ReadWeights adapters = open_adapter(lora.from, shapes);
  list.stored = [base = list.stored, adapters](
                    const std::string& name, int64_t begin, int64_t count, float* dst) {
    (is_adapter(name) ? adapters : base)(name, begin, count, dst);
  };
  list.not_stored.clear();
}

LoraConfig stored_adapters(const std::string& folder) {
  if (!has_adapter_config(folder)) return {};
  const AdapterConfig stored = read_adapter_config(folder);
  return {.rank = stored.rank, .alpha = stored.alpha, .targets = stored.targets};
}

AdapterConfig adapter_config(const LoraConfig& lora) {
  return {lora.rank, lora.alpha.value_or(static_cast<double>(lora.rank)), lora.targets};
}

}  // namespace yoke
