// Tests the parts of plugins/validate: its page, the coverage of tensors by pieces, and what a host
// does wrong, which no run of Yoke shows. The host is a mock; the inner backend is `serial`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <sstream>

#include "plugins/validate/pieces.hpp"
#include "plugins/validate/rules.hpp"
#include "plugins/validate/tensors.hpp"
#include "plugins/validate/trace.hpp"
#include "tests/support/mock_batch.hpp"
#include "tests/support/mock_host.hpp"
#include "tests/support/mock_model.hpp"
#include "tests/support/mock_world.hpp"
#include "tests/support/temp_folder.hpp"
#include "yoke/text.hpp"

namespace yoke::validate {
namespace {

using ::testing::HasSubstr;
using testing::MockBatch;
using testing::MockHost;
using testing::MockModel;
using testing::MockPlan;
using testing::MockWorld;
using testing::read_file;

// ---- The page ----

TEST(Rules, AreTheTableOfTheReadme) {
  std::string table = "| rule | fault of | what must hold | how to fix |\n|---|---|---|---|\n";
  for (const RuleRow& row : rule_table())
    table += "| " + id_of(row.rule) + " | " + (row.of_host ? "host" : "backend") + " | " +
             row.text + " | " + row.fix + " |\n";
  EXPECT_THAT(read_file(YOKE_VALIDATE_README), HasSubstr(table));
}

TEST(Rules, AreNumberedInTheirOrder) {
  ASSERT_EQ(rule_table().size(), static_cast<size_t>(Rule::kEnd) - 1);
  for (size_t i = 0; i < rule_table().size(); ++i)
    EXPECT_EQ(static_cast<size_t>(rule_table()[i].rule), i + 1);
}

// ---- Pieces ----

// A model of one parameter that is not trained, so that a state consists of it and of the step.
struct OneTensor {
  explicit OneTensor(std::vector<int64_t> sizes) : shape(std::move(sizes)) {
    param.header = YOKE_HEADER(YokeParameter, YOKE_ID_PARAMETER);
    param.name = view("w");
    param.shape = shape.data();
    param.ndim = static_cast<int32_t>(shape.size());
    param.dtype = YOKE_F32;
    summary.header = YOKE_HEADER(YokeModelSummary, YOKE_ID_MODEL_SUMMARY);
    summary.params = &pointer;
    summary.num_params = 1;
    step.name = "optimizer";
    step.kind = "step";
    step.dtype = YOKE_I64;
    step.count = step.run = 1;
  }
  Expected expected() const { return {&summary, {}, {}, false}; }
  PieceKey piece(int64_t begin, int64_t count, int64_t run, int64_t stride, int64_t replica = 0) {
    PieceKey p;
    p.name = "w";
    p.kind = "param";
    p.shape = shape;
    p.dtype = YOKE_F32;
    p.begin = begin;
    p.count = count;
    p.run = run;
    p.stride = stride;
    p.replica = replica;
    return p;
  }
  std::vector<int64_t> shape;
  YokeParameter param{};
  const YokeParameter* pointer = &param;
  YokeModelSummary summary{};
  PieceKey step;
};

std::string fault_of(OneTensor& tensor,
                     std::vector<std::vector<PieceKey>> ranks,
                     std::vector<Copies>* copies) {
  ranks[0].push_back(tensor.step);
  return coverage_fault(ranks, tensor.expected(), copies);
}

// The plain version: how often each element is in a piece with replica 0.
std::vector<int> counts(const OneTensor& tensor, const std::vector<std::vector<PieceKey>>& ranks) {
  std::vector<int> counts(
      static_cast<size_t>(numel(tensor.shape.data(), static_cast<int32_t>(tensor.shape.size()))));
  for (const auto& pieces : ranks) {
    for (const PieceKey& p : pieces) {
      for (int64_t i = 0; i < p.count && p.replica == 0; ++i)
        ++counts[static_cast<size_t>(p.begin + i / p.run * p.stride + i % p.run)];
    }
  }
  return counts;
}

TEST(Coverage, FindsWhatCountingFinds) {
  std::mt19937 random(7);
  const auto pick = [&](int n) {
    return static_cast<int64_t>(random() % static_cast<unsigned>(n));
  };
  int good = 0, bad = 0;
  for (int round = 0; round < 2000; ++round) {
    const int64_t rows = 1 + pick(5), columns = 2 + pick(6), ranks = 1 + pick(3);
    OneTensor tensor({rows, columns});
    std::vector<std::vector<PieceKey>> shown(static_cast<size_t>(ranks));
    const bool by_columns = pick(2) == 0;
    int64_t at = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t whole = by_columns ? columns : rows * columns;
      const int64_t width = rank + 1 == ranks ? whole - at : pick(static_cast<int>(whole - at + 1));
      if (width > 0)
        shown[static_cast<size_t>(rank)].push_back(
            by_columns && width < columns ? tensor.piece(at, width * rows, width, columns)
            : by_columns                  ? tensor.piece(0, rows * columns, rows * columns, 0)
                                          : tensor.piece(at, width, width, 0));
      at += width;
    }
    // Half of the states get a fault: a piece is moved, cut, left out or shown twice.
    auto& pieces = shown[static_cast<size_t>(pick(static_cast<int>(ranks)))];
    if (pick(2) == 0 && !pieces.empty()) {
      PieceKey& p = pieces[0];
      const int64_t kind = pick(3);
      if (kind == 0 && p.count > p.run) p.count -= p.run;
      if (kind == 0 && p.count == p.run && p.count > 1) p.count = p.run = p.count - 1;
      if (kind == 1) pieces.push_back(p);
      if (kind == 2) pieces.clear();
    }
    const std::vector<int> plain = counts(tensor, shown);
    const bool tiles = std::all_of(plain.begin(), plain.end(), [](int n) { return n == 1; });
    std::vector<Copies> copies;
    EXPECT_EQ(fault_of(tensor, shown, &copies).empty(), tiles) << "round " << round;
    ++(tiles ? good : bad);
  }
  EXPECT_GT(good, 300);
  EXPECT_GT(bad, 300);
}

TEST(Coverage, PairsCopiesWithWhatIsSaved) {
  OneTensor tensor({4, 6});
  std::vector<Copies> copies;
  // Two ranks save halves. Each has a copy of the half of the other, and rank 1 one of the whole.
  const auto first = tensor.piece(0, 12, 12, 0), second = tensor.piece(12, 12, 12, 0);
  EXPECT_EQ(
      fault_of(tensor,
               {{first, tensor.piece(12, 12, 12, 0, 1)}, {second, tensor.piece(0, 24, 24, 0, 2)}},
               &copies),
      "");
  ASSERT_EQ(copies.size(), 2u);
  EXPECT_EQ(copies[0].saved.size(), 1u);
  EXPECT_EQ(copies[0].saved[0].rank, 1);
  EXPECT_EQ(copies[1].saved.size(), 2u) << "the whole tensor";
  // Copies that are cut by columns are compared as one tensor.
  copies.clear();
  EXPECT_EQ(
      fault_of(tensor,
               {{first, tensor.piece(0, 12, 3, 6, 1)}, {second, tensor.piece(3, 12, 3, 6, 1)}},
               &copies),
      "");
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].saved.size(), 2u);
  EXPECT_EQ(copies[0].copies.size(), 2u);
}

