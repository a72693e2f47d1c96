#include "core/backend/library_file.hpp"

#include <filesystem>

#include "core/backend/elf.hpp"
#include "core/backend/reject.hpp"
#include "core/backend/search.hpp"
#include "yoke/text.hpp"

namespace yoke {

void check_library_file(const std::string& path) {
  const char* phase = "the file (none of its code was executed)";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    throw_rejected(YOKE_NOT_FOUND,
                   {path, phase, "it does not exist", "unknown", "see: yoke backends list"});
  }
  if (const Unsafe unsafe = unsafe_reason(path); !unsafe.reason.empty()) {
    throw_rejected(YOKE_FAILED_PRECONDITION, {path, phase, unsafe.reason, "unknown", unsafe.fix});
  }
  const ElfLook look = look_at_library(path);
  if (look.problem.empty()) return;
  const bool other_major = look.abi_major != 0;
  throw_rejected(other_major ? YOKE_UNIMPLEMENTED : YOKE_FAILED_PRECONDITION,
                 {path,
                  phase,
                  look.problem,
                  other_major ? concat(look.abi_major, ".x") : "unknown",
                  look.fix});
}

}  // namespace yoke
