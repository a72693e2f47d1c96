// Writes a backtrace when the process crashes.
#pragma once

namespace yoke {

struct CrashReport {
  int fd;                                // where to write
  const char* before_frame;              // the beginning of the line of a function
  int most_frames;                       // number of functions, at most 32
  void (*write_head)(int fd) = nullptr;  // writes the first line; called in the signal handler
};

// From now on, a signal that ends the process because of a fault first writes a line
// "FILE+0x12 (symbol)" for each function on the stack, innermost first. The signal then takes its
// usual course.
void report_crashes(const CrashReport& report);

}  // namespace yoke
