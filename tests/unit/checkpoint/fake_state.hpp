// A fake training state without a model: tensors with known bytes, split over ranks arbitrarily,
// and ranks as threads that save and load it.
#pragma once

#include <barrier>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/strided_span.hpp"
#include "yoke/error.hpp"
#include "yoke/tensor.hpp"

namespace yoke {

struct FakeTensor {
  std::string name, kind;
  int32_t dtype = YOKE_F32;
  std::vector<int64_t> shape;
  std::vector<char> bytes;

  int64_t numel() const { return yoke::numel(shape.data(), static_cast<int32_t>(shape.size())); }
};

struct FakePiece {
  size_t tensor = 0;
  int64_t begin = 0, count = 0, replica = 0;
  int64_t run = count, stride = 0;

  StridedSpan span() const { return StridedSpan{begin, count, run, stride}.joined(); }
};

using FakeState = std::vector<FakeTensor>;
using RankPieces = std::vector<std::vector<FakePiece>>;  // pieces of each rank

inline FakeTensor fake_tensor(const std::string& name,
                              const std::string& kind,
                              std::vector<int64_t> shape,
                              std::mt19937_64& random,
                              int32_t dtype = YOKE_F32) {
  FakeTensor t{name, kind, dtype, std::move(shape), {}};
  t.bytes.resize(static_cast<size_t>(t.numel() * item_size(dtype)));
  for (char& c : t.bytes) c = static_cast<char>(random());
  return t;
}

// Returns parameters of random shapes, each with its two moments, and the step of the optimizer.
inline FakeState fake_state(uint64_t seed, int num_params, int64_t max_dim = 12) {
  std::mt19937_64 random(seed);
  FakeState state;
  for (int i = 0; i < num_params; ++i) {
    const std::string name = "model.layers." + std::to_string(i) + ".weight";
    std::vector<int64_t> shape;
    for (uint64_t d = 0; d < 1 + random() % 3; ++d)
      shape.push_back(1 + static_cast<int64_t>(random() % max_dim));
    for (const char* kind : {"param", "exp_avg", "exp_avg_sq"}) {
      state.push_back(fake_tensor(name, kind, shape, random));
    }
  }
  state.push_back(fake_tensor("optimizer", "step", {}, random, YOKE_I64));
  return state;
}

// Cuts [0, size) at random places and calls f(begin, count) for each part.
template <class F>
void cut_randomly(int64_t size, std::mt19937_64& random, F&& f) {
  for (int64_t begin = 0; begin < size;) {
    const int64_t count = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(size - begin));
    f(begin, count);
    begin += count;
  }
}

// Cuts a matrix with `columns` columns into strips of whole columns, and the elements of each strip
// into flat shards, as FSDP combined with tensor parallelism does. A shard may start in the middle
// of a row of its strip; the rest of that row is then a piece of its own.
inline std::vector<StridedSpan> random_strips(int64_t numel,
                                              int64_t columns,
                                              std::mt19937_64& random) {
  std::vector<StridedSpan> pieces;
  cut_randomly(columns, random, [&](int64_t column, int64_t width) {
    const StridedSpan strip{column, numel / columns * width, width, columns};
    cut_randomly(strip.count, random, [&](int64_t from, int64_t count) {
      const int64_t rest = std::min(count, (width - from % width) % width);
      if (rest > 0) pieces.push_back(StridedSpan::flat(strip.element(from), rest));
      if (count > rest)
        pieces.push_back(
            StridedSpan{strip.element(from + rest), count - rest, width, columns}.joined());
    });
  });
  return pieces;
}

inline int64_t random_divisor(int64_t numel, std::mt19937_64& random) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= numel; ++d) {
    if (numel % d == 0) divisors.push_back(d);
  }
  return divisors[random() % divisors.size()];
}

// Cuts every tensor at random places, half of them by columns, and assigns each piece to a random
// rank. Some ranks also receive copies with replica 1, which must not be saved.
inline RankPieces random_partition(const FakeState& state, int ranks, std::mt19937_64& random) {
  RankPieces pieces(ranks);
  for (size_t t = 0; t < state.size(); ++t) {
    const int64_t numel = state[t].numel();
    const int64_t columns = random() % 2 == 0 ? numel : random_divisor(numel, random);
    for (const StridedSpan& r : random_strips(numel, columns, random)) {
      pieces[random() % ranks].push_back({t, r.begin, r.count, 0, r.run, r.stride});
      if (random() % 4 == 0)
        pieces[random() % ranks].push_back({t, r.begin, r.count, 1, r.run, r.stride});
    }
    if (random() % 8 == 0) pieces[random() % ranks].push_back({t, 0, 0, 0});  // an empty shard
  }
  return pieces;
}

inline RankPieces whole_on_rank0(const FakeState& state, int ranks) {
  RankPieces pieces(ranks);
  for (size_t t = 0; t < state.size(); ++t) pieces[0].push_back({t, 0, state[t].numel(), 0});
  return pieces;
}

// Calls `visit` with the piece as a backend would. view_dtype is the dtype of the view; 0 = that of
// the tensor.
inline void visit_fake(const FakeTensor& t,
                       const FakePiece& p,
                       void* data,
                       const PieceVisitor& visit,
                       int32_t view_dtype = 0) {
  const int32_t dtype = view_dtype != 0 ? view_dtype : t.dtype;
  const FlatView flat(data, p.count, dtype);
  YokePiece piece{};
  piece.header = YOKE_HEADER(YokePiece, YOKE_ID_PIECE);
  piece.name = view(t.name);
  piece.kind = view(t.kind);
  piece.shape = t.shape.data();
  piece.ndim = static_cast<int32_t>(t.shape.size());
  piece.dtype = dtype;
  piece.begin = p.begin;
  piece.count = p.count;
  piece.run = p.run;
  piece.stride = p.stride;
  piece.replica = p.replica;
  piece.view = data != nullptr ? flat.get() : nullptr;
  visit(piece);
}

