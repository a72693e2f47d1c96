#include "core/cli/prepare.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>

#include "core/base/console.hpp"
#include "core/base/cores.hpp"
#include "core/base/exit_code.hpp"
#include "core/base/text.hpp"
#include "core/cli/command.hpp"
#include "core/data/data_files.hpp"
#include "core/data/prepare.hpp"
#include "core/metrics/progress.hpp"
#include "yoke/error.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr char kBlankLines[] = "blank-lines";
constexpr size_t kShownTokens = 20;

struct Arguments {
  std::string tokenizer;
  std::vector<std::string> inputs;
  std::string split_on;
  bool chat = false;
  std::string chat_template;
  PrepareRequest request;
  bool append_eos = false, no_append_eos = false;
  std::optional<std::string> end_token;
};

// Replaces \n, \t, \r and \\ by the characters that they stand for.
std::string unescaped(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t kind = text[i] == '\\' && i + 1 < text.size()
                            ? std::string_view("ntr\\").find(text[i + 1])
                            : std::string_view::npos;
    out += kind == std::string_view::npos ? text[i] : "\n\t\r\\"[kind];
    if (kind != std::string_view::npos) ++i;
  }
  return out;
}

DocumentSplit split_of(const std::string& text) {
  if (text.empty()) return {};
  if (text == kBlankLines) return {DocumentSplit::Kind::kBlankLines, ""};
  return {DocumentSplit::Kind::kSeparator, unescaped(text)};
}

// Returns the id of a token that ends documents. It must be an added token, because a text may
// contain any other one.
int32_t end_token_id(const Tokenizer& tokenizer, const std::string& token) {
  const std::optional<int32_t> id = tokenizer.id_of(token);
  if (id && tokenizer.is_added(*id)) return *id;
  std::vector<std::string> added;
  for (int32_t other = 0; other < tokenizer.facts().vocab_size; ++other) {
    if (tokenizer.contains(other) && tokenizer.is_added(other))
      added.push_back(tokenizer.decode({other}, /*with_special=*/true));
  }
  std::string text = concat("--end-token \"", token, "\" is not among the added tokens of ") +
                     tokenizer.facts().path;
  if (added.empty()) throw Error(YOKE_INVALID_ARGUMENT, text + ", which has none; leave it out");
  text += did_you_mean(token, added) + "; allowed: ";
  if (added.size() > kShownTokens) {
    added.resize(kShownTokens);
    added.emplace_back("...");
  }
  throw Error(YOKE_INVALID_ARGUMENT, text + join(added));
}

// Resolves the options that depend on the tokenizer.
void choose_ends(const Tokenizer& tokenizer, Arguments& arguments) {
  const TokenizerFacts& facts = tokenizer.facts();
  const auto missing = [&](const char* option, const char* key) {
    return Error(YOKE_INVALID_ARGUMENT,
                 concat(option,
                        ": the tokenizer ",
                        facts.path,
                        " has no such token; name it as \"",
                        key,
                        "\" in tokenizer_config.json beside it"));
  };
  EncodingOptions& encoding = arguments.request.encoding;
  if (arguments.chat == arguments.chat_template.empty()) {
    throw Error(YOKE_INVALID_ARGUMENT,
                "--chat and --template NAME belong together; give both, or none of them");
  }
  if (arguments.chat && encoding.bos) {
    throw Error(YOKE_INVALID_ARGUMENT,
                "--bos: a chat template writes the begin of a text where it has one; leave it out");
  }
  encoding.chat = arguments.chat_template;
  if (encoding.bos && !facts.bos) throw missing("--bos", "bos_token");
  if (arguments.append_eos && !facts.eos) throw missing("--append-eos", "eos_token");
  if (arguments.end_token) encoding.end = end_token_id(tokenizer, *arguments.end_token);
  if (arguments.append_eos) encoding.end = facts.eos;
  if (encoding.end || arguments.no_append_eos || !facts.eos) return;
  // Conversations whose turns end with this token need no second one.
  if (!arguments.chat || !ChatTemplate(encoding.chat, tokenizer).ends_turns_with(*facts.eos))
    encoding.end = facts.eos;
}

