#include "core/cli/generate.hpp"

#include <algorithm>
#include <cstdio>

#include "core/base/exit_code.hpp"
#include "core/cli/worker_program.hpp"
#include "yoke/error.hpp"

namespace yoke {

// The worker parses its own flags. Only the help is printed here, since it needs no worker.
int generate_command(const std::vector<std::string>& args) {
  const auto asks_help = [](const std::string& a) { return a == "--help" || a == "-h"; };
  if (args.empty() || std::any_of(args.begin(), args.end(), asks_help)) {
    std::fputs(
        "Continues a text with a trained model.\n\n"
        "usage: yoke generate CHECKPOINT [OPTIONS]\n\n"
        "  CHECKPOINT       folder of a checkpoint, e.g. runs/novels/checkpoints/step-00000300, "
        "or\n"
        "                   of a model of Hugging Face\n"
        "  --prompt TEXT    text to continue; default: a newline\n"
        "  --chat           answer the prompt, or each line of the input, as a turn of a "
        "conversation\n"
        "  --template NAME  layout of conversations: chatml, llama3, mistral or zephyr\n"
        "  --system TEXT    what the conversation begins with\n"
        "  --tokenizer DIR  folder with a tokenizer.json, or \"bytes\"; default: that of "
        "CHECKPOINT;\n"
        "                   the tokens of a model with 256 ids and no tokenizer are bytes\n"
        "  --tokens N       largest number of tokens to add; default: 200. It ends earlier at the\n"
        "                   tokenizer's end of text\n"
        "  --temperature T  0 = always the most likely token; default: 0.8\n"
        "  --top-k K        choose among the K most likely tokens; default: 0 = all\n"
        "  --top-p P        choose among the most likely tokens whose probabilities sum to P; "
        "default: 1\n"
        "  --seed S         the same seed gives the same text; default: 1\n",
        args.empty() ? stderr : stdout);
    return args.empty() ? kExitUsage : kExitOk;
  }
  try {
    std::vector<std::string> argv{find_worker(""), "--generate"};
    argv.insert(argv.end(), args.begin(), args.end());
    return exec_worker(argv);
  } catch (const Error& e) {
    std::fprintf(stderr, "yoke: %s\n", e.what());
    return kExitUsage;
  }
}

}  // namespace yoke
