// Reads command lines from files of arguments, shell scripts and recipes.
#include "plugins/megatron_compat/config/words.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plugins/megatron_compat/config/shell.hpp"
#include "yoke/text.hpp"

namespace yoke::megatron_compat::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> texts(const std::vector<Word>& words) {
  std::vector<std::string> all;
  for (const Word& word : words) all.push_back(word.text);
  return all;
}

CommandLine read(const std::string& text) {
  PlanMessages messages;
  CommandLine line = read_command_line("file", text, messages);
  for (const PlanMessage& m : messages) ADD_FAILURE() << m.key << ": " << m.given << "; " << m.hint;
  return line;
}
std::vector<std::string> arguments(const std::string& text) {
  return texts(read(text).arguments);
}
// Returns the problem of a file that cannot be read.
PlanMessage problem(const std::string& text) {
  PlanMessages messages;
  read_command_line("file", text, messages);
  EXPECT_FALSE(messages.empty()) << text;
  return messages.empty() ? PlanMessage{} : messages[0];
}

TEST(Arguments, AloneMayHaveSeveralLines) {
  EXPECT_THAT(
      arguments("--lr 0.1 --bf16\n# comment\n--data-path 1 a 2 b   # text\n\n--split '9,1'"),
      ElementsAre("--lr", "0.1", "--bf16", "--data-path", "1", "a", "2", "b", "--split", "9,1"));
  EXPECT_THAT(arguments("--lr 0.1 \\\n  --bf16\\\n --x\r\n"),
              ElementsAre("--lr", "0.1", "--bf16", "--x"));
}

TEST(Scripts, ExpandVariablesAndArrays) {
  const CommandLine line = read(R"(#!/bin/bash
set -e
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS=8; NODES=${NODES:-2}
PRETRAIN=pretrain_gpt.py
SIZE="--num-layers 24 --hidden-size ${HIDDEN:-1024}"
MODEL_ARGS=(
  --lr 1.5e-4   # peak
  $SIZE
  --split "99,1,0"
  --tokenizer-model "a b/c"
)
MODEL_ARGS+=(--bf16)
NAME=x$GPUS-${NODES}
mkdir -p /tmp/nothing
torchrun --nproc_per_node=$GPUS --nnodes $NODES "$PRETRAIN" "${MODEL_ARGS[@]}" --save out/${NAME}  2>&1 | tee log
)");
  EXPECT_THAT(texts(line.launcher), ElementsAre("torchrun", "--nproc_per_node=8", "--nnodes", "2"));
  EXPECT_THAT(texts(line.arguments),
              ElementsAre("--lr",
                          "1.5e-4",
                          "--num-layers",
                          "24",
                          "--hidden-size",
                          "1024",
                          "--split",
                          "99,1,0",
                          "--tokenizer-model",
                          "a b/c",
                          "--bf16",
                          "--save",
                          "out/x8-2"));
  EXPECT_EQ(line.arguments[0].line, 16);
}

TEST(Scripts, KeepWordsTogetherInQuotes) {
  EXPECT_THAT(arguments("A='one two'\npython pretrain_gpt.py $A \"$A\" '$A' a\\ b \"\""),
              ElementsAre("one", "two", "one two", "$A", "a b", ""));
  EXPECT_THAT(arguments("E=()\nA=\npython x.py ${E[@]} $A \"${A}\" ${U:-} --end"),
              ElementsAre("", "--end"));
}

struct Refusal {
  const char* script;
  const char* given;
};

