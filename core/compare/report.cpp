// The report must open anywhere, years later: in a CI archive, on a machine without a network, as
// an attachment. So it is one file with its style and its plots (SVG) inside, and it has no script:
// a Content-Security-Policy forbids everything but inline styles. All text from outside passes
// through escaped(). Interactive plots, which need a script, were rejected; the losses are included
// as numbers instead.

#include "core/compare/report.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/cores.hpp"
#include "core/base/files.hpp"
#include "core/base/text.hpp"
#include "core/compare/plots.hpp"
#include "core/compare/recommendation.hpp"
#include "core/compare/report_style.hpp"
#include "core/compare/summary.hpp"
#include "core/compare/svg.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke::compare {
namespace {

std::string section(const std::string& title, const std::string& body) {
  return body.empty() ? "" : "<h2>" + escaped(title) + "</h2>\n" + body;
}

// Returns true if the cell of a table is a number, with or without a unit, or an unknown one.
bool is_number(const std::string& cell) {
  return cell == "-" || (!cell.empty() && cell[0] >= '0' && cell[0] <= '9');
}

// Returns the text of a cell. The range behind a number has a CSS class, because narrow screens do
// not show it.
std::string content(const std::string& cell) {
  const size_t range = is_number(cell) ? cell.find(" (") : std::string::npos;
  if (range == std::string::npos) return escaped(cell);
  return escaped(cell.substr(0, range)) + "<span class=\"more\">" + escaped(cell.substr(range)) +
         "</span>";
}

// Returns a table. Cells that report agreement or a failure get a CSS class with a colour, and
// numbers are aligned. Rows whose first cell is in `marked` get a ring.
std::string table(const std::vector<std::string>& header,
                  const std::vector<std::vector<std::string>>& rows,
                  const std::set<std::string>& marked = {}) {
  std::string out = "<table><tr>";
  for (size_t i = 0; i < header.size(); ++i) {
    const bool numbers =
        std::all_of(rows.begin(), rows.end(), [&](const auto& row) { return is_number(row[i]); });
    out += (numbers ? "<th class=\"n\">" : "<th>") + escaped(header[i]) + "</th>";
  }
  out += "</tr>\n";
  for (const auto& row : rows) {
    out += marked.contains(row[0]) ? "<tr class=\"take\">" : "<tr>";
    for (const std::string& cell : row) {
      const bool bad = cell == "DIFFERS" || cell == "FAILED" || cell == "differs" ||
                       cell == "NOT REPEATABLE" || cell.starts_with("ONLY ");
      const bool good = cell == "L0" || cell == "L1" || cell == "L2";
      out += bad               ? "<td class=\"bad\">"
             : good            ? "<td class=\"good\">"
             : is_number(cell) ? "<td class=\"n\">"
                               : "<td>";
      out += content(cell) + "</td>";
    }
    out += "</tr>\n";
  }
  return out + "</table>\n";
}

// Compares the bytes of the last step with those that the backend declared, for each set of axes.
// For data parallelism a further column has the bytes of all gradients, which is the payload of
// reducing each gradient once.
std::string traffic(const Comparison& comparison) {
  std::vector<std::vector<std::string>> rows;
  const auto text = [](int64_t bytes) {
    return bytes <= 0 ? "-" : bytes_text(static_cast<uint64_t>(bytes));
  };
  for (const CaseResult& c : comparison.cases) {
    if (!c.failure.empty() || c.runs[0].external() || c.runs[0].steps.empty()) continue;
    const RunFacts& run = c.runs[0];
    std::map<std::string, std::pair<int64_t, std::string>> axes;
    for (const Operation& o : run.steps.back().traffic) {
      auto& [bytes, what] = axes[o.axes];
      bytes += o.bytes;
      what += concat(what.empty() ? "" : ", ", o.calls, " ", o.name, " ", o.dtype);
    }
    for (const auto& [axis, use] : axes) {
      const auto declared = run.costs.axes.find(axis);
      const bool data = axis.find("dp_") != std::string::npos;
      const int64_t item = run.dtype == "fp64" ? 8 : 4;
      rows.push_back({c.spec.name,
                      axis,
                      text(use.first),
                      declared == run.costs.axes.end() ? "-" : text(declared->second),
                      data ? text(item * run.parameters) : "-",
                      use.second});
    }
  }
  if (rows.empty()) return "";
  return table(
      {"case", "axes", "measured", "declared by the backend", "every gradient once", "operations"},
      rows);
}

// Returns a matrix of the levels of every two cases. The differences are shown when the mouse rests
// on a level.
std::string pairs(const Comparison& comparison) {
  if (comparison.pairs.empty()) return "";
  std::map<std::pair<size_t, size_t>, const Agreement*> by_cases;
  std::set<size_t> shown;
  for (const PairAgreement& p : comparison.pairs) {
    by_cases[{p.a, p.b}] = by_cases[{p.b, p.a}] = &p.agreement;
    shown.insert({p.a, p.b});
  }
  std::string out = "<details><summary>Levels of every two cases</summary><table><tr><th></th>";
  for (const size_t b : shown) out += "<th>" + escaped(comparison.cases[b].spec.name) + "</th>";
  out += "</tr>\n";
  for (const size_t a : shown) {
    out += "<tr><th>" + escaped(comparison.cases[a].spec.name) + "</th>";
    for (const size_t b : shown) {
      const auto found = by_cases.find({a, b});
      if (found == by_cases.end()) {
        out += "<td></td>";
        continue;
      }
      const Agreement& v = *found->second;
      out += string_printf("<td class=\"%s\" title=\"loss %.1e, norm %.1e, parameter %.1e\">",
                           v.level == Level::kDiffers ? "bad" : "good",
                           v.loss,
                           v.grad_norm,
                           v.param) +
             level_name(v.level) + "</td>";
    }
    out += "</tr>\n";
  }
  return out + "</table></details>\n";
}

std::string numbers(const Comparison& comparison) {
  const std::vector<const CaseResult*> all = all_runs(comparison);
  if (all.empty()) return "";
  std::string text = "step";
  size_t steps = 0;
  for (const CaseResult* c : all) {
    text += "\t" + c->spec.name;
    steps = std::max(steps, c->runs[0].steps.size());
  }
  for (size_t i = 0; i < steps; ++i) {
    text += "\n" + std::to_string(i + 1);
    for (const CaseResult* c : all) {
      const auto& s = c->runs[0].steps;
      text += "\t" + (i < s.size() ? string_printf("%.9g", s[i].loss) : "");
    }
  }
  return "<details><summary>Losses as numbers</summary><pre>" + escaped(text) +
         "</pre></details>\n";
}

// Returns a value of env.json for people: nested objects as "name value, name value".
std::string readable(const std::string& key, const nlohmann::ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (key == "memory" && value.is_number_unsigned()) return bytes_text(value.get<uint64_t>());
  if (!value.is_object()) return value.dump();
  std::string text;
  for (const auto& [name, inner] : value.items())
    text += (text.empty() ? "" : ", ") + name + " " + readable(name, inner);
  return text;
}

// Returns a table of env.json of the first run that has one, and the backend of each case.
std::string environment(const Comparison& comparison) {
  const std::vector<const CaseResult*> all = all_runs(comparison);
  for (const CaseResult* c : all) {
    const std::string path = c->runs[0].dir + "/env.json";
    if (c->spec.external() || !std::filesystem::exists(path)) continue;
    const auto json = nlohmann::ordered_json::parse(read_text(path, 1 << 20), nullptr, false);
    std::vector<std::vector<std::string>> rows;
    for (const auto& [key, value] : json.items()) rows.push_back({key, readable(key, value)});
    for (const CaseResult* one : all) {
      if (one->spec.external()) continue;
      rows.push_back(
          {"backend of " + one->spec.name, one->runs[0].backend + " " + one->runs[0].version});
    }
    return table({"what", "value"}, rows);
  }
  return "";
}

// Returns the configuration of the first run that has one, with all values.
std::string configuration(const Comparison& comparison) {
  for (const CaseResult* c : all_runs(comparison)) {
    const std::string path = c->runs[0].dir + "/config.resolved.toml";
    if (c->spec.external() || !std::filesystem::exists(path)) continue;
    return "<details><summary>All values of " + escaped(c->spec.name) + "</summary><pre>" +
           escaped(read_text(path, 1 << 20)) + "</pre></details>\n";
  }
  return "";
}

// On a narrow screen, the style sheet hides the columns that are not needed to choose a case.
std::string summary_table(const Comparison& comparison) {
  std::set<std::string> marked;
  for (const CaseResult* c : advised(recommendations(comparison))) marked.insert(c->spec.name);
  return "<div class=\"summary\">" + table(table_header(), table_rows(comparison), marked) +
         "<p class=\"phone\">A wider window also shows ranks, layouts, differences and the ranges "
         "of "
         "times.</p></div>\n";
}

std::string gate_table(const Comparison& comparison) {
  std::vector<std::vector<std::string>> rows;
  for (const GateResult& g : comparison.gates)
    rows.push_back({g.gate,
                    g.case_name,
                    std::isnan(g.value) ? "-" : string_printf("%.4g", g.value),
                    g.passed ? "passed" : "FAILED"});
  return rows.empty() ? "" : table({"gate", "case", "value", "result"}, rows);
}

// Returns what was compared, and how busy the machine was, in a paragraph.
std::string subject(const Comparison& comparison) {
  const Plan& plan = comparison.plan;
  const auto count = [](int64_t n, const char* what) {
    return with_commas(static_cast<double>(n)) + " " + what + (n == 1 ? "" : "s");
  };
  std::string text;
  for (const CaseResult* c : all_runs(comparison)) {
    const RunFacts& run = c->runs[0];
    if (run.external()) continue;
    text = count(run.parameters, "parameter") + " in " + run.dtype +
           (run.product == "fp8" ? " with fp8 products, " : ", ") +
           count(static_cast<int64_t>(step_tokens(comparison, *c)), "token") + " per step, ";
    break;
  }
  text += count(plan.steps, "step") + ", " + count(plan.repeats, "repeat") + ", " +
          count(plan.threads, "thread") + " per rank";
  if (!std::isnan(comparison.load))
    text += string_printf(". Load average of the machine: %.1f on ", comparison.load) +
            count(usable_cores(), "core");
  return "<p>" + escaped(text) + ".</p>\n";
}

// Returns the text with the start of each sentence that has a colon in bold: an answer is before
// the colon, and its reasons are behind it.
std::string with_answers_bold(const std::string& text) {
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t stop = text.find(". ", begin);
    const size_t end = stop == std::string::npos ? text.size() : stop + 2;
    const std::string sentence = text.substr(begin, end - begin);
    const size_t colon = sentence.find(": ");
    out += colon == std::string::npos ? escaped(sentence)
                                      : "<b>" + escaped(sentence.substr(0, colon)) + "</b>" +
                                            escaped(sentence.substr(colon));
    begin = end;
  }
  return out;
}

