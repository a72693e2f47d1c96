#include "core/launch/environment.hpp"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <vector>

#include "yoke/error.hpp"

namespace yoke {
namespace {

struct Variable {
  const char* name;
  int32_t* number;  // NULL: a text
  int32_t min, max;
};

std::string parse(const Variable& v, const char* text) {
  const char* end = text + std::strlen(text);
  int32_t value = 0;
  const auto [at, error] = std::from_chars(text, end, value);
  if (error == std::errc() && at == end && value >= v.min && value <= v.max) {
    *v.number = value;
    return "";
  }
  return std::string(v.name) + " = '" + text + "' is not a whole number of " +
         std::to_string(v.min) + " or more";
}

std::string check_range(const char* rank_name, int32_t rank, const char* size_name, int32_t size) {
  if (rank < size) return "";
  return std::string(rank_name) + " = " + std::to_string(rank) + " must be below " + size_name +
         " = " + std::to_string(size);
}

[[noreturn]] void fail(const std::vector<std::string>& faults) {
  std::string text = "the environment looks like torchrun's, but is not complete:";
  for (const std::string& fault : faults) text += "\n  " + fault;
  throw Error(YOKE_INVALID_ARGUMENT,
              text +
                  "\n  start the ranks with torchrun --no-python, or unset these variables and use "
                  "--nproc");
}

}  // namespace

std::optional<TorchrunEnvironment> torchrun_environment(const GetVariable& get) {
  TorchrunEnvironment env;
  const Variable variables[] = {{"RANK", &env.rank, 0, INT32_MAX},
                                {"WORLD_SIZE", &env.world_size, 1, INT32_MAX},
                                {"LOCAL_RANK", &env.local_rank, 0, INT32_MAX},
                                {"LOCAL_WORLD_SIZE", &env.local_world_size, 1, INT32_MAX},
                                {"MASTER_PORT", &env.master_port, 1, 65535},
                                {"MASTER_ADDR", nullptr, 0, 0}};
  std::vector<std::string> faults, present;
  for (const Variable& v : variables) {
    const char* text = get(v.name);
    if (text == nullptr) {
      faults.push_back(std::string(v.name) + " is not set");
      continue;
    }
    present.push_back(v.name);
    if (v.number == nullptr) {
      env.master_addr = text;
    } else if (const std::string fault = parse(v, text); !fault.empty()) {
      faults.push_back(fault);
    }
  }
  if (present.empty()) return std::nullopt;
  if (faults.empty()) {
    for (const std::string& fault :
         {check_range("RANK", env.rank, "WORLD_SIZE", env.world_size),
          check_range("LOCAL_RANK", env.local_rank, "LOCAL_WORLD_SIZE", env.local_world_size)}) {
      if (!fault.empty()) faults.push_back(fault);
    }
  }
  if (!faults.empty()) fail(faults);
  return env;
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

int threads_per_rank(int cores, int ranks) {
  return std::max(1, cores / std::max(1, ranks));
}

}  // namespace yoke
