// Where that is cheap, a check tries the real operation: it makes a folder, connects to its own
// port, runs the compiler. Only limits that show under load, such as memory, are read and compared
// with a bound. A problem is something that stops every run; anything that stops only some runs is
// a warning, so that `yoke doctor` exits with 0 on a machine that works.
#include "core/launch/machine_check.hpp"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "core/base/cores.hpp"
#include "core/base/network.hpp"
#include "core/base/shared_segment.hpp"
#include "core/base/subprocess.hpp"
#include "core/base/text.hpp"
#include "core/launch/rendezvous_folder.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr uint64_t kMiB = 1 << 20;

using finding::ok;
using finding::problem;
using finding::warning;

// Returns the bytes in a line "Name:   123 kB" of /proc/meminfo; 0 if there is none.
uint64_t meminfo(const std::string& name) {
  std::ifstream in("/proc/meminfo");
  uint64_t kib = 0;
  for (std::string word; in >> word;) {
    if (word == name + ":" && in >> kib) return kib * 1024;
  }
  return 0;
}

// Returns the memory limit of this container in bytes; 0 if there is none.
uint64_t memory_limit() {
  uint64_t bytes = 0;
  std::ifstream("/sys/fs/cgroup/memory.max") >> bytes;  // "max" does not parse and leaves 0
  return bytes;
}

// Returns the number of processors whose time this container may use; 0 if that is not limited.
double quota_of_cores() {
  // Without a quota the file begins with "max", which does not parse and leaves period 0.
  double quota = 0, period = 0;
  std::ifstream("/sys/fs/cgroup/cpu.max") >> quota >> period;
  return period > 0 ? quota / period : 0;
}

}  // namespace

MachineFinding check_cores(const GetVariable& get) {
  const int cores = usable_cores();
  const double quota = quota_of_cores();
  std::string found = concat(cores, cores == 1 ? " core" : " cores");
  // A quota does not show in the number of processors, but threads beyond it wait for each other.
  if (quota > 0 && quota < cores) {
    return warning(
        "cores",
        found + string_printf(", but the container has time for only %.1f (cgroup cpu.max)", quota),
        "give the container more (docker run --cpus), or start fewer ranks");
  }
  const char* threads = get("OMP_NUM_THREADS");
  if (threads == nullptr) return ok("cores", found);
  found += std::string("; OMP_NUM_THREADS = ") + threads;
  if (std::atoi(threads) <= cores) return ok("cores", found + " threads per rank");
  return warning(
      "cores", found + " threads per rank, more than there are cores", "unset OMP_NUM_THREADS");
}

MachineFinding check_memory() {
  // MemAvailable, unlike MemFree, counts the caches that Linux gives back when memory is needed.
  const uint64_t total = meminfo("MemTotal"), available = meminfo("MemAvailable"),
                 limit = memory_limit();
  std::string found = bytes_text(total) + ", " + bytes_text(available) + " available";
  if (limit > 0 && limit < total) found += ", container limit " + bytes_text(limit);
  if (available >= 1024 * kMiB) return ok("memory", found);
  return warning("memory",
                 found + "; a rank needs about 300 MiB without its model",
                 "end other programs, or start fewer ranks");
}

MachineFinding check_shared_memory(const std::string& folder) {
  struct statvfs fs {};
  if (::statvfs(folder.c_str(), &fs) != 0) {
    return warning(
        "shared memory", folder + ": " + std::strerror(errno), "mount -t tmpfs tmpfs " + folder);
  }
  // f_bavail, unlike f_bfree, leaves out the blocks that only root may use.
  const uint64_t size = uint64_t{fs.f_blocks} * fs.f_frsize,
                 free = uint64_t{fs.f_bavail} * fs.f_frsize;
  const std::string found = folder + ", " + bytes_text(free) + " free of " + bytes_text(size);
  if (::access(folder.c_str(), W_OK) != 0)
    return warning("shared memory", found + ", but not writable", "chmod 1777 " + folder);
  if (free >= 256 * kMiB) return ok("shared memory", found);
  return warning("shared memory",
                 found + "; NCCL and the tests need more",
                 "docker run --shm-size=1g, or: mount -o remount,size=1g " + folder);
}

MachineFinding check_transport() {
  constexpr uint64_t kRoom = 64 * kMiB;
  try {
    const Segment segment(kRoom);
    const MappedSegment mapped(segment.address());
    return ok("transport", "shared memory between ranks of this machine, Gloo between machines");
  } catch (const Error& e) {
    return warning("transport",
                   std::string("Gloo, which is slower within a machine, because ") + e.what(),
                   "allow memfd_create and /proc in the container, raise ulimit -f and ulimit -v");
  }
}

MachineFinding check_disk(const std::string& folder) {
  struct statvfs fs {};
  if (::statvfs(folder.c_str(), &fs) != 0)
    return problem("disk", folder + ": " + std::strerror(errno), "choose another folder");
  const uint64_t free = uint64_t{fs.f_bavail} * fs.f_frsize;
  const std::string found = bytes_text(free) + " free in " + folder;
  // This is only a warning, because run.dir may name a folder elsewhere.
  if (::access(folder.c_str(), W_OK) != 0)
    return warning("disk",
                   found + ", but it is not writable, so no run folder can be created in it",
                   "change to another folder, or set run.dir");
  if (free >= 1024 * kMiB) return ok("disk", found);
  return warning("disk",
                 found + "; a checkpoint takes 12 bytes per parameter",
                 "free some space, or set run.dir to another disk");
}

