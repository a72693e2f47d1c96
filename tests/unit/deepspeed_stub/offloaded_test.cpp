// The whole engine with offload, against the same engine without it: every number must have the
// same bits. On the emulated device, late copies and missing waits give wrong numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>

#include "tests/support/temp_folder.hpp"
#include "tests/unit/deepspeed_stub/rig.hpp"

namespace yoke::deepspeed_stub::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using yoke::testing::TempFolder;

// The bounds are those of the CPU; see zero_test.cpp.
constexpr double kFp64 = 1e-12, kFp32 = 2e-6, kBf16 = 1e-2;

// State in files, with tiles that are small enough to matter for the tiny model.
Job optimizer_in_files(Job job, const TempFolder& folder) {
  job.options["offload_optimizer_device"] = "nvme";
  job.options["offload_optimizer_nvme_path"] = folder.path();
  job.options["sub_group_size"] = "7";
  return job;
}

Job params_in_files(Job job, const TempFolder& folder) {
  job.options["offload_param_device"] = "nvme";
  job.options["offload_param_nvme_path"] = folder.path();
  job.options["offload_param_max_in_cpu"] = "0";
  job.options["sub_group_size"] = "7";
  job.options["stage3_param_persistence_threshold"] = "7";
  return job;
}

void expect_bit_equal(const Outcome& offloaded, const Outcome& plain) {
  EXPECT_EQ(offloaded.trace.loss, plain.trace.loss);
  EXPECT_EQ(offloaded.trace.norm, plain.trace.norm);
  EXPECT_TRUE(offloaded.state == plain.state);
}

// The CPU and the device round an update differently.
void expect_close_to_plain_loop(const Job& job) {
  const double bound = job.run.dtype == YOKE_F64   ? kFp64
                       : job.run.dtype == YOKE_F32 ? kFp32
                                                   : kBf16;
  expect_close(train(job).trace, plain_mock_loop(job.run), bound);
}

Job without_offload(Job job) {
  std::erase_if(job.options, [](const auto& option) {
    return option.first.starts_with("offload_") || option.first == "sub_group_size";
  });
  return job;
}

class Offloaded : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  ~Offloaded() override { EXPECT_TRUE(std::filesystem::is_empty(folder.path())); }
  Job job(int32_t dtype = YOKE_F64) const {
    Job job = Job{}.at_stage(std::get<0>(GetParam())).on(std::get<1>(GetParam()));
    job.run.dtype = dtype;
    return job;
  }
  bool is_stage3() const { return std::get<0>(GetParam()) == 3; }
  const TempFolder folder;
};

TEST_P(Offloaded, EqualsTheRunWithoutOffloadBitForBit) {
  for (const int32_t dtype : {YOKE_F64, YOKE_F32, YOKE_BF16}) {
    SCOPED_TRACE(dtype);
    expect_bit_equal(train(optimizer_in_files(job(dtype), folder)), train(job(dtype)));
  }
}

TEST_P(Offloaded, WithReadAheadAndWriteBehind) {
  for (const char* buffers : {"3", "6", "9", "100"}) {
    for (const bool small : {false, true}) {
      Job j = optimizer_in_files(job(YOKE_BF16), folder);
      j.options["offload_optimizer_buffer_count"] = buffers;
      j.options["offload_optimizer_pipeline_read"] = "true";
      j.options["offload_optimizer_pipeline_write"] = "true";
      if (small) j.options.merge(small_buckets());
      expect_bit_equal(train(j), train(without_offload(j)));
    }
  }
}

TEST_P(Offloaded, WithOneMoment) {
  Job j = optimizer_in_files(job(), folder);
  j.run.kind = YOKE_LION;
  expect_bit_equal(train(j), train(without_offload(j)));
}

TEST_P(Offloaded, StateMovesFreely) {
  for (const int32_t dtype : {YOKE_F64, YOKE_BF16}) {
    Job plain = job(dtype), moved = optimizer_in_files(plain, folder);
    if (is_stage3()) moved = params_in_files(moved, folder);
    plain.options["stage3_param_persistence_threshold"] = "7";
    const Outcome whole = train(plain);
    Job first = moved;
    first.last_step = 5;
    const State state = train(first).state;
    for (Job rest : {plain, moved}) {
      rest.start = &state;
      rest.first_step = 6;
      EXPECT_TRUE(train(rest).state == whole.state);
    }
    plain.last_step = 5;
    EXPECT_TRUE(train(plain).state == state);
  }
}

TEST_P(Offloaded, ANormThatIsNotFiniteUpdatesNothing) {
  Job j = optimizer_in_files(job(), folder);
  if (is_stage3()) j = params_in_files(j, folder);
  j.last_step = 2;
  State state = train(j).state;
  const double huge = 1e300;
  std::memcpy(state.at("head.gain/param").bytes.data(), &huge, sizeof huge);
  j.start = &state;
  j.first_step = j.last_step = 3;
  EXPECT_TRUE(train(j).state == state);
}

// On the CPU, state is in host memory anyway.
TEST_P(Offloaded, ToTheCpuOnTheCpuChangesNothing) {
  Job j = job();
  j.options["offload_optimizer_device"] = "cpu";
  if (is_stage3()) j.options["offload_param_device"] = "cpu";
  const Outcome moved = train(j), plain = train(without_offload(j));
  expect_bit_equal(moved, plain);
  EXPECT_EQ(moved.wrapped.optimizer_bytes, plain.wrapped.optimizer_bytes);
}

