// An operator on DTensors takes four steps: look up its decision, or let its rule make one; bring
// every operand to the placements that the decision requires; run the operator on local tensors;
// wrap the results. The fallback is boxed, so it serves every operator of LibTorch, and an operator
// without a rule is an error that names it instead of a wrong result.
//
// An operand that was redistributed keeps its new placements, because its value is the same. The
// next operator that needs these placements then causes no communication: an activation that was
// gathered for the query projection is already gathered for keys and values. Redistribution by
// explicit nodes of the autograd graph would require someone to place these nodes.
#include "sdk/mesh/dtensor/boxed.hpp"

#include <ATen/ATen.h>

#include <string>
#include <unordered_map>
#include <unordered_set>

#include "sdk/mesh/dtensor/op_call.hpp"
#include "sdk/mesh/dtensor/pieces.hpp"
#include "sdk/mesh/dtensor/redistribute.hpp"
#include "yoke/error.hpp"

namespace yoke::mesh {
namespace {

using c10::IValue;
using Args = c10::ArrayRef<IValue>;

// Properties of an operator that follow from its schema and its name.
struct OpInfo {
  std::string name;
  const OpRule* rule;
  std::vector<bool> floating;  // arguments that are floating-point: no placement depends on them
  std::vector<bool> written;   // arguments that the operator writes to
  bool writes = false;         // the operator writes to at least one argument
  bool is_view = false;
  bool is_product = false;  // aten::mm
  ViewKind view = ViewKind::kOther;
};

ViewKind view_kind(const std::string& name) {
  static const std::unordered_set<std::string> same{"aten::view",
                                                    "aten::_unsafe_view",
                                                    "aten::_reshape_alias",
                                                    "aten::detach",
                                                    "aten::alias",
                                                    "aten::unsqueeze",
                                                    "aten::squeeze",
                                                    "aten::squeeze.dim",
                                                    "aten::squeeze.dims"};
  if (name == "aten::t") return ViewKind::kTranspose;
  return same.count(name) > 0 ? ViewKind::kSameOrder : ViewKind::kOther;
}

OpInfo make_info(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  OpInfo info;
  info.name =
      schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name();
  info.rule = find_rule(info.name);
  info.view = view_kind(info.name);
  info.is_product = info.name == "aten::mm";
  for (const c10::Argument& arg : schema.arguments()) {
    c10::TypePtr type = arg.type();
    if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    const c10::TypeKind kind = type->kind();
    info.floating.push_back(kind == c10::TypeKind::NumberType || kind == c10::TypeKind::FloatType);
    info.written.push_back(arg.alias_info() != nullptr && arg.alias_info()->isWrite());
    info.writes = info.writes || info.written.back();
  }
  const c10::AliasInfo* alias =
      schema.returns().empty() ? nullptr : schema.returns()[0].alias_info();
  info.is_view = alias != nullptr && !alias->isWrite();
  return info;
}

// The properties are cached per thread, because ranks may be threads and must not wait for each
// other here.
const OpInfo& info_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<const c10::FunctionSchema*, OpInfo> known;
  const auto it = known.find(&op.schema());
  if (it != known.end()) return it->second;
  return known.emplace(&op.schema(), make_info(op)).first->second;
}

// Calls f for every defined tensor of an argument, including those inside lists.
template <class F>
void each_tensor(const IValue& value, F&& f) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) f(value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const IValue& item : value.toListRef()) each_tensor(item, f);
  }
}

// Returns the mesh of the operands. At least one of them is a DTensor, or this would not be called.
Mesh& mesh_of_args(Args args, const OpInfo& info) {
  Mesh* mesh = nullptr;
  for (const IValue& arg : args) {
    each_tensor(arg, [&](const at::Tensor& t) {
      if (!is_wrapped(t)) return;
      if (mesh != nullptr && mesh != meta_of(t).mesh) {
        throw Error(YOKE_INVALID_ARGUMENT,
                    "operator " + info.name + ": its tensors are distributed over two meshes");
      }
      mesh = meta_of(t).mesh;
    });
  }
  return *mesh;
}