std::string answer(const Comparison& comparison) {
  const std::vector<Recommendation> all = recommendations(comparison);
  const bool clear = std::all_of(
      all.begin(), all.end(), [](const Recommendation& r) { return r.choice() != nullptr; });
  std::string out = concat("<div class=\"answer", clear && !all.empty() ? "" : " unclear", "\">\n");
  for (const std::string& text : recommendation_text(comparison))
    out += "<p>" + with_answers_bold(text) + "</p>\n";
  return out + "</div>\n";
}

std::string notes(const Comparison& comparison) {
  std::string out;
  for (const std::string& text : remarks(comparison)) out += "<p>" + escaped(text) + ".</p>\n";
  return out;
}

// Returns the plot for a screen and for a telephone; the style sheet shows one of them.
std::string plot(const Comparison& comparison, std::string (*draw)(const Comparison&, double)) {
  const std::string drawing = draw(comparison, kScreen);
  if (drawing.empty()) return "";
  return "<div class=\"screen\">" + drawing + "</div>\n<div class=\"phone\">" +
         draw(comparison, kPhone) + "</div>\n";
}

// Returns the plot of memory with what its rest is, and in which cases that includes activations.
std::string memory(const Comparison& comparison) {
  const std::string drawings = plot(comparison, memory_plot);
  if (drawings.empty()) return "";
  std::vector<std::string> silent;
  for (const CaseResult& c : comparison.cases) {
    if (!c.failure.empty() || c.runs[0].external() || std::isnan(peak_memory(c))) continue;
    if (c.runs[0].costs.activation <= 0) silent.push_back(c.spec.name);
  }
  std::string text =
      "The hatched rest is the program itself with its libraries, and memory that the backend does "
      "not declare.";
  if (!silent.empty())
    text += " Activations are not declared, and so are in the rest, in: " + join(silent) + ".";
  return drawings + "<p>" + escaped(text) + "</p>\n";
}

