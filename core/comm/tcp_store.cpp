#include "core/comm/tcp_store.hpp"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "core/base/network.hpp"
#include "core/comm/patience.hpp"
#include "core/comm/waiting.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

// Waits until `ready` finds nothing wrong with the address; its text is the reason to wait.
template <class Ready>
void await_place(const Rendezvous& r, const CommOptions& options, Ready&& ready) {
  const std::string place = r.master_addr + ":" + std::to_string(r.master_port);
  Patience patience(options, "rank 0 at " + place);
  for (;;) {
    const SocketAddress at = resolve(r.master_addr, r.master_port);
    const bool known = at.fault.empty();
    std::string text = "MASTER_ADDR = '" + r.master_addr + "' has no address (" + at.fault + ")";
    if (known) {
      const std::string reason = ready(at);
      if (reason.empty()) return;
      text = "rank 0 cannot be reached at " + place + " (" + reason + ")";
    }
    const auto state = [&] {
      return "rank " + std::to_string(r.rank) + " of " + std::to_string(r.world_size) +
             " is waiting: " + text;
    };
    if (patience.wait(state)) continue;
    throw Error(known ? YOKE_UNAVAILABLE : YOKE_INVALID_ARGUMENT,
                text + "; gave up after " + seconds_text(options.timeout) +
                    " (comm.timeout); is MASTER_ADDR the host of rank 0, was rank 0 started, may "
                    "its port be reached from here?");
  }
}

int listen(const Rendezvous& r, const CommOptions& options) {
  await_place(r, options, [](const SocketAddress&) { return ""; });
  std::string fault;
  FileDescriptor fd = listen_at(resolve(r.master_addr, r.master_port), fault);
  if (fd.open()) return fd.release();
  throw Error(YOKE_INVALID_ARGUMENT,
              "rank 0 cannot listen at MASTER_PORT = " + std::to_string(r.master_port) + ": " +
                  fault + "; choose another MASTER_PORT for all ranks (ss -ltnp shows who has it)");
}

}  // namespace

c10::intrusive_ptr<c10d::Store> open_tcp_store(const Rendezvous& r, const CommOptions& options) {
  c10d::TCPStoreOptions tcp;
  tcp.port = static_cast<uint16_t>(r.master_port);
  tcp.isServer = r.rank == 0 && !r.store_served;
  tcp.numWorkers = r.world_size;
  tcp.waitWorkers = false;  // that is for meet()
  tcp.timeout = options.timeout;
  if (tcp.isServer) tcp.masterListenFd = listen(r, options);
  await_place(r, options, try_connect);  // rank 0, too: is it this machine that all are told of?
  return c10::make_intrusive<c10d::TCPStore>(r.master_addr, tcp);
}

}  // namespace yoke
