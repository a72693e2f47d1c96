#include "core/data/prepare.hpp"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <pthread.h>

#include <atomic>
#include <limits>
#include <random>

#include "core/base/files.hpp"
#include "core/data/token_stream.hpp"
#include "tests/unit/data/token_files.hpp"
#include "tests/unit/text/tiny_tokenizer.hpp"

namespace {
std::atomic<int> threads_left{std::numeric_limits<int>::max()};
}  // namespace

// Replaces the function of the C library, so that a test can let the start of a thread fail.
extern "C" int pthread_create(pthread_t* thread,
                              const pthread_attr_t* attributes,
                              void* (*body)(void*),
                              void* argument) {
  static const auto original =
      reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  return threads_left-- > 0 ? original(thread, attributes, body, argument) : EAGAIN;
}

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::read_file;

// A line of .jsonl.
const std::string kConversation =
    R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})";

void ignore(const PrepareProgress&) {}

class Prepare : public ::testing::Test {
 protected:
  Prepare() : tokenizer_(with_eos().open()) { request_.out = here_ / "out.bin"; }

  testing::TokenizerFolder& with_eos() {
    tokenizer_folder_.write("tokenizer_config",
                            {{"eos_token", "<|end|>"}, {"bos_token", "<|begin|>"}});
    return tokenizer_folder_;
  }
  // Prepares the inputs and returns the ids.
  std::vector<int64_t> ids() {
    prepared_ = prepare(request_, *tokenizer_, ignore);
    return all_ids(*TokenStream::open(request_.out));
  }
  Error error() {
    return error_of([&] { prepare(request_, *tokenizer_, ignore); });
  }
  // Makes three inputs with random documents, and requests parts of about ten of them.
  void make_inputs() {
    std::mt19937 random(5);
    const auto document = [&](const char* line_end) {
      std::string text;
      for (size_t i = random() % 60; i > 0; --i)
        text += random() % 9 == 0 ? line_end : "hel they "[random() % 9] + std::string();
      return text;
    };
    std::string lines, text;
    for (int i = 0; i < 400; ++i) lines += "{\"text\": \"" + document("\\n") + "\"}\n";
    for (int i = 0; i < 400; ++i) text += document("\n") + "\n\n";
    request_.inputs = {
        here_.write("a.jsonl", lines), here_.write("b.txt", text), here_.write("c.txt", text)};
    request_.split.kind = DocumentSplit::Kind::kBlankLines;
    request_.encoding.end = tokenizer_->facts().eos;
    request_.part_bytes = 300;
  }

  // Ends a preparation of these inputs after its first part.
  void interrupt() {
    request_.save_every = 0;
    EXPECT_THROW(prepare(request_,
                         *tokenizer_,
                         [](const PrepareProgress& p) {
                           if (p.done > 0) throw Interrupted();
                         }),
                 Interrupted);
  }

  struct Interrupted {};
  testing::TempFolder here_;
  testing::TokenizerFolder tokenizer_folder_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  PrepareRequest request_;
  Prepared prepared_;
};

TEST_F(Prepare, WritesDocumentsInTheOrderOfTheInputs) {
  request_.inputs = {
      here_.write("b.txt", "hel"),
      here_.write("a.jsonl", "{\"text\": \"a\", \"n\": 1}\n{\"text\": \"\"}\n{\"text\":\"b\"}")};
  EXPECT_THAT(ids(), ElementsAre(257, 'a', 'b'));
  EXPECT_EQ(prepared_.info, (TokenInfo{3, 3, 261, tokenizer_->facts().hash, std::nullopt, false}));
  EXPECT_EQ(prepared_.empty, 1);
  EXPECT_EQ(read_token_info(request_.out), prepared_.info);
  EXPECT_EQ(TokenStream::open(request_.out)->vocab(), 261);
  EXPECT_FALSE(std::filesystem::exists(request_.out + ".partial"));
}

TEST_F(Prepare, AddsTheEndsOfDocuments) {
  request_.inputs = {here_.write("a.jsonl", "{\"x\": \"a\"}\n{\"x\": \"b\"}\n")};
  request_.encoding = {"x", true, tokenizer_->facts().eos, ""};
  EXPECT_THAT(ids(), ElementsAre(260, 'a', 259, 260, 'b', 259));
  EXPECT_EQ(prepared_.info.document_end, 259);
}

