// Tests random legal combinations of all degrees: a model of four blocks, of each family, must get
// the same gradients as on one rank. Plain SGD with a learning rate of 1 makes gradients visible,
// because a step subtracts exactly the gradients from the parameters.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <mutex>
#include <random>

#include "core/config/run_config.hpp"
#include "core/model/family.hpp"
#include "core/model/torch_model.hpp"
#include "tests/support/emulated_cuda.hpp"
#include "tests/support/fused_rms_norm.hpp"
#include "tests/support/host_reads.hpp"
#include "tests/support/temp_folder.hpp"
#include "tests/unit/ptd/rig.hpp"

namespace yoke::ptd::testing {
namespace {

constexpr int64_t kSeqLen = 16, kVocab = 32, kBatch = 8;

// The models by name. The windows, and the lengths before the positions are scaled, are shorter
// than the sequences.
const std::map<std::string, std::string>& models() {
  static const std::string rotary =
      R"("hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 8,
         "num_key_value_heads": 8, "intermediate_size": 24, "vocab_size": 32,
         "max_position_embeddings": 8)";
  static const std::map<std::string, std::string> all = {
      {"llama", R"({"model_type": "llama", )" + rotary + "}"},
      {"llama3",
       R"({"model_type": "llama", "head_dim": 4, "attention_bias": true, "mlp_bias": true,
           "tie_word_embeddings": true,
           "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
             "high_freq_factor": 4}, )" +
           rotary + "}"},
      {"dynamic",
       R"({"model_type": "llama", "head_dim": 4,
           "rope_scaling": {"type": "dynamic", "factor": 3}, )" +
           rotary + "}"},
      {"yarn",
       R"({"model_type": "llama", "rope_scaling": {"type": "yarn", "factor": 4}, )" + rotary + "}"},
      {"qwen2",
       R"({"model_type": "qwen2", "use_sliding_window": true, "sliding_window": 3,
           "max_window_layers": 1, )" +
           rotary + "}"},
      {"qwen3", R"({"model_type": "qwen3", "head_dim": 4, )" + rotary + "}"},
      {"mistral", R"({"model_type": "mistral", "sliding_window": 5, )" + rotary + "}"},
      {"gpt2",
       R"({"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 8, "vocab_size": 32,
           "n_positions": 16})"},
      {"gpt2_odd_vocabulary",
       R"({"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 8, "vocab_size": 33,
           "n_positions": 32, "n_inner": 24, "tie_word_embeddings": false})"}};
  return all;
}

struct Layout {
  int pp = 1, replicas = 1, shards = 1, cp = 1, tp = 1, micro_batch = 1;
  std::map<std::string, std::string> options;
  std::string model = "llama";
  bool stream = false;  // true: the host has a stream, as on a device
  std::string text() const {
    std::string t = model + ", pp " + std::to_string(pp) + " dp " + std::to_string(replicas) +
                    " shards " + std::to_string(shards) + " cp " + std::to_string(cp) + " tp " +
                    std::to_string(tp) + " micro " + std::to_string(micro_batch);
    for (const auto& [key, value] : options) t += " " + key + "=" + value;
    return t;
  }
};

BlockList make_blocks(const std::string& model) {
  const yoke::testing::TempFolder folder;
  ModelConfig config;
  config.config = folder.write("config.json", models().at(model));
  FamilyArgs args;
  args.param_dtype = YOKE_F64;
  args.seq_len = kSeqLen;
  return builtin_family(config).make_blocks(args);
}

// Returns sequences [first, first + count) of the batch.
std::vector<std::pair<const char*, at::Tensor>> sequences(int64_t first, int64_t count) {
  const at::Tensor index = at::arange(first * kSeqLen, (first + count) * kSeqLen).view({count, -1});
  at::Tensor targets = (index * 17 + 5).remainder(kVocab);
  // Micro-batches differ in their number of targets.
  targets.masked_fill_(index.remainder(7).eq(0), -100);
  return {{"tokens", (index * 13 + index.div(3, "floor")).remainder(kVocab)},
          {"targets", targets},
          {"positions", at::arange(kSeqLen).expand({count, kSeqLen}).contiguous()}};
}

double targets_of(const std::vector<std::pair<const char*, at::Tensor>>& inputs) {
  return inputs[1].second.ne(-100).sum().item<double>();
}

struct Result {
  double loss = 0, norm = 0;
  State params;
  CommCount tp;           // what rank 0 exchanges over tp
  int late_products = 0;  // products of matrices in the actions BackwardWeight of all ranks
  int reads = 0;          // losses and gradients that the host has read in the step, on all ranks
};

