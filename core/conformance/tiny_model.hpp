// The models of the conformance checks, as LibTorch blocks.
#pragma once

#include "sdk/conformance/stage.hpp"
#include "yoke/model.hpp"

namespace yoke {

// The mishap is looked at in every forward of a block and outlives the blocks.
BlockList make_tiny_model(const conformance::ModelSpec& spec, conformance::Mishap& mishap);

}  // namespace yoke
