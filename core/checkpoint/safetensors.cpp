// Weight files may come from untrusted sources, so the header is parsed as hostile input. A generic
// JSON parser would build a tree first: it would allocate as much memory as the file claims to need
// and silently merge duplicate keys. Here a SAX parser passes each token to HeaderEvents, which
// accepts exactly one structure and rejects anything else at the first wrong token.

#include "core/checkpoint/safetensors.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "core/base/files.hpp"
#include "yoke/error.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr size_t kMaxTensors = 1'000'000;
constexpr size_t kMaxMetadata = 64 * 1024;
constexpr uint64_t kDataAlignment = 64;

// The first name of a dtype is the one that is written. Old files of GPT-2 have masks of BOOL.
constexpr std::array<std::pair<const char*, int32_t>, 8> kDtypes{{{"F64", YOKE_F64},
                                                                  {"F32", YOKE_F32},
                                                                  {"BF16", YOKE_BF16},
                                                                  {"F16", YOKE_F16},
                                                                  {"I64", YOKE_I64},
                                                                  {"I32", YOKE_I32},
                                                                  {"U8", YOKE_U8},
                                                                  {"BOOL", YOKE_U8}}};

[[noreturn]] void refuse(const std::string& reason) {
  throw Error(YOKE_DATA_LOSS, reason);
}

bool has_control(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
}

// Returns a name in a form that is safe in messages: quoted, at most 80 bytes, without control
// characters.
std::string shown(std::string_view name) {
  std::string text(name.substr(0, 80));
  for (char& c : text) {
    if (has_control({&c, 1})) c = '?';
  }
  return "'" + text + (name.size() > 80 ? "...'" : "'");
}

