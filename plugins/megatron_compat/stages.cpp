// Megatron divides layers evenly. The exceptions are the numbers of layers of the first and the
// last rank, the embedding and the loss that count as a layer each, and a layout that is written
// out. All of them become a number of layers for each stage, which decides the blocks.
#include "plugins/megatron_compat/stages.hpp"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <string>
#include <string_view>

#include "sdk/compat/activations.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke::megatron_compat {
namespace {

constexpr std::string_view kRanks = "--pipeline-model-parallel-size";
constexpr const char* kChunks = "--num-virtual-stages-per-pipeline-rank";
constexpr const char* kLayersOfChunk = "--num-layers-per-virtual-pipeline-stage";
constexpr const char* kFirst = "--decoder-first-pipeline-num-layers";
constexpr const char* kLast = "--decoder-last-pipeline-num-layers";
constexpr const char* kLayout = "--pipeline-model-parallel-layout";
constexpr size_t kMostLetters = 100'000;

class Divider {
 public:
  Divider(
      const Config& config, const Settings& settings, int layers, int pp, PlanMessages& messages)
      : config_(config), settings_(settings), layers_(layers), pp_(pp), messages_(messages) {}

  // Returns the layers of each stage; empty after a refusal.
  std::vector<int> layers() {
    if (!settings_.layout.empty()) return of_layout();
    const int64_t chunks = chunks_of_rank();
    if (chunks == 0) return {};
    const std::vector<int64_t> of_rank = layers_of_ranks(chunks);
    std::vector<int> stages;
    for (int64_t chunk = 0; chunk < chunks && !of_rank.empty(); ++chunk) {
      for (int rank = 0; rank < pp_; ++rank)
        stages.push_back(static_cast<int>(of_rank[rank] / chunks));
    }
    if (stages.empty()) return {};
    if (settings_.count_embedding) --stages.front();
    if (settings_.count_loss) --stages.back();
    const bool possible = stages.front() >= 0 && stages.back() >= 0;
    return possible ? stages : std::vector<int>();  // the contradiction has been refused
  }

 private:
  void refuse(std::string_view name, std::string_view allowed, const std::string& hint) {
    // The run file may give the number of pipeline ranks.
    const bool of_run = name == kRanks && !config_.is_given(kRanks);
    messages_.push_back({of_run ? "pp_degree" : config_.label(name),
                         of_run ? concat(pp_) : config_.shown(name),
                         std::string(allowed),
                         hint});
  }

  std::vector<int> of_layout() {
    try {
      const std::vector<int> stages = layers_of_layout(settings_.layout);
      const int sum = std::accumulate(stages.begin(), stages.end(), 0);
      if (sum != layers_) {
        refuse(kLayout,
               concat(layers_, " letters t"),
               concat("it has ", sum, ", and the model has ", layers_, " layers"));
      } else if (stages.size() % pp_ != 0) {
        refuse(kLayout,
               concat("a multiple of ", pp_, " stages"),
               concat("it has ", stages.size(), " stage(s) for ", pp_, " ranks"));
      } else {
        return stages;
      }
    } catch (const Error& e) {
      refuse(kLayout, "such as Et*3|t*4|t*4|tttL", e.what());
    }
    return {};
  }

  int64_t chunks_of_rank() {
    if (settings_.layers_of_chunk == 0) return settings_.chunks;
    if (counted_layers() % (pp_ * settings_.layers_of_chunk) == 0)
      return counted_layers() / (pp_ * settings_.layers_of_chunk);
    refuse(kLayersOfChunk,
           "a number that, times --pipeline-model-parallel-size, divides the layers",
           concat("there are ", counted_layers(), " layers on ", pp_, " pipeline ranks"));
    return 0;
  }

  // Returns the number of layers, with those that count for the embedding and the loss.
  int64_t counted_layers() const {
    return layers_ + (settings_.count_embedding ? 1 : 0) + (settings_.count_loss ? 1 : 0);
  }

  // Returns the layers of each rank, the embedding and the loss included if they count.
  std::vector<int64_t> layers_of_ranks(int64_t chunks) {
    const int64_t counted = counted_layers();
    const int64_t first = settings_.first_layers, last = settings_.last_layers;
    const int64_t others = pp_ - (first > 0 ? 1 : 0) - (last > 0 ? 1 : 0);
    const int64_t rest = counted - first - last;
    if (rest < 0 || (others == 0 ? rest != 0 : rest % (others * chunks) != 0) ||
        first % chunks != 0 || last % chunks != 0) {
      const std::string_view name = first > 0    ? kFirst
                                    : last > 0   ? kLast
                                    : chunks > 1 ? kChunks
                                                 : kRanks;
      refuse(name,
             first + last > 0 ? "numbers of layers that divide evenly"
                              : "a number of stages that divides the layers",
             concat(counted,
                    " layers",
                    counted > layers_ ? ", with those that count for embedding and loss," : "",
                    " do not divide into ",
                    others * chunks,
                    " equal stages",
                    first + last > 0 ? " beside the first and the last" : "",
                    "; see ",
                    kFirst,
                    ", ",
                    kLast,
                    ", ",
                    kLayout));
      return {};
    }
    std::vector<int64_t> of_rank(pp_, others > 0 ? rest / others : 0);
    if (first > 0) of_rank.front() = first;
    if (last > 0) of_rank.back() = last;
    return of_rank;
  }

