/* pipeline: pipeline parallelism in C99 by messages between ranks. The blocks of the model are
 * divided into as many stages as there are ranks along pp. A rank holds the parameters of its own
 * blocks only, receives the carry of each micro-batch from the rank before it, and sends its own
 * output to the rank after it.
 *
 * The schedule is GPipe: all micro-batches run forward, then all of them backward. With 3 stages
 * and micro-batches 0 and 1:
 *
 *   rank 0   F0 F1                B0 B1     -> carries, <- gradients of carries
 *   rank 1      F0 F1       B0 B1
 *   rank 2         F0 F1 B0 B1
 *
 * The backwards run in the order of the forwards, so that the gradients of the micro-batches add up
 * in the same order as on a single rank. Sends wait for the receiver: in each half of a step all
 * messages have the same direction, so no two ranks can wait for each other. */
#include "stage.h"

static int32_t describe(const YokeDescription** out, YokeError* err) {
  static const int32_t dtypes[] = {YOKE_F32, YOKE_F64};
  static const YokeDescription description = {
      .header = YOKE_HEADER(YokeDescription, YOKE_ID_DESCRIPTION),
      .name = YOKE_STRING("pipeline"),
      .version = YOKE_STRING("1.0.0"),
      .vendor = YOKE_STRING("Yoke"),
      .summary = YOKE_STRING("a pipeline in C99 by messages between ranks"),
      .torch_tag = YOKE_STRING(""),
      .param_dtypes = dtypes,
      .num_param_dtypes = 2,
      .axes = YOKE_AXIS_BIT(YOKE_PP),
      .zero_stages = 1u << 0,
      .devices = 1u << YOKE_DEVICE_CPU,
  };
  if (out == NULL) return yoke_fail(err, YOKE_INVALID_ARGUMENT, "describe: out is NULL");
  *out = &description;
  return YOKE_OK;
}

/* Refuses more stages than the model has blocks. */
static int resolve_stages(const YokePlanArgs* args, const YokePlan* plan) {
  const int has_more =
      YOKE_HAS(YokeModelSummary, args->model, more_blocks) && args->model->more_blocks.size > 0;
  const int32_t stages = plan->degree[YOKE_PP];
  char given[16], allowed[32], hint[256];
  if (stages <= 0 || (uint64_t)stages <= args->model->num_blocks) return 0;
  snprintf(given, sizeof given, "%d", (int)stages);
  snprintf(allowed, sizeof allowed, "1 to %d", (int)args->model->num_blocks);
  snprintf(hint,
           sizeof hint,
           "every stage needs a block of its own%s%s",
           has_more ? "; more blocks: " : "",
           has_more ? args->model->more_blocks.data : "");
  return yoke_refuse(args, "pp_degree", given, allowed, hint);
}

/* A pipeline with fewer micro-batches than stages leaves ranks without work. */
static void choose_micro_batch(YokePlan* plan) {
  const int32_t stages = plan->degree[YOKE_PP];
  int64_t divisor;
  if (plan->micro_batch != 0 || stages == 1) return;
  plan->micro_batch = 1;
  for (divisor = 1; divisor != 0 && divisor * stages <= plan->global_batch;
       divisor = yoke_next_divisor(plan->global_batch, divisor))
    plan->micro_batch = (int32_t)divisor;
}

static int32_t plan(const YokePlanArgs* args, YokePlan* plan, YokeError* err) {
  int refused = 0;
  YOKE_REQUIRE(args, YOKE_ID_PLAN_ARGS);
  YOKE_REQUIRE(plan, YOKE_ID_PLAN);
  YOKE_REQUIRE(plan->optimizer, YOKE_ID_OPTIMIZER);
  refused += yoke_resolve_degrees(args, plan, YOKE_PP, "remove it: every rank is a stage");
  refused += resolve_stages(args, plan);
  refused += yoke_resolve_flat(args, plan);
  /* A stage does not know which blocks are the first and the last of the model. */
  if (yoke_is_muon(plan->optimizer->kind))
    refused += yoke_refuse(
        args, "train.optimizer", "muon", "adamw | adam | lion | sgd", "set it to \"adamw\"");
  if (refused > 0)
    return yoke_fail(err, YOKE_INVALID_ARGUMENT, "the plan was refused for %d reason(s)", refused);
  choose_micro_batch(plan);
  return YOKE_OK;
}

