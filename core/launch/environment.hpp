// Ranks that somebody else started: the variables of torchrun. No LibTorch.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

namespace yoke {

struct TorchrunEnvironment {
  int32_t rank = 0;
  int32_t world_size = 1;
  int32_t local_rank = 0;
  int32_t local_world_size = 1;
  std::string master_addr;
  int32_t master_port = 0;
};

// The value of a variable; NULL = not set.
using GetVariable = std::function<const char*(const char* name)>;

// RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT: all of them, or empty
// if none is set. Throws Error(INVALID_ARGUMENT) naming every missing or bad one; callers exit
// with 2.
std::optional<TorchrunEnvironment> torchrun_environment(const GetVariable& get = ::getenv);

// Processors that this process may use, at least 1.
int usable_cores();

// Threads per rank when nobody set OMP_NUM_THREADS: an equal part of the cores, at least 1.
int threads_per_rank(int cores, int ranks);

}  // namespace yoke