TEST_F(Prepare, UsesFourBytesForALargeVocabulary) {
  nlohmann::json file = testing::tiny_tokenizer();
  file["model"]["vocab"]["far"] = 65536;
  const auto large = testing::TokenizerFolder(file).open();
  request_.inputs = {here_.write("a.txt", "ab")};
  prepare(request_, *large, ignore);
  EXPECT_THAT(all_ids(*TokenStream::open(request_.out)), ElementsAre('a', 'b'));
  EXPECT_EQ(std::filesystem::file_size(request_.out), kTokenFileHeaderBytes + 8);
}

TEST_F(Prepare, TheNumberOfThreadsDoesNotChangeTheOutput) {
  make_inputs();
  ids();
  const std::string expected = read_file(request_.out);
  EXPECT_GT(prepared_.info.documents, 500);
  for (const int threads : {2, 7}) {
    request_.threads = threads;
    std::filesystem::remove(request_.out);
    std::filesystem::remove(token_info_path(request_.out));
    ids();
    EXPECT_EQ(read_file(request_.out), expected) << threads;
  }
}

TEST_F(Prepare, ResumesWhereItWasInterrupted) {
  make_inputs();
  ids();
  const std::string expected = read_file(request_.out);
  const TokenInfo info = prepared_.info;
  request_.out = here_ / "resumed.bin";
  request_.threads = 2;
  request_.save_every = 0;
  uint64_t last = 0;
  int interruptions = 0;
  for (bool done = false; !done;) {
    uint64_t first = UINT64_MAX;
    try {
      prepared_ = prepare(request_, *tokenizer_, [&](const PrepareProgress& p) {
        if (first == UINT64_MAX) first = p.resumed;
        if (p.done == p.total) return;
        if (p.done > p.resumed) throw Interrupted();
      });
      done = true;
    } catch (const Interrupted&) {
      ++interruptions;
      // Bytes behind the state are those of a part whose state was not saved.
      File file = File::open_for_writing(request_.out + ".partial/ids");
      const std::string garbage(1000000, 'x');
      file.write_at(garbage.data(), garbage.size(), file.size());
    }
    EXPECT_GE(first, last);
    last = first;
  }
  EXPECT_GT(interruptions, 0);
  EXPECT_GT(last, 0u);
  EXPECT_EQ(read_file(request_.out), expected);
  EXPECT_EQ(prepared_.info, info);
}

TEST_F(Prepare, ResumesInputsWhosePathsAreNotUtf8) {
  make_inputs();
  request_.inputs[0] = here_.write("\xFF.jsonl", read_file(request_.inputs[0]));
  interrupt();
  uint64_t resumed = 0;
  prepare(request_, *tokenizer_, [&](const PrepareProgress& p) { resumed = p.resumed; });
  EXPECT_GT(resumed, 0u);
}

TEST_F(Prepare, ReportsADamagedState) {
  make_inputs();
  interrupt();
  const std::string path = request_.out + ".partial/progress.json", good = read_file(path);
  const auto error_with = [&](const std::string& text) {
    here_.write("out.bin.partial/progress.json", text);
    const Error e = error();
    EXPECT_EQ(e.code(), YOKE_DATA_LOSS);
    EXPECT_THAT(e.what(), HasSubstr(path + ": "));
    EXPECT_THAT(e.what(), HasSubstr("; remove " + request_.out + ".partial to start over"));
    return std::string(e.what());
  };
  const auto with = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json json = nlohmann::json::parse(good);
    json[key] = value;
    return error_with(json.dump());
  };
  EXPECT_THAT(error_with("{"), HasSubstr("the file is not JSON"));
  for (const char* key : {"file", "offset", "tokens", "documents", "empty"}) {
    for (const nlohmann::json& wrong :
         {nlohmann::json(-1), nlohmann::json("1"), nlohmann::json(INT64_MAX)})
      EXPECT_THAT(with(key, wrong),
                  HasSubstr(std::string("\"") + key + "\" must be a whole number"));
  }
  EXPECT_THAT(with("file", 3), HasSubstr("\"file\" is 3, but there are 3 inputs"));
  EXPECT_THAT(with("offset", 1 << 20), HasSubstr("\"offset\" is 1048576, but the input ends at "));
  EXPECT_THAT(with("tokens", 1 << 20), HasSubstr("\"tokens\" is 1048576, but the files hold"));
  here_.write("out.bin.partial/progress.json", good);
  EXPECT_FALSE(ids().empty());
}

