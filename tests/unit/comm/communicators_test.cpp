#include "core/comm/communicators.hpp"

#include <gmock/gmock.h>

#include <set>
#include <string>
#include <vector>

#include "core/cuda/rank_device.hpp"
#include "tests/support/emulated_cuda.hpp"
#include "tests/support/fake_streams.hpp"
#include "tests/support/process_ranks.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct FakeGroup final : c10d::Backend {
  FakeGroup(int rank, int size) : Backend(rank, size) {}
  const std::string getBackendName() const override { return "fake"; }
  void shutdown() override {}
};

// Notes the groups that it is asked for.
class FakeNccl final : public testing::EmulatedRuntime {
 public:
  struct Connected {
    DeviceGroup asked;
    c10d::Backend* made;
  };

  FakeNccl() { replace_cuda_runtime(this); }
  ~FakeNccl() override { replace_cuda_runtime(nullptr); }

  std::vector<Connected> connected;
  std::vector<std::vector<c10d::Backend*>> aborted;

 private:
  c10::intrusive_ptr<c10d::Backend> connect_nccl(const DeviceGroup& group, c10::Device) override {
    auto made = c10::make_intrusive<FakeGroup>(group.rank, static_cast<int>(group.ranks.size()));
    connected.push_back({group, made.get()});
    return made;
  }
  void abort(const std::vector<c10d::Backend*>& groups) override { aborted.push_back(groups); }
};

// Calls body(world, nccl) on each rank of a mesh of 2 replicas with 2 shards.
template <class F>
void on_devices(const NcclSettings& settings, const F& body) {
  test::run_ranks(4, [&](int rank, const std::string& socket) {
    FakeNccl nccl;
    RankDevice device(0);
    CommOptions options;
    options.device = &device;
    options.nccl = settings;
    options.timeout = std::chrono::seconds(77);
    const auto world = test::connect(rank, 4, socket, options);
    world->set_mesh(Mesh({1, 2, 2, 1, 1}));
    body(*world, nccl);
    world->shutdown();
  });
}

constexpr uint32_t kShards = YOKE_AXIS_BIT(YOKE_DP_SHARD),
                   kReplicas = YOKE_AXIS_BIT(YOKE_DP_REPLICATE);

void use_communicators(World& world) {
  for (int again = 0; again < 2; ++again) {
    world.comm(kShards, "unshard");
    world.comm(kShards, "reduce");
    world.comm(kReplicas, "reduce");
    world.comm(YOKE_AXIS_BIT(YOKE_TP), "reduce");  // one rank alone
    world.comm(YOKE_ALL_AXES, "scalars");
  }
}

std::vector<std::vector<int32_t>> members_of(const FakeNccl& nccl) {
  std::vector<std::vector<int32_t>> members;
  for (const auto& group : nccl.connected) members.push_back(group.asked.ranks);
  return members;
}

TEST(Communicators, OfADeviceAreConnectedOnTheirOwn) {
  on_devices({}, [](World& world, const FakeNccl& nccl) {
    use_communicators(world);
    const int32_t r = world.rank(), shard = r / 2 * 2, replica = r % 2;
    using Ranks = std::vector<int32_t>;
    const Ranks shards{shard, shard + 1}, replicas{replica, replica + 2};
    EXPECT_THAT(members_of(nccl), ElementsAre(shards, shards, replicas, Ranks{0, 1, 2, 3}));
    for (const auto& [asked, made] : nccl.connected) {
      EXPECT_EQ(asked.parent, nullptr);
      EXPECT_EQ(asked.ranks.at(asked.rank), r);
    }
  });
}

TEST(Communicators, OfADeviceAreSplitFromOneOfAllRanks) {
  on_devices({.splits = true}, [](World& world, const FakeNccl& nccl) {
    use_communicators(world);
    ASSERT_EQ(nccl.connected.size(), 5u);
    const FakeNccl::Connected& parent = nccl.connected.front();
    EXPECT_EQ(parent.asked.parent, nullptr);
    EXPECT_THAT(parent.asked.ranks, ElementsAre(0, 1, 2, 3));
    std::set<std::string> names;
    for (const auto& [asked, made] : nccl.connected) {
      if (made != parent.made) {
        EXPECT_EQ(asked.parent, parent.made);
      }
      names.insert(asked.name);
    }
    EXPECT_EQ(names.size(), 5u);
  });
}

TEST(Communicators, OfADeviceGetTheSettings) {
  const NcclSettings settings{.cta_policy = NcclSettings::CtaPolicy::kZero,
                              .nvls_ctas = 3,
                              .registers_memory = true,
                              .splits = true};
  on_devices(settings, [](World& world, const FakeNccl& nccl) {
    use_communicators(world);
    for (const auto& [asked, made] : nccl.connected) {
      EXPECT_EQ(asked.settings.cta_policy, NcclSettings::CtaPolicy::kZero);
      EXPECT_EQ(asked.settings.nvls_ctas, 3);
      EXPECT_TRUE(asked.settings.registers_memory);
      EXPECT_EQ(asked.timeout, std::chrono::seconds(77));
    }
  });
}

// NCCL hangs if groups of one device are aborted one by one. Rank 1 waits until rank 0 is lost.
TEST(Communicators, OfADeviceAreAbortedTogether) {
  test::run_ranks(2, [](int rank, const std::string& socket) {
    FakeNccl nccl;
    RankDevice device(0);
    CommOptions options;
    options.device = &device;
    options.nccl.splits = true;
    auto world = test::connect(rank, 2, socket, options);
    world->set_mesh(Mesh({1, 1, 2, 1, 1}));
    if (rank == 1) {
      EXPECT_THROW(
          {
            use_communicators(*world);
            world->await_all("rank 0");
          },
          Error);
      return;
    }
    use_communicators(*world);
    EXPECT_THAT(nccl.aborted, IsEmpty());
    world.reset();
    ASSERT_EQ(nccl.aborted.size(), 1u);
    std::set<c10d::Backend*> made;
    for (const auto& group : nccl.connected) made.insert(group.made);
    EXPECT_EQ(std::set(nccl.aborted[0].begin(), nccl.aborted[0].end()), made);
  });
}

}  // namespace
}  // namespace yoke
