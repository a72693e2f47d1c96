// An operation writes each rank's output from the inputs of all ranks, in rank order. So a result
// has the same bits on every rank and in every run, whichever rank arrives last.
#include "core/comm/contribution.hpp"

#include <algorithm>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "core/comm/local_reduce.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

ReduceBuffers buffers_of(const Signature& s) {
  return {.sources = {},
          .targets = {},
          .dtype = static_cast<at::ScalarType>(s.dtype),
          .op = static_cast<c10d::ReduceOp::RedOpType>(s.detail)};
}

// From this size on, in bytes, a copy does not stay in the caches until it is read.
constexpr int64_t kPastCaches = 4 << 20;

// Copies without reading the old contents of the target into the caches, which an ordinary store
// does. For large copies that takes two thirds of the time.
void copy_past_caches(char* to, const char* from, size_t bytes) {
#if defined(__SSE2__)
  constexpr size_t kLine = 64;
  const size_t head = std::min(bytes, (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine);
  std::memcpy(to, from, head);
  size_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    for (size_t k = at; k < at + kLine; k += sizeof(__m128i)) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + k),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + k)));
    }
  }
  _mm_sfence();  // other threads must not see a flag before this data
  std::memcpy(to + at, from + at, bytes - at);
#else
  std::memcpy(to, from, bytes);
#endif
}

// Only part `to` of every input is read.
void receive_reduced_part(const std::vector<Contribution>& all, size_t to) {
  const int64_t count = all[to].signature.count / static_cast<int64_t>(all.size());
  ReduceBuffers buffers = buffers_of(all[to].signature);
  for (const Contribution& from : all)
    buffers.sources.push_back(from.in + static_cast<int64_t>(to) * count * all[to].item_size);
  buffers.targets.push_back(all[to].out);
  reduce(buffers, 0, count);
}

void receive_all_inputs(const std::vector<Contribution>& all, size_t to) {
  const int64_t share = all[to].bytes() / static_cast<int64_t>(all.size());
  for (size_t from = 0; from < all.size(); ++from) {
    char* out = all[to].outs.empty() ? all[to].out + static_cast<int64_t>(from) * share
                                     : all[to].outs[from];
    copy_bytes(out, all[from].in, share);
  }
}

void receive_parts(const std::vector<Contribution>& all, size_t to) {
  for (size_t from = 0; from < all.size(); ++from) {
    const auto& in = all[from].in_offsets;
    copy_bytes(all[to].out + all[to].out_offsets[from], all[from].in + in[to], in[to + 1] - in[to]);
  }
}

}  // namespace

// An all_to_all has no count; its input offsets end with the total.
int64_t Contribution::bytes() const {
  return in_offsets.empty() ? signature.count * item_size : in_offsets.back();
}

void Contribution::finish() {
  const at::NoGradGuard no_grad;
  for (const auto& [to, from] : staged) to.copy_(from);
  staged.clear();
  keep.clear();
}

void copy_bytes(char* to, const char* from, int64_t bytes) {
  if (to == from || bytes <= 0) return;
  if (bytes >= kPastCaches) {
    copy_past_caches(to, from, static_cast<size_t>(bytes));
  } else {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
}

std::string difference(const std::vector<Contribution>& all, const std::vector<int32_t>& ranks) {
  std::vector<Signature> signatures;
  for (const Contribution& one : all) signatures.push_back(one.signature);
  if (auto text = mismatch(signatures, ranks)) return *text;
  if (all[0].signature.op != Collective::kAllToAll) return "";
  // The signatures of an all_to_all carry no sizes, because the sizes of the parts may differ.
  for (size_t from = 0; from < all.size(); ++from) {
    for (size_t to = 0; to < all.size(); ++to) {
      const auto& in = all[from].in_offsets;
      const auto& out = all[to].out_offsets;
      const int64_t sent = in[to + 1] - in[to], expected = out[from + 1] - out[from];
      if (sent == expected) continue;
      return concat("all_to_all: rank ",
                    ranks[from],
                    " sends ",
                    sent,
                    " bytes to rank ",
                    ranks[to],
                    ", which expects ",
                    expected);
    }
  }
  return "";
}

void receive(const std::vector<Contribution>& all, size_t to) {
  const Signature& s = all[to].signature;
  switch (s.op) {
    case Collective::kAllReduce:
      return all_reduce_span(all, {all[to].out}, 0, s.count);
    case Collective::kReduceScatter:
      return receive_reduced_part(all, to);
    case Collective::kAllGather:
      return receive_all_inputs(all, to);
    case Collective::kBroadcast:
      return copy_bytes(all[to].out, all[static_cast<size_t>(s.detail)].in, all[to].bytes());
    case Collective::kAllToAll:
      return receive_parts(all, to);
    case Collective::kBarrier:
    case Collective::kSend:
    case Collective::kRecv:
      return;
  }
}

void all_reduce_span(const std::vector<Contribution>& all,
                     const std::vector<void*>& targets,
                     int64_t begin,
                     int64_t count) {
  ReduceBuffers buffers = buffers_of(all[0].signature);
  for (const Contribution& from : all) buffers.sources.push_back(from.in);
  buffers.targets = targets;
  reduce(buffers, begin, count);
}

}  // namespace yoke
