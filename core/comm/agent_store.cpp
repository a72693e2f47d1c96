// c10d's TCPStore reads from its socket without a deadline: if the agent is stopped or its machine
// is lost, a call never returns. So each call runs in a thread of its own, which is left behind if
// it takes too long. The thread owns everything that it uses.
#include "core/comm/agent_store.hpp"

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "core/control/join_wait.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr std::chrono::seconds kCall{10};

// Connects to the store and calls f(store) in a thread.
template <class F>
std::string with_agent(const Rendezvous& r, F f) {
  c10d::TCPStoreOptions tcp;
  tcp.port = static_cast<uint16_t>(r.master_port);
  tcp.waitWorkers = false;
  tcp.timeout = kCall;
  const std::string place = concat(r.master_addr, ":", r.master_port);
  auto result = std::make_shared<std::promise<std::string>>();
  std::future<std::string> future = result->get_future();
  std::thread([result, tcp, f, host = r.master_addr] {
    try {
      c10d::TCPStore store(host, tcp);
      result->set_value(f(store));
    } catch (...) {
      result->set_exception(std::current_exception());
    }
  }).detach();
  if (future.wait_for(kCall) != std::future_status::ready)
    throw Error(YOKE_UNAVAILABLE, "torchrun's store at " + place + " does not answer");
  try {
    return future.get();
  } catch (const std::exception& e) {
    throw Error(YOKE_UNAVAILABLE,
                "torchrun's store at " + place + " cannot be used: " + first_part(e.what()));
  }
}

// The agent keeps its store when it restarts the ranks, so each attempt has a key of its own.
std::string key_of(const Rendezvous& r) {
  return "yoke" + r.attempt + "/hub";
}

}  // namespace

void publish_hub(const Rendezvous& r, const std::string& address) {
  with_agent(r, [key = key_of(r), address](c10d::TCPStore& store) {
    const std::vector<uint8_t> bytes(address.begin(), address.end());
    store.set(key, bytes);
    return std::string();
  });
}

std::string read_hub(const Rendezvous& r, const MemberOptions& options) {
  JoinWait wait(options);
  for (;;) {
    const std::string address = with_agent(r, [key = key_of(r)](c10d::TCPStore& store) {
      if (!store.check({key})) return std::string();
      const std::vector<uint8_t> bytes = store.get(key);
      return std::string(bytes.begin(), bytes.end());
    });
    if (!address.empty()) return address;
    wait.pause("rank 0 has not started yet", YOKE_UNAVAILABLE);
  }
}

}  // namespace yoke
