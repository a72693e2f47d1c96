// nanotron assigns the parts of a model in their order. A part goes to the current rank, and then
// the next rank is current if the cost of all parts so far exceeds its share of the total. A layer
// costs 4 x heads x head size x width for its attention, whatever the number of heads of keys, and
// 3 x inner width x width; the head costs vocabulary x width, and nothing else costs anything.
//
// The final norm, the head and the loss are parts of their own in nanotron, and one block here. A
// cut between them, which takes a layer that costs more than the share of a rank, is refused.
#include "plugins/nanotron_compat/stages.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/compat/activations.hpp"
#include "sdk/compat/flat_layout.hpp"
#include "yoke/text.hpp"

namespace yoke::nanotron_compat {
namespace {

// Returns the elements of the largest matrix of a block.
double largest_matrix(const YokeModelSummary& model, uint64_t block) {
  double largest = 0;
  const YokeBlock& b = *model.blocks[block];
  for (uint64_t i = 0; i < b.num_params; ++i) {
    if (model.params[b.params[i]]->ndim == 2)
      largest = std::max(largest, static_cast<double>(compat::elements(model, b.params[i])));
  }
  return largest;
}

// Returns the cost of a layer. One of another model than a Llama costs the elements of its
// matrices.
double layer_cost(const YokeModelSummary& model, const compat::RecomputedUnit& layer) {
  double cost = 0, matrices = 0;
  for (uint64_t b = layer.first; b <= layer.last; ++b) {
    const YokeBlock& block = *model.blocks[b];
    for (uint64_t i = 0; i < block.num_params; ++i) {
      const YokeParameter& param = *model.params[block.params[i]];
      const std::string_view name = view(param.name);
      const auto count = static_cast<double>(compat::elements(model, block.params[i]));
      if (name.ends_with("self_attn.q_proj.weight")) cost += 4 * count;
      if (name.ends_with("mlp.gate_proj.weight")) cost += 3 * count;
      if (param.ndim == 2) matrices += count;
    }
  }
  return cost > 0 ? cost : matrices;
}

}  // namespace

mesh::Pipeline pipeline_of(const YokeModelSummary& model,
                           const Settings& settings,
                           int pp,
                           PlanMessages& messages) {
  const int blocks = static_cast<int>(model.num_blocks);
  mesh::Pipeline pipeline{
      .kind = settings.one_f_one_b ? mesh::PipelineKind::k1F1B : mesh::PipelineKind::kGpipe,
      .stages = {{0}, {0, blocks}},
      .first_trained = mesh::first_trained_block(model)};
  if (pp == 1) return pipeline;
  const auto layers = compat::layers_of(model, {0, static_cast<uint64_t>(blocks)});
  const double head = largest_matrix(model, model.num_blocks - 1);
  double total = head;
  for (const auto& layer : layers) total += layer_cost(model, layer);

  std::vector<int> sizes(pp, 0);
  int rank = 0;
  double cost = 0;
  const auto assign = [&](int size, double more) {
    sizes[rank] += size;
    cost += more;
    if (rank + 1 < pp && cost > total * (rank + 1) / pp) ++rank;
  };
  assign(1, 0);  // the embedding
  for (const auto& layer : layers)
    assign(static_cast<int>(layer.last - layer.first) + 1, layer_cost(model, layer));
  const int of_norm = rank;
  assign(0, 0);  // the final norm
  const int of_head = rank;
  assign(1, head);
  pipeline.stages = {};
  const bool splits_head = of_norm != of_head;
  if (splits_head || std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) {
    messages.push_back(
        {"pp_degree",
         concat(pp),
         "a smaller degree",
         splits_head ? std::string("nanotron would put the final norm and the head on two ranks; "
                                   "here they are one block")
                     : concat("nanotron divides layers by their cost, and of ",
                              layers.size(),
                              " layer(s) and a head, a rank would get none")});
    return pipeline;
  }
  pipeline.stages =
      mesh::cut_by_sizes(mesh::place_stages(mesh::StagePlacement::kLoop, pp, 1), sizes);
  return pipeline;
}

}  // namespace yoke::nanotron_compat
