// The file is checked as a whole before any rank exists: an order that can be carried out here can
// be carried out with messages, too, because each message is sent right after what it carries was
// computed. Columns are the places of cells in a line, so that a message points into the file.
#include "sdk/mesh/schedule/order_file.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <sstream>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke::mesh {
namespace {

struct Cell {
  StageStep step;
  int rank, column;
};

char letter(StageOp op) {
  return "FBIW"[static_cast<int>(op)];
}

std::string text_of(const StageStep& step) {
  return concat(step.stage, std::string(1, letter(step.op)), step.micro);
}

[[noreturn]] void refuse(const Cell& cell, const std::string& why) {
  throw Error(
      YOKE_INVALID_ARGUMENT,
      concat("rank ", cell.rank, ", column ", cell.column, ": ", text_of(cell.step), " ", why));
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r"), end = text.find_last_not_of(" \t\r");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

StageStep parse_cell(const std::string& text, int rank, int column) {
  StageStep step{};
  const char* const end = text.data() + text.size();
  const auto [after_stage, bad_stage] = std::from_chars(text.data(), end, step.stage);
  const std::string letters = "FBIW";
  const size_t op = after_stage < end ? letters.find(*after_stage) : std::string::npos;
  bool ok = bad_stage == std::errc() && op != std::string::npos;
  if (ok) {
    const auto [after, bad] = std::from_chars(after_stage + 1, end, step.micro);
    ok = bad == std::errc() && after == end && step.stage >= 0 && step.micro >= 0;
  }
  if (!ok) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("rank ",
                       rank,
                       ", column ",
                       column,
                       ": '",
                       text,
                       "' is not an action; write stage, F, B, I or W, and micro-batch, such as "
                       "2F0"));
  }
  step.op = static_cast<StageOp>(op);
  return step;
}

std::vector<std::vector<Cell>> parse_cells(const std::string& text) {
  std::vector<std::vector<Cell>> ranks;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (trimmed(line).empty()) continue;
    std::vector<Cell>& cells = ranks.emplace_back();
    std::istringstream words(line);
    int column = 0;
    for (std::string word; std::getline(words, word, ','); ++column) {
      word = trimmed(word);
      if (word.empty()) continue;
      const int rank = static_cast<int>(ranks.size()) - 1;
      cells.push_back({parse_cell(word, rank, column), rank, column});
    }
  }
  return ranks;
}

class Check {
 public:
  explicit Check(const std::vector<std::vector<Cell>>& ranks) : ranks_(ranks) {}

  GivenOrders run() {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].empty())
        throw Error(YOKE_INVALID_ARGUMENT,
                    concat("rank ", r, " has no action; every rank needs a stage"));
      actions_ += ranks_[r].size();
    }
    for (const auto& cells : ranks_) {
      for (const Cell& cell : cells) place(cell);
    }
    for (const auto& cells : ranks_) {
      for (const Cell& cell : cells) order(cell);
    }
    require_complete();
    carry_out();
    for (const auto& cells : ranks_) {
      auto& steps = orders_.of_rank.emplace_back();
      for (const Cell& cell : cells) steps.push_back(cell.step);
    }
    return std::move(orders_);
  }

 private:
  using Key = std::pair<int, int>;  // stage, micro-batch

  void place(const Cell& cell) {
    const int stage = cell.step.stage;
    // Every stage has every micro-batch, so a larger number is a mistake. Without this bound it
    // would decide how much memory is allocated.
    if (static_cast<size_t>(std::max(stage, cell.step.micro)) >= actions_)
      refuse(cell, concat("has a number that is too large for a file of ", actions_, " actions"));
    if (stage >= static_cast<int>(orders_.rank_of.size())) orders_.rank_of.resize(stage + 1, -1);
    int& rank = orders_.rank_of[stage];
    if (rank >= 0 && rank != cell.rank)
      refuse(cell, concat("is here, but stage ", stage, " is also on rank ", rank));
    rank = cell.rank;
    orders_.micros = std::max(orders_.micros, cell.step.micro + 1);
  }

  // Checks the order of the actions of one stage and micro-batch, which are all on one rank.
  void order(const Cell& cell) {
    std::string& done = done_[{cell.step.stage, cell.step.micro}];
    const char action = letter(cell.step.op);
    if (done.find(action) != std::string::npos) refuse(cell, "is there twice");
    const bool backward_done = done.find_first_of("BI") != std::string::npos;
    const bool ok = action == 'F'   ? done.empty()
                    : action == 'W' ? done == "FI"
                                    : done == "F" && !backward_done;
    if (!ok)
      refuse(cell,
             concat("comes too early, or after another backward; before it: ",
                    done.empty() ? "nothing" : done));
    done += action;
  }

  void require_complete() const {
    for (int s = 0; s < static_cast<int>(orders_.rank_of.size()); ++s) {
      for (int m = 0; m < orders_.micros; ++m) {
        const auto found = done_.find({s, m});
        const std::string done = found == done_.end() ? "" : found->second;
        if (done == "FB" || done == "FIW") continue;
        throw Error(YOKE_INVALID_ARGUMENT,
                    concat("stage ",
                           s,
                           ", micro-batch ",
                           m,
                           ": actions are missing; there are: ",
                           done.empty() ? "none" : done));
      }
    }
  }

  // Runs all lines side by side.
  void carry_out() {
    std::vector<size_t> next(ranks_.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < ranks_.size(); ++r) {
        for (; next[r] < ranks_[r].size() && is_ready(ranks_[r][next[r]].step); ++next[r]) {
          const StageStep& step = ranks_[r][next[r]].step;
          (step.op == StageOp::kForward ? forward_ : backward_)[{step.stage, step.micro}] = true;
          moved = true;
        }
      }
    }
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (next[r] == ranks_[r].size()) continue;
      const Cell& cell = ranks_[r][next[r]];
      const bool forward = cell.step.op == StageOp::kForward;
      refuse(cell,
             concat("waits forever for the ",
                    forward ? "forward of stage " : "backward of stage ",
                    cell.step.stage + (forward ? -1 : 1),
                    ": the ranks wait for each other"));
    }
  }

  bool is_ready(const StageStep& step) {
    if (step.op == StageOp::kForward)
      return step.stage == 0 || forward_.count({step.stage - 1, step.micro}) > 0;
    const bool last = step.stage + 1 == static_cast<int>(orders_.rank_of.size());
    return step.op == StageOp::kBackwardWeight || last ||
           backward_.count({step.stage + 1, step.micro}) > 0;
  }

  const std::vector<std::vector<Cell>>& ranks_;
  size_t actions_ = 0;  // actions in the file
  GivenOrders orders_;
  std::map<Key, std::string> done_;  // letters of the actions that have been seen
  std::map<Key, bool> forward_, backward_;
};

}  // namespace

GivenOrders parse_orders(const std::string& text) {
  const std::vector<std::vector<Cell>> ranks = parse_cells(text);
  return Check(ranks).run();
}

std::string out_of_order(const GivenOrders& orders) {
  for (const std::vector<StageStep>& steps : orders.of_rank) {
    std::map<std::pair<int, char>, int> last;  // the last micro-batch of a stage's F, I or W
    for (const StageStep& step : steps) {
      // A whole backward is both of its parts.
      const char op = letter(step.op);
      for (const char part : op == 'B' ? std::string("IW") : std::string(1, op)) {
        int& before = last.try_emplace({step.stage, part}, step.micro).first->second;
        if (before > step.micro) return text_of(step);
        before = step.micro;
      }
    }
  }
  return "";
}

}  // namespace yoke::mesh
