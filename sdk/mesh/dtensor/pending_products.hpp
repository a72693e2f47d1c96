// Products of matrices whose result nobody has read yet. The product of a row-parallel layer is a
// partial sum, and so is the gradient of the input of a column-parallel one. What reads it decides
// along which dim it is cut between the ranks, and only then the product can be computed piece by
// piece, with the reduce-scatter of one piece beside the product of the next (pieces.hpp).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace yoke::mesh {

// Belongs to a Mesh. A pending result is a tensor whose storage has no memory yet; its views share
// this storage and are pending, too. All ranks hold the same products at the same time.
class PendingProducts {
 public:
  struct Product {
    at::Tensor a, b;  // [M, K_i], [K_i, N]
  };

  // Returns the sum of products, [M, N], without memory. Nothing may write to the operands or
  // free them until compute_all() has returned or the result and its views are destroyed.
  at::Tensor add(std::vector<Product> products);
  // Returns the sum of two pending results of the same sizes, pending as well; an undefined tensor
  // if one of them is not pending.
  at::Tensor sum(const at::Tensor& x, const at::Tensor& y);

  // Returns true if no result is pending.
  bool empty();
  // Returns the products whose sum is t, a pending result or a view of all its elements in their
  // order; nullptr if t is not pending. Valid until the next call.
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
