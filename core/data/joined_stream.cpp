#include "core/data/joined_stream.hpp"

#include <algorithm>
#include <utility>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

class JoinedStream final : public TokenStream {
 public:
  explicit JoinedStream(std::vector<NamedStream> parts) : parts_(std::move(parts)) {
    for (const NamedStream& part : parts_) {
      size_ += part.stream->size();
      ends_.push_back(size_);
    }
  }
  const char* format() const override { return parts_[0].stream->format(); }
  int64_t size() const override { return size_; }
  int64_t vocab() const override { return parts_[0].stream->vocab(); }
  void read(int64_t begin, int64_t count, int64_t* out) const override {
    check_token_range(begin, count, size_);
    // The first file that ends after `begin`. Files without tokens end where they begin.
    const auto first = std::upper_bound(ends_.begin(), ends_.end(), begin);
    for (auto i = static_cast<size_t>(first - ends_.begin()); count > 0; ++i) {
      const TokenStream& part = *parts_[i].stream;
      const int64_t from = begin - (ends_[i] - part.size()), n = std::min(count, ends_[i] - begin);
      part.read(from, n, out);
      begin += n;
      out += n;
      count -= n;
    }
  }

 private:
  std::vector<NamedStream> parts_;
  std::vector<int64_t> ends_;  // number of tokens up to the end of each file
  int64_t size_ = 0;
};

std::string described(const NamedStream& part) {
  const int64_t vocab = part.stream->vocab();
  return "\"" + part.path + "\" (format " + part.stream->format() + ", " +
         (vocab > 0 ? concat("vocabulary ", vocab) : std::string("no declared vocabulary")) + ")";
}

}  // namespace

void require_same_tokens(const std::string& key, const NamedStream& a, const NamedStream& b) {
  const std::string text = "text";
  const bool texts = (a.stream->format() == text) == (b.stream->format() == text);
  const int64_t va = a.stream->vocab(), vb = b.stream->vocab();
  if (texts && (va == vb || va == 0 || vb == 0)) return;
  throw Error(YOKE_INVALID_ARGUMENT,
              key + " names " + described(a) + " and " + described(b) +
                  ", whose tokens are not the same; allowed: files of one tokenizer");
}

std::shared_ptr<const TokenStream> join_streams(const std::string& key,
                                                std::vector<NamedStream> parts) {
  if (parts.size() == 1) return parts[0].stream;
  const NamedStream& first = parts[0];
  for (const NamedStream& part : parts) {
    const bool same = std::string(part.stream->format()) == first.stream->format();
    if (same && part.stream->vocab() == first.stream->vocab()) continue;
    throw Error(YOKE_INVALID_ARGUMENT,
                key + " joins " + described(first) + " and " + described(part) +
                    " into one stream; allowed: files of one format and vocabulary; convert one of "
                    "them");
  }
  return std::make_shared<JoinedStream>(std::move(parts));
}

}  // namespace yoke
