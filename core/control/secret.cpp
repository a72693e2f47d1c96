// The HMAC is OpenSSL's, which is loaded only if there is a secret: Yoke runs on a bare Debian,
// which does not have it, and most runs need no secret. The two functions have been the same since
// OpenSSL 1.1.
#include "core/control/secret.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/random.h>
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

// HMAC() and EVP_sha256() of libcrypto.
using Hmac = unsigned char*(const void* method,
                            const void* key,
                            int key_size,
                            const unsigned char* data,
                            size_t size,
                            unsigned char* mac,
                            unsigned int* mac_size);
using Sha256 = const void*();
constexpr size_t kMacBytes = 32;

struct Crypto {
  Hmac* hmac = nullptr;
  Sha256* sha256 = nullptr;
};

// Throws Error(FAILED_PRECONDITION) if this machine has no libcrypto.
const Crypto& crypto() {
  static const Crypto loaded = [] {
    Crypto c;
    for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1"}) {
      void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr) continue;
      c.hmac = reinterpret_cast<Hmac*>(::dlsym(library, "HMAC"));
      c.sha256 = reinterpret_cast<Sha256*>(::dlsym(library, "EVP_sha256"));
      if (c.hmac != nullptr && c.sha256 != nullptr) return c;
    }
    return Crypto();
  }();
  if (loaded.hmac == nullptr) {
    throw Error(YOKE_FAILED_PRECONDITION,
                "YOKE_SECRET_FILE needs OpenSSL's libcrypto.so.3, which is not installed here; "
                "apt-get install libssl3");
  }
  return loaded;
}

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
  crypto();  // an error must appear before the ranks try to meet
  return Secret(std::move(bytes));
}

std::string Secret::proof(const std::string& side,
                          const std::string& hub_nonce,
                          const std::string& member_nonce) const {
  if (!given()) return "";
  // The nonces have a fixed length, so no two inputs give the same text.
  const std::string text = "yoke control, " + side + ": " + hub_nonce + member_nonce;
  unsigned char mac[kMacBytes];
  unsigned int size = sizeof mac;
  const Crypto& c = crypto();
  if (c.hmac(c.sha256(),
             bytes_.data(),
             static_cast<int>(bytes_.size()),
             reinterpret_cast<const unsigned char*>(text.data()),
             text.size(),
             mac,
             &size) == nullptr)
    throw Error(YOKE_INTERNAL, "libcrypto cannot compute an HMAC-SHA-256");
  return {reinterpret_cast<const char*>(mac), size};
}

std::string make_nonce() {
  std::string nonce(kNonceBytes, '\0');
  // A request of up to 256 bytes is never cut short.
  if (::getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size()))
    throw Error(YOKE_INTERNAL, "the system gives no random numbers");
  return nonce;
}

bool same_proof(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  volatile unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i)
    difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
  return difference == 0;
}

}  // namespace yoke
