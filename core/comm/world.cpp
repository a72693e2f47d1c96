// Connects the three parts of a world and ends them in the right order. Each part is explained in
// its own file: control_plane.cpp, communicators.cpp and collective_log.cpp.
#include "core/comm/world.hpp"

#include "core/comm/collective_log.hpp"
#include "core/comm/communicators.hpp"
#include "core/comm/control_plane.hpp"
#include "core/comm/transport.hpp"
#include "core/control/member.hpp"
#include "yoke/error.hpp"

namespace yoke {

namespace {

CommOptions with_member(CommOptions options, Transport* transport) {
  if (transport != nullptr) options.member = transport->member();
  return options;
}

}  // namespace

World::World(const Rendezvous& rendezvous, const CommOptions& options)
    : rank_(rendezvous.rank),
      size_(rendezvous.world_size),
      in_threads_(rendezvous.virtual_world != nullptr),
      transport_(make_transport(rendezvous, options)),
      options_(with_member(options, transport_.get())),
      control_(std::make_unique<ControlPlane>(rendezvous, transport_.get(), options_)),
      log_(std::make_unique<CollectiveLog>(*control_, options.check)),
      communicators_(std::make_unique<Communicators>(
          rendezvous, transport_.get(), options_, *control_, *log_)) {}

std::unique_ptr<World> World::connect(const Rendezvous& rendezvous, const CommOptions& options) {
  return std::unique_ptr<World>(new World(rendezvous, options));
}

std::string World::transport() const {
  return transport_ ? transport_->name() : "";
}

void World::agree(const std::string& what, const std::string& value) {
  control_->agree(what, value);
}

std::string World::from_rank0(const std::string& key, const std::string& value) {
  return control_->from_rank0(key, value);
}

std::vector<std::string> World::gather_texts(const std::string& mine) {
  return control_->gather_texts(mine);
}

void World::await_all(const std::string& what) {
  control_->await_all(what);
}

void World::post(const std::string& key, const std::string& value) {
  control_->post(key, value);
}

std::optional<std::string> World::peek(const std::string& key) {
  return control_->peek(key);
}

void World::set_mesh(const Mesh& mesh) {
  communicators_->set_mesh(mesh);
}

Communicator& World::comm(uint32_t axes, const std::string& purpose) {
  if (ended_) throw Error(YOKE_FAILED_PRECONDITION, "comm() after shutdown()");
  return communicators_->get(axes, purpose);
}

void World::require_alive() {
  communicators_->require_alive();
}

std::map<std::string, CommCount> World::counts() const {
  return log_->counts();
}

void World::reset_counts() {
  log_->reset_counts();
}

std::vector<OperationCount> World::counts_by_operation() const {
  return log_->counts_by_operation();
}

void World::start_recording() {
  log_->recording().emplace();
}

RecordedOperations World::end_recording() {
  return std::exchange(log_->recording(), std::nullopt).value();
}

std::map<std::string, std::vector<std::string>> World::latest_collectives() const {
  return log_->latest();
}

std::vector<std::vector<int64_t>> World::check_collectives(const std::vector<int64_t>& numbers) {
  return log_->check(communicators_->mesh(), rank_, numbers);
}

void World::set_step(int64_t step) {
  if (options_.member != nullptr) options_.member->set_step(step);
}

void World::shutdown() {
  if (size_ > 1 && !ended_) {
    control_->barrier("orderly end");
    communicators_->shutdown();
    if (Member* m = member()) m->leave();
  }
  ended_ = true;
}

// Without shutdown() the world ends as after a crash, so that the peers fail at once and not after
// their timeout. The transport is informed first, so that peers report this rank as the reason;
// then the connections are closed.
World::~World() {
  if (size_ == 1 || ended_) return;
  transport_->leave_early();
  communicators_->abort();
  control_->abort();
}

}  // namespace yoke
