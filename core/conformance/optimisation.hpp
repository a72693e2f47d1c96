// Tells from the code of a library whether a compiler has optimised it.
#pragma once

#include <string>

namespace yoke {

// Returns whether the library looks as if it was built without optimisation. False if that cannot
// be told: only code for x86-64 is examined. The file must be a complete ELF file.
bool looks_unoptimised(const std::string& path);

}  // namespace yoke
