#include "core/config/synonyms.hpp"

#include <gmock/gmock.h>

#include "core/config/schema.hpp"

namespace yoke {
namespace {

TEST(Synonym, NamesAKeyOfTheRunFile) {
  for (const char* name : {"epochs",
                           "train.max_steps",
                           "lr_scheduler_type",
                           "seq_length",
                           "gradient_accumulation_steps",
                           "learning_rate",
                           "warmup_steps",
                           "max_grad_norm",
                           "adam_beta1",
                           "bf16",
                           "output_dir",
                           "save_steps",
                           "save_total_limit",
                           "eval_steps",
                           "logging_steps",
                           "resume_from_checkpoint",
                           "dataset",
                           "model_name_or_path",
                           "tensor_parallel_degree",
                           "load_best_model_at_end"}) {
    const std::string text = synonym(name);
    ASSERT_TRUE(text.starts_with("use ")) << name;
    const std::string key = text.substr(4, text.find_first_of(" ;", 4) - 4);
    EXPECT_NE(find_key(key), nullptr) << text;
  }
}

TEST(Synonym, NamesTheFlagForTheNumberOfRanks) {
  for (const char* name : {"nproc", "train.num_processes", "world_size"})
    EXPECT_TRUE(synonym(name).starts_with("use --nproc N, ")) << name;
}

TEST(Synonym, NamesTheValueThatIsMeant) {
  EXPECT_EQ(meant_value("AdamW", {"sgd", "adamw"}), "adamw");
  EXPECT_EQ(meant_value("GPU", {"cpu", "cuda"}), "cuda");
  EXPECT_EQ(meant_value("bfloat16", {"fp32", "bf16"}), "bf16");
  EXPECT_EQ(meant_value("gpu", {"cpu"}), "");
  EXPECT_EQ(meant_value("tpu", {"cpu", "cuda"}), "");
}

TEST(Synonym, IsEmptyForOtherNames) {
  EXPECT_EQ(synonym("train.stepz"), "");
  EXPECT_EQ(synonym(""), "");
}

}  // namespace
}  // namespace yoke
