// The models of the conformance checks, as LibTorch blocks.
#pragma once

#include "sdk/conformance/stage.hpp"
#include "yoke/model.hpp"

namespace yoke {

// Makes the blocks. `mishap` says which failure to inject; every forward of a block reads it, and
// it must outlive the blocks.
BlockList make_tiny_model(const conformance::ModelSpec& spec, conformance::Mishap& mishap);

}  // namespace yoke
