// Throws an exception, which C cannot do.
#include <stdexcept>

extern "C" void throw_something() {
  throw std::runtime_error("no arguments");
}
