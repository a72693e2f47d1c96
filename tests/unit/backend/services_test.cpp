#include "core/backend/services.hpp"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "tests/support/virtual_ranks.hpp"
#include "yoke/error.hpp"
#include "yoke/torch.hpp"

extern "C" int collectives_client(const YokeHost* host, YokeError* err);

namespace yoke::test {
namespace {

TEST(HostServices, ServeAnAuthorInC) {
  for (const int ranks : {1, 2, 4}) {
    orderly_virtual_ranks(ranks, {}, [&](World& world) {
      world.set_mesh(Mesh({1, 1, ranks, 1, 1}));
      HostServices services(
          world, [](int32_t, const std::string&) {}, nullptr);
      YokeError err = make_error();
      EXPECT_EQ(collectives_client(services.host(), &err), 0) << err.text;
      EXPECT_EQ(world.counts().count("dp_shard"), ranks == 1 ? 0u : 1u);
    });
  }
}

// A world of one rank and its services.
struct Fixture {
  std::unique_ptr<World> world = World::connect({}, {});
  std::vector<std::pair<int32_t, std::string>> log;
  std::atomic<bool> cancel{false};
  HostServices services{
      *world,
      [this](int32_t level, const std::string& text) { log.emplace_back(level, text); },
      &cancel};
  const YokeHost* host = services.host();
  const YokeCollectives* collectives = reinterpret_cast<const YokeCollectives*>(
      host->get_service(host->ctx, "yoke.collectives/1", sizeof(YokeCollectives)));
  YokeError err = make_error();

