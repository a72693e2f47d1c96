// The two transports: that of processes, with shared memory within a machine, Gloo between machines
// and NCCL for tensors on a device; and that of threads of one process. Each has a c10d::Store,
// which Mailbox uses.
#include "core/comm/transport.hpp"

#include <csignal>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "core/base/network.hpp"
#include "core/base/text.hpp"
#include "core/comm/control_store.hpp"
#include "core/comm/gloo.hpp"
#include "core/comm/polling.hpp"
#include "core/comm/shm/shared_memory.hpp"
#include "core/comm/shm/shm_backend.hpp"
#include "core/comm/thread_backend.hpp"
#include "core/comm/virtual_world.hpp"
#include "core/comm/work_wait.hpp"
#include "core/cuda/rank_device.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// Runs f, which uses the store. A failure means that the store or its server is gone. `what` names
// the operation in the message.
template <class F>
auto with_store(const std::string& what, F&& f) {
  try {
    return f();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    throw Error(YOKE_UNAVAILABLE, what + ": " + first_part(e.what()));
  }
}

// The transport of ranks that are processes.
class ProcessTransport final : public Transport {
 public:
  ProcessTransport(const Rendezvous& rendezvous, const CommOptions& options)
      : timeout_(options.timeout),
        rank_device_(options.device),
        nccl_(options.nccl),
        meeting_(rendezvous, options),
        store_(make_control_store(meeting_.member(), options.timeout)) {
    // Gloo writes to its sockets with writev(): a peer that is lost would kill this rank as well.
    ::signal(SIGPIPE, SIG_IGN);
    const std::vector<Peer>& peers = meeting_.member().peers();
    if (options.transport != CommTransport::kGloo) share_memory(rendezvous.rank, options.transport);
    if (memory_ && memory_->size() == rendezvous.world_size) return;
    // Loopback needs no network and cannot be reached from outside, so it is preferred where it is
    // enough.
    device_ = !rendezvous.interface.empty() ? interface_gloo_device(rendezvous.interface)
              : rendezvous.one_machine()    ? address_gloo_device("127.0.0.1")
                                         : address_gloo_device(peers.at(rendezvous.rank).address);
  }

  ~ProcessTransport() override {
    if (memory_) memory_->forget_member();
  }

  c10d::Store& store() override { return *store_; }
  // The members find each other under the name of the group, so that several groups may connect at
  // the same time.
  c10::intrusive_ptr<c10d::Backend> connect(const std::string& name,
                                            const Members& members) override {
    const StorePtr store = group_store(name);
    if (memory_ && memory_->reaches(members.ranks)) {
      return c10::make_intrusive<ShmBackend>(
          memory_, *store, ShmGroup{members.ranks, members.rank, timeout_});
    }
    const GlooGroup group{name, members.rank, static_cast<int>(members.ranks.size()), timeout_};
    return connect_gloo(store, device_, group);
  }
  c10::intrusive_ptr<c10d::Backend> connect_device(const std::string& name,
                                                   const Members& members,
                                                   c10d::Backend* parent) override {
    const DeviceGroup group{
        name, group_store(name), members.ranks, members.rank, timeout_, nccl_, parent};
    return rank_device_->runtime().connect_nccl(group, rank_device_->device());
  }
  void require_alive() const override { meeting_.member().require_alive(); }
  void leave_early() override {}  // the aborted groups make the peers fail
  Member* member() override { return &meeting_.member(); }
  std::string name() const override {
    const std::string tensors = rank_device_ == nullptr ? "" : "NCCL; on the CPU ";
    if (!memory_ || memory_->size() == 1) {
      const std::string why = memory_ ? memory_->problem() : "";
      return tensors + "Gloo" + (why.empty() ? "" : " (note: no shared memory, " + why + ")");
    }
    return tensors + "shared memory" +
           (device_ ? " within a machine, Gloo between machines" : " of this machine");
  }

 private:
  // Finds the ranks with which this one shares memory.
  void share_memory(int32_t rank, CommTransport wanted) {
    const std::vector<Peer>& peers = meeting_.member().peers();
    std::vector<int32_t> here;
    for (size_t r = 0; r < peers.size(); ++r) {
      if (peers[r].host == peers[static_cast<size_t>(rank)].host)
        here.push_back(static_cast<int32_t>(r));
    }
    memory_ = std::make_shared<SharedMemory>(*store_, meeting_.member(), rank, here);
    if (wanted != CommTransport::kShm || memory_->size() == static_cast<int>(peers.size())) return;
    // The other ranks refuse to start as well. They must not take this one for lost first.
    meeting_.member().leave();
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("comm.transport = shm, but rank ",
                       rank,
                       " shares memory with ",
                       memory_->size() - 1,
                       " of the other ",
                       peers.size() - 1,
                       " ranks: ",
                       memory_->problem().empty() ? "the others are on other machines, or in "
                                                    "containers with process numbers of their own"
                                                  : memory_->problem()) +
                    "; allowed where that is so: auto, gloo");
  }
  StorePtr group_store(const std::string& name) const {
    return c10::make_intrusive<c10d::PrefixStore>("group/" + name, store_);
  }

  std::chrono::milliseconds timeout_;
  RankDevice* rank_device_;  // NULL on the CPU
  NcclSettings nccl_;
  Meeting meeting_;
  StorePtr store_;
  std::shared_ptr<SharedMemory> memory_;  // NULL with comm.transport = gloo
  // Shared by all groups: one thread serves all sockets. NULL if all ranks share memory.
  std::shared_ptr<GlooDevice> device_;
};

