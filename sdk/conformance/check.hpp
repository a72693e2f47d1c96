// The conformance kit: what a backend must do, as a table of numbered checks. The kit sees a
// backend through the C contract alone, and a host through TestBed; it includes nothing but the sdk.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/conformance/library_file.hpp"
#include "sdk/conformance/test_bed.hpp"

namespace yoke::conformance {

// What a check found wrong: one sentence with the values. A failed check throws it.
class Failed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What a check of a living backend gets. One check per process: a check may leave anything behind.
struct Subject {
  std::string path;  // absolute
  TestBed& test_bed;
  int32_t nproc;  // ranks at most, at least 1
};

enum class Fault { kPlugin, kToolchain, kHost };
const char* fault_name(Fault fault);  // "backend", "tool chain", "host"

// One row of the table. Its level is the first letter of the id: S(tatic), L(oad), C(ontract),
// N(umerics) or (chec)K(point). Exactly one of `file` and `live` is set. They return what is worth
// knowing about a check that passed, or "", and throw Failed.
struct Check {
  const char* id;
  const char* title;        // what holds, a few words
  const char* requirement;  // what is checked, and how
  const char* fix;
  std::string (*live)(Subject& subject) = nullptr;
  bool deep = false;                                       // only with --deep: it takes seconds
  Fault fault = Fault::kPlugin;                            // who is to blame, usually
  std::string (*file)(const LibraryFile& file) = nullptr;  // runs nothing of the backend
};

// All checks, in the order of their levels. Ids are never used again.
const std::vector<Check>& checks();
// NULL if there is none.
const Check* find_check(std::string_view id);

// "static", ... of 'S', 'L', 'C', 'N', 'K'.
const char* level_name(char level);

// The documentation (sdk/conformance/CHECKS.md).
std::string checks_as_markdown();

}  // namespace yoke::conformance