TEST(Scripts, ThatNeedAShellAreRefusedWithTheReason) {
  const Refusal refusals[] = {
      {"N=$(nproc)\npython pretrain_gpt.py --x $N", "sets N to a value that uses the output"},
      {"N=$((2 * 4))\npython pretrain_gpt.py --x $N", "sets N to a value that uses arithmetic"},
      {"N=`nproc`\npython pretrain_gpt.py --x $N", "sets N to a value that uses the output"},
      {"python pretrain_gpt.py --x $UNSET", "uses the variable UNSET, which it does not set"},
      {"python pretrain_gpt.py --x \"$@\"", "uses the arguments of the script"},
      {"python pretrain_gpt.py --x ${1}", "uses the variable 1"},
      {"X=1\npython pretrain_gpt.py --x ${X%a}", "uses ${X%a}"},
      {"if [ $A = 1 ]; then\nX=1\nfi\npython x.py --x $X",
       "sets X to a value that depends on a condition"},
      {"if true; then\npython x.py --x\nfi", "starts its training under a condition"},
      {"python x.py --x\npython x.py --y", "has a second command"},
      {"echo nothing", "has no command that runs a Python script"},
      {"", "has no command that runs a Python script"},
      {"python x.py --x ${A", "has a '${' without a '}'"},
      {"python x.py --x <(ls)", "uses the output of a command (<(...))"},
      {"--special <pad> --lr 1", "consists of arguments alone and has an unquoted < or >"},
      {"A=<Specify path>\npython x.py --x $A", "sets A to a value that has an unquoted < or >"},
      {"A=(--x <y> --z 1)\npython x.py ${A[@]}", "sets A to a value that has an unquoted < or >"},
  };
  for (const Refusal& r : refusals) {
    const PlanMessage message = problem(r.script);
    EXPECT_THAT(message.given, HasSubstr(r.given)) << r.script;
    EXPECT_THAT(message.hint, HasSubstr("bash file' > script.args"));
  }
}

TEST(Scripts, WithAnOpenQuoteAreRefused) {
  for (const char* script : {"python x.py --x \"1", "python x.py --x '1"}) {
    EXPECT_THAT(problem(script).given, HasSubstr("quote that is not closed")) << script;
  }
}

// In a script such a line may be any command. Without one it can only be a mistake.
TEST(Arguments, ThatDoNotBeginWithTwoDashesAreRefused) {
  for (const char* line : {"-lr 3", "use-flash-attn --bf16"}) {
    for (const std::string& text : {concat("--x 1\n", line), concat(line, "\n--x 1")}) {
      const PlanMessage message = problem(text);
      EXPECT_THAT(message.given, HasSubstr("a file of arguments that has a line that begins with"))
          << text;
      EXPECT_THAT(message.hint, HasSubstr("begins with --")) << text;
    }
  }
}

TEST(Scripts, ThatSetAValueUnderAConditionAreRefused) {
  const char* const parts[] = {
      "[ \"$A\" = 1 ] && LR=2",
      "[[ $A ]] || LR=2",
      "[ $A = 1 ] &&\n  export LR=2",
      "case $SIZE in\n  7b) LR=2 ;;\nesac",
      "case $SIZE in\n  7b|8b ) LR=2 ;;\nesac",
      "case $SIZE in\n  (7b) LR=2 ;;\nesac",
      "case $SIZE in *)LR=2 ;; esac",
      "if a; then\n  x\nelse if b; then\n  x\nfi\nLR=2\nfi",
      "use() { LR=2; }",
      "use(){ LR=2; }",
      "use ()\n{\n  LR=2\n}",
      "function use {\n  LR=2\n}",
      "function use() {\n  LR=2\n}",
      "log() {\n  echo x\n}\nif a; then\n  LR=2\nfi",
      "function log { echo x; }\nif a; then\n  LR=2\nfi",
      "}\nif a; then\n  LR=2\nfi",
  };
  for (const char* part : parts)
    EXPECT_THAT(problem(concat("LR=1\n", part, "\npython x.py --lr $LR")).given,
                HasSubstr("sets LR to a value that depends on a condition"))
        << part;
  EXPECT_THAT(problem("main() {\n  python x.py --lr 1\n}\nmain").given,
              HasSubstr("starts its training under a condition or in a function"));
}

TEST(Scripts, MayHaveConditionsElsewhere) {
  const char* const parts[] = {
      "[ -d out ] || mkdir out; LR=1\ncd out && torchrun x.py --lr $LR",
      "log() {\n  echo x\n}\nLR=1\npython x.py --lr $LR",
      "case $A in\n  7b|--lr) A=2 ;;\n  --lr|7b) A=3 ;;\nesac\nLR=1\npython x.py --lr $LR",
      "true && {\n  A=1\n}\nLR=1\npython x.py --lr $LR",
  };
  for (const char* part : parts) EXPECT_THAT(arguments(part), ElementsAre("--lr", "1")) << part;
}

