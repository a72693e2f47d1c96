#include "core/text/normalizer.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "core/base/text.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

struct UnicodeForm {
  const char* name;
  int options;
};
constexpr UnicodeForm kForms[] = {
    {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
    {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
    {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
    {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
};

std::string to_unicode_form(std::string_view text, int options) {
  const bool ascii = std::all_of(text.begin(), text.end(), [](char c) { return c >= 0; });
  if (ascii) return std::string(text);
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()),
                                             &result,
                                             static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<void, void (*)(void*)> owned(result, std::free);
  if (size < 0)
    throw Error(YOKE_INTERNAL,
                std::string("a text cannot be normalized: ") + utf8proc_errmsg(size));
  return {reinterpret_cast<const char*>(result), static_cast<size_t>(size)};
}

}  // namespace

Normalizer::Normalizer(const JsonReader& json) {
  read(json);
}

void Normalizer::read(const JsonReader& json) {
  if (json.is_null()) return;
  const std::string type = json.type();
  for (const UnicodeForm& form : kForms) {
    if (type == form.name) {
      steps_.push_back({Kind::kUnicodeForm, form.options, "", ""});
      return;
    }
  }
  if (type == "Sequence") {
    const JsonReader list = json.field("normalizers");
    for (size_t i = 0; i < list.size(); ++i) read(list.element(i));
  } else if (type == "Prepend") {
    steps_.push_back({Kind::kPrepend, 0, "", json.text("prepend")});
  } else if (type == "Replace") {
    const std::string from = json.field("pattern").text("String");
    if (from.empty()) json.refuse("the pattern is empty");
    steps_.push_back({Kind::kReplace, 0, from, json.text("content")});
  } else {
    json.refuse_type("NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence");
  }
}

std::string Normalizer::apply(std::string_view text) const {
  std::string result(text);
  for (const Step& step : steps_) {
    if (step.kind == Kind::kUnicodeForm) {
      result = to_unicode_form(result, step.unicode_options);
    } else if (step.kind == Kind::kReplace) {
      result = replace_all(result, step.from, step.to);
    } else if (!result.empty()) {
      result.insert(0, step.to);
    }
  }
  return result;
}

}  // namespace yoke
