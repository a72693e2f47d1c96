#include "core/batch.hpp"

#include "yoke/error.hpp"
#include "yoke/tensor.hpp"

namespace yoke {
namespace {

YokeInput make_input(const char* role, std::vector<int64_t>& values, int64_t* shape) {
  YokeInput input{};
  input.role = view(role);
  input.tensor.data = values.data();
  input.tensor.device = {YOKE_DEVICE_CPU, 0};
  input.tensor.ndim = 2;
  input.tensor.dtype = data_type(YOKE_I64);
  input.tensor.shape = shape;
  return input;
}

}  // namespace

Batch::Batch(const DataSet& data, const Sampler& part, int64_t sample, const Deal& deal)
    : micros_(deal.accumulation), batch_{} {
  for (int32_t a = 0; a < deal.accumulation; ++a) {
    Micro& m = micros_[a];
    const int64_t first = sample + (int64_t{a} * deal.data_ranks + deal.data_rank) * deal.sequences;
    m.host = read_micro_batch(data, part, first, deal.sequences);
    m.shape[0] = m.host.sequences;
    m.shape[1] = m.host.seq_len;
    m.inputs = {make_input("tokens", m.host.tokens, m.shape),
                make_input("targets", m.host.targets, m.shape),
                make_input("positions", m.host.positions, m.shape)};
    m.contract = {m.inputs.data(), m.inputs.size()};
    pointers_.push_back(&m.contract);
  }
  batch_.header = YOKE_HEADER(YokeBatch, YOKE_ID_BATCH);
  batch_.micros = pointers_.data();
  batch_.num_micros = pointers_.size();
  // Every window has seq_len targets, on every data rank.
  batch_.token_weight = static_cast<double>(deal.global_batch() * data.seq_len);
}

}  // namespace yoke
