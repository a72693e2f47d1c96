// One spdlog logger each for stdout, stderr and the file. Levels are decided here and not in
// spdlog, because the console and the file get different levels and texts. Each logger flushes
// every line, so that a rank's file is complete up to the line before a crash.
#include "core/base/log.hpp"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <string_view>

#include "core/base/console.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

spdlog::level::level_enum spdlog_level(int32_t level) {
  switch (level) {
    case YOKE_LOG_DEBUG:
      return spdlog::level::debug;
    case YOKE_LOG_WARNING:
      return spdlog::level::warn;
    case YOKE_LOG_ERROR:
      return spdlog::level::err;
    default:
      return spdlog::level::info;
  }
}

// Returns the word in front of a console line. INFO lines, which are the normal output, have none.
const char* console_word(int32_t level) {
  switch (level) {
    case YOKE_LOG_DEBUG:
      return "debug: ";
    case YOKE_LOG_WARNING:
      return "warning: ";
    case YOKE_LOG_ERROR:
      return "error: ";
    default:
      return "";
  }
}

std::string each_line(const std::string& prefix, const std::string& text) {
  std::string out = prefix;
  for (const char c : text) {
    out += c;
    if (c == '\n') out += prefix;
  }
  return out;
}

// Removes ANSI colours: each sequence from ESC up to "m".
std::string without_colours(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033')
      i = std::min(text.find('m', i), text.size() - 1);
    else
      plain += text[i];
  }
  return plain;
}

std::shared_ptr<spdlog::logger> make_logger(spdlog::sink_ptr sink, const char* pattern) {
  auto logger = std::make_shared<spdlog::logger>("", std::move(sink));
  logger->set_pattern(pattern);
  logger->set_level(spdlog::level::trace);
  logger->flush_on(spdlog::level::trace);
  // A full disk or a closed pipe must not end a run, nor fill the terminal with spdlog's messages.
  logger->set_error_handler([](const std::string&) {});
  return logger;
}

std::shared_ptr<spdlog::logger> make_file_logger(const LogOptions& options) {
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file);
    return make_logger(std::move(sink), "%Y-%m-%d %H:%M:%S.%e %-7l %v");
  } catch (const std::exception& e) {
    throw Error(YOKE_FAILED_PRECONDITION,
                "cannot write the log file '" + options.file + "': " + e.what() +
                    "; choose another run.dir, or make the folder writable");
  }
}

}  // namespace

struct Log::Impl {
  LogOptions options;
  std::string prefix;  // "[rank 1] ", or "" without a rank
  std::shared_ptr<spdlog::logger> out, err, file;
};

Log::Log(const LogOptions& options) : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  if (options.rank >= 0) impl_->prefix = concat("[rank ", options.rank, "] ");
  if (options.console) {
    impl_->out = make_logger(std::make_shared<spdlog::sinks::stdout_sink_mt>(), "%v");
    impl_->err = make_logger(std::make_shared<spdlog::sinks::stderr_sink_mt>(), "%v");
  }
  if (!options.file.empty()) impl_->file = make_file_logger(options);
}

Log::~Log() = default;

void Log::write(int32_t level, const std::string& text) {
  const Impl& log = *impl_;
  // The text is passed as a std::string_view argument, not as the format string, so that braces in
  // it have no meaning.
  if (log.file)
    log.file->log(spdlog_level(level),
                  std::string_view(each_line(log.prefix, without_colours(text))));
  if (!log.out || level < log.options.level) return;
  const std::string line =
      each_line(log.options.prefix ? log.prefix : "", console_word(level) + text);
  (level >= YOKE_LOG_WARNING ? log.err : log.out)->log(spdlog_level(level), std::string_view(line));
}

bool Log::shows_progress() const {
  return impl_->options.progress;
}

void Log::progress(const std::string& text) {
  if (!shows_progress()) return;
  impl_->out->info(std::string_view(kProgressMark + text));
}

}  // namespace yoke
