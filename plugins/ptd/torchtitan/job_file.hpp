// A job file of torchtitan, which ptd reads for its option torchtitan_config. All keys are checked
// against the table of keys.hpp. A key that the file leaves out has torchtitan's default.
#pragma once

#include <string>
#include <string_view>

#include "plugins/ptd/torchtitan/keys.hpp"
#include "sdk/compat/foreign_config.hpp"
#include "yoke/backend.hpp"

namespace yoke::ptd::torchtitan {

inline constexpr const char* kOption = "torchtitan_config";  // ptd's option

class JobFile final : public compat::ForeignConfig {
 public:
  // Reads everything and checks each key independently of the others: it must be known, given once,
  // of the right form, and supported. Problems become messages, and reading continues; no error in
  // the file causes an exception.
  explicit JobFile(const Options& options);

  // Returns the entries of a list; none if it was not given. Older files may have a comma-separated
  // text instead.
  std::vector<std::string> list(std::string_view name) const;
  // Returns whether the model's linear layers are converted to fp8.
  bool has_fp8() const;

 private:
  void read(std::string_view text);
};

}  // namespace yoke::ptd::torchtitan