TEST(Scripts, MayDeclareVariables) {
  for (const char* part : {"declare -r LR=1", "export A LR=1", "readonly A=3 LR=1"})
    EXPECT_THAT(arguments(concat("LR=2\n", part, "\npython x.py --lr $LR")),
                ElementsAre("--lr", "1"))
        << part;
}

TEST(Scripts, MayHaveRedirectionsAnywhere) {
  const char* const ends[] = {
      "2>&1 | tee log",
      "> log 2>&1 < in",
      ">log 2>/dev/null &",
      "&>> log",
      ">& log 3<&-",
      "> >(tee log) 2>&1",
      ">| log",
  };
  for (const char* end : ends) {
    EXPECT_THAT(arguments(concat("python x.py --lr 1 ", end)), ElementsAre("--lr", "1")) << end;
    EXPECT_THAT(arguments(concat("2> log python x.py --lr=1>log --bf16 ", end)),
                ElementsAre("--lr=1", "--bf16"))
        << end;
  }
  EXPECT_THAT(arguments("python x.py >log --lr 1"), ElementsAre("--lr", "1"));
  EXPECT_THAT(arguments("python x.py \\\n > log \\\n --lr 1"), ElementsAre("--lr", "1"));
}

TEST(Scripts, MayHaveAngleBracketsInQuotes) {
  const std::string value = "--special=<pad>";
  for (const char* word : {"--special=\"<pad>\"",
                           "--special=\\<pad\\>",
                           "--special='<pad>'",
                           "--special=${PAD:-<pad>}"})
    EXPECT_THAT(arguments(concat("python x.py ", word, " --lr 1")), ElementsAre(value, "--lr", "1"))
        << word;
  EXPECT_THAT(arguments("A=\"<pad>\"\npython x.py --special=$A --lr 1"),
              ElementsAre(value, "--lr", "1"));
  EXPECT_THAT(arguments("--special='<pad>' --lr 1"), ElementsAre(value, "--lr", "1"));
}

TEST(Scripts, MayComputeWhatTheirCommandDoesNotUse) {
  EXPECT_THAT(arguments("T=$(date)\nW=$((1+2))\nif [ -d x ]; then Y=1; fi\npython x.py --lr 1"),
              ElementsAre("--lr", "1"));
}

TEST(Scripts, AreReadWhateverTheyContain) {
  const std::string parts[] = {"\"",  "'",         "$",     "${",  "$(",   ")",   "}",    "(",
                               "\\",  "\n",        "A=",    "A=(", " ",    "--x", "x.py", ";",
                               "#",   "`",         "fi",    "if",  "\r\n", "[@]", "&&",   "|",
                               "f()", "function ", "case ", "<",   ">"};
  uint64_t seed = 1;
  for (int run = 0; run < 3000; ++run) {
    std::string text;
    for (int i = 0; i < 12; ++i) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      text += parts[(seed >> 33) % std::size(parts)];
    }
    std::vector<ShellProblem> problems;
    const auto words = read_shell(text, problems);
    EXPECT_TRUE(!words.empty() || !problems.empty() || text.find("x") != std::string::npos) << text;
  }
}

TEST(Recipes, MapArgumentsToValues) {
  EXPECT_THAT(arguments("ENV_VARS:\n  A: 1\nMODEL_ARGS:\n  --lr: 0.1\n  --bf16: true\n"
                        "  --swiglu: false\n  --data-path: [1, a]\n  --split: 9,1\n"),
              ElementsAre("--lr", "0.1", "--bf16", "--data-path", "1", "a", "--split", "9,1"));
  EXPECT_THAT(problem("MODEL_ARGS:\n  --data-path: ${DATA}/x\n").given, HasSubstr("${DATA}"));
  EXPECT_THAT(problem("MODEL_ARGS: 3\n").given, HasSubstr("without keys"));
  EXPECT_THAT(problem("MODEL_ARGS:\n  --a: {b: 1}\n").given, HasSubstr("--a"));
  EXPECT_FALSE(problem("MODEL_ARGS:\n  - [\n").given.empty());
}

TEST(OtherYaml, IsRefusedByName) {
  EXPECT_THAT(problem("language_model:\n  num_layers: 2\n").given, HasSubstr("--yaml-cfg"));
  EXPECT_THAT(problem("model:\n  _target_: megatron.bridge.X\n").given, HasSubstr("Bridge"));
}

}  // namespace
}  // namespace yoke::megatron_compat::testing
