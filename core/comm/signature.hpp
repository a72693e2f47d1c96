// What identifies a collective, and the record of those that one communicator has issued.
#pragma once

#include <cstdint>
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

// Plain data of fixed size: it is exchanged between ranks byte for byte.
struct Signature {
  Collective op = Collective::kBarrier;
  int32_t dtype = -1;     // at::ScalarType; -1 = no tensor
  int64_t count = 0;      // elements of the larger side; -1 = may differ between ranks
  int64_t detail = 0;     // reductions: c10d::ReduceOp; broadcast: root; else 0
  uint64_t sequence = 0;  // 1 = the first collective of this communicator

  bool operator==(const Signature&) const = default;
};

// "all_reduce (sum) of 1024 x fp32 as collective 12".
std::string describe(const Signature& signature);
const char* name_of(Collective op);
std::string dtype_text(int32_t dtype);  // of an at::ScalarType: "fp32"

// Compares what the ranks of one communicator bring to the same collective. Returns the two that
// differ as text, or nothing. ranks[i] is the global rank that brought signatures[i].
std::optional<std::string> mismatch(const std::vector<Signature>& signatures,
                                    const std::vector<int32_t>& ranks);

// The collectives of one communicator, as a running hash and the latest few in full.
class History {
 public:
  static constexpr uint64_t kKept = 256;

  // Gives the signature its sequence number.
  void add(Signature& signature);
  uint64_t count() const { return count_; }
  uint64_t hash() const { return hash_; }
  // Signatures that are still kept, oldest first.
  std::vector<Signature> latest() const;

 private:
  uint64_t count_ = 0;
  uint64_t hash_ = 0;
  std::vector<Signature> ring_;
};

// A 64-bit mixer; equal inputs give equal outputs on every machine.
uint64_t mix_hash(uint64_t hash, uint64_t value);

}  // namespace yoke
