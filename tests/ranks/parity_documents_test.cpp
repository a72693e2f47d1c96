// Separate documents and label masks in every backend and layout: each run trains like the plain
// loop, in which every document is a sequence of its own. In some sequences no target counts, so
// some micro-batches have none.
#include <gmock/gmock.h>

#include <sstream>

#include "tests/ranks/parity_layouts.hpp"

namespace yoke::testing {
namespace {

constexpr size_t kTextBytes = 1 << 15;

// About a third of the targets do not count, and none of every fourth window.
std::vector<uint8_t> counts(int64_t seq_len) {
  std::vector<uint8_t> counts(kTextBytes);
  for (size_t i = 1; i < counts.size(); ++i) {
    const auto window = static_cast<int64_t>(i - 1) / seq_len;
    counts[i] = window % 4 != 3 && i * i % 7 > 1;
  }
  return counts;
}

PlainRun packed(PlainRun run) {
  run.document_end = 'e';
  run.counts = counts(run.seq_len);
  return run;
}
PlainRun packed_base() {
  return packed(base());
}
PlainRun packed_deep_tied() {
  return packed(deep_tied_uneven());
}
constexpr Problem kPacked{"packed", packed_base}, kDeepPacked{"deep_packed", packed_deep_tied};

Layout layout(const char* name, const char* backend, const char* words, Problem problem = kPacked) {
  Args args;
  std::istringstream stream(words);
  for (std::string word; stream >> word;) args.push_back(word);
  return {name, backend, args, problem, {nullptr}};
}

INSTANTIATE_TEST_SUITE_P(
    Documents,
    Parity,
    ::testing::Values(
        layout("serial", "serial", ""),
        layout("serial_accumulation_8", "serial", "train.micro_batch=1"),
        layout("serial_4", "serial", "--virtual 4 train.micro_batch=1"),
        layout("replicas_2", "replicas", "--virtual 2"),
        layout("torch_replicas_2", "torch_replicas", "--virtual 2 train.micro_batch=1"),
        layout("pipeline_3", "pipeline", "--virtual 3 train.micro_batch=1", kDeepPacked),
        layout("zero_0", "deepspeed_stub", "--virtual 2 deepspeed_stub.zero_stage=0"),
        layout("zero_2_processes",
               "deepspeed_stub",
               "--nproc 2 deepspeed_stub.zero_stage=2 train.micro_batch=1"),
        layout("zero_3", "deepspeed_stub", "--virtual 3 deepspeed_stub.zero_stage=3", kDeepPacked),
        layout("megatron_2", "megatron_compat", "--virtual 2 train.micro_batch=1"),
        layout("megatron_shards_2",
               "megatron_compat",
               "--virtual 2 megatron_compat.use_distributed_optimizer=true"),
        layout("ptd", "ptd", "ptd.activation_checkpoint=full"),
        layout("ddp_2_processes", "ptd", "--nproc 2 dp_degree=2 train.micro_batch=1"),
        layout("fsdp_3_uneven", "ptd", "--virtual 3 ptd.unit_bytes=1", kDeepPacked),
        layout("hsdp_2_2", "ptd", "--virtual 4 dp_degree=2 ptd.unit_bytes=1 train.micro_batch=1"),
        layout("tp_2", "ptd", "--virtual 2 tp_degree=2 train.micro_batch=2"),
        layout("tp_2_no_sequence_parallel",
               "ptd",
               "--virtual 2 tp_degree=2 ptd.sequence_parallel=false "
               "ptd.activation_checkpoint=full"),
        layout("fsdp_2_tp_2", "ptd", "--nproc 4 dp_shards=2 tp_degree=2"),
        layout("cp_2_ring", "ptd", "--virtual 2 cp_degree=2 train.micro_batch=1"),
        layout("cp_2_plain", "ptd", "--virtual 2 cp_degree=2 ptd.cp_order=plain"),
        layout(
            "cp_4_all_gather",
            "ptd",
            "--virtual 4 cp_degree=4 ptd.cp_attention=all_gather ptd.activation_checkpoint=full"),
        layout("cp_4_all_gather_plain",
               "ptd",
               "--virtual 4 cp_degree=4 ptd.cp_attention=all_gather ptd.cp_order=plain"),
        layout("fsdp_2_cp_2_tp_2",
               "ptd",
               "--virtual 8 dp_shards=2 cp_degree=2 tp_degree=2 train.micro_batch=1"),
        layout("pp_2_processes", "ptd", "--nproc 2 pp_degree=2 train.micro_batch=1"),
        layout("pp_2_zb_v",
               "ptd",
               "--virtual 2 pp_degree=2 train.micro_batch=1 ptd.pp_schedule=zb_v",
               kDeepPacked),
        layout("pp_2_cp_2_tp_2",
               "ptd",
               "--virtual 8 pp_degree=2 cp_degree=2 tp_degree=2 train.micro_batch=2")),
    layout_name);

}  // namespace
}  // namespace yoke::testing
