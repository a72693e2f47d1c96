#include "sdk/mesh/dtensor/mesh.hpp"

#include "yoke/error.hpp"

namespace yoke::mesh {

Mesh::Mesh(std::vector<Axis> axes) : axes_(std::move(axes)) {
  if (axes_.empty() || axes_.size() > kMaxMeshAxes) {
    throw Error(YOKE_INVALID_ARGUMENT,
                "a mesh of " + std::to_string(axes_.size()) + " axes; allowed: 1 to " +
                    std::to_string(kMaxMeshAxes));
  }
  for (size_t a = 0; a < axes_.size(); ++a) at_[a] = {axes_[a].comm.rank(), axes_[a].comm.size()};
}

}  // namespace yoke::mesh
