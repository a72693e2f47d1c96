// A block's work is the FLOPs that it declares. If a block does not declare them, the work of every
// block is estimated instead, by the elements of its matrices: each of them takes part in one
// product per token. A block that keeps nothing for its backward, such as the look-up of an
// embedding, multiplies nothing.
#include "plugins/ptd/pipeline_plan.hpp"

#include <algorithm>
#include <charconv>
#include <memory>
#include <numeric>
#include <set>
#include <string>

#include "yoke/plan.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::ptd {
namespace {

constexpr double kUnevenLoad = 1.2;  // load of the worst rank above which a note is printed

// Returns the numbers of "5,4,4,3"; empty if the text is anything else.
std::vector<int> sizes_of(const std::string& text) {
  std::vector<int> sizes;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    int size = 0;
    const auto [next, error] = std::from_chars(at, end, size);
    if (error != std::errc() || size < 1 || (next < end && (*next != ',' || next + 1 == end)))
      return {};
    sizes.push_back(size);
    at = next + 1;
  }
  return sizes;
}

// Returns the orders of ptd.pp_schedule_file; null if there is none.
std::shared_ptr<const GivenOrders> given_orders(const PtdOptions& options) {
  if (options.pp_schedule_file.empty()) return nullptr;
  return std::make_shared<GivenOrders>(parse_orders(options.pp_orders));
}

std::vector<int> ranks_of_stages(const YokePlan& plan,
                                 const PtdOptions& options,
                                 const GivenOrders* given) {
  if (given != nullptr) return given->rank_of;
  return place_stages(
      info_of(options.pp_schedule).placement, plan.degree[YOKE_PP], chunks_of(options));
}

Stages stages_of(const YokeModelSummary& model,
                 const PtdOptions& options,
                 const std::vector<int>& rank_of) {
  if (options.pp_cut != "auto") return cut_by_sizes(rank_of, sizes_of(options.pp_cut));
  return cut_by_work(rank_of, work_of_blocks(model));
}

// Refuses the plan and returns false if the schedule cannot have this number of stages per rank.
bool check_chunks(const PtdOptions& options, PlanReport& report) {
  const PipelineInfo& info = info_of(options.pp_schedule);
  const int chunks = chunks_of(options);
  if (chunks == info.chunks || (info.any_chunks && chunks >= 2)) return true;
  report.refuse(
      "ptd.pp_chunks",
      concat(chunks),
      info.any_chunks ? "2 or more" : concat(info.chunks),
      concat("ptd.pp_schedule = \"",
             info.name,
             "\" has ",
             info.chunks,
             info.chunks == 1 ? " stage" : " stages",
             " on each rank; interleaved, looped_bfs and zb_interleaved take any number"));
  return false;
}

// Checks a schedule from a file. Returns the schedule, or null after a refusal.
std::shared_ptr<const GivenOrders> check_file(const PtdOptions& options,
                                              const YokePlan& plan,
                                              PlanReport& report) {
  const int pp = plan.degree[YOKE_PP];
  std::string why;
  try {
    auto given = given_orders(options);
    if (static_cast<int>(given->of_rank.size()) == pp) return given;
    why = concat("it has ", given->of_rank.size(), " lines");
  } catch (const Error& e) {
    why = e.what();
  }
  report.refuse("ptd.pp_schedule_file",
                options.pp_schedule_file,
                concat("a file with ", pp, " lines, one for each rank of pp"),
                why);
  return nullptr;
}

// Returns, for example, ", and more with model.blocks = "half""; "" if the model has no more
// blocks.
std::string more_blocks_hint(const YokeModelSummary& model) {
  if (!YOKE_HAS(YokeModelSummary, &model, more_blocks) || model.more_blocks.size == 0) return "";
  return concat(", and more with ", view(model.more_blocks));
}