// Counts the products of matrices that this thread computes in BackwardWeight, until it is
// destroyed.
class LateProducts {
 public:
  LateProducts()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&LateProducts::begin, &LateProducts::end)
                .scopes({at::RecordScope::USER_SCOPE, at::RecordScope::FUNCTION}))) {
    inside_ = false;
    count_ = 0;
  }
  ~LateProducts() { at::removeCallback(handle_); }
  LateProducts(const LateProducts&) = delete;
  LateProducts& operator=(const LateProducts&) = delete;
  int count() const { return count_; }

 private:
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& f) {
    const std::string_view name = f.name();
    if (f.scope() == at::RecordScope::USER_SCOPE) inside_ = name.starts_with("BackwardWeight");
    if (inside_ && name == "aten::mm") ++count_;
    return nullptr;
  }
  static void end(const at::RecordFunction& f, at::ObserverContext*) {
    if (f.scope() == at::RecordScope::USER_SCOPE) inside_ = false;
  }

  static inline thread_local bool inside_ = false;
  static inline thread_local int count_ = 0;
  at::CallbackHandle handle_;
};

// Writes the values of a parameter's piece into the whole parameter, whose other elements are NaN
// at first.
void add_param(State& params, const YokePiece& piece) {
  if (piece.replica != 0 || view(piece.kind) != "param") return;
  at::Tensor& whole = params[std::string(view(piece.name))];
  if (!whole.defined())
    whole = at::full(at::IntArrayRef(piece.shape, piece.ndim), NAN, at::kDouble);
  const at::Tensor values = borrow(*piece.view).view({-1});
  for (int64_t i = 0; i < piece.count; i += piece.run) {
    const int64_t n = std::min(piece.run, piece.count - i);
    whole.view({-1})
        .narrow(0, piece.begin + i / piece.run * piece.stride, n)
        .copy_(values.narrow(0, i, n));
  }
}

void step_on_rank(const Layout& layout, const Rank& rank, Result& result) {
  static std::mutex mutex;
  TorchModelHost model(make_blocks(layout.model), YOKE_F64, 3, false);
  YokeOptimizer sgd{};
  sgd.header = YOKE_HEADER(YokeOptimizer, YOKE_ID_OPTIMIZER);
  sgd.kind = YOKE_SGD;
  YokePlan plan{};
  plan.header = YOKE_HEADER(YokePlan, YOKE_ID_PLAN);
  const int32_t degrees[] = {layout.pp, layout.replicas, layout.shards, layout.cp, layout.tp};
  std::copy(std::begin(degrees), std::end(degrees), plan.degree);
  plan.world_size = rank.host.world_size;
  plan.global_batch = kBatch;
  plan.micro_batch = layout.micro_batch;
  plan.param_dtype = plan.reduce_dtype = YOKE_F64;
  YokeHost host = rank.host;
  if (layout.stream) host.stream = &host;
  Session session(plan, sgd, layout.options, host, model.model());

  const int data_ranks = layout.replicas * layout.shards;
  const int data_rank = rank.host.rank / (layout.cp * layout.tp) % data_ranks;
  const int64_t m = layout.micro_batch, micros = kBatch / (data_ranks * m);
  std::vector<std::vector<TensorView>> views(micros);
  std::vector<std::vector<YokeInput>> inputs(micros);
  std::vector<YokeMicroBatch> contract;
  std::vector<const YokeMicroBatch*> pointers;
  for (int64_t a = 0; a < micros; ++a) {
    const auto own = sequences((a * data_ranks + data_rank) * m, m);
    for (const auto& [role, tensor] : own) {
      views[a].emplace_back(tensor);
      inputs[a].push_back({view(role), *views[a].back().get()});
    }
    contract.push_back(micro_batch(inputs[a].data(), inputs[a].size(), targets_of(own)));
  }
  for (const YokeMicroBatch& micro : contract) pointers.push_back(&micro);
  YokeBatch batch{};
  batch.header = YOKE_HEADER(YokeBatch, YOKE_ID_BATCH);
  batch.micros = pointers.data();
  batch.num_micros = pointers.size();
  batch.token_weight = targets_of(sequences(0, kBatch));
  const LateProducts late;
  const yoke::testing::HostReads reads;
  const YokeStepResult step = session.step(batch, 1, 1.0);
  {
    const std::lock_guard lock(mutex);
    result.late_products += late.count();
    result.reads += reads.count();
  }

  session.checkpoint(YOKE_CHECKPOINT_SAVE, [&](const YokePiece& piece) {
    const std::lock_guard lock(mutex);
    add_param(result.params, piece);
  });
  if (rank.host.rank != 0) return;
  result.tp = rank.world.counts()["tp"];
  result.loss = step.loss_sum / step.loss_weight;
  result.norm = step.grad_norm;
}

