// A pending result is known by its storage, which all its views share, so views need no code of
// their own. A result that is never read costs nothing.
#include "sdk/mesh/dtensor/pending_products.hpp"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace yoke::mesh {
namespace {

c10::StorageImpl* storage_of(const at::Tensor& t) {
  return t.storage().unsafeGetStorageImpl();
}

}  // namespace

at::Tensor PendingProducts::add(std::vector<Product> products) {
  const auto& [a, b] = products[0];
  const at::Tensor result = at::empty({0}, a.options());
  result.unsafeGetTensorImpl()->set_sizes_contiguous({a.size(0), b.size(1)});
  storage_of(result)->set_nbytes(static_cast<size_t>(result.numel() * result.itemsize()));
  // The entry has a tensor of its own, so that the count of the storage shows who else uses it.
  entries_.push_back({result.alias(), std::move(products)});
  return result;
}

at::Tensor PendingProducts::sum(const at::Tensor& x, const at::Tensor& y) {
  const std::vector<Product>*const of_x = find(x), *const of_y = find(y);
  if (of_x == nullptr || of_y == nullptr || x.sizes() != y.sizes()) return {};
  std::vector<Product> products = *of_x;
  products.insert(products.end(), of_y->begin(), of_y->end());
  return add(std::move(products)).view(x.sizes());
}

bool PendingProducts::empty() {
  if (!entries_.empty()) drop_unused();
  return entries_.empty();
}

const std::vector<PendingProducts::Product>* PendingProducts::find(const at::Tensor& t) const {
  for (const Entry& e : entries_) {
    if (e.result.is_alias_of(t) && e.result.numel() == t.numel() && t.is_contiguous())
      return &e.products;
  }
  return nullptr;
}

void PendingProducts::compute(const at::Tensor& t) {
  const auto entry = std::find_if(
      entries_.begin(), entries_.end(), [&](const Entry& e) { return e.result.is_alias_of(t); });
  if (entry == entries_.end()) return;
  const auto [result, products] = std::move(*entry);
  entries_.erase(entry);
  c10::StorageImpl* const storage = storage_of(result);
  storage->set_data_ptr_noswap(storage->allocator()->allocate(storage->nbytes()));
  at::Tensor out = result;
  at::mm_out(out, products[0].a, products[0].b);
  for (auto p = std::next(products.begin()); p != products.end(); ++p) out.addmm_(p->a, p->b);
}

void PendingProducts::compute_all() {
  drop_unused();
  while (!entries_.empty()) compute(at::Tensor(entries_.front().result));
}

void PendingProducts::drop_unused() {
  std::erase_if(entries_, [](const Entry& e) { return e.result.storage().use_count() == 1; });
}

}  // namespace yoke::mesh
