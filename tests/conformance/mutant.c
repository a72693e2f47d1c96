/* A backend with ZeRO stage 1, and with exactly one fault, which the macro FAULT selects at compile
 * time. Every rank has all parameters and gradients, but updates only its slice of them and has
 * only the moments of that slice:
 *
 *   gradients   sum of all ranks  -> reduce_scatter -> slice
 *   parameters  slice is updated  -> all_gather     -> all
 *
 * The slices have equal lengths; the last one is padded. The faults are small mistakes that an
 * author may make, and each of them must be found by a check. */
#include <signal.h>
#include <stdio.h>

#include "tests/conformance/mutant_faults.h"
#include "yoke/flat.h"

/* ---- describe and plan ---- */

#if FAULT_IS_MALFORMED_KIND
#define KIND YOKE_STRING("Moves!")
#else
#define KIND YOKE_STRING("number")
#endif
enum { kOwnKind = IS(HIDES_KIND) || IS(WRONG_ROW) || IS(MALFORMED_KIND) || IS(SLOWS_DOWN) };

static int32_t describe(const YokeDescription** out, YokeError* err) {
  static const int32_t dtypes[] = {YOKE_F32, YOKE_F64};
  static const YokeStateKind kind = {YOKE_HEADER(YokeStateKind, YOKE_ID_STATE_KIND),
                                     KIND,
                                     YOKE_STRING("the number of updates of the rank"),
                                     YOKE_STATE_PER_RANK,
                                     0};
  static const YokeStateKind* const kinds[] = {&kind};
  static const YokeDescription description = {
      .header = YOKE_HEADER(YokeDescription, YOKE_ID_DESCRIPTION),
      .name = YOKE_STRING(NAME),
      .version = YOKE_STRING("1.0.0"),
      .vendor = YOKE_STRING(""),
      .summary = YOKE_STRING("ZeRO stage 1 with a fault"),
      .torch_tag = YOKE_STRING(""),
      .param_dtypes = dtypes,
      .num_param_dtypes = 2,
      .axes = YOKE_AXIS_BIT(YOKE_DP_SHARD) |
              (IS(CHANGES_DEGREE) ? YOKE_AXIS_BIT(YOKE_DP_REPLICATE) : 0u),
      .zero_stages = 1u << 1,
      .devices = 1u << YOKE_DEVICE_CPU,
      .state_kinds = kinds,
      .num_state_kinds = kOwnKind && !IS(HIDES_KIND),
      .traits = IS(SLOWS_DOWN) ? YOKE_OWN_UPDATE : 0,
  };
  if (out == NULL) return yoke_fail(err, YOKE_INVALID_ARGUMENT, "describe: out is NULL");
  *out = &description;
  return YOKE_OK;
}

static int refuse_dtypes(const YokePlanArgs* args, YokePlan* plan) {
  int refused = 0;
  if (plan->param_dtype == 0) plan->param_dtype = YOKE_F32;
  if (plan->reduce_dtype == 0) plan->reduce_dtype = plan->param_dtype;
  if (plan->param_dtype != YOKE_F32 && plan->param_dtype != YOKE_F64)
    refused += yoke_refuse(args, "precision.param", "another dtype", "fp32 | fp64", "use fp32");
  else if (plan->reduce_dtype != YOKE_F64 && plan->reduce_dtype != plan->param_dtype)
    refused += yoke_refuse(args, "precision.reduce", "another dtype", "fp64", "remove it");
  /* A rank of several has only a part of a matrix. */
  if (!yoke_is_adam(plan->optimizer->kind) && !yoke_is_lion(plan->optimizer->kind) &&
      !(yoke_is_muon(plan->optimizer->kind) && plan->world_size == 1) &&
      plan->optimizer->kind != YOKE_SGD)
    refused += yoke_refuse(args, "train.optimizer", "another one", "adamw, sgd ...", "use adamw");
  return refused;
}

