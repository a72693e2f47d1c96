// print_tokens TOKENIZER encodes the texts on stdin and prints, for each, the ids, the decoded
// text, and the text that is decoded one token at a time. A text, or a list of ids, is preceded by
// its length as uint32. A text that cannot be encoded gets the length 0xFFFFFFFF and the message.
#include <cstdio>
#include <string>

#include "core/text/tokenizer.hpp"

namespace {

constexpr uint32_t kFailed = 0xFFFFFFFF;

void put(uint32_t number) {
  std::fwrite(&number, sizeof number, 1, stdout);
}

void put(const std::string& text) {
  put(static_cast<uint32_t>(text.size()));
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  const auto tokenizer = yoke::Tokenizer::open(argv[1]);
  const auto encoder = tokenizer->encoder();
  uint32_t size = 0;
  std::vector<int32_t> ids;
  while (std::fread(&size, sizeof size, 1, stdin) == 1) {
    std::string text(size, '\0');
    if (std::fread(text.data(), 1, size, stdin) != size) return 1;
    ids.clear();
    try {
      encoder->encode(text, ids);
    } catch (const std::exception& e) {
      put(kFailed);
      put(std::string(e.what()));
      continue;
    }
    put(static_cast<uint32_t>(ids.size()));
    std::fwrite(ids.data(), sizeof(int32_t), ids.size(), stdout);
    put(tokenizer->decode(ids));
    yoke::StreamDecoder stream(*tokenizer);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.push(id);
    put(streamed + stream.finish());
  }
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
