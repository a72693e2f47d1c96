#include "core/conformance/check_report.hpp"

#include <nlohmann/json.hpp>

#include "yoke/text.hpp"

namespace yoke {
namespace {

using Json = nlohmann::ordered_json;

struct Count {
  size_t passed = 0, failed = 0, not_run = 0;
  double seconds = 0;
};

Count count(const std::vector<CheckOutcome>& outcomes) {
  Count n;
  for (const CheckOutcome& o : outcomes) {
    n.passed += o.status == CheckOutcome::kPassed;
    n.failed += o.status == CheckOutcome::kFailed;
    n.not_run += o.status == CheckOutcome::kNotRun;
    n.seconds += o.seconds;
  }
  return n;
}

std::string seconds_text(double seconds) {
  return string_printf("%.2f", seconds);
}

std::string level_of(const conformance::Check& check) {
  return conformance::level_name(check.id[0]);
}

// Escapes text for XML.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') {
      out += '?';  // XML has no such character
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

const char* status_name(const CheckOutcome& outcome) {
  constexpr const char* kNames[] = {"passed", "failed", "not run"};
  return kNames[outcome.status];
}

std::string check_json(const std::string& path, const std::vector<CheckOutcome>& outcomes) {
  const Count n = count(outcomes);
  Json json = {{"backend", path},
               {"passed", n.passed},
               {"failed", n.failed},
               {"not_run", n.not_run},
               {"checks", Json::array()}};
  for (const CheckOutcome& o : outcomes) {
    Json row = {{"id", o.check->id},
                {"level", level_of(*o.check)},
                {"title", o.check->title},
                {"status", status_name(o)},
                {"text", o.text},
                {"seconds", o.seconds}};
    if (o.status == CheckOutcome::kFailed) {
      row["at_fault"] = conformance::fault_name(o.check->fault);
      row["fix"] = o.advice();
      if (!o.follows.empty()) row["follows"] = o.follows;
      if (!o.backtrace.empty()) row["backtrace"] = o.backtrace;
    }
    json["checks"].push_back(std::move(row));
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string check_junit(const std::string& path, const std::vector<CheckOutcome>& outcomes) {
  const Count n = count(outcomes);
  std::string text =
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"" + escaped(path) +
      concat("\" tests=\"", outcomes.size(), "\" failures=\"", n.failed) +
      concat("\" skipped=\"", n.not_run, "\" time=\"", seconds_text(n.seconds)) + "\">\n";
  for (const CheckOutcome& o : outcomes) {
    text += "  <testcase classname=\"" + level_of(*o.check) + "\" name=\"" + o.check->id + " " +
            escaped(o.check->title) + "\" time=\"" + seconds_text(o.seconds) + "\"";
    if (o.status == CheckOutcome::kPassed) {
      text += "/>\n";
    } else if (o.status == CheckOutcome::kNotRun) {
      text += "><skipped message=\"" + escaped(o.text) + "\"/></testcase>\n";
    } else {
      text += "><failure message=\"" + escaped(o.text) +
              "\">at fault: " + conformance::fault_name(o.check->fault) +
              "\nfix: " + escaped(o.advice()) +
              (o.follows.empty() ? "" : "\nfollows from: " + o.follows) + "</failure></testcase>\n";
    }
  }
  return text + "</testsuite>\n";
}

}  // namespace yoke