  const Config& config_;
  const Settings& settings_;
  const int layers_, pp_;
  PlanMessages& messages_;
};

// Returns the layout with every `x*n` and `(x)*n` written out and without commas and blanks.
std::string expanded(std::string_view text, size_t& at, bool nested) {
  std::string out;
  while (at < text.size()) {
    const char c = text[at++];
    if (c == ',' || c == ' ' || c == '\'' || c == '"') continue;
    if (c == ')') {
      if (nested) return out;
      throw Error(YOKE_INVALID_ARGUMENT, "a ')' has no '('");
    }
    std::string item = c == '(' ? expanded(text, at, true) : std::string(1, c);
    if (c == '(' && text[at - 1] != ')') throw Error(YOKE_INVALID_ARGUMENT, "a '(' has no ')'");
    size_t times = 1;
    if (at < text.size() && text[at] == '*') {
      times = 0;
      for (++at; at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) != 0; ++at)
        times = std::min<size_t>(kMostLetters, 10 * times + (text[at] - '0'));
      if (times == 0) throw Error(YOKE_INVALID_ARGUMENT, "a number from 1 must follow '*'");
    }
    if (out.size() + times * item.size() > kMostLetters)
      throw Error(YOKE_INVALID_ARGUMENT, concat("it has more than ", kMostLetters, " letters"));
    for (size_t i = 0; i < times; ++i) out += item;
  }
  return out;
}

}  // namespace

std::vector<int> layers_of_layout(std::string_view layout) {
  size_t at = 0;
  const std::string letters = expanded(layout, at, false);
  std::vector<int> layers{0};
  std::vector<bool> is_empty{true};
  bool began = false, ended = false;
  for (const char c : letters) {
    if (c == '|') {
      layers.push_back(0);
      is_empty.push_back(true);
      continue;
    }
    if (c == 'm') throw Error(YOKE_INVALID_ARGUMENT, "m, multi-token prediction, is not supported");
    if (c != 'E' && c != 't' && c != 'L')
      throw Error(YOKE_INVALID_ARGUMENT, concat("'", c, "' is none of E, t, L and |"));
    if ((c == 'E') == began || ended)
      throw Error(YOKE_INVALID_ARGUMENT, "it must have one E first and one L last");
    began = true;
    ended = c == 'L';
    layers.back() += c == 't' ? 1 : 0;
    is_empty.back() = false;
  }
  if (!ended) throw Error(YOKE_INVALID_ARGUMENT, "it must have one E first and one L last");
  if (std::find(is_empty.begin(), is_empty.end(), true) != is_empty.end())
    throw Error(YOKE_INVALID_ARGUMENT, "a stage is empty");
  return layers;
}

mesh::Pipeline pipeline_of(const YokeModelSummary& model,
                           const Config& config,
                           const Settings& settings,
                           int pp,
                           PlanMessages& messages) {
  const int blocks = static_cast<int>(model.num_blocks);
  mesh::Pipeline pipeline{.stages = {{0}, {0, blocks}},
                          .first_trained = mesh::first_trained_block(model)};
  if (pp == 1) return pipeline;
  const auto layers = compat::layers_of(model, {0, static_cast<uint64_t>(blocks)});
  const std::vector<int> of_stage =
      Divider(config, settings, static_cast<int>(layers.size()), pp, messages).layers();
  std::vector<int> sizes;
  size_t layer = 0;
  for (const int count : of_stage) {
    int size = sizes.empty() ? 1 : 0;  // the embedding
    for (int i = 0; i < count; ++i, ++layer)
      size += static_cast<int>(layers[layer].last - layers[layer].first) + 1;
    if (sizes.size() + 1 == of_stage.size()) ++size;  // the head
    sizes.push_back(size);
  }
  pipeline.stages = {};
  if (sizes.empty()) return pipeline;
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) {
    messages.push_back(
        {"pp_degree", concat(pp), concat("1 to ", layers.size()), "a stage would have no layer"});
    return pipeline;
  }
  const int chunks = static_cast<int>(sizes.size()) / pp;
  if (chunks > 1) pipeline.kind = mesh::PipelineKind::kInterleaved;
  pipeline.stages =
      mesh::cut_by_sizes(mesh::place_stages(mesh::StagePlacement::kLoop, pp, chunks), sizes);
  return pipeline;
}

}  // namespace yoke::megatron_compat
