// The messages on a control connection, and how they are framed.
//
// A frame is a length of 4 bytes, a type of 1 byte, and fields, each a length of 4 bytes and its
// bytes. Lengths are little-endian; the first one counts all bytes after it. Numbers are decimal
// texts in fields.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace yoke {

// The types of messages with their fields. "M" is sent by a member, "H" by the hub.
enum class MessageType : uint8_t {
  // ---- The handshake (secret.hpp) ----
  kHello = 1,  // M: version of the protocol, nonce of the member
  kChallenge,  // H: nonce of the hub, proof of the hub ("" = this run has no secret)
  kProof,      // M: proof of the member ("" = no secret)
  // ---- Joining ----
  kJoin,     // M: job, rank, world size, host, process, address, introduction
  kDecline,  // M: job, rank, world size, host, process, why this rank cannot take part
  kWelcome,  // H: for each rank: host, process, address
  kRefused,  // H: why the run does not start
  kRetry,    // H: why the member must come again later
  // ---- Presence ----
  kBeat,     // M: step, collectives so far, microseconds computed so far, pp rank. H: no fields
  kFailure,  // M: kind of failure (Member::Failure as a number); the error; the exit code
  kLost,     // H: the first cause of the failure; "1" if the run hangs, else "0"; the exit code of
             // the rank that failed, "" if it is lost
  kGoodbye,  // M: this member ends normally
  // ---- Notes ----
  kPost,    // M: request, key, value
  kNote,    // H: number of the note, key, value
  kAck,     // M: number of the note
  kPosted,  // H: request
  // ---- Store ----
  kSet,      // M: request, key, value
  kGet,      // M: request, key. Answered when the key exists
  kCheck,    // M: request, keys. Answered with "1" if all exist, else "0"
  kAdd,      // M: request, key, number. Answered with the sum
  kReplace,  // M: request, key, expected, desired. Answered with the value that the key has now
  kAppend,   // M: request, key, value
  kDelete,   // M: request, key. Answered with "1" if it existed, else "0"
  kCount,    // M: request. Answered with the number of keys
  kAnswer,   // H: request, value
  // ---- Between the launchers of an elastic run (machines_state.hpp). They join and decline as
  // ranks do, with the machine as the rank, the largest number of machines as the world size, and
  // the attempt in which the ranks of the machine run, "" = none, as the address. ----
  kReady,    // M: this machine waits for the next attempt
  kPlan,     // H: number of machines. To machine 0, which makes the plan and answers kPlanned
  kPlanned,  // M: number of machines
  kStart,    // H: name of the attempt, index of this machine, number of machines, their names
  kStop,     // H: why the ranks are to save and end, so that another attempt begins
  kEnded,    // M: exit code of the ranks
  kVerdict,  // H: what the end of the ranks counts as (AttemptEnd as a number)
  kLeave,    // M: exit code, why this machine takes no further part
  kNews,     // H: a sentence for the user
  kEnd,      // H: exit code, why the run has ended
};
inline constexpr auto kLastMessageType = MessageType::kEnd;

struct Message {
  MessageType type;
  std::vector<std::string> fields;
};

// The version of the protocol, which a member sends first. Change it whenever a message changes.
inline constexpr const char* kControlProtocol = "yoke control 3";

// Returns the frame of a message.
std::string encode(const Message& message);

// Cuts a stream of bytes into messages. `limit` is the largest size of a frame that is accepted;
// it protects against a peer that announces a size and never sends it.
class FrameReader {
 public:
  explicit FrameReader(size_t limit) : limit_(limit) {}
  void set_limit(size_t limit) { limit_ = limit; }
  void append(const char* data, size_t size) { bytes_.append(data, size); }
  // Returns the next complete message, if there is one. Throws Error(DATA_LOSS) if the bytes are no
  // frame, or if the frame is larger than the limit.
  std::optional<Message> next();

 private:
  size_t limit_;
  std::string bytes_;
};

// Returns the number that a field holds, or -1 if it holds no number, or one that is negative.
int64_t number_in(const std::string& field);

}  // namespace yoke
