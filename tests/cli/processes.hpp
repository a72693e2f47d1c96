// Processes that run at the same time, as the ranks of a run, and free ports of this machine.
#pragma once

#include <netinet/in.h>

#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "core/base/network.hpp"
#include "core/base/subprocess.hpp"
#include "tests/support/temp_folder.hpp"

namespace yoke::testing {

// Listens on a port of the loopback address; 0 = any free port. Not open if the port is taken.
inline FileDescriptor take_port(int port) {
  std::string fault;
  return listen_on(resolve("127.0.0.1", port), fault);
}

inline int port_of(const FileDescriptor& fd) {
  sockaddr_in here{};
  socklen_t size = sizeof here;
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&here), &size);
  return ntohs(here.sin_port);
}

// Returns a port such that it and the next one were free a moment ago. Both are below the ports
// that Linux gives to outgoing connections, 32768 and above by default, so no connection takes one
// before the test listens there.
inline int free_port() {
  static std::mt19937 random(std::random_device{}());
  for (;;) {
    const int port = std::uniform_int_distribution<int>(20000, 32000)(random);
    if (take_port(port).open() && take_port(port + 1).open()) return port;
  }
}

struct Ended {
  int exit_code = -1;
  std::string out, err;
  std::string text() const { return out + err; }
};

// Runs shell commands in the folder, all at the same time, and returns how they ended.
inline std::vector<Ended> run_together(const TempFolder& folder,
                                       const std::vector<std::string>& commands) {
  std::ostringstream script;
  script << "cd " << folder.path().string() << "\n";
  for (size_t p = 0; p < commands.size(); ++p)
    script << commands[p] << " > out" << p << " 2> err" << p << " & p" << p << "=$!\n";
  for (size_t p = 0; p < commands.size(); ++p)
    script << "wait $p" << p << "; echo $? > code" << p << "\n";
  run_subprocess({"/bin/bash", "-c", script.str()});
  std::vector<Ended> ended;
  for (size_t p = 0; p < commands.size(); ++p) {
    const std::string n = std::to_string(p);
    ended.push_back({std::stoi(read_file(folder / ("code" + n))),
                     read_file(folder / ("out" + n)),
                     read_file(folder / ("err" + n))});
  }
  return ended;
}

}  // namespace yoke::testing
