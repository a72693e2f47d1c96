#include "core/model/adapters.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "core/model/model_dims.hpp"
#include "core/model/modules.hpp"
#include "yoke/error.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr char kWeight[] = ".weight";
constexpr char kHead[] = "lm_head";

double alpha_of(const LoraConfig& lora) {
  return lora.alpha.value_or(static_cast<double>(lora.rank));
}

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

std::vector<std::string> last_parts(const std::vector<Target>& layers) {
  std::set<std::string> parts;
  for (const Target& t : layers) parts.insert(t.name.substr(t.name.rfind('.') + 1));
  return {parts.begin(), parts.end()};
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
                       nearest(target, ends) + "; allowed: names of matrices or ends of such " +
                       "names: " + join(last_parts(layers)));
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

// Returns how tensor parallelism may cut A [rank, in] and B [...out, rank] of a matrix. They are
// cut along the dim that they share with the matrix, if that dim is cut.
std::pair<TpHint, TpHint> adapter_hints(const Linear& linear, const TpHint& weight) {
  if (weight.cut <= 0) return {weight, weight};  // whole, or unknown
  const int32_t dim = weight.cut - 1;
  const auto inputs = static_cast<int32_t>(linear.input_first ? 0 : linear.weight.dim() - 1);
  if (dim == inputs) return {TpHint::along(1, weight.parts), TpHint::whole()};
  return {TpHint::whole(), TpHint::along(linear.input_first ? dim - 1 : dim, weight.parts)};
}

// What the host asks about the parameters of the adapters, by their names.
struct Answers {
  std::map<std::string, ParamInit> init;
  std::map<std::string, TpHint> tp;
};

void add_adapter(BlockList& list, const Target& t, const LoraConfig& lora, Answers& answers) {
  t.linear->adapt(lora.rank, adapter_scale(lora));
  const std::string weight = t.name + kWeight, a = adapter_a(weight), b = adapter_b(weight);
  list.params[t.block].emplace_back(a, t.linear->lora_a->weight);
  list.params[t.block].emplace_back(b, t.linear->lora_b->weight);
  // A uniform number has the standard deviation of its bound over the root of 3. The bound of PEFT
  // is 1 / sqrt(in).
  const int64_t in = t.linear->inputs(), out = t.linear->weight.numel() / in;
  answers.init[a] = {ParamInit::kUniform, 1 / std::sqrt(3 * static_cast<double>(in))};
  answers.init[b] = {ParamInit::kConstant, 0};
  if (list.tp) std::tie(answers.tp[a], answers.tp[b]) = adapter_hints(*t.linear, list.tp(weight));
  if (t.linear->lora_b->weight.dim() > 2) list.stored_shapes[b] = {out, lora.rank};
  if (t.block >= list.costs.size()) return;
  BlockCosts& costs = list.costs[t.block];
  costs.activation_bytes +=
      list.seq_len * lora.rank * static_cast<int64_t>(t.linear->weight.element_size());
  costs.forward_flops += 2 * static_cast<double>(list.seq_len * lora.rank * (in + out));
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
  const AdapterConfig there = read_adapter_config(folder);
  std::vector<std::string> faults;
  const auto differ = [&](const char* key, const auto& given, const auto& stored) {
    faults.push_back(concat("lora.", key, " = ", given, ", but ", folder, " has ") +
                     concat(stored, "; set lora.", key, " to that"));
  };
  const double alpha = alpha_of(lora);
  if (lora.rank != there.rank) differ("rank", lora.rank, there.rank);
  if (alpha != there.alpha) differ("alpha", alpha, there.alpha);
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
      const auto stored = list.stored_shapes.find(name);
      if (is_adapter(name))
        shapes[name] = stored == list.stored_shapes.end() ? leaf.sizes().vec() : stored->second;
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
  return {.rank = stored.rank, .alpha = stored.alpha, .targets = stored.targets, .from = ""};
}

// GPT-2 has matrices [in, out] except for its head.
AdapterConfig adapter_config(const ModelConfig& model) {
  const LoraConfig& lora = model.lora;
  const bool other_than_head =
      std::any_of(lora.targets.begin(), lora.targets.end(), [](const std::string& target) {
        return target != kHead;
      });
  return {
      lora.rank, alpha_of(lora), lora.targets, other_than_head && model_family(model) == "gpt2"};
}

double adapter_scale(const LoraConfig& lora) {
  return alpha_of(lora) / static_cast<double>(lora.rank);
}

}  // namespace yoke
