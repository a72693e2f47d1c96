// Which activations are computed again in the backward instead of being kept.
#pragma once

namespace yoke::compat {

// kUniform: units of several layers keep their input only. kBlock: the first layers do, one by one.
enum class Recompute { kNone, kUniform, kBlock };

}  // namespace yoke::compat