// Shows the progress on a terminal. The time that is left is estimated from this process only.
class ProgressLine {
 public:
  void show(const PrepareProgress& p) {
    if (p.started_over && !std::exchange(noted_, true)) {
      console_.line(STDERR_FILENO,
                    "yoke: an interrupted preparation of other inputs, or with other options, was "
                    "discarded");
    }
    if (p.resumed > 0 && !std::exchange(noted_, true))
      console_.line(STDERR_FILENO, "yoke: resumed after " + bytes_text(p.resumed));
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    const auto here = static_cast<double>(p.done - p.resumed);
    std::string line = "prepare " +
                       progress_bar(static_cast<int64_t>(p.done), static_cast<int64_t>(p.total)) +
                       "  " + bytes_text(p.done) + " of " + bytes_text(p.total);
    if (here > 0 && seconds > 0.5) {
      line += "  " + bytes_text(static_cast<uint64_t>(here / seconds)) + "/s  " +
              duration_text(static_cast<double>(p.total - p.done) * seconds / here) + " left";
    }
    console_.progress(line);
  }

 private:
  Console console_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  bool noted_ = false;
};

// Returns "1 document" or "2,000 documents".
std::string counted(int64_t count, const char* what) {
  return with_commas(static_cast<double>(count)) + " " + what + (count == 1 ? "" : "s");
}

int run(Arguments& arguments) {
  const std::shared_ptr<const Tokenizer> tokenizer = Tokenizer::open(arguments.tokenizer);
  choose_ends(*tokenizer, arguments);
  PrepareRequest& request = arguments.request;
  request.split = split_of(arguments.split_on);
  for (const std::string& entry : arguments.inputs) {
    const std::vector<std::string> files = expand_path("input", entry);
    request.inputs.insert(request.inputs.end(), files.begin(), files.end());
  }
  Prepared prepared;
  {
    ProgressLine progress;
    prepared = prepare(request, *tokenizer, [&](const PrepareProgress& p) { progress.show(p); });
  }
  const TokenInfo& info = prepared.info;
  std::printf("%s: %s of %s, vocabulary %s\n",
              request.out.c_str(),
              counted(info.tokens, "token").c_str(),
              counted(info.documents, "document").c_str(),
              with_commas(static_cast<double>(info.vocab)).c_str());
  if (!info.document_end) std::puts("no token separates the documents");
  if (prepared.empty > 0)
    std::printf("left out: %s\n", counted(prepared.empty, "empty document").c_str());
  std::printf("train on it with data.path=%s\n", request.out.c_str());
  return kExitOk;
}

}  // namespace

std::function<int()> add_prepare_command(CLI::App& data) {
  const auto arguments = std::make_shared<Arguments>();
  PrepareRequest& request = arguments->request;
  request.threads = usable_cores();
  CLI::App* app = data.add_subcommand(
      "prepare", "turn texts into a file of token ids, with the tokenizer of a model");
  app->add_option(
         "INPUT", arguments->inputs, "texts, .jsonl and Parquet files; folders and patterns")
      ->required();
  app->add_option("--tokenizer",
                  arguments->tokenizer,
                  "folder of a model of Hugging Face, or its tokenizer.json")
      ->required()
      ->type_name("FOLDER");
  app->add_option(
         "-o,--output", request.out, "file of token ids; its description is written beside it")
      ->required()
      ->type_name("OUT.bin");
  app->add_option("--field",
                  request.encoding.field,
                  "key of the text in .jsonl, or column of Parquet; default: text")
      ->type_name("NAME");
  app->add_option(
         "--split-on",
         arguments->split_on,
         "what separates the documents of a text: blank-lines, or a text such as '\\n---\\n'; "
         "default: a file is one document")
      ->type_name("TEXT");
  CLI::Option* append_eos =
      app->add_flag("--append-eos",
                    arguments->append_eos,
                    "end each document with the tokenizer's end of text; default: if it has one");
  CLI::Option* no_append_eos =
      app->add_flag("--no-append-eos", arguments->no_append_eos, "end no document with it")
          ->excludes(append_eos);
  app->add_option("--end-token",
                  arguments->end_token,
                  "end each document with this added token of the tokenizer instead, such as "
                  "'<|endoftext|>'")
      ->type_name("TOKEN")
      ->excludes(append_eos)
      ->excludes(no_append_eos);
  app->add_flag("--chat",
                arguments->chat,
                "each object of .jsonl, or row of Parquet, is a conversation: messages");
  app->add_option("--template", arguments->chat_template, "chatml, llama3, mistral or zephyr")
      ->type_name("NAME");
  app->add_flag(
      "--bos", request.encoding.bos, "begin each document with the tokenizer's begin of text");
  app->add_option(
         "--threads", request.threads, "default: one for each core; does not change the output")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  return [arguments] { return run(*arguments); };
}

}  // namespace yoke
