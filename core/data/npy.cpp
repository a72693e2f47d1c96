// The header is a Python literal in a fixed form: {'descr': '<u2', 'fortran_order': False, 'shape':
// (1000,), }. Only the three keys are searched for, because NumPy itself writes no others.
#include "core/data/npy.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <iterator>
#include <optional>
#include <string_view>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr char kMagic[] = "\x93NUMPY";
constexpr size_t kMagicBytes = 6;

struct NpyType {
  std::string_view name;
  size_t bytes;
  bool is_signed;
};
constexpr NpyType kTypes[] = {
    {"'<u2'", 2, false}, {"'<u4'", 4, false}, {"'<i4'", 4, true}, {"'<i8'", 8, true}};

[[noreturn]] void damaged(const MappedFile& file, const std::string& what) {
  throw Error(YOKE_DATA_LOSS,
              file.name() + ": the header of the .npy file " + what +
                  "; the file is damaged, write it again with numpy.save");
}

// Returns the literal, which begins after the magic, the version and its own length.
std::string_view literal_of(const MappedFile& file, size_t* header_bytes) {
  const unsigned char* bytes = file.data();
  if (file.size() < 12) damaged(file, "is cut off");
  const unsigned char version = bytes[kMagicBytes];
  if (version < 1 || version > 3)
    throw Error(YOKE_INVALID_ARGUMENT,
                file.name() + concat(" is a .npy file of version ", int{version}) +
                    "; supported: 1, 2 and 3");
  // Version 1 stores the length in 2 bytes, the later ones in 4, little-endian.
  const size_t width = version == 1 ? 2 : 4, begin = kMagicBytes + 2 + width;
  size_t length = 0;
  for (size_t i = 0; i < width; ++i) length |= size_t{bytes[kMagicBytes + 2 + i]} << (8 * i);
  if (length > file.size() - begin) damaged(file, "is cut off");
  *header_bytes = begin + length;
  return {reinterpret_cast<const char*>(bytes) + begin, length};
}

// Returns the value of a key up to the end of the literal, without leading blanks.
std::string_view value_of(const MappedFile& file, std::string_view literal, std::string_view key) {
  size_t at = literal.find(key);
  if (at == std::string_view::npos) damaged(file, concat("lacks ", key));
  at = literal.find_first_not_of(": \n", at + key.size());
  if (at == std::string_view::npos) damaged(file, concat("has no value for ", key));
  return literal.substr(at);
}

// Parses "(1000,)", the shape of one dimension; nothing for any other shape.
std::optional<uint64_t> count_of(std::string_view shape) {
  uint64_t count = 0;
  if (!shape.starts_with('(')) return {};
  const char* const end = shape.data() + shape.size();
  const auto parsed = std::from_chars(shape.data() + 1, end, count);
  const std::string_view rest(parsed.ptr, static_cast<size_t>(end - parsed.ptr));
  return parsed.ec == std::errc() && rest.starts_with(",)") ? std::optional(count) : std::nullopt;
}

}  // namespace

bool is_npy(const MappedFile& file) {
  return file.size() >= kMagicBytes && std::memcmp(file.data(), kMagic, kMagicBytes) == 0;
}

NpyArray read_npy_header(const MappedFile& file) {
  if (!is_npy(file))
    throw Error(YOKE_INVALID_ARGUMENT,
                file.name() +
                    " does not begin as a .npy file of NumPy does, so it is not in the "
                    "format \"npy\"");
  NpyArray array;
  const std::string_view literal = literal_of(file, &array.header_bytes);
  const std::string_view type = value_of(file, literal, "'descr'");
  const auto up_to = [](std::string_view text, std::string_view marks) {
    return std::string(text.substr(0, text.find_first_of(marks)));
  };
  const auto known = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const NpyType& t) {
    return type.starts_with(t.name);
  });
  if (known == std::end(kTypes))
    throw Error(YOKE_INVALID_ARGUMENT,
                file.name() + " is a .npy file of dtype " + up_to(type, ",}") +
                    "; allowed: '<u2', '<u4', '<i4', '<i8' (uint16, uint32, int32 and int64, "
                    "little-endian); convert it with astype");
  array.id_bytes = known->bytes;
  array.is_signed = known->is_signed;
  const std::string_view shape = value_of(file, literal, "'shape'");
  const std::optional<uint64_t> count = count_of(shape);
  const bool fortran = value_of(file, literal, "'fortran_order'").starts_with("True");
  if (!count || fortran)
    throw Error(YOKE_INVALID_ARGUMENT,
                file.name() + " is a .npy file of the shape " + up_to(shape, ")") + ")" +
                    (fortran ? " in Fortran order" : "") +
                    "; allowed: one dimension in C order, like (1000,); convert it with "
                    "numpy.ascontiguousarray(a).reshape(-1)");
  array.count = *count;
  return array;
}

}  // namespace yoke
