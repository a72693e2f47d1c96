// manifest.json lists everything that a checkpoint consists of. A checkpoint without a valid
// manifest is not a checkpoint.
//
//   {"format":"yoke-checkpoint","version":1,
//   "step":100,"next_sample":1600,"finished":false,"world_size":2,
//   "config_digest":"...",
//   "fixed_digest":"...",                        unless an older release saved it
//   "data":"20000 bytes, sample 1a2b3c4d",       likewise
//   "eval_loss":3.25,                                                   only after an evaluation
//   "loss_scale":{"scale","good_steps","hysteresis","skipped"},         only of fp16 runs
//   "skipped":3,                                 skipped steps of other runs, if there were any
//   "contents":{"params","trainable","moments"},   numbers of tensors; moments: ["exp_avg", ...],
//                                                  or {"exp_avg":number, ...} without "trainable"
//   "files":[
//   {"file","bytes","head_bytes","head_crc32c"}, one line per file
//   "tensors":[
//   {"name","kind","dtype","shape","file","offset","pieces"}, one line per tensor
//   "self_crc32c":"89abcdef"}
//
// A piece is [begin, count, "checksums"], or [begin, count, "checksums", run, stride] if it is
// strided; see StridedSpan. Checksums are CRC32C in hexadecimal, eight digits for each chunk. The
// last line is the checksum of all bytes before it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/layout.hpp"

namespace yoke {

struct Manifest {
  CheckpointInfo info;                  // its path is not part of the text
  int32_t world_size = 1;               // number of ranks that saved
  std::optional<ContentCounts> counts;  // absent in manifests of an older Yoke
  std::vector<StoredFile> files;
  std::vector<StoredTensor> tensors;  // sorted by name and kind
};

std::string to_text(const Manifest& manifest);
// Parses a manifest and checks it: its checksum, the version, plain file names, known dtypes,
// sizes, and that the pieces tile each tensor. Throws Error: DATA_LOSS, or FAILED_PRECONDITION if a
// newer Yoke wrote it.
Manifest parse_manifest(const std::string& text);

// These encode the checksums of a piece as one string of hexadecimal digits and decode it.
// from_hex() throws DATA_LOSS if the text is not such a string.
std::string to_hex(const std::vector<uint32_t>& crc);
std::vector<uint32_t> from_hex(const std::string& digits);

}  // namespace yoke
