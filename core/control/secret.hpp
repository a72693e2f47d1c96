// The secret that the ranks of a run share, and the proof that a rank knows it.
//
// Both sides of a connection send a random number (a nonce) and prove that they know the secret by
// an HMAC-SHA-256 over both nonces. A recorded proof is worthless for another connection, because
// its nonces differ, and the two sides use different labels, so that a proof cannot be returned to
// its sender. What follows on the connection is neither encrypted nor signed: whoever can change
// packets on their way can take over a connection after the proof.
#pragma once

#include <cstdlib>
#include <functional>
#include <string>

namespace yoke {

class Secret {
 public:
  Secret() = default;  // no secret
  explicit Secret(std::string bytes) : bytes_(std::move(bytes)) {}

  // Reads the file named by YOKE_SECRET_FILE; without the variable there is no secret. The file may
  // be a descriptor (/dev/fd/N) that the launcher passes on; a pipe can be read only once, so it
  // serves one process. Throws Error(INVALID_ARGUMENT) if it cannot be read, if other users may use
  // it, or if it has fewer than 16 bytes; FAILED_PRECONDITION if libcrypto is not installed.
  static Secret from_environment(const std::function<const char*(const char*)>& get =
                                     [](const char* n) {
                                       return static_cast<const char*>(std::getenv(n));
                                     });

  bool given() const { return !bytes_.empty(); }
  // Returns the proof that one side makes, "" without a secret. side: "hub" or "member".
  std::string proof(const std::string& side,
                    const std::string& hub_nonce,
                    const std::string& member_nonce) const;

 private:
  std::string bytes_;
};

// Returns 32 random bytes. Throws Error(INTERNAL) if the system has no random numbers.
std::string make_nonce();

// Compares two proofs in a time that does not depend on where they differ.
bool same_proof(const std::string& a, const std::string& b);

}  // namespace yoke
