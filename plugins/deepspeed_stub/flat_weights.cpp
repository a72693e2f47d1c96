// Parameters at ZeRO stages 0 to 2.
//
// In fp32 and fp64 the flat buffer itself contains the master weights, and the update writes this
// rank's slice in place. In bf16 and fp16 the masters are a separate fp32 array, and the update
// also writes their rounded values into the flat buffer. At stages 1 and 2 the updated slices are
// then gathered in buckets, so that the update of one bucket overlaps the gather of the previous
// one.
#include "plugins/deepspeed_stub/flat_weights.hpp"

#include <algorithm>
#include <deque>

namespace yoke::deepspeed_stub {
namespace {

constexpr size_t kInFlight = 2;  // buckets that are gathered while the next one is updated

// A gather in flight: elements [begin, begin + count) of every rank's slice.
struct Landing {
  Array memory;  // the ranges of rank 0, of rank 1, ...; unused if whole slices are gathered
  Work work;
  int64_t begin, count;
};

}  // namespace

FlatRange own_range(const FlatLayout& layout, const Setup& setup) {
  if (setup.settings.stage == 0) return {0, layout.size()};
  const int64_t begin = setup.comms.gather.rank() * layout.slice();
  return {begin, begin + layout.slice()};
}

FlatWeights::FlatWeights(const Setup& setup)
    : Weights(setup),
      layout_(setup.spec, true, setup.comms.gather.size()),
      frozen_layout_(setup.spec, false, 1),
      whole_(setup.device, layout_.size(), setup.param_dtype),
      frozen_whole_(setup.device, frozen_layout_.size(), setup.param_dtype),
      binder_(setup) {
  const auto [begin, end] = own_range(layout_, setup);
  adopt(trainable_,
        layout_.owned(begin, end),
        whole_.sub(begin, end - begin),
        optimizer_place(setup, end - begin),
        master_);
  adopt(frozen_,
        frozen_layout_.owned(0, frozen_layout_.size()),
        frozen_whole_.span(),
        {},
        frozen_master_);
  for (const bool trainable : {true, false}) {
    const FlatLayout& layout = trainable ? layout_ : frozen_layout_;
    const Array& whole = trainable ? whole_ : frozen_whole_;
    for (const int64_t p : layout.params()) {
      const Span values = whole.sub(layout.offset(p), setup.spec.params[p].numel);
      fill_initial(setup, p, 0, values);
      binder_.bind(p, values.data);
    }
  }
}

// Sets up a store. computed: the range of the flat buffer that contains the elements `owned`.
// place: where masters are that are apart from it.
void FlatWeights::adopt(Store& store,
                        Owned owned,
                        const Span& computed,
                        const StatePlace& place,
                        std::unique_ptr<StateArrays>& master) {
  store.owned = std::move(owned);
  if (!masters_are_apart(setup_)) {
    store.master = Values(computed);
    return;
  }
  master =
      std::make_unique<StateArrays>(setup_.device, place, 1, computed.count, setup_.master_dtype);
  store.master = Values(*master, 0);
  store.copy = Values(computed);
  fill_initial(setup_, store);
}

int64_t FlatWeights::bytes() const {
  int64_t sum = whole_.bytes() + frozen_whole_.bytes();
  if (master_ != nullptr) sum += master_->bytes() + frozen_master_->bytes();
  return sum;
}

void FlatWeights::publish(const Update& update) {
  const int ranks = setup_.comms.gather.size();
  if (setup_.settings.stage == 0 || ranks == 1) {
    update(0, trainable_.owned.size);
  } else if (setup_.settings.allgather_partitions) {
    gather_in_buckets(update);
  } else {  // each rank broadcasts its slice, as in DeepSpeed
    update(0, layout_.slice());
    for (int r = 0; r < ranks; ++r)
      setup_.comms.gather.broadcast(whole_.sub(r * layout_.slice(), layout_.slice()), r).wait();
  }
  trainable_.finish();
}

// Updates this rank's slice range by range, and gathers each range while the next one is updated.
// The ranges of all ranks are gathered into one array, and copied from there to the slices of the
// flat buffer, one row per rank. If one range covers the whole slice, the gather writes to the flat
// buffer directly.
void FlatWeights::gather_in_buckets(const Update& update) {
  const Comm& comm = setup_.comms.gather;
  const int64_t slice = layout_.slice(), own = comm.rank() * slice;
  const int64_t part = std::clamp<int64_t>(
      setup_.settings.allgather_bucket_size / comm.size(), 1, std::max<int64_t>(slice, 1));
  std::deque<Landing> landings;
  const auto land = [&] {
    Landing landing = std::move(landings.front());
    landings.pop_front();
    landing.work.wait();
    if (landing.memory.empty()) return;
    setup_.device.copy_rows(landing.memory.sub(0, landing.count),
                            whole_.sub(landing.begin, landing.count),
                            {comm.size() * landing.count, landing.count, landing.count, slice});
  };
  for (int64_t begin = 0; begin < slice; begin += part) {
    const int64_t count = std::min(part, slice - begin);
    update(begin, count);
    if (landings.size() == kInFlight) land();
    Landing& landing = landings.emplace_back(Landing{{}, {}, begin, count});
    if (count < slice)
      landing.memory = Array::to_be_written(setup_.device, comm.size() * count, setup_.param_dtype);
    landing.work = comm.all_gather(count < slice ? landing.memory.span() : whole_.span(),
                                   ConstSpan(whole_.sub(own + begin, count)));
  }
  while (!landings.empty()) land();
}

}  // namespace yoke::deepspeed_stub