TEST(Coverage, SurvivesBytes) {
  OneTensor tensor({4, 6});
  const std::vector<PieceKey> pieces{tensor.piece(3, 12, 3, 6, 1), tensor.step};
  EXPECT_EQ(pieces_from_bytes(to_bytes(pieces)), pieces);
}

TEST(Hashes, OfPiecesAddUp) {
  OneTensor tensor({4, 6});
  std::vector<float> values(24);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * i);
  const auto hash = [&](int64_t begin, int64_t count, int64_t run, int64_t stride) {
    std::vector<float> part;
    for (int64_t i = 0; i < count; ++i)
      part.push_back(values[static_cast<size_t>(begin + i / run * stride + i % run)]);
    const FlatView view(part.data(), count, YOKE_F32);
    YokePiece piece{};
    piece.dtype = YOKE_F32;
    piece.begin = begin;
    piece.count = count;
    piece.run = run;
    piece.stride = stride;
    piece.view = view.get();
    return hash_of_piece(piece);
  };
  const uint64_t whole = hash(0, 24, 24, 0);
  EXPECT_EQ(hash(0, 7, 7, 0) + hash(7, 17, 17, 0), whole);
  EXPECT_EQ(hash(0, 8, 2, 6) + hash(2, 16, 4, 6), whole);
  std::swap(values[3], values[4]);
  EXPECT_NE(hash(0, 24, 24, 0), whole) << "two elements have changed places";
}

