// A comment is a line of a run file, too, so it is reported as an equivalent. The host needs no new
// kind of report.
#include "sdk/compat/named_keys.hpp"

namespace yoke::compat {

NamedKeys::NamedKeys(const YokePlanArgs& args) : real_(args), args_(args) {
  args_.refuse = refuse;
  args_.refuse_ctx = this;
}

void NamedKeys::refuse(void* ctx, const YokeRefusal* refusal) {
  auto& self = *static_cast<NamedKeys*>(ctx);
  self.named_.emplace(view(refusal->key));
  self.real_.refuse(self.real_.refuse_ctx, refusal);
}

void NamedKeys::explain(const std::string& key, const std::string& given, const std::string& text) {
  if (!named_.contains(key)) PlanReport(args_).equivalent(key, given, "# " + text);
}

}  // namespace yoke::compat
