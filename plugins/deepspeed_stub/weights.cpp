#include "plugins/deepspeed_stub/weights.hpp"

#include <algorithm>

namespace yoke::deepspeed_stub {
namespace {

constexpr int64_t kInitElements = 1 << 16;  // fp32 elements in flight while initial values are made

}  // namespace

void Weights::refresh() {
  if (frozen_.copy.data != nullptr) copy(frozen_.master, frozen_.copy);
  publish_frozen();
  publish([this](int64_t begin, int64_t count) {
    if (trainable_.copy.data == nullptr) return;
    copy(trainable_.master.sub(begin, count), trainable_.copy.sub(begin, count));
  });
}

Binder::Binder(const YokeModel& model) : model_(model), bound_(model.summary->num_params) {}

Binder::~Binder() {
  for (size_t p = 0; p < bound_.size(); ++p) unbind(static_cast<int64_t>(p));
}

void Binder::bind(int64_t param, void* data) {
  const YokeParameter& p = *model_.summary->params[param];
  YokeTensor view{};
  view.data = data;
  view.device = {YOKE_DEVICE_CPU, 0};
  view.ndim = p.ndim;
  view.dtype = data_type(p.dtype);
  view.shape = const_cast<int64_t*>(p.shape);  // DLPack knows no const
  call([&](YokeError* err) { return model_.bind_param(model_.ctx, param, &view, err); });
  bound_[param] = true;
}

void Binder::unbind(int64_t param) {
  if (bound_[param]) model_.bind_param(model_.ctx, param, nullptr, nullptr);
  bound_[param] = false;
}

void fill_initial(const YokeModel& model, int64_t param, int64_t begin, const Span& values) {
  const Array part = Array::to_be_written(std::min(values.count, kInitElements), YOKE_F32);
  for (int64_t done = 0; done < values.count; done += part.span().count) {
    const Span now = part.sub(0, std::min(part.span().count, values.count - done));
    YokeError err = make_error();
    check(model.init_param(
              model.ctx, param, begin + done, now.count, static_cast<float*>(now.data), &err),
          err);
    copy(now, values.sub(done, now.count));
  }
}

void fill_initial(const YokeModel& model, const Store& store) {
  for (const Piece& piece : store.owned.pieces)
    fill_initial(model, piece.param, piece.begin, store.master.sub(piece.offset, piece.count));
}

}  // namespace yoke::deepspeed_stub
