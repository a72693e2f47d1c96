// The configuration is compared key by key, so that a difference can be named.
#include "core/run/job_facts.hpp"

#include "core/base/content_sample.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

void add_content(Introduction& facts, const std::string& key, const std::string& path) {
  if (!path.empty()) facts.push_back({"contents of " + key, content_sample(path), path});
}

// Describes all files that a key names. The entries of a family with samples of its own are
// described as they are.
std::string contents_of(const Job& job,
                        const std::string& key,
                        const std::vector<std::string>& entries) {
  std::vector<std::string> files;
  for (const Source& source : job.data.sources) {
    if ((&source == job.data.evaluation()) != (key == "eval.path")) continue;
    files.insert(files.end(), source.files.begin(), source.files.end());
    files.insert(files.end(), source.indices.begin(), source.indices.end());
    if (source.mask)
      files.insert(files.end(), source.mask->files().begin(), source.mask->files().end());
  }
  if (files.empty()) files = entries;
  if (files.empty()) return "";
  if (files.size() == 1) return content_sample(files[0]);
  return concat(files.size(), " files, ", content_sample(files));
}

void add_files(Introduction& facts,
               const Job& job,
               const std::string& key,
               const std::vector<std::string>& entries) {
  const std::string contents = contents_of(job, key, entries);
  if (!contents.empty()) facts.push_back({"contents of " + key, contents, join(entries)});
}

}  // namespace

std::string data_contents(const Job& job) {
  return contents_of(job, "data.path", job.config.run.data.path);
}

Introduction job_facts(const Job& job, const Introduction& versions) {
  Introduction facts = versions;
  facts.push_back({"backend",
                   concat(job.backend.name(), " ", view(job.backend.description().version), ", ") +
                       content_sample(job.backend.path()),
                   job.backend.path()});
  const RunConfig& run = job.config.run;
  add_files(facts, job, "data.path", run.data.path);
  add_files(facts, job, "eval.path", run.eval.path);
  add_content(facts, "model.from", run.model.from);
  add_content(facts, "model.config", run.model.config);
  for (const Resolved& item : shared_values(job.config))
    facts.push_back({item.key, item.value, item.origin});
  return facts;
}

}  // namespace yoke
