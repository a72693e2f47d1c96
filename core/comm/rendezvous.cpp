// Rank 0 starts the hub and then joins it as every other rank does, through the address that the
// others use. So a MASTER_ADDR that does not lead to rank 0 is noticed by rank 0 itself.
//
// torchrun's agent already listens at MASTER_PORT. Its store is used for one thing: rank 0 leaves
// the address of its hub there.
#include "core/comm/rendezvous.hpp"

#include <unistd.h>

#include <charconv>

#include "core/base/network.hpp"
#include "core/comm/agent_store.hpp"
#include "core/comm/communicator.hpp"
#include "core/control/decline.hpp"
#include "core/control/join_wait.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

ControlAddress address_of(const Rendezvous& r) {
  return {r.control_socket, r.master_addr, r.master_port};
}

MemberOptions member_options(const Rendezvous& r, const CommOptions& options) {
  return {.rank = r.rank,
          .world_size = r.world_size,
          .job = r.job,
          .secret = r.secret,
          .join_timeout = options.join_timeout,
          .lost_after = options.lost_after,
          .cancel = options.stop,
          .progress = options.progress};
}

// On a cluster the name of a machine may appear seconds after the machine itself.
void wait_for_name(const Rendezvous& r, const CommOptions& options) {
  const MemberOptions waiting = member_options(r, options);
  JoinWait wait(waiting);
  for (;;) {
    const std::string fault = resolve(r.master_addr, r.master_port).fault;
    if (fault.empty()) return;
    wait.pause(no_address_text(r.master_addr, fault), YOKE_INVALID_ARGUMENT);
  }
}

// Opens the socket of the hub, at a free port if the agent of torchrun has MASTER_PORT.
FileDescriptor open_listener(const Rendezvous& r) {
  ControlAddress at = address_of(r);
  if (r.store_served) {
    at = {"", address_towards(r.master_addr), 0};
    if (at.host.empty()) at.host = r.master_addr;
  }
  std::string fault;
  FileDescriptor listener = listen_for_members(at, r.one_machine(), fault);
  if (listener.open()) return listener;
  throw Error(
      YOKE_INVALID_ARGUMENT,
      r.control_socket.empty()
          ? concat("rank 0 cannot listen at MASTER_ADDR = ", r.master_addr, ", MASTER_PORT = ") +
                concat(r.master_port, ": ", fault) +
                "; choose another MASTER_PORT for all ranks (ss -ltnp lists the ports in use), and "
                "as MASTER_ADDR the host of rank 0"
          : concat("cannot make the socket ", r.control_socket, ": ", fault));
}

std::unique_ptr<Hub> start_hub(const Rendezvous& r, const CommOptions& options) {
  if (r.control_socket.empty()) wait_for_name(r, options);
  FileDescriptor listener = open_listener(r);
  if (r.store_served) {
    const std::string near = near_address(listener.get());
    // A socket that listens everywhere has no address of its own.
    const bool everywhere = near == "0.0.0.0" || near == "::" || is_loopback(near);
    publish_hub(r, concat(everywhere ? r.master_addr : near, " ", near_port(listener.get())));
  }
  HubOptions hub{.world_size = r.world_size,
                 .host = own_host(),
                 .process = concat(::getpid()),
                 .job = r.job,
                 .secret = r.secret,
                 .join_timeout = options.join_timeout,
                 .lost_after = options.lost_after};
  return std::make_unique<Hub>(std::move(listener), std::move(hub), options.progress);
}

// "10.0.0.1 40123"
ControlAddress published_address(const std::string& text) {
  ControlAddress at;
  const size_t space = text.rfind(' ');
  at.host = text.substr(0, space);
  std::from_chars(text.data() + space + 1, text.data() + text.size(), at.port);
  return at;
}

}  // namespace

Meeting::Meeting(const Rendezvous& r, const CommOptions& options) {
  if (r.rank == 0) hub_ = start_hub(r, options);
  const MemberOptions joining = member_options(r, options);
  const auto where = [&] {
    return r.store_served ? published_address(read_hub(r, joining)) : address_of(r);
  };
  member_ = Member::join(where, joining, r.introduction);
}

void decline(const Rendezvous& r, const std::string& why) noexcept {
  // torchrun's agents end the other ranks themselves.
  if (r.world_size == 1 || r.virtual_world != nullptr || r.store_served) return;
  decline_run({.at = address_of(r),
               .rank = r.rank,
               .world_size = r.world_size,
               .one_machine = r.one_machine(),
               .job = r.job,
               .secret = r.secret},
              why);
}

}  // namespace yoke
