// Parquet files that Apache Arrow writes, and what `yoke data prepare` makes of them.
#include "core/data/parquet_input.hpp"

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <gmock/gmock.h>
#include <parquet/arrow/writer.h>

#include <nlohmann/json.hpp>
#include <random>

#include "core/data/prepare.hpp"
#include "core/data/token_info.hpp"
#include "tests/unit/data/token_files.hpp"
#include "tests/unit/text/tiny_tokenizer.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::read_file;
using Cells = std::vector<std::optional<std::string>>;
using Chats = std::vector<std::vector<MessageCell>>;

const DocumentKind kTexts;

DocumentKind column(const char* field, bool chat) {
  DocumentKind kind;
  kind.field = field;
  kind.chat = chat;
  return kind;
}

template <class T>
T value_of(arrow::Result<T> result) {
  return std::move(result).ValueOrDie();
}
void require(const arrow::Status& status) {
  ASSERT_TRUE(status.ok()) << status.ToString();
}

template <class Builder>
void append_cells(Builder& builder, const Cells& cells) {
  for (const auto& cell : cells) require(cell ? builder.Append(*cell) : builder.AppendNull());
}

// Returns texts as an array of a type that holds texts.
template <class Builder>
std::shared_ptr<arrow::Array> array_of(const Cells& cells) {
  Builder builder;
  append_cells(builder, cells);
  return value_of(builder.Finish());
}

// A row without messages is null.
template <class ListBuilder>
std::shared_ptr<arrow::Array> array_of_chats(const Chats& chats) {
  arrow::MemoryPool* const pool = arrow::default_memory_pool();
  const auto name = std::make_shared<arrow::StringBuilder>(),
             role = std::make_shared<arrow::StringBuilder>(),
             content = std::make_shared<arrow::StringBuilder>();
  const auto type = arrow::struct_({arrow::field("name", arrow::utf8()),
                                    arrow::field("content", arrow::utf8()),
                                    arrow::field("role", arrow::utf8())});
  const auto message = std::make_shared<arrow::StructBuilder>(
      type, pool, std::vector<std::shared_ptr<arrow::ArrayBuilder>>{name, content, role});
  ListBuilder list(pool, message);
  for (const auto& chat : chats) {
    require(chat.empty() ? list.AppendNull() : list.Append());
    for (const MessageCell& cell : chat) {
      require(message->Append());
      require(name->AppendNull());
      append_cells(*role, {cell.role});
      append_cells(*content, {cell.content});
    }
  }
  return value_of(list.Finish());
}

using Columns = std::vector<std::pair<std::string, std::shared_ptr<arrow::Array>>>;

void write_parquet(const std::string& path, const Columns& columns, int64_t rows_of_group) {
  arrow::FieldVector fields;
  arrow::ArrayVector arrays;
  for (const auto& [name, array] : columns) {
    fields.push_back(arrow::field(name, array->type()));
    arrays.push_back(array);
  }
  const auto table = arrow::Table::Make(arrow::schema(fields), arrays);
  const auto out = value_of(arrow::io::FileOutputStream::Open(path));
  const auto with_types = parquet::ArrowWriterProperties::Builder().store_schema()->build();
  const auto small_pages = parquet::WriterProperties::Builder().data_pagesize(64)->build();
  require(parquet::arrow::WriteTable(
      *table, arrow::default_memory_pool(), out, rows_of_group, small_pages, with_types));
  require(out->Close());
}

Cells random_cells(std::mt19937& random, size_t count) {
  Cells cells;
  for (size_t i = 0; i < count; ++i) {
    std::string text;
    for (size_t n = random() % 40; n > 0; --n) text += "hel they "[random() % 9];
    cells.push_back(random() % 10 == 0 ? std::nullopt : std::optional(text));
  }
  return cells;
}

// Returns what is read of the cells: an empty text where a value is null.
std::vector<std::string> texts_of(const Cells& cells) {
  std::vector<std::string> texts;
  for (const auto& cell : cells) texts.push_back(cell.value_or(""));
  return texts;
}