static int32_t plan(const YokePlanArgs* args, YokePlan* plan, YokeError* err) {
  static YokeOptimizer other;
  int refused = 0;
  YOKE_REQUIRE(args, YOKE_ID_PLAN_ARGS);
  YOKE_REQUIRE(plan, YOKE_ID_PLAN);
  YOKE_REQUIRE(plan->optimizer, YOKE_ID_OPTIMIZER);
  if (IS(REFUSES_RANKS) && plan->world_size > 1)
    refused += yoke_refuse(args, "dp_shards", "several", "1", "start one rank");
  if (IS(CHANGES_DEGREE) && plan->degree[YOKE_DP_REPLICATE] == 2) {
    plan->degree[YOKE_DP_REPLICATE] = 1;
    plan->degree[YOKE_DP_SHARD] = 2;
  }
  refused += yoke_resolve_degrees(args, plan, YOKE_DP_SHARD, "remove it: every rank is a shard");
  refused += refuse_dtypes(args, plan);
  if (IS(CHANGES_BATCH)) plan->global_batch /= 2;
  if (IS(CHANGES_OPTIMIZER) && refused == 0) {
    other = *plan->optimizer;
    plan->optimizer = &other;
  }
  return refused == 0 ? YOKE_OK
                      : yoke_fail(err, YOKE_INVALID_ARGUMENT, "refused for %d reasons", refused);
}

/* ---- One rank ---- */

struct YokeContext {
  YokeInitArgs args;
  YokeHost deaf; /* the host, but for check_cancel */
  YokeRanks ranks;
  int64_t rank, size;
};

static int32_t never(void* ctx) {
  (void)ctx;
  return 0;
}

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
  if (!IS(TAKES_ANY_DTYPE_IN_INIT)) YOKE_TRY(yoke_check_dtypes(args->plan, err));
  *out = calloc(1, sizeof **out);
  if (*out == NULL) return yoke_fail(err, YOKE_RESOURCE_EXHAUSTED, "out of memory");
  (*out)->args = *args;
  (*out)->deaf = *args->host;
  (*out)->deaf.header.struct_size = sizeof(YokeHost);
  (*out)->deaf.check_cancel = never;
  (*out)->rank = args->host->rank;
  (*out)->size = args->host->world_size;
  code = yoke_connect(args->host, YOKE_AXIS_BIT(YOKE_DP_SHARD), "zero", &(*out)->ranks, err);
  if (code != YOKE_OK) destroy(out);
  return code;
}

/* ---- One model ---- */

struct YokeWrapped {
  YokeContext* c;
  YokeFlat flat;     /* all parameters; its moments are not used */
  YokeModel model;   /* the model, or with TAKES_ANY_DLPACK a wrapper of it */
  int32_t reduce;    /* dtype of sum and slice */
  int64_t part;      /* length of a slice */
  int64_t lo, hi;    /* the slice of this rank, without padding */
  void *sum, *slice; /* gradients: of this rank, of all ranks */
  void* moment[2];   /* moments of the slice */
  void* padded;      /* parameters with padding, for all_gather */
  int64_t step, calls;
  int64_t number; /* state of its own: updates since the state was made */
};

static void destroy_model(YokeWrapped** model) {
  if (model == NULL || *model == NULL) return;
  yoke_flat_free(&(*model)->flat);
  free((*model)->sum);
  free((*model)->padded);
  free(*model);
  *model = NULL;
}

static int32_t (*real_forward)(void*, const YokeForwardArgs*, YokeForwardResult*, YokeError*);

static int32_t forward_any(void* ctx,
                           const YokeForwardArgs* args,
                           YokeForwardResult* out,
                           YokeError* err) {
  YOKE_TRY(real_forward(ctx, args, out, err));
  if (out->carry_out != NULL) out->carry_out->dlpack_major = 1;
  return YOKE_OK;
}

static int32_t (*real_backward)(void*, const YokeBackwardArgs*, YokeManagedTensor**, YokeError*);

static int32_t backward_any(void* ctx,
                            const YokeBackwardArgs* args,
                            YokeManagedTensor** grad_in,
                            YokeError* err) {
  YOKE_TRY(real_backward(ctx, args, grad_in, err));
  if (*grad_in != NULL) (*grad_in)->dlpack_major = 1;
  return YOKE_OK;
}

