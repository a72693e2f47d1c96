// The code that both implementations of Weights share. It binds parameters to memory and sets their
// initial values.
//
// The model can compute the initial values of any range of a parameter. Each rank therefore
// initialises only the elements that it keeps, one staging buffer at a time, and needs no memory
// for the others.
#include "plugins/deepspeed_stub/weights.hpp"

#include <algorithm>

namespace yoke::deepspeed_stub {
namespace {

constexpr int64_t kInitElements = 1 << 16;  // fp32 elements of a staging buffer for initial values

}  // namespace

// Loading a checkpoint writes only the masters, so their rounded copies are computed again.
void Weights::refresh() {
  if (frozen_.copy.data != nullptr) setup_.device.copy(frozen_.master, frozen_.copy);
  publish_frozen();
  publish([this](int64_t begin, int64_t count) {
    if (trainable_.copy.data == nullptr) return;
    setup_.device.copy(trainable_.master.sub(begin, count), trainable_.copy.sub(begin, count));
  });
}

Binder::Binder(const Setup& setup)
    : model_(setup.model), device_(setup.device.id()), bound_(setup.spec.params.size()) {}

Binder::~Binder() {
  for (size_t p = 0; p < bound_.size(); ++p) unbind(static_cast<int64_t>(p));
}

void Binder::bind(int64_t param, void* data) {
  const YokeParameter& p = *model_.summary->params[param];
  YokeTensor view{};
  view.data = data;
  view.device = device_;
  view.ndim = p.ndim;
  view.dtype = data_type(p.dtype);
  view.shape = const_cast<int64_t*>(p.shape);  // DLPack has no const; the model only reads it
  call([&](YokeError* err) { return model_.bind_param(model_.ctx, param, &view, err); });
  bound_[param] = true;
}

void Binder::unbind(int64_t param) {
  if (bound_[param]) model_.bind_param(model_.ctx, param, nullptr, nullptr);
  bound_[param] = false;
}

void fill_initial(const Setup& setup, int64_t param, int64_t begin, const Span& values) {
  const YokeModel& model = setup.model;
  std::vector<float> made(std::min(values.count, kInitElements));
  const auto most = static_cast<int64_t>(made.size());
  const Array landing = Array::to_be_written(setup.device, most, YOKE_F32);
  for (int64_t done = 0; done < values.count; done += most) {
    const Span part = landing.sub(0, std::min(most, values.count - done));
    call([&](YokeError* err) {
      return model.init_param(model.ctx, param, begin + done, part.count, made.data(), err);
    });
    setup.device.upload(made.data(), part);
    setup.device.copy(part, values.sub(done, part.count));
  }
}

void fill_initial(const Setup& setup, const Store& store) {
  for (const Piece& piece : store.owned.pieces)
    fill_initial(setup, piece.param, piece.begin, store.master.sub(piece.offset, piece.count));
}

Work all_gather(const Setup& setup, const Span& all, const ConstSpan& own) {
  const Comm& comm = setup.comms.gather;
  if (comm.size() > 1) return comm.all_gather(all, own);
  setup.device.copy(own, all);
  return {};
}

}  // namespace yoke::deepspeed_stub
