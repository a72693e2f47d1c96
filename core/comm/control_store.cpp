#include "core/comm/control_store.hpp"

#include <string>
#include <vector>

#include "yoke/text.hpp"

namespace yoke {
namespace {

using Bytes = std::vector<uint8_t>;

std::string text_of(const Bytes& bytes) {
  return {bytes.begin(), bytes.end()};
}
Bytes bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

class ControlStore final : public c10d::Store {
 public:
  ControlStore(Member& member, std::chrono::milliseconds timeout)
      : Store(timeout), member_(member) {}

  c10::intrusive_ptr<Store> clone() override {
    return c10::make_intrusive<ControlStore>(member_, timeout_);
  }
  void set(const std::string& key, const Bytes& value) override {
    ask(MessageType::kSet, {key, text_of(value)});
  }
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override {
    return bytes_of(ask(MessageType::kReplace, {key, text_of(expected), text_of(desired)}));
  }
  Bytes get(const std::string& key) override { return bytes_of(ask(MessageType::kGet, {key})); }
  int64_t add(const std::string& key, int64_t value) override {
    return std::stoll(ask(MessageType::kAdd, {key, concat(value)}));
  }
  bool deleteKey(const std::string& key) override {
    return ask(MessageType::kDelete, {key}) == "1";
  }
  bool check(const std::vector<std::string>& keys) override {
    return ask(MessageType::kCheck, keys) == "1";
  }
  int64_t getNumKeys() override { return std::stoll(ask(MessageType::kCount, {})); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    for (const std::string& key : keys) member_.request(MessageType::kGet, {key}, timeout);
  }
  void append(const std::string& key, const Bytes& value) override {
    ask(MessageType::kAppend, {key, text_of(value)});
  }
  std::vector<Bytes> multiGet(const std::vector<std::string>& keys) override {
    std::vector<Bytes> values;
    for (const std::string& key : keys) values.push_back(get(key));
    return values;
  }
  void multiSet(const std::vector<std::string>& keys, const std::vector<Bytes>& values) override {
    for (size_t i = 0; i < keys.size(); ++i) set(keys[i], values.at(i));
  }
  bool hasExtendedApi() const override { return true; }

 private:
  std::string ask(MessageType type, std::vector<std::string> fields) {
    return member_.request(type, std::move(fields), timeout_);
  }

  Member& member_;
};

}  // namespace

c10::intrusive_ptr<c10d::Store> make_control_store(Member& member,
                                                   std::chrono::milliseconds timeout) {
  return c10::make_intrusive<ControlStore>(member, timeout);
}

}  // namespace yoke