void check_order(const PtdOptions& options, const GivenOrders& given, PlanReport& report) {
  const std::string step = out_of_order(given);
  if (step.empty()) return;
  report.refuse("ptd.pp_schedule_file",
                options.pp_schedule_file,
                "with ptd.exact_sums, a file whose stages take micro-batches in ascending order",
                concat(step, " comes after a later micro-batch of its stage"));
}

// Returns false after a refusal: the model cannot be cut into that many stages.
bool check_stages(const YokeModelSummary& model,
                  const PtdOptions& options,
                  const std::vector<int>& rank_of,
                  int pp,
                  PlanReport& report) {
  const int stages = static_cast<int>(rank_of.size()), blocks = static_cast<int>(model.num_blocks);
  if (stages > blocks) {
    report.refuse("pp_degree",
                  concat(pp),
                  blocks * pp < 2 * stages ? "1" : concat("1 to ", blocks * pp / stages),
                  concat(stages,
                         stages == pp ? "" : concat(" (", pp, " ranks x ", stages / pp, ")"),
                         " stages need at least as many blocks; the model has ",
                         blocks,
                         more_blocks_hint(model)));
    return false;
  }
  if (options.pp_cut == "auto") return true;
  const std::vector<int> sizes = sizes_of(options.pp_cut);
  const int sum = std::accumulate(sizes.begin(), sizes.end(), 0);
  if (static_cast<int>(sizes.size()) == stages && sum == blocks) return true;
  report.refuse("ptd.pp_cut",
                options.pp_cut,
                concat("auto, or ", stages, " numbers from 1 that add up to ", blocks, " blocks"),
                sizes.empty()
                    ? "write the number of blocks of each stage, such as \"5,4,4,3\""
                    : concat("these are ", sizes.size(), " stages with ", sum, " blocks"));
  return false;
}

// The ranks that have a tied parameter exchange its gradients in pairs.
void check_shared_parameters(const YokeModelSummary& model,
                             const Stages& stages,
                             int pp,
                             PlanReport& report) {
  const auto [param, ranks] = most_shared_parameter(model, stages);
  if (ranks <= 2) return;
  report.refuse(
      "pp_degree",
      concat(pp),
      "2, or a ptd.pp_cut that leaves each parameter on at most two ranks",
      concat("blocks on ", ranks, " ranks use parameter '", view(model.params[param]->name), "'"));
}

// Returns why the schedule cannot run that many micro-batches, or "".
std::string fault_of_micros(const PtdOptions& options,
                            const GivenOrders* given,
                            int pp,
                            int micros) {
  if (given == nullptr) return micros_fault(options.pp_schedule, pp, micros);
  return given->micros == micros ? "" : concat("the file has ", given->micros, " micro-batches");
}

// Chooses the largest micro-batch that leaves four for each rank; with fewer, ranks would be idle
// for a large part of the step. A file says itself how many there are.
void choose_micro_batch(const PtdOptions& options, const GivenOrders* given, YokePlan& plan) {
  const auto sequences = static_cast<int>(sequences_of(plan));
  const int pp = plan.degree[YOKE_PP];
  if (plan.micro_batch > 0 || sequences == 0) return;
  plan.micro_batch = 1;
  for (int size = 1; size <= sequences; ++size) {
    const int micros = sequences / size;
    if (sequences % size != 0 || (given == nullptr && micros < 4 * pp)) continue;
    if (fault_of_micros(options, given, pp, micros).empty()) plan.micro_batch = size;
  }
}

void check_micros(const PtdOptions& options,
                  const GivenOrders* given,
                  const YokePlan& plan,
                  PlanReport& report) {
  const auto micros = static_cast<int>(micros_of(plan));
  if (micros == 0) return;  // the host refuses that
  const std::string fault = fault_of_micros(options, given, plan.degree[YOKE_PP], micros);
  if (fault.empty()) return;
  report.refuse(
      given == nullptr ? "ptd.pp_schedule" : "ptd.pp_schedule_file",
      given == nullptr ? info_of(options.pp_schedule).name : options.pp_schedule_file,
      given == nullptr ? "all other schedules" : concat("a file with ", micros, " micro-batches"),
      concat(fault,
             "; this run has ",
             micros,
             " (train.global_batch / data ranks / train.micro_batch)"));
}

