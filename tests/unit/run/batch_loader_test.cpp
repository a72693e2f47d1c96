#include "core/run/batch_loader.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/support/emulated_cuda.hpp"
#include "tests/support/fake_streams.hpp"
#include "tests/unit/data/scratch_file.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kSeqLen = 3;
const Samples kNoSamples;  // passed where the data is a token stream

std::string text_of(size_t size) {
  std::string text;
  for (size_t i = 0; i < size; ++i) text += static_cast<char>('a' + (i * i + i / 5) % 26);
  return text;
}

DataSet open(const std::string& path, std::optional<int64_t> pad_token = {}) {
  DataConfig config;
  config.path = {path};
  config.seq_len = kSeqLen;
  config.holdout = 0;
  config.order = "sequential";
  config.pad_token = pad_token;
  return open_data(config, 1, 1);
}

std::vector<int64_t> values(const at::Tensor& t) {
  return {t.const_data_ptr<int64_t>(), t.const_data_ptr<int64_t>() + t.numel()};
}

// Returns what the backend receives as `role` in one micro-batch.
std::vector<int64_t> contract_values(const Batch& batch, size_t micro, std::string_view role) {
  const YokeMicroBatch& m = *batch.get().micros[micro];
  for (uint64_t i = 0; i < m.num_inputs; ++i) {
    if (view(m.inputs[i].role) == role) return values(borrow(m.inputs[i].tensor));
  }
  return {};
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
    return e.what();
  }
  return "nothing was thrown";
}

TEST(BatchLoader, GivesEachDataRankItsSamples) {
  const ScratchFile file(text_of(100));
  const DataSet data = open(file.path());
  const SampleSource source{data, kNoSamples};
  const SampleAssignment rank1{
      .data_rank = 1, .data_ranks = 2, .accumulation = 2, .micro_batch = 2};
  BatchLoader loader(source, data.train, rank1, nullptr);
  const auto batch = loader.load(8);
  EXPECT_THAT(batch->samples(), ElementsAre(10, 11, 14, 15));
  EXPECT_EQ(batch->global().first, 8);
  EXPECT_EQ(batch->global().count, 8);
  EXPECT_EQ(batch->tokens(), 8 * kSeqLen);
  EXPECT_EQ(batch->get().token_weight, 8 * kSeqLen);
  ASSERT_EQ(batch->get().num_micros, 2u);
  for (size_t micro = 0; micro < 2; ++micro) {
    const HostMicroBatch expected =
        read_micro_batch(data, data.train, rank1.first_sample(8, static_cast<int64_t>(micro)), 2);
    EXPECT_EQ(contract_values(*batch, micro, "tokens"), expected.tokens);
    EXPECT_EQ(contract_values(*batch, micro, "targets"), expected.targets);
    EXPECT_EQ(contract_values(*batch, micro, "positions"), expected.positions);
  }
}

TEST(BatchLoader, GivesAllDataRanksTogetherTheWholeBatchOnce) {
  const ScratchFile file(text_of(100));
  const DataSet data = open(file.path());
  const SampleSource source{data, kNoSamples};
  std::multiset<int64_t> samples;
  SampleAssignment layout{.data_ranks = 3, .accumulation = 2, .micro_batch = 2};
  for (layout.data_rank = 0; layout.data_rank < layout.data_ranks; ++layout.data_rank) {
    const auto batch = BatchLoader(source, data.train, layout, nullptr).load(12);
    samples.insert(batch->samples().begin(), batch->samples().end());
  }
  EXPECT_THAT(samples, ElementsAre(12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23));
}

TEST(BatchLoader, LoadsBatchesInAnyOrder) {
  const ScratchFile file(text_of(100));
  const DataSet data = open(file.path());
  const SampleSource source{data, kNoSamples};
  const SampleAssignment alone{.micro_batch = 4};
  BatchLoader loader(source, data.train, alone, nullptr);
  const auto later = loader.load(8), earlier = loader.load(0), again = loader.load(8);
  EXPECT_NE(values(later->inputs(0)[0].second), values(earlier->inputs(0)[0].second));
  EXPECT_EQ(values(later->inputs(0)[0].second), values(again->inputs(0)[0].second));
}

// ---- On a device ----

// A device whose streams are fakes, and the batches of a family there. A sample is its index, and
// each read is counted, by whether the thread of the test makes it.
struct OnADevice {
  explicit OnADevice(int64_t bad_sample = -1) : bad(bad_sample) { testing::StreamLog::take(); }

  static DataSet all() {
    DataConfig config;
    config.seq_len = 1;
    config.holdout = 0;
    config.order = "sequential";
    return split_samples(config, 40, 1, 1, 1);
  }
  TorchInputs read(int64_t index) {
    ++(std::this_thread::get_id() == own ? here : elsewhere);
    if (index == bad) throw Error(YOKE_INVALID_ARGUMENT, "the sample cannot be read");
    return {{"label", at::full({1}, index)}};
  }
  int64_t compute() const {
    return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(device.device()).id();
  }

  const int64_t bad;
  const testing::EmulatedCuda cuda;
  RankDevice device{0};
  const std::thread::id own = std::this_thread::get_id();
  std::atomic<int> here = 0, elsewhere = 0;
  const DataSet data = all();
  const Samples samples{
      .count = 40, .targets = 1, .read = [this](int64_t index) { return read(index); }};
  const SampleSource source{data, samples};
  BatchLoader loader{source, data.train, {.micro_batch = 2}, &device};
};

