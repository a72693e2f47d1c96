#include "core/control/secret.hpp"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/file_descriptor.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr size_t kNonceBytes = 32;
constexpr size_t kShortest = 16;
constexpr size_t kLongest = 4096;

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(YOKE_INVALID_ARGUMENT, "YOKE_SECRET_FILE = '" + path + "': " + why);
}

}  // namespace

Secret Secret::from_environment(const std::function<const char*(const char*)>& get) {
  const char* value = get("YOKE_SECRET_FILE");
  if (value == nullptr || *value == '\0') return Secret();
  const std::string path = value;
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.open()) refuse(path, std::strerror(errno));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) refuse(path, std::strerror(errno));
  if (S_ISREG(info.st_mode) && (info.st_mode & 077) != 0) {
    refuse(path,
           string_printf("other users may use the file (mode %03o); allowed: 600 or 400",
                         static_cast<unsigned>(info.st_mode & 0777)));
  }
  std::string bytes;
  for (size_t before = SIZE_MAX; before != bytes.size() && bytes.size() <= kLongest;) {
    before = bytes.size();
    if (!read_available(file.get(), bytes)) break;
  }
  while (!bytes.empty() && (bytes.back() == '\n' || bytes.back() == '\r')) bytes.pop_back();
  if (bytes.size() < kShortest || bytes.size() > kLongest) {
    refuse(path,
           concat("the file has ", bytes.size(), " bytes; allowed: ", kShortest, " to ", kLongest) +
               " (head -c 32 /dev/urandom | base64 makes one)");
  }
  return Secret(std::move(bytes));
}

std::string Secret::proof(const std::string& side,
                          const std::string& hub_nonce,
                          const std::string& member_nonce) const {
  if (!given()) return "";
  // The nonces have a fixed length, so no two inputs give the same text.
  const std::string text = "yoke control, " + side + ": " + hub_nonce + member_nonce;
  unsigned char mac[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (::HMAC(EVP_sha256(),
             bytes_.data(),
             static_cast<int>(bytes_.size()),
             reinterpret_cast<const unsigned char*>(text.data()),
             text.size(),
             mac,
             &size) == nullptr)
    throw Error(YOKE_INTERNAL, "HMAC-SHA-256 is not available in this libcrypto");
  return {reinterpret_cast<const char*>(mac), size};
}

std::string make_nonce() {
  std::string nonce(kNonceBytes, '\0');
  if (::RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), kNonceBytes) != 1)
    throw Error(YOKE_INTERNAL, "the system gives no random numbers");
  return nonce;
}

bool same_proof(const std::string& a, const std::string& b) {
  return a.size() == b.size() && ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace yoke
