#include "core/control/decline.hpp"

#include <unistd.h>

#include <exception>

#include "core/base/network.hpp"
#include "core/control/hub.hpp"
#include "core/control/member.hpp"
#include "yoke/text.hpp"

namespace yoke {

void decline_run(const Declining& d, const std::string& why) noexcept {
  try {
    if (d.rank != 0) {
      MemberOptions options;
      options.rank = d.rank;
      options.world_size = d.world_size;
      options.job = d.job;
      options.secret = d.secret;
      Member::decline(d.at, options, why);
      return;
    }
    std::string fault;
    FileDescriptor listener = listen_for_members(d.at, d.one_machine, fault);
    if (!listener.open()) return;
    HubOptions options;
    options.world_size = d.world_size;
    options.host = own_host();
    options.process = concat(::getpid());
    options.job = d.job;
    options.secret = d.secret;
    Hub hub(std::move(listener), std::move(options), {});
    hub.refuse(concat("rank 0 (", own_host(), ", process ", ::getpid()) +
               ") cannot take part: " + why);
  } catch (const std::exception&) {
  }
}

}  // namespace yoke
