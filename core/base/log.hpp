// Log lines for the user's console and for the log file of a rank.
//
// This header includes neither LibTorch nor spdlog. No translation unit may include both, because
// they need different versions of fmt.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "yoke/parallel_backend.h"

namespace yoke {

struct LogOptions {
  int32_t rank = -1;    // rank named in the file and, with `prefix`, on the console; -1 = none
  bool prefix = false;  // "[rank 1] " in front of each console line, for ranks that are threads
  int32_t level = YOKE_LOG_INFO;  // lowest level shown on the console; the file gets all levels
  bool progress = false;  // true if the launcher has a terminal on which it shows progress lines
  bool console = true;    // write DEBUG and INFO to stdout, WARNING and ERROR to stderr
  std::string file;       // file to append to, e.g. runs/novels/logs/rank_000.log; "" = none
};

// The log of one rank. All functions may be called from any thread; lines of different threads
// never mix. Each line is flushed at once, so that it survives a crash. Colours (ANSI sequences)
// are removed from the file. A write error never throws and never ends a run.
class Log {
 public:
  // Creates the folder of the file. Throws Error(FAILED_PRECONDITION) if the file cannot be opened.
  explicit Log(const LogOptions& options);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  // Writes a text, which may have several lines, at one of the levels YOKE_LOG_...
  void write(int32_t level, const std::string& text);
  void debug(const std::string& text) { write(YOKE_LOG_DEBUG, text); }
  void info(const std::string& text) { write(YOKE_LOG_INFO, text); }
  void warning(const std::string& text) { write(YOKE_LOG_WARNING, text); }
  void error(const std::string& text) { write(YOKE_LOG_ERROR, text); }

  bool shows_progress() const;
  // Shows a progress line, which the next one replaces, on the console only. Does nothing unless
  // shows_progress().
  void progress(const std::string& text);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace yoke
