// Lets tests run the launcher in a process of its own, with shell scripts as ranks.
#pragma once

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "core/base/subprocess.hpp"
#include "core/launch/launcher.hpp"
#include "tests/support/temp_folder.hpp"

namespace yoke {

// Returns a rank that runs a shell script; $RANK_FOLDER is a folder of the test.
inline RankCommand script(const std::string& text, const testing::TempFolder& folder) {
  return {{"/bin/sh", "-c", text}, {{"RANK_FOLDER", folder.path().string()}}};
}

// Runs launch_ranks() in a process of its own, so that a test can send it signals and read its
// output.
class LauncherProcess {
 public:
  explicit LauncherProcess(const std::vector<RankCommand>& commands, const StopOrder& stop = {})
      : out_(make_pipe()), err_(make_pipe()) {
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(out_.write_end.get(), STDOUT_FILENO);
      ::dup2(err_.write_end.get(), STDERR_FILENO);
      LaunchReport report;
      report.stop = stop;
      ::_exit(launch_ranks(commands, &report));
    }
    out_.write_end.reset();
    err_.write_end.reset();
  }
  ~LauncherProcess() {
    if (pid_ > 0) wait();
  }
  LauncherProcess(const LauncherProcess&) = delete;
  LauncherProcess& operator=(const LauncherProcess&) = delete;

  void send(int signal) const { ::kill(pid_, signal); }

  // Reads the output to its end. Returns the exit code, or -signal.
  int wait() {
    pollfd fds[2] = {{out_.read_end.get(), POLLIN, 0}, {err_.read_end.get(), POLLIN, 0}};
    std::string* texts[2] = {&out, &err};
    while (fds[0].fd >= 0 || fds[1].fd >= 0) {
      ::poll(fds, 2, -1);
      for (int i : {0, 1}) {
        if (fds[i].revents != 0 && !read_available(fds[i].fd, *texts[i])) fds[i].fd = -1;
      }
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    const Ending ending = ending_of(status);
    return ending.signal != 0 ? -ending.signal : ending.exit_code;
  }

  // Returns true if the launcher ends although nobody reads its output. The limit only bounds a
  // hang.
  bool ends_unread() const {
    const FileDescriptor process = watch_child(pid_);
    pollfd ended{process.get(), POLLIN, 0};
    return ::poll(&ended, 1, 120000) == 1;
  }

  std::string out, err;

 private:
  pid_t pid_ = -1;
  Pipe out_, err_;
};

// Parts of scripts: notify() creates a file, await() waits for it. The file is complete as soon as
// it exists.
inline std::string notify(const std::string& file, const std::string& what = "") {
  const std::string path = "$RANK_FOLDER/" + file;
  return "echo " + what + " > " + path + ".part; mv " + path + ".part " + path + "; ";
}
inline std::string await(const std::string& file) {
  return "until [ -e $RANK_FOLDER/" + file + " ]; do sleep 0.01; done; ";
}

struct Outcome {
  int code;              // exit code of the launcher, or -signal
  std::string out, err;  // what it printed
};

// Runs these scripts as the ranks of one launcher, and waits until it ends.
inline Outcome run(const std::vector<std::string>& scripts) {
  const testing::TempFolder folder;
  std::vector<RankCommand> commands;
  for (const std::string& text : scripts) commands.push_back(script(text, folder));
  LauncherProcess launcher(commands);
  const int code = launcher.wait();
  return {code, launcher.out, launcher.err};
}

}  // namespace yoke
