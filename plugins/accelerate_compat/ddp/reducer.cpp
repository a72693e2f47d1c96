// Sets up c10d::Reducer, the C++ class that implements DistributedDataParallel. It gets the leaves
// in the reverse order of the model, which is roughly the order in which their gradients are
// computed.
#include "plugins/accelerate_compat/ddp/reducer.hpp"

#include <algorithm>
#include <string>
#include <unordered_map>

namespace yoke::accelerate_compat {
namespace {

constexpr int64_t kMiB = 1 << 20;

// Returns the trainable parameters in reverse order. The last ones of the model get their gradients
// first, so they belong in the first bucket.
std::vector<const Parameter*> in_order_of_gradients(const Parameters& parameters) {
  std::vector<const Parameter*> order;
  for (const Parameter& p : parameters.all()) {
    if (p.info->trainable != 0) order.push_back(&p);
  }
  std::reverse(order.begin(), order.end());
  return order;
}

}  // namespace

GradientReducer::GradientReducer(const Parameters& parameters,
                                 const DdpOptions& options,
                                 c10d::ProcessGroup& group)
    : finds_unused_(options.find_unused_parameters) {
  std::vector<at::Tensor> leaves;
  std::unordered_map<size_t, std::string> names;
  for (const Parameter* p : in_order_of_gradients(parameters)) {
    names[leaves.size()] = view(p->info->name);
    leaves.push_back(p->leaf);
  }
  const std::vector<bool> sparse(leaves.size(), false);
  const int64_t cap = options.bucket_cap_mb * kMiB;
  // As in DistributedDataParallel, the first bucket is small, so that the reduction starts early.
  const int64_t first = std::min<int64_t>(cap, c10d::kDefaultFirstBucketBytes);
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
      leaves, {static_cast<size_t>(first), static_cast<size_t>(cap)}, sparse);
  reducer_ = std::make_shared<c10d::Reducer>(
      leaves,
      std::move(buckets),
      c10::intrusive_ptr<c10d::ProcessGroup>::unsafe_reclaim_from_nonowning(&group),
      sparse,
      cap,
      options.find_unused_parameters,
      options.gradient_as_bucket_view,
      std::move(names),
      first,
      /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false,
      /*bucket_bytes_cap_list=*/std::vector<int64_t>{});
  // After its first backward, the reducer would rebuild the buckets in the order in which gradients
  // arrived. A resumed run would do so at a later step, and with more than two ranks, different
  // buckets cause different rounding. The rebuild is therefore forced now, with the current order,
  // so that a resumed run is bit-equal to an uninterrupted one.
  reducer_->push_rebuilt_params_for_all_indices();
  reducer_->rebuild_buckets();
}

GradientReducer::~GradientReducer() {
  reducer_->remove_autograd_hooks();
}

void GradientReducer::start(const at::Tensor& loss) {
  reducer_->prepare_for_backward(finds_unused_ ? std::vector<at::Tensor>{loss}
                                               : std::vector<at::Tensor>{});
}

void GradientReducer::finish() {
  try {
    reducer_->check_finalized();
  } catch (const c10::Error& e) {
    throw Error(YOKE_INVALID_ARGUMENT,
                "a parameter got no gradient, so the gradients were not reduced; set "
                "accelerate_compat.find_unused_parameters = true (" +
                    first_part(e.what_without_backtrace()) + ")");
  }
}

}  // namespace yoke::accelerate_compat
