// State in files against the same state in memory: random places, passes and copies.
#include "plugins/deepspeed_stub/offload/state_arrays.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <random>

#include "tests/support/temp_folder.hpp"

namespace yoke::deepspeed_stub::testing {
namespace {

using yoke::testing::TempFolder;

struct Files {
  TempFolder folder;
  Device cpu{{YOKE_DEVICE_CPU, 0}, nullptr};
  std::unique_ptr<FileIo> io = open_threads({.block_size = 64, .queue_depth = 4, .threads = 2});
  StatePlace place(int64_t resident) const {
    return {.place = Place::kFile, .resident = resident, .folder = folder.path(), .io = io.get()};
  }
};

using Oracle = std::vector<std::vector<float>>;

// Adds `x` to every element of every array in one pass, in ranges of at most `most` elements.
void add(StateArrays& state, Oracle& oracle, float x, int64_t most) {
  for (int64_t at = 0, to = 0; at < state.count(); at = to) {
    to = state.cut(at, std::min(at + most, state.count()));
    ASSERT_GT(to, at);
    for (size_t a = 0; a < oracle.size(); ++a) {
      const Span window = state.window(static_cast<int>(a), at, to - at);
      for (int64_t i = 0; i < window.count; ++i) {
        *static_cast<float*>(window.at(i)) += x * static_cast<float>(a + 1);
        oracle[a][at + i] += x * static_cast<float>(a + 1);
      }
    }
  }
  state.finish();
}

void expect_equal(StateArrays& state, const Oracle& oracle, int64_t begin, int64_t count) {
  for (size_t a = 0; a < oracle.size(); ++a) {
    std::vector<float> values(count);
    state.read(static_cast<int>(a), begin, {values.data(), count, YOKE_F32});
    EXPECT_TRUE(std::equal(values.begin(), values.end(), oracle[a].begin() + begin)) << a;
  }
}

TEST(StateArrays, EqualArraysInMemory) {
  const Files files;
  std::mt19937 random(3);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  for (int round = 0; round < 60; ++round) {
    const int64_t count = 1 + below(50);
    const int arrays = 1 + static_cast<int>(below(3));
    StatePlace place = files.place(below(3) * below(count));
    place.tile = 1 + below(9);
    place.slots = 1 + below(4);
    place.read_ahead = below(2) == 1;
    place.write_behind = below(2) == 1;
    SCOPED_TRACE(::testing::Message() << count << " " << arrays << " " << place.resident << " "
                                      << place.tile << " " << place.slots);
    StateArrays state(files.cpu, place, arrays, count, YOKE_F32);
    Oracle oracle(arrays, std::vector<float>(count));
    expect_equal(state, oracle, 0, count);
    for (int step = 1; step < 5; ++step) {
      if (below(2) == 1) state.prefetch();
      add(state, oracle, static_cast<float>(step), 1 + below(20));
      const int64_t begin = below(count), n = 1 + below(count - begin);
      expect_equal(state, oracle, begin, n);
      std::vector<float> written(n, static_cast<float>(100 * step));
      state.write(0, begin, {written.data(), n, YOKE_F32});
      std::copy(written.begin(), written.end(), oracle[0].begin() + begin);
    }
    expect_equal(state, oracle, 0, count);
  }
}

TEST(StateArrays, WhatIsPrefetchedIsNotStale) {
  const Files files;
  StatePlace place = files.place(0);
  place.tile = 2;
  place.slots = 3;
  place.read_ahead = true;
  StateArrays state(files.cpu, place, 1, 8, YOKE_F32);
  state.prefetch();
  Oracle oracle{std::vector<float>(8, 5)};
  state.write(0, 0, {oracle[0].data(), 8, YOKE_F32});
  add(state, oracle, 1, 8);
  expect_equal(state, oracle, 0, 8);
}

// Of arrays whose elements are written before they are read, tiles are not read first.
TEST(StateArrays, OverwrittenTilesAreNotRead) {
  const Files files;
  StatePlace place = files.place(0);
  place.tile = 4;
  place.overwritten = true;
  StateArrays state(files.cpu, place, 1, 8, YOKE_F32);
  for (int64_t at = 0; at < 8; at += 4) {
    float* const values = static_cast<float*>(state.window(0, at, 4).data);
    for (int i = 0; i < 4; ++i) values[i] = static_cast<float>(at + i);
  }
  state.finish();
  expect_equal(state, {{0, 1, 2, 3, 4, 5, 6, 7}}, 0, 8);
}

// ---- Memory ----

// Returns the resident memory of this process that is not of a mapped file, in bytes.
int64_t resident_bytes() {
  std::ifstream in("/proc/self/status");
  int64_t kilobytes = 0;
  for (std::string word; in >> word;) {
    if (word == "RssAnon:") in >> kilobytes;
  }
  return kilobytes * 1024;
}

int64_t grown_by(const Files& files, const StatePlace& place) {
  constexpr int64_t kElements = 1 << 24;
  const int64_t before = resident_bytes();
  StateArrays state(files.cpu, place, 2, kElements, YOKE_F32);
  for (int64_t at = 0, to = 0; at < kElements; at = to) {
    to = state.cut(at, kElements);
    for (const int array : {0, 1}) {
      const Span window = state.window(array, at, to - at);
      std::fill_n(static_cast<float*>(window.data), window.count, 1.0f);
    }
  }
  state.finish();
  const int64_t grown = resident_bytes() - before;
  EXPECT_NEAR(static_cast<double>(grown), static_cast<double>(state.bytes()), 1 << 20);
  return grown;
}

// 2 x 2^24 elements of 4 bytes are 128 MiB; the default buffers, 2 x 2 arrays of 2^18, are 4 MiB.
TEST(StateArrays, InAFileTheyTakeTheirBytesLess) {
  const Files files;
  StatePlace in_file = files.place(0);
  in_file.slots = 2;
  constexpr double kState = 1 << 27;
  const auto saved = static_cast<double>(grown_by(files, {}) - grown_by(files, in_file));
  EXPECT_NEAR(saved, kState, 0.05 * kState);
}

}  // namespace
}  // namespace yoke::deepspeed_stub::testing
