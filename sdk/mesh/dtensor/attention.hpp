// Attention of distributed tensors: queries, keys and values are cut along the batch, the heads or
// the sequence.
#pragma once

namespace torch {
class Library;
}

namespace yoke::mesh {

// Registers the kernel of aten::scaled_dot_product_attention. For plain tensors it is LibTorch's
// own composition. Batch and heads may be cut freely, because the computation never combines
// different batches or heads: each rank calls the operator with its own. A cut sequence is computed
// by SequenceAttention (sequence_attention.hpp).
//
// Throws Error(INVALID_ARGUMENT) for dropout, and for a mask or lengths that a cut sequence does
// not allow; all ranks throw alike.
void register_attention(torch::Library& aten_autograd);

}  // namespace yoke::mesh
