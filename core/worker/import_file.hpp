// Imports one file of another program: finds the backend that reads it, and lets that backend plan
// a small run, in two rounds. import_config.hpp prints the result.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/run/job.hpp"
#include "core/run/other_config.hpp"

namespace yoke {

// How an override begins that names the backend which reads the file.
inline constexpr std::string_view kChooses = "parallel_backend=";

// What the user asks for, and for a file that another one names, what that file says.
struct ImportRequest {
  bool partial = false;  // whether keys that cannot be honoured become comments
  std::string file;
  std::vector<std::string> overrides;
  std::string backend;  // name of the backend that reads the file; "" = the one that can
  std::vector<OtherValue> inherited{};  // what the file says that names this one
};

// What a backend says about a run, and the numbers of the run that it depends on.
struct ImportAnswer {
  PlanResult report;
  int32_t ranks = 1;
  int64_t global_batch = 0;
};

// What a backend says about a file.
struct Imported {
  ImportRequest request;
  std::string backend;
  // The run that it has planned: keys given beside the file, and what the file says.
  std::vector<std::string> overrides;
  std::vector<OtherValue> other{};
  ImportAnswer answer;
};

// Returns whether a key names the data of a run or says how they are read.
bool describes_data(const std::string& key);

// Return whether the command line, or a file that names this one, gives a key.
bool is_given(const ImportRequest& request, const std::string& key);
bool is_inherited(const ImportRequest& request, const std::string& key);
// Returns whether a remark is about a key of the file. The others are about the run for which the
// backend plans, such as a small model whose heads no tp_degree of the file divides.
bool is_of_file(const ImportRequest& request, const PlanRemark& remark);

// Imports one file. Throws Refused if no backend reads it, or ConfigError.
Imported import_file(const ImportRequest& request);

}  // namespace yoke