static int64_t slice_length(int64_t n, int64_t ranks) {
  int shift = 0;
  while ((int64_t)1 << shift < ranks) ++shift;
  return IS(POWERS_OF_TWO) ? (n + ((int64_t)1 << shift) - 1) >> shift : (n + ranks - 1) / ranks;
}

static int32_t allocate(YokeWrapped* w, YokeError* err) {
  const int64_t ranks = w->c->size, item = yoke_item_size(w->reduce);
  const int64_t own = yoke_item_size(w->flat.dtype);
  w->part = slice_length(w->flat.trainable, ranks);
  w->lo = w->part * w->c->rank < w->flat.trainable ? w->part * w->c->rank : w->flat.trainable;
  w->hi = w->lo + w->part < w->flat.trainable ? w->lo + w->part : w->flat.trainable;
  w->sum = calloc((size_t)(w->part * (ranks + 1)), (size_t)item);
  w->padded = calloc((size_t)(w->part * (ranks + 3)), (size_t)own);
  if (w->sum == NULL || w->padded == NULL)
    return yoke_fail(err, YOKE_RESOURCE_EXHAUSTED, "out of memory");
  w->slice = (char*)w->sum + w->part * ranks * item;
  w->moment[0] = (char*)w->padded + w->part * (ranks + 1) * own;
  w->moment[1] = (char*)w->padded + w->part * (ranks + 2) * own;
  return YOKE_OK;
}

static void report_bytes(const YokeWrapped* w, YokeWrapResult* out) {
  const int64_t item = yoke_item_size(w->flat.dtype), wide = yoke_item_size(w->reduce);
  const int64_t all = w->part * w->c->size;
  const int moments = (w->flat.kind[0] != NULL) + (w->flat.kind[1] != NULL);
  out->param_bytes = w->flat.size * item * (IS(REPORTS_MUCH_MEMORY) ? 1000 : 1);
  out->grad_bytes = (all + w->part) * wide;
  out->optimizer_bytes = moments * w->part * item;
  out->unsharded_bytes = all * item;
  out->activation_bytes = -1;
  if (w->c->size > 1) out->axis_bytes[YOKE_DP_SHARD] = all * (wide + item);
  if (IS(REPORTS_LITTLE_TRAFFIC)) out->axis_bytes[YOKE_DP_SHARD] /= 1000;
}

static int32_t wrap_model(YokeContext* c,
                          const YokeModel* model,
                          YokeWrapResult* out,
                          YokeError* err) {
  YokeWrapped* w;
  int32_t code;
  YOKE_CLEAR(out, YOKE_ID_WRAP_RESULT);
  if (c == NULL) return yoke_fail(err, YOKE_FAILED_PRECONDITION, "wrap_model before init");
  YOKE_REQUIRE(model, YOKE_ID_MODEL);
  YOKE_REQUIRE(out, YOKE_ID_WRAP_RESULT);
  w = calloc(1, sizeof *w);
  if (w == NULL) return yoke_fail(err, YOKE_RESOURCE_EXHAUSTED, "out of memory");
  w->c = c;
  w->model = *model;
  if (IS(TAKES_ANY_DLPACK)) {
    real_forward = model->block_forward;
    w->model.block_forward = forward_any;
    real_backward = model->block_backward;
    w->model.block_backward = backward_any;
  }
  w->reduce = IS(IGNORES_REDUCE_DTYPE) ? c->args.plan->param_dtype : c->args.plan->reduce_dtype;
  code = yoke_flat_make(&w->flat, &w->model, c->args.plan, err);
  if (code == YOKE_OK) code = allocate(w, err);
  if (code != YOKE_OK) {
    destroy_model(&w);
    return code;
  }
  out->model = w;
  report_bytes(w, out);
  return YOKE_OK;
}

#include "tests/conformance/mutant_step.inc"

/* ---- checkpoint ---- */

