#include "sdk/conformance/state.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "sdk/conformance/check.hpp"
#include "yoke/error.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

double get(const char* data, int32_t dtype, int64_t i) {
  const auto read = [&](auto value) {
    std::memcpy(&value, data + i * static_cast<int64_t>(sizeof value), sizeof value);
    return value;
  };
  switch (dtype) {
    case YOKE_F64:
      return read(double{});
    case YOKE_F32:
      return read(float{});
    case YOKE_I64:
      return static_cast<double>(read(int64_t{}));
    case YOKE_BF16: {
      const uint32_t bits = uint32_t{read(uint16_t{})} << 16;
      float value;
      std::memcpy(&value, &bits, sizeof value);
      return value;
    }
    default:
      throw Failed(concat("a piece has dtype ", dtype, "; allowed: fp64, fp32, bf16, int64"));
  }
}

void put(char* data, int32_t dtype, int64_t i, double value) {
  const auto write = [&](auto typed) {
    std::memcpy(data + i * static_cast<int64_t>(sizeof typed), &typed, sizeof typed);
  };
  if (dtype == YOKE_F64) return write(value);
  if (dtype == YOKE_F32) return write(static_cast<float>(value));
  if (dtype == YOKE_I64) return write(static_cast<int64_t>(value));
  throw Failed(
      concat("a piece to load has dtype ", dtype_name(dtype), "; allowed: fp64, fp32, int64"));
}

// Returns the index of element i of a piece in the whole tensor. A piece consists of spans of `run`
// elements that start `stride` elements apart.
int64_t place(int64_t begin, int64_t run, int64_t stride, int64_t i) {
  return begin + (i / run) * stride + i % run;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t n : shape) text += concat(text.empty() ? "" : ", ", n);
  return "[" + text + "]";
}

std::string number(double value) {
  return string_printf("%.17g", value);
}

// Throws Failed if the piece reaches beyond its tensor of `size` elements.
void check_place(const Piece& p, int64_t size) {
  if (p.begin < 0 || p.count < 0 || (p.count > 0 && p.run < 1) ||
      (p.stride != 0 && p.stride < p.run))
    throw Failed(concat("the elements of piece ", p.text(), " are not well defined"));
  if (p.count > 0 && place(p.begin, p.run, p.stride, p.count - 1) >= size) {
    throw Failed(
        concat("piece ", p.text(), " reaches beyond the ", size, " elements of its tensor"));
  }
}

}  // namespace

Piece Piece::copy(const YokePiece& p) {
  if (p.header.struct_id != YOKE_ID_PIECE)
    throw Failed(
        concat("the visitor was called with a struct that is not a YokePiece: its struct_id is ",
               p.header.struct_id));
  Piece piece;
  piece.key = std::string(view(p.name)) + "/" + std::string(view(p.kind));
  if (p.ndim < 0 || (p.ndim > 0 && p.shape == nullptr))
    throw Failed(concat("piece ", piece.key, " has ndim ", p.ndim, " and no shape"));
  if (p.ndim > 0) piece.shape.assign(p.shape, p.shape + p.ndim);
  piece.dtype = p.dtype;
  piece.begin = p.begin;
  piece.count = p.count;
  piece.run = p.run;
  piece.stride = p.stride;
  piece.replica = p.replica;
  if (p.view == nullptr) return piece;
  if (numel(*p.view) != p.count || YOKE_DTYPE_OF(p.view->dtype) != p.dtype) {
    throw Failed(concat("the view of piece ",
                        piece.text(),
                        " has ",
                        numel(*p.view),
                        " elements of ",
                        dtype_name(YOKE_DTYPE_OF(p.view->dtype))));
  }
  const char* bytes = data<const char>(*p.view);
  if (p.count > 0) piece.bytes.assign(bytes, bytes + p.count * item_size(p.dtype));
  return piece;
}

