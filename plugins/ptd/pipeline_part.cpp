// A block's work is estimated by the elements of its matrices, because each of them takes part in
// one product per token. A block that keeps nothing for its backward, such as the look-up of an
// embedding, multiplies nothing.
#include "plugins/ptd/pipeline_part.hpp"

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

constexpr double kUnevenLoad = 1.2;   // load of the worst rank above which a note is printed
constexpr double kLargeBubble = 0.2;  // share of idle time above which a note is printed

std::vector<double> work_of_blocks(const YokeModelSummary& model) {
  std::vector<double> work(model.num_blocks, 0);
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

int first_trained_block(const YokeModelSummary& model) {
  for (uint64_t b = 0; b < model.num_blocks; ++b) {
    const YokeBlock& block = *model.blocks[b];
    const bool trained = std::any_of(block.params, block.params + block.num_params, [&](int64_t p) {
      return model.params[p]->trainable != 0;
    });
    if (trained) return static_cast<int>(b);
  }
  return static_cast<int>(model.num_blocks);
}

int chunks_of(const PtdOptions& options) {
  return options.pp_chunks == 0 ? info_of(options.pp_schedule).chunks : options.pp_chunks;
}

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
  return std::make_shared<GivenOrders>(read_orders(options.pp_schedule_file));
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

// Returns false after a refusal: the schedule cannot have that number of stages.
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

// The same for a schedule from a file. Sets `given`.
bool check_file(const PtdOptions& options,
                const YokePlan& plan,
                std::shared_ptr<const GivenOrders>& given,
                PlanReport& report) {
  const int pp = plan.degree[YOKE_PP];
  const auto refuse = [&](const std::string& why) {
    report.refuse("ptd.pp_schedule_file",
                  options.pp_schedule_file,
                  concat("a file with ", pp, " lines, one for each rank of pp"),
                  why);
    return false;
  };
  try {
    given = given_orders(options);
  } catch (const Error& e) {
    return refuse(e.what());
  }
  if (static_cast<int>(given->of_rank.size()) != pp)
    return refuse(concat("it has ", given->of_rank.size(), " lines"));
  const int data_ranks = plan.degree[YOKE_DP_REPLICATE] * plan.degree[YOKE_DP_SHARD];
  if (plan.micro_batch == 0 || plan.global_batch % (data_ranks * plan.micro_batch) != 0)
    return true;
  const int micros = plan.global_batch / (data_ranks * plan.micro_batch);
  if (given->micros == micros) return true;
  return refuse(concat("it has ",
                       given->micros,
                       " micro-batches, and the run has ",
                       micros,
                       " (train.global_batch / data ranks / train.micro_batch)"));
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
                  concat("1 to ", blocks * pp / stages),
                  concat(stages,
                         stages == pp ? "" : concat(" (", pp, " ranks x ", stages / pp, ")"),
                         " stages need at least as many blocks; the model has ",
                         blocks));
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
                             PlanReport& report) {
  std::vector<std::set<int>> ranks(model.num_params);
  for (int s = 0; s < stages.count(); ++s) {
    for (int b = stages.first_block[s]; b < stages.first_block[s + 1]; ++b) {
      const YokeBlock& block = *model.blocks[b];
      for (uint64_t i = 0; i < block.num_params; ++i)
        ranks[block.params[i]].insert(stages.rank_of[s]);
    }
  }
  for (uint64_t p = 0; p < model.num_params; ++p) {
    if (ranks[p].size() <= 2) continue;
    report.refuse("pp_degree",
                  concat(ranks[p].size()),
                  "2",
                  concat("blocks on ",
                         ranks[p].size(),
                         " ranks use parameter '",
                         view(model.params[p]->name),
                         "'; at most two ranks may"));
    return;
  }
}

