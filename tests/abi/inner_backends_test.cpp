// Tests the service through which a backend opens an inner backend, for all ranks or for those
// along some axes.
#include "core/backend/inner_backends.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/backend/loader.hpp"
#include "core/backend/services.hpp"
#include "tests/abi/toys.hpp"
#include "tests/support/virtual_ranks.hpp"
#include "yoke/options.hpp"
#include "yoke/torch.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::Toys;

// The configuration of a run whose backend_path contains the toy and that sets one of its options.
struct ToyRun {
  explicit ToyRun(int64_t gear = 4) {
    toys.copy("");
    config.backend_path = {toys.folder().path().string()};
    config.backend_options = {{"toy", "gear", Value{gear}, "run.toml:7", std::nullopt}};
  }
  Toys toys;
  RunConfig config;
};

YokeInnerBackend blank() {
  YokeInnerBackend inner{};
  inner.header = YOKE_HEADER(YokeInnerBackend, YOKE_ID_INNER_BACKEND);
  return inner;
}

const YokeBackends& service_of(const YokeHeader* header) {
  EXPECT_EQ(header->struct_id, uint32_t{YOKE_ID_BACKENDS});
  return *reinterpret_cast<const YokeBackends*>(header);
}

TEST(InnerBackends, AreFoundAsTheRunsOwnAndGetTheOptionsOfTheirTable) {
  const ToyRun run;
  InnerBackends backends(run.config);
  const YokeBackends& service = service_of(backends.for_plan());
  YokeInnerBackend inner = blank();
  YokeError err = make_error();
  ASSERT_EQ(service.open(service.ctx, "toy", YOKE_ALL_AXES, &inner, &err), YOKE_OK) << err.text;
  const YokeDescription* description = nullptr;
  ASSERT_EQ(inner.table->describe(&description, &err), YOKE_OK);
  EXPECT_EQ(view(description->name), "toy");
  const Options options(inner.options, inner.num_options);
  EXPECT_EQ(options.integer("gear"), 4);
  EXPECT_TRUE(options.given("gear"));
  EXPECT_EQ(options.string("colour"), "red");
  EXPECT_EQ(inner.host, nullptr) << "no ranks yet";
  EXPECT_EQ(&backends.open("toy"), backends.opened().at(0)) << "opened once";
  EXPECT_FALSE(backends.any_unusable());
}

TEST(InnerBackends, SayWhatIsWrongWithAName) {
  const ToyRun run(9);
  InnerBackends backends(run.config);
  EXPECT_THAT(message_of([&] { backends.open("toy"); }), HasSubstr("run.toml:7: toy.gear = 9"));
  EXPECT_FALSE(backends.any_unusable()) << "the backend was found; only its options are wrong";
  EXPECT_THAT(message_of([&] { backends.open("toi"); }), HasSubstr("did you mean 'toy'?"));
  EXPECT_TRUE(backends.any_unusable());
  const YokeBackends& service = service_of(backends.for_plan());
  YokeInnerBackend inner = blank();
  YokeError err = make_error();
  EXPECT_EQ(service.open(service.ctx, nullptr, YOKE_ALL_AXES, &inner, &err), YOKE_INVALID_ARGUMENT);
}

TEST(InnerBackends, PassTraitsAndKindsOnToABackendThatDependsOnThem) {
  const ToyRun run;
  const LoadedBackend plain = load_backend(run.toys.copy("later"));
  const LoadedBackend on_top = load_backend(run.toys.copy("on_top"));
  run.toys.copy("own_update");
  InnerBackends backends(run.config);
  EXPECT_EQ(traits_of(on_top, backends), uint32_t{YOKE_BY_OPTIONS}) << "nothing is opened yet";
  EXPECT_TRUE(state_kinds_of(on_top, backends).empty());
  backends.open("toy_own_update");
  EXPECT_EQ(traits_of(on_top, backends), uint32_t{YOKE_BY_OPTIONS | YOKE_OWN_UPDATE});
  const std::vector<StateKind> kinds = state_kinds_of(on_top, backends);
  ASSERT_EQ(kinds.size(), 1u);
  EXPECT_EQ(kinds[0].name, "residual");
  EXPECT_TRUE(kinds[0].per_rank);
  EXPECT_EQ(traits_of(plain, backends), 0u) << "it does not depend on what it opens";
  EXPECT_TRUE(state_kinds_of(plain, backends).empty());
}

// Runs 4 ranks as 2 replicas of 2 shards.
TEST(InnerBackends, GetAHostOfTheRanksAlongTheAxes) {
  const ToyRun run;
  InnerBackends backends(run.config);
  test::orderly_virtual_ranks(4, {}, [&](World& world) {
    world.set_mesh(Mesh({1, 2, 2, 1, 1}));
    HostServices services(
        world, [](int32_t, const std::string&) {}, nullptr, &backends);
    const YokeHost& host = *services.host();
    const YokeBackends& service =
        service_of(host.get_service(host.ctx, "yoke.backends/1", sizeof(YokeBackends)));
    YokeError err = make_error();
    YokeInnerBackend whole = blank(), part = blank();
    ASSERT_EQ(service.open(service.ctx, "toy", YOKE_ALL_AXES, &whole, &err), YOKE_OK) << err.text;
    EXPECT_EQ(whole.host, &host);
    const uint32_t shards = YOKE_AXIS_BIT(YOKE_DP_SHARD);
    ASSERT_EQ(service.open(service.ctx, "toy", shards, &part, &err), YOKE_OK) << err.text;
    EXPECT_EQ(part.host->world_size, 2);
    EXPECT_EQ(part.host->rank, world.rank() % 2);

    // The world of `part` has two ranks. The sum of their global rank numbers shows which two they
    // are.
    const auto& collectives = *reinterpret_cast<const YokeCollectives*>(
        part.host->get_service(part.host->ctx, "yoke.collectives/1", sizeof(YokeCollectives)));
    YokeComm* comm = nullptr;
    ASSERT_EQ(collectives.comm(collectives.ctx, YOKE_ALL_AXES, "test", &comm, &err), YOKE_OK);
    EXPECT_EQ(collectives.size(comm), 2);
    const at::Tensor sum = at::full({1}, world.rank(), at::kFloat);
    ASSERT_EQ(collectives.all_reduce(comm, TensorView(sum).get(), YOKE_SUM, nullptr, &err),
              YOKE_OK);
    EXPECT_EQ(sum.item<float>(), world.rank() < 2 ? 1 : 5);
  });
}

TEST(InnerBackends, AreNoServiceOfAHostThatOpensNone) {
  const auto world = World::connect({}, {});
  HostServices services(
      *world, [](int32_t, const std::string&) {}, nullptr);
  const YokeHost& host = *services.host();
  EXPECT_EQ(host.get_service(host.ctx, "yoke.backends/1", 0), nullptr);
}

}  // namespace
}  // namespace yoke
