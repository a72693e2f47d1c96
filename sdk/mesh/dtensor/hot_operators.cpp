// A kernel template is instantiated for each operator of the list at the end. It makes the same key
// as the boxed path from typed arguments and, if the decision is cached and no operand has to move,
// calls the operator on local tensors. Everything else, such as the first call, a redistribution, a
// trace or a pending product, is left to run_boxed(). So this file is an optimisation only: without
// it every result is the same.
#include "sdk/mesh/dtensor/hot_operators.hpp"

#include <ATen/ATen.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/boxing/impl/boxing.h>
#include <ATen/ops/_unsafe_view_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/detach_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/silu_backward_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/unsqueeze_ops.h>
#include <ATen/ops/view_ops.h>
#include <torch/library.h>

#include "sdk/mesh/dtensor/boxed.hpp"

namespace yoke::mesh {
namespace {

namespace ops = at::_ops;

// Adds a typed argument to the key: the same words that add_value (boxed.cpp) adds for an IValue.
template <class T>
void add_argument(OpKey& key, const T& value) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    add_to_key(key, value);
  } else if constexpr (std::is_same_v<T, at::Scalar> || std::is_same_v<T, double>) {
    // No placement depends on such a number. With it in the key, a scale that changes from step to
    // step would miss the cache every time.
  } else if constexpr (std::is_same_v<T, c10::SymInt>) {
    add_to_key(key, value.expect_int());
  } else if constexpr (std::is_same_v<T, c10::SymIntArrayRef>) {
    add_to_key(key, C10_AS_INTARRAYREF_SLOW(value));
  } else if constexpr (std::is_same_v<T, at::OptionalIntArrayRef>) {
    value ? add_to_key(key, *value) : add_to_key(key, kNone);
  } else if constexpr (requires { value.has_value(); }) {
    value ? add_argument(key, *value) : add_to_key(key, kNone);
  } else if constexpr (std::is_same_v<T, at::IntArrayRef>) {
    add_to_key(key, value);
  } else {
    add_to_key(key, static_cast<int64_t>(value));
  }
}

// Returns the first DTensor among the arguments.
const at::Tensor* first_wrapped() {
  return nullptr;
}
template <class T, class... Rest>
const at::Tensor* first_wrapped(const T& value, const Rest&... rest) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    if (is_wrapped(value)) return &value;
  }
  return first_wrapped(rest...);
}

// Returns the argument of the local operator. For these operators the only integers that a decision
// replaces are lists, the sizes of views.
template <class T>
decltype(auto) local_argument(const Decision& decision, size_t index, const T& value) {
  // Returns a reference, because a copy would update the reference count twice, atomically.
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return is_wrapped(value) ? (meta_of(value).local) : value;
  } else if constexpr (std::is_same_v<T, c10::SymIntArrayRef>) {
    for (const Decision::Ints& ints : decision.ints) {
      if (ints.arg == index) return c10::fromIntArrayRefKnownNonNegative(ints.values);
    }
    return T(value);
  } else {
    return T(value);
  }
}

// Computes a view of the local tensor. If the local strides do not allow the view, copies the
// tensor, even if the global strides allow the view.
template <class View>
struct ViewOrCopy : View {
  static constexpr bool kIsKernel = true;
  static at::Tensor redispatch(c10::DispatchKeySet keys,
                               const at::Tensor& self,
                               c10::SymIntArrayRef sizes) {
    const at::IntArrayRef wanted = C10_AS_INTARRAYREF_SLOW(sizes);
    if (at::detail::computeStride(self.sizes(), self.strides(), wanted))
      return at::_ops::view::redispatch(keys, self, sizes);
    return self.reshape(wanted);
  }
};

// Describes the result of an operator: a new tensor, or one of three kinds of views of the first
// argument.
enum class Kind : uint8_t { kCompute, kSameOrder, kTranspose, kOtherView };

template <class Op, Kind kKind, class Schema>
struct Unboxed;

// Implements the kernel of one operator. The parameters A... are those of the C++ operator, so the
// compiler generates a function that passes them on without an IValue.
template <class Op, Kind kKind, class... A>
struct Unboxed<Op, kKind, at::Tensor(A...)> {
  static const c10::OperatorHandle& handle() {
    static const c10::OperatorHandle op =
        c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    return op;
  }

