// Damages input files in many ways and runs the real readers on them. No reader may crash, hang,
// allocate memory because a file merely claims to be large, or throw anything but an Error that
// names the file. A file that is accepted must be consistent.
//
// Case n is the same in every run. YOKE_FUZZ_SECONDS is the duration, by default 5 seconds.
// YOKE_FUZZ_FIRST is the number of the first case.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <new>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/hf_weights.hpp"
#include "core/data/token_stream.hpp"
#include "core/model/hf_config.hpp"
#include "tests/fuzz/mutate.hpp"
#include "tests/support/indexed_dataset.hpp"
#include "tests/unit/checkpoint/fake_state.hpp"
#include "tests/unit/checkpoint/hf_folder.hpp"
#include "tests/unit/metrics/temp_folder.hpp"

namespace {

std::atomic<size_t> live{0}, peak{0};

void* counted(size_t size) {
  void* p = std::malloc(size);
  if (p == nullptr) throw std::bad_alloc();
  const size_t now = live += ::malloc_usable_size(p);
  if (now > peak) peak = now;
  return p;
}

}  // namespace

void* operator new(size_t size) {
  return counted(size);
}
void* operator new[](size_t size) {
  return counted(size);
}
void operator delete(void* p) noexcept {
  live -= p == nullptr ? 0 : ::malloc_usable_size(p);
  std::free(p);
}
void operator delete[](void* p) noexcept {
  operator delete(p);
}
void operator delete(void* p, size_t) noexcept {
  operator delete(p);
}
void operator delete[](void* p, size_t) noexcept {
  operator delete(p);
}

namespace yoke {
namespace {

using testing::counting;
using testing::mutate;
using testing::Random;
using testing::safetensors_file;

// A reader may allocate kPerByte bytes for each byte of its files, and kForItself bytes in
// addition.
constexpr size_t kPerByte = 100, kForItself = 1 << 20;

void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(std::string("accepted, but ") + what);
}

// ---- Readers: each returns normally if it accepts its files, and otherwise throws Error ----

void read_weights(const std::string& folder) {
  const HfWeights weights(folder);
  for (const auto& [name, shape] : weights.shapes()) {
    const int64_t count = numel(shape.data(), static_cast<int32_t>(shape.size()));
    require(!name.empty() && count >= 0 && count <= 4096, "a tensor is larger than its file");
    std::vector<float> values(static_cast<size_t>(count));
    weights.read(name, 0, count, values.data());
  }
}

void read_config(const std::string& folder) {
  const ModelDims d = read_hf_config(folder).dims;
  require(
      d.dim > 0 && d.layers > 0 && d.heads > 0 && d.kv_heads > 0 && d.ffn_dim > 0 && d.vocab > 0,
      "a dimension is not positive");
  require(std::max({d.dim, d.layers, d.heads, d.kv_heads, d.ffn_dim, d.vocab}) < int64_t{1} << 31,
          "a dimension is out of range");
  ModelConfig model;
  model.from = folder;
  const ModelDims checked = model_dims(model);
  require(checked.head_size() > 0 && checked.heads % checked.kv_heads == 0,
          "its heads do not divide");
}

void read_checkpoint(const std::string& folder) {
  const CheckpointReader reader(folder);
  reader.verify();
  for (const auto& [name, shape] : reader.param_shapes())
    require(numel(shape.data(), static_cast<int32_t>(shape.size())) <= 4096, "a tensor is larger");
}

void read_tokens(const std::string& path, const std::string& format) {
  const auto stream = TokenStream::open(path, format);
  require(stream->size() >= 0 && stream->size() <= 4096, "the stream is longer than its file");
  std::vector<int64_t> ids(static_cast<size_t>(stream->size()));
  stream->read(0, stream->size(), ids.data());
  for (const int64_t id : ids)
    require(stream->vocab() == 0 || id < stream->vocab(), "an id is beyond");
}

// ---- Files to be damaged ----

struct Target {
  std::string folder;
  std::vector<std::string> files;
  std::function<void()> read;
};

testing::HfTensor of_dtype(const std::string& name, int32_t dtype, int64_t count) {
  return {name, dtype, {count}, std::string(static_cast<size_t>(count * item_size(dtype)), '\x11')};
}

struct Corpus {
  TempDir dir;

  std::string write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories(std::filesystem::path(dir / name).parent_path());
    spill(dir / name, content);
    return content;
  }

