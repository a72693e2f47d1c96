// There are three channels. Notes travel over the control connections, so that looking for one
// costs no message. The store needs no connections between the ranks, so it works before any group
// exists and while ranks disagree about the next operation, but each message costs milliseconds. A
// group of all ranks is used for what happens at every step and for long texts. It is separate from
// the communicators of the training, so it affects neither their order of operations nor their
// counters.
#include "core/comm/control_plane.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/comm/polling.hpp"
#include "core/comm/work_wait.hpp"
#include "core/control/member.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {

ControlPlane::ControlPlane(const Rendezvous& rendezvous,
                           Transport* transport,
                           const CommOptions& options)
    : rank_(rendezvous.rank),
      size_(rendezvous.world_size),
      options_(options),
      transport_(transport),
      mailbox_(transport, options) {}

// Exchanges are numbered, so that a key is never used twice. All ranks take part in every exchange,
// so their numbers agree.
std::string ControlPlane::next_key(const std::string& purpose) {
  return concat(purpose, "/", ++exchanges_);
}

std::string ControlPlane::value_of_rank0(const std::string& key, const std::string& value) {
  if (rank_ == 0) {
    mailbox_.put(key, value);
    return value;
  }
  return mailbox_.get(key, "rank 0");
}

std::optional<std::string> ControlPlane::compare_on_rank0(const std::string& purpose,
                                                          const std::string& mine,
                                                          const Comparison& compare) {
  if (size_ == 1) return std::nullopt;
  const std::string key = next_key(purpose);
  std::string result;  // "" = no difference
  if (rank_ == 0) {
    std::vector<std::string> all{mine};
    for (int32_t r = 1; r < size_; ++r) {
      all.push_back(mailbox_.get(concat(key, "/", r), concat("rank ", r)));
    }
    result = compare(all).value_or("");
  } else {
    mailbox_.put(concat(key, "/", rank_), mine);
  }
  result = value_of_rank0(key + "/result", result);
  if (result.empty()) return std::nullopt;
  return result;
}

void ControlPlane::agree(const std::string& what, const std::string& value) {
  const auto difference = compare_on_rank0("agree", join_fields({what, value}), differing_value);
  if (difference) throw Error(YOKE_FAILED_PRECONDITION, *difference);
}

std::string ControlPlane::from_rank0(const std::string& key, const std::string& value) {
  if (size_ == 1) return value;
  // The key is sent along with the value, to detect ranks that run different programs.
  const auto sent = split_fields(value_of_rank0(next_key("value"), join_fields({key, value})));
  if (sent.at(0) == key) return sent.at(1);
  throw Error(YOKE_FAILED_PRECONDITION,
              concat("rank ",
                     rank_,
                     " expects '",
                     key,
                     "' from rank 0, but rank 0 sends '",
                     sent.at(0),
                     "': the ranks do not run the same program"));
}

// The last rank leaves a note, for which the others look without sending messages.
void ControlPlane::await_all(const std::string& what) {
  if (size_ == 1) return;
  const std::string key = next_key("await");
  if (mailbox_.count(key) == size_) post(key, what);
  PollLoop poll(options_, what, PollLoop::Limit::kNone);
  while (!peek(key)) poll.sleep();
}

void ControlPlane::post(const std::string& key, const std::string& value) {
  if (size_ == 1) return;
  if (options_.member != nullptr) {
    options_.member->post(key, value, options_.timeout);
  } else {
    mailbox_.put("note/" + key, value);
  }
}

std::optional<std::string> ControlPlane::peek(const std::string& key) {
  if (size_ == 1) return std::nullopt;
  if (options_.member == nullptr) return mailbox_.peek("note/" + key);
  options_.member->require_alive();
  return options_.member->peek(key);
}

c10d::Backend& ControlPlane::group() {
  if (!group_) {
    std::vector<int32_t> all(static_cast<size_t>(size_));
    std::iota(all.begin(), all.end(), 0);
    group_ = transport_->connect("control", {all, rank_});
  }
  return *group_;
}

// Starts an operation of the group and waits for it. It counts as a collective for the member: if a
// rank hangs before it, the hub must see that this rank is behind.
template <class Start>
void ControlPlane::run(const char* what, Start&& start) {
  if (options_.member != nullptr) options_.member->count_collective();
  const auto describe = [&] { return PendingOperation{what, "world"}; };
  c10::intrusive_ptr<c10d::Work> work;
  try {
    work = start(group());
  } catch (...) {
    throw translate(std::current_exception(), describe(), options_, YOKE_INTERNAL);
  }
  wait_for(*work, options_, true, describe);
}

// Two all_gathers: one of the lengths, then one of all texts, padded to the longest.
std::vector<std::string> ControlPlane::gather_texts(const std::string& mine) {
  if (size_ == 1) return {mine};
  constexpr char kWhat[] = "exchange of texts";
  const auto lengths = gather_numbers({static_cast<int64_t>(mine.size())}, kWhat);
  const int64_t longest = std::max<int64_t>(*std::max_element(lengths.begin(), lengths.end()), 1);
  at::Tensor part = at::zeros({longest}, at::kByte);
  std::memcpy(part.data_ptr(), mine.data(), mine.size());
  at::Tensor all = at::empty({size_ * longest}, at::kByte);
  run(kWhat, [&](c10d::Backend& backend) {
    return backend._allgather_base(all, part, c10d::AllgatherOptions());
  });
  std::vector<std::string> texts;
  for (int32_t r = 0; r < size_; ++r)
    texts.emplace_back(static_cast<const char*>(all.data_ptr()) + r * longest, lengths[r]);
  return texts;
}

std::vector<int64_t> ControlPlane::gather_numbers(const std::vector<int64_t>& mine,
                                                  const char* what) {
  if (size_ == 1) return mine;
  at::Tensor part = at::tensor(mine, at::kLong);
  at::Tensor all = at::empty({size_ * part.numel()}, at::kLong);
  run(what, [&](c10d::Backend& backend) {
    return backend._allgather_base(all, part, c10d::AllgatherOptions());
  });
  const int64_t* numbers = all.const_data_ptr<int64_t>();
  return {numbers, numbers + all.numel()};
}

void ControlPlane::barrier(const char* what) {
  if (size_ == 1) return;
  run(what, [](c10d::Backend& backend) { return backend.barrier(c10d::BarrierOptions()); });
}

void ControlPlane::abort() {
  if (group_) group_->abort();
}

}  // namespace yoke
