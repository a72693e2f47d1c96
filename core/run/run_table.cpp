#include "core/run/run_table.hpp"

#include <algorithm>
#include <utility>

#include "core/base/text.hpp"
#include "core/model/model_dims.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// Returns "1 rank", "1,800 samples".
std::string count(int64_t n, const std::string& what) {
  return with_commas(static_cast<double>(n)) + " " + what + (n == 1 ? "" : "s");
}

std::string row(std::string name, const std::string& text) {
  name.resize(11, ' ');
  return name + text;
}

std::string parameters(int64_t n) {
  if (n < 100'000) return count(n, "parameter");
  return string_printf("%.2fM parameters", static_cast<double>(n) / 1e6);
}

// Returns "dp_degree 2, dp_shards 2", or "one rank".
std::string layout(const YokePlan& plan) {
  std::string text;
  for (size_t axis = 0; axis < Degrees::kKeys.size(); ++axis) {
    if (plan.degree[axis] == 1) continue;
    text += concat(text.empty() ? "" : ", ", Degrees::kKeys[axis], " ", plan.degree[axis]);
  }
  return text.empty() ? "one rank" : text;
}

// Returns "diloco 1.0.0 on replicas 1.0.0": the backend of the run and those that it has opened.
std::string backends(const Job& job) {
  const auto named = [](const LoadedBackend& backend) {
    return backend.name() + " " + std::string(view(backend.description().version));
  };
  std::string inner;
  for (const InnerBackends::Inner* opened : job.inner->opened())
    inner += (inner.empty() ? " on " : ", ") + named(opened->backend);
  return named(job.backend) + inner;
}

std::string model(const Job& job) {
  const ModelConfig& config = job.config.run.model;
  return (config.preset.empty() ? model_family(config) : config.preset) + ", " +
         parameters(job.model.num_params) + (config.from.empty() ? "" : ", from " + config.from);
}

// Returns ", products in fp8 (rowwise) except those of lm_head", or "".
std::string fp8_products(const PrecisionConfig& precision) {
  if (precision.product != "fp8") return "";
  return ", products in fp8 (" + precision.fp8_recipe.value_or("tensorwise") + ")" +
         (precision.fp8_skip.empty() ? "" : " except those of " + join(precision.fp8_skip));
}

std::string precision(const Job& job) {
  const YokePlan& plan = job.plan->plan();
  const std::string param = dtype_name(plan.param_dtype) + fp8_products(job.config.run.precision);
  if (plan.reduce_dtype == plan.param_dtype) return param;
  return param + ", gradients reduced in " + dtype_name(plan.reduce_dtype);
}

std::string batch(const Job& job) {
  const YokePlan& plan = job.plan->plan();
  const int accumulation = job.plan->accumulation();
  const bool tokens = !job.family.samples;
  return count(plan.global_batch, tokens ? "sequence" : "sample") +
         (tokens ? " of " + count(job.config.run.data.seq_len, "token") : "") +
         " a step: " + count(job.plan->data_ranks(), "data rank") + concat(" x ", accumulation) +
         concat(accumulation == 1 ? " micro-batch of " : " micro-batches of ", plan.micro_batch);
}

// Returns `web/*.bin (12 files)`, or the name alone of a single file.
std::string named(const Source& source) {
  const size_t files = source.files.size();
  return source.name + (files > 1 ? concat(" (", files, " files)") : "");
}

std::string windows(const Job& job, int64_t number) {
  return count(number, job.data.has_tokens() ? "window" : "sample");
}

std::string data(const Job& job) {
  const DataSet& data = job.data;
  const size_t sources = data.train.num_sources();
  const std::string held_out = with_commas(static_cast<double>(data.held_out.num_windows()));
  return (!data.has_tokens() ? "own data of " + job.config.run.model.family
          : sources > 1      ? concat("mixture of ", sources, " sources")
                             : named(data.sources[0])) +
         ", " + windows(job, data.train.num_windows()) + ", " +
         (data.evaluation() != nullptr
              ? held_out + " for evaluation in " + named(*data.evaluation())
              : held_out + " held out");
}

// Returns "0.423", the number of epochs with three digits, or more for large numbers.
std::string epochs(const Job& job, size_t source, int64_t samples) {
  const double number = job.data.train.epochs(source, samples);
  return string_printf(number < 100 ? "%.3g" : "%.0f", number);
}

// Returns what an epoch reads: "59,746 windows of 128 tokens (7,647,488)", or "1,800 samples".
std::string amount(const Job& job, size_t source) {
  const int64_t number = job.data.train.num_windows(source), length = job.data.seq_len;
  if (!job.data.has_tokens()) return windows(job, number);
  return windows(job, number) + " of " + count(length, "token") + " (" +
         with_commas(static_cast<double>(number * length)) + ")";
}

// Returns one row for each source: how often the whole run reads it.
std::vector<std::string> epoch_rows(const Job& job) {
  const SampleOrder& train = job.data.train;
  const TrainConfig& config = job.config.run.train;
  const int64_t samples = config.steps * config.global_batch;
  if (train.num_sources() == 1)
    return {row("epochs", epochs(job, 0, samples) + ", each of " + amount(job, 0))};
  std::vector<std::string> rows;
  for (size_t s = 0; s < train.num_sources(); ++s)
    rows.push_back(row(concat("source ", s),
                       string_printf("%.4g%% from ", 100 * train.share(s)) +
                           named(job.data.sources[s]) + ": " + epochs(job, s, samples) +
                           " epochs, each of " + amount(job, s)));
  return rows;
}

// Maps 0 to -1 (unknown). Every run has some activations and some traffic, so 0 can only mean that
// the backend did not report them.
int64_t unknown_if_zero(int64_t bytes) {
  return bytes == 0 ? -1 : bytes;
}

// The memory that the backend expects a rank to use, by purpose; -1 = unknown.
std::vector<std::pair<const char*, int64_t>> memory_parts(const YokeWrapResult& costs) {
  return {{"parameters", costs.param_bytes},
          {"gradients", costs.grad_bytes},
          {"optimizer", costs.optimizer_bytes},
          {"unsharded", costs.unsharded_bytes},
          {"activations", unknown_if_zero(costs.activation_bytes)}};
}

// Returns the sum of the parts: "44.3 MiB", or "at least 13.3 MiB" if some are unknown.
std::string memory_sum(const YokeWrapResult& costs) {
  const auto parts = memory_parts(costs);
  const bool all =
      std::all_of(parts.begin(), parts.end(), [](const auto& part) { return part.second >= 0; });
  return (all ? "" : "at least ") + bytes_text(static_cast<uint64_t>(total_bytes(costs)));
}

// Returns the parts and their sum.
std::string memory(const YokeWrapResult& costs) {
  std::string text;
  for (const auto& [what, bytes] : memory_parts(costs)) {
    text += (text.empty() ? "" : ", ") + std::string(what) + " " +
            (bytes < 0 ? "unknown" : bytes_text(static_cast<uint64_t>(bytes)));
  }
  return text + "; together " + memory_sum(costs) + " a rank";
}

// Returns the bytes that a rank sends or receives in a step, by axis.
std::string traffic(const YokePlan& plan, const YokeWrapResult& costs) {
  std::string text;
  for (size_t axis = 0; axis < Degrees::kAxes.size(); ++axis) {
    if (plan.degree[axis] == 1) continue;
    const int64_t bytes = unknown_if_zero(costs.axis_bytes[axis]);
    text += (text.empty() ? "" : ", ") + std::string(Degrees::kAxes[axis]) + " " +
            (bytes < 0 ? "unknown" : bytes_text(static_cast<uint64_t>(bytes)));
  }
  return text.empty() ? "none" : text + " a step and rank";
}

std::string steps_text(const RunConfig& run, int64_t first_step) {
  if (first_step >= run.train.steps) return "no steps";
  return concat("steps ", first_step + 1, " to ", run.train.steps);
}

const YokeWrapResult& worst_of(const std::vector<StageCosts>& stages) {
  return std::max_element(stages.begin(),
                          stages.end(),
                          [](const auto& a, const auto& b) {
                            return total_bytes(a.worst) < total_bytes(b.worst);
                          })
      ->worst;
}

std::string stage_text(const StageCosts& stage) {
  return count(stage.blocks, "block") + ", " + parameters(stage.parameters) +
         "; memory: " + memory(stage.worst);
}

}  // namespace

