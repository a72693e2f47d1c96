// Two ranks that issue different collectives on one communicator hang, or exchange the wrong bytes
// without any error. Signatures turn the difference into a message. A signature has only the values
// that all ranks must agree on, so any inequality is a mistake, whatever the operation.
//
// A history keeps a hash over all collectives, so two ranks can compare histories of any length in
// 16 bytes. To name the first difference it keeps the latest signatures in full, in a ring: a list
// of all of them would grow with the run.
#include "core/comm/signature.hpp"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "core/base/mix.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

std::string reduce_text(int64_t op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
      return "sum";
    case c10d::ReduceOp::AVG:
      return "average";
    case c10d::ReduceOp::MAX:
      return "max";
    case c10d::ReduceOp::MIN:
      return "min";
    default:
      return concat("reduce op ", op);
  }
}

std::string detail_text(const Signature& s) {
  switch (s.op) {
    case Collective::kAllReduce:
    case Collective::kReduceScatter:
      return concat(" (", reduce_text(s.detail), ")");
    case Collective::kBroadcast:
      return concat(" (root ", s.detail, ")");
    case Collective::kSend:
    case Collective::kRecv:
      return concat(" (tag ", s.detail, ")");
    default:
      return "";
  }
}

}  // namespace

std::string dtype_text(int32_t dtype) {
  switch (static_cast<at::ScalarType>(dtype)) {
    case at::kDouble:
      return "fp64";
    case at::kFloat:
      return "fp32";
    case at::kBFloat16:
      return "bf16";
    case at::kHalf:
      return "fp16";
    case at::kLong:
      return "int64";
    case at::kInt:
      return "int32";
    case at::kByte:
      return "uint8";
    default:
      return c10::toString(static_cast<at::ScalarType>(dtype));
  }
}

const char* name_of(Collective op) {
  switch (op) {
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kAllToAll:
      return "all_to_all";
    case Collective::kBarrier:
      return "barrier";
    case Collective::kSend:
      return "send";
    case Collective::kRecv:
      return "recv";
  }
  return "unknown operation";
}

bool is_message(const Signature& s) {
  return s.op == Collective::kSend || s.op == Collective::kRecv;
}

bool match(const Signature& a, const Signature& b) {
  Signature other = b;
  if (is_message(a) && is_message(b)) other.op = a.op;
  return a == other;
}

std::string describe(const Signature& s) {
  std::string text = name_of(s.op) + detail_text(s);
  if (s.count >= 0 && s.dtype >= 0) {
    text += concat(" of ", s.count, " x ", dtype_text(s.dtype));
  }
  if (s.sequence > 0)
    text += concat(is_message(s) ? " as message " : " as collective ", s.sequence);
  return text;
}

std::optional<std::string> mismatch(const std::vector<Signature>& signatures,
                                    const std::vector<int32_t>& ranks) {
  // Rank 0 of the communicator is the reference. If it is the one that is wrong, the sentence still
  // names both sides.
  for (size_t i = 1; i < signatures.size(); ++i) {
    if (match(signatures[i], signatures[0])) continue;
    return concat("rank ",
                  ranks[0],
                  " issues ",
                  describe(signatures[0]),
                  ", but rank ",
                  ranks[i],
                  " issues ",
                  describe(signatures[i]));
  }
  return std::nullopt;
}

uint64_t mix_hash(uint64_t hash, uint64_t value) {
  // mix64(0) is 0, so without the constant a hash of zeros would not depend on their number.
  return mix64((hash ^ value) + 0x9E3779B97F4A7C15ull);
}

History::History(const History& other)
    : count_(other.count_), hash_(other.hash_), ring_([&] {
        const std::lock_guard lock(other.mutex_);
        return other.ring_;
      }()) {}

void History::add(Signature& s) {
  const std::lock_guard lock(mutex_);
  // The number is not hashed: the order in which values are mixed in implies it.
  s.sequence = ++count_;
  const Collective op = is_message(s) ? Collective::kSend : s.op;
  // Each of the three fields has bits of its own. A dtype of -1 sets the whole upper half, which no
  // other dtype does.
  const auto kind = static_cast<uint64_t>(op) << 48 ^ static_cast<uint64_t>(s.dtype) << 32;
  hash_ = mix_hash(mix_hash(hash_, kind ^ static_cast<uint64_t>(s.detail)),
                   static_cast<uint64_t>(s.count));
  if (ring_.size() < kKept) {
    ring_.push_back(s);
  } else {
    ring_[(count_ - 1) % kKept] = s;
  }
}

std::vector<Signature> History::latest() const {
  const std::lock_guard lock(mutex_);
  std::vector<Signature> all = ring_;
  // A full ring begins with its oldest entry at the index that the next one will replace.
  if (count_ > kKept) std::rotate(all.begin(), all.begin() + count_ % kKept, all.end());
  return all;
}

}  // namespace yoke
