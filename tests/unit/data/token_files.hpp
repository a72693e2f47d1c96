// The bytes of token files in several formats.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/data/token_stream.hpp"
#include "yoke/error.hpp"

namespace yoke {

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Returns the ids without a header.
template <class Id>
std::string raw(const std::vector<Id>& ids) {
  std::string out;
  for (const Id id : ids) append(out, id);
  return out;
}

// Returns a file in the format "yoke" whose header promises a vocabulary and a number of ids.
template <class Id>
std::string token_file(const std::vector<Id>& ids, uint32_t vocab, uint64_t promised) {
  std::string out = kTokenFileMagic;
  append<uint32_t>(out, sizeof(Id));
  append<uint32_t>(out, vocab);
  append<uint64_t>(out, promised);
  return out + raw(ids);
}

// Returns a .npy file with this header literal, padded as NumPy pads it.
inline std::string npy_file(const std::string& literal, const std::string& data, int version = 1) {
  const size_t fixed = version == 1 ? 10 : 12;
  std::string padded = literal;
  while ((fixed + padded.size() + 1) % 64 != 0) padded += ' ';
  padded += '\n';
  std::string out = "\x93NUMPY";
  out += {static_cast<char>(version), '\0'};
  if (version == 1) {
    append(out, static_cast<uint16_t>(padded.size()));
  } else {
    append(out, static_cast<uint32_t>(padded.size()));
  }
  return out + padded + data;
}

// Returns the literal that numpy.save writes for an array of one dimension.
inline std::string npy_literal(const std::string& dtype, size_t count) {
  return "{'descr': '" + dtype + "', 'fortran_order': False, 'shape': (" + std::to_string(count) +
         ",), }";
}

inline std::vector<int64_t> all_ids(const TokenStream& stream) {
  std::vector<int64_t> out(static_cast<size_t>(stream.size()));
  stream.read(0, stream.size(), out.data());
  return out;
}

// Returns the Error that f throws.
template <class F>
Error error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e;
  }
  return Error(YOKE_OK, "nothing was thrown");
}

}  // namespace yoke