class Parquet : public ::testing::Test {
 protected:
  Parquet() {
    tokenizer_folder_.write("tokenizer_config", {{"eos_token", "<|end|>"}});
    tokenizer_ = tokenizer_folder_.open();
    request_.encoding.end = tokenizer_->facts().eos;
    request_.part_bytes = 300;
  }
  std::string write(const std::string& name, const Columns& columns, int64_t rows_of_group = 7) {
    write_parquet(here_ / name, columns, rows_of_group);
    return here_ / name;
  }
  Error error(const std::string& path, const DocumentKind& kind = kTexts) {
    return error_of([&] { open_input(path, kind); });
  }
  std::string prepared(const std::string& input, const std::string& out) {
    request_.inputs = {input};
    request_.out = here_ / out;
    info_ = prepare(request_, *tokenizer_, [](const PrepareProgress&) {}).info;
    return read_file(request_.out);
  }
  // Writes the texts or conversations as .jsonl, too.
  std::string write_lines(const std::string& name, const std::vector<nlohmann::json>& objects) {
    std::string lines;
    for (const nlohmann::json& object : objects) lines += object.dump() + "\n";
    return here_.write(name, lines);
  }

  testing::TempFolder here_;
  testing::TokenizerFolder tokenizer_folder_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  PrepareRequest request_;
  TokenInfo info_;
};

// Returns the texts of the parts from `begin` on, and adds the ends of the parts to `ends`.
std::vector<std::string> texts_from(DocumentInput& input,
                                    size_t begin,
                                    size_t bytes,
                                    std::vector<size_t>& ends) {
  std::vector<std::string> texts;
  while (begin < input.size()) {
    const InputPart part = input.take(begin, bytes);
    EXPECT_EQ(part.begin, begin);
    input.for_each_document(part, [&](const Document& document, size_t place) {
      EXPECT_EQ(place, begin++);
      texts.emplace_back(document.text);
    });
    EXPECT_EQ(part.end, begin);
    ends.push_back(part.end);
  }
  return texts;
}

TEST_F(Parquet, EveryTypeOfTextIsRead) {
  std::mt19937 random(3);
  const Cells cells = random_cells(random, 100);
  const std::vector<std::string> expected = texts_of(cells);
  for (const auto& array : {array_of<arrow::StringBuilder>(cells),
                            array_of<arrow::LargeStringBuilder>(cells),
                            array_of<arrow::BinaryBuilder>(cells),
                            array_of<arrow::StringViewBuilder>(cells),
                            array_of<arrow::StringDictionaryBuilder>(cells)}) {
    SCOPED_TRACE(array->type()->ToString());
    const auto input = open_input(write("a.parquet", {{"text", array}}), kTexts);
    std::vector<size_t> ends;
    EXPECT_EQ(texts_from(*input, 0, 100, ends), expected);
  }
}

