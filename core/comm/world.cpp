#include <algorithm>
#include <cstring>
#include <utility>

#include "core/comm/communicator.hpp"
#include "core/comm/communicator_impl.hpp"
#include "core/comm/divergence.hpp"
#include "core/comm/meeting.hpp"
#include "core/comm/transport.hpp"
#include "core/comm/waiting.hpp"
#include "core/cuda/rank_device.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

// One communicator with what belongs to it; backend is null for one rank.
struct Entry {
  std::string name;  // "dp_shard (unshard)"
  c10::intrusive_ptr<CountingBackend> backend;
  std::unique_ptr<Communicator> comm;
};

class World final : public CommWorld {
 public:
  World(const Rendezvous& rendezvous, const CommOptions& options)
      : rank_(rendezvous.rank),
        size_(rendezvous.world_size),
        in_threads_(rendezvous.virtual_world != nullptr),
        options_(options),
        transport_(make_transport(rendezvous, options)),
        mailbox_(transport_.get(), options) {
    for (int32_t r = 0; r < size_; ++r) all_ranks_.push_back(r);
    if (size_ > 1 && !in_threads_) meet(mailbox_, rank_, size_, options_);
  }
  ~World() override;

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return size_; }
  bool in_threads() const override { return in_threads_; }
  std::chrono::milliseconds timeout() const override { return options_.timeout; }
  RankDevice* device() const override { return options_.device; }
  void agree(const std::string& what, const std::string& value) override;
  std::string from_rank0(const std::string& key, const std::string& value) override;
  void post(const std::string& key, const std::string& value) override;
  std::optional<std::string> peek(const std::string& key) override;
  void set_mesh(const Mesh& mesh) override;
  Communicator& comm(uint32_t axes, const std::string& purpose) override;
  std::vector<std::string> gather_texts(const std::string& mine) override;
  std::map<std::string, CommCount> counts() const override;
  void reset_counts() override;
  std::vector<OperationCount> counts_by_operation() const override;
  uint64_t running_hash() const override;
  std::optional<std::string> compare_histories() override;
  void check_collectives() override;
  void require_alive() override;
  void shutdown() override;

 private:
  using Key = std::pair<uint32_t, std::string>;

  std::string next_key(const char* kind) {
    return std::string(kind) + std::to_string(++exchanges_);
  }
  std::map<std::string, CommCount> totals() const;
  std::string rank0_says(const std::string& key, const std::string& value);
  std::optional<std::string> verdict_of_rank0(const std::string& key,
                                              const std::string& mine,
                                              const Judge& judge);
  Entry make_entry(uint32_t axes, const std::string& purpose, const std::vector<int32_t>& peers);
  c10d::Backend& control();
  template <class Start>
  void control_operation(const char* what, Start&& start);

  const int32_t rank_;
  const int32_t size_;
  const bool in_threads_;
  const CommOptions options_;
  std::unique_ptr<Transport> transport_;  // null for a world of one rank
  Mailbox mailbox_;
  std::vector<int32_t> all_ranks_;
  uint64_t exchanges_ = 0;  // through the mailbox; the same on every rank
  std::optional<Mesh> mesh_;
  std::map<std::string, std::shared_ptr<Traffic>> traffic_;  // by name of the axes
  std::map<std::string, CommCount> at_reset_;
  std::map<Key, Entry> entries_;
  c10::intrusive_ptr<c10d::Backend> control_;  // over the world, uncounted; made at first use
  bool ended_ = false;
};

// Rank 0's answer on every rank.
std::string World::rank0_says(const std::string& key, const std::string& value) {
  if (rank_ == 0) {
    mailbox_.put(key, value);
    return value;
  }
  return mailbox_.get(key, "rank 0");
}

// Everybody tells rank 0, which judges; all get its verdict.
std::optional<std::string> World::verdict_of_rank0(const std::string& key,
                                                   const std::string& mine,
                                                   const Judge& judge) {
  std::string verdict;
  if (rank_ == 0) {
    std::vector<std::string> all{mine};
    for (int32_t r = 1; r < size_; ++r) {
      all.push_back(mailbox_.get(key + "/" + std::to_string(r), "rank " + std::to_string(r)));
    }
    verdict = judge(all).value_or("");
  } else {
    mailbox_.put(key + "/" + std::to_string(rank_), mine);
  }
  verdict = rank0_says(key + "/verdict", verdict);
  if (verdict.empty()) return std::nullopt;
  return verdict;
}

void World::agree(const std::string& what, const std::string& value) {
  if (size_ == 1) return;
  const auto text =
      verdict_of_rank0(next_key("agree/"), join_fields({what, value}), differing_value);
  if (text) throw Error(YOKE_FAILED_PRECONDITION, *text);
}

