// c10d's TCPStore reports an unknown host, a refused connection and a port in use with the same
// kind of exception, after its own timeout. So the address is first resolved and tried here, and
// the store is constructed only after a connection has succeeded. Rank 0 opens the listening socket
// itself and passes it to the store; otherwise the reason for a failed bind would be lost.
#include "core/comm/tcp_store.hpp"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "core/base/network.hpp"
#include "core/comm/polling.hpp"
#include "core/comm/work_wait.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// Waits until the host has an address and probe(address) returns "". Any other text says why the
// attempt failed: the loop tries again, and the error after the timeout quotes the latest text.
template <class Probe>
void wait_for_address(const Rendezvous& r, const CommOptions& options, Probe&& probe) {
  const std::string place = concat(r.master_addr, ":", r.master_port);
  PollLoop poll(options, "rank 0 at " + place);
  for (;;) {
    const SocketAddress address = resolve(r.master_addr, r.master_port);
    const bool known = address.fault.empty();
    std::string text =
        concat("MASTER_ADDR = '", r.master_addr, "' has no address (", address.fault, ")");
    if (known) {
      const std::string reason = probe(address);
      if (reason.empty()) return;
      text = concat("rank 0 cannot be reached at ", place, " (", reason, ")");
    }
    const auto status = [&] {
      return concat("rank ", r.rank, " of ", r.world_size, " is waiting: ", text);
    };
    if (poll.sleep(status)) continue;
    throw Error(known ? YOKE_UNAVAILABLE : YOKE_INVALID_ARGUMENT,
                concat(text,
                       "; gave up after ",
                       seconds_text(options.timeout),
                       " (comm.timeout); check that MASTER_ADDR is the host of rank 0, that rank 0 "
                       "has started, and that no firewall blocks its port"));
  }
}

int listen(const Rendezvous& r, const CommOptions& options) {
  wait_for_address(r, options, [](const SocketAddress&) { return ""; });
  std::string fault;
  FileDescriptor fd = listen_at(resolve(r.master_addr, r.master_port), fault);
  if (fd.open()) return fd.release();
  throw Error(
      YOKE_INVALID_ARGUMENT,
      concat("rank 0 cannot listen at MASTER_PORT = ",
             r.master_port,
             ": ",
             fault,
             "; choose another MASTER_PORT for all ranks (ss -ltnp lists the ports in use)"));
}

}  // namespace

c10::intrusive_ptr<c10d::Store> open_tcp_store(const Rendezvous& r, const CommOptions& options) {
  c10d::TCPStoreOptions tcp;
  tcp.port = static_cast<uint16_t>(r.master_port);
  tcp.isServer = r.rank == 0 && !r.store_served;
  tcp.numWorkers = r.world_size;
  tcp.waitWorkers = false;  // wait_for_all_ranks() does that, with better messages
  tcp.timeout = options.timeout;
  if (tcp.isServer) tcp.masterListenFd = listen(r, options);
  // Rank 0 connects to itself through MASTER_ADDR too: this tests whether the address that the
  // other ranks use belongs to this machine.
  wait_for_address(r, options, try_connect);
  return c10::make_intrusive<c10d::TCPStore>(r.master_addr, tcp);
}

}  // namespace yoke
