// Rank 0's side of the commit protocol: a folder that either becomes the checkpoint or goes away.
#pragma once

#include <string>

namespace yoke {

class TempFolder {
 public:
  // Makes folder/.NAME.tmp-<process>-<random>; only while the folder's lock is held.
  TempFolder(const std::string& folder, const std::string& name);
  // Removes what is not committed; rank 0 may leave by any exception, of a lost peer too. What
  // cannot be removed now is swept by the next save.
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }

  // Renames the folder, whose contents are synced, and syncs the parent. If `to` exists, the two
  // trade places, so that there is a whole checkpoint at any moment, and the old one is removed.
  // FAILED_PRECONDITION if `to` exists and the file system has no such exchange (NFS).
  void commit(const std::string& to);

 private:
  std::string path_;  // "" once committed
};

}  // namespace yoke