TEST(Tensors, WithInfinitiesAreFoundInEveryDtype) {
  const uint16_t half_inf = 0x7c00, half_max = 0x7bff, brain_nan = 0x7fc0, brain_max = 0x7f7f;
  const auto found = [](const void* value, int32_t dtype) {
    const FlatView view(const_cast<void*>(value), 1, dtype);
    return has_nonfinite(*view.get());
  };
  const float inf = std::numeric_limits<float>::infinity(), max = 1e38f;
  EXPECT_TRUE(found(&inf, YOKE_F32));
  EXPECT_FALSE(found(&max, YOKE_F32));
  EXPECT_TRUE(found(&half_inf, YOKE_F16));
  EXPECT_FALSE(found(&half_max, YOKE_F16));
  EXPECT_TRUE(found(&brain_nan, YOKE_BF16));
  EXPECT_FALSE(found(&brain_max, YOKE_BF16));
}

TEST(Trace, NamesOneFileForEachRank) {
  EXPECT_EQ(trace_file_of("abi.jsonl", 1), "abi_001.jsonl");
  EXPECT_EQ(trace_file_of("a.b/abi", 12), "a.b/abi_012");
  EXPECT_EQ(trace_file_of(".abi", 0), ".abi_000");
}

TEST(Trace, QuotesWhatABackendWrites) {
  EXPECT_EQ(Fields().add("text", "a\"b\\\n").text(), ",\"text\":\"a\\\"b\\\\\\u000a\"");
  EXPECT_EQ(Fields().add("x", std::numeric_limits<double>::quiet_NaN()).text(), ",\"x\":null");
}

// ---- Faults of the host ----

const ParallelBackend& serial() {
  static const ParallelBackend& backend = testing::load_backend(YOKE_SERIAL);
  return backend;
}
const ParallelBackend& checked() {
  static const ParallelBackend& backend = testing::load_backend(YOKE_VALIDATE);
  return backend;
}

// A host that opens `serial` for the backend that it runs.
struct OpeningHost {
  explicit OpeningHost(MockWorld* world = nullptr, int32_t rank = 0, int32_t size = 1)
      : mock(world, rank, size), of_mock(mock.host.get_service) {
    service.header = YOKE_HEADER(YokeBackends, YOKE_ID_BACKENDS);
    service.ctx = this;
    service.open = [](void* ctx, const char*, uint32_t, YokeInnerBackend* out, YokeError*) {
      auto& self = *static_cast<OpeningHost*>(ctx);
      out->table = &serial();
      out->options = nullptr;
      out->num_options = 0;
      out->host = &self.host;
      return static_cast<int32_t>(YOKE_OK);
    };
    host = mock.host;
    host.ctx = this;
    host.log = [](void* ctx, int32_t level, YokeString text) {
      YokeHost& real = static_cast<OpeningHost*>(ctx)->mock.host;
      real.log(real.ctx, level, text);
    };
    host.check_cancel = [](void*) { return int32_t{0}; };
    host.get_service = [](void* ctx, const char* name, uint64_t size) -> const YokeHeader* {
      auto& self = *static_cast<OpeningHost*>(ctx);
      if (std::strcmp(name, "yoke.backends/1") == 0) return &self.service.header;
      return self.of_mock(self.mock.host.ctx, name, size);
    };
  }
  MockHost mock;
  const YokeHeader* (*of_mock)(void*, const char*, uint64_t);
  YokeBackends service{};
  YokeHost host{};
};

