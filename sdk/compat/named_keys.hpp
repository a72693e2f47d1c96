// Says something about every key of another program's config. A backend reports a line of a run
// file, a note or a refusal for most of them; the others would vanish from the result of `yoke
// config import`.
#pragma once

#include <set>
#include <string>

#include "yoke/plan_report.hpp"

namespace yoke::compat {

// Passes what a plan reports on to the host, and remembers which keys it names. One thread, for the
// duration of plan.
class NamedKeys {
 public:
  // args must outlive this object.
  explicit NamedKeys(const YokePlanArgs& args);
  NamedKeys(const NamedKeys&) = delete;
  NamedKeys& operator=(const NamedKeys&) = delete;

  // Returns the arguments for the plan. What is reported with them reaches the host.
  const YokePlanArgs& args() const { return args_; }
  // Explains a key that nothing has named yet; does nothing for other keys. The text becomes a
  // comment in the result of an import, and is not shown at the start of a run.
  void explain(const std::string& key, const std::string& given, const std::string& text);

 private:
  static void refuse(void* ctx, const YokeRefusal* refusal);

  const YokePlanArgs& real_;
  YokePlanArgs args_;  // copy of real_ whose reports go to refuse()
  std::set<std::string> named_;
};

}  // namespace yoke::compat
