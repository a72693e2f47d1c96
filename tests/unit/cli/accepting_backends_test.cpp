#include "core/cli/accepting_backends.hpp"

#include <gtest/gtest.h>

#include "core/base/exit_code.hpp"
#include "core/cli/stop.hpp"

namespace yoke {
namespace {

TEST(AcceptingBackends, SaysThatNoBackendWasFound) {
  try {
    accepting_backends("run.toml", {}, std::nullopt, {});
    FAIL();
  } catch (const Stop& stop) {
    EXPECT_EQ(stop.exit_code, kExitUsage);
    EXPECT_EQ(stop.text,
              "no backend was found; set backend_path to the folders that contain backends");
  }
}

}  // namespace
}  // namespace yoke
