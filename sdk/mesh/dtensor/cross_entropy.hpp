// The cross-entropy loss of distributed logits, as one node of autograd.
#pragma once

namespace torch {
class Library;
}

namespace yoke::mesh {

// Registers the kernel of aten::cross_entropy_loss for tensors in CPU memory. For plain tensors and
// for the kinds of loss that a language model does not use, it is LibTorch's own composition.
void register_cross_entropy(torch::Library& aten_autograd);

}  // namespace yoke::mesh