bool Piece::same_place(const Piece& o) const {
  return key == o.key && shape == o.shape && dtype == o.dtype && begin == o.begin &&
         count == o.count && run == o.run && stride == o.stride && replica == o.replica;
}

std::string Piece::text() const {
  const std::string where = concat("begin ", begin, " count ", count, " run ", run);
  return concat(key, " ", shape_text(shape), " ", dtype_name(dtype), " ", where) +
         concat(" stride ", stride, " replica ", replica);
}

int64_t WholeTensor::count() const {
  return numel(shape.data(), static_cast<int32_t>(shape.size()));
}

double WholeTensor::at(int64_t i) const {
  return get(bytes.data(), dtype, i);
}

State assemble(const std::vector<std::vector<Piece>>& by_rank) {
  State state;
  std::map<std::string, std::vector<bool>> covered;  // elements that a piece with replica 0 has
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (const Piece& p : by_rank[rank]) {
      auto [found, is_new] = state.try_emplace(p.key);
      WholeTensor& whole = found->second;
      if (is_new) {
        whole.shape = p.shape;
        whole.dtype = p.dtype;
        whole.bytes.resize(whole.count() * item_size(p.dtype));
        covered[p.key].resize(whole.count());
      } else if (whole.shape != p.shape || whole.dtype != p.dtype) {
        throw Failed(concat("rank ",
                            rank,
                            " shows ",
                            p.text(),
                            ", but another piece of this tensor has ",
                            shape_text(whole.shape),
                            " ",
                            dtype_name(whole.dtype)));
      }
      check_place(p, whole.count());
      if (p.replica != 0) continue;
      for (int64_t i = 0; i < p.count; ++i) {
        const int64_t at = place(p.begin, p.run, p.stride, i), item = item_size(p.dtype);
        if (covered[p.key][at]) {
          throw Failed(concat("element ",
                              at,
                              " of ",
                              p.key,
                              " is in two pieces with replica 0; the second one is on rank ",
                              rank));
        }
        covered[p.key][at] = true;
        if (!p.bytes.empty()) std::memcpy(&whole.bytes[at * item], &p.bytes[i * item], item);
      }
    }
  }
  for (const auto& [key, bits] : covered) {
    const auto hole = std::find(bits.begin(), bits.end(), false);
    if (hole != bits.end())
      throw Failed(
          concat("element ", hole - bits.begin(), " of ", key, " is in no piece with replica 0"));
  }
  return state;
}

int32_t fill_piece(const State& state, const YokePiece& piece) {
  const Piece wanted = Piece::copy(piece);  // also checks the piece
  const auto found = state.find(wanted.key);
  if (found == state.end()) {
    if (!is_standard(wanted.key)) return YOKE_NOT_FOUND;
    throw Failed(concat("LOAD requests ", wanted.key, ", which was never saved"));
  }
  const std::vector<int64_t>& saved = found->second.shape;
  const bool other_ranks = !is_standard(wanted.key) && saved.size() == wanted.shape.size() &&
                           !saved.empty() &&
                           std::equal(saved.begin() + 1, saved.end(), wanted.shape.begin() + 1) &&
                           saved[0] != wanted.shape[0];
  if (other_ranks) return YOKE_NOT_FOUND;
  if (saved != wanted.shape)
    throw Failed(
        concat("LOAD requests ", wanted.text(), ", but the saved shape is ", shape_text(saved)));
  if (piece.view == nullptr) throw Failed(concat("LOAD shows ", wanted.key, " without a view"));
  check_place(wanted, found->second.count());
  for (int64_t i = 0; i < piece.count; ++i) {
    put(data<char>(*piece.view),
        piece.dtype,
        i,
        found->second.at(place(piece.begin, piece.run, piece.stride, i)));
  }
  return YOKE_OK;
}

bool is_standard(const std::string& key) {
  for (const char* kind : {"/param", "/exp_avg", "/exp_avg_sq", "/momentum", "/step"})
    if (key.ends_with(kind)) return true;
  return false;
}