// A run of validate on serial, call by call.
struct CheckedRun {
  explicit CheckedRun(OpeningHost& opening)
      : host(opening), options(checked(), {{"inner", "serial"}}) {
    plan.extensions = &host.service.header;
    plan.plan.world_size = host.host.world_size;
    plan.plan.micro_batch = 8;
    EXPECT_EQ(plan.ask(checked(), model.summary(), &err), YOKE_OK) << err.text;
    plan.plan.degree[YOKE_DP_REPLICATE] = host.host.world_size;
  }
  ~CheckedRun() {
    checked().destroy_model(&wrapped.model);
    checked().destroy(&context);
  }
  int32_t init() {
    args.header = YOKE_HEADER(YokeInitArgs, YOKE_ID_INIT_ARGS);
    args.plan = &plan.plan;
    args.options = options.values().data();
    args.num_options = options.values().size();
    args.host = &host.host;
    return checked().init(&args, &context, &err);
  }
  int32_t wrap(const YokeModel* other = nullptr) {
    wrapped.header = YOKE_HEADER(YokeWrapResult, YOKE_ID_WRAP_RESULT);
    return checked().wrap_model(context, other == nullptr ? &model.model() : other, &wrapped, &err);
  }
  int32_t step(const YokeBatch& batch, int64_t number, double lr = 0.1, uint32_t flags = 0) {
    YokeStepArgs step{};
    step.header = YOKE_HEADER(YokeStepArgs, YOKE_ID_STEP_ARGS);
    step.batch = &batch;
    step.step = number;
    step.lr = lr;
    step.flags = flags;
    YokeStepResult result{};
    result.header = YOKE_HEADER(YokeStepResult, YOKE_ID_STEP_RESULT);
    return checked().step(wrapped.model, &step, &result, &err);
  }
  void start() {
    ASSERT_EQ(init(), YOKE_OK) << err.text;
    ASSERT_EQ(wrap(), YOKE_OK) << err.text;
  }

  OpeningHost& host;
  testing::MockOptions options;
  MockModel model;
  MockPlan plan;
  YokeInitArgs args{};
  YokeContext* context = nullptr;
  YokeWrapResult wrapped{};
  YokeError err = make_error();
};

void expect_rule(Rule rule, int32_t code, const CheckedRun& run) {
  EXPECT_NE(code, YOKE_OK);
  EXPECT_THAT(std::string(run.err.text), HasSubstr(id_of(rule) + ", a fault of the host"));
}

TEST(Host, ThatKeepsTheRulesIsAccepted) {
  OpeningHost host;
  {
    CheckedRun run(host);
    run.start();
    const MockBatch batch({}, 1);
    EXPECT_EQ(run.step(batch.batch(), 1), YOKE_OK) << run.err.text;
    EXPECT_EQ(run.step(batch.batch(), 1, 0, YOKE_STEP_FORWARD_ONLY), YOKE_OK) << run.err.text;
    EXPECT_EQ(run.step(batch.batch(), 2), YOKE_OK) << run.err.text;
  }
  ASSERT_EQ(host.mock.log.size(), 1u);
  EXPECT_THAT(host.mock.log[0], HasSubstr("no violation"));
}

TEST(Host, ThatPassesAnIncompletePlanIsNamed) {
  OpeningHost host;
  CheckedRun run(host);
  run.plan.plan.micro_batch = 0;
  expect_rule(Rule::kPlanIsComplete, run.init(), run);
}

TEST(Host, ThatPassesAWrongBatchIsNamed) {
  OpeningHost host;
  CheckedRun run(host);
  run.start();
  MockBatch batch({}, 1);
  batch.claim_weight(0);
  expect_rule(Rule::kBatchIsWellFormed, run.step(batch.batch(), 1), run);
}

