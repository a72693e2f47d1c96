// The elements of a piece are a list of spans. The spans of the pieces with replica 0, sorted by
// their first element, must follow each other without a gap. A tensor that is cut by columns has
// one span for each row and rank, which is few enough to list.
//
// The hash of a piece is a sum over its elements, so that a copy can be compared with several saved
// pieces: those that lie inside it. Copies that are cut in another way are compared as whole
// tensors, all copies with the same number together.
#include "plugins/validate/pieces.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "plugins/validate/tensors.hpp"
#include "yoke/error.hpp"
#include "yoke/muon.h"
#include "yoke/state_kind.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::validate {
namespace {

struct TensorSpan {
  int64_t begin, end;
  Holder piece;
};

using Pieces = std::vector<std::pair<Holder, const PieceKey*>>;

void add_spans(const PieceKey& piece, Holder holder, std::vector<TensorSpan>& spans) {
  for (int64_t done = 0, begin = piece.begin; done < piece.count;
       done += piece.run, begin += piece.stride)
    spans.push_back({begin, begin + std::min(piece.run, piece.count - done), holder});
}

std::vector<TensorSpan> sorted_spans(const Pieces& pieces) {
  std::vector<TensorSpan> spans;
  for (const auto& [holder, piece] : pieces) add_spans(*piece, holder, spans);
  std::sort(spans.begin(), spans.end(), [](const TensorSpan& a, const TensorSpan& b) {
    return a.begin < b.begin;
  });
  return spans;
}

std::string elements(int64_t begin, int64_t end) {
  return concat("elements ", begin, " to ", end - 1);
}

// Returns the first gap or overlap in the saved pieces of a tensor, or "".
std::string tiling_fault(const Pieces& saved, int64_t size) {
  int64_t at = 0;
  int32_t last_rank = -1;
  for (const TensorSpan& span : sorted_spans(saved)) {
    if (span.begin > at) return elements(at, span.begin) + " are in no piece with replica 0";
    if (span.begin < at) {
      return elements(span.begin, std::min(at, span.end)) +
             concat(" are in pieces with replica 0 of ranks ", last_rank, " and ", span.piece.rank);
    }
    at = span.end;
    last_rank = span.piece.rank;
  }
  return at < size ? elements(at, size) + " are in no piece with replica 0" : "";
}

bool contains(const std::vector<TensorSpan>& whole, const PieceKey& part) {
  std::vector<TensorSpan> spans;
  add_spans(part, {}, spans);
  return std::all_of(spans.begin(), spans.end(), [&](const TensorSpan& span) {
    auto after = std::upper_bound(
        whole.begin(), whole.end(), span.begin, [](int64_t begin, const TensorSpan& s) {
          return begin < s.begin;
        });
    return after != whole.begin() && (--after)->end >= span.end;
  });
}

// Finds the saved pieces with the same elements as each copy.
void pair_copies(const std::string& tensor,
                 const Pieces& saved,
                 const Pieces& others,
                 int64_t size,
                 std::vector<Copies>* result) {
  std::map<int64_t, Pieces> left;  // copies by the number of the replica
  for (const auto& [holder, copy] : others) {
    Copies pair{tensor, {}, {holder}};
    int64_t covered = 0;
    const std::vector<TensorSpan> spans = sorted_spans({{holder, copy}});
    for (const auto& [saved_holder, piece] : saved) {
      if (!contains(spans, *piece)) continue;
      pair.saved.push_back(saved_holder);
      covered += piece->count;
    }
    if (covered == copy->count) {
      result->push_back(std::move(pair));
    } else {
      left[copy->replica].emplace_back(holder, copy);
    }
  }
  for (const auto& [replica, pieces] : left) {
    if (!tiling_fault(pieces, size).empty()) continue;
    Copies pair{tensor, {}, {}};
    for (const auto& [holder, piece] : saved) pair.saved.push_back(holder);
    for (const auto& [holder, piece] : pieces) pair.copies.push_back(holder);
    result->push_back(std::move(pair));
  }
}

// Returns the first tensor that must be in the state and is not, or "".
template <class Map>
std::string missing_tensor(const Map& tensors, const Expected& expected) {
  const auto absent = [&](const std::string& name, const std::string& kind) {
    return tensors.count({name, kind}) == 0;
  };
  for (uint64_t i = 0; i < expected.model->num_params; ++i) {
    const YokeParameter& p = *expected.model->params[i];
    const std::string name(view(p.name));
    if (absent(name, "param")) return "parameter '" + name + "' is in no piece of any rank";
    const char* kinds[2];
    const int moments =
        expected.optimizer == nullptr
            ? 0
            : yoke_moments_of(expected.optimizer, expected.model, static_cast<int64_t>(i), kinds);
    for (int m = 0; m < moments; ++m) {
      if (absent(name, kinds[m]))
        return "'" + name + "' (" + kinds[m] + ") is in no piece of any rank";
    }
  }
  return absent("optimizer", "step") ? "the number of the step is in no piece of any rank" : "";
}

const YokeParameter* find_param(const YokeModelSummary& model, const YokeString& name) {
  for (uint64_t i = 0; i < model.num_params; ++i)
    if (view(model.params[i]->name) == view(name)) return model.params[i];
  return nullptr;
}

bool is_moment(std::string_view kind) {
  return kind == "exp_avg" || kind == "exp_avg_sq" || kind == "momentum";
}

std::string kind_fault(std::string_view kind, const Expected& expected) {
  constexpr size_t kMostBytes = 31;
  const bool formed = !kind.empty() && kind.size() <= kMostBytes &&
                      kind.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == kind.npos;
  if (!formed) return "its kind has another form than [a-z0-9_]";
  const auto& own = expected.own_kinds;
  const auto covers = [&](const std::string& declared) { return declares_kind(declared, kind); };
  if (expected.has_own_kinds && std::none_of(own.begin(), own.end(), covers))
    return "describe does not declare its kind";
  return "";
}

// Returns what is wrong with the elements of a piece of a tensor with `size` elements, or "".
std::string place_fault(const YokePiece& p, int64_t size) {
  const bool formed = p.begin >= 0 && p.count >= 0 && p.replica >= 0 && p.stride >= 0 &&
                      (p.count == 0 || p.run >= 1) &&
                      (p.run >= p.count || (p.stride >= p.run && size % p.stride == 0));
  if (!formed)
    return concat("begin ",
                  p.begin,
                  ", count ",
                  p.count,
                  ", run ",
                  p.run,
                  ", stride ",
                  p.stride,
                  ", replica ",
                  p.replica,
                  " describe no elements");
  if (p.count == 0) return "";
  const int64_t last = p.begin + (p.count - 1) / p.run * p.stride + (p.count - 1) % p.run;
  return last < size ? "" : concat("its last element is ", last, " of ", size);
}

std::string view_fault(const YokePiece& p, int32_t op) {
  if (op == YOKE_CHECKPOINT_DESCRIBE) return p.view == nullptr ? "" : "DESCRIBE shows a view";
  if (p.view == nullptr) return "it has no view";
  const bool host =
      p.view->device.type == YOKE_DEVICE_CPU || p.view->device.type == YOKE_DEVICE_CUDA_HOST;
  if (!host) return "its view is not in host memory";
  if (std::string fault = tensor_fault("its view", p.view, p.view->device); !fault.empty())
    return fault;
  if (YOKE_DTYPE_OF(p.view->dtype) == p.dtype && numel(*p.view) == p.count) return "";
  return concat("its view is ",
                shape_text(*p.view),
                ", and it has ",
                p.count,
                " elements of ",
                dtype_name(p.dtype));
}

}  // namespace

