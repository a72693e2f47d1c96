#include "core/backend/reject.hpp"

namespace yoke {

void throw_rejected(int32_t code, const Rejection& r) {
  throw Error(code,
              "backend " + r.path + " cannot be used\n  stage     " + r.phase + "\n  reason    " +
                  r.reason + "\n  versions  backend ABI " + r.backend_abi + ", this Yoke ABI " +
                  std::to_string(YOKE_ABI_MAJOR) + "." + std::to_string(YOKE_ABI_MINOR) +
                  "\n  fix       " + r.fix);
}

}  // namespace yoke