// Adds an argument of any type to the key.
void add_value(OpKey& key, const IValue& v) {
  if (v.isTensor()) return add_to_key(key, v.toTensor());
  if (v.isInt()) return add_to_key(key, v.toInt());
  if (v.isBool()) return add_to_key(key, int64_t{v.toBool()});
  if (v.isIntList()) return add_to_key(key, v.toIntVector());
  if (v.isNone()) return add_to_key(key, kNone);
  if (v.isString())
    return add_to_key(key, static_cast<int64_t>(std::hash<std::string>{}(v.toStringRef())));
  if (v.isDevice()) return add_to_key(key, static_cast<int64_t>(v.toDevice().type()));
  if (v.isList()) {
    key.add(static_cast<int64_t>(v.toListRef().size()));
    for (const IValue& item : v.toListRef()) add_value(key, item);
  }
  // Floating-point numbers and generators are left out: no placement depends on them.
}

OpKey key_of(const c10::OperatorHandle& op, const OpInfo& info, Args args) {
  OpKey key(&op.schema());
  for (size_t i = 0; i < args.size(); ++i) {
    if (!info.floating[i]) add_value(key, args[i]);
  }
  // The decision for a view contains the global strides of the result, which depend on those of the
  // operand.
  if (info.is_view) add_to_key(key, args[0].toTensor().strides());
  return key;
}

Operand operand_of(const at::Tensor& t, bool written) {
  Operand o;
  o.sizes = t.sizes().vec();
  o.strides = t.strides().vec();
  o.plain = !is_wrapped(t);
  o.written = written;
  o.integral = at::isIntegralType(t.scalar_type(), /*includeBool=*/true);
  if (o.plain) return o;
  o.placements = meta_of(t).placements;
  o.parameter = meta_of(t).parameter;
  return o;
}

// Throws if the decision would redistribute a parameter. choose() never decides so, but rules that
// do not use it (views) may. Slicing a replicated parameter moves nothing.
void check_parameters(const OpCall& call, const Decision& decision) {
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const Operand& operand = call.operands[i];
    if (!operand.parameter) continue;
    for (int a = 0; a < call.mesh.ndim(); ++a) {
      const Placement &from = operand.placements[a], &to = decision.inputs[i][a];
      if (from == to || (from.is_replicate() && to.is_shard())) continue;
      call.refuse(
          "it would have to gather a parameter, which operators never redistribute; compute it on "
          "full_tensor(), or cut the parameter along another dim");
    }
  }
}

// Calls the operator's rule for a decision. All ranks reach the same decision, because an OpCall
// contains no local sizes or values.
Decision decide(const c10::OperatorHandle& op, const OpInfo& info, Args args, Mesh& mesh) {
  OpCall call{info.name, op.schema(), args, mesh, {}, {}};
  for (size_t i = 0; i < args.size(); ++i) {
    const size_t before = call.operands.size();
    each_tensor(args[i], [&](const at::Tensor& t) {
      call.operands.push_back(operand_of(t, info.written[i]));
    });
    call.first.push_back(call.operands.size() > before ? static_cast<int>(before) : -1);
  }
  if (info.rule == nullptr) {
    call.refuse(
        "there is no rule for it; compute it on to_local() or full_tensor(), or add a rule "
        "to sdk/mesh/dtensor/rules");
  }
  Decision decision = (*info.rule)(call);
  check_parameters(call, decision);
  decision.in_place = true;
  for (size_t i = 0; i < call.operands.size(); ++i) {
    decision.in_place = decision.in_place && decision.inputs[i] == call.operands[i].placements;
  }
  return decision;
}

Placements transposed(Placements p) {
  for (Placement& placement : p) {
    if (placement.is_shard()) placement.dim = static_cast<int16_t>(1 - placement.dim);
  }
  return p;
}

