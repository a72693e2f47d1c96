/* The part of a model that a stage of pipeline.c holds: the parameters of its own
 * blocks, as a model of their own, so that yoke/flat.h can hold their state. Parameters have two
 * indices: one in the whole model, and one in the part. */
#ifndef YOKE_EXAMPLES_PIPELINE_PART_H_
#define YOKE_EXAMPLES_PIPELINE_PART_H_

#include "yoke/flat.h"

typedef struct Part {
  const YokeModel* whole; /* model of the host */
  YokeModel model;        /* the part; it has no blocks to run */
  YokeModelSummary summary;
  const YokeParameter** params; /* those of the part */
  int64_t* whole_index;         /* index in the model, by that in the part */
  int64_t* part_index;          /* the reverse; -1 = only other stages hold it */
  /* The first and the last stage that hold a parameter, by the index in the model. A tied
   * parameter may be on several. */
  int32_t *first_stage, *last_stage;
  int32_t stage, stages;
  uint64_t first_block, num_blocks;
} Part;

/* Returns the first block of a stage; with stage = stages the number of all blocks. */
static uint64_t first_block_of(const Part* p, int32_t stage) {
  return p->whole->summary->num_blocks * (uint64_t)stage / (uint64_t)p->stages;
}

/* Whether several stages hold a parameter that is trained. i: index in the model. */
static int is_tied(const Part* p, uint64_t i) {
  return p->first_stage[i] != p->last_stage[i] && p->whole->summary->params[i]->trainable;
}

static void part_free(Part* p) {
  free((void*)p->params);
  free(p->whole_index);
  free(p->part_index);
  free(p->first_stage);
  free(p->last_stage);
  memset(p, 0, sizeof *p);
}

/* These callbacks of the part translate the index. */
static int32_t part_init(
    void* ctx, int64_t param, int64_t begin, int64_t count, float* dst, YokeError* err) {
  const Part* p = ctx;
  return p->whole->init_param(p->whole->ctx, p->whole_index[param], begin, count, dst, err);
}

static int32_t part_bind(void* ctx, int64_t param, const YokeTensor* view, YokeError* err) {
  const Part* p = ctx;
  return p->whole->bind_param(p->whole->ctx, p->whole_index[param], view, err);
}

/* Finds the stages of each parameter. One that no block uses belongs to stage 0, so that
 * checkpoints have it. */
static void part_find_stages(Part* p, char* is_own) {
  const YokeModelSummary* s = p->whole->summary;
  int32_t stage;
  uint64_t b, i;
  for (i = 0; i < s->num_params; ++i) p->first_stage[i] = p->last_stage[i] = -1;
  for (stage = 0; stage < p->stages; ++stage) {
    for (b = first_block_of(p, stage); b < first_block_of(p, stage + 1); ++b) {
      for (i = 0; i < s->blocks[b]->num_params; ++i) {
        const int64_t param = s->blocks[b]->params[i];
        if (p->first_stage[param] < 0) p->first_stage[param] = stage;
        p->last_stage[param] = stage;
        if (stage == p->stage) is_own[param] = 1;
      }
    }
  }
  for (i = 0; i < s->num_params; ++i) {
    if (p->first_stage[i] >= 0) continue;
    p->first_stage[i] = p->last_stage[i] = 0;
    is_own[i] = p->stage == 0;
  }
}

static void part_select(Part* p, const char* is_own) {
  const YokeModelSummary* s = p->whole->summary;
  uint64_t i, n = 0;
  for (i = 0; i < s->num_params; ++i) {
    p->part_index[i] = is_own[i] ? (int64_t)n : -1;
    if (!is_own[i]) continue;
    p->params[n] = s->params[i];
    p->whole_index[n++] = (int64_t)i;
  }
  p->summary.header.struct_size = (uint32_t)sizeof p->summary;
  p->summary.header.struct_id = YOKE_ID_MODEL_SUMMARY;
  p->summary.params = p->params;
  p->summary.num_params = n;
  p->model.header.struct_size = (uint32_t)sizeof p->model;
  p->model.header.struct_id = YOKE_ID_MODEL;
  p->model.summary = &p->summary;
  p->model.ctx = p;
  p->model.init_param = part_init;
  p->model.bind_param = part_bind;
}

/* Makes the part of a stage. *p must not move afterwards. After a failure it is empty. */
static int32_t part_make(
    Part* p, const YokeModel* whole, int32_t stage, int32_t stages, YokeError* err) {
  const size_t n = (size_t)whole->summary->num_params + 1;
  char* is_own = calloc(n, 1);
  memset(p, 0, sizeof *p);
  p->whole = whole;
  p->stage = stage;
  p->stages = stages;
  p->first_block = first_block_of(p, stage);
  p->num_blocks = first_block_of(p, stage + 1) - p->first_block;
  p->params = calloc(n, sizeof *p->params);
  p->whole_index = calloc(n, sizeof *p->whole_index);
  p->part_index = calloc(n, sizeof *p->part_index);
  p->first_stage = calloc(n, sizeof *p->first_stage);
  p->last_stage = calloc(n, sizeof *p->last_stage);
  if (is_own == NULL || p->params == NULL || p->whole_index == NULL || p->part_index == NULL ||
      p->first_stage == NULL || p->last_stage == NULL) {
    free(is_own);
    part_free(p);
    return yoke_fail(err, YOKE_RESOURCE_EXHAUSTED, "out of memory");
  }
  part_find_stages(p, is_own);
  part_select(p, is_own);
  free(is_own);
  return YOKE_OK;
}

#endif /* YOKE_EXAMPLES_PIPELINE_PART_H_ */
