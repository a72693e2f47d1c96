// All communicators of one rank, each created at its first use.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/collective_log.hpp"
#include "core/comm/communicator.hpp"
#include "core/comm/control_plane.hpp"
#include "core/comm/counting_backend.hpp"
#include "core/comm/mesh.hpp"
#include "core/comm/transport.hpp"

namespace yoke {

// One per rank; one thread at a time.
class Communicators {
 public:
  // `transport` is null in a world of one rank. All arguments must outlive this object.
  Communicators(const Rendezvous& rendezvous,
                Transport* transport,
                const CommOptions& options,
                ControlPlane& control,
                CollectiveLog& log);

  // Throws Error: INVALID_ARGUMENT if the mesh and the world differ in their number of ranks,
  // FAILED_PRECONDITION if a communicator exists already.
  void set_mesh(const Mesh& mesh);
  // Throws Error(FAILED_PRECONDITION) before set_mesh(), unless the world has one rank.
  const Mesh& mesh();

  // Returns the communicator of the ranks that differ from this one only in `axes`. The same pair
  // (axes, purpose) always returns the same object. Collective over the world at the first call of
  // each pair.
  Communicator& get(uint32_t axes, const std::string& purpose);

  // Throws Error(UNAVAILABLE) or DEADLINE_EXCEEDED if a collective on a device has failed.
  void require_alive();
  // Closes the communicators. Must be called after a barrier. Collective.
  void shutdown();
  // Makes the collectives in flight fail, here and on the peers.
  void abort();

 private:
  struct Entry {
    c10::intrusive_ptr<CountingBackend> backend;  // null for a communicator of one rank
    std::unique_ptr<Communicator> comm;
  };
  using Key = std::pair<uint32_t, std::string>;  // axes, purpose

  Entry make(uint32_t axes, const std::string& purpose, const std::vector<int32_t>& peers);
  // Returns the communicator of all ranks from which others are made; NULL if they are made from
  // nothing. Collective over the world at the first call.
  c10d::Backend* parent_of_devices();

  const int32_t rank_;
  const int32_t size_;
  const CommOptions options_;
  Transport* const transport_;
  ControlPlane& control_;
  CollectiveLog& log_;
  std::optional<Mesh> mesh_;
  std::map<Key, Entry> entries_;
};

}  // namespace yoke