// Receives the tokens of the JSON parser. Only one structure is legal, so five states (see State)
// are enough to describe the position in the text, and each rule is checked as soon as a token
// arrives. Throwing from a handler ends the parser.
class HeaderEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderEvents(SafetensorsHeader* out) : out_(out) {}

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("true or false"); }
  bool number_integer(int64_t) override { return unexpected("a negative number"); }
  bool number_float(double, const std::string&) override {
    return unexpected("a number that is not a 64-bit integer");
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  // Numbers occur only in `shape` and `data_offsets`, and both hold unsigned integers only.
  bool number_unsigned(uint64_t value) override {
    if (state_ != State::kArray) return unexpected("a number");
    if (array_is_shape_) {
      add_dim(value);
    } else {
      add_offset(value);
    }
    return true;
  }

  bool string(std::string& value) override {
    if (state_ == State::kMetadata) {
      count_metadata(key_.size() + value.size());
      out_->metadata[key_] = value;
      return true;
    }
    if (state_ != State::kTensor || key_ != "dtype") return unexpected("a string");
    tensor_.dtype = dtype_from_safetensors(value);
    if (tensor_.dtype == 0) refuse(where() + "dtype " + shown(value) + " is not known");
    return true;
  }

  // Objects nest two levels deep: the document, and one object for each tensor or the metadata.
  bool start_object(size_t) override {
    if (state_ == State::kStart) {
      state_ = State::kTop;
      return true;
    }
    if (state_ != State::kTop) return unexpected("an object");
    inner_keys_.clear();
    state_ = key_ == "__metadata__" ? State::kMetadata : State::kTensor;
    if (state_ == State::kTensor) {
      tensor_ = SafetensorsTensor{};
      tensor_.name = key_;
      num_offsets_ = 0;
    }
    return true;
  }

  bool key(std::string& value) override {
    key_ = value;
    if (state_ == State::kTop) return top_key();
    if (!inner_keys_.insert(value).second)
      refuse(where() + "the key " + shown(value) + " occurs twice");
    const bool known = value == "dtype" || value == "shape" || value == "data_offsets";
    if (state_ == State::kTensor && !known) refuse(where() + "unknown key " + shown(value));
    return true;
  }

  // The end of an object leads back one level: kTensor and kMetadata to kTop, kTop to kStart.
  bool end_object() override {
    if (state_ == State::kTensor) finish_tensor();
    state_ = state_ == State::kTop ? State::kStart : State::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (state_ != State::kTensor || key_ == "dtype") return unexpected("an array");
    state_ = State::kArray;
    array_is_shape_ = key_ == "shape";
    return true;
  }

  bool end_array() override {
    state_ = State::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    refuse("the header is not JSON in UTF-8 (byte " + std::to_string(position) + ")");
  }

 private:
  // kStart: outside of the object. kTop: in the top-level object, whose keys are the tensors'
  // names. kMetadata: inside "__metadata__". kTensor: inside the object of a tensor. kArray: inside
  // `shape` or `data_offsets` of a tensor.
  enum class State { kStart, kTop, kMetadata, kTensor, kArray };

  std::string where() const {
    if (state_ == State::kMetadata) return "__metadata__: ";
    if (state_ == State::kTensor || state_ == State::kArray) {
      return "tensor " + shown(tensor_.name) + ": ";
    }
    return "header: ";
  }

  bool unexpected(const char* what) { refuse(where() + what + " is not allowed here"); }

  bool top_key() {
    if (!names_.insert(key_).second) refuse("the name " + shown(key_) + " occurs twice");
    if (names_.size() > kMaxTensors) refuse("more than 1000000 tensors");
    if (key_.empty() || key_.size() > kMaxTensorName || has_control(key_)) {
      refuse("the name " + shown(key_) +
             " is empty, longer than 512 bytes or has control characters");
    }
    return true;
  }

  void count_metadata(size_t bytes) {
    metadata_bytes_ += bytes;
    if (metadata_bytes_ > kMaxMetadata) refuse("__metadata__ is larger than 65536 bytes");
  }

  void add_dim(uint64_t value) {
    if (tensor_.shape.size() == kMaxTensorDims) refuse(where() + "more than 8 dims");
    if (value > static_cast<uint64_t>(kMaxTensorDim)) refuse(where() + "a dim above 2^48");
    tensor_.shape.push_back(static_cast<int64_t>(value));
  }

  void add_offset(uint64_t value) {
    if (num_offsets_ == 2) refuse(where() + "data_offsets must have two numbers");
    (num_offsets_ == 0 ? tensor_.begin : tensor_.end) = value;
    ++num_offsets_;
  }

  // Makes the checks that need the complete object: its three keys, and that the offsets agree with
  // the size.
  void finish_tensor() {
    if (inner_keys_.size() != 3) refuse(where() + "dtype, shape or data_offsets is missing");
    if (num_offsets_ != 2) refuse(where() + "data_offsets must have two numbers");
    uint64_t bytes = 0;
    if (!tensor_bytes(tensor_.shape, tensor_.dtype, &bytes)) {
      refuse(where() + "its size does not fit into 64 bits");
    }
    if (tensor_.begin > tensor_.end || tensor_.end - tensor_.begin != bytes) {
      refuse(concat(where(),
                    "data_offsets [",
                    tensor_.begin,
                    ", ",
                    tensor_.end,
                    "] do not hold its ",
                    bytes,
                    " bytes"));
    }
    out_->tensors.push_back(std::move(tensor_));
  }

  SafetensorsHeader* out_;
  State state_ = State::kStart;
  std::string key_;
  std::unordered_set<std::string> names_, inner_keys_;
  SafetensorsTensor tensor_;
  int num_offsets_ = 0;
  bool array_is_shape_ = false;
  size_t metadata_bytes_ = 0;
};

// Sorts the tensors by offset, checks that they cover the data without gaps or overlaps, and
// converts the offsets, which are relative to the data, to offsets in the file.
void check_tiling(SafetensorsHeader* header, uint64_t file_bytes) {
  std::sort(header->tensors.begin(), header->tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t expected = 0;
  for (SafetensorsTensor& tensor : header->tensors) {
    if (tensor.begin != expected) {
      refuse(concat("tensor ",
                    shown(tensor.name),
                    " begins at byte ",
                    tensor.begin,
                    " of the data, but the previous one ends at ",
                    expected));
    }
    expected = tensor.end;
    if (expected > file_bytes - header->data_begin) {
      refuse("tensor " + shown(tensor.name) + " ends after the end of the file");
    }
    tensor.begin += header->data_begin;
    tensor.end += header->data_begin;
  }
  if (expected != file_bytes - header->data_begin) {
    refuse(concat("the file has ",
                  file_bytes - header->data_begin,
                  " bytes of data, but its tensors end at ",
                  expected));
  }
}

void check_length(uint64_t length, uint64_t file_bytes) {
  if (length < 2 || length > kMaxSafetensorsHeader || length > file_bytes - 8) {
    refuse(concat("the header's length is ",
                  length,
                  "; a file of ",
                  file_bytes,
                  " bytes allows 2 to ",
                  std::min(kMaxSafetensorsHeader, file_bytes - 8)));
  }
  if (length % 8 != 0) {
    refuse(concat("the data does not begin at a multiple of 8 (header of ", length, " bytes)"));
  }
}

}  // namespace