TEST_F(Prepare, StartsOverIfTheInputsChanged) {
  make_inputs();
  request_.save_every = 0;
  here_.write("b.txt", "hel\n\n\xFF\n\n");
  EXPECT_THAT(
      error().what(),
      HasSubstr("b.txt: the document at byte 5: the text is not UTF-8: its byte 0 is 0xff"));
  here_.write("b.txt", "hel\n\nhel\n\n");
  bool started_over = false;
  prepared_ = prepare(request_, *tokenizer_, [&](const PrepareProgress& p) {
    started_over = p.started_over;
    EXPECT_EQ(p.resumed, 0u);
  });
  EXPECT_TRUE(started_over);
  const std::string resumed = read_file(request_.out);
  request_.out = here_ / "fresh.bin";
  ids();
  EXPECT_EQ(read_file(request_.out), resumed);
}

TEST_F(Prepare, NamesTheFirstWrongLine) {
  request_.threads = 3;
  request_.part_bytes = 1;
  const auto with_line = [&](const std::string& line) {
    std::string lines;
    for (int i = 1; i < 50; ++i) lines += "{\"text\": \"t\"}\n";
    request_.inputs = {here_.write("a.jsonl", lines + line + "\n{\"n\": 1}\n")};
    const Error e = error();
    EXPECT_EQ(e.code(), YOKE_DATA_LOSS);
    EXPECT_THAT(e.what(), HasSubstr("a.jsonl:50: "));
    return std::string(e.what());
  };
  EXPECT_THAT(with_line("{\"text\": \"t\""), HasSubstr("the line is not JSON"));
  EXPECT_THAT(with_line("[1]"), HasSubstr("the line is not a JSON object"));
  EXPECT_THAT(with_line("{\"body\": 1, \"id\": 2}"),
              HasSubstr("the field \"text\" is missing; the object has: body, id; name the field"));
  EXPECT_THAT(with_line("{\"text\": 3}"), HasSubstr("the field \"text\" is not a text"));
}

TEST_F(Prepare, WritesTheMaskOfConversations) {
  request_.inputs = {here_.write("a.jsonl", kConversation + "\n" + kConversation + "\n")};
  request_.encoding.chat = "zephyr";
  request_.part_bytes = 1;
  const std::vector<int64_t> found = ids();
  std::vector<int64_t> targets;
  const std::string mask = read_file(mask_path(request_.out));
  ASSERT_EQ(mask.size(), found.size());
  for (size_t i = 0; i < mask.size(); ++i)
    if (mask[i] == 1) targets.push_back(found[i]);
  EXPECT_THAT(targets, ElementsAre('b', 259, 'b', 259));
  EXPECT_TRUE(prepared_.info.mask);
  EXPECT_EQ(prepared_.info.document_end, std::nullopt);

  request_.out = here_ / "other.bin";
  request_.inputs = {here_.write("bad.jsonl", kConversation + "\n{\"messages\": 1}\n")};
  EXPECT_THAT(error().what(), HasSubstr("bad.jsonl:2: the field \"messages\" must be a list"));
  request_.inputs = {here_.write("a.txt", "a")};
  EXPECT_THAT(error().what(), HasSubstr("allowed with --chat: .jsonl and Parquet files"));
}

