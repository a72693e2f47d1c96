#include "core/run/hang_report.hpp"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "core/base/files.hpp"
#include "core/base/network.hpp"
#include "core/base/thread_stacks.hpp"
#include "core/control/member.hpp"
#include "core/metrics/run_folder.hpp"
#include "yoke/text.hpp"

namespace yoke {

void write_hang_report(const std::string& run_dir, const World& world, const std::string& cause) {
  using Json = nlohmann::ordered_json;
  Json report = {
      {"rank", world.rank()}, {"host", own_host()}, {"process", ::getpid()}, {"cause", cause}};
  if (const Member* member = world.member()) {
    report["step"] = member->step();
    report["collectives"] = member->collectives();
    report["pp_rank"] = member->pp_rank();
  }
  report["communicators"] = Json::array();
  for (const auto& [name, latest] : world.latest_collectives())
    report["communicators"].push_back({{"name", name}, {"latest", latest}});
  report["threads"] = Json::array();
  for (const ThreadStack& stack : thread_stacks())
    report["threads"].push_back({{"id", stack.id}, {"name", stack.name}, {"frames", stack.frames}});
  replace_text(hang_report(run_dir, world.rank()),
               report.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace yoke
