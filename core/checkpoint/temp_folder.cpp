// The commit of a checkpoint is one rename, because a rename of a folder is atomic: a reader sees
// the old state or the new one, whatever happens. Everything in the folder is synced before the
// rename; otherwise, after a power failure, the new name could exist without its contents. The
// parent folder is synced after the rename.

#include "core/checkpoint/temp_folder.hpp"

#include <unistd.h>

#include <filesystem>
#include <random>

#include "core/base/files.hpp"
#include "core/checkpoint/retention.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {

TempFolder::TempFolder(const std::string& folder, const std::string& name) {
  const std::string path =
      folder + "/" + temporary_name(name) +
      string_printf("%d-%08x", static_cast<int>(::getpid()), std::random_device{}());
  make_folder(path);
  path_ = path;
}

TempFolder::~TempFolder() {
  try {
    if (!path_.empty()) remove_tree(path_);
  } catch (const Error&) {  // a destructor must not throw; the next save sweeps the folder
  }
}

// NFS cannot exchange two folders. There, only a damaged checkpoint is replaced: if the process
// dies between the two renames, nothing has the name of the step.
void TempFolder::replace(const std::string& to) {
  try {
    return exchange_paths(path_, to);
  } catch (const Error& e) {
    if (e.code() != YOKE_FAILED_PRECONDITION || verifies(to)) throw;
  }
  const std::string aside = path_ + "-replaced";
  rename_path(to, aside);
  rename_path(path_, to);
  path_ = aside;
}

void TempFolder::commit(const std::string& to) {
  const std::string parent = std::filesystem::path(to).parent_path().string();
  if (::access(to.c_str(), F_OK) != 0) {
    rename_path(path_, to);
    path_.clear();
  } else {
    replace(to);
  }
  // The old checkpoint, if there was one, now has the temporary name. The destructor removes it,
  // which must not happen before the new one is durable.
  sync_folder(parent);
}

}  // namespace yoke