std::string World::from_rank0(const std::string& key, const std::string& value) {
  if (size_ == 1) return value;
  const auto said = split_fields(rank0_says(next_key("value/"), join_fields({key, value})));
  if (said.at(0) == key) return said.at(1);
  throw Error(YOKE_FAILED_PRECONDITION,
              "rank " + std::to_string(rank_) + " asks rank 0 for '" + key +
                  "', but rank 0 sends '" + said.at(0) +
                  "': the ranks do not run the same program");
}

void World::post(const std::string& key, const std::string& value) {
  if (size_ > 1) mailbox_.put("note/" + key, value);
}

std::optional<std::string> World::peek(const std::string& key) {
  if (size_ == 1) return std::nullopt;
  return mailbox_.peek("note/" + key);
}

void World::set_mesh(const Mesh& mesh) {
  if (mesh.size() != size_) {
    throw Error(YOKE_INVALID_ARGUMENT,
                "the mesh has " + std::to_string(mesh.size()) + " ranks, the world " +
                    std::to_string(size_));
  }
  if (!entries_.empty()) {
    throw Error(YOKE_FAILED_PRECONDITION,
                "set_mesh after the first communicator; set the mesh once");
  }
  mesh_ = mesh;
}

Communicator& World::comm(uint32_t axes, const std::string& purpose) {
  if ((axes & kKnownAxes) == 0) {
    throw Error(YOKE_INVALID_ARGUMENT,
                "axes " + std::to_string(axes) +
                    "; allowed: YOKE_AXIS_BIT of one or more axes, or YOKE_ALL_AXES");
  }
  axes &= kKnownAxes;
  if (!mesh_) {
    if (size_ > 1) throw Error(YOKE_FAILED_PRECONDITION, "comm() before set_mesh()");
    mesh_ = Mesh({1, 1, 1, 1, 1});
  }
  if (ended_) throw Error(YOKE_FAILED_PRECONDITION, "comm() after shutdown()");
  const auto found = entries_.find({axes, purpose});
  if (found != entries_.end()) return *found->second.comm;
  Entry entry = make_entry(axes, purpose, mesh_->peers(rank_, axes));
  return *entries_.emplace(Key{axes, purpose}, std::move(entry)).first->second.comm;
}

Entry World::make_entry(uint32_t axes,
                        const std::string& purpose,
                        const std::vector<int32_t>& peers) {
  const std::string axes_text = axes_name(axes);
  Entry entry{axes_text + " (" + purpose + ")", nullptr, nullptr};
  if (peers.size() == 1) {
    entry.comm = make_self_communicator(rank_, entry.name, options_.device != nullptr);
    return entry;
  }
  // Members would wait for each other in vain if the ranks made their communicators in different
  // orders.
  agree("the next communicator", entry.name);
  Members members{peers, 0};
  while (peers[members.rank] != rank_) ++members.rank;
  const std::string name = entry.name + " of rank " + std::to_string(peers[0]);
  const bool on_device = options_.device != nullptr;
  CountingBackend::Setup setup{
      on_device ? transport_->connect_device(name, members) : transport_->connect(name, members),
      nullptr,
      axes_text,
      purpose,
      peers,
      options_,
      nullptr,
      on_device};
  if (options_.check == CommCheck::kFull) {
    setup.check = transport_->connect(name + ", check", members);
  }
  auto& traffic = traffic_[axes_text];
  if (!traffic) traffic = std::make_shared<Traffic>();
  setup.traffic = traffic;
  entry.backend = c10::make_intrusive<CountingBackend>(std::move(setup), members.rank);
  entry.comm = make_communicator(entry.backend, name);
  return entry;
}

std::map<std::string, CommCount> World::totals() const {
  std::map<std::string, CommCount> totals;
  for (const auto& [name, traffic] : traffic_) {
    CommCount& sum = totals[name];
    for (const auto& [operation, count] : traffic->counts()) {
      sum.calls += count.calls;
      sum.bytes += count.bytes;
      sum.seconds += count.seconds;
    }
  }
  return totals;
}

std::map<std::string, CommCount> World::counts() const {
  std::map<std::string, CommCount> counts = totals();
  for (const auto& [name, before] : at_reset_) {
    CommCount& count = counts[name];
    count.calls -= before.calls;
    count.bytes -= before.bytes;
    count.seconds -= before.seconds;
  }
  return counts;
}

void World::reset_counts() {
  at_reset_ = totals();
}

std::vector<OperationCount> World::counts_by_operation() const {
  std::vector<OperationCount> all;
  for (const auto& [name, traffic] : traffic_) {
    for (const auto& [operation, count] : traffic->counts()) {
      all.push_back({name, name_of(operation.first), dtype_text(operation.second), count});
    }
  }
  return all;
}

