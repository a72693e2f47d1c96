/* serial: a whole parallel backend in C99, on the neutral model alone.
 *
 * Every rank holds every parameter, runs its own micro-batches, and sums the gradients with its
 * peers once per step: naive data parallelism over the axis dp_replicate; with one rank, no
 * communication at all. Nothing is overlapped, sharded or fused. It is the plain reading of the
 * contract, and the tests compare other backends with it. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "yoke/parallel_backend.h"

/* ---- Errors: a code and a sentence --------------------------------------------------------- */

static int32_t fail(YokeError* err, int32_t code, const char* format, ...) {
  va_list args;
  if (err == NULL || err->header.struct_size <= offsetof(YokeError, text)) return code;
  err->code = code;
  err->rank = -1;
  err->step = -1;
  va_start(args, format);
  vsnprintf(err->text, err->header.struct_size - offsetof(YokeError, text), format, args);
  va_end(args);
  return code;
}

/* Whoever failed has filled *err: hand the code on. */
#define TRY(call)                       \
  do {                                  \
    const int32_t code_ = (call);       \
    if (code_ != YOKE_OK) return code_; \
  } while (0)

/* The caller gave a struct of the right kind. */
#define REQUIRE(pointer, id)                                   \
  TRY((pointer) != NULL && (pointer)->header.struct_id == (id) \
          ? YOKE_OK                                            \
          : fail(err, YOKE_INVALID_ARGUMENT, "serial: %s is NULL or not a %s", #pointer, #id))

/* ---- describe and plan: what it can do, and what it makes of a run ------------------------- */

static int32_t describe(const YokeDescription** out, YokeError* err) {
  static const int32_t dtypes[] = {YOKE_F32, YOKE_F64};
  static const YokeDescription description = {
      .header = YOKE_HEADER(YokeDescription, YOKE_ID_DESCRIPTION),
      .name = YOKE_STRING("serial"),
      .version = YOKE_STRING("1.0.0"),
      .vendor = YOKE_STRING("Yoke"),
      .summary = YOKE_STRING("every rank a full replica; C99 without a library: the reference"),
      .torch_tag = YOKE_STRING(""),
      .param_dtypes = dtypes,
      .num_param_dtypes = 2,
      .axes = YOKE_AXIS_BIT(YOKE_DP_REPLICATE),
      .zero_stages = 1u << 0,
  };
  if (out == NULL) return fail(err, YOKE_INVALID_ARGUMENT, "serial: describe: out is NULL");
  *out = &description;
  return YOKE_OK;
}

static YokeString string(const char* text) {
  const YokeString s = {text, strlen(text)};
  return s;
}

static int refuse(const YokePlanArgs* args,
                  const char* key,
                  const char* given,
                  const char* allowed,
                  const char* hint) {
  YokeRefusal refusal = {.header = YOKE_HEADER(YokeRefusal, YOKE_ID_REFUSAL)};
  refusal.key = string(key);
  refusal.given = string(given);
  refusal.allowed = string(allowed);
  refusal.hint = string(hint);
  args->refuse(args->refuse_ctx, &refusal);
  return 1;
}

/* Fills a degree that is unset; refuses any but the one that serial can do. */
static int settle(const YokePlanArgs* args, YokePlan* plan, int axis) {
  static const char keys[][10] = {"pp_degree", "dp_degree", "dp_shards", "cp_degree", "tp_degree"};
  const int32_t only = axis == YOKE_DP_REPLICATE ? plan->world_size : 1;
  char given[16], allowed[16];
  if (plan->degree[axis] == 0) plan->degree[axis] = only;
  if (plan->degree[axis] == only) return 0;
  snprintf(given, sizeof given, "%d", (int)plan->degree[axis]);
  snprintf(allowed, sizeof allowed, "%d", (int)only);
  return refuse(args, keys[axis], given, allowed, "remove it: every rank is a replica");
}

static int32_t plan(const YokePlanArgs* args, YokePlan* plan, YokeError* err) {
  int n = 0;
  REQUIRE(args, YOKE_ID_PLAN_ARGS);
  REQUIRE(plan, YOKE_ID_PLAN);
  REQUIRE(plan->optimizer, YOKE_ID_OPTIMIZER);
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) n += settle(args, plan, axis);
  if (plan->param_dtype == 0) plan->param_dtype = YOKE_F32;
  if (plan->reduce_dtype == 0) plan->reduce_dtype = plan->param_dtype;
  if (plan->param_dtype != YOKE_F32 && plan->param_dtype != YOKE_F64)
    n += refuse(args, "precision.param", plan->param_dtype == YOKE_BF16 ? "bf16" : "another dtype",
                "fp32 | fp64", "set it to \"fp32\"");
  if (plan->reduce_dtype != plan->param_dtype)
    n += refuse(args, "precision.reduce", "another dtype", "precision.param's", "remove it");
  if (plan->optimizer->kind != YOKE_ADAMW && plan->optimizer->kind != YOKE_SGD)
    n += refuse(args, "train.optimizer", "another one", "adamw | sgd", "set it to \"adamw\"");
  if (n > 0) return fail(err, YOKE_INVALID_ARGUMENT, "serial: %d reason(s) to refuse the plan", n);
  return YOKE_OK;
}

/* ---- Context: one rank --------------------------------------------------------------------- */

struct YokeContext {
  const YokeHost* host;
  const YokeCollectives* collectives;
  YokeComm* comm; /* NULL with one rank */
  YokeOptimizer optimizer;
  int32_t dtype; /* of parameters, gradients and moments */
};

static void destroy(YokeContext** context) {
  if (context == NULL) return;
  free(*context);
  *context = NULL;
}

static int32_t connect_ranks(YokeContext* c, YokeError* err) {
  const YokeHost* host = c->host;
  const YokeCollectives* service;
  if (host->world_size == 1) return YOKE_OK;
  service = (const void*)host->get_service(host->ctx, "yoke.collectives/1", sizeof *service);
  if (service == NULL)
    return fail(err, YOKE_FAILED_PRECONDITION, "serial: the host has no yoke.collectives/1");
  c->collectives = service;
  return service->comm(service->ctx, YOKE_AXIS_BIT(YOKE_DP_REPLICATE), "reduce", &c->comm, err);
}

static int32_t init(const YokeInitArgs* args, YokeContext** out, YokeError* err) {
  YokeContext* c;
  int32_t code;
  if (out == NULL) return fail(err, YOKE_INVALID_ARGUMENT, "serial: init: out is NULL");
  *out = NULL;
  REQUIRE(args, YOKE_ID_INIT_ARGS);
  REQUIRE(args->plan, YOKE_ID_PLAN);
  REQUIRE(args->plan->optimizer, YOKE_ID_OPTIMIZER);
  REQUIRE(args->host, YOKE_ID_HOST);
  if (args->host->device.type != YOKE_DEVICE_CPU)
    return fail(err, YOKE_UNIMPLEMENTED, "serial: works on the CPU only; set device = \"cpu\"");
  c = calloc(1, sizeof *c);
  if (c == NULL) return fail(err, YOKE_RESOURCE_EXHAUSTED, "serial: out of memory");
  c->host = args->host;
  c->optimizer = *args->plan->optimizer;
  c->dtype = args->plan->param_dtype;
  code = connect_ranks(c, err);
  if (code != YOKE_OK) destroy(&c);
  *out = c;
  return code;
}

/* ---- Model: parameters, gradients and moments, each one flat array ------------------------- */

/* What a block left behind in the micro-batch under way. */
typedef struct BlockState {
  void* saved;
  YokeManagedTensor* carry;
} BlockState;

struct YokeWrapped {
  const YokeContext* context;
  const YokeModel* model;
  int64_t num_params, num_blocks;
  int64_t* begin;    /* per parameter: its first element in every array; trainable ones first */
  int64_t size;      /* elements of all parameters */
  int64_t trainable; /* elements of the trainable ones: the length of grad and moments */
  int64_t item;      /* bytes of an element */
  void *value, *grad, *moment[2];
  const char* kind[2]; /* of the moments: exp_avg, exp_avg_sq | momentum | none */
  BlockState* block;
  double sums[2]; /* of the step under way: loss, and the number of targets in it */
  int64_t bound;  /* parameters bound so far */
  int64_t step;   /* of the last update */
};

static const YokeParameter* param(const YokeWrapped* w, int64_t i) {
  return w->model->summary->params[i];
}

static int64_t count(const YokeParameter* p) {
  int64_t n = 1;
  for (int32_t d = 0; d < p->ndim; ++d) n *= p->shape[d];
  return n;
}

static void* at(const YokeWrapped* w, void* array, int64_t i) {
  return (char*)array + i * w->item;
}

static double get(const YokeWrapped* w, const void* array, int64_t i) {
  return w->item == 8 ? ((const double*)array)[i] : ((const float*)array)[i];
}

static void set(const YokeWrapped* w, void* array, int64_t i, double value) {
  if (w->item == 8) {
    ((double*)array)[i] = value;
  } else {
    ((float*)array)[i] = (float)value;
  }
}

/* A compact tensor in memory of ours. */
static YokeTensor view(void* data, int32_t dtype, const int64_t* shape, int32_t ndim) {
  YokeTensor t = {.data = data, .ndim = ndim, .device = {YOKE_DEVICE_CPU, 0}};
  t.dtype.code = (uint8_t)(dtype >> 8);
  t.dtype.bits = (uint8_t)(dtype & 0xff);
  t.dtype.lanes = 1;
  t.shape = (int64_t*)(uintptr_t)shape; /* DLPack knows no const */
  return t;
}

static void release(YokeManagedTensor** t) {
  if (*t != NULL && (*t)->deleter != NULL) (*t)->deleter(*t);
  *t = NULL;
}

static void destroy_model(YokeWrapped** model) {
  YokeWrapped* w = model == NULL ? NULL : *model;
  if (w == NULL) return;
  while (w->bound > 0) w->model->bind_param(w->model->ctx, --w->bound, NULL, NULL);
  free(w->value);
  free(w->block);
  free(w->begin);
  free(w);
  *model = NULL;
}

static void* zeros(int64_t n, int64_t item) {
  return calloc((size_t)n + 1, (size_t)item);
}

/* All memory of the run: value | grad | moment 0 | moment 1 in one piece. */
static int32_t allocate(YokeWrapped* w, YokeError* err) {
  const YokeOptimizer* o = &w->context->optimizer;
  if (o->kind == YOKE_ADAMW) {
    w->kind[0] = "exp_avg";
    w->kind[1] = "exp_avg_sq";
  } else if (o->momentum != 0) {
    w->kind[0] = "momentum";
  }
  w->begin = zeros(w->num_params, sizeof *w->begin);
  w->block = zeros(w->num_blocks, sizeof *w->block);
  for (int trainable = 1; trainable >= 0 && w->begin != NULL; --trainable) {
    for (int64_t i = 0; i < w->num_params; ++i) {
      if ((param(w, i)->trainable != 0) != trainable) continue;
      w->begin[i] = w->size;
      w->size += count(param(w, i));
    }
    if (trainable) w->trainable = w->size;
  }
  w->value = zeros(w->size + 3 * w->trainable, w->item);
  if (w->begin == NULL || w->block == NULL || w->value == NULL)
    return fail(err, YOKE_RESOURCE_EXHAUSTED, "serial: out of memory");
  w->grad = at(w, w->value, w->size);
  w->moment[0] = at(w, w->grad, w->trainable);
  w->moment[1] = at(w, w->moment[0], w->trainable);
  return YOKE_OK;
}

/* The host gives the initial values as fp32, whatever the dtype, in ranges of any size. */
static int32_t fill_and_bind(YokeWrapped* w, int64_t i, YokeError* err) {
  const YokeModel* model = w->model;
  const YokeParameter* p = param(w, i);
  const YokeTensor t = view(at(w, w->value, w->begin[i]), p->dtype, p->shape, p->ndim);
  float part[1024];
  if (p->dtype != w->context->dtype)
    return fail(err, YOKE_INVALID_ARGUMENT, "serial: %s has not the plan's dtype", p->name.data);
  for (int64_t done = 0, n; done < count(p); done += n) {
    n = count(p) - done < 1024 ? count(p) - done : 1024;
    TRY(model->init_param(model->ctx, i, done, n, part, err));
    for (int64_t k = 0; k < n; ++k) set(w, t.data, done + k, part[k]);
  }
  TRY(model->bind_param(model->ctx, i, &t, err));
  w->bound = i + 1;
  return YOKE_OK;
}

static int32_t wrap_model(YokeContext* c,
                          const YokeModel* model,
                          YokeWrapResult* out,
                          YokeError* err) {
  YokeWrapped* w;
  int32_t code;
  if (c == NULL) return fail(err, YOKE_FAILED_PRECONDITION, "serial: wrap_model before init");
  REQUIRE(model, YOKE_ID_MODEL);
  REQUIRE(out, YOKE_ID_WRAP_RESULT);
  out->model = NULL;
  w = calloc(1, sizeof *w);
  if (w == NULL) return fail(err, YOKE_RESOURCE_EXHAUSTED, "serial: out of memory");
  w->context = c;
  w->model = model;
  w->item = c->dtype == YOKE_F64 ? 8 : 4;
  w->num_params = (int64_t)model->summary->num_params;
  w->num_blocks = (int64_t)model->summary->num_blocks;
  code = allocate(w, err);
  for (int64_t i = 0; i < w->num_params && code == YOKE_OK; ++i) code = fill_and_bind(w, i, err);
  if (code != YOKE_OK) {
    destroy_model(&w);
    return code;
  }
  out->model = w;
  out->param_bytes = w->size * w->item;
  out->grad_bytes = w->trainable * w->item;
  out->optimizer_bytes = out->grad_bytes * ((w->kind[0] != NULL) + (w->kind[1] != NULL));
  return YOKE_OK;
}

/* ---- Step: forward and backward of every micro-batch, reduce, clip, update ----------------- */

/* on_grad_ready: every micro-batch, and every block that uses a tied parameter, adds its share. */
static int32_t add_gradient(void* ctx, int64_t i, const YokeTensor* grad, YokeError* err) {
  YokeWrapped* w = ctx;
  const char* share = (const char*)grad->data + grad->byte_offset;
  void* sum;
  if (i < 0 || i >= w->num_params || !param(w, i)->trainable ||
      YOKE_DTYPE_OF(grad->dtype) != w->context->dtype)
    return fail(err, YOKE_INTERNAL, "serial: a gradient that fits no parameter: index %d", (int)i);
  sum = at(w, w->grad, w->begin[i]);
  for (int64_t k = 0, n = count(param(w, i)); k < n; ++k)
    set(w, sum, k, get(w, sum, k) + get(w, share, k));
  return YOKE_OK;
}

static int32_t check_cancel(const YokeWrapped* w, YokeError* err) {
  const YokeHost* host = w->context->host;
  return host->check_cancel(host->ctx) ? fail(err, YOKE_CANCELLED, "serial: cancelled") : YOKE_OK;
}

static int32_t forward(YokeWrapped* w, const YokeMicroBatch* micro, int32_t save, YokeError* err) {
  for (int64_t b = 0; b < w->num_blocks; ++b) {
    YokeForwardArgs args = {.header = YOKE_HEADER(YokeForwardArgs, YOKE_ID_FORWARD_ARGS)};
    YokeForwardResult out = {.header = YOKE_HEADER(YokeForwardResult, YOKE_ID_FORWARD_RESULT)};
    TRY(check_cancel(w, err));
    args.block = (uint64_t)b;
    args.micro = micro;
    args.carry_in = b > 0 ? &w->block[b - 1].carry->tensor : NULL;
    args.save = save;
    TRY(w->model->block_forward(w->model->ctx, &args, &out, err));
    w->block[b].carry = out.carry_out;
    w->block[b].saved = out.saved;
    w->sums[0] += out.loss_sum;
    w->sums[1] += out.loss_weight;
    if (!save && b > 0) release(&w->block[b - 1].carry);
  }
  return YOKE_OK;
}

static int32_t backward(YokeWrapped* w, double loss_grad, YokeError* err) {
  YokeManagedTensor* grad_out = NULL; /* of the carry between two blocks */
  int32_t code = YOKE_OK;
  for (int64_t b = w->num_blocks - 1; b >= 0 && code == YOKE_OK; --b) {
    YokeBackwardArgs args = {.header = YOKE_HEADER(YokeBackwardArgs, YOKE_ID_BACKWARD_ARGS)};
    YokeManagedTensor* grad_in = NULL;
    code = check_cancel(w, err);
    if (code != YOKE_OK) break;
    args.block = (uint64_t)b;
    args.saved = w->block[b].saved;
    args.grad_out = grad_out != NULL ? &grad_out->tensor : NULL;
    args.loss_grad = loss_grad;
    args.on_grad_ready = add_gradient;
    args.on_grad_ctx = w;
    w->block[b].saved = NULL; /* consumed, also on failure */
    code = w->model->block_backward(w->model->ctx, &args, &grad_in, err);
    release(&grad_out);
    grad_out = grad_in;
  }
  release(&grad_out);
  return code;
}

static int is_training(const YokeStepArgs* args) {
  return !(args->flags & YOKE_STEP_FORWARD_ONLY);
}

static int32_t run_micro_batch(YokeWrapped* w,
                               const YokeStepArgs* args,
                               uint64_t m,
                               YokeError* err) {
  int32_t code = forward(w, args->batch->micros[m], is_training(args), err);
  if (code == YOKE_OK && is_training(args)) code = backward(w, 1 / args->batch->token_weight, err);
  for (int64_t b = 0; b < w->num_blocks; ++b) { /* what is left, after success or failure */
    if (w->block[b].saved != NULL) w->model->drop_saved(w->model->ctx, w->block[b].saved);
    w->block[b].saved = NULL;
    release(&w->block[b].carry);
  }
  return code;
}

/* Sum over all ranks, in place; afterwards every rank holds the same bits. */
static int32_t all_reduce(
    const YokeWrapped* w, void* data, int64_t n, int32_t dtype, YokeError* err) {
  const YokeContext* c = w->context;
  const YokeTensor t = view(data, dtype, &n, 1);
  if (c->comm == NULL) return YOKE_OK;
  return c->collectives->all_reduce(c->comm, &t, YOKE_SUM, NULL, err);
}

static double norm_of_gradients(const YokeWrapped* w) {
  double squares = 0;
  for (int64_t k = 0; k < w->trainable; ++k) squares += get(w, w->grad, k) * get(w, w->grad, k);
  return sqrt(squares);
}

/* The formulas at YokeOptimizer in the contract, for one parameter. */
static void update(YokeWrapped* w, int64_t i, double clip, double lr) {
  const YokeOptimizer* o = &w->context->optimizer;
  const double keep = param(w, i)->decay ? 1 - lr * o->weight_decay : 1;
  const double correct1 = 1 - pow(o->beta1, (double)w->step);
  const double correct2 = sqrt(1 - pow(o->beta2, (double)w->step));
  for (int64_t k = w->begin[i], end = k + count(param(w, i)); k < end; ++k) {
    double g = clip * get(w, w->grad, k), change = g;
    if (o->kind == YOKE_ADAMW) {
      const double m = o->beta1 * get(w, w->moment[0], k) + (1 - o->beta1) * g;
      const double v = o->beta2 * get(w, w->moment[1], k) + (1 - o->beta2) * g * g;
      set(w, w->moment[0], k, m);
      set(w, w->moment[1], k, v);
      change = m / correct1 / (sqrt(v) / correct2 + o->eps);
    } else if (o->momentum != 0) {
      change = o->momentum * get(w, w->moment[0], k) + g;
      set(w, w->moment[0], k, change);
    }
    set(w, w->value, k, keep * get(w, w->value, k) - lr * change);
  }
}

static void update_all(YokeWrapped* w, const YokeStepArgs* args, double norm) {
  const double bound = w->context->optimizer.clip;
  const double clip = bound > 0 ? fmin(1, bound / (norm + 1e-6)) : 1;
  w->step = args->step;
  for (int64_t i = 0; i < w->num_params; ++i)
    if (param(w, i)->trainable) update(w, i, clip, args->lr);
}

static int32_t step(YokeWrapped* w, const YokeStepArgs* args, YokeStepResult* out, YokeError* err) {
  double weight, norm = NAN;
  if (w == NULL) return fail(err, YOKE_FAILED_PRECONDITION, "serial: step before wrap_model");
  REQUIRE(args, YOKE_ID_STEP_ARGS);
  REQUIRE(args->batch, YOKE_ID_BATCH);
  REQUIRE(out, YOKE_ID_STEP_RESULT);
  weight = args->batch->token_weight;
  w->sums[0] = w->sums[1] = 0;
  if (is_training(args)) memset(w->grad, 0, (size_t)(w->trainable * w->item));
  for (uint64_t m = 0; m < args->batch->num_micros; ++m) TRY(run_micro_batch(w, args, m, err));
  TRY(all_reduce(w, w->sums, 2, YOKE_F64, err));
  if (!(fabs(w->sums[1] - weight) <= 1e-9 * w->sums[1])) {
    const char* format = "serial: the batch claims %.17g targets, its losses have %.17g";
    return fail(err, YOKE_INVALID_ARGUMENT, format, weight, w->sums[1]);
  }
  if (is_training(args)) {
    TRY(all_reduce(w, w->grad, w->trainable, w->context->dtype, err));
    norm = norm_of_gradients(w);
    update_all(w, args, norm);
  }
  out->loss_sum = w->sums[0];
  out->loss_weight = w->sums[1];
  out->grad_norm = norm;
  return YOKE_OK;
}

/* ---- Checkpoint: show every array, whole, to the visitor ----------------------------------- */

/* What is being visited, and by whom. */
typedef struct Visit {
  const YokeCheckpointArgs* args;
  YokePiece piece;
} Visit;

static int32_t show(Visit* v, const char* kind, void* data, YokeError* err) {
  const YokeTensor t = view(data, v->piece.dtype, &v->piece.count, 1);
  v->piece.kind = string(kind);
  v->piece.view = v->args->op == YOKE_CHECKPOINT_DESCRIBE ? NULL : &t;
  return v->args->visit(v->args->visit_ctx, &v->piece, err);
}

static int32_t checkpoint(YokeWrapped* w, const YokeCheckpointArgs* args, YokeError* err) {
  Visit v = {.args = args, .piece = {.header = YOKE_HEADER(YokePiece, YOKE_ID_PIECE)}};
  if (w == NULL) return fail(err, YOKE_FAILED_PRECONDITION, "serial: checkpoint before wrap_model");
  REQUIRE(args, YOKE_ID_CHECKPOINT_ARGS);
  v.piece.replica = w->context->host->rank; /* every rank has all of it: rank 0's is written */
  for (int64_t i = 0; i < w->num_params; ++i) {
    const YokeParameter* p = param(w, i);
    v.piece.name = p->name;
    v.piece.shape = p->shape;
    v.piece.ndim = p->ndim;
    v.piece.dtype = p->dtype;
    v.piece.count = v.piece.run = count(p);
    TRY(show(&v, "param", at(w, w->value, w->begin[i]), err));
    for (int m = 0; m < 2 && w->kind[m] != NULL && p->trainable; ++m)
      TRY(show(&v, w->kind[m], at(w, w->moment[m], w->begin[i]), err));
  }
  v.piece.name = string("optimizer");
  v.piece.ndim = 0;
  v.piece.dtype = YOKE_I64;
  v.piece.count = v.piece.run = 1;
  return show(&v, "step", &w->step, err);
}

/* ---- The table: all that the host sees ----------------------------------------------------- */

const ParallelBackend* parallel_backend_entry_v1(uint32_t host_minor, YokeError* err) {
  static const ParallelBackend table = {
      .header = YOKE_HEADER(ParallelBackend, YOKE_ID_BACKEND),
      .abi_major = YOKE_ABI_MAJOR,
      .abi_minor = YOKE_ABI_MINOR,
      .describe = describe,
      .plan = plan,
      .init = init,
      .wrap_model = wrap_model,
      .step = step,
      .checkpoint = checkpoint,
      .destroy_model = destroy_model,
      .destroy = destroy,
  };
  (void)host_minor; /* any host of major version 1 will do */
  (void)err;
  return &table;
}
