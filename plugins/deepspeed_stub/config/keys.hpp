// Every key of a ds_config.json and how it is handled. The code that reads a ds_config, the options
// of a run file and the README all follow this table. Everything here is constant and may be used
// by any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace yoke::deepspeed_stub {

enum class Handling {
  kSection,   // an object; its keys have rows of their own
  kHonoured,  // the engine follows it
  kRun,       // the run file decides; a value that differs from the run's is refused
  kNoEffect,  // changes nothing here; reported as a note
  kRefused,   // refused, unless the value leaves the feature off
};

// The type that a value must have.
enum class Form { kAny, kBool, kInt, kNumber, kString };

struct Key {
  std::string_view path;  // "zero_optimization.stage"; "aio.*" is any key of that object
  Handling handling;
  Form form;
  // A value as JSON: DeepSpeed's default for kHonoured and kRun, the value that leaves the feature
  // off for kRefused.
  std::string_view value;
  std::string_view why;  // text for users: its effect, why it has none, or what to do instead
};

std::span<const Key> keys();
// Returns the row of a path. A row with exactly this path has precedence over one with "*". Returns
// NULL if DeepSpeed has no such key.
const Key* find_key(std::string_view path);
// Returns the names of all keys of the same object as `path`, for "did you mean".
std::vector<std::string> siblings(std::string_view path);
// Returns the name of a key in [deepspeed_stub] of a run file: "zero_stage" for the stage, else the
// last word of its path, after its section for keys of offload_optimizer, offload_param and aio:
// "aio_block_size". Returns "" if a run file cannot set it there.
std::string inline_name(const Key& key);

}  // namespace yoke::deepspeed_stub
