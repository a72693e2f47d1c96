// The signature that identifies a collective or a message, and the history of a communicator or of
// a link between two of its ranks: the signatures of all that has been issued on it.
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
  int32_t dtype = -1;  // at::ScalarType; -1 = no tensor
  int64_t count = 0;   // elements of the larger side; -1 = may differ between ranks
  // c10d::ReduceOp of a reduction, root of a broadcast, tag of a message, otherwise 0
  int64_t detail = 0;
  uint64_t sequence = 0;  // number within the history, from 1; 0 = not numbered

  bool operator==(const Signature&) const = default;
};

// The two ranks of the messages in one direction, as ranks of the world.
struct Link {
  int32_t from = -1, to = -1;  // -1 = no link
};

bool is_message(const Signature& signature);  // send or recv
// Returns true if two ranks may issue these together: equal collectives, or the two sides of a
// message.
bool match(const Signature& a, const Signature& b);
// "all_reduce (sum) of 1024 x fp32 as collective 12"
std::string describe(const Signature& signature);
const char* name_of(Collective op);     // "all_reduce"
std::string dtype_text(int32_t dtype);  // name of an at::ScalarType: "fp32"

// Compares the signatures of ranks that do the same collective or message. Returns a sentence about
// the first two that do not match, or nothing. ranks[i] is the global rank of signatures[i].
std::optional<std::string> mismatch(const std::vector<Signature>& signatures,
                                    const std::vector<int32_t>& ranks);

// The collectives of one communicator, or the messages of one link: a hash over all of them, and
// the latest ones in full. The two sides of a message have the same hash. One thread at a time,
// except for latest(), which any thread may call.
class History {
 public:
  static constexpr uint64_t kKept = 256;

  History() = default;
  History(const History& other);

  // Records the collective or message and sets the sequence number of the signature.
  void add(Signature& signature);
  uint64_t count() const { return count_; }
  uint64_t hash() const { return hash_; }
  // Returns the latest signatures, at most kKept, oldest first.
  std::vector<Signature> latest() const;

 private:
  uint64_t count_ = 0;
  uint64_t hash_ = 0;
  mutable std::mutex mutex_;     // guards the ring
  std::vector<Signature> ring_;  // signature n is at index (n - 1) % kKept
};

// Returns a hash of both values. Equal inputs give equal outputs on every machine.
uint64_t mix_hash(uint64_t hash, uint64_t value);

}  // namespace yoke
