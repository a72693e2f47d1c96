// The cross-entropy loss of distributed logits, as one node of autograd.
#pragma once

namespace torch {
class Library;
}

namespace yoke::mesh {

// Registers the kernel of aten::cross_entropy_loss. For plain tensors, and for losses that
// language models do not use, the kernel calls LibTorch's own composition. It has no second
// derivative.
void register_cross_entropy(torch::Library& aten_autograd);

}  // namespace yoke::mesh
