/* serial: a complete parallel backend in C99. It uses the model's callbacks and no library.
 *
 * Every rank holds every parameter, runs its own micro-batches, and sums the gradients with the
 * other ranks once per step: plain data parallelism along the axis dp_replicate. A single rank does
 * not communicate at all. Nothing is overlapped, sharded or fused: this is about the simplest
 * backend that fulfils the contract. */
#include "yoke/flat.h"

static int32_t describe(const YokeDescription** out, YokeError* err) {
  static const int32_t dtypes[] = {YOKE_F32, YOKE_F64};
  static const YokeDescription description = {
      .header = YOKE_HEADER(YokeDescription, YOKE_ID_DESCRIPTION),
      .name = YOKE_STRING("serial"),
      .version = YOKE_STRING("1.0.0"),
      .vendor = YOKE_STRING("Yoke"),
      .summary = YOKE_STRING("every rank a full replica; C99 without a library"),
      .torch_tag = YOKE_STRING(""),
      .param_dtypes = dtypes,
      .num_param_dtypes = 2,
      .axes = YOKE_AXIS_BIT(YOKE_DP_REPLICATE),
      .zero_stages = 1u << 0,
      .devices = 1u << YOKE_DEVICE_CPU,
  };
  if (out == NULL) return yoke_fail(err, YOKE_INVALID_ARGUMENT, "describe: out is NULL");
  *out = &description;
  return YOKE_OK;
}

static int32_t plan(const YokePlanArgs* args, YokePlan* plan, YokeError* err) {
  int refused = 0;
  YOKE_REQUIRE(args, YOKE_ID_PLAN_ARGS);
  YOKE_REQUIRE(plan, YOKE_ID_PLAN);
  YOKE_REQUIRE(plan->optimizer, YOKE_ID_OPTIMIZER);
  refused +=
      yoke_resolve_degrees(args, plan, YOKE_DP_REPLICATE, "remove it: every rank is a replica");
  refused += yoke_resolve_flat(args, plan);
  return refused == 0
             ? YOKE_OK
             : yoke_fail(
                   err, YOKE_INVALID_ARGUMENT, "the plan was refused for %d reason(s)", refused);
}

/* ---- One rank ---- */

struct YokeContext {
  YokeInitArgs args; /* copy; what it points to lives until destroy returns */
  YokeRanks replicas;
};

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
    return yoke_fail(err, YOKE_UNIMPLEMENTED, "serial works on the CPU only; set device = \"cpu\"");
  *out = calloc(1, sizeof **out);
  if (*out == NULL) return yoke_fail(err, YOKE_RESOURCE_EXHAUSTED, "out of memory");
  (*out)->args = *args;
  code =
      yoke_connect(args->host, YOKE_AXIS_BIT(YOKE_DP_REPLICATE), "reduce", &(*out)->replicas, err);
  if (code != YOKE_OK) destroy(out);
  return code;
}

/* ---- One model ---- */

struct YokeWrapped {
  const YokeContext* context;
  YokeFlat flat;
};

static void destroy_model(YokeWrapped** model) {
  if (model == NULL || *model == NULL) return;
  yoke_flat_free(&(*model)->flat);
  free(*model);
  *model = NULL;
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
  code = yoke_flat_make(&w->flat, model, c->args.plan, err);
  if (code != YOKE_OK) {
    destroy_model(&w);
    return code;
  }
  out->model = w;
  yoke_flat_bytes(&w->flat, out);
  out->activation_bytes = yoke_walk_bytes(model->summary, c->args.plan->micro_batch);
  if (c->args.host->world_size > 1) out->axis_bytes[YOKE_DP_REPLICATE] = out->grad_bytes;
  return YOKE_OK;
}

static int32_t step(YokeWrapped* w, const YokeStepArgs* args, YokeStepResult* out, YokeError* err) {
  double sums[2], norm = NAN;
  YokeFlat* f;
  YOKE_CLEAR(out, YOKE_ID_STEP_RESULT);
  if (w == NULL)
    return yoke_fail(err, YOKE_FAILED_PRECONDITION, "step was called before wrap_model");
  YOKE_REQUIRE(args, YOKE_ID_STEP_ARGS);
  YOKE_REQUIRE(args->batch, YOKE_ID_BATCH);
  YOKE_REQUIRE(out, YOKE_ID_STEP_RESULT);
  YOKE_TRY(yoke_check_flags(args, err));
  f = &w->flat;
  YOKE_TRY(yoke_flat_run(f, args, w->context->args.host, sums, err));
  YOKE_TRY(yoke_sum(&w->context->replicas, sums, 2, YOKE_F64, err)); /* loss, number of targets */
  YOKE_TRY(yoke_check_weight(args->batch, sums[1], err));
  if (!(args->flags & YOKE_STEP_FORWARD_ONLY)) {
    YOKE_TRY(yoke_sum(&w->context->replicas, f->grad, f->trainable, f->dtype, err));
    norm = yoke_flat_norm(f);
    yoke_flat_update(f, args->step, args->lr, norm);
  }
  yoke_report_step(args, sums[0], sums[1], norm, out);
  return YOKE_OK;
}

/* Every rank has the whole state; the copy of rank 0 is saved. */
static int32_t checkpoint(YokeWrapped* w, const YokeCheckpointArgs* args, YokeError* err) {
  if (w == NULL)
    return yoke_fail(err, YOKE_FAILED_PRECONDITION, "checkpoint was called before wrap_model");
  YOKE_REQUIRE(args, YOKE_ID_CHECKPOINT_ARGS);
  YOKE_TRY(yoke_check_op(args, err));
  return yoke_flat_visit(&w->flat, args, w->context->args.host->rank, err);
}

YOKE_EXPORT_SLOTS