// Parts begin in the middle of row groups, and are the same if nothing before them was read.
TEST_F(Parquet, PartsDependOnTheFileOnly) {
  std::mt19937 random(4);
  const Cells cells = random_cells(random, 200);
  const auto array = array_of<arrow::StringBuilder>(cells);
  const auto other = array_of<arrow::StringBuilder>(Cells(200, "other"));
  for (const int64_t rows_of_group : {1, 7, 1000}) {
    const std::string path = write("a.parquet", {{"n", other}, {"text", array}}, rows_of_group);
    for (const size_t bytes : {1, 300, 100'000}) {
      std::vector<size_t> ends;
      const auto input = open_input(path, kTexts);
      EXPECT_EQ(input->size(), 200u);
      const std::vector<std::string> all = texts_from(*input, 0, bytes, ends);
      EXPECT_EQ(all, texts_of(cells));
      for (size_t i = 0; i < ends.size(); i += 5) {
        std::vector<size_t> later;
        const auto fresh = open_input(path, kTexts);
        const auto texts = texts_from(i % 2 == 0 ? *fresh : *input, ends[i], bytes, later);
        EXPECT_EQ(texts, std::vector(all.begin() + static_cast<int64_t>(ends[i]), all.end()));
        EXPECT_EQ(later, std::vector(ends.begin() + static_cast<int64_t>(i) + 1, ends.end()));
      }
    }
  }
}

TEST_F(Parquet, TokensAreThoseOfTheSameTextsInJsonl) {
  std::mt19937 random(5);
  const Cells cells = random_cells(random, 500);
  std::vector<nlohmann::json> objects;
  for (const auto& cell : cells) objects.push_back({{"body", cell.value_or("")}});
  request_.encoding.field = "body";
  const std::string expected = prepared(write_lines("a.jsonl", objects), "lines.bin");
  const TokenInfo info = info_;
  const std::string path = write("a.parquet", {{"body", array_of<arrow::StringBuilder>(cells)}});
  EXPECT_EQ(prepared(path, "one.bin"), expected);
  EXPECT_EQ(info_, info);
  request_.threads = 5;
  EXPECT_EQ(prepared(path, "five.bin"), expected);

  // A preparation that ends after each part, until nothing is left.
  request_.save_every = 0;
  request_.out = here_ / "parts.bin";
  int interruptions = 0;
  uint64_t last = 0;
  for (bool done = false; !done;) {
    try {
      prepare(request_, *tokenizer_, [&](const PrepareProgress& p) {
        EXPECT_LE(p.done, p.total);
        EXPECT_EQ(p.total, std::filesystem::file_size(path));
        last = p.resumed;
        if (p.done > p.resumed && p.done < p.total) throw 0;
      });
      done = true;
    } catch (int) {
      ++interruptions;
    }
  }
  EXPECT_GT(interruptions, 3);
  EXPECT_GT(last, 0u);
  EXPECT_EQ(read_file(request_.out), expected);
}

TEST_F(Parquet, ConversationsAreThoseOfTheSameObjectsInJsonl) {
  Chats chats;
  std::vector<nlohmann::json> objects;
  for (int i = 0; i < 100; ++i) {
    nlohmann::json messages;
    chats.emplace_back();
    for (int turn = 0; turn <= i % 3; ++turn) {
      for (const char* role : {"user", "assistant"}) {
        chats.back().push_back({role, "hel " + std::to_string(i * turn)});
        messages.push_back({{"role", role}, {"content", *chats.back().back().content}});
      }
    }
    objects.push_back({{"messages", messages}});
  }
  request_.encoding.chat = "zephyr";
  request_.encoding.end = std::nullopt;
  const std::string expected = prepared(write_lines("a.jsonl", objects), "lines.bin");
  const std::string mask = read_file(mask_path(request_.out));
  EXPECT_GT(mask.size(), 1000u);
  const auto list = array_of_chats<arrow::ListBuilder>(chats);
  EXPECT_EQ(prepared(write("a.parquet", {{"id", list}, {"messages", list}}), "rows.bin"), expected);
  EXPECT_EQ(read_file(mask_path(request_.out)), mask);
  const auto large = array_of_chats<arrow::LargeListBuilder>(chats);
  EXPECT_EQ(prepared(write("b.parquet", {{"messages", large}}), "large.bin"), expected);
  EXPECT_TRUE(info_.mask);
}

TEST_F(Parquet, AColumnThatDoesNotFitIsRefused) {
  const auto text = array_of<arrow::StringBuilder>({"a"});
  const auto number = value_of(arrow::MakeArrayFromScalar(arrow::Int64Scalar(1), 1));
  const std::string path = write("a.parquet", {{"contents", text}, {"n", number}});
  const Error missing = error(path, column("content", false));
  EXPECT_EQ(missing.code(), YOKE_INVALID_ARGUMENT);
  EXPECT_THAT(missing.what(),
              HasSubstr("input = \"" + path +
                        "\": the column \"content\" is missing; the file has: contents, n; did you "
                        "mean 'contents'?; name the column of the text with --field"));
  EXPECT_THAT(error(path, column("n", false)).what(),
              HasSubstr("the column \"n\" has the type int64; allowed: a text"));
  EXPECT_THAT(error(path, column("", true)).what(), HasSubstr("\"messages\" is missing"));
  const std::string other = write("b.parquet", {{"messages", text}});
  EXPECT_THAT(error(other, column("", true)).what(),
              HasSubstr("has the type string; allowed: a list of structs with the texts role and "
                        "content"));
}

TEST_F(Parquet, TheFirstWrongRowIsNamed) {
  const auto error_of_row = [&](const std::string& path) {
    request_.inputs = {path};
    request_.out = here_ / "x.bin";
    const Error e = error_of([&] { prepare(request_, *tokenizer_, [](const auto&) {}); });
    EXPECT_EQ(e.code(), YOKE_DATA_LOSS);
    return std::string(e.what());
  };
  Cells cells(50, "t");
  cells[20] = cells[30] = "a\xFF";
  request_.threads = 3;
  request_.part_bytes = 1;
  EXPECT_THAT(error_of_row(write("a.parquet", {{"text", array_of<arrow::BinaryBuilder>(cells)}})),
              HasSubstr("a.parquet: row 20: the text is not UTF-8: its byte 1 is 0xff"));
  request_.encoding.chat = "zephyr";
  const std::vector<MessageCell> good = {{"user", "a"}, {"assistant", "b"}};
  const auto with_row = [&](const std::vector<MessageCell>& row) {
    return error_of_row(
        write("c.parquet", {{"messages", array_of_chats<arrow::ListBuilder>({good, row})}}));
  };
  EXPECT_THAT(with_row({{"user", "a"}, {"assistant", std::nullopt}}),
              HasSubstr("c.parquet: row 1: messages[1].content is null"));
  EXPECT_THAT(with_row({{std::nullopt, "a"}}), HasSubstr("messages[0].role is null"));
  EXPECT_THAT(with_row({}), HasSubstr("row 1: \"messages\" is null or has no message"));
}

// Returns the texts of a file, or "" if it is refused as damaged.
std::string texts_or_refusal(const std::string& path) {
  try {
    std::vector<size_t> ends;
    std::string all;
    for (const std::string& text : texts_from(*open_input(path, kTexts), 0, 100, ends)) all += text;
    return all;
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr(path));
    return "";
  }
}

