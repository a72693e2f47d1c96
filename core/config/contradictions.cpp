#include "core/config/contradictions.hpp"

#include <algorithm>
#include <initializer_list>

#include "core/config/schema.hpp"
#include "yoke/nearest.hpp"

namespace yoke {
namespace {

using Found = std::vector<std::string>;

bool sound(const Facts& facts, std::initializer_list<const char*> keys) {
  return std::all_of(keys.begin(), keys.end(), [&](const char* key) { return facts.sound(key); });
}

// Whether the name can be found, and what a path must look like, is the loader's to say.
void check_backend(const Facts& facts, Found& found) {
  const std::string& name = facts.run.parallel_backend;
  if (!sound(facts, {"parallel_backend"}) || !is_table(name)) return;
  found.push_back(facts.cite("parallel_backend") +
                  ": a backend cannot be named like a table of the run file");
}

void check_absolute(const Facts& facts, Found& found) {
  const auto relative = [](const std::string& path) { return path.empty() || path[0] != '/'; };
  const auto& folders = facts.run.backend_path;
  if (sound(facts, {"backend_path"}) && std::any_of(folders.begin(), folders.end(), relative)) {
    found.push_back(facts.cite("backend_path") + ": every folder must be an absolute path");
  }
  if (sound(facts, {"worker"}) && !facts.run.worker.empty() && relative(facts.run.worker)) {
    found.push_back(facts.cite("worker") + ": must be an absolute path, or empty for yoke-worker");
  }
}

// Dimensions that a preset fills are the model's to check.
void check_division(const Facts& facts, Found& found, const char* whole, const char* part) {
  if (!sound(facts, {whole, part})) return;
  const auto n = read_key(*find_key(whole), facts.run), d = read_key(*find_key(part), facts.run);
  if (!n || !d) return;
  const int64_t divisor = std::get<int64_t>(d->data);
  const int64_t rest = std::get<int64_t>(n->data) % divisor;
  if (rest == 0) return;
  const int64_t below = std::get<int64_t>(n->data) - rest;
  const std::string multiples =
      below == 0 ? std::to_string(divisor)
                 : std::to_string(below) + " or " + std::to_string(below + divisor);
  found.push_back(facts.cite(whole) + " is not a multiple of " + facts.cite(part) +
                  "; nearest: " + whole + " = " + multiples);
}

void check_precision(const Facts& facts, Found& found) {
  const PrecisionConfig& p = facts.run.precision;
  if (!sound(facts, {"precision.param", "precision.reduce"}) || !p.reduce) return;
  const std::vector<std::string> rising{"bf16", "fp32", "fp64"};
  const auto rank = [&](const std::string& dtype) {
    return std::find(rising.begin(), rising.end(), dtype) - rising.begin();
  };
  if (rank(*p.reduce) >= rank(p.param)) return;
  found.push_back(facts.cite("precision.reduce") + " is less precise than " +
                  facts.cite("precision.param") +
                  "; allowed: " + join({rising.begin() + rank(p.param), rising.end()}));
}

void check_evaluation(const Facts& facts, Found& found) {
  if (!sound(facts, {"eval.every", "data.holdout"})) return;
  if (facts.run.eval.every == 0 || facts.run.data.holdout > 0) return;
  found.push_back(facts.cite("eval.every") + " has nothing to evaluate on, for " +
                  facts.cite("data.holdout") + "; set eval.every = 0, or data.holdout above 0");
}

void check_profile(const Facts& facts, Found& found) {
  const auto& steps = facts.run.profile.steps;
  if (!sound(facts, {"profile.steps", "train.steps"}) || !steps) return;
  if ((*steps)[0] > (*steps)[1]) {
    found.push_back(facts.cite("profile.steps") + ": the first step comes after the last one");
  } else if ((*steps)[1] > facts.run.train.steps) {
    found.push_back(facts.cite("profile.steps") + " ends after " + facts.cite("train.steps"));
  }
}

void check_steps(const Facts& facts, Found& found) {
  if (!sound(facts, {"train.steps", "checkpoint.every"})) return;
  if (facts.run.train.steps > 0 || facts.run.checkpoint.every > 0) return;
  found.push_back(facts.cite("train.steps") + " only saves the initial values, and " +
                  facts.cite("checkpoint.every") +
                  " saves nothing; set checkpoint.every = 1, or train.steps above 0");
}

}  // namespace

std::vector<std::string> contradictions(const Facts& facts) {
  Found found;
  check_backend(facts, found);
  check_absolute(facts, found);
  check_division(facts, found, "model.dim", "model.heads");
  check_division(facts, found, "model.heads", "model.kv_heads");
  check_division(facts, found, "train.global_batch", "train.micro_batch");
  check_evaluation(facts, found);
  check_precision(facts, found);
  check_profile(facts, found);
  check_steps(facts, found);
  return found;
}

}  // namespace yoke
