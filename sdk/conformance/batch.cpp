#include "sdk/conformance/batch.hpp"

#include <algorithm>

#include "sdk/conformance/test_bed.hpp"
#include "yoke/tensor.hpp"

namespace yoke::conformance {
namespace {

constexpr int64_t kIgnored = -100;
constexpr const char* kRoles[] = {"tokens", "targets", "positions"};
enum { kTokens, kTargets, kPositions };

int64_t token(int64_t sample, int64_t position) {
  uint64_t x = static_cast<uint64_t>(sample * ModelSpec::kSeqLen + position) + 1;
  x *= 0x9e3779b97f4a7c15u;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9u;
  return static_cast<int64_t>((x >> 33) % ModelSpec::kVocab);
}

// Returns the number of targets of a sample that are not ignored.
int64_t counted(const Split& split, int64_t sample) {
  if (split.targets == Targets::kAll) return ModelSpec::kSeqLen;
  const int64_t place = sample % split.global_batch;
  const bool first_half = place < split.global_batch / 2;
  if (split.targets == Targets::kFirstHalf) return first_half ? ModelSpec::kSeqLen : 0;
  return first_half ? ModelSpec::kSeqLen - place % 3 : 1 + place % 3;
}

}  // namespace

Batch::Batch(const Split& s, int64_t step) {
  const int64_t first = (step - 1) * s.global_batch;
  const int64_t per_round = int64_t{s.data_ranks} * s.micro_batch;
  for (int64_t round = 0; round * per_round < s.global_batch; ++round) {
    auto m = std::make_unique<Micro>();
    double weight = 0;
    for (int64_t i = 0; i < s.micro_batch; ++i) {
      const int64_t sample = first + round * per_round + s.data_rank * s.micro_batch + i;
      weight += static_cast<double>(counted(s, sample));
      for (int64_t p = 0; p < ModelSpec::kSeqLen; ++p) {
        m->values[kTokens].push_back(token(sample, p));
        m->values[kTargets].push_back(p < counted(s, sample) ? token(sample, p + 1) : kIgnored);
        m->values[kPositions].push_back(p);
      }
    }
    m->shape[0] = s.micro_batch;
    m->shape[1] = m->strides[0] = ModelSpec::kSeqLen;
    m->strides[1] = 1;
    for (int i = 0; i < 3; ++i) {
      m->inputs[i].role = {kRoles[i], std::char_traits<char>::length(kRoles[i])};
      YokeTensor& t = m->inputs[i].tensor;
      t = {};
      t.data = m->values[i].data();
      t.device = {YOKE_DEVICE_CPU, 0};
      t.ndim = 2;
      t.dtype = data_type(YOKE_I64);
      t.shape = m->shape;
    }
    m->micro = micro_batch(m->inputs, 3, weight);
    pointers_.push_back(&m->micro);
    micros_.push_back(std::move(m));
  }
  batch_.header = YOKE_HEADER(YokeBatch, YOKE_ID_BATCH);
  batch_.micros = pointers_.data();
  batch_.num_micros = pointers_.size();
  for (int64_t i = 0; i < s.global_batch; ++i)
    batch_.token_weight += static_cast<double>(counted(s, first + i));
}

void Batch::cancel(size_t first, size_t second, int64_t factor) {
  for (const int input : {kTokens, kTargets, kPositions})
    std::copy(micros_[first]->values[input].begin(),
              micros_[first]->values[input].end(),
              micros_[second]->values[input].begin());
  for (const auto& micro : micros_) micro->values[kPositions][0] = 1;
  micros_[first]->values[kPositions][0] = factor;
  micros_[second]->values[kPositions][0] = -factor;
}

// Writes ids that no vocabulary contains. A backend that still reads them fails or computes a
// different result.
Batch::~Batch() {
  for (auto& m : micros_) {
    for (auto& values : m->values) std::fill(values.begin(), values.end(), int64_t{1} << 40);
  }
}

void Batch::use_offsets() {
  for (auto& m : micros_) {
    for (int i = 0; i < 3; ++i) {
      constexpr int64_t kOffset = 3;
      m->values[i].insert(m->values[i].begin(), kOffset, int64_t{1} << 40);
      YokeTensor& t = m->inputs[i].tensor;
      t.data = m->values[i].data();
      t.byte_offset = kOffset * sizeof(int64_t);
      t.strides = m->strides;
    }
  }
}

}  // namespace yoke::conformance