/* ---- One rank ---- */

static void destroy(YokeContext** context) {
  if (context == NULL) return;
  free(*context);
  *context = NULL;
}

static int32_t init(const YokeInitArgs* args, YokeContext** out, YokeError* err) {
  int32_t code;
  if (out == NULL) return yoke_fail(err, YOKE_INVALID_ARGUMENT, "init: out is NULL");
  *out = NULL;
  YOKE_REQUIRE(args, YOKE_ID_INIT_ARGS);
  YOKE_REQUIRE(args->plan, YOKE_ID_PLAN);
  YOKE_REQUIRE(args->host, YOKE_ID_HOST);
  YOKE_TRY(yoke_check_dtypes(args->plan, err));
  if (args->host->device.type != YOKE_DEVICE_CPU)
    return yoke_fail(
        err, YOKE_UNIMPLEMENTED, "pipeline works on the CPU only; set device = \"cpu\"");
  *out = calloc(1, sizeof **out);
  if (*out == NULL) return yoke_fail(err, YOKE_RESOURCE_EXHAUSTED, "out of memory");
  (*out)->args = *args;
  code = yoke_connect(args->host, YOKE_AXIS_BIT(YOKE_PP), "stages", &(*out)->ranks, err);
  if (code == YOKE_OK && (*out)->ranks.comm != NULL &&
      !YOKE_HAS(YokeCollectives, (*out)->ranks.service, recv))
    code = yoke_fail(err,
                     YOKE_FAILED_PRECONDITION,
                     "this host has no messages between ranks, which came with version 1.1 of the "
                     "contract; update the host");
  if (code != YOKE_OK) destroy(out);
  return code;
}

/* ---- One model ---- */

static void destroy_model(YokeWrapped** model) {
  YokeWrapped* w = model == NULL ? NULL : *model;
  if (w == NULL) return;
  yoke_flat_free(&w->flat);
  part_free(&w->part);
  free(w->tied);
  free(w);
  *model = NULL;
}

static int32_t make_state(YokeWrapped* w, YokeError* err) {
  const YokePlan* plan = w->context->args.plan;
  const YokeRanks* r = &w->context->ranks;
  const int32_t stage = r->comm == NULL ? 0 : r->service->rank(r->comm);
  uint64_t i;
  YOKE_TRY(part_make(&w->part, w->model, stage, plan->degree[YOKE_PP], err));
  for (i = 0; i < w->model->summary->num_params; ++i)
    if (is_tied(&w->part, i)) w->num_tied += yoke_count(w->model->summary->params[i]);
  w->tied = calloc((size_t)w->num_tied + 1, (size_t)yoke_item_size(plan->param_dtype));
  if (w->tied == NULL) return yoke_fail(err, YOKE_RESOURCE_EXHAUSTED, "out of memory");
  return yoke_flat_make(&w->flat, &w->part.model, plan, err);
}

/* Counts activations, which wait for the backward of all micro-batches, and messages. */
static void count_bytes(const YokeWrapped* w, YokeWrapResult* out) {
  const YokeModelSummary* s = w->model->summary;
  const uint64_t end = w->part.first_block + w->part.num_blocks;
  const int64_t sequences = w->context->args.plan->global_batch;
  uint64_t b;
  yoke_flat_bytes(&w->flat, out);
  for (b = w->part.first_block; b < end; ++b) {
    const YokeBlock* block = s->blocks[b];
    if (block->activation_bytes < 0 || block->carry_bytes < 0) {
      out->activation_bytes = out->axis_bytes[YOKE_PP] = -1;
      return;
    }
    out->activation_bytes += (block->activation_bytes + block->carry_bytes) * sequences;
  }
  /* A carry and its gradient cross each end of the stage. */
  if (w->part.stage > 0)
    out->axis_bytes[YOKE_PP] += 2 * s->blocks[w->part.first_block - 1]->carry_bytes * sequences;
  if (w->part.stage + 1 < w->part.stages)
    out->axis_bytes[YOKE_PP] += 2 * s->blocks[end - 1]->carry_bytes * sequences;
  if (w->part.stages > 1) out->axis_bytes[YOKE_PP] += w->num_tied * yoke_item_size(w->flat.dtype);
}

