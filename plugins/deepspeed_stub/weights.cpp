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

// Fills values in the memory of `device`.
void fill_on(const Device& device,
             const YokeModel& model,
             int64_t param,
             int64_t begin,
             const Span& values) {
  std::vector<float> made(std::min(values.count, kInitElements));
  const auto most = static_cast<int64_t>(made.size());
  const Array landing = Array::to_be_written(device, most, YOKE_F32);
  for (int64_t done = 0; done < values.count; done += most) {
    const Span part = landing.sub(0, std::min(most, values.count - done));
    call([&](YokeError* err) {
      return model.init_param(model.ctx, param, begin + done, part.count, made.data(), err);
    });
    device.upload(made.data(), part);
    device.copy(part, values.sub(done, part.count));
  }
}

}  // namespace

bool masters_are_apart(const Setup& setup) {
  const OffloadSettings& offload = setup.settings.offload;
  const bool moved =
      offload.optimizer.place != Place::kDevice || offload.params.place != Place::kDevice;
  return setup.master_dtype != setup.param_dtype || (setup.device.is_apart() && moved);
}

StatePlace optimizer_place(const Setup& setup, int64_t elements) {
  const OffloadSettings& offload = setup.settings.offload;
  const OffloadSettings::Optimizer& o = offload.optimizer;
  const int64_t arrays = setup.moments + (masters_are_apart(setup) ? 1 : 0);
  return {.place = o.place,
          .resident = static_cast<int64_t>((1 - o.ratio) * static_cast<double>(elements)),
          .pinned = o.pinned,
          .folder = o.folder,
          .io = setup.io,
          .tile = offload.tile,
          .slots = std::max<int64_t>(1, o.buffers / std::max<int64_t>(1, arrays)),
          .read_ahead = o.read_ahead,
          .write_behind = o.write_behind};
}

// An update passes over the slices while it passes over the state of the optimizer. One tile is in
// use, one is read, and one is written.
StatePlace params_place(const Setup& setup) {
  const OffloadSettings& offload = setup.settings.offload;
  const OffloadSettings::Params& p = offload.params;
  return {.place = p.place,
          .resident = p.place == Place::kFile ? p.max_in_cpu : 0,
          .pinned = p.pinned,
          .folder = p.folder,
          .io = setup.io,
          .tile = offload.tile,
          .slots = 3,
          .read_ahead = true,
          .write_behind = true,
          .overwritten = masters_are_apart(setup)};
}

// Loading a checkpoint writes only the masters, so their rounded copies are computed again.
void Weights::refresh() {
  round_masters(frozen_, 0, frozen_.owned.size);
  frozen_.finish();
  publish_frozen();
  publish([this](int64_t begin, int64_t count) { round_masters(trainable_, begin, count); });
}

void Weights::round_masters(const Store& store, int64_t begin, int64_t count) const {
  if (store.copy.empty()) return;
  const Device &device = setup_.device, &host = setup_.host;
  const int64_t end = begin + count;
  for (int64_t at = begin, to = 0; at < end; at = to) {
    to = store.cut(at, end);
    const int64_t n = to - at;
    const Span master = store.master.window(at, n), copy = store.copy.window(at, n);
    const bool from_host = store.master.is_on_host(at), to_host = store.copy.is_on_host(at);
    if (from_host == to_host) {
      (from_host ? host : device).copy(master, copy);
    } else if (from_host) {
      const Array rounded = Array::to_be_written(host, n, copy.dtype);
      host.copy(master, rounded.span());
      device.upload(rounded.span().data, copy);
    } else {
      const Array rounded = Array::to_be_written(device, n, copy.dtype);
      device.copy(master, rounded.span());
      device.download(rounded.span(), copy.data);
    }
  }
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
  fill_on(setup.device, setup.model, param, begin, values);
}

void fill_initial(const Setup& setup, const Store& store) {
  for (const Piece& piece : store.owned.pieces) {
    if (store.master.is_in_memory(piece.offset, piece.count) &&
        !store.master.is_on_host(piece.offset)) {
      fill_initial(setup, piece.param, piece.begin, store.master.window(piece.offset, piece.count));
      continue;
    }
    const Array values = Array::to_be_written(setup.host, kInitElements, store.master.dtype());
    for (int64_t done = 0; done < piece.count; done += kInitElements) {
      const Span part = values.sub(0, std::min(kInitElements, piece.count - done));
      fill_on(setup.host, setup.model, piece.param, piece.begin + done, part);
      store.master.state()->write(store.master.array(), piece.offset + done, part);
    }
  }
}

Work all_gather(const Setup& setup, const Span& all, const ConstSpan& own) {
  const Comm& comm = setup.comms.gather;
  if (comm.size() > 1) return comm.all_gather(all, own);
  setup.device.copy(own, all);
  return {};
}

}  // namespace yoke::deepspeed_stub
