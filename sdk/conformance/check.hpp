// The conformance checks: the requirements on a backend as a table of numbered checks. A check
// calls the backend only through the C contract, and the host only through TestBed. The code of the
// checks includes headers of the sdk and nothing else.
#pragma once

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sdk/conformance/library_file.hpp"
#include "sdk/conformance/test_bed.hpp"

namespace yoke::conformance {

// What is known about the reason of a failure, beyond its text.
struct Cause {
  // The id of the check that examines the reason alone, such as "N2" for wrong numbers on two
  // ranks. If that check fails as well, this failure follows from it. "" = none.
  std::string root;
  std::string fix;  // advice that replaces that of the check; "" = none
};

// The exception that a failed check throws. Its text is one sentence with the values that are
// wrong.
class Failed : public std::runtime_error {
 public:
  explicit Failed(const std::string& text, Cause cause = {})
      : std::runtime_error(text), cause_(std::move(cause)) {}
  const Cause& cause() const { return cause_; }

 private:
  Cause cause_;
};

// The exception of a check that cannot run, so that it neither passes nor fails. Its text is the
// reason.
class NotRun : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The arguments of a check that runs the backend. Each such check runs in a separate process, so it
// need not clean up.
struct Subject {
  std::string path;  // absolute path of the backend
  TestBed& test_bed;
  int32_t nproc;  // largest number of ranks, at least 1
  // Masks of the axes that the backend declares, if the check has asked for them, and of those
  // along which a step has succeeded on more than one rank.
  std::atomic<uint32_t> axes_declared{0}, axes_run{0};
};

// The usual cause of the failure of a check.
enum class Fault { kPlugin, kToolchain, kHost };
const char* fault_name(Fault fault);  // "backend", "tool chain", "host"

// One row of the table. The first letter of the id is its level: S(tatic), L(oad), C(ontract),
// N(umerics) or (chec)K(point). Exactly one of `file` and `live` is set. A check that passes
// returns information for the user, or "". A check that fails throws Failed, and one that cannot
// run throws NotRun.
struct Check {
  const char* id;
  const char* title;                                // requirement in a few words
  const char* requirement;                          // requirement in full, and how it is checked
  const char* fix;                                  // advice for the author of the backend
  std::string (*live)(Subject& subject) = nullptr;  // loads and runs the backend
  bool deep = false;             // runs with --deep only, because it takes seconds
  Fault fault = Fault::kPlugin;  // usual cause of a failure
  std::string (*file)(const LibraryFile& file) =
      nullptr;  // reads the file and runs none of its code
};

// Returns all checks, ordered by level. The id of a removed check is never used again.
const std::vector<Check>& checks();
// Returns the check with this id, or NULL if there is none.
const Check* find_check(std::string_view id);

// Returns the name of a level, e.g. "static" for 'S', or "" for an unknown letter.
const char* level_name(char level);

// Returns the documentation of all checks, which is sdk/conformance/CHECKS.md.
std::string checks_as_markdown();

}  // namespace yoke::conformance
