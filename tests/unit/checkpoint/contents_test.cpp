#include "core/checkpoint/contents.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/checkpoint/fake_state.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

StoredTensor tensor(const std::string& name,
                    const std::string& kind,
                    std::vector<int64_t> shape = {2, 3}) {
  StoredTensor t;
  t.name = name;
  t.kind = kind;
  t.dtype = kind == "step" ? YOKE_I64 : YOKE_F32;
  t.shape = std::move(shape);
  return t;
}

// A model with a trainable parameter `a` and a frozen one `b`.
StateContents contents() {
  StateContents c;
  c.params = {{"a", {2, 3}}, {"b", {2, 3}}};
  c.moments = {{"exp_avg", {"a"}}, {"exp_avg_sq", {"a"}}};
  c.own_kinds = {"error"};
  return c;
}

std::vector<StoredTensor> whole() {
  return {tensor("a", "exp_avg"),
          tensor("a", "exp_avg_sq"),
          tensor("a", "param"),
          tensor("b", "param"),
          tensor("optimizer", "step", {})};
}

TEST(Contents, AWholeStateIsAccepted) {
  EXPECT_NO_THROW(check_contents(whole(), contents()));
  auto more = whole();
  more.push_back(tensor("a", "error", {4}));
  more.push_back(tensor("optimizer", "error", {4}));
  EXPECT_NO_THROW(check_contents(more, contents())) << "a kind that is declared";
  auto numbered = contents();
  numbered.own_kinds = {"error", "w#_param"};
  more.push_back(tensor("a", "w12_param"));
  EXPECT_NO_THROW(check_contents(more, numbered));
  more.push_back(tensor("a", "w_param"));
  EXPECT_THAT(error_of([&] { check_contents(more, numbered); }).text,
              HasSubstr("'w_param' of 'a'"));
}

TEST(Contents, NamesEachTensorThatIsMissing) {
  for (size_t i = 0; i < whole().size(); ++i) {
    auto tensors = whole();
    const StoredTensor gone = tensors[i];
    tensors.erase(tensors.begin() + static_cast<ptrdiff_t>(i));
    const Outcome outcome = error_of([&] { check_contents(tensors, contents()); });
    EXPECT_EQ(outcome.code, YOKE_INTERNAL);
    EXPECT_THAT(outcome.text, HasSubstr("'" + gone.kind + "' of '" + gone.name + "' is missing; "));
  }
}

TEST(Contents, NamesWhatDoesNotBelongToTheModel) {
  const auto text_with = [](const StoredTensor& more) {
    auto tensors = whole();
    tensors.push_back(more);
    return error_of([&] { check_contents(tensors, contents()); }).text;
  };
  EXPECT_THAT(text_with(tensor("c", "param")), HasSubstr("the model has no parameter 'c'"));
  EXPECT_THAT(text_with(tensor("a", "other")),
              HasSubstr("'other' of 'a' is a kind that the description of the backend does not"));
  auto any = contents();
  any.own_kinds.reset();
  auto tensors = whole();
  tensors.push_back(tensor("a", "other"));
  EXPECT_NO_THROW(check_contents(tensors, any));
}

TEST(Contents, NamesAWrongShape) {
  auto tensors = whole();
  tensors[0].shape = {3, 2};
  EXPECT_THAT(error_of([&] { check_contents(tensors, contents()); }).text,
              HasSubstr("'exp_avg' of 'a' has the shape [3, 2] instead of [2, 3]"));
}

TEST(Contents, ListsThreeFaultsAndCountsTheOthers) {
  EXPECT_THAT(error_of([&] { check_contents({}, contents()); }).text,
              AllOf(HasSubstr("'param' of 'a' is missing, 'exp_avg' of 'a' is missing, "
                              "'exp_avg_sq' of 'a' is missing, and 2 more"),
                    ::testing::Not(HasSubstr("'b'"))));
}

TEST(Contents, CountsOfAManifestMustFit) {
  const ContentCounts counts = counts_of(contents());
  EXPECT_NO_THROW(check_counts(whole(), counts));
  EXPECT_NO_THROW(check_counts(whole(), std::nullopt));
  for (size_t i = 0; i < whole().size(); ++i) {
    auto tensors = whole();
    tensors.erase(tensors.begin() + static_cast<ptrdiff_t>(i));
    EXPECT_EQ(error_of([&] { check_counts(tensors, counts); }).code, YOKE_DATA_LOSS) << i;
    // Without counts, a parameter that is gone cannot be noticed.
    const bool noticed = whole()[i].kind != "param";
    EXPECT_EQ(error_of([&] { check_counts(tensors, std::nullopt); }).code,
              noticed ? YOKE_DATA_LOSS : YOKE_OK)
        << i;
  }
}

TEST(Contents, AllRanksLearnThatAStateIsNotComplete) {
  FakeState state = fake_state(1, 2);
  const RankPieces pieces = whole_on_rank0(state, 2);
  SaveRequest request = request_of(::testing::TempDir() + "contents", 1);
  request.contents.emplace();
  for (const FakeTensor& t : state)
    if (t.kind == "param") request.contents->params[t.name] = t.shape;
  request.contents->params["gone"] = {1};
  for (const Outcome& outcome : save(request, state, pieces))
    EXPECT_THAT(outcome.text, HasSubstr("'param' of 'gone' is missing"));
  ThreadRanks threads(2);
  std::vector<Outcome> outcomes(2);
  std::vector<std::thread> running;
  for (int r = 0; r < 2; ++r) {
    running.emplace_back([&, r] {
      outcomes[r] = error_of(
          [&] { check_state(threads.group(r), *request.contents, walk_of(state, pieces[r])); });
    });
  }
  for (std::thread& t : running) t.join();
  for (const Outcome& outcome : outcomes)
    EXPECT_THAT(outcome.text, HasSubstr("'param' of 'gone' is missing"));
}

}  // namespace
}  // namespace yoke