  static at::Tensor call(c10::DispatchKeySet keys, A... args) {
    // There is a DTensor among the arguments, or the dispatcher would not have called this kernel.
    Mesh& mesh = *meta_of(*first_wrapped(args...)).mesh;
    if (!mesh.trace().enabled() && mesh.pending().empty()) {
      OpKey key(&handle().schema());
      (add_argument(key, args), ...);
      // Adds the strides, as run_boxed() does: those of a view depend on those of its operand.
      if constexpr (kKind != Kind::kCompute)
        add_to_key(key, std::get<0>(std::tie(args...)).strides());
      const Decision* decision = mesh.cache().find(key);
      constexpr bool kIsKernel = requires {
        Op::kIsKernel;
      };
      // Only run_boxed() can call a rule's kernel. ViewOrCopy replaces the kernel of view rules.
      const bool here =
          decision != nullptr && decision->in_place && (kIsKernel || !decision->kernel);
      if (here) return run(*decision, mesh, keys, std::index_sequence_for<A...>(), args...);
    }
    static const auto boxed = c10::BoxedKernel::makeFromFunction<&run_boxed>();
    return c10::impl::BoxedKernelWrapper<at::Tensor(A...)>::call(boxed, handle(), keys, args...);
  }

  template <size_t... I>
  static at::Tensor run(const Decision& decision,
                        Mesh& mesh,
                        c10::DispatchKeySet keys,
                        std::index_sequence<I...>,
                        const std::decay_t<A>&... args) {
    // Dispatch continues below the DTensor key, on local tensors.
    const Decision::Output& out = decision.outputs[0];
    at::Tensor result = wrap(
        Op::redispatch(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kDTensorKey),
                       local_argument(decision, I, args)...),
        mesh,
        out.placements,
        out.sizes,
        out.strides);
    if constexpr (kKind != Kind::kCompute) {
      constexpr ViewKind kView = kKind == Kind::kSameOrder   ? ViewKind::kSameOrder
                                 : kKind == Kind::kTranspose ? ViewKind::kTranspose
                                                             : ViewKind::kOther;
      mark_view(result, std::get<0>(std::tie(args...)), kView);
    }
    return result;
  }
};

template <class Op, Kind kKind = Kind::kCompute>
void hot(torch::Library& aten) {
  const std::string overload = Op::overload_name;
  const std::string name = std::string(Op::name) + (overload.empty() ? "" : "." + overload);
  aten.impl(name.c_str(), torch::CppFunction(&Unboxed<Op, kKind, typename Op::schema>::call));
}

}  // namespace

void register_hot_operators(torch::Library& aten) {
  hot<ops::add_Tensor>(aten);
  hot<ops::sub_Tensor>(aten);
  hot<ops::mul_Tensor>(aten);
  hot<ops::mul_Scalar>(aten);
  hot<ops::div_Tensor>(aten);
  hot<ops::div_Scalar>(aten);
  hot<ops::neg>(aten);
  hot<ops::pow_Tensor_Scalar>(aten);
  hot<ops::rsqrt>(aten);
  hot<ops::silu>(aten);
  hot<ops::silu_backward>(aten);
  hot<ops::clone>(aten);
  hot<ops::mm>(aten);
  hot<ops::addmm>(aten);
  hot<ops::bmm>(aten);
  hot<ops::mean_dim>(aten);
  hot<ops::sum_dim_IntList>(aten);
  hot<ops::detach, Kind::kSameOrder>(aten);
  hot<ops::t, Kind::kTranspose>(aten);
  hot<ops::transpose_int, Kind::kOtherView>(aten);
  hot<ops::permute, Kind::kOtherView>(aten);
  hot<ops::unsqueeze, Kind::kSameOrder>(aten);
  hot<ViewOrCopy<ops::view>, Kind::kSameOrder>(aten);
  hot<ViewOrCopy<ops::_unsafe_view>>(aten);
  hot<ops::expand, Kind::kOtherView>(aten);
  hot<ops::slice_Tensor, Kind::kOtherView>(aten);
  hot<ops::select_int, Kind::kOtherView>(aten);
}

}  // namespace yoke::mesh
