/* The plugin in the matrix of old and new hosts and plugins: a backend for one rank with SGD, as
 * short as possible.
 *
 * Compiled against the frozen header, it is an old plugin. Compiled against the header that
 * old_new.py makes, it is a new one. In that header, every struct that may grow ends with a field
 * "later", the function table has a slot of that name, and YOKE_LATER is defined. With CARELESS, it
 * writes results without checking the size that the caller gave. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "yoke/parallel_backend.h"

struct YokeContext {
  double lr;
};
struct YokeWrapped {
  const YokeModel* model;
  float* param;
  float* grad;
  int64_t count;
  int64_t step;
};

/* Copies a result into the memory of the host, which may know fewer or more fields than the plugin.
 * Leaves the header of *out unchanged. */
static void give(void* out, const void* ours, uint32_t our_size) {
#ifdef CARELESS
  memcpy((char*)out + sizeof(YokeHeader),
         (const char*)ours + sizeof(YokeHeader),
         our_size - sizeof(YokeHeader));
#else
  uint32_t size = ((YokeHeader*)out)->struct_size;
  if (size > our_size) size = our_size;
  memcpy((char*)out + sizeof(YokeHeader),
         (const char*)ours + sizeof(YokeHeader),
         size - sizeof(YokeHeader));
#endif
}

static int32_t describe(const YokeDescription** out, YokeError* err) {
  static const int32_t dtypes[] = {YOKE_F32};
  static YokeDescription d = {YOKE_HEADER(YokeDescription, YOKE_ID_DESCRIPTION)};
  const YokeString name = YOKE_STRING("plugin");
  (void)err;
  d.name = name;
  d.param_dtypes = dtypes;
  d.num_param_dtypes = 1;
#ifdef YOKE_LATER
  d.later = 7;
#endif
  *out = &d;
  return YOKE_OK;
}

static int32_t plan(const YokePlanArgs* args, YokePlan* plan_, YokeError* err) {
  int i;
  if (plan_->world_size != 1) {
    YokeError e = {YOKE_HEADER(YokeError, YOKE_ID_ERROR)};
    YokeRefusal r = {YOKE_HEADER(YokeRefusal, YOKE_ID_REFUSAL)};
    const YokeString key = YOKE_STRING("nproc");
    r.key = key;
#ifdef YOKE_LATER
    r.later = 7;
    e.later = 7;
#endif
    args->refuse(args->refuse_ctx, &r);
    e.code = YOKE_INVALID_ARGUMENT;
    e.rank = -1;
    e.step = -1;
    strcpy(e.text, "one rank only");
    give(err, &e, sizeof e);
    return e.code;
  }
  for (i = 0; i < YOKE_NUM_AXES; ++i) plan_->degree[i] = 1;
#ifdef YOKE_LATER
  if (YOKE_HAS(YokePlan, plan_, later)) plan_->later += 1;
#endif
  return YOKE_OK;
}

static int32_t init(const YokeInitArgs* args, YokeContext** out, YokeError* err) {
  const YokeString line = YOKE_STRING("init");
  (void)err;
  *out = calloc(1, sizeof **out);
  (*out)->lr = args->plan->optimizer->lr;
#ifdef YOKE_LATER
  if (YOKE_HAS(YokeInitArgs, args, later)) (*out)->lr += (double)(args->later - 7);
  if (YOKE_HAS(YokeHost, args->host, later)) (*out)->lr += (double)(args->host->later - 7);
#endif
  args->host->log(args->host->ctx, YOKE_LOG_INFO, line);
  return YOKE_OK;
}

static int32_t wrap_model(YokeContext* context,
                          const YokeModel* model,
                          YokeWrapResult* out,
                          YokeError* err) {
  YokeWrapResult r = {YOKE_HEADER(YokeWrapResult, YOKE_ID_WRAP_RESULT)};
  YokeWrapped* w = calloc(1, sizeof *w);
  (void)context;
  w->model = model;
  w->count = model->summary->params[0]->shape[0];
  w->param = malloc(sizeof(float) * (size_t)w->count);
  w->grad = malloc(sizeof(float) * (size_t)w->count);
  r.model = w;
  r.param_bytes = w->count * 4;
#ifdef YOKE_LATER
  /* This field is newer than version 1.0, so the block of an old host ends before it. */
  if (YOKE_HAS(YokeBlock, model->summary->blocks[0], forward_flops))
    r.later = (int64_t)model->summary->blocks[0]->forward_flops;
#endif
  give(out, &r, sizeof r);
  return model->init_param(model->ctx, 0, 0, w->count, w->param, err);
}

static int32_t add_gradient(void* ctx, int64_t param, const YokeTensor* grad, YokeError* err) {
  YokeWrapped* w = ctx;
  int64_t i;
  (void)param;
  (void)err;
  for (i = 0; i < w->count; ++i) w->grad[i] += ((const float*)grad->data)[i];
  return YOKE_OK;
}

