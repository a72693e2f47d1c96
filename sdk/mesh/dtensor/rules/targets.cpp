#include "sdk/mesh/dtensor/rules/targets.hpp"

#include <ATen/ATen.h>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke::mesh {

Targets local_targets(const at::Tensor& targets, const Part& columns, int64_t ignored) {
  at::Tensor column = targets - columns.begin;
  at::Tensor missing =
      column.lt(0).logical_or_(column.ge(columns.count)).logical_or_(targets.eq(ignored));
  return {column.masked_fill_(missing, 0), missing};
}

void check_targets(const at::Tensor& targets, int64_t classes, int64_t ignored) {
  if (!targets.is_cpu() || targets.numel() == 0) return;
  const at::Tensor wrong =
      targets.lt(0).logical_or_(targets.ge(classes)).logical_and_(targets.ne(ignored));
  if (!wrong.any().item<bool>()) return;
  throw Error(YOKE_INVALID_ARGUMENT,
              "target " + std::to_string(targets.masked_select(wrong)[0].item<int64_t>()) +
                  "; allowed: 0 to " + std::to_string(classes - 1) + ", and " +
                  std::to_string(ignored) + " for none");
}

}  // namespace yoke::mesh
