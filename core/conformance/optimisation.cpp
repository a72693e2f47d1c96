// A compiler that does not optimise keeps every variable in memory, at a small distance from rbp,
// and moves it to a register and back around each operation. These moves have two well-known first
// bytes: 8b or 89, then 45, 4d, 55 ... for [rbp + 8-bit number]. In code of GCC and Clang without
// optimisation they begin at 64 to 71 of 1000 bytes, in optimised code at 1 to 9 of them, even if
// it keeps frame pointers.
#include "core/conformance/optimisation.hpp"

#include <elf.h>

#include <cstring>
#include <fstream>
#include <iterator>

namespace yoke {

bool looks_unoptimised(const std::string& path) {
  constexpr double kLeastShare = 0.03;
  std::ifstream in(path, std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  Elf64_Ehdr header;
  if (file.size() < sizeof header) return false;
  std::memcpy(&header, file.data(), sizeof header);
  if (header.e_machine != EM_X86_64) return false;
  size_t moves = 0, bytes = 0;
  for (size_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    const size_t at = header.e_phoff + i * sizeof segment;
    if (at + sizeof segment > file.size()) return false;
    std::memcpy(&segment, file.data() + at, sizeof segment);
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
    const size_t end = segment.p_offset + segment.p_filesz;
    if (end > file.size()) return false;
    for (size_t k = segment.p_offset; k + 1 < end; ++k) {
      const auto first = static_cast<unsigned char>(file[k]);
      const auto second = static_cast<unsigned char>(file[k + 1]);
      moves += (first == 0x8b || first == 0x89) && (second & 0xc7) == 0x45;
    }
    bytes += segment.p_filesz;
  }
  return static_cast<double>(moves) > kLeastShare * static_cast<double>(bytes);
}

}  // namespace yoke
