// The signature that identifies a collective, and the history of a communicator: the signatures of
// all collectives that it has issued.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace yoke {

enum class Collective : int32_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kAllToAll,
  kBarrier,
  kSend,
  kRecv,
};

// Plain data of fixed size, exchanged between ranks byte for byte.
struct Signature {
  Collective op = Collective::kBarrier;
  int32_t dtype = -1;     // at::ScalarType; -1 = no tensor
  int64_t count = 0;      // elements of the larger side; -1 = may differ between ranks
  int64_t detail = 0;     // c10d::ReduceOp of a reduction, root of a broadcast, otherwise 0
  uint64_t sequence = 0;  // number within the communicator, from 1; 0 = not numbered

  bool operator==(const Signature&) const = default;
};

// "all_reduce (sum) of 1024 x fp32 as collective 12"
std::string describe(const Signature& signature);
const char* name_of(Collective op);     // "all_reduce"
std::string dtype_text(int32_t dtype);  // name of an at::ScalarType: "fp32"

// Compares the signatures of the ranks of one communicator for the same collective. Returns a
// sentence about the first two that differ, or nothing. ranks[i] is the global rank of
// signatures[i].
std::optional<std::string> mismatch(const std::vector<Signature>& signatures,
                                    const std::vector<int32_t>& ranks);

// The collectives of one communicator: a hash over all of them, and the latest ones in full. One
// thread at a time, except for latest(), which any thread may call.
class History {
 public:
  static constexpr uint64_t kKept = 256;

  History() = default;
  History(const History& other);

  // Records the collective and sets the sequence number of the signature.
  void add(Signature& signature);
  uint64_t count() const { return count_; }
  uint64_t hash() const { return hash_; }
  // Returns the latest signatures, at most kKept, oldest first.
  std::vector<Signature> latest() const;

 private:
  uint64_t count_ = 0;
  uint64_t hash_ = 0;
  mutable std::mutex mutex_;     // of the ring
  std::vector<Signature> ring_;  // signature n is at index (n - 1) % kKept
};

// Returns a hash of both values. Equal inputs give equal outputs on every machine.
uint64_t mix_hash(uint64_t hash, uint64_t value);

}  // namespace yoke
