// The models of the conformance checks, as LibTorch blocks.
#pragma once

#include "sdk/conformance/test_bed.hpp"
#include "yoke/model.hpp"

namespace yoke {

// Makes the blocks. `injection` says which failure to inject. Every forward of a block reads it, so
// it must outlive the blocks.
BlockList make_tiny_model(const conformance::ModelSpec& spec,
                          conformance::FaultInjection& injection);

}  // namespace yoke
