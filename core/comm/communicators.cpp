// A communicator has three layers: a group of the transport, the CountingBackend around it, and the
// Communicator that callers use. A second group, used only with comm.check = full, carries
// signatures, so that the check cannot disturb the operations that it checks.
#include "core/comm/communicators.hpp"

#include "core/comm/communicator_impl.hpp"
#include "core/cuda/rank_device.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr const char* kParent = "parent of others";  // purpose of a communicator of all ranks

}  // namespace

Communicators::Communicators(const Rendezvous& rendezvous,
                             Transport* transport,
                             const CommOptions& options,
                             ControlPlane& control,
                             CollectiveLog& log)
    : rank_(rendezvous.rank),
      size_(rendezvous.world_size),
      options_(options),
      transport_(transport),
      control_(control),
      log_(log) {}

void Communicators::set_mesh(const Mesh& mesh) {
  if (mesh.size() != size_) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("the mesh has ", mesh.size(), " ranks, the world ", size_));
  }
  if (!entries_.empty()) {
    throw Error(YOKE_FAILED_PRECONDITION,
                "set_mesh() after the first communicator; set the mesh once");
  }
  mesh_ = mesh;
}

const Mesh& Communicators::mesh() {
  if (!mesh_) {
    if (size_ > 1) throw Error(YOKE_FAILED_PRECONDITION, "the mesh is not set; call set_mesh()");
    mesh_ = Mesh({1, 1, 1, 1, 1});
  }
  return *mesh_;
}

Communicator& Communicators::get(uint32_t axes, const std::string& purpose) {
  if ((axes & kKnownAxes) == 0) {
    throw Error(
        YOKE_INVALID_ARGUMENT,
        concat("axes ", axes, "; allowed: YOKE_AXIS_BIT of one or more axes, or YOKE_ALL_AXES"));
  }
  axes &= kKnownAxes;
  const auto found = entries_.find({axes, purpose});
  if (found != entries_.end()) return *found->second.comm;
  Entry entry = make(axes, purpose, mesh().peers(rank_, axes));
  return *entries_.emplace(Key{axes, purpose}, std::move(entry)).first->second.comm;
}

Communicators::Entry Communicators::make(uint32_t axes,
                                         const std::string& purpose,
                                         const std::vector<int32_t>& peers) {
  const std::string axes_text = axes_name(axes);
  const std::string title = concat(axes_text, " (", purpose, ")");
  const bool on_device = options_.device != nullptr;
  if (peers.size() == 1) return {nullptr, make_self_communicator(rank_, title, on_device)};
  c10d::Backend* const parent = purpose == kParent ? nullptr : parent_of_devices();
  // If the ranks made their communicators in different orders, the members of a group would wait
  // for each other until the timeout.
  control_.agree("the next communicator", title);
  Members members{peers, 0};
  while (peers[members.rank] != rank_) ++members.rank;
  const std::string name = concat(title, " of rank ", peers[0]);
  const auto history = std::make_shared<History>();
  CountingBackend::Setup setup{
      .inner = on_device ? transport_->connect_device(name, members, parent)
                         : transport_->connect(name, members),
      .check = options_.check == CommCheck::kFull ? transport_->connect(name + ", check", members)
                                                  : nullptr,
      .axes = axes_text,
      .purpose = purpose,
      .ranks = peers,
      .options = options_,
      .traffic = log_.traffic(axes_text),
      .history = history,
      .recording = &log_.recording(),
      .on_link = [this, title, axes](
                     const Link& link,
                     auto messages) { log_.add_link(title, axes, link, std::move(messages)); },
      .on_device = on_device};
  Entry entry;
  entry.backend = c10::make_intrusive<CountingBackend>(std::move(setup), members.rank);
  entry.comm = make_communicator(entry.backend, name);
  log_.add(title, axes, history);
  return entry;
}

c10d::Backend* Communicators::parent_of_devices() {
  if (options_.device == nullptr || !options_.nccl.splits) return nullptr;
  get(kKnownAxes, kParent);
  return &entries_.at({kKnownAxes, kParent}).backend->transport();
}

void Communicators::require_alive() {
  for (const auto& [key, entry] : entries_) {
    if (entry.backend) entry.backend->require_alive();
  }
}

void Communicators::shutdown() {
  if (options_.device == nullptr) return;
  // NCCL's threads must have ended before the process exits.
  for (const auto& [key, entry] : entries_) {
    if (entry.backend) entry.backend->shutdown();
  }
}

// Without this, a collective in flight would block the transport's threads, and therefore its
// destructor, until the timeout.
void Communicators::abort() {
  std::vector<c10d::Backend*> on_device;
  for (auto& [key, entry] : entries_) {
    if (!entry.backend) continue;
    if (options_.device != nullptr) {
      on_device.push_back(&entry.backend->transport());
    } else {
      entry.backend->abort();
    }
  }
  try {
    if (!on_device.empty()) options_.device->runtime().abort(on_device);
  } catch (const std::exception&) {  // the run has failed already and has reported why
  }
}

}  // namespace yoke