  Target whole() const {
    write(
        "whole/model.safetensors",
        safetensors_file({counting("a", {2, 3}), of_dtype("b", YOKE_BF16, 4), counting("c", {})}));
    const std::string folder = dir / "whole";
    return {folder, {"model.safetensors"}, [folder] { read_weights(folder); }};
  }
  Target sharded() const {
    const std::string folder = dir / "sharded";
    write("sharded/1.safetensors", safetensors_file({counting("a", {2, 3})}));
    write("sharded/2.safetensors", safetensors_file({of_dtype("b", YOKE_F16, 4)}));
    write(
        "sharded/model.safetensors.index.json",
        R"({"metadata": {"total_size": 32}, "weight_map": {"a": "1.safetensors", "b": "2.safetensors"}})");
    return {folder, {"model.safetensors.index.json", "1.safetensors", "2.safetensors"}, [folder] {
              read_weights(folder);
            }};
  }
  Target config() const {
    const ModelDims dims{24, 2, 6, 2, 40, 50, true, 500, 1e-3};
    write("config/config.json", hf_config_text(dims, 128));
    const std::string folder = dir / "config";
    return {folder, {"config.json"}, [folder] { read_config(folder); }};
  }
  Target checkpoint() const {
    FakeState state = fake_state(1, 2, 5);
    std::mt19937_64 random(1);
    const RankPieces pieces = random_partition(state, 2, random);  // some of the pieces are columns
    const std::string folder = save(request_of(dir / "checkpoints", 3), state, pieces)[0].path;
    return {folder,
            {"manifest.json", "model.safetensors", "optimizer.safetensors", "config.json"},
            [folder] { read_checkpoint(folder); }};
  }
  Target tokens(const std::string& name,
                const std::string& content,
                const std::string& format) const {
    write(name + "/ids.bin", content);
    const std::string folder = dir / name;
    return {folder, {"ids.bin"}, [folder, format] { read_tokens(folder + "/ids.bin", format); }};
  }
  Target yoke_ids() const {
    const char head[] = "YOKETOK1\2\0\0\0\x10\0\0\0\4\0\0\0\0\0\0\0";
    return tokens("yoke", std::string(head, 24) + std::string("\1\0\2\0\3\0\4\0", 8), "auto");
  }
  Target llmc_ids() const {
    std::string file("\x88\xd8\x34\x01\1\0\0\0\2\0\0\0", 12);
    file.resize(1024);
    return tokens("llmc", file + "abcd", "auto");
  }
  Target npy_ids() const {
    const char head[] = "\x93NUMPY\1\0\x46\0";
    std::string literal = "{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }";
    literal.resize(69, ' ');
    return tokens("npy", std::string(head, 10) + literal + "\n" + std::string(8, '\1'), "auto");
  }
  Target indexed_ids() const {
    const testing::IndexedDataset dataset = testing::indexed_dataset({2, 0, 3});
    write("indexed/ids.bin", dataset.bin);
    write("indexed/ids.idx", dataset.idx);
    const std::string folder = dir / "indexed";
    return {
        folder, {"ids.bin", "ids.idx"}, [folder] { read_tokens(folder + "/ids.bin", "megatron"); }};
  }
  Target raw_ids() const { return tokens("raw", "abcdefgh", "nanogpt"); }
};

// ---- The loop ----

int64_t number_from(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}

struct Counts {
  int64_t accepted = 0, refused = 0;
};

void run_case(const Target& target,
              const std::vector<std::string>& good,
              int64_t n,
              Counts& counts) {
  Random random(static_cast<uint64_t>(n));
  const size_t which = random() % target.files.size();
  const std::string path = target.folder + "/" + target.files[which];
  const std::string bad = mutate(target.files[which], good[which], random);
  spill(path, bad);
  size_t bytes = bad.size();
  for (const std::string& file : good) bytes += file.size();
  const size_t before = live;
  peak = before;
  try {
    target.read();
    ++counts.accepted;
  } catch (const Error& e) {
    ++counts.refused;
    if (std::string(e.what()).find(target.folder) == std::string::npos)
      ADD_FAILURE() << "case " << n << ": the message names no file: " << e.what();
  } catch (const std::exception& e) {
    ADD_FAILURE() << "case " << n << " of " << path << ": " << e.what();
  }
  const size_t taken = peak - before;
  EXPECT_LE(taken, kForItself + kPerByte * bytes) << "case " << n << " of " << path;
  spill(path, good[which]);
}

void fuzz(const Target& target) {
  std::vector<std::string> good;
  for (const std::string& file : target.files) good.push_back(slurp(target.folder + "/" + file));
  ASSERT_NO_THROW(target.read()) << "undamaged files must be accepted";
  constexpr int64_t kTargets = 9;
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::milliseconds(1000 * number_from("YOKE_FUZZ_SECONDS", 5) / kTargets);
  Counts counts;
  int64_t n = number_from("YOKE_FUZZ_FIRST", 0);
  for (; std::chrono::steady_clock::now() < end && !::testing::Test::HasFailure(); ++n)
    run_case(target, good, n, counts);
  std::printf("%s: %lld accepted, %lld refused\n",
              target.folder.c_str(),
              static_cast<long long>(counts.accepted),
              static_cast<long long>(counts.refused));
  EXPECT_GT(counts.accepted, 0);
  EXPECT_GT(counts.refused, 0);
}

TEST(Fuzz, OneSafetensorsFile) {
  const Corpus corpus;
  fuzz(corpus.whole());
}
TEST(Fuzz, AnIndexAndItsShards) {
  const Corpus corpus;
  fuzz(corpus.sharded());
}
TEST(Fuzz, AConfigOfHuggingFace) {
  const Corpus corpus;
  fuzz(corpus.config());
}
TEST(Fuzz, ACheckpoint) {
  const Corpus corpus;
  fuzz(corpus.checkpoint());
}
TEST(Fuzz, AFileOfTokens) {
  const Corpus corpus;
  fuzz(corpus.yoke_ids());
}
TEST(Fuzz, AFileOfTokensOfLlmc) {
  const Corpus corpus;
  fuzz(corpus.llmc_ids());
}
TEST(Fuzz, AFileOfRawTokens) {
  const Corpus corpus;
  fuzz(corpus.raw_ids());
}
TEST(Fuzz, AnIndexedDataset) {
  const Corpus corpus;
  fuzz(corpus.indexed_ids());
}
TEST(Fuzz, ArraysOfNumpy) {
  const Corpus corpus;
  fuzz(corpus.npy_ids());
}

}  // namespace
}  // namespace yoke
