// The configuration is compared key by key, so that a difference can be named.
#include "core/run/job_facts.hpp"

#include "core/base/content_sample.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

void add_content(Introduction& facts, const std::string& key, const std::string& path) {
  if (!path.empty()) facts.push_back({"contents of " + key, content_sample(path), path});
}

}  // namespace

Introduction job_facts(const Job& job, const Introduction& versions) {
  Introduction facts = versions;
  facts.push_back({"backend",
                   concat(job.backend.name(), " ", view(job.backend.description().version), ", ") +
                       content_sample(job.backend.path()),
                   job.backend.path()});
  const RunConfig& run = job.config.run;
  add_content(facts, "data.path", run.data.path);
  add_content(facts, "model.from", run.model.from);
  add_content(facts, "model.config", run.model.config);
  for (const Resolved& item : shared_values(job.config))
    facts.push_back({item.key, item.value, item.origin});
  return facts;
}

}  // namespace yoke