TEST_F(Parquet, ADamagedFileIsReported) {
  std::mt19937 random(6);
  const Cells cells = random_cells(random, 60);
  const std::string path =
      write("a.parquet", {{"text", array_of<arrow::StringBuilder>(cells)}}, 20);
  const std::string good = read_file(path), all = texts_or_refusal(path);
  EXPECT_FALSE(all.empty());
  for (size_t length = 4; length < good.size(); length += 13)
    EXPECT_EQ(texts_or_refusal(here_.write("cut.parquet", good.substr(0, length))), "") << length;
  for (int i = 0; i < 300; ++i) {
    std::string changed = good;
    changed[4 + random() % (good.size() - 4)] = static_cast<char>(random());
    texts_or_refusal(here_.write("changed.parquet", changed));  // must not crash
  }
  // The description of a row group is right, but its pages are not.
  std::string pages = good;
  pages.replace(good.size() / 2, 100, 100, '\xFF');
  request_.inputs = {here_.write("pages.parquet", pages)};
  request_.out = here_ / "x.bin";
  const Error e = error_of([&] { prepare(request_, *tokenizer_, [](const auto&) {}); });
  EXPECT_EQ(e.code(), YOKE_DATA_LOSS);
  EXPECT_THAT(e.what(), HasSubstr("pages.parquet, from row "));
  EXPECT_THAT(e.what(), HasSubstr(" on: the file is damaged: "));
  EXPECT_THAT(error(here_.write("pointer.parquet", "version https://git-lfs")).what(),
              HasSubstr("does not begin with PAR1 and is no Parquet file"));
}

TEST_F(Parquet, AFileWithoutRowsHasNoText) {
  const std::string path = write("a.parquet", {{"text", array_of<arrow::StringBuilder>({})}});
  EXPECT_THAT(error_of([&] { prepared(path, "x.bin"); }).what(),
              HasSubstr("the inputs hold no text"));
  const std::string nulls =
      write("b.parquet", {{"text", array_of<arrow::StringBuilder>({std::nullopt, "a", ""})}});
  request_.inputs = {path, nulls};
  request_.out = here_ / "y.bin";
  const Prepared two = prepare(request_, *tokenizer_, [](const PrepareProgress&) {});
  EXPECT_THAT(all_ids(*TokenStream::open(request_.out)), ElementsAre('a', 259));
  EXPECT_EQ(two.empty, 2);
}

}  // namespace
}  // namespace yoke