// The transport of ranks that are threads of this process.
class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<VirtualWorld> world, int32_t rank)
      : world_(std::move(world)), rank_(rank) {}

  c10d::Store& store() override { return *world_->store(); }
  c10::intrusive_ptr<c10d::Backend> connect(const std::string& name,
                                            const Members& members) override {
    return c10::make_intrusive<ThreadBackend>(world_->hub(name, members.ranks), members.rank);
  }
  c10::intrusive_ptr<c10d::Backend> connect_device(const std::string&,
                                                   const Members&,
                                                   c10d::Backend*) override {
    throw Error(YOKE_UNIMPLEMENTED,
                "ranks that are threads of one process compute on the CPU only");
  }
  void require_alive() const override { world_->require_alive(); }
  void leave_early() override { world_->abort(concat("rank ", rank_, " ended before the others")); }
  Member* member() override { return nullptr; }
  std::string name() const override { return "memory of the process"; }

 private:
  std::shared_ptr<VirtualWorld> world_;
  int32_t rank_;
};

void check(const Rendezvous& r) {
  const auto refuse = [](const std::string& text) { throw Error(YOKE_INVALID_ARGUMENT, text); };
  if (r.world_size < 1) refuse(concat("a world of ", r.world_size, " ranks; allowed: at least 1"));
  if (r.rank < 0 || r.rank >= r.world_size) {
    refuse(concat(
        "rank ", r.rank, " of a world of ", r.world_size, "; allowed: 0 to ", r.world_size - 1));
  }
  const int ways =
      !r.control_socket.empty() + !r.master_addr.empty() + (r.virtual_world != nullptr);
  if (ways != 1 && r.world_size > 1) {
    refuse(concat(ways,
                  " ways to reach the other ranks are given; allowed: exactly one of a control "
                  "socket, a master address with a port, and a world of threads"));
  }
  if (!r.master_addr.empty() && (r.master_port < 1 || r.master_port > 65535)) {
    refuse(concat("master port ", r.master_port, "; allowed: 1 to 65535"));
  }
  if (!r.interface.empty() && !has_interface(r.interface)) {
    refuse(concat("GLOO_SOCKET_IFNAME = '",
                  r.interface,
                  "', but this machine has no such interface; `ip -brief address` lists the "
                  "interfaces"));
  }
  if (r.virtual_world != nullptr && r.virtual_world->size() != r.world_size) {
    refuse(
        concat("the world of threads has ", r.virtual_world->size(), " ranks, not ", r.world_size));
  }
}

}  // namespace

std::unique_ptr<Transport> make_transport(const Rendezvous& rendezvous,
                                          const CommOptions& options) {
  check(rendezvous);
  if (rendezvous.world_size == 1) return nullptr;
  if (rendezvous.virtual_world != nullptr) {
    return std::make_unique<ThreadTransport>(rendezvous.virtual_world, rendezvous.rank);
  }
  return std::make_unique<ProcessTransport>(rendezvous, options);
}

// The store's own get() would block until its timeout and could be interrupted neither by the
// cancel flag nor by the failure of another rank. So Mailbox::get() polls until the key exists.
void Mailbox::put(const std::string& key, const std::string& value) {
  with_store(concat("writing '", key, "' to the rendezvous store"),
             [&] { transport_->store().set(key, value); });
}

int64_t Mailbox::count(const std::string& key) {
  return with_store(concat("counting '", key, "' in the rendezvous store"),
                    [&] { return transport_->store().add(key, 1); });
}

std::string Mailbox::claim(const std::string& key, const std::string& value) {
  return with_store(concat("writing '", key, "' to the rendezvous store"), [&] {
    const std::vector<uint8_t> none, wanted(value.begin(), value.end());
    const std::vector<uint8_t> now = transport_->store().compareSet(key, none, wanted);
    return std::string(now.begin(), now.end());
  });
}

bool Mailbox::has(const std::vector<std::string>& keys) {
  transport_->require_alive();
  return with_store("looking for the other ranks in the rendezvous store",
                    [&] { return transport_->store().check(keys); });
}

std::optional<std::string> Mailbox::peek(const std::string& key) {
  transport_->require_alive();
  return with_store(concat("reading '", key, "' from the rendezvous store"),
                    [&]() -> std::optional<std::string> {
                      if (!transport_->store().check({key})) return std::nullopt;
                      return transport_->store().get_to_str(key);
                    });
}

std::string Mailbox::get(const std::string& key, const std::string& sender) {
  PollLoop poll(options_, sender);
  for (;;) {
    if (auto value = peek(key)) return *value;
    if (poll.sleep()) continue;
    throw Error(YOKE_DEADLINE_EXCEEDED,
                concat("no message from ",
                       sender,
                       " within ",
                       seconds_text(options_.timeout),
                       "; see the log of that rank, or give more time with comm.timeout"));
  }
}

}  // namespace yoke
