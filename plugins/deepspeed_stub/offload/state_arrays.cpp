// Tiles hold the same elements of all arrays, so an update needs one read and one write for each.
//
// A slot is used again after all other slots. With n slots, tile k may thus be read ahead while
// tile k - n + 1 is in use, or one tile later if that slot is still being written.
//
// Rejected: mapping the file. The kernel then decides what is in memory, counts it as memory of the
// process, and reads only when the update already waits.
#include "plugins/deepspeed_stub/offload/state_arrays.hpp"

#include <algorithm>

namespace yoke::deepspeed_stub {
namespace {

int64_t resident_elements(const Device& device, const StatePlace& place, int64_t count) {
  const bool stays =
      place.place == Place::kDevice || (place.place == Place::kHost && !device.is_apart());
  return stays ? count : std::clamp<int64_t>(place.resident, 0, count);
}

int64_t tiles_ahead(const StatePlace& place) {
  if (!place.read_ahead) return 0;
  return std::max<int64_t>(0, place.slots - (place.write_behind ? 2 : 1));
}

}  // namespace

StateArrays::StateArrays(
    const Device& device, const StatePlace& place, int arrays, int64_t count, int32_t dtype)
    : device_(device),
      io_(place.io),
      arrays_(arrays),
      count_(count),
      dtype_(dtype),
      resident_(resident_elements(device, place, count)),
      tile_(place.tile),
      ahead_(tiles_ahead(place)),
      write_behind_(place.write_behind),
      overwritten_(place.overwritten) {
  for (int a = 0; a < arrays; ++a) memory_.emplace_back(device, resident_, dtype);
  if (resident_ == count) return;
  if (place.place == Place::kHost) {
    for (int a = 0; a < arrays; ++a)
      host_.push_back(Array::on_host(device, count - resident_, dtype, place.pinned));
    return;
  }
  const int64_t tiles = tile_of(count - 1) + 1;
  file_.emplace(place.folder, tiles * tile_bytes());
  slots_.resize(static_cast<size_t>(std::min(place.slots, tiles)));
  for (Slot& slot : slots_)
    slot.memory = Array::on_host(device, arrays * tile_, dtype, place.pinned);
}

int64_t StateArrays::bytes() const {
  int64_t sum = 0;
  for (const Array& array : memory_) sum += array.bytes();
  for (const Array& array : host_) sum += array.bytes();
  for (const Slot& slot : slots_) sum += slot.memory.bytes();
  return sum;
}

int64_t StateArrays::tile_bytes() const {
  return arrays_ * tile_ * item_size(dtype_);
}

int64_t StateArrays::offset(int array, int64_t element) const {
  const int64_t tile = tile_of(element), within = (element - resident_) % tile_;
  return tile * tile_bytes() + (array * tile_ + within) * item_size(dtype_);
}

// Host memory of a device is cut into tiles, too: they are copied while others are updated.
int64_t StateArrays::cut(int64_t begin, int64_t end) const {
  if (begin < resident_) return std::min(end, resident_);
  return std::min(end, resident_ + (tile_of(begin) + 1) * tile_);
}

bool StateArrays::is_in_memory(int64_t begin, int64_t count) const {
  if (begin + count <= resident_) return true;
  return begin >= resident_ && !host_.empty();
}

// ---- A pass ----

Span StateArrays::window(int array, int64_t begin, int64_t count) {
  if (begin < resident_) return memory_[array].sub(begin, count);
  if (!host_.empty()) return host_[array].sub(begin - resident_, count);
  const int64_t tile = tile_of(begin);
  if (tile != open_) open(tile);
  const int64_t within = begin - resident_ - tile * tile_;
  return slot_of(tile).memory.sub(array * tile_ + within, count);
}

void StateArrays::open(int64_t tile) {
  close_tile();
  const int64_t last = std::min(tile + ahead_, tile_of(count_ - 1));
  for (int64_t next = tile; next <= last; ++next) load(next);
  slot_of(tile).transfer.wait();
  open_ = tile;
}

void StateArrays::load(int64_t tile) {
  Slot& slot = slot_of(tile);
  if (slot.tile == tile) return;
  slot.transfer.wait();
  slot.tile = tile;
  if (!overwritten_)
    slot.transfer =
        io_->read(*file_, tile * tile_bytes(), slot.memory.span().data, slot.memory.bytes());
}

void StateArrays::close_tile() {
  if (open_ < 0) return;
  Slot& slot = slot_of(open_);
  slot.transfer =
      io_->write(*file_, open_ * tile_bytes(), slot.memory.span().data, slot.memory.bytes());
  if (!write_behind_) slot.transfer.wait();
  open_ = -1;
}

void StateArrays::prefetch() {
  if (!file_ || ahead_ == 0) return;
  const int64_t tiles = tile_of(count_ - 1) + 1;
  for (int64_t tile = 0; tile < std::min(ahead_, tiles); ++tile) load(tile);
}

// The next pass reads again what it needs: between passes read() and write() use the file.
void StateArrays::finish() {
  close_tile();
  for (Slot& slot : slots_) {
    slot.transfer.wait();
    slot.tile = -1;
  }
}

// ---- Between passes ----

template <class F>
void StateArrays::for_parts(int64_t begin, int64_t count, const F& f) const {
  const int64_t end = begin + count;
  while (begin < end) {
    // A single array is contiguous in its file.
    const int64_t to = begin >= resident_ && arrays_ == 1 ? end : cut(begin, end);
    f(begin, to - begin);
    begin = to;
  }
}

void StateArrays::start_read(int array,
                             int64_t begin,
                             const Span& host,
                             std::vector<Transfer>& transfers) {
  for_parts(begin, host.count, [&](int64_t at, int64_t n) {
    const Span to = host.sub(at - begin, n);
    transfers.push_back(io_->read(*file_, offset(array, at), to.data, to.bytes()));
  });
}

void StateArrays::read(int array, int64_t begin, const Span& host) {
  finish();
  std::vector<Transfer> transfers;
  for_parts(begin, host.count, [&](int64_t at, int64_t n) {
    const Span to = host.sub(at - begin, n);
    if (at < resident_) {
      device_.download(memory_[array].sub(at, n), to.data);
    } else if (!host_.empty()) {
      std::memcpy(to.data, host_[array].sub(at - resident_, n).data, to.bytes());
    } else {
      start_read(array, at, to, transfers);
    }
  });
  for (Transfer& transfer : transfers) transfer.wait();
}

void StateArrays::write(int array, int64_t begin, const ConstSpan& host) {
  finish();
  for_parts(begin, host.count, [&](int64_t at, int64_t n) {
    const ConstSpan from = host.sub(at - begin, n);
    if (at < resident_) {
      device_.upload(from.data, memory_[array].sub(at, n));
    } else if (!host_.empty()) {
      std::memcpy(host_[array].sub(at - resident_, n).data, from.data, from.bytes());
    } else {
      io_->write(*file_, offset(array, at), from.data, from.bytes()).wait();
    }
  });
}

}  // namespace yoke::deepspeed_stub