std::vector<std::string> job_table(const Job& job) {
  const YokePlan& plan = job.plan->plan();
  return {row("model", model(job)),
          row("backend", backends(job) + ", " + layout(plan)),
          row("precision", precision(job)),
          row("batch", batch(job))};
}

std::vector<std::string> run_table(const Job& job,
                                   const std::vector<StageCosts>& stages,
                                   const std::string& run_dir,
                                   int64_t first_step) {
  const YokeWrapResult& costs = worst_of(stages);
  std::vector<std::string> lines = job_table(job);
  lines.push_back(row("data", data(job)));
  for (std::string& line : epoch_rows(job)) lines.push_back(std::move(line));
  lines.push_back(row("memory", memory(costs)));
  for (size_t i = 0; i < stages.size() && stages.size() > 1; ++i)
    lines.push_back(row(concat("pp rank ", i), stage_text(stages[i])));
  lines.push_back(row("traffic", traffic(job.plan->plan(), costs)));
  lines.push_back(row("run", steps_text(job.config.run, first_step) + ", in " + run_dir));
  return lines;
}

std::string used_memory_text(const std::vector<StageCosts>& stages,
                             int64_t measured,
                             bool on_device) {
  const YokeWrapResult& costs = worst_of(stages);
  return "memory: predicted " + memory_sum(costs) + " a rank, measured " +
         bytes_text(static_cast<uint64_t>(measured)) +
         (on_device ? " (tensors)" : " (growth of the process)");
}

std::string trained_text(const Job& job, int64_t samples) {
  const SampleOrder& train = job.data.train;
  std::string text = "trained on " + count(samples, job.data.has_tokens() ? "sequence" : "sample");
  if (job.data.has_tokens())
    text += " (" + with_commas(static_cast<double>(samples * job.data.seq_len)) + " tokens)";
  for (size_t s = 0; s < train.num_sources(); ++s) {
    text += (s == 0 ? ": " : ", ") + epochs(job, s, samples) + " epochs";
    if (job.data.has_tokens()) text += " of " + named(job.data.sources[s]);
  }
  return text;
}

}  // namespace yoke
