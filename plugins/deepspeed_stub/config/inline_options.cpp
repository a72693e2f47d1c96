#include "plugins/deepspeed_stub/config/inline_options.hpp"

#include "yoke/text.hpp"

namespace yoke::deepspeed_stub {
namespace {

int32_t option_type(Form form) {
  switch (form) {
    case Form::kBool:
      return YOKE_OPTION_BOOL;
    case Form::kInt:
      return YOKE_OPTION_INT;
    case Form::kNumber:
      return YOKE_OPTION_DOUBLE;
    default:
      return YOKE_OPTION_STRING;
  }
}

}  // namespace

nlohmann::json inline_value(const Options& options, const Key& key) {
  const std::string name = inline_name(key);
  switch (key.form) {
    case Form::kBool:
      return options.boolean(name);
    case Form::kInt:
      return options.integer(name);
    case Form::kNumber:
      return options.number(name);
    default:
      return options.string(name);
  }
}

const std::vector<const YokeOptionInfo*>& option_infos() {
  // A YokeOptionInfo points into the strings next to it, and a growing vector moves its strings. So
  // the infos are made in a second pass, once the vector has its final size.
  struct Declared {
    std::string name, doc;
    YokeOptionInfo info{};
  };
  static const std::vector<Declared> declared = [] {
    std::vector<Declared> list;
    const auto declare = [&](int32_t type, std::string name, std::string doc) {
      list.push_back({std::move(name), std::move(doc)});
      list.back().info.type = type;
    };
    declare(YOKE_OPTION_FILE,
            "config_file",
            "path of a ds_config.json; its keys can also be given inline");
    for (const Key& key : keys()) {
      if (inline_name(key).empty()) continue;
      const int32_t type = option_type(key.form);
      const std::string preset =
          key.value == "null" ? "" : concat("; default of DeepSpeed: ", key.value);
      declare(type, inline_name(key), std::string(key.why) + preset);
    }
    for (Declared& d : list) {
      const char* names = d.info.type == YOKE_OPTION_FILE ? "*.json" : "";
      d.info = option_info(d.info.type, d.name, "", names, d.doc);  // no limits: plan checks values
    }
    return list;
  }();
  static const std::vector<const YokeOptionInfo*> pointers = [] {
    std::vector<const YokeOptionInfo*> list;
    for (const Declared& d : declared) list.push_back(&d.info);
    return list;
  }();
  return pointers;
}

}  // namespace yoke::deepspeed_stub