static int32_t wrap_model(YokeContext* c,
                          const YokeModel* model,
                          YokeWrapResult* out,
                          YokeError* err) {
  YokeWrapped* w;
  int32_t code;
  YOKE_CLEAR(out, YOKE_ID_WRAP_RESULT);
  if (c == NULL)
    return yoke_fail(err, YOKE_FAILED_PRECONDITION, "wrap_model was called before init");
  YOKE_REQUIRE(model, YOKE_ID_MODEL);
  YOKE_REQUIRE(out, YOKE_ID_WRAP_RESULT);
  w = calloc(1, sizeof *w);
  if (w == NULL) return yoke_fail(err, YOKE_RESOURCE_EXHAUSTED, "out of memory");
  w->context = c;
  w->model = model;
  code = make_state(w, err);
  if (code != YOKE_OK) {
    destroy_model(&w);
    return code;
  }
  out->model = w;
  count_bytes(w, out);
  return YOKE_OK;
}

/* ---- A step ---- */

/* Adds up the gradients of parameters that several stages hold. The stages that do not hold a
 * parameter contribute zeros. */
static int32_t sum_tied(YokeWrapped* w, YokeError* err) {
  const YokeModelSummary* s = w->model->summary;
  const int64_t item = yoke_item_size(w->flat.dtype);
  int pass;
  if (w->num_tied == 0) return YOKE_OK;
  memset(w->tied, 0, (size_t)(w->num_tied * item));
  for (pass = 0; pass < 2; ++pass) {
    char* at = w->tied;
    uint64_t i;
    for (i = 0; i < s->num_params; ++i) {
      const size_t bytes = (size_t)(yoke_count(s->params[i]) * item);
      const int64_t own = w->part.part_index[i];
      if (!is_tied(&w->part, i)) continue;
      if (own >= 0) {
        void* grad = yoke_flat_at(&w->flat, w->flat.grad, w->flat.begin[own]);
        memcpy(pass == 0 ? at : grad, pass == 0 ? grad : at, bytes);
      }
      at += bytes;
    }
    if (pass == 0) YOKE_TRY(yoke_sum(&w->context->ranks, w->tied, w->num_tied, w->flat.dtype, err));
  }
  return YOKE_OK;
}

/* Returns the squares of the gradients that this stage counts: a parameter of several stages counts
 * on the first of them. */
static double own_squares(const YokeWrapped* w) {
  double squares = 0;
  uint64_t n;
  for (n = 0; n < w->part.summary.num_params; ++n) {
    int64_t k = w->flat.begin[n], end = k + yoke_count(w->part.params[n]);
    if (!w->part.params[n]->trainable ||
        w->part.first_stage[w->part.whole_index[n]] != w->part.stage)
      continue;
    for (; k < end; ++k) squares += pow(yoke_get(w->flat.grad, w->flat.dtype, k), 2);
  }
  return squares;
}

/* Runs all micro-batches. On failure the caller ends the flights. */
static int32_t run_micros(YokeWrapped* w, const YokeStepArgs* args, double* sums, YokeError* err) {
  const int train = !(args->flags & YOKE_STEP_FORWARD_ONLY);
  uint64_t m;
  for (m = 0; m < w->num_flights; ++m) {
    YOKE_TRY(run_forward(w, &w->flights[m], args->batch->micros[m], train, sums, err));
    if (!train) end_flight(w, &w->flights[m]);
  }
  for (m = 0; m < w->num_flights && train; ++m) {
    YOKE_TRY(run_backward(w, &w->flights[m], err));
    end_flight(w, &w->flights[m]);
  }
  return YOKE_OK;
}