// Returns the local tensor under the placements `to`. A transposed matrix is redistributed in its
// original form, because that form may just have been gathered.
at::Tensor moved(const DTensorMeta& meta, Sizes sizes, const Placements& to, Mesh& mesh) {
  if (!meta.transposed)
    return redistribute_local(mesh, meta.local, sizes, meta.placements, to, meta.value);
  std::swap(sizes[0], sizes[1]);
  return redistribute_local(
             mesh, meta.local.t(), sizes, transposed(meta.placements), transposed(to), meta.value)
      .t();
}

// Returns the local tensor of an operand under the placements that the decision requires. The
// operand keeps these placements, except if a replicated operand was sliced: this rank still has
// its whole value, and slicing it again is free while gathering it again is not.
at::Tensor bring(const at::Tensor& t, const Placements& wanted, Mesh& mesh, bool written) {
  if (!is_wrapped(t)) {
    return wanted == Placements{} ? t : redistribute_local(mesh, t, t.sizes().vec(), {}, wanted);
  }
  DTensorMeta& meta = meta_of(t);
  if (written && meta.alias_lost) {
    throw Error(YOKE_FAILED_PRECONDITION,
                "an in-place operator writes to a view of a distributed tensor whose memory had to "
                "be copied, so the tensor would not change; write to the tensor itself");
  }
  if (meta.placements == wanted) return meta.local;
  at::Tensor local = moved(meta, t.sizes().vec(), wanted, mesh);
  bool sliced = false;
  for (int a = 0; a < mesh.ndim(); ++a)
    sliced = sliced || (meta.placements[a].is_replicate() && !wanted[a].is_replicate());
  if (written || !sliced) replace_local(meta, local, wanted);
  return local;
}

// Replaces the operands among the arguments by local tensors, in the order in which decide() listed
// them. reads: whether the operator needs the values of pending products.
class Localizer {
 public:
  Localizer(const Decision& decision, Mesh& mesh, bool reads)
      : decision_(decision), mesh_(mesh), reads_(reads) {}

  void localize(IValue& value, bool written) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) value = next(value.toTensor(), written);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list = value.toTensorList().copy();
      for (size_t i = 0; i < list.size(); ++i) list[i] = next(list.get(i), written);
      value = std::move(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list = value.toOptionalTensorList().copy();
      for (size_t i = 0; i < list.size(); ++i) {
        const std::optional<at::Tensor> t = list.get(i);
        if (t && t->defined()) list[i] = std::optional<at::Tensor>(next(*t, written));
      }
      value = std::move(list);
    }
  }

 private:
  at::Tensor next(const at::Tensor& t, bool written) {
    at::Tensor local = bring(t, decision_.inputs[index_++], mesh_, written);
    if (reads_) mesh_.pending().compute(local);
    return local;
  }

  const Decision& decision_;
  Mesh& mesh_;
  const bool reads_;
  size_t index_ = 0;
};

// Replaces arguments that are sizes by local sizes.
void replace_ints(const Decision& decision, torch::jit::Stack& stack, size_t num_args) {
  for (const Decision::Ints& ints : decision.ints) {
    IValue& value = stack[stack.size() - num_args + ints.arg];
    if (value.isInt()) {
      value = ints.values[0];
    } else {
      value = c10::List<int64_t>(ints.values);
    }
  }
}

