// Decides which checkpoints are kept, and from which one a run resumes.
//
// Two rules protect the work of a run. An automatic resume takes only a checkpoint whose every byte
// was verified, and warns about the newer ones that it skips. And a checkpoint is removed only
// after a newer one was verified, so even on a disk that corrupts everything the last good state is
// kept. A damaged checkpoint is not the best one either, or it would take the place of a good one
// for the rest of the run. Reading back every byte of every checkpoint would be too slow for each
// save, so pruning reads only when it is about to remove something: the best and the newest one.

#include "core/checkpoint/retention.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>
#include <system_error>
#include <tuple>

#include "core/base/files.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "step-";

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  do {  // again if a signal interrupted it
    names.clear();
    error.clear();
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
      names.push_back(at->path().filename().string());
  } while (error.value() == EINTR);
  if (error && error.value() != ENOENT) throw_errno("cannot list " + folder, error.value());
  return names;
}

std::string path_of(const std::string& folder, int64_t step) {
  return folder + "/" + step_name(step);
}

bool opens(const std::string& path) {
  try {
    CheckpointReader reader(path);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Renames the checkpoint to a temporary name before it is removed: if the process dies half-way, no
// partial checkpoint is left under a valid name.
void remove_checkpoint(const std::string& folder, int64_t step) {
  const std::string doomed = folder + "/" + temporary_name(step_name(step)) + "removed";
  remove_tree(doomed);
  rename_path(path_of(folder, step), doomed);
  remove_tree(doomed);
}

}  // namespace

bool verifies(const std::string& path) {
  try {
    CheckpointReader(path).verify();
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::optional<int64_t> step_of(const std::string& name) {
  const size_t prefix = sizeof kPrefix - 1;
  if (name.compare(0, prefix, kPrefix) != 0) return {};
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + prefix, end, step);
  // Only the spelling of step_name() is accepted, so that no two names can mean the same step.
  if (error != std::errc() || stop != end || step < 0 || step_name(step) != name) return {};
  return step;
}

std::string step_name(int64_t step) {
  return string_printf("step-%08lld", static_cast<long long>(step));
}

std::string temporary_name(const std::string& name) {
  return "." + name + ".tmp-";
}

std::vector<int64_t> steps_in(const std::string& folder) {
  std::vector<int64_t> steps;
  for (const std::string& name : names_in(folder)) {
    if (const auto step = step_of(name)) steps.push_back(*step);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

std::string checkpoint_near(const std::string& folder) {
  const std::filesystem::path path(folder);
  std::vector<std::filesystem::path> places{path, path / "checkpoints"};
  if (!std::filesystem::exists(path)) places.push_back(path.parent_path());
  for (const std::filesystem::path& place : places) {
    if (!std::filesystem::is_directory(place)) continue;
    const std::vector<int64_t> steps = steps_in(place.string());
    if (!steps.empty()) return (place / step_name(steps.front())).string();
  }
  return "";
}

void sweep_temporaries(const std::string& folder) {
  for (const std::string& name : names_in(folder)) {
    const size_t tail = name.find(".tmp-");
    if (name[0] != '.' || tail == std::string::npos || !step_of(name.substr(1, tail - 1))) continue;
    try {
      remove_tree(folder + "/" + name);
    } catch (const Error&) {
      // On NFS, a folder stays until nobody reads its files any more. The next save tries again.
    }
  }
}

CheckpointInfo newest_checkpoint(const std::string& folder,
                                 const std::function<void(const std::string&)>& warn) {
  const std::vector<int64_t> steps = steps_in(folder);
  for (const int64_t step : steps) {
    try {
      const CheckpointReader reader(path_of(folder, step));
      reader.verify();
      return reader.info();
    } catch (const Error& e) {
      warn(concat("skipping a checkpoint that cannot be used, looking for an older one: ",
                  e.what()));
    }
  }
  if (steps.empty()) throw Error(YOKE_NOT_FOUND, "there is no checkpoint in " + folder);
  throw Error(YOKE_DATA_LOSS,
              concat(steps.size() == 1 ? "the only checkpoint in " : "none of the checkpoints in ",
                     folder,
                     steps.size() == 1 ? " cannot be used" : " can be used"));
}

std::optional<CheckpointInfo> best_checkpoint(const std::string& folder) {
  std::vector<CheckpointInfo> evaluated;
  for (const int64_t step : steps_in(folder)) {
    try {
      const CheckpointInfo info = CheckpointReader(path_of(folder, step)).info();
      if (info.eval_loss) evaluated.push_back(info);
    } catch (const Error&) {  // a damaged checkpoint is not the best one
    }
  }
  std::sort(evaluated.begin(), evaluated.end(), [](const auto& a, const auto& b) {
    return std::tie(*a.eval_loss, a.step) < std::tie(*b.eval_loss, b.step);
  });
  for (const CheckpointInfo& info : evaluated)
    if (verifies(info.path)) return info;
  return std::nullopt;
}

void prune_checkpoints(const std::string& folder, const Kept& kept) {
  if (kept.newest < 1) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("checkpoint.keep is ", kept.newest, "; it must be at least 1"));
  }
  const FolderLock lock(folder);
  if (!lock.held()) return;  // a save is running; it prunes when it is done
  sweep_temporaries(folder);
  const std::vector<int64_t> steps = steps_in(folder);
  const bool any = static_cast<int64_t>(steps.size()) > kept.newest;
  const auto best = kept.best && any ? best_checkpoint(folder) : std::nullopt;
  int64_t whole = 0;
  size_t read_back = 0;
  bool verified = false;  // one of the first `read_back` steps passes verify()
  for (size_t i = 0; i < steps.size(); ++i) {
    if (whole < kept.newest) {
      whole += opens(path_of(folder, steps[i])) ? 1 : 0;
      continue;
    }
    if (best && best->step == steps[i]) continue;
    // Nothing is removed unless a newer checkpoint passes verify().
    while (!verified && read_back < i) verified = verifies(path_of(folder, steps[read_back++]));
    if (verified) remove_checkpoint(folder, steps[i]);
  }
}

}  // namespace yoke