std::string headline(const Comparison& comparison) {
  size_t passed = 0;
  for (const CaseResult& c : comparison.cases) passed += c.passed() ? 1 : 0;
  const bool all = passed == comparison.cases.size();
  return concat("<p class=\"",
                all ? "good" : "bad",
                "\">",
                passed,
                " of ",
                comparison.cases.size(),
                " cases agree with ",
                escaped(comparison.reference_name()),
                "</p>\n");
}

std::string legend_of_levels() {
  return "<p>L0: the same bits at every step. L1: equal up to the order of summation. L2: equal up "
         "to the rounding of a half-precision dtype. \"loss diff.\" and \"norm diff.\" are the "
         "largest relative differences of the loss and the gradient norm from the reference, over "
         "all steps; speed is relative to the first case. \"judges\" marks the reference. Times in "
         "the table and in the plot above it are medians and ranges of whole repeats; the box plot "
         "below shows single steps.</p>\n";
}

}  // namespace

// The sections are in the order of a reader's questions: which case should I take, do the cases
// agree, what differs and why, how fast are they, what do they cost, and how can the comparison be
// repeated?
std::string to_html(const Comparison& comparison, const std::string& command) {
  std::string words;
  for (const std::string& text : problems(comparison))
    words += "<pre class=\"bad\">" + escaped(text) + "</pre>\n";
  const std::string title = escaped(comparison.plan.config);
  return "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
         "'unsafe-inline'\">\n<meta name=\"viewport\" content=\"width=device-width\">\n<title>yoke "
         "compare: " +
         title + "</title>\n<style>" + kStyle + "</style></head><body>\n<h1>" + title + "</h1>\n" +
         answer(comparison) + headline(comparison) + subject(comparison) +
         plot(comparison, speed_memory_plot) + summary_table(comparison) + legend_of_levels() +
         notes(comparison) + section("What differs, and why", words) +
         section("Gates", gate_table(comparison)) + section("Time", plot(comparison, time_plot)) +
         section("Memory", memory(comparison)) +
         section("Traffic of a step and rank", traffic(comparison)) +
         section("Losses",
                 plot(comparison, loss_plot) + plot(comparison, difference_plots) +
                     numbers(comparison)) +
         section("Every two cases", pairs(comparison)) +
         section("Configuration", configuration(comparison)) +
         section("Environment", environment(comparison)) +
         section("To repeat it", "<pre>" + escaped(command) + "</pre>\n") + "</body></html>\n";
}

}  // namespace yoke::compare