// Wraps what the operator returned. A result that it wrote in place is replaced by the argument
// itself, so that x.add_(y) returns x.
void wrap_results(const c10::FunctionSchema& schema,
                  const Decision& decision,
                  Mesh& mesh,
                  const std::vector<IValue>& given,
                  ViewKind view,
                  torch::jit::Stack& stack) {
  const std::vector<c10::Argument>& returns = schema.returns();
  size_t output = 0;
  const auto wrap_next = [&](const at::Tensor& local, bool is_view) {
    const Decision::Output& spec = decision.outputs.at(output++);
    at::Tensor t = wrap(local, mesh, spec.placements, spec.sizes, spec.strides);
    if (is_view) mark_view(t, given[0].toTensor(), view);
    return t;
  };
  for (size_t i = 0; i < returns.size(); ++i) {
    IValue& value = stack[stack.size() - returns.size() + i];
    const c10::AliasInfo* alias = returns[i].alias_info();
    if (alias != nullptr && alias->isWrite()) {
      for (size_t a = 0; a < given.size(); ++a) {
        const c10::AliasInfo* of_arg = schema.arguments()[a].alias_info();
        if (of_arg != nullptr && *of_arg == *alias) value = given[a];
      }
      ++output;
    } else if (value.isTensor()) {
      if (value.toTensor().defined())
        value = wrap_next(value.toTensor(), alias != nullptr);
      else
        ++output;
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list = value.toTensorList().copy();
      for (size_t k = 0; k < list.size(); ++k) list[k] = wrap_next(list.get(k), alias != nullptr);
      value = std::move(list);
    }
  }
}

// Replaces the arguments by local ones, and these by the results of the operator.
void compute_local(const c10::OperatorHandle& op,
                   const OpInfo& info,
                   const Decision& decision,
                   Mesh& mesh,
                   c10::DispatchKeySet keys,
                   torch::jit::Stack& stack) {
  // The memo, and the operands of pending products, may have the memory that this operator writes
  // to.
  if (info.writes) mesh.pending().compute_all();
  const size_t num_args = info.written.size();
  // A view of a pending product whose elements are in the same order is pending, too.
  const bool is_pending_view = info.is_view && info.view == ViewKind::kSameOrder;
  Localizer localizer(decision, mesh, !is_pending_view && !decision.takes_pending);
  for (size_t i = 0; i < num_args; ++i)
    localizer.localize(stack[stack.size() - num_args + i], info.written[i]);
  replace_ints(decision, stack, num_args);
  if (info.writes) mesh.gathers().forget();
  if (decision.kernel) {
    decision.kernel(mesh, stack);
  } else {
    op.redispatchBoxed(keys, &stack);
  }
}

void print_line(const OpInfo& info,
                const Decision& decision,
                const std::string& before,
                Mesh& mesh) {
  std::string line = info.name + "  " + before + " -> ";
  for (size_t i = 0; i < decision.outputs.size(); ++i)
    line += (i == 0 ? "" : ", ") + to_string(decision.outputs[i].placements, mesh.ndim());
  mesh.trace().print(std::move(line));
}

std::string placements_text(Args args, Mesh& mesh) {
  std::string text;
  for (const IValue& arg : args) {
    each_tensor(arg, [&](const at::Tensor& t) {
      text += (text.empty() ? "" : ", ") +
              (is_wrapped(t) ? to_string(meta_of(t).placements, mesh.ndim()) : "plain");
    });
  }
  return text;
}

}  // namespace

void run_boxed(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const OpInfo& info = info_of(op);
  const size_t num_args = op.schema().arguments().size();
  const Args args = torch::jit::last(*stack, num_args);
  Mesh& mesh = mesh_of_args(args, info);
  OpKey key = key_of(op, info, args);
  const Decision* decision = mesh.cache().find(key);
  if (decision == nullptr)
    decision = &mesh.cache().insert(std::move(key), decide(op, info, args, mesh));
  const std::string before = mesh.trace().enabled() ? placements_text(args, mesh) : "";

  const std::vector<IValue> given(args.begin(), args.end());
  keys = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kDTensorKey);
  const at::Tensor product =
      info.is_product ? product_in_pieces(given, *decision, mesh, keys) : at::Tensor();
  if (product.defined()) {
    torch::jit::drop(*stack, num_args);
    torch::jit::push(*stack, product);
  } else {
    compute_local(op, info, *decision, mesh, keys, *stack);
  }
  wrap_results(op.schema(), *decision, mesh, given, info.view, *stack);
  if (mesh.trace().enabled()) print_line(info, *decision, before, mesh);
}

}  // namespace yoke::mesh