TEST(Host, ThatPassesOtherSequencesIsNamed) {
  OpeningHost host;
  CheckedRun run(host);
  run.start();
  const MockBatch batch({8, 4, 0, 1, 3}, 1);  // the plan has micro-batches of 8
  ASSERT_EQ(run.plan.plan.micro_batch, 8);
  expect_rule(Rule::kBatchIsWellFormed, run.step(batch.batch(), 1), run);
}

TEST(Host, ThatCountsStepsWronglyIsNamed) {
  for (const auto& [number, flags, lr] : {std::tuple(2, 0u, 0.1),
                                          std::tuple(1, unsigned{YOKE_STEP_FORWARD_ONLY}, 0.0),
                                          std::tuple(1, 0u, -0.1)}) {
    OpeningHost host;
    CheckedRun run(host);
    run.start();
    const MockBatch batch({}, 1);
    expect_rule(Rule::kStepNumbers, run.step(batch.batch(), number, lr, flags), run);
  }
}

TEST(Host, ThatCallsTwoFunctionsAtOnceIsNamed) {
  OpeningHost host;
  CheckedRun run(host);
  run.start();
  struct Visit {
    CheckedRun& run;
    MockBatch batch{{}, 1};
  } visit{run};
  YokeCheckpointArgs args{};
  args.header = YOKE_HEADER(YokeCheckpointArgs, YOKE_ID_CHECKPOINT_ARGS);
  args.op = YOKE_CHECKPOINT_SAVE;
  args.visit_ctx = &visit;
  args.visit = [](void* ctx, const YokePiece*, YokeError*) {
    auto& v = *static_cast<Visit*>(ctx);
    expect_rule(Rule::kOrderOfCalls, v.run.step(v.batch.batch(), 1), v.run);
    return static_cast<int32_t>(YOKE_OK);
  };
  EXPECT_EQ(checked().checkpoint(run.wrapped.model, &args, &run.err), YOKE_OK) << run.err.text;
}

TEST(Host, ThatGivesRanksOtherArgumentsIsNamed) {
  MockWorld world(2);
  world.run([&](int32_t rank) {
    OpeningHost host(&world, rank, 2);
    CheckedRun run(host);
    run.plan.plan.micro_batch = 4;
    run.start();
    const MockBatch batch({8, 4, rank, 2, 3}, 1);
    expect_rule(Rule::kRanksGetTheSameArguments, run.step(batch.batch(), 1, rank + 1), run);
    EXPECT_THAT(std::string(run.err.text), HasSubstr("lr is 1 on rank 0 and 2 on rank 1"));
  });
}

TEST(Host, ThatChangesThePlanIsNamed) {
  OpeningHost host;
  {
    CheckedRun run(host);
    run.start();
    run.plan.optimizer.beta1 = 0.5;
  }
  ASSERT_GE(host.mock.log.size(), 1u);
  EXPECT_THAT(host.mock.log[0], HasSubstr("V38, a fault of the host"));
}

TEST(Host, ThatReportsAGradientTwiceIsNamed) {
  OpeningHost host;
  CheckedRun run(host);
  static const YokeModel* real;
  real = &run.model.model();
  YokeModel twice = *real;
  twice.block_backward =
      [](void* ctx, const YokeBackwardArgs* args, YokeManagedTensor** grad_in, YokeError* err) {
        static const YokeBackwardArgs* outer;
        outer = args;
        YokeBackwardArgs mine = *args;
        mine.on_grad_ready = [](void* c, int64_t param, const YokeTensor* grad, YokeError* e) {
          const int32_t code = outer->on_grad_ready(c, param, grad, e);
          return code != YOKE_OK ? code : outer->on_grad_ready(c, param, grad, e);
        };
        return real->block_backward(ctx, &mine, grad_in, err);
      };
  ASSERT_EQ(run.init(), YOKE_OK);
  ASSERT_EQ(run.wrap(&twice), YOKE_OK);
  const MockBatch batch({}, 1);
  expect_rule(Rule::kBlocksReturnWhatTheyPromise, run.step(batch.batch(), 1), run);
}

}  // namespace
}  // namespace yoke::validate