TEST_P(Offloaded, OnTheDevice) {
  for (const char* device : {"cpu", "nvme"}) {
    for (const int32_t dtype : {YOKE_F64, YOKE_F32, YOKE_BF16}) {
      SCOPED_TRACE(::testing::Message() << device << " " << dtype);
      Job j = optimizer_in_files(job(dtype), folder).on_cuda();
      j.options["offload_optimizer_device"] = device;
      if (j.options["offload_optimizer_device"] == "cpu")
        j.options.erase("offload_optimizer_nvme_path");
      j.options.merge(small_buckets());
      expect_close_to_plain_loop(j);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stages,
                         Offloaded,
                         ::testing::Combine(::testing::Values(1, 2, 3), ::testing::Values(1, 2, 4)),
                         [](const auto& info) {
                           return "stage" + std::to_string(std::get<0>(info.param)) + "_ranks" +
                                  std::to_string(std::get<1>(info.param));
                         });

// ---- Parameters of stage 3 ----

class OffloadedParams : public ::testing::TestWithParam<int> {
 protected:
  Job job(int32_t dtype) const {
    Job job = params_in_files(Job{}.at_stage(3).on(GetParam()), folder);
    job.run.dtype = dtype;
    return job;
  }
  const TempFolder folder;
};

TEST_P(OffloadedParams, EqualTheRunWithoutOffloadBitForBit) {
  for (const int32_t dtype : {YOKE_F64, YOKE_F32, YOKE_BF16}) {
    for (const bool optimizer : {false, true}) {
      SCOPED_TRACE(::testing::Message() << dtype << optimizer);
      Job j = optimizer ? optimizer_in_files(job(dtype), folder) : job(dtype);
      j.run.micro_batch = 1;
      expect_bit_equal(train(j), train(without_offload(j)));
      j.options.merge(small_buckets());
      expect_bit_equal(train(j), train(without_offload(j)));
    }
  }
}

TEST_P(OffloadedParams, WithAnyBuffers) {
  for (const char* in_memory : {"0", "1", "20", "1000"}) {
    for (const char* buffers : {"1", "5"}) {
      Job j = job(YOKE_BF16);
      j.options["offload_param_max_in_cpu"] = in_memory;
      j.options["offload_param_buffer_count"] = buffers;
      j.options["offload_param_buffer_size"] = "3";
      expect_bit_equal(train(j), train(without_offload(j)));
    }
  }
}

TEST_P(OffloadedParams, OnTheDevice) {
  for (const char* device : {"cpu", "nvme"}) {
    for (const bool optimizer : {false, true}) {
      for (const int32_t dtype : {YOKE_F64, YOKE_BF16}) {
        SCOPED_TRACE(::testing::Message() << device << optimizer << dtype);
        Job j = optimizer ? optimizer_in_files(job(dtype), folder) : job(dtype);
        j.options["offload_param_device"] = device;
        j.options.merge(small_buckets());
        j = j.on_cuda();
        if (optimizer) {
          expect_close_to_plain_loop(j);
        } else {
          expect_bit_equal(train(j), train(without_offload(j)));
        }
      }
    }
  }
}

TEST_P(OffloadedParams, APartOfTheStateStaysOnTheDevice) {
  for (const char* ratio : {"0.0", "0.3", "1.0"}) {
    for (const bool cuda : {false, true}) {
      Job j = optimizer_in_files(Job{}.at_stage(3).on(GetParam()), folder);
      j.options["offload_optimizer_ratio"] = ratio;
      j.cuda = cuda;
      if (cuda) {
        expect_close_to_plain_loop(j);
      } else {
        expect_bit_equal(train(j), train(without_offload(j)));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, OffloadedParams, ::testing::Values(1, 2, 4));

// ---- Bytes; the model has 133 trainable elements of 8 bytes, padded to 134, and 5 frozen ----

TEST(OffloadedBytes, OnlyBuffersStayInMemory) {
  const TempFolder folder;
  Job job = optimizer_in_files(Job{}.at_stage(1), folder);
  EXPECT_EQ(train(job).wrapped.optimizer_bytes, 8 * 4 * 7);  // 4 buffers of 7 elements
  job.options["offload_optimizer_buffer_count"] = "2";
  EXPECT_EQ(train(job).wrapped.optimizer_bytes, 8 * 2 * 7);
  Job sliced = params_in_files(Job{}.at_stage(3), folder);
  sliced.options["stage3_param_persistence_threshold"] = "0";
  EXPECT_EQ(train(sliced).wrapped.param_bytes, 8 * (3 * 7 + 7));  // 3 tiles; 1 of frozen elements
}

// ---- A kernel that does not permit io_uring ----

// Lets io_uring_setup fail with EPERM in this thread and in those that it starts.
void forbid_io_uring() {
  sock_filter rules[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),  // the number of the call
                         BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{std::size(rules), rules};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

TEST(OffloadWithoutIoUring, UsesThreadsAndSaysSo) {
  const TempFolder folder;
  Job job = optimizer_in_files(Job{}.at_stage(1).on(2), folder);
  job.options["aio_intra_op_parallelism"] = "3";
  Outcome outcome;
  std::thread restricted([&] {
    forbid_io_uring();
    outcome = train(job);
  });
  restricted.join();
  expect_bit_equal(outcome, train(without_offload(job)));
  EXPECT_THAT(
      outcome.log,
      Contains(HasSubstr("offload reads and writes files with 3 thread(s) per rank, because "
                         "io_uring cannot be used (io_uring: Operation not permitted)")));
}

}  // namespace
}  // namespace yoke::deepspeed_stub::testing
