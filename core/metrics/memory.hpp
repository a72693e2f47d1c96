// Memory of this process and machine, in bytes, from /proc.
#pragma once

#include <cstdint>

namespace yoke {

// Each throws Error(INTERNAL) where /proc cannot be read.
int64_t resident_bytes();       // now
int64_t peak_resident_bytes();  // since the process began
int64_t total_memory_bytes();   // of the machine

}  // namespace yoke