static int32_t show(const YokeCheckpointArgs* args, YokePiece* piece, void* data, YokeError* err) {
  const YokeTensor view = yoke_view(data, piece->dtype, &piece->count, 1);
  piece->run = piece->count > 0 ? piece->count : 1;
  piece->view = args->op == YOKE_CHECKPOINT_DESCRIBE ? NULL : &view;
  return args->visit(args->visit_ctx, piece, err);
}

/* Shows the part of the moments of parameter i that lies in the slice. */
static int32_t show_moments(
    YokeWrapped* w, const YokeCheckpointArgs* args, YokePiece piece, int64_t i, YokeError* err) {
  const char* kinds[2];
  const int count = yoke_moments_of(w->flat.optimizer, w->flat.model->summary, i, kinds);
  const int64_t begin = w->flat.begin[i];
  const int64_t item = yoke_item_size(w->flat.dtype);
  const int64_t lo = begin > w->lo ? begin : w->lo;
  const int64_t hi = begin + piece.count < w->hi ? begin + piece.count : w->hi;
  int m;
  piece.replica = 0;
  piece.begin = lo - begin;
  piece.count = hi - lo;
  for (m = 0; m < count && lo < hi; ++m) {
    piece.kind = yoke_string(kinds[m]);
    YOKE_TRY(show(args, &piece, (char*)w->moment[m] + (lo - w->lo) * item, err));
  }
  return YOKE_OK;
}

/* Shows the number of updates of this rank. Only SLOWS_DOWN counts them. */
static int32_t show_number(YokeWrapped* w, const YokeCheckpointArgs* args, YokeError* err) {
  YokePiece piece;
  int32_t code;
  memset(&piece, 0, sizeof piece);
  piece.header.struct_size = (uint32_t)sizeof piece;
  piece.header.struct_id = YOKE_ID_PIECE;
  piece.name = w->flat.model->summary->params[0]->name;
  piece.kind = yoke_string("number");
  piece.shape = &w->c->size;
  piece.ndim = 1;
  piece.dtype = YOKE_I64;
  piece.begin = IS(WRONG_ROW) ? w->c->size - 1 - w->c->rank : w->c->rank;
  piece.count = 1;
  code = show(args, &piece, &w->number, err);
  return code == YOKE_NOT_FOUND ? YOKE_OK : code;
}

static int32_t checkpoint(YokeWrapped* w, const YokeCheckpointArgs* args, YokeError* err) {
  YokePiece piece;
  uint64_t i;
  if (w == NULL) return yoke_fail(err, YOKE_FAILED_PRECONDITION, "checkpoint before wrap_model");
  YOKE_REQUIRE(args, YOKE_ID_CHECKPOINT_ARGS);
  if (!IS(TAKES_ANY_OP)) YOKE_TRY(yoke_check_op(args, err));
  if (IS(EMPTY_CHECKPOINT)) return YOKE_OK;
  memset(&piece, 0, sizeof piece);
  piece.header.struct_size = (uint32_t)sizeof piece;
  piece.header.struct_id = YOKE_ID_PIECE;
  piece.replica = w->c->rank;
  for (i = 0; i < w->flat.model->summary->num_params; ++i) {
    const YokeParameter* p = w->flat.model->summary->params[i];
    piece.name = p->name;
    piece.shape = p->shape;
    piece.ndim = p->ndim;
    piece.dtype = p->dtype;
    piece.count = yoke_count(p);
    piece.kind = yoke_string("param");
    YOKE_TRY(show(args, &piece, yoke_flat_at(&w->flat, w->flat.value, w->flat.begin[i]), err));
    if (p->trainable) YOKE_TRY(show_moments(w, args, piece, (int64_t)i, err));
  }
  if (kOwnKind) YOKE_TRY(show_number(w, args, err));
  piece.name = yoke_string("optimizer");
  piece.kind = yoke_string("step");
  piece.ndim = 0;
  piece.dtype = YOKE_I64;
  piece.count = 1;
  YOKE_TRY(show(args, &piece, &w->step, err));
  if (args->op == YOKE_CHECKPOINT_LOAD) w->calls = w->step;
  return YOKE_OK;
}

YOKE_EXPORT_SLOTS
