// The keys and values that the ranks of a run share through its hub, with the semantics of a
// c10d::Store.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/control/message.hpp"

namespace yoke {

class StoreState {
 public:
  // An answer to a request of a connection.
  struct Answer {
    int connection;
    std::string request;
    std::string value;
  };

  // Returns true if the message is one for the store.
  static bool handles(MessageType type);
  // Carries out a request and returns the answers that can be given now: none for a kGet whose key
  // does not exist, several if the request sets a key that others wait for.
  std::vector<Answer> handle(int connection, const Message& message);
  // Forgets the requests of a connection.
  void closed(int connection);

 private:
  void set(const std::string& key, const std::string& value, std::vector<Answer>& answers);

  std::map<std::string, std::string> values_;
  std::map<std::string, std::vector<std::pair<int, std::string>>> waiting_;  // key -> requests
};

}  // namespace yoke