// A folder in the place of the output lets the last step of a preparation fail, after the mask was
// moved and the description was written.
TEST_F(Prepare, ResumesAnInterruptedEnd) {
  request_.inputs = {here_.write("a.jsonl", kConversation + "\n")};
  request_.encoding.chat = "zephyr";
  ids();
  const std::string ids_of_whole = read_file(request_.out),
                    whole_mask = read_file(here_ / "out.mask");
  request_.out = here_ / "other.bin";
  const auto block = [&](const PrepareProgress&) { here_.write("other.bin/file", ""); };
  for (int i = 0; i < 2; ++i) {
    EXPECT_ANY_THROW(prepare(request_, *tokenizer_, block));
    EXPECT_TRUE(std::filesystem::exists(here_ / "other.mask"));
    std::filesystem::remove_all(request_.out);
  }

  request_.encoding.chat.clear();
  request_.encoding.field = "messages";
  EXPECT_THAT(error().what(), HasSubstr("other.json exists; remove it"));
  std::filesystem::rename(here_ / "other.json", here_ / "kept.json");
  EXPECT_THAT(error().what(), HasSubstr("other.mask exists; remove it"));
  std::filesystem::rename(here_ / "kept.json", here_ / "other.json");

  request_.encoding = {"text", false, std::nullopt, "zephyr"};
  uint64_t resumed = 0;
  prepare(request_, *tokenizer_, [&](const PrepareProgress& p) { resumed = p.resumed; });
  EXPECT_EQ(resumed, kConversation.size() + 1);
  EXPECT_EQ(read_file(request_.out), ids_of_whole);
  EXPECT_EQ(read_file(here_ / "other.mask"), whole_mask);
}

TEST_F(Prepare, AMaskThatIsTooShortIsReported) {
  make_inputs();
  request_.inputs = {here_.write("a.jsonl", kConversation + "\n" + kConversation + "\n")};
  request_.encoding.chat = "zephyr";
  interrupt();
  std::filesystem::resize_file(request_.out + ".partial/mask", 3);
  EXPECT_THAT(error().what(), HasSubstr("but the files hold 3"));
  std::filesystem::remove(request_.out + ".partial/mask");
  EXPECT_THAT(error().what(), HasSubstr("progress.json: the mask is missing; remove"));
}

// The state is not saved after such an error: it would be of no use, because the input must change.
TEST_F(Prepare, AnErrorIsReportedIfNothingCanBeSaved) {
  make_inputs();
  here_.write("b.txt", "\xFF");
  EXPECT_THAT(error_of([&] {
                prepare(request_, *tokenizer_, [&](const PrepareProgress&) {
                  std::filesystem::remove_all(request_.out + ".partial");
                });
              }).what(),
              HasSubstr("b.txt: the document at byte 0"));
}

TEST_F(Prepare, ReportsAThreadThatDoesNotStart) {
  make_inputs();
  request_.threads = 5;
  threads_left = 2;
  const Error e = error();
  threads_left = std::numeric_limits<int>::max();
  EXPECT_EQ(e.code(), YOKE_RESOURCE_EXHAUSTED);
  EXPECT_THAT(e.what(), HasSubstr("only 2 of 5 threads started"));
  EXPECT_THAT(e.what(), HasSubstr("--threads"));
}

TEST_F(Prepare, RefusesWrongRequests) {
  request_.inputs = {here_.write("a.txt", "a"), here_ / "a.txt"};
  EXPECT_THAT(error().what(), HasSubstr("is given twice"));
  request_.inputs = {here_.write("empty.txt", "")};
  EXPECT_THAT(error().what(), HasSubstr("the inputs hold no text"));
  request_.inputs = {here_.write("a.jsonl", "")};
  request_.out = here_ / "chat.bin";
  request_.encoding.chat = "zephir";
  EXPECT_THAT(error().what(), HasSubstr("did you mean 'zephyr'?"));
  EXPECT_FALSE(std::filesystem::exists(request_.out + ".partial"));
  request_.encoding.chat.clear();
  request_.inputs = {here_ / "a.txt"};
  request_.out = here_ / "out.json";
  EXPECT_THAT(error().what(), HasSubstr("choose another name, such as OUT.bin"));
  request_.out = here_.write("exists.bin", "");
  EXPECT_THAT(error().what(), HasSubstr("exists.bin exists; remove it"));
  request_.out = here_ / "other.bin";
  here_.write("other.json", "{}");
  EXPECT_THAT(error().what(), HasSubstr("other.json exists; remove it"));
  request_.out = here_ / "locked.bin";
  make_folders(request_.out + ".partial");
  const FolderLock lock(request_.out + ".partial");
  EXPECT_THAT(error().what(), HasSubstr("is in use: another process prepares"));
}

}  // namespace
}  // namespace yoke
