// Holds matrix products that are not computed yet. The product of a row-parallel layer is a partial
// sum, and so is the gradient of the input of a column-parallel one. The operator that reads such a
// sum decides along which dim it is cut between the ranks. Only then can the product be computed
// piece by piece, so that one piece is reduce-scattered while the next is multiplied (pieces.hpp).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace yoke::mesh {

// Belongs to a Mesh, and is used by the thread of its rank only. A pending result is a tensor whose
// storage has no memory yet; its views share this storage and are pending, too. All ranks add,
// compute and drop results in the same order.
class PendingProducts {
 public:
  struct Product {
    at::Tensor a, b;  // [M, K_i], [K_i, N]
  };

  // Returns the sum of products, [M, N], without memory. There is at least one. Nothing may write
  // to the operands or free them until compute_all() has returned or the result and its views are
  // destroyed.
  at::Tensor add(std::vector<Product> products);
  // Returns the sum of two pending results of equal sizes, pending as well. Returns an undefined
  // tensor if find() finds nothing for one of them, or if the sizes differ.
  at::Tensor sum(const at::Tensor& x, const at::Tensor& y);

  // Returns true if no result is pending.
  bool empty();
  // Returns the products whose sum is t, if t is a pending result or a view of all its elements in
  // their order; otherwise nullptr. Valid until the next call of a function that is not const.
  const std::vector<Product>* find(const at::Tensor& t) const;
  // Computes the result that t belongs to, if it is pending. Afterwards t and all other views have
  // their values.
  void compute(const at::Tensor& t);
  // Computes all pending results.
  void compute_all();

 private:
  struct Entry {
    at::Tensor result;
    std::vector<Product> products;
  };
  void drop_unused();

  std::vector<Entry> entries_;
};

}  // namespace yoke::mesh
