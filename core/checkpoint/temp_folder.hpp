// A temporary folder that either becomes the checkpoint (or the export) or is removed. Only rank 0
// has one.
#pragma once

#include <string>

namespace yoke {

class TempFolder {
 public:
  // Creates folder/.NAME.tmp-<process>-<random>. During a save the caller must hold the lock of
  // `folder`: otherwise another process may sweep the new folder. Throws Error if it cannot be
  // created.
  TempFolder(const std::string& folder, const std::string& name);
  // Removes the folder if it was not committed, so any exception may end a save. If it cannot be
  // removed, the next save sweeps it.
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }

  // Renames the folder to `to` and syncs the parent. The caller has synced the contents. If `to`
  // exists, the two folders are exchanged atomically, so that a complete checkpoint exists at any
  // moment, and the destructor removes the old one. A file system that cannot exchange folders
  // (NFS) replaces only a damaged checkpoint. Throws Error: FAILED_PRECONDITION if `to` is whole
  // there, otherwise the error of the system.
  void commit(const std::string& to);

 private:
  void replace(const std::string& to);

  std::string path_;  // folder to remove in the end; "" after a commit that replaced nothing
};

}  // namespace yoke