// Returns the elements of a piece in compact form, as in the memory of a backend. put_values() is
// the inverse.
inline std::vector<char> values_of(const FakeTensor& t, const FakePiece& p) {
  const auto item = static_cast<size_t>(item_size(t.dtype));
  const StridedSpan span = p.span();
  std::vector<char> values(static_cast<size_t>(p.count) * item);
  for (int64_t i = 0; i < p.count; ++i)
    std::memcpy(&values[i * item], &t.bytes[span.element(i) * item], item);
  return values;
}

inline void put_values(FakeTensor& t, const FakePiece& p, const std::vector<char>& values) {
  const auto item = static_cast<size_t>(item_size(t.dtype));
  const StridedSpan span = p.span();
  for (int64_t i = 0; i < p.count; ++i)
    std::memcpy(&t.bytes[span.element(i) * item], &values[i * item], item);
}

// Returns a walk over these pieces, like the checkpoint() of a backend on one rank.
inline PieceWalk walk_of(FakeState& state, const std::vector<FakePiece>& pieces) {
  return [&state, &pieces](int32_t op, const PieceVisitor& visit) {
    for (const FakePiece& p : pieces) {
      const FakeTensor& t = state[p.tensor];
      std::vector<char> values = values_of(t, p);
      visit_fake(t, p, op == YOKE_CHECKPOINT_DESCRIBE ? nullptr : values.data(), visit);
    }
  };
}

// Provides the SaveGroup of ranks that are threads.
class ThreadRanks {
 public:
  explicit ThreadRanks(int size) : barrier_(size), texts_(size) {}

  SaveGroup group(int rank) {
    SaveGroup group;
    group.rank = rank;
    group.world_size = static_cast<int32_t>(texts_.size());
    group.gather = [this, rank](const std::string& mine) {
      const std::vector<std::string> all = exchange(rank, mine);
      return rank == 0 ? all : std::vector<std::string>{};
    };
    group.from_rank0 = [this, rank](const std::string& mine) { return exchange(rank, mine)[0]; };
    return group;
  }

 private:
  std::vector<std::string> exchange(int rank, const std::string& mine) {
    texts_[rank] = mine;
    barrier_.arrive_and_wait();
    std::vector<std::string> all = texts_;
    barrier_.arrive_and_wait();
    return all;
  }
  std::barrier<> barrier_;
  std::vector<std::string> texts_;
};

// The result of a save on one rank: the path, or the error.
struct Outcome {
  std::string path, text;  // path of the checkpoint, text of the Error
  int32_t code = YOKE_OK;
  int32_t rank = -1;
};

using WalkOf = std::function<PieceWalk(int rank)>;

inline std::vector<Outcome> save_with(const SaveRequest& request, int ranks, const WalkOf& walk) {
  ThreadRanks threads(ranks);
  std::vector<Outcome> outcomes(ranks);
  std::vector<std::thread> running;
  for (int r = 0; r < ranks; ++r) {
    running.emplace_back([&, r] {
      try {
        outcomes[r].path = save_checkpoint(request, threads.group(r), walk(r));
      } catch (const Error& e) {
        outcomes[r] = {"", e.what(), e.code(), e.rank()};
      }
    });
  }
  for (std::thread& t : running) t.join();
  return outcomes;
}

inline std::vector<Outcome> save(const SaveRequest& request,
                                 FakeState& state,
                                 const RankPieces& pieces) {
  return save_with(request, static_cast<int>(pieces.size()), [&](int rank) {
    return walk_of(state, pieces[rank]);
  });
}

inline SaveRequest request_of(const std::string& folder, int64_t step) {
  SaveRequest request;
  request.folder = folder;
  request.info.step = step;
  request.info.next_sample = step * 16;
  request.info.config_digest = "digest-1";
  request.texts["config.json"] = "{\"model_type\": \"llama\"}\n";
  return request;
}

// Saves the state from one rank and returns the path. Throws if the save fails.
inline std::string save_whole(const std::string& folder, int64_t step, FakeState& state) {
  const Outcome outcome = save(request_of(folder, step), state, whole_on_rank0(state, 1))[0];
  if (outcome.code != YOKE_OK) throw Error(outcome.code, outcome.text);
  return outcome.path;
}

// Loads into a state of the same shapes that was filled with other bytes. Elements that no piece
// covers keep those bytes.
inline FakeState load(const std::string& path, const FakeState& like, const RankPieces& pieces) {
  FakeState loaded = like;
  for (FakeTensor& t : loaded) std::fill(t.bytes.begin(), t.bytes.end(), '\x5a');
  for (const auto& mine : pieces) {
    const CheckpointReader reader(path);
    for (const FakePiece& p : mine) {
      FakeTensor& t = loaded[p.tensor];
      std::vector<char> values(static_cast<size_t>(p.count * item_size(t.dtype)));
      visit_fake(t, p, values.data(), [&](const YokePiece& piece) { reader.visit(piece); });
      put_values(t, p, values);
    }
  }
  return loaded;
}

inline bool same_bytes(const FakeState& a, const FakeState& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].bytes != b[i].bytes) return false;
  }
  return true;
}

// Runs f and returns the Error that it throws; the code is YOKE_OK if it throws none.
template <class F>
Outcome error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return {"", e.what(), e.code(), e.rank()};
  }
  return {};
}

}  // namespace yoke