const char* safetensors_dtype(int32_t dtype) {
  for (const auto& [name, value] : kDtypes) {
    if (value == dtype) return name;
  }
  throw Error(YOKE_INVALID_ARGUMENT,
              concat("dtype ",
                     dtype,
                     " cannot be saved; allowed: fp64, fp32, bf16, fp16, int64, int32 and uint8"));
}

int32_t dtype_from_safetensors(std::string_view name) {
  for (const auto& [known, value] : kDtypes) {
    if (name == known) return value;
  }
  return 0;
}

bool tensor_bytes(const std::vector<int64_t>& shape, int32_t dtype, uint64_t* out) {
  int64_t bytes = item_size(dtype);
  for (const int64_t dim : shape) {
    if (dim < 0 || dim > kMaxTensorDim || __builtin_mul_overflow(bytes, dim, &bytes)) return false;
  }
  *out = static_cast<uint64_t>(bytes);
  return true;
}

SafetensorsHeader parse_safetensors_header(std::string_view text, uint64_t file_bytes) {
  if (file_bytes < 8) refuse("a file of " + std::to_string(file_bytes) + " bytes has no header");
  check_length(text.size(), file_bytes);
  if (text.front() != '{') refuse("the header does not begin with '{'");
  const size_t last = text.find_last_not_of(' ');
  if (text[last] != '}') refuse("the header does not end with '}' and trailing spaces");
  SafetensorsHeader header;
  header.data_begin = 8 + text.size();
  HeaderEvents events(&header);
  nlohmann::json::sax_parse(
      text.begin(), text.begin() + static_cast<std::ptrdiff_t>(last) + 1, &events);
  check_tiling(&header, file_bytes);
  return header;
}

SafetensorsHeader read_safetensors_header(const File& file) {
  try {
    const uint64_t file_bytes = file.size();
    if (file_bytes < 8) refuse("a file of " + std::to_string(file_bytes) + " bytes has no header");
    uint64_t length = 0;
    file.read_at(&length, 8, 0);
    check_length(length, file_bytes);
    std::string text(length, '\0');
    file.read_at(text.data(), length, 8);
    return parse_safetensors_header(text, file_bytes);
  } catch (const Error& e) {
    if (e.code() != YOKE_DATA_LOSS) throw;
    throw Error(YOKE_DATA_LOSS, file.path() + ": " + e.what());
  }
}

std::string make_safetensors_header(std::vector<SafetensorsTensor>* tensors,
                                    const std::map<std::string, std::string>& metadata) {
  using Json = nlohmann::ordered_json;
  std::string text = "{";
  if (!metadata.empty()) text += "\"__metadata__\":" + Json(metadata).dump() + ",";
  uint64_t at = 0;
  for (SafetensorsTensor& tensor : *tensors) {
    uint64_t bytes = 0;
    if (!tensor_bytes(tensor.shape, tensor.dtype, &bytes)) {
      throw Error(YOKE_INVALID_ARGUMENT,
                  "tensor " + shown(tensor.name) + " is too large to be saved");
    }
    tensor.begin = at;
    tensor.end = at += bytes;
    text += Json(tensor.name).dump() + ":" +
            Json{{"dtype", safetensors_dtype(tensor.dtype)},
                 {"shape", tensor.shape},
                 {"data_offsets", {tensor.begin, tensor.end}}}
                .dump() +
            ",";
  }
  if (text.back() == ',') text.pop_back();
  text += '}';
  const size_t padded = (8 + text.size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment;
  text.resize(padded - 8, ' ');
  const uint64_t length = text.size();
  std::string head(8, '\0');
  std::memcpy(head.data(), &length, 8);
  for (SafetensorsTensor& tensor : *tensors) {
    tensor.begin += padded;
    tensor.end += padded;
  }
  return head + text;
}

}  // namespace yoke