void note_load(const YokeModelSummary& model, const Stages& stages, PlanReport& report) {
  const double load = load_of_worst_rank(stages, work_of_blocks(model));
  if (load <= kUnevenLoad) return;
  std::string sizes;
  for (int s = 0; s < stages.count(); ++s)
    sizes += concat(s == 0 ? "" : ",", stages.first_block[s + 1] - stages.first_block[s]);
  report.note("ptd.pp_cut",
              sizes,
              concat("the most loaded rank has ",
                     static_cast<int>(load * 100 + 0.5),
                     " % of the work of an average one; the others wait for it"));
}

}  // namespace

std::vector<double> work_of_blocks(const YokeModelSummary& model) {
  std::vector<double> work(model.num_blocks, 0);
  const bool known =
      std::all_of(model.blocks, model.blocks + model.num_blocks, [](const YokeBlock* block) {
        return YOKE_HAS(YokeBlock, block, forward_flops) && block->forward_flops >= 0;
      });
  for (uint64_t b = 0; known && b < model.num_blocks; ++b) work[b] = model.blocks[b]->forward_flops;
  // If all are 0, the host has not set the field.
  if (std::any_of(work.begin(), work.end(), [](double flops) { return flops > 0; })) return work;
  for (uint64_t b = 0; b < model.num_blocks; ++b) {
    const YokeBlock& block = *model.blocks[b];
    if (YOKE_HAS(YokeBlock, &block, activation_bytes) && block.activation_bytes == 0) continue;
    for (uint64_t i = 0; i < block.num_params; ++i) {
      const YokeParameter& param = *model.params[block.params[i]];
      if (param.ndim >= 2) work[b] += static_cast<double>(numel(param.shape, param.ndim));
    }
  }
  return work;
}

int chunks_of(const PtdOptions& options) {
  return options.pp_chunks == 0 ? info_of(options.pp_schedule).chunks : options.pp_chunks;
}

Pipeline make_pipeline(const YokeModelSummary& model,
                       const YokePlan& plan,
                       const PtdOptions& options) {
  Pipeline pipeline{.stages = {{0}, {0, static_cast<int>(model.num_blocks)}},
                    .given = nullptr,
                    .first_trained = first_trained_block(model)};
  if (plan.degree[YOKE_PP] == 1) return pipeline;
  pipeline.kind = options.pp_schedule;
  pipeline.given = given_orders(options);
  pipeline.stages = stages_of(model, options, ranks_of_stages(plan, options, pipeline.given.get()));
  return pipeline;
}

void complete_pipeline(const YokeModelSummary& model,
                       const PtdOptions& options,
                       YokePlan& plan,
                       PlanReport& report) {
  if (plan.degree[YOKE_PP] <= 1 || model.num_blocks == 0) return;
  if (options.cuda_graph)
    report.refuse("ptd.cuda_graph", "true", "false", "a pipeline step cannot be recorded");
  std::shared_ptr<const GivenOrders> given;
  if (!options.pp_schedule_file.empty()) {
    given = check_file(options, plan, report);
    if (given == nullptr) return;
    if (options.exact_sums) check_order(options, *given, report);
  } else if (!check_chunks(options, report)) {
    return;
  }
  choose_micro_batch(options, given.get(), plan);
  check_micros(options, given.get(), plan, report);
  const std::vector<int> rank_of = ranks_of_stages(plan, options, given.get());
  if (!check_stages(model, options, rank_of, plan.degree[YOKE_PP], report)) return;
  const Stages stages = stages_of(model, options, rank_of);
  check_shared_parameters(model, stages, plan.degree[YOKE_PP], report);
  note_load(model, stages, report);
}

}  // namespace yoke::ptd