State standard_kinds(State state) {
  std::erase_if(state, [](const auto& item) { return !is_standard(item.first); });
  return state;
}

std::string difference(const State& a, const State& b, double relative) {
  for (const auto& [key, x] : a) {
    const auto found = b.find(key);
    if (found == b.end()) return key + " is missing on one side";
    const WholeTensor& y = found->second;
    if (x.shape != y.shape)
      return key + " is " + shape_text(x.shape) + " here and " + shape_text(y.shape) + " there";
    if (relative == 0 && x == y) continue;
    // The scale is that of the tensor, because rounding errors of a small element are as large as
    // those of its neighbors. The minimum keeps tensors of zeros comparable.
    double scale = 1e-12;
    for (int64_t i = 0; i < y.count(); ++i) scale = std::max(scale, std::fabs(y.at(i)));
    int64_t left = relative > 0 ? x.count() / 10000 : 0;
    for (int64_t i = 0; i < x.count(); ++i) {
      const double off = std::fabs(x.at(i) - y.at(i));
      if (off <= relative * scale &&
          (relative > 0 || std::signbit(x.at(i)) == std::signbit(y.at(i))))
        continue;
      if (left-- > 0) continue;
      return concat(
          "element ", i, " of ", key, " is ", number(x.at(i)), ", expected ", number(y.at(i)));
    }
  }
  if (a.size() != b.size()) {
    for (const auto& [key, y] : b)
      if (a.count(key) == 0) return key + " is missing";
  }
  return "";
}

double distance(const State& a, const State& b, const std::string& kind) {
  double off = 0, all = 0;
  for (const auto& [key, y] : b) {
    if (!key.ends_with("/" + kind)) continue;
    for (int64_t i = 0; i < y.count(); ++i) {
      off += std::pow(a.at(key).at(i) - y.at(i), 2);
      all += std::pow(y.at(i), 2);
    }
  }
  return all > 0 ? std::sqrt(off / all) : 0;
}

namespace {

void append(std::string& to, const void* data, size_t size) {
  to.append(static_cast<const char*>(data), size);
}

void append(std::string& to, int64_t number) {
  append(to, &number, sizeof number);
}

// Reads what append() has written.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  bool at_end() const { return rest_.empty(); }
  std::string_view take(int64_t size) {
    if (size < 0 || static_cast<size_t>(size) > rest_.size()) throw Failed("pieces are truncated");
    const std::string_view taken = rest_.substr(0, static_cast<size_t>(size));
    rest_.remove_prefix(taken.size());
    return taken;
  }
  int64_t number() {
    int64_t value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

 private:
  std::string_view rest_;
};

}  // namespace

std::string to_bytes(const std::vector<Piece>& pieces) {
  std::string out;
  for (const Piece& p : pieces) {
    append(out, static_cast<int64_t>(p.key.size()));
    append(out, p.key.data(), p.key.size());
    append(out, static_cast<int64_t>(p.shape.size()));
    append(out, p.shape.data(), p.shape.size() * sizeof(int64_t));
    for (const int64_t n : {int64_t{p.dtype}, p.begin, p.count, p.run, p.stride, p.replica})
      append(out, n);
    append(out, static_cast<int64_t>(p.bytes.size()));
    append(out, p.bytes.data(), p.bytes.size());
  }
  return out;
}

std::vector<Piece> from_bytes(std::string_view bytes) {
  std::vector<Piece> pieces;
  for (Reader in(bytes); !in.at_end();) {
    Piece& p = pieces.emplace_back();
    p.key = in.take(in.number());
    p.shape.resize(static_cast<size_t>(in.number()));
    for (int64_t& n : p.shape) n = in.number();
    p.dtype = static_cast<int32_t>(in.number());
    for (int64_t* n : {&p.begin, &p.count, &p.run, &p.stride, &p.replica}) *n = in.number();
    const std::string_view data = in.take(in.number());
    p.bytes.assign(data.begin(), data.end());
  }
  return pieces;
}

}  // namespace yoke::conformance
