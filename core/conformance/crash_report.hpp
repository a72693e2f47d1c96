// Writes a backtrace when the process crashes.
#pragma once

namespace yoke {

// From now on, a signal that ends the process because of a fault first writes a line "frame
// FILE+0x12 (symbol)" to the descriptor for each function on the stack, innermost first. The signal
// then takes its usual course.
void report_crashes_to(int fd);

}  // namespace yoke
