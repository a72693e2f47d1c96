// Flat arrays of state that need not fit into memory: moments, master weights, or slices of
// parameters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plugins/deepspeed_stub/array.hpp"
#include "plugins/deepspeed_stub/offload/file_io.hpp"

namespace yoke::deepspeed_stub {

// Where the elements of StateArrays are. Elements [0, resident) are always in memory of the device,
// the others at `place`.
struct StatePlace {
  Place place = Place::kDevice;
  int64_t resident = 0;
  bool pinned = true;
  std::string folder{};  // folder of the file
  FileIo* io = nullptr;
  int64_t tile =
      OffloadSettings::kMaxTile;  // elements of each array that come into memory together
  int64_t slots = 1;              // tiles in memory at the same time
  bool read_ahead = false, write_behind = false;
  bool overwritten = false;  // every element is written before it is read, so tiles are not read
};

// One or more arrays of `count` elements each. The part of them in a file is cut into tiles, which
// hold the same elements of all arrays. An update is a pass over all elements in ascending order:
// window() brings their tile into memory, and the tile is written back when the pass has left it.
//
//   file:    | tile 0: m, v | tile 1: m, v | tile 2: m, v | ...
//   memory:                   slot: in use | slot: is read | slot: is written
//
// One thread at a time. The device and the FileIo must outlive the arrays. Methods throw the Error
// of FileIo.
class StateArrays {
 public:
  // All elements are 0. Throws the Error of StateFile.
  StateArrays(
      const Device& device, const StatePlace& place, int arrays, int64_t count, int32_t dtype);
  StateArrays(const StateArrays&) = delete;
  StateArrays& operator=(const StateArrays&) = delete;

  int64_t count() const { return count_; }
  int32_t dtype() const { return dtype_; }
  int64_t bytes() const;  // bytes of memory, on the device and on the host, without files

  // Returns the end of the longest range from `begin` to `end` at most that one window can cover.
  int64_t cut(int64_t begin, int64_t end) const;
  // Whether this element is in memory of the host while the device has its own.
  bool is_on_host(int64_t begin) const { return device_.is_apart() && begin >= resident_; }
  // Whether all elements of a range are in memory at all times.
  bool is_in_memory(int64_t begin, int64_t count) const;
  // Returns elements [begin, begin + count) of an array, which a cut must not split. The span is
  // valid until the next call with another tile, or finish().
  Span window(int array, int64_t begin, int64_t count);
  // Starts to read the first tiles, if tiles are read ahead.
  void prefetch();
  // Ends a pass: writes what is still to be written.
  void finish();

  // Copy elements [begin, begin + count) of an array to or from host memory. Not during a pass.
  void read(int array, int64_t begin, const Span& host);
  void write(int array, int64_t begin, const ConstSpan& host);
  // Starts to read a range that is in the file. Not during a pass.
  void start_read(int array, int64_t begin, const Span& host, std::vector<Transfer>& transfers);

 private:
  struct Slot {
    Array memory;       // all arrays of a tile, one after another
    int64_t tile = -1;  // -1 = none
    Transfer transfer;  // uses the memory
  };
  // Calls f(begin, count) for the parts of a range that are contiguous in the file or in memory.
  template <class F>
  void for_parts(int64_t begin, int64_t count, const F& f) const;
  int64_t tile_of(int64_t element) const { return (element - resident_) / tile_; }
  int64_t offset(int array, int64_t element) const;  // bytes from the start of the file
  int64_t tile_bytes() const;
  void open(int64_t tile);
  void load(int64_t tile);
  void close_tile();
  Slot& slot_of(int64_t tile) { return slots_[tile % static_cast<int64_t>(slots_.size())]; }

  const Device& device_;
  FileIo* const io_;
  const int arrays_;
  const int64_t count_;
  const int32_t dtype_;
  const int64_t resident_, tile_;
  const int64_t ahead_;  // tiles that are read before their use
  const bool write_behind_, overwritten_;
  std::vector<Array> memory_;  // resident elements, one per array
  std::vector<Array> host_;    // the others, if they are in host memory
  std::optional<StateFile> file_;
  std::vector<Slot> slots_;  // destroyed before file_, so that transfers end first
  int64_t open_ = -1;        // tile in use, -1 = none
};

// An array of a store: a span of device memory, or one of StateArrays.
class Values {
 public:
  Values() = default;  // none
  explicit Values(const Span& span) : span_(span) {}
  Values(StateArrays& state, int array) : state_(&state), array_(array) {}

  bool empty() const { return state_ == nullptr && span_.data == nullptr; }
  int32_t dtype() const { return state_ != nullptr ? state_->dtype() : span_.dtype; }
  // As the methods of StateArrays.
  int64_t cut(int64_t begin, int64_t end) const {
    return state_ != nullptr ? state_->cut(begin, end) : end;
  }
  bool is_on_host(int64_t begin) const { return state_ != nullptr && state_->is_on_host(begin); }
  bool is_in_memory(int64_t begin, int64_t count) const {
    return state_ == nullptr || state_->is_in_memory(begin, count);
  }
  Span window(int64_t begin, int64_t count) const {
    return state_ != nullptr ? state_->window(array_, begin, count) : span_.sub(begin, count);
  }
  void finish() const {
    if (state_ != nullptr) state_->finish();
  }
  StateArrays* state() const { return state_; }
  int array() const { return array_; }

 private:
  Span span_;
  StateArrays* state_ = nullptr;
  int array_ = 0;
};

}  // namespace yoke::deepspeed_stub
