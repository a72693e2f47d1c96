#include "core/run/job_data.hpp"

#include <gmock/gmock.h>

#include "tests/support/temp_folder.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TempFolder;

class JobData : public ::testing::Test {
 protected:
  JobData() {
    run_.data.path = {folder_.write("text.txt", std::string(200, 'x'))};
    run_.data.seq_len = 10;
    run_.train.global_batch = 2;
  }
  DataSet data() const { return open_data(run_.data, 1, 1, 0, run_.eval.path); }
  std::vector<std::string> faults(int64_t vocab) const { return data_faults(run_, data(), vocab); }

  TempFolder folder_;
  RunConfig run_;
};

TEST_F(JobData, IsAcceptedIfTheModelHasOneIdForEachByte) {
  EXPECT_THAT(faults(256), IsEmpty());
  EXPECT_THAT(data_notes(data(), 256), IsEmpty());
  EXPECT_THAT(data_notes(data(), 0), IsEmpty());
}

TEST_F(JobData, IsRefusedBeyondTheVocabulary) {
  EXPECT_THAT(faults(255),
              ElementsAre(AllOf(HasSubstr("model.vocab = 255, but " + run_.data.path[0]),
                                HasSubstr("up to 255; allowed: at least 256"))));
}

TEST_F(JobData, IsRefusedIfItsDocumentsEndWithAnUnknownId) {
  run_.data.documents = "separate";
  run_.data.document_end = 256;
  EXPECT_THAT(faults(257), IsEmpty());
  EXPECT_THAT(faults(256),
              ElementsAre("data.document_end = 256, but model.vocab = 256; allowed: 0 to 255"));
}

TEST_F(JobData, CannotBeSeparateForAFamilyThatYokeDoesNotKnow) {
  run_.model.family = "mine";
  EXPECT_THAT(faults(256), IsEmpty());
  run_.data.documents = "separate";
  run_.data.document_end = 0;
  EXPECT_THAT(faults(256),
              ElementsAre(AllOf(HasSubstr("data.documents = \"separate\" needs a model whose"),
                                HasSubstr("model family 'mine'"))));
}

TEST_F(JobData, OfBytesIsNotedForALargerVocabulary) {
  EXPECT_THAT(faults(1024), IsEmpty());
  EXPECT_THAT(data_notes(data(), 1024),
              ElementsAre(HasSubstr("of the 1024 token ids of the model only the first 256")));
}

TEST_F(JobData, OfBytesIsRefusedForAModelWithATokenizer) {
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json"}) {
    const TempFolder model;
    run_.model = {};
    run_.model.config = model.write("config.json", "{}");
    EXPECT_THAT(faults(1024), IsEmpty()) << "no tokenizer yet";
    const std::string tokenizer = model.write(name, "{}");
    const auto refused = ElementsAre(
        AllOf(HasSubstr(run_.data.path[0]), HasSubstr(tokenizer), HasSubstr("data.format")));
    EXPECT_THAT(faults(1024), refused);
    run_.model.config = model.path().string();
    EXPECT_THAT(faults(1024), refused);
    run_.model.from = model.path().string();
    run_.model.config = "";
    EXPECT_THAT(faults(1024), refused);
    run_.data.format = "text";
    EXPECT_THAT(faults(1024), IsEmpty());
    run_.data.format = "auto";
  }
}

TEST_F(JobData, NeedsABatchForAnEvaluation) {
  run_.eval.every = 1;
  run_.data.holdout = 0.05;  // 1 of 19 windows
  EXPECT_THAT(faults(256),
              ElementsAre(AllOf(HasSubstr("the held-out tail has 1 window,"),
                                HasSubstr("give a longer text, raise data.holdout"))));
  run_.data.holdout = 0;
  run_.eval.path = {folder_.write("eval.txt", std::string(12, 'x'))};
  EXPECT_THAT(faults(256),
              ElementsAre(AllOf(HasSubstr("eval.path = \"" + run_.eval.path[0]),
                                HasSubstr("has 1 window,"),
                                HasSubstr("give a longer text"))));
}

}  // namespace
}  // namespace yoke