TEST(BatchLoader, OnADeviceReadsTheNextBatchOnAnotherThread) {
  OnADevice on;
  const auto first = on.loader.load(0), second = on.loader.load(2), third = on.loader.load(4);
  EXPECT_EQ(on.here, 2);
  EXPECT_GE(on.elsewhere, 4);
  EXPECT_THAT(contract_values(*first, 0, "label"), ElementsAre(0, 1));
  EXPECT_THAT(contract_values(*second, 0, "label"), ElementsAre(2, 3));
  EXPECT_THAT(contract_values(*third, 0, "label"), ElementsAre(4, 5));
  const auto other = on.loader.load(20), back = on.loader.load(0);
  EXPECT_EQ(on.here, 6);
  EXPECT_THAT(contract_values(*other, 0, "label"), ElementsAre(20, 21));
  EXPECT_THAT(contract_values(*back, 0, "label"), ElementsAre(0, 1));
}

// The stream of the rank waits for the copies, and the host does not.
TEST(BatchLoader, OnADeviceCopiesOnAStreamOfItsOwn) {
  OnADevice on;
  const std::string copies = std::to_string(on.device.copies().id()),
                    compute = std::to_string(on.compute());
  ASSERT_NE(copies, compute);
  for (const int64_t start : {0, 2, 4}) {
    const auto batch = on.loader.load(start);
    EXPECT_EQ(batch->get().micros[0]->inputs[0].tensor.device.type, YOKE_DEVICE_CUDA);
    EXPECT_TRUE(batch->inputs(0)[0].second.is_cpu());
  }
  // Batches are read one after the other, some of them earlier than they are waited for.
  int copied = 0, recorded = 0, waits = 0;
  for (const std::string& line : testing::StreamLog::take()) {
    if (line == "copy on " + copies) {
      ++copied;
    } else if (line == "record on " + copies) {
      EXPECT_EQ(++recorded, copied);
    } else {
      EXPECT_EQ(line, compute + " waits for " + copies);
      EXPECT_LE(++waits, recorded);
    }
  }
  EXPECT_EQ(waits, 3);
}

TEST(BatchLoader, OnADeviceReportsAFailureOfTheBatchThatIsLoaded) {
  OnADevice on(/*bad_sample=*/3);
  const auto first = on.loader.load(0);
  EXPECT_THAT(message_of([&] { on.loader.load(2); }), HasSubstr("the sample cannot be read"));
  EXPECT_EQ(on.here, 2);
  EXPECT_THAT(contract_values(*on.loader.load(4), 0, "label"), ElementsAre(4, 5));
}

TEST(Batch, CountsTheTargetsOfTheWholeGlobalBatch) {
  const ScratchFile file("ab_defghijklm");  // window 0 has one padding target, the others none
  const DataSet data = open(file.path(), '_');
  const SampleSource source{data, kNoSamples};
  const SampleAssignment rank1{.data_rank = 1, .data_ranks = 2};
  const Batch batch(source, data.train, 0, rank1);
  EXPECT_EQ(batch.get().token_weight, 2 * kSeqLen - 1);
}

TEST(Batch, CanRequireThatAGlobalBatchHasTargets) {
  const ScratchFile file("a______defghi");
  const DataSet data = open(file.path(), '_');
  const SampleSource source{data, kNoSamples};
  const Batch none(source, data.train, 0, {.micro_batch = 2});
  EXPECT_EQ(none.targets(), 0);
  EXPECT_THAT(message_of([&] { none.require_targets(); }),
              HasSubstr("no target of the global batch at sample 0 counts"));
  // A micro-batch may be without any target, if another one of the global batch has some.
  const Batch some(source, data.train, 1, {.accumulation = 2});
  EXPECT_EQ(some.targets(), 3);
  EXPECT_NO_THROW(some.require_targets());
}

TEST(Batch, SaysWhereSeparateDocumentsBegin) {
  const ScratchFile file("ab.cd.e");
  DataSet data = open(file.path());
  const SampleSource source{data, kNoSamples};
  EXPECT_THAT(contract_values(Batch(source, data.train, 0, {}), 0, "document_starts"),
              ElementsAre());
  data.document_end = '.';
  const Batch batch(source, data.train, 0, {.micro_batch = 2});
  EXPECT_THAT(contract_values(batch, 0, "document_starts"), ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_THAT(contract_values(batch, 0, "targets"),
              ElementsAre('b', '.', kNoTarget, 'd', '.', kNoTarget));
  EXPECT_EQ(batch.get().token_weight, 4);
}

TEST(Batch, StacksTheSamplesOfAFamilyAndRefusesOthers) {
  DataConfig config;
  config.seq_len = 1;
  config.holdout = 0;
  config.order = "sequential";
  const DataSet data = split_samples(config, 4, 1, 1, 1);
  const Samples samples{.count = 4, .targets = 1, .read = [](int64_t index) {
                          return TorchInputs{{"label", at::full({index < 2 ? 2 : 3}, index)}};
                        }};
  const SampleSource source{data, samples};
  const Batch batch(source, data.train, 0, {.micro_batch = 2});
  EXPECT_EQ(contract_values(batch, 0, "label"), (std::vector<int64_t>{0, 0, 1, 1}));
  EXPECT_THAT(message_of([&] { Batch(source, data.train, 0, {.micro_batch = 4}); }),
              HasSubstr("sample 2 of the model family has label Long [3], but sample 0 has label "
                        "Long [2]"));
}

}  // namespace
}  // namespace yoke
