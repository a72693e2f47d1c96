// The memory of this process and of the machine in bytes, read from /proc.
#pragma once

#include <cstdint>

namespace yoke {

// Each of these throws Error (INTERNAL) if /proc cannot be read. Any thread.

// Returns the memory that the process occupies now.
int64_t resident_bytes();
// Returns the same without parts of files and memory that the process shares with others.
int64_t private_bytes();
// Returns the largest value of resident_bytes() since the process started.
int64_t peak_resident_bytes();
// Returns the memory of the machine.
int64_t total_memory_bytes();

}  // namespace yoke