  YokeComm* comm() {
    YokeComm* comm = nullptr;
    EXPECT_EQ(collectives->comm(collectives->ctx, YOKE_ALL_AXES, "test", &comm, &err), YOKE_OK);
    return comm;
  }
};

TEST(HostServices, LogAndReportACancel) {
  Fixture f;
  f.host->log(f.host->ctx, YOKE_LOG_WARNING, view("one line"));
  EXPECT_EQ(f.log, (std::vector<std::pair<int32_t, std::string>>{{YOKE_LOG_WARNING, "one line"}}));
  EXPECT_EQ(f.host->check_cancel(f.host->ctx), 0);
  f.cancel = true;
  EXPECT_EQ(f.host->check_cancel(f.host->ctx), 1);
  EXPECT_EQ(f.host->rank, 0);
  EXPECT_EQ(f.host->world_size, 1);
}

TEST(HostServices, KnowOneServiceOfItsSize) {
  Fixture f;
  EXPECT_NE(f.host->get_service(f.host->ctx, "yoke.collectives/1", 0), nullptr);
  EXPECT_EQ(f.host->get_service(f.host->ctx, "yoke.collectives/1", sizeof(YokeCollectives) + 8),
            nullptr);
  EXPECT_EQ(f.host->get_service(f.host->ctx, "yoke.collectives/2", 0), nullptr);
  EXPECT_EQ(f.host->get_service(f.host->ctx, nullptr, 0), nullptr);
}

TEST(HostServices, GiveTheProcessGroupByName) {
  Fixture f;
  auto* group =
      static_cast<c10d::ProcessGroup*>(f.collectives->native(f.comm(), "c10d::ProcessGroup"));
  ASSERT_NE(group, nullptr);
  EXPECT_EQ(group->getSize(), 1);
  EXPECT_EQ(f.collectives->native(f.comm(), "ncclComm_t"), nullptr);
}

TEST(HostServices, RefuseWhatIsWrongAndSayWhat) {
  Fixture f;
  YokeComm* comm = f.comm();
  const auto& c = *f.collectives;
  float data[6] = {1, 2, 3, 4, 5, 6};
  int64_t shape[2] = {2, 3}, strides[2] = {1, 2};
  YokeTensor t{data, {YOKE_DEVICE_CPU, 0}, 2, data_type(YOKE_F32), shape, nullptr, 0};
  YokeWork* work = nullptr;
  const auto refused = [&](int32_t code, const char* part) {
    EXPECT_EQ(code, YOKE_INVALID_ARGUMENT) << part;
    EXPECT_NE(std::string(f.err.text).find(part), std::string::npos) << f.err.text;
    EXPECT_EQ(work, nullptr);
  };
  ASSERT_EQ(c.all_reduce(comm, &t, YOKE_SUM, nullptr, &f.err), YOKE_OK) << f.err.text;
  refused(c.all_reduce(comm, &t, 7, &work, &f.err), "reduce operation 7");
  refused(c.all_reduce(comm, nullptr, YOKE_SUM, &work, &f.err), "all_reduce: inout is NULL");
  refused(c.all_reduce(nullptr, &t, YOKE_SUM, &work, &f.err), "comm is NULL");
  refused(c.broadcast(comm, &t, 1, &work, &f.err), "root 1; allowed: 0 to 0");
  refused(c.wait(nullptr, &f.err), "work is NULL");
  refused(c.comm(c.ctx, YOKE_ALL_AXES, nullptr, &comm, &f.err), "purpose is NULL");
  refused(c.comm(c.ctx, 0, "test", &comm, &f.err), "YOKE_ALL_AXES");
  comm = f.comm();
  t.strides = strides;
  refused(c.all_gather(comm, &t, &t, &work, &f.err),
          "all_gather: out: the tensor is not compact row-major");
  t.strides = nullptr;
  t.dtype = {YOKE_CODE_FLOAT, 80, 1};
  refused(c.all_reduce(comm, &t, YOKE_SUM, &work, &f.err), "dtype");
  t.dtype = {YOKE_CODE_FLOAT, 32, 4};
  refused(c.all_reduce(comm, &t, YOKE_SUM, &work, &f.err), "lanes is 4");
  t.dtype = data_type(YOKE_I64);
  refused(c.all_reduce(comm, &t, YOKE_AVG, &work, &f.err), "use the sum");
  t.shape = nullptr;
  refused(c.all_reduce(comm, &t, YOKE_SUM, &work, &f.err), "shape is NULL");
}

TEST(HostServices, RefuseWrongMessagesAndParts) {
  Fixture f;
  YokeComm* comm = f.comm();
  const auto& c = *f.collectives;
  float data[6] = {1, 2, 3, 4, 5, 6}, out[6] = {};
  int64_t shape[2] = {2, 3}, strides[2] = {1, 2};
  const int64_t six[1] = {6}, five[1] = {5};
  YokeTensor t{data, {YOKE_DEVICE_CPU, 0}, 2, data_type(YOKE_F32), shape, nullptr, 0};
  YokeTensor o = t;
  o.data = out;
  YokeWork* work = nullptr;
  const auto refused = [&](int32_t code, const char* text) {
    EXPECT_EQ(code, YOKE_INVALID_ARGUMENT) << text;
    EXPECT_STREQ(f.err.text, text);
    EXPECT_EQ(work, nullptr);
  };
  refused(c.send(comm, &t, 0, &work, &f.err), "send: rank 0; the communicator has only this rank");
  refused(c.recv(comm, &o, 1, &work, &f.err), "recv: rank 1; the communicator has only this rank");
  refused(c.send(comm, nullptr, 0, &work, &f.err), "send: in is NULL");
  refused(c.recv(comm, nullptr, 0, &work, &f.err), "recv: out is NULL");
  refused(c.send(nullptr, &t, 0, &work, &f.err), "comm is NULL");
  refused(c.all_to_all(nullptr, &o, six, &t, six, &work, &f.err), "comm is NULL");
  refused(c.all_to_all(comm, nullptr, six, &t, six, &work, &f.err), "all_to_all: out is NULL");
  refused(c.all_to_all(comm, &o, six, nullptr, six, &work, &f.err), "all_to_all: in is NULL");
  const char* const one =
      "all_to_all: one of out_counts and in_counts is NULL; allowed: both or none";
  refused(c.all_to_all(comm, &o, six, &t, nullptr, &work, &f.err), one);
  refused(c.all_to_all(comm, &o, nullptr, &t, six, &work, &f.err), one);
  refused(c.all_to_all(comm, &o, six, &t, five, &work, &f.err),
          "all_to_all: in: the parts have 5 elements, the tensor 6");
  t.strides = strides;
  refused(
      c.send(comm, &t, 0, &work, &f.err),
      "send: in: the tensor is not compact row-major; copy it first, or pass strides = NULL for "
      "compact memory");
  t.strides = nullptr;
  ASSERT_EQ(c.all_to_all(comm, &o, six, &t, six, &work, &f.err), YOKE_OK) << f.err.text;
  ASSERT_EQ(c.wait(work, &f.err), YOKE_OK) << f.err.text;
  EXPECT_EQ(out[5], 6) << "a single rank sends to itself";
}

}  // namespace
}  // namespace yoke::test