static int32_t one_micro(YokeWrapped* w,
                         const YokeMicroBatch* micro,
                         double weight,
                         YokeStepResult* sums,
                         YokeError* err) {
  const YokeModel* m = w->model;
  YokeForwardArgs forward = {YOKE_HEADER(YokeForwardArgs, YOKE_ID_FORWARD_ARGS)};
  YokeForwardResult result = {YOKE_HEADER(YokeForwardResult, YOKE_ID_FORWARD_RESULT)};
  YokeBackwardArgs backward = {YOKE_HEADER(YokeBackwardArgs, YOKE_ID_BACKWARD_ARGS)};
  YokeManagedTensor* none = NULL;
  int32_t code;
  forward.micro = micro;
  forward.save = 1;
#ifdef YOKE_LATER
  forward.later = 7;
  backward.later = 7;
#endif
  code = m->block_forward(m->ctx, &forward, &result, err);
  if (code != YOKE_OK) return code;
  sums->loss_sum += result.loss_sum;
  sums->loss_weight += result.loss_weight;
  backward.saved = result.saved;
  backward.loss_grad = 1 / weight;
  backward.on_grad_ready = add_gradient;
  backward.on_grad_ctx = w;
  return m->block_backward(m->ctx, &backward, &none, err);
}

static int32_t step(YokeWrapped* w, const YokeStepArgs* args, YokeStepResult* out, YokeError* err) {
  YokeStepResult r = {YOKE_HEADER(YokeStepResult, YOKE_ID_STEP_RESULT)};
  YokeTensor view = {0};
  uint64_t i;
  int64_t k;
  view.data = w->param;
  view.device.type = YOKE_DEVICE_CPU;
  view.ndim = 1;
  view.dtype.code = YOKE_CODE_FLOAT;
  view.dtype.bits = 32;
  view.dtype.lanes = 1;
  view.shape = &w->count;
  memset(w->grad, 0, sizeof(float) * (size_t)w->count);
  w->model->bind_param(w->model->ctx, 0, &view, err);
  for (i = 0; i < args->batch->num_micros; ++i) {
    const int32_t code = one_micro(w, args->batch->micros[i], args->batch->token_weight, &r, err);
    if (code != YOKE_OK) return code;
  }
  w->model->bind_param(w->model->ctx, 0, NULL, err);
  for (k = 0; k < w->count; ++k) {
    r.grad_norm += (double)w->grad[k] * w->grad[k];
    w->param[k] -= (float)args->lr * w->grad[k];
  }
  r.grad_norm = sqrt(r.grad_norm);
  w->step = args->step;
#ifdef YOKE_LATER
  r.later = YOKE_HAS(YokeStepArgs, args, later) ? args->later : 0;
  /* These fields are newer than version 1.0. */
  r.loss_scale = YOKE_HAS(YokeStepArgs, args, loss_scale) ? args->loss_scale : 0;
  r.skipped = 1;
#endif
  give(out, &r, sizeof r);
  return YOKE_OK;
}

static int32_t checkpoint(YokeWrapped* w, const YokeCheckpointArgs* args, YokeError* err) {
  YokePiece p = {YOKE_HEADER(YokePiece, YOKE_ID_PIECE)};
  YokeTensor view = {0};
  const YokeString name = YOKE_STRING("w"), kind = YOKE_STRING("param");
  view.data = w->param;
  view.shape = &w->count;
  view.ndim = 1;
  p.name = name;
  p.kind = kind;
  p.shape = &w->count;
  p.ndim = 1;
  p.dtype = YOKE_F32;
  p.count = p.run = w->count;
  p.view = args->op == YOKE_CHECKPOINT_DESCRIBE ? NULL : &view;
#ifdef YOKE_LATER
  p.later = 7;
#endif
  return args->visit(args->visit_ctx, &p, err);
}

static void destroy_model(YokeWrapped** model) {
  if (model == NULL || *model == NULL) return;
  free((*model)->param);
  free((*model)->grad);
  free(*model);
  *model = NULL;
}

static void destroy(YokeContext** context) {
  if (context == NULL || *context == NULL) return;
  free(*context);
  *context = NULL;
}

#ifdef YOKE_LATER
static int32_t later(int64_t value) {
  return (int32_t)value + 1;
}
#endif

const ParallelBackend* parallel_backend_entry_v1(uint32_t host_minor, YokeError* err) {
  static ParallelBackend table = {YOKE_HEADER(ParallelBackend, YOKE_ID_BACKEND)};
  (void)host_minor;
  (void)err;
  table.abi_major = YOKE_ABI_MAJOR;
  table.abi_minor = YOKE_ABI_MINOR;
  table.describe = describe;
  table.plan = plan;
  table.init = init;
  table.wrap_model = wrap_model;
  table.step = step;
  table.checkpoint = checkpoint;
  table.destroy_model = destroy_model;
  table.destroy = destroy;
#ifdef YOKE_LATER
  table.later = later;
#endif
  return &table;
}
