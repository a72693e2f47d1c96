#include "core/launch/machine_facts.hpp"

#include <sched.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/cores.hpp"
#include "core/base/network.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::milliseconds kOwnName{3000};

std::vector<int> own_cores() {
  std::vector<int> cores;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return {0};
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

}  // namespace

void add_own_facts(MachineFacts& f, int32_t local_world_size, const GetVariable& get) {
  f.host = own_host();
  std::ifstream("/proc/sys/kernel/random/boot_id") >> f.boot;
  f.own_name_address = resolve_within(f.host, 0, kOwnName).address;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  // RLIM_INFINITY does not fit.
  f.open_files = limit.rlim_max > INT64_MAX ? INT64_MAX : static_cast<int64_t>(limit.rlim_max);
  f.cores = own_cores();
  f.threads = threads_per_rank(static_cast<int>(f.cores.size()), local_world_size);
  if (const char* given = get("OMP_NUM_THREADS"); given != nullptr && std::atoi(given) > 0) {
    f.threads = std::atoi(given);
    f.threads_given = true;
  }
}

std::string pack_facts(const MachineFacts& f) {
  const Json json = {{"rank", f.rank},
                     {"host", f.host},
                     {"boot", f.boot},
                     {"own_name_address", f.own_name_address},
                     {"version", f.version},
                     {"programs", f.programs},
                     {"program_fault", f.program_fault},
                     {"address", f.address},
                     {"interface", f.interface},
                     {"interface_fault", f.interface_fault},
                     {"lookup_seconds", f.lookup_seconds},
                     {"secret", f.secret},
                     {"secret_fault", f.secret_fault},
                     {"run_dir_fault", f.run_dir_fault},
                     {"open_files", f.open_files},
                     {"cores", f.cores},
                     {"threads", f.threads},
                     {"threads_given", f.threads_given}};
  // A path in a message need not be UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

MachineFacts unpack_facts(const std::string& text) {
  MachineFacts f;
  try {
    const Json json = Json::parse(text);
    json.at("rank").get_to(f.rank);
    json.at("host").get_to(f.host);
    json.at("boot").get_to(f.boot);
    json.at("own_name_address").get_to(f.own_name_address);
    json.at("version").get_to(f.version);
    json.at("programs").get_to(f.programs);
    json.at("program_fault").get_to(f.program_fault);
    json.at("address").get_to(f.address);
    json.at("interface").get_to(f.interface);
    json.at("interface_fault").get_to(f.interface_fault);
    json.at("lookup_seconds").get_to(f.lookup_seconds);
    json.at("secret").get_to(f.secret);
    json.at("secret_fault").get_to(f.secret_fault);
    json.at("run_dir_fault").get_to(f.run_dir_fault);
    json.at("open_files").get_to(f.open_files);
    json.at("cores").get_to(f.cores);
    json.at("threads").get_to(f.threads);
    json.at("threads_given").get_to(f.threads_given);
  } catch (const Json::exception& e) {
    throw Error(YOKE_DATA_LOSS,
                concat("the facts of a rank cannot be read (", e.what()) +
                    "); install the same version of Yoke on all machines");
  }
  return f;
}

}  // namespace yoke