MachineFinding check_open_files() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  // Ranks raise their limit to the largest that is allowed.
  const std::string found = concat("at most ", limit.rlim_max, " open files");
  if (limit.rlim_max >= 1024) return ok("open files", found);
  return warning("open files",
                 found + ", which is low: each communicator needs a connection per peer",
                 "ulimit -Hn 65536, as root, or a higher limit of the container");
}

MachineFinding check_rendezvous_folder() {
  try {
    const RendezvousFolder folder;
    // A full disk lets a folder be created and an empty file in it. Only reading the text back
    // shows that ranks can exchange addresses here.
    std::ofstream(folder.path() + "/try") << "text";
    std::string read;
    std::ifstream(folder.path() + "/try") >> read;
    if (read == "text")
      return ok("rendezvous folder", "below " + folder.path().substr(0, folder.path().rfind('/')));
    return problem("rendezvous folder",
                   folder.path() + " does not return what was written to it",
                   "set TMPDIR to a folder on a disk with space");
  } catch (const Error& e) {
    return problem("rendezvous folder", e.what(), "export TMPDIR=...");
  }
}

MachineFinding check_loopback() {
  // A firewall that drops packets of the loopback interface would make every run of several ranks
  // hang.
  const std::string fault = try_loopback();
  if (fault.empty()) return ok("ports", "a connection of this machine to itself works");
  return problem("ports",
                 "this machine cannot connect to itself: " + fault,
                 "ip link set lo up; check the firewall (nft list ruleset)");
}

// Gloo binds to the address of the host name, unless an interface is named. Containers often have a
// name that does not resolve.
MachineFinding check_host_name(const GetVariable& get) {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  if (const char* interface = get("GLOO_SOCKET_IFNAME")) {
    const std::string found = concat("GLOO_SOCKET_IFNAME = ", interface);
    if (has_interface(interface)) return ok("host name", found);
    return problem("host name",
                   found + ", but there is no such interface",
                   "ip -brief address; export GLOO_SOCKET_IFNAME= one of these interfaces");
  }
  // Ranks find the addresses of their machines by the connections that they make, so a name without
  // an address, or with a loopback address, is no fault.
  const SocketAddress at = resolve(name.data(), 0);
  const std::string address = at.fault.empty() ? " is " + at.address : " has no address";
  return ok("host name", name.data() + address);
}

// Runs on every machine of a job. On the machine of rank 0 the port must be free. On the others it
// is enough that the name resolves, because rank 0 may not have started yet.
MachineFinding check_rendezvous_address(const GetVariable& get) {
  const char *addr = get("MASTER_ADDR"), *port = get("MASTER_PORT");
  if (addr == nullptr && port == nullptr)
    return ok("rendezvous address", "not set; only runs on several machines need one");
  if (addr == nullptr || port == nullptr) {
    const std::string missing = addr == nullptr ? "MASTER_ADDR" : "MASTER_PORT";
    const std::string set = addr == nullptr ? "MASTER_PORT" : "MASTER_ADDR";
    return problem("rendezvous address",
                   missing + " is not set, but " + set + " is",
                   "export " + missing + "=...");
  }
  // A text that is not a number becomes 0, which the range check refuses.
  const int number = std::atoi(port);
  const std::string both = concat(addr, ":", port);
  if (number < 1 || number > 65535)
    return problem("rendezvous address",
                   concat("MASTER_PORT = ", port, "; allowed: 1 to 65535"),
                   "export MASTER_PORT=29500");
  const SocketAddress at = resolve(addr, number);
  if (!at.fault.empty())
    return problem("rendezvous address",
                   both + " has no address (" + at.fault + ")",
                   concat("getent hosts ", addr, "; export MASTER_ADDR= the address of rank 0"));
  if (!is_own_address(at))
    return ok("rendezvous address", both + " is " + at.address + ", another machine");
  const std::string fault = try_port(at);
  if (fault.empty())
    return ok("rendezvous address", both + " is this machine, and the port is free");
  return problem("rendezvous address",
                 both + " is this machine, but the port cannot be used: " + fault,
                 concat("ss -ltnp 'sport = :", port, "'; export MASTER_PORT= another port"));
}

MachineFinding check_clock() {
  // With no mode set, adjtimex() changes nothing and needs no rights.
  timex state{};
  if (::adjtimex(&state) != TIME_ERROR) return ok("clock", "synchronised");
  return warning("clock",
                 "not synchronised, so logs and traces of several machines will not line up",
                 "timedatectl set-ntp true, or: chronyc tracking");
}

MachineFinding check_compiler(const std::string& command) {
  const std::string fix = "apt-get install g++ (only needed to build your own backends and models)";
  try {
    const SubprocessResult r = run_subprocess({"/usr/bin/env", command, "--version"}, {});
    if (r.ending.ok()) return ok("compiler", r.out.substr(0, r.out.find('\n')));
  } catch (const Error&) {
    // A program that cannot be started at all gets the same advice as one that fails.
  }
  return warning("compiler", command + " cannot be started", fix);
}

}  // namespace yoke
