// The message calls the phase `stage`. This must not change, because scripts read it.
#include "core/backend/reject.hpp"

#include "yoke/text.hpp"

namespace yoke {

void throw_rejected(int32_t code, const Rejection& r) {
  throw Error(code,
              concat("backend ",
                     r.path,
                     " cannot be used\n  stage     ",
                     r.phase,
                     "\n  reason    ",
                     r.reason,
                     "\n  versions  backend ABI ",
                     r.backend_abi,
                     ", this Yoke ABI ",
                     YOKE_ABI_MAJOR,
                     ".",
                     YOKE_ABI_MINOR,
                     "\n  fix       ",
                     r.fix));
}

}  // namespace yoke
