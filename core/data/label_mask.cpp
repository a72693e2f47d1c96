// A mask is as large as half of its ids, so it is mapped and read with them. As for the ids, the
// first bytes are checked when a mask is opened, and all others when they are read: a file of
// another kind under this name is found before a run starts, and no rank reads gigabytes first.
#include "core/data/label_mask.hpp"

#include <algorithm>
#include <cstring>

#include "core/data/mapped_file.hpp"
#include "core/data/token_stream.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr int64_t kCheckedAtOnce = 1 << 16;

// Copies bytes [begin, begin + count) of a mask.
void copy(const MappedFile& mask, int64_t begin, int64_t count, uint8_t* out) {
  if (count == 0) return;
  std::memcpy(out, mask.data() + begin, static_cast<size_t>(count));
  const uint8_t* bad = std::find_if(out, out + count, [](uint8_t byte) { return byte > 1; });
  if (bad == out + count) return;
  throw Error(YOKE_DATA_LOSS,
              mask.name() + concat(": byte ", begin + (bad - out), " is ", int{*bad}) +
                  "; allowed: 1 for a token that counts as a target, and 0 for one that does not; "
                  "write the mask again");
}

void check_size(const MappedFile& mask, const LabelMask::Part& part) {
  if (static_cast<int64_t>(mask.size()) == part.tokens) return;
  throw Error(YOKE_DATA_LOSS,
              mask.name() + concat(" has ", mask.size(), " bytes, but \"") + part.ids +
                  concat("\" has ", part.tokens, " tokens") +
                  "; allowed: one byte for each token; write the mask again, or set data.mask = "
                  "\"none\"");
}

}  // namespace

LabelMask::LabelMask(const std::string& key, const std::vector<Part>& parts) {
  int64_t end = 0;
  std::vector<uint8_t> first(kCheckedAtOnce);
  for (const Part& part : parts) {
    ends_.push_back(end += part.tokens);
    auto& file = files_.emplace_back();
    if (part.mask.empty()) continue;
    names_.push_back(part.mask);
    file = std::make_unique<MappedFile>(part.mask, "label mask of " + key);
    check_size(*file, part);
    copy(*file, 0, std::min(part.tokens, kCheckedAtOnce), first.data());
  }
}

LabelMask::~LabelMask() = default;

void LabelMask::read(int64_t begin, int64_t count, uint8_t* out) const {
  check_token_range(begin, count, ends_.back());
  // The first file that ends after `begin`. Files without tokens end where they begin.
  auto file =
      static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
  for (; count > 0; ++file) {
    const int64_t from = file > 0 ? ends_[file - 1] : 0, n = std::min(count, ends_[file] - begin);
    if (files_[file]) {
      copy(*files_[file], begin - from, n, out);
    } else {
      std::fill_n(out, n, uint8_t{1});
    }
    begin += n;
    out += n;
    count -= n;
  }
}

}  // namespace yoke
