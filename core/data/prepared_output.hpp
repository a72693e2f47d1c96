// The output of `yoke data prepare` while it is written. A preparation that was interrupted leaves
// the folder OUT.partial, from which the next one resumes. No LibTorch.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/base/files.hpp"
#include "core/data/token_info.hpp"

namespace yoke {

// How much is written. The next part begins at place `offset` of input number `file`
// (core/data/document_input.hpp).
struct PreparedSoFar {
  int64_t file = 0;
  int64_t offset = 0;
  int64_t tokens = 0;
  int64_t documents = 0;
  int64_t empty = 0;  // documents without text, which are left out
};

class PreparedOutput {
 public:
  // Opens OUT.partial, or creates it. job: everything that the output depends on; a folder of
  // another job is emptied. with_mask: each token has a byte of the mask. input_sizes:
  // DocumentInput::size() of each input. Throws Error: INVALID_ARGUMENT if OUT has the name of its
  // description or of its mask, FAILED_PRECONDITION if one of the three exists or another process
  // writes there, DATA_LOSS if what an interrupted preparation left is damaged.
  PreparedOutput(const std::string& out,
                 const nlohmann::json& job,
                 int64_t vocab,
                 bool with_mask,
                 const std::vector<uint64_t>& input_sizes);
  ~PreparedOutput();

  const PreparedSoFar& so_far() const { return so_far_; }
  // Returns true if the folder belonged to another job.
  bool started_over() const { return started_over_; }

  // Appends tokens, and their mask if there is one. `after` is the state with them. Nothing is
  // durable before save().
  void append(const std::vector<int32_t>& ids, const std::string& mask, const PreparedSoFar& after);
  // Makes durable what was appended: an interrupted preparation resumes here.
  void save();
  // Completes the file and its description, moves them to their places and removes the folder.
  void finish(const TokenInfo& info);

 private:
  std::string progress_path() const { return folder_ + "/progress.json"; }
  std::string ids_path() const { return folder_ + "/ids"; }
  std::string partial_mask_path() const { return folder_ + "/mask"; }
  nlohmann::json read_progress() const;
  void check_places(const nlohmann::json& progress) const;
  bool is_same_job(const nlohmann::json& progress) const;
  bool resume(const nlohmann::json& progress, const std::vector<uint64_t>& input_sizes);
  void check_so_far(const std::vector<uint64_t>& input_sizes) const;
  [[noreturn]] void damaged(const std::string& what) const;
  std::vector<char> header(int64_t tokens) const;

  std::string out_, folder_;
  std::string job_;
  int64_t vocab_;
  bool with_mask_;
  int64_t id_bytes_;
  PreparedSoFar so_far_;
  bool started_over_ = false;
  std::optional<FolderLock> lock_;
  std::optional<File> ids_;
  std::optional<File> mask_;
  std::vector<char> bytes_;  // ids of one append
};

}  // namespace yoke
