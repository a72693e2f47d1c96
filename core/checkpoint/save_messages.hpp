// Defines the messages that the ranks of one save exchange.
//
//   1  every rank -> rank 0   RankTensors   the pieces that this rank is going to write
//   2  rank 0 -> every rank   FilePlan      the temporary folder and the place of each tensor
//   3  every rank -> rank 0   RankTensors   the pieces that this rank has written, with checksums
//   4  rank 0 -> every rank   Committed     the path of the new checkpoint
//
// A message is one JSON object in UTF-8. Its members have the names of the fields below:
//
//   RankTensors   {"tensors": [{"name", "kind", "dtype", "shape",
//                               "pieces": [{"begin", "count", "run", "stride", "crc"}]}]}
//   FilePlan      {"folder", "tensors": [{"name", "kind", "file", "offset"}]}
//   Committed     {"path"}
//   failure       {"error": {"code", "text", "rank"}}
//
// A rank that fails sends a failure in place of its message, because the other ranks wait for one.
// The ranks of a run are processes of one version of Yoke, so this format may change at any time.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "core/checkpoint/layout.hpp"
#include "yoke/error.hpp"

namespace yoke {

// RankTensors is message 1 and message 3. The fields `file` and `offset` of a tensor and `rank`
// of a piece are not sent. The checksums of a piece are empty in message 1.
struct RankTensors {
  std::vector<StoredTensor> tensors;
};

// TensorPlace says where one tensor is stored.
struct TensorPlace {
  std::string name, kind;
  std::string file;     // name inside the folder of the plan
  uint64_t offset = 0;  // offset of the tensor's first byte in the file
};

// FilePlan is message 2.
struct FilePlan {
  std::string folder;
  std::vector<TensorPlace> tensors;
};

// Committed is message 4.
struct Committed {
  std::string path;
};

// These functions encode a message. Bytes that are not UTF-8 are replaced, so encoding a strange
// name never throws.
std::string to_text(const RankTensors& message);
std::string to_text(const FilePlan& message);
std::string to_text(const Committed& message);
std::string failure_text(int32_t code, const std::string& text, int32_t rank);

// Runs f and returns its result, one of the messages above, as text. If f throws, returns the
// failure as the message: the other ranks wait for a message, so an exception must not escape
// before one is sent. rank: that of the caller.
template <class F>
std::string message_of(int32_t rank, F&& f) {
  try {
    return to_text(f());
  } catch (const Error& e) {
    return failure_text(e.code(), e.what(), e.rank() < 0 ? rank : e.rank());
  } catch (const std::bad_alloc&) {
    return failure_text(YOKE_RESOURCE_EXHAUSTED, "out of memory", rank);
  } catch (const std::exception& e) {
    return failure_text(YOKE_INTERNAL, e.what(), rank);
  }
}

// These functions decode a message. If the text is a failure, they throw it as an Error with its
// code, its text and the rank that failed first.
RankTensors rank_tensors_from(const std::string& text);
std::vector<RankTensors> rank_tensors_from(const std::vector<std::string>& texts);
FilePlan file_plan_from(const std::string& text);
Committed committed_from(const std::string& text);

}  // namespace yoke
