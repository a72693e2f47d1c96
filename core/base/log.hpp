// Lines for the user and for the log file. No LibTorch, no spdlog in this header.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "yoke/parallel_backend.h"

namespace yoke {

struct LogOptions {
  int32_t rank = -1;    // named in the file and, if prefix is set, on the console; -1 = none
  bool prefix = false;  // "[rank 1] " before each line on the console: ranks as threads
  int32_t level = YOKE_LOG_INFO;  // least level that is shown on the console; the file has all
  bool progress = false;          // a launcher with a terminal shows the lines of progress()
  bool console = true;            // DEBUG, INFO on stdout; WARNING, ERROR on stderr
  std::string file;               // e.g. runs/novels/logs/rank_000.log, appended to; "" = none
};

// One per rank. Any thread. Every line is written out at once; colours (ANSI sequences) in a text
// stay out of the file. Failing to write never throws.
class Log {
 public:
  // Makes the folder of the file. Throws Error(FAILED_PRECONDITION) if the file cannot be opened.
  explicit Log(const LogOptions& options);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  void write(int32_t level, const std::string& text);  // level: YOKE_LOG_...
  void debug(const std::string& text) { write(YOKE_LOG_DEBUG, text); }
  void info(const std::string& text) { write(YOKE_LOG_INFO, text); }
  void warning(const std::string& text) { write(YOKE_LOG_WARNING, text); }
  void error(const std::string& text) { write(YOKE_LOG_ERROR, text); }

  bool shows_progress() const;
  // A line that the next one replaces; only on the console. Nothing unless shows_progress().
  void progress(const std::string& text);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace yoke