Result one_step(const Layout& layout) {
  Result result;
  on_ranks(yoke::Mesh({layout.pp, layout.replicas, layout.shards, layout.cp, layout.tp}),
           [&](const Rank& rank) { step_on_rank(layout, rank, result); });
  return result;
}

Layout random_layout(std::mt19937& random, int world) {
  const auto pick = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  Layout l;
  int* const degrees[] = {&l.pp, &l.replicas, &l.shards, &l.cp, &l.tp};
  for (; world > 1; world /= 2) {
    // The model has four blocks.
    int* const degree = degrees[pick(5)];
    *(degree == &l.pp && l.pp == 4 ? &l.shards : degree) *= 2;
  }
  const int most = static_cast<int>(kBatch) / (l.replicas * l.shards);
  l.micro_batch = std::min(most, 1 << pick(3));
  const auto flip = [&](const char* key, const char* value) {
    if (pick(2) == 0) l.options[key] = value;
  };
  flip("sequence_parallel", "false");
  flip("loss_parallel", "false");
  flip("shard_over_cp", "false");
  flip("cp_attention", "all_gather");
  flip("cp_order", "plain");
  flip("reshard_after_forward", "false");
  flip("accumulate", "unsharded");
  flip("activation_checkpoint", pick(2) == 0 ? "full" : "stage");
  flip("unit_bytes", "1");
  const int micros = static_cast<int>(kBatch) / (l.replicas * l.shards * l.micro_batch);
  std::vector<const char*> schedules{"gpipe", "1f1b", "zb_h1"};
  if (l.pp == 2)
    schedules.insert(schedules.end(), {"looped_bfs", "zb_interleaved", "zb_v", "v_half", "v_min"});
  if (l.pp == 2 && micros % 2 == 0) schedules.push_back("interleaved");
  if (l.pp == 2 && micros >= 4) schedules.push_back("dual_pipe_v");
  if (l.pp > 1) l.options["pp_schedule"] = schedules[pick(static_cast<int>(schedules.size()))];
  if (l.options.count("sequence_parallel") == 0) flip("tp_pieces", pick(2) == 0 ? "2" : "3");
  return l;
}

void expect_step(const Result& got, const Result& expected) {
  EXPECT_NEAR(got.loss / expected.loss, 1, 1e-13);
  EXPECT_NEAR(got.norm / expected.norm, 1, 1e-11);
  ASSERT_EQ(got.params.size(), expected.params.size());
  for (const auto& [name, value] : expected.params) {
    const double worst = (got.params.at(name) - value).abs().max().item<double>();
    EXPECT_LE(worst, 1e-11) << name;  // also fails for NaN, which marks elements in no piece
  }
}

class Degrees : public ::testing::TestWithParam<std::tuple<int, std::string>> {};

TEST_P(Degrees, GradientsAreThoseOfOneRank) {
  const auto& [world, model] = GetParam();
  const Result expected = one_step({.micro_batch = 8, .options = {}, .model = model});
  ASSERT_GT(expected.norm, 0.01);
  std::mt19937 random(11);
  for (int i = 0; i < (model == "llama" ? 24 : 12); ++i) {
    Layout layout = random_layout(random, world);
    layout.model = model;
    SCOPED_TRACE(layout.text());
    expect_step(one_step(layout), expected);
  }
}

// On a device, LibTorch has another operator for RMSNorm, ours are those of the device, and the
// host must not read numbers that are still being computed.
TEST(Device, EveryLayoutMakesTheStepOfOneRankWithoutReadingNumbers) {
  for (const char* model : {"llama", "llama3", "qwen3", "gpt2"}) {
    const Result expected = one_step({.micro_batch = 8, .options = {}, .model = model});
    const yoke::testing::FusedRmsNorm fused;
    const yoke::testing::EmulatedCuda cuda(/*everywhere=*/true);
    for (Layout layout :
         {Layout{.options = {}},
          Layout{.shards = 2, .options = {}},
          Layout{.tp = 2, .options = {}},
          Layout{.tp = 2, .options = {{"sequence_parallel", "false"}}},
          Layout{.tp = 2, .options = {{"loss_parallel", "false"}}},
          Layout{.tp = 2, .options = {{"tp_pieces", "3"}}},
          Layout{.cp = 2, .options = {}},
          Layout{.cp = 2, .options = {{"cp_attention", "all_gather"}}},
          Layout{.cp = 2, .tp = 2, .options = {}},
          Layout{.pp = 2, .cp = 2, .tp = 2, .options = {{"pp_schedule", "zb_v"}}}}) {
      layout.model = model;
      layout.micro_batch = 2;
      layout.stream = true;
      SCOPED_TRACE(layout.text());
      const Result got = one_step(layout);
      expect_step(got, expected);
      EXPECT_EQ(got.reads, 0);
    }
  }
}

