// CRC32C (Castagnoli). Detects every error of up to 3 bits, and every burst of up to 32 bits, in
// blocks of up to 4 MiB.
#pragma once

#include <cstddef>
#include <cstdint>

namespace yoke {

// Continues a checksum: crc32c(crc32c(0, a), b) is the checksum of a followed by b. Uses the SSE
// 4.2 instruction if the processor has it. Thread-safe.
uint32_t crc32c(uint32_t crc, const void* data, size_t size);

// The same checksum, always computed with a table. Processors without the instruction use it, and
// the tests compare against it.
uint32_t crc32c_by_table(uint32_t crc, const void* data, size_t size);

}  // namespace yoke
