#include "tests/support/mock_batch.hpp"

#include "tests/support/mock_math.hpp"

namespace yoke::testing {

MockBatch::MockBatch(const Layout& l, int64_t step) {
  const int64_t accumulation = l.global_batch / (l.micro_batch * l.data_ranks);
  auto token = [](int64_t sample, int64_t t) {
    return (3 * sample + 2 * t + sample * t) % mock::kV;
  };
  auto target = [&](int64_t sample, int64_t t) {  // a learnable target; one in seven has no loss
    return (sample + 3 * t) % 7 == 0 ? -1 : (3 * token(sample, t) + 1) % mock::kV;
  };
  batch_.header = YOKE_HEADER(YokeBatch, YOKE_ID_BATCH);
  for (int64_t g = (step - 1) * l.global_batch; g < step * l.global_batch; ++g) {
    for (int64_t t = 0; t < l.seq_len; ++t) batch_.token_weight += target(g, t) >= 0 ? 1 : 0;
  }
  for (int64_t a = 0; a < accumulation; ++a) {
    auto m = std::make_unique<Micro>();
    const int64_t first =
        (step - 1) * l.global_batch + (a * l.data_ranks + l.data_rank) * l.micro_batch;
    for (int64_t g = first; g < first + l.micro_batch; ++g) {
      for (int64_t t = 0; t < l.seq_len; ++t) {
        m->tokens.push_back(token(g, t));
        m->targets.push_back(target(g, t));
      }
    }
    m->shape[0] = l.micro_batch;
    m->shape[1] = l.seq_len;
    YokeTensor t{
        m->tokens.data(), {YOKE_DEVICE_CPU, 0}, 2, data_type(YOKE_I64), m->shape, nullptr, 0};
    m->inputs[0] = {YOKE_STRING("tokens"), t};
    t.data = m->targets.data();
    m->inputs[1] = {YOKE_STRING("targets"), t};
    m->micro = micro_batch(m->inputs, 2);
    pointers_.push_back(&m->micro);
    micros_.push_back(std::move(m));
  }
  batch_.micros = pointers_.data();
  batch_.num_micros = pointers_.size();
}

}  // namespace yoke::testing
