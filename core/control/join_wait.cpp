#include "core/control/join_wait.hpp"

#include <thread>

#include "core/base/text.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr std::chrono::milliseconds kBetweenAttempts{200};
constexpr std::chrono::seconds kBetweenReports{5};

}  // namespace

JoinWait::JoinWait(const MemberOptions& options)
    : options_(options),
      deadline_(Clock::now() + options.join_timeout),
      report_(Clock::now() + kBetweenReports) {}

void JoinWait::check_cancel() const {
  if (options_.cancel != nullptr && options_.cancel->load())
    throw Error(YOKE_CANCELLED, "cancelled while waiting for the other ranks");
}

void JoinWait::pause(const std::string& why, int32_t code) {
  check_cancel();
  const Clock::time_point now = Clock::now();
  if (now > deadline_) {
    throw Error(code,
                why + "; gave up after " + seconds_text(options_.join_timeout) +
                    " (launch.join_timeout); check that MASTER_ADDR is the host of rank 0, that "
                    "rank 0 has started, and that no firewall blocks its port");
  }
  if (options_.progress && now >= report_) {
    report_ = now + kBetweenReports;
    options_.progress(
        concat("rank ", options_.rank, " of ", options_.world_size, " is waiting: ", why));
  }
  std::this_thread::sleep_for(kBetweenAttempts);
}

std::string no_address_text(const std::string& host, const std::string& fault) {
  return concat("MASTER_ADDR = '", host, "' has no address (", fault, ")");
}

}  // namespace yoke