uint64_t World::running_hash() const {
  uint64_t hash = 0;
  for (const auto& [key, entry] : entries_) {
    if (entry.backend) hash = mix_hash(hash, entry.backend->history().hash());
  }
  return hash;
}

std::optional<std::string> World::compare_histories() {
  if (size_ == 1) return std::nullopt;
  std::vector<NamedHistory> histories;
  for (const auto& [key, entry] : entries_) {
    if (entry.backend) histories.push_back({entry.name, key.first, entry.backend->history()});
  }
  return verdict_of_rank0(
      next_key("history/"), pack_histories(histories), [&](const std::vector<std::string>& all) {
        return differing_history(all, *mesh_);
      });
}

c10d::Backend& World::control() {
  if (!control_) control_ = transport_->connect("control", {all_ranks_, rank_});
  return *control_;
}

template <class Start>
void World::control_operation(const char* what, Start&& start) {
  const auto describe = [&] { return Awaited{what, "world"}; };
  c10::intrusive_ptr<c10d::Work> work;
  try {
    work = start(control());
  } catch (...) {
    throw translate(std::current_exception(), describe(), options_, YOKE_INTERNAL);
  }
  await(*work, options_, true, describe);
}

std::vector<std::string> World::gather_texts(const std::string& mine) {
  if (size_ == 1) return {mine};
  const auto all_gather = [&](at::Tensor& all, at::Tensor& part) {
    control_operation("exchange of texts", [&](c10d::Backend& backend) {
      return backend._allgather_base(all, part, c10d::AllgatherOptions());
    });
  };
  at::Tensor length = at::full({1}, static_cast<int64_t>(mine.size()), at::kLong);
  at::Tensor lengths = at::empty({size_}, at::kLong);
  all_gather(lengths, length);
  const int64_t longest = std::max<int64_t>(lengths.max().item<int64_t>(), 1);
  at::Tensor part = at::zeros({longest}, at::kByte);
  std::memcpy(part.data_ptr(), mine.data(), mine.size());
  at::Tensor all = at::empty({size_ * longest}, at::kByte);
  all_gather(all, part);
  std::vector<std::string> texts;
  for (int32_t r = 0; r < size_; ++r) {
    texts.emplace_back(static_cast<const char*>(all.data_ptr()) + r * longest,
                       lengths[r].item<int64_t>());
  }
  return texts;
}

void World::check_collectives() {
  if (size_ == 1 || options_.check == CommCheck::kOff) return;
  // If all hashes are equal to h, their sum is n h and the sum of their squares n h^2, and
  // (Cauchy-Schwarz) only then. 20 bits keep both exact in a double for up to 8192 ranks.
  const auto hash = static_cast<double>(running_hash() & ((1u << 20) - 1));
  at::Tensor sums = at::empty({2}, at::kDouble);
  double* sum = sums.data_ptr<double>();
  sum[0] = hash;
  sum[1] = hash * hash;
  control_operation("comparison of the collectives issued so far", [&](c10d::Backend& backend) {
    std::vector<at::Tensor> tensors{sums};
    return backend.allreduce(tensors, c10d::AllreduceOptions());
  });
  // The same numbers on every rank, so all take the same branch.
  const auto squared = static_cast<long double>(sum[0]) * sum[0];
  if (squared == static_cast<long double>(sum[1]) * size_) return;
  const auto text = compare_histories();
  throw Error(
      YOKE_FAILED_PRECONDITION,
      text.value_or("the ranks have issued different collectives on communicators that they "
                    "do not share; comm.check=off allows that"));
}

void World::require_alive() {
  for (const auto& [key, entry] : entries_) {
    if (entry.backend) entry.backend->require_alive();
  }
}

void World::shutdown() {
  if (size_ > 1 && !ended_) {
    control_operation("orderly end", [](c10d::Backend& backend) {
      return backend.barrier(c10d::BarrierOptions());
    });
    // NCCL's threads must be gone before the process ends.
    for (const auto& [key, entry] : entries_) {
      if (entry.backend && options_.device != nullptr) entry.backend->shutdown();
    }
  }
  ended_ = true;
}

World::~World() {
  if (size_ == 1 || ended_) return;
  transport_->desert();
  // What is still under way would keep the transport's threads, and so this thread, until it times
  // out.
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
  } catch (const std::exception&) {  // the run has failed already, and has said why
  }
  if (control_) control_->abort();
}

}  // namespace

std::unique_ptr<CommWorld> CommWorld::connect(const Rendezvous& rendezvous,
                                              const CommOptions& options) {
  return std::make_unique<World>(rendezvous, options);
}

}  // namespace yoke
