#include "core/metrics/run_folder.hpp"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "core/base/files.hpp"
#include "core/metrics/memory.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string without_trailing_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::string sibling(const std::string& wanted, int number) {
  const std::string path = without_trailing_slash(wanted);
  return number == 1 ? path : concat(path, "-", number);
}

[[noreturn]] void refuse_run_folder(const std::string& why) {
  throw Error(YOKE_FAILED_PRECONDITION, "run.dir: " + why);
}

// Refuses a path that does not exist and cannot be created.
void require_creatable(const std::string& path) {
  std::error_code error;
  if (fs::is_symlink(path, error))
    refuse_run_folder(path + " is a link to " + fs::read_symlink(path, error).string() +
                      ", which does not exist; remove the link or name another folder");
  for (fs::path above = fs::path(path).parent_path(); !above.empty(); above = above.parent_path()) {
    const fs::file_type type = fs::status(above, error).type();
    if (type == fs::file_type::not_found && above != above.parent_path()) continue;
    if (type != fs::file_type::directory)
      refuse_run_folder(concat(
          above.string(), " is not a folder, so ", path, " cannot be created; name another one"));
    return;
  }
}

bool is_free(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    require_creatable(path);
    return true;
  }
  if (status.type() != fs::file_type::directory && error)
    refuse_run_folder(concat(path, " cannot be used: ", error.message(), "; name another folder"));
  if (status.type() != fs::file_type::directory)
    refuse_run_folder(path + " is not a folder that can be used; move it away or name another one");
  const bool empty = fs::is_empty(path, error);
  if (error) throw_errno("run.dir: cannot list " + path, error.value());
  return empty;
}

std::string processor() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "unknown";
}

std::string time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

std::string free_run_folder(const std::string& wanted) {
  for (int number = 1;; ++number) {
    const std::string path = sibling(wanted, number);
    if (is_free(path)) return path;
  }
}

std::vector<std::string> existing_run_folders(const std::string& wanted) {
  std::vector<std::string> folders;
  for (int number = 1; !is_free(sibling(wanted, number)); ++number) {
    folders.insert(folders.begin(), sibling(wanted, number));
  }
  return folders;
}

std::string environment_json(const std::map<std::string, std::string>& versions) {
  utsname system{};
  ::uname(&system);
  Json json = {
      {"time", time_now()},
      {"versions", versions},
      {"compiler", __VERSION__},
      {"system", std::string(system.sysname) + " " + system.release + " " + system.machine},
      {"processor", processor()},
      {"cores", std::thread::hardware_concurrency()},
      {"memory", total_memory_bytes()}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

RunFolder::RunFolder(const std::string& path) : path_(without_trailing_slash(path)) {
  make_folders(path_ + "/logs");
  make_folders(checkpoints());
  warning_ = make_path_durable(checkpoints());
}

std::string RunFolder::log(int32_t rank) const {
  return path_ + string_printf("/logs/rank_%03d.log", rank);
}

void RunFolder::write(const std::string& name, const std::string& text) {
  const std::string path = path_ + "/" + name;
  make_folders(std::filesystem::path(path).parent_path());
  replace_text(path, text);
}

void RunFolder::begin() {
  remove_file(path_ + "/exit.json");
  for (const std::string& report : hang_reports(path_)) remove_file(report);
}

std::string hang_report(const std::string& run_dir, int32_t rank) {
  return run_dir + string_printf("/logs/hang_rank_%03d.json", rank);
}

std::vector<std::string> hang_reports(const std::string& run_dir) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run_dir + "/logs", error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("hang_rank_") && name.ends_with(".json")) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

int64_t last_step_in_exit_record(const std::string& run_dir) {
  std::ifstream in(run_dir + "/exit.json");
  const Json json = Json::parse(in, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.contains("step") && json["step"].is_number_integer()
             ? json["step"].get<int64_t>()
             : -1;
}

void leave_exit_record(const std::string& run_dir, const ExitRecord& record) {
  static std::mutex mutex;  // ranks may be threads of one process
  const std::lock_guard lock(mutex);
  const std::string path = run_dir + "/exit.json";
  std::error_code error;
  if (fs::exists(path, error)) return;
  Json json = {{"code", record.code}, {"reason", record.reason}, {"step", record.step}};
  if (record.rank >= 0) json["rank"] = record.rank;
  replace_text(path, json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace yoke