PieceKey::PieceKey(const YokePiece& piece)
    : name(view(piece.name)),
      kind(view(piece.kind)),
      shape(piece.shape, piece.shape + (piece.shape == nullptr ? 0 : piece.ndim)),
      dtype(piece.dtype),
      begin(piece.begin),
      count(piece.count),
      run(piece.run < 1 || piece.run > piece.count ? piece.count : piece.run),
      stride(piece.stride),
      replica(piece.replica) {}

std::string PieceKey::text() const {
  return "'" + name + "' (" + kind + "), " + concat(count, " elements from ", begin);
}

std::string piece_fault(const YokePiece& p, const Expected& expected, int32_t op) {
  if (p.header.struct_id != YOKE_ID_PIECE) return "the piece is not a YokePiece";
  if (p.ndim < 0 || (p.ndim > 0 && p.shape == nullptr)) return concat("its ndim is ", p.ndim);
  const std::string_view kind = view(p.kind);
  const YokeParameter* param = find_param(*expected.model, p.name);
  if (kind == "step") {
    if (view(p.name) != "optimizer" || p.ndim != 0 || p.dtype != YOKE_I64)
      return "the step is not the int64 scalar 'optimizer'";
  } else if (kind == "param" || is_moment(kind)) {
    if (param == nullptr) return "the model has no such parameter";
    const int32_t dtype = item_size(param->dtype) == 2 ? YOKE_F32 : param->dtype;
    if (p.dtype != dtype || p.ndim != param->ndim ||
        !std::equal(p.shape, p.shape + p.ndim, param->shape))
      return "it is " + shape_text(p.dtype, p.shape, p.ndim) + ", and the parameter is " +
             shape_text(dtype, param->shape, param->ndim);
  } else if (std::string fault = kind_fault(kind, expected); !fault.empty()) {
    return fault;
  }
  if (!is_known_dtype(p.dtype)) return concat("its dtype is ", string_printf("0x%x", p.dtype));
  if (std::string fault = place_fault(p, numel(p.shape, p.ndim)); !fault.empty()) return fault;
  return view_fault(p, op);
}