// The Llama's products leave the gradients of weights to a queue.
TEST(SplitBackward, AddsTheSameBitsAsAWholeOne) {
  for (const char* model : {"llama", "gpt2_odd_vocabulary"}) {
    const Result expected = one_step({.micro_batch = 1, .options = {}, .model = model});
    for (const char* schedule :
         {"1f1b", "zb_h1", "zb_interleaved", "zb_v", "v_half", "v_min", "dual_pipe_v"}) {
      const Layout layout{
          .pp = 2, .micro_batch = 1, .options = {{"pp_schedule", schedule}}, .model = model};
      SCOPED_TRACE(layout.text());
      const Result got = one_step(layout);
      EXPECT_EQ(got.loss, expected.loss);
      for (const auto& [name, value] : expected.params)
        EXPECT_TRUE(at::equal(got.params.at(name), value)) << name;
      EXPECT_GT(got.late_products, 0);
    }
  }
}

// The products on distributed tensors do, too, and run when the schedule says so.
TEST(SplitBackward, AddsTheSameBitsOnDistributedTensors) {
  for (Layout layout : {Layout{.tp = 2, .options = {}},
                        Layout{.tp = 2, .options = {{"sequence_parallel", "false"}}},
                        Layout{.cp = 2, .options = {}},
                        Layout{.cp = 2, .tp = 2, .options = {}}}) {
    layout.micro_batch = 2;
    layout.options["shard_over_cp"] = "false";  // a pipeline accumulates shards in another order
    const Result expected = one_step(layout);
    EXPECT_EQ(expected.late_products, 0);
    layout.pp = 2;
    for (const char* schedule : {"1f1b", "zb_h1", "zb_interleaved", "zb_v"}) {
      layout.options["pp_schedule"] = schedule;
      SCOPED_TRACE(layout.text());
      const Result got = one_step(layout);
      EXPECT_EQ(got.loss, expected.loss);
      for (const auto& [name, value] : expected.params)
        EXPECT_TRUE(at::equal(got.params.at(name), value)) << name;
      EXPECT_GT(got.late_products, 0);
    }
  }
}

TEST(Pieces, AreTheSameBytesInMoreMessages) {
  for (const int pp : {1, 2}) {
    Layout layout{.pp = pp, .shards = 3 - pp, .tp = 2, .options = {}};
    layout.options["activation_checkpoint"] = "full";
    const Result whole = one_step(layout);
    layout.options["tp_pieces"] = "3";
    SCOPED_TRACE(layout.text());
    const Result pieces = one_step(layout), again = one_step(layout);
    expect_step(pieces, whole);
    EXPECT_GT(pieces.tp.calls, 2 * whole.tp.calls);
    EXPECT_EQ(pieces.tp.bytes, whole.tp.bytes);
    for (const auto& [name, value] : pieces.params)
      EXPECT_TRUE(at::equal(again.params.at(name), value)) << name;
  }
}

// Context parallelism and replicas may be combined with exact sums.
TEST(ExactSums, GiveTheSameBitsWithAndWithoutAPipeline) {
  const Result usual = one_step({.micro_batch = 8, .options = {}});
  for (Layout layout :
       {Layout{}, Layout{.replicas = 2, .options = {}}, Layout{.cp = 2, .options = {}}}) {
    layout.micro_batch = 1;
    layout.options = {{"exact_sums", "true"}, {"shard_over_cp", "false"}};
    const Result expected = one_step(layout);
    EXPECT_NEAR(expected.norm / usual.norm, 1, 1e-13);
    layout.pp = 2;
    for (const char* schedule : {"1f1b", "looped_bfs", "zb_v"}) {
      layout.options["pp_schedule"] = schedule;
      SCOPED_TRACE(layout.text());
      const Result got = one_step(layout);
      EXPECT_EQ(got.loss, expected.loss);
      EXPECT_EQ(got.norm, expected.norm);
      for (const auto& [name, value] : expected.params)
        EXPECT_TRUE(at::equal(got.params.at(name), value)) << name;
    }
  }
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& [name, config] : models()) all.push_back(name);
  return all;
}

INSTANTIATE_TEST_SUITE_P(World,
                         Degrees,
                         ::testing::Combine(::testing::Values(1, 2, 4, 8),
                                            ::testing::ValuesIn(names())));

}  // namespace
}  // namespace yoke::ptd::testing
