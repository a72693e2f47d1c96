// Makes the names of sdk/mesh, on which ptd is built, known in its namespace.
#pragma once

namespace yoke::mesh {}

namespace yoke::ptd {
using namespace mesh;
}  // namespace yoke::ptd