static int32_t step(YokeWrapped* w, const YokeStepArgs* args, YokeStepResult* out, YokeError* err) {
  double sums[3] = {0, 0, 0}, norm = NAN; /* loss, targets, squares of gradients */
  int32_t code;
  uint64_t m;
  YOKE_CLEAR(out, YOKE_ID_STEP_RESULT);
  if (w == NULL)
    return yoke_fail(err, YOKE_FAILED_PRECONDITION, "step was called before wrap_model");
  YOKE_REQUIRE(args, YOKE_ID_STEP_ARGS);
  YOKE_REQUIRE(args->batch, YOKE_ID_BATCH);
  YOKE_REQUIRE(out, YOKE_ID_STEP_RESULT);
  YOKE_TRY(yoke_check_flags(args, err));
  w->loss_grad = 1 / args->batch->token_weight;
  w->num_flights = args->batch->num_micros;
  w->flights = calloc(w->num_flights, sizeof *w->flights);
  if (w->flights == NULL) return yoke_fail(err, YOKE_RESOURCE_EXHAUSTED, "out of memory");
  memset(w->flat.grad, 0, (size_t)(w->flat.trainable * yoke_item_size(w->flat.dtype)));
  code = run_micros(w, args, sums, err);
  for (m = 0; m < w->num_flights; ++m) end_flight(w, &w->flights[m]);
  free(w->flights);
  YOKE_TRY(code);
  if (!(args->flags & YOKE_STEP_FORWARD_ONLY)) {
    YOKE_TRY(sum_tied(w, err));
    sums[2] = own_squares(w);
  }
  YOKE_TRY(yoke_sum(&w->context->ranks, sums, 3, YOKE_F64, err));
  YOKE_TRY(yoke_check_weight(args->batch, sums[1], err));
  if (!(args->flags & YOKE_STEP_FORWARD_ONLY)) {
    norm = yoke_gradient_norm(sums[2]);
    yoke_flat_update(&w->flat, args->step, args->lr, norm);
  }
  yoke_report_step(args, sums[0], sums[1], norm, out);
  return YOKE_OK;
}

/* ---- Checkpoint ---- */

typedef struct Visit {
  const YokeWrapped* w;
  const YokeCheckpointArgs* args;
} Visit;

/* Numbers the copies of a piece: 0 on the first stage that holds it. */
static int32_t visit_numbered(void* ctx, const YokePiece* piece, YokeError* err) {
  const Visit* v = ctx;
  const YokeWrapped* w = v->w;
  YokePiece numbered = *piece;
  uint64_t n;
  numbered.replica = w->part.stage; /* the step, which every stage has */
  for (n = 0; n < w->part.summary.num_params; ++n)
    if (piece->name.data == w->part.params[n]->name.data)
      numbered.replica = w->part.stage - w->part.first_stage[w->part.whole_index[n]];
  return v->args->visit(v->args->visit_ctx, &numbered, err);
}

static int32_t checkpoint(YokeWrapped* w, const YokeCheckpointArgs* args, YokeError* err) {
  Visit visit;
  YokeCheckpointArgs mine = {.header = YOKE_HEADER(YokeCheckpointArgs, YOKE_ID_CHECKPOINT_ARGS)};
  if (w == NULL)
    return yoke_fail(err, YOKE_FAILED_PRECONDITION, "checkpoint was called before wrap_model");
  YOKE_REQUIRE(args, YOKE_ID_CHECKPOINT_ARGS);
  YOKE_TRY(yoke_check_op(args, err));
  visit.w = w;
  visit.args = args;
  mine.op = args->op;
  mine.visit = visit_numbered;
  mine.visit_ctx = &visit;
  return yoke_flat_visit(&w->flat, &mine, 0, err);
}

YOKE_EXPORT_SLOTS