// Chooses the largest micro-batch that leaves four for each rank; with fewer, ranks would be idle
// for a large part of the step.
void choose_micro_batch(const PtdOptions& options, YokePlan& plan) {
  const int data_ranks = plan.degree[YOKE_DP_REPLICATE] * plan.degree[YOKE_DP_SHARD];
  if (plan.micro_batch > 0 || plan.global_batch % data_ranks != 0) return;
  const int sequences = plan.global_batch / data_ranks, pp = plan.degree[YOKE_PP];
  plan.micro_batch = 1;
  for (int size = 1; size <= sequences; ++size) {
    if (sequences % size != 0 || sequences / size < 4 * pp) continue;
    if (micros_fault(options.pp_schedule, pp, sequences / size).empty()) plan.micro_batch = size;
  }
}

void check_micros(const PtdOptions& options, const YokePlan& plan, PlanReport& report) {
  const int data_ranks = plan.degree[YOKE_DP_REPLICATE] * plan.degree[YOKE_DP_SHARD];
  if (plan.global_batch % (data_ranks * plan.micro_batch) != 0) return;  // the host refuses that
  const int micros = plan.global_batch / (data_ranks * plan.micro_batch);
  const int pp = plan.degree[YOKE_PP];
  if (const std::string fault = micros_fault(options.pp_schedule, pp, micros); !fault.empty()) {
    report.refuse("ptd.pp_schedule",
                  info_of(options.pp_schedule).name,
                  "all other schedules",
                  concat(fault,
                         "; this run has ",
                         micros,
                         " (train.global_batch / data ranks / train.micro_batch)"));
    return;
  }
  // The share of GPipe and 1F1B with backwards twice as long as forwards; chunks divide it.
  const double idle = static_cast<double>(pp - 1) / chunks_of(options);
  const double bubble = idle / (micros + idle);
  if (bubble <= kLargeBubble) return;
  report.note("train.micro_batch",
              concat(plan.micro_batch),
              concat("ranks are idle for about ",
                     static_cast<int>(bubble * 100 + 0.5),
                     " % of a step with ",
                     micros,
                     micros == 1 ? " micro-batch" : " micro-batches",
                     " on ",
                     pp,
                     " stages; a larger train.global_batch or a smaller train.micro_batch gives "
                     "more of them"));
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

PipelinePart pipeline_part(const YokeModelSummary& model,
                           const YokePlan& plan,
                           const PtdOptions& options,
                           int rank) {
  if (plan.degree[YOKE_PP] == 1) {
    PipelinePart whole;
    whole.blocks.resize(model.num_blocks);
    std::iota(whole.blocks.begin(), whole.blocks.end(), 0);
    return whole;
  }
  const auto given = given_orders(options);
  const Stages stages = stages_of(model, options, ranks_of_stages(plan, options, given.get()));
  PipelinePart part{stages.blocks_of(rank),
                    stages,
                    pipeline_spec(options.pp_schedule, stages, rank, first_trained_block(model))};
  part.spec.given = given;
  return part;
}

void complete_pipeline(const YokeModelSummary& model,
                       const PtdOptions& options,
                       YokePlan& plan,
                       PlanReport& report) {
  if (plan.degree[YOKE_PP] <= 1 || model.num_blocks == 0) return;
  if (options.cuda_graph)
    report.refuse("ptd.cuda_graph", "true", "false", "a pipeline step cannot be recorded");
  choose_micro_batch(options, plan);
  std::shared_ptr<const GivenOrders> given;
  if (!options.pp_schedule_file.empty()) {
    if (!check_file(options, plan, given, report)) return;
    if (options.exact_sums) check_order(options, *given, report);
  } else {
    if (plan.micro_batch > 0) check_micros(options, plan, report);
    if (!check_chunks(options, report)) return;
  }
  const std::vector<int> rank_of = ranks_of_stages(plan, options, given.get());
  if (!check_stages(model, options, rank_of, plan.degree[YOKE_PP], report)) return;
  const Stages stages = stages_of(model, options, rank_of);
  check_shared_parameters(model, stages, report);
  note_load(model, stages, report);
}

}  // namespace yoke::ptd