std::string coverage_fault(const std::vector<std::vector<PieceKey>>& by_rank,
                           const Expected& expected,
                           std::vector<Copies>* copies) {
  struct TensorPieces {
    const PieceKey* first = nullptr;
    Pieces saved, others;
  };
  std::map<std::pair<std::string, std::string>, TensorPieces> tensors;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (size_t i = 0; i < by_rank[rank].size(); ++i) {
      const PieceKey& piece = by_rank[rank][i];
      TensorPieces& tensor = tensors[{piece.name, piece.kind}];
      if (tensor.first == nullptr) tensor.first = &piece;
      if (tensor.first->shape != piece.shape || tensor.first->dtype != piece.dtype)
        return piece.text() +
               concat(" of rank ",
                      rank,
                      " has another shape or dtype than other pieces of that tensor");
      (piece.replica == 0 ? tensor.saved : tensor.others)
          .emplace_back(Holder{static_cast<int32_t>(rank), i}, &piece);
    }
  }
  if (std::string fault = missing_tensor(tensors, expected); !fault.empty()) return fault;
  for (const auto& [key, tensor] : tensors) {
    const std::string name = "'" + key.first + "' (" + key.second + ")";
    const int64_t size =
        numel(tensor.first->shape.data(), static_cast<int32_t>(tensor.first->shape.size()));
    if (std::string fault = tiling_fault(tensor.saved, size); !fault.empty())
      return name + ": " + fault;
    pair_copies(name, tensor.saved, tensor.others, size, copies);
  }
  return "";
}

// ---- Bytes ----

std::string to_bytes(const std::vector<PieceKey>& pieces) {
  std::string bytes;
  const auto put = [&](int64_t number) {
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  for (const PieceKey& p : pieces) {
    for (const std::string& text : {p.name, p.kind}) {
      put(static_cast<int64_t>(text.size()));
      bytes += text;
    }
    put(static_cast<int64_t>(p.shape.size()));
    for (const int64_t n : p.shape) put(n);
    for (const int64_t n : {int64_t{p.dtype}, p.begin, p.count, p.run, p.stride, p.replica}) put(n);
  }
  return bytes;
}

std::vector<PieceKey> pieces_from_bytes(const std::string& bytes) {
  std::vector<PieceKey> pieces;
  size_t at = 0;
  const auto get = [&] {
    int64_t number = 0;
    std::memcpy(&number, bytes.data() + at, sizeof number);
    at += sizeof number;
    return number;
  };
  while (at < bytes.size()) {
    PieceKey p;
    for (std::string* text : {&p.name, &p.kind}) {
      const auto size = static_cast<size_t>(get());
      *text = bytes.substr(at, size);
      at += size;
    }
    p.shape.resize(static_cast<size_t>(get()));
    for (int64_t& n : p.shape) n = get();
    p.dtype = static_cast<int32_t>(get());
    for (int64_t* n : {&p.begin, &p.count, &p.run, &p.stride, &p.replica}) *n = get();
    pieces.push_back(std::move(p));
  }
  return pieces;
}

}  // namespace yoke::validate
