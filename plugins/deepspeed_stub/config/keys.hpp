// Every key of a ds_config.json and what becomes of it: the one table behind the reader, the
// options of a run file and the README.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace yoke::deepspeed_stub {

enum class Handling {
  kSection,   // an object; its keys have rows of their own
  kHonoured,  // the engine does it
  kRun,       // the run file decides; another value than the run's is refused
  kNoEffect,  // noted, changes nothing here
  kRefused,   // any value but the harmless one is refused
};

enum class Form { kAny, kBool, kInt, kNumber, kString };

struct Key {
  std::string_view path;  // "zero_optimization.stage"; "aio.*": any key of this object
  Handling handling;
  Form form;
  // kHonoured, kRun: DeepSpeed's default. kRefused: the value that asks for nothing. As JSON.
  std::string_view value;
  std::string_view why;  // what it does here, or why it does nothing, or what to do instead
};

std::span<const Key> keys();
// The row of a path, wildcards included; NULL = unknown to DeepSpeed.
const Key* find_key(std::string_view path);
// The paths of the same object, for "did you mean".
std::vector<std::string> siblings(std::string_view path);
// What the key is called in [deepspeed_stub] of a run file: "zero_stage" for the stage, else its
// last word; "" if it cannot stand there.
std::string inline_name(const Key& key);

}  // namespace yoke::deepspeed_stub
