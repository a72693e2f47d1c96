// CRC32C (Castagnoli): finds every error of up to 3 bits, and every burst of up to 32, in 4 MiB.
#pragma once

#include <cstddef>
#include <cstdint>

namespace yoke {

// Continues a checksum: crc32c(crc32c(0, a), b) is that of a followed by b. Any thread.
uint32_t crc32c(uint32_t crc, const void* data, size_t size);

// The same, always by table: what machines without the instruction use, and the oracle of the
// tests.
uint32_t crc32c_by_table(uint32_t crc, const void* data, size_t size);

}  // namespace yoke
