/* The host in the matrix of old and new hosts and plugins. It trains four numbers towards a batch
 * and prints what the plugin returns.
 *
 * Every struct that it passes to the plugin is allocated separately, so that AddressSanitizer
 * detects a write past its end. With YOKE_LATER, the host is compiled against the header of a later
 * minor version, see plugin.c. Lines of output that start with "later" depend on both sides. All
 * other lines must be equal for every pair. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "yoke/parallel_backend.h"

enum { kCount = 4 };

static const float* bound;

static void* made(uint32_t size, uint32_t id) {
  YokeHeader* h = calloc(1, size);
  h->struct_size = size;
  h->struct_id = id;
  return h;
}
#define NEW(Type, id) ((Type*)made((uint32_t)sizeof(Type), id))

static void log_line(void* ctx, int32_t level, YokeString text) {
  (void)ctx;
  printf("log %d %s\n", level, text.data);
}
static int32_t check_cancel(void* ctx) {
  (void)ctx;
  return 0;
}
static const YokeHeader* get_service(void* ctx, const char* name, uint64_t min_size) {
  (void)ctx;
  (void)name;
  (void)min_size;
  return NULL;
}
static void refuse(void* ctx, const YokeRefusal* r) {
  (void)ctx;
  printf("refused %s\n", r->key.data);
#ifdef YOKE_LATER
  printf("later refusal %d\n", YOKE_HAS(YokeRefusal, r, later) ? (int)r->later : 0);
#endif
}

static int32_t init_param(
    void* ctx, int64_t param, int64_t begin, int64_t count, float* dst, YokeError* err) {
  int64_t i;
  (void)ctx;
  (void)param;
  (void)err;
  for (i = 0; i < count; ++i) dst[i] = (float)(begin + i);
  return YOKE_OK;
}
static int32_t bind_param(void* ctx, int64_t param, const YokeTensor* view, YokeError* err) {
  (void)ctx;
  (void)param;
  (void)err;
  bound = view == NULL ? NULL : view->data;
  return YOKE_OK;
}
/* Computes loss = sum over i of (w[i] - x[i])^2, where x is the input of the micro-batch. */
static int32_t block_forward(void* ctx,
                             const YokeForwardArgs* args,
                             YokeForwardResult* out,
                             YokeError* err) {
  const float* x = args->micro->inputs[0].tensor.data;
  int i;
  (void)ctx;
  (void)err;
  out->carry_out = NULL;
  out->saved = (void*)args->micro;
  out->loss_sum = 0;
  out->loss_weight = kCount;
  for (i = 0; i < kCount; ++i) out->loss_sum += (double)(bound[i] - x[i]) * (bound[i] - x[i]);
#ifdef YOKE_LATER
  if (YOKE_HAS(YokeForwardResult, out, later)) out->later = 7;
  if (YOKE_HAS(YokeForwardArgs, args, later) && args->later != 7) return YOKE_INTERNAL;
#endif
  return YOKE_OK;
}
static int32_t block_backward(void* ctx,
                              const YokeBackwardArgs* args,
                              YokeManagedTensor** grad_in,
                              YokeError* err) {
  const YokeMicroBatch* micro = args->saved;
  const float* x = micro->inputs[0].tensor.data;
  float grad[kCount];
  int64_t count = kCount;
  YokeTensor view = {0};
  int i;
  (void)ctx;
  for (i = 0; i < kCount; ++i) grad[i] = (float)(2 * (bound[i] - x[i]) * args->loss_grad);
  view.data = grad;
  view.ndim = 1;
  view.shape = &count;
  *grad_in = NULL;
  return args->on_grad_ready(args->on_grad_ctx, 0, &view, err);
}
static void drop_saved(void* ctx, void* saved) {
  (void)ctx;
  (void)saved;
}

static int32_t visit(void* ctx, const YokePiece* p, YokeError* err) {
  int64_t i;
  (void)ctx;
  (void)err;
  printf("piece %s %s %d", p->name.data, p->kind.data, (int)p->count);
  for (i = 0; p->view != NULL && i < p->count; ++i)
    printf(" %.9g", ((const float*)p->view->data)[i]);
  printf("\n");
#ifdef YOKE_LATER
  printf("later piece %d\n", YOKE_HAS(YokePiece, p, later) ? (int)p->later : 0);
#endif
  return YOKE_OK;
}

/* Copies the table as a host does: the part that both sides know. Fields that only the host knows
 * stay 0. */
static ParallelBackend taken(const ParallelBackend* theirs) {
  ParallelBackend table;
  uint32_t size = theirs->header.struct_size < sizeof table ? theirs->header.struct_size
                                                            : (uint32_t)sizeof table;
  memset(&table, 0, sizeof table);
  memcpy(&table, theirs, size);
  return table;
}

static void must(int32_t code, const char* what) {
  if (code == YOKE_OK) return;
  printf("%s ended with %d\n", what, code);
  exit(1);
}

static YokePlan* planned(const ParallelBackend* backend,
                         const YokeModelSummary* summary,
                         YokeError* err) {
  YokePlanArgs* args = NEW(YokePlanArgs, YOKE_ID_PLAN_ARGS);
  YokePlan* plan = NEW(YokePlan, YOKE_ID_PLAN);
  YokeOptimizer* optimizer = NEW(YokeOptimizer, YOKE_ID_OPTIMIZER);
  args->model = summary;
  args->refuse = refuse;
  optimizer->kind = YOKE_SGD;
  optimizer->lr = 0.5;
  plan->optimizer = optimizer;
  plan->param_dtype = YOKE_F32;
  plan->world_size = 2;
  printf("two ranks %d %s\n", backend->plan(args, plan, err), err->text);
#ifdef YOKE_LATER
  printf("later error %d\n", (int)err->later);
#endif
  plan->world_size = 1;
  must(backend->plan(args, plan, err), "plan");
  printf("degrees %d %d\n", plan->degree[0], plan->degree[YOKE_NUM_AXES - 1]);
#ifdef YOKE_LATER
  printf("later plan %d\n", (int)plan->later);
#endif
  free(args);
  return plan;
}

static void train(const ParallelBackend* backend, YokeWrapped* wrapped, YokeError* err) {
  float x[2][kCount] = {{1, 2, 3, 4}, {0, 0, 2, 2}};
  int64_t count = kCount, n;
  YokeInput inputs[2];
  YokeMicroBatch micros[2];
  const YokeMicroBatch* both[2];
  YokeBatch* batch = NEW(YokeBatch, YOKE_ID_BATCH);
  YokeStepArgs* args = NEW(YokeStepArgs, YOKE_ID_STEP_ARGS);
  YokeStepResult* result = NEW(YokeStepResult, YOKE_ID_STEP_RESULT);
  const YokeString role = YOKE_STRING("x");
  int i;
  memset(inputs, 0, sizeof inputs);
  for (i = 0; i < 2; ++i) {
    inputs[i].role = role;
    inputs[i].tensor.data = x[i];
    inputs[i].tensor.ndim = 1;
    inputs[i].tensor.shape = &count;
    micros[i].header.struct_size = (uint32_t)sizeof micros[i];
    micros[i].header.struct_id = YOKE_ID_MICRO_BATCH;
    micros[i].header.next = NULL;
    micros[i].token_weight = kCount;
    micros[i].inputs = &inputs[i];
    micros[i].num_inputs = 1;
    both[i] = &micros[i];
  }
  batch->micros = both;
  batch->num_micros = 2;
  batch->token_weight = 2 * kCount;
  args->batch = batch;
  args->lr = 0.5;
#ifdef YOKE_LATER
  args->later = 7;
  args->loss_scale = 7;
#endif
  for (n = 1; n <= 3; ++n) {
    args->step = n;
    must(backend->step(wrapped, args, result, err), "step");
    printf("step %d loss %.17g norm %.17g\n",
           (int)n,
           result->loss_sum / result->loss_weight,
           result->grad_norm);
#ifdef YOKE_LATER
    printf("later step %d\n", (int)result->later);
    printf("later loss scale %d\n", (int)result->loss_scale);
    printf("later skipped %d\n", (int)result->skipped);
#endif
  }
  free(batch);
  free(args);
  free(result);
}

/* The model that the backend gets: one parameter "w" of kCount numbers, in one block. */
typedef struct Parts {
  int64_t shape, index;
  YokeParameter* parameter;
  YokeBlock* block;
  const YokeParameter* params[1];
  const YokeBlock* blocks[1];
  YokeModelSummary* summary;
} Parts;

/* Fills *p. Afterwards *p contains pointers into itself and must not be copied. */
static void make_summary(Parts* p) {
  const YokeString name = YOKE_STRING("w");
  p->shape = kCount;
  p->index = 0;
  p->parameter = NEW(YokeParameter, YOKE_ID_PARAMETER);
  p->parameter->name = name;
  p->parameter->shape = &p->shape;
  p->parameter->ndim = 1;
  p->parameter->dtype = YOKE_F32;
  p->parameter->trainable = 1;
  p->block = NEW(YokeBlock, YOKE_ID_BLOCK);
  p->block->name = name;
  p->block->params = &p->index;
  p->block->num_params = 1;
#ifdef YOKE_LATER
  p->block->forward_flops = 7;
#endif
  p->params[0] = p->parameter;
  p->blocks[0] = p->block;
  p->summary = NEW(YokeModelSummary, YOKE_ID_MODEL_SUMMARY);
  p->summary->params = p->params;
  p->summary->num_params = 1;
  p->summary->blocks = p->blocks;
  p->summary->num_blocks = 1;
}

static void free_summary(const Parts* p) {
  free(p->parameter);
  free(p->block);
  free(p->summary);
}

static YokeModel* make_model(const YokeModelSummary* summary) {
  YokeModel* model = NEW(YokeModel, YOKE_ID_MODEL);
  model->summary = summary;
  model->init_param = init_param;
  model->bind_param = bind_param;
  model->block_forward = block_forward;
  model->block_backward = block_backward;
  model->drop_saved = drop_saved;
  return model;
}

static YokeHost* make_host(void) {
  YokeHost* host = NEW(YokeHost, YOKE_ID_HOST);
  host->log = log_line;
  host->check_cancel = check_cancel;
  host->get_service = get_service;
  host->world_size = 1;
#ifdef YOKE_LATER
  host->later = 7;
#endif
  return host;
}

static YokeContext* start(const ParallelBackend* backend,
                          const YokePlan* plan,
                          const YokeHost* host,
                          YokeError* err) {
  YokeInitArgs* args = NEW(YokeInitArgs, YOKE_ID_INIT_ARGS);
  YokeContext* context = NULL;
  args->plan = plan;
  args->host = host;
#ifdef YOKE_LATER
  args->later = 7;
#endif
  must(backend->init(args, &context, err), "init");
  free(args);
  return context;
}

/* Wraps the model, trains it, saves it, and destroys it. */
static void use_model(const ParallelBackend* backend,
                      YokeContext* context,
                      const YokeModel* model,
                      YokeError* err) {
  YokeWrapResult* wrapped = NEW(YokeWrapResult, YOKE_ID_WRAP_RESULT);
  YokeCheckpointArgs* save = NEW(YokeCheckpointArgs, YOKE_ID_CHECKPOINT_ARGS);
  must(backend->wrap_model(context, model, wrapped, err), "wrap_model");
  printf("bytes %d\n", (int)wrapped->param_bytes);
  train(backend, wrapped->model, err);
  save->op = YOKE_CHECKPOINT_SAVE;
  save->visit = visit;
  must(backend->checkpoint(wrapped->model, save, err), "checkpoint");
  backend->destroy_model(&wrapped->model);
#ifdef YOKE_LATER
  printf("later wrapped %d\n", (int)wrapped->later);
#endif
  free(wrapped);
  free(save);
}

int main(void) {
  YokeError* err = NEW(YokeError, YOKE_ID_ERROR);
  const ParallelBackend backend = taken(parallel_backend_entry_v1(YOKE_ABI_MINOR, err));
  const YokeDescription* description = NULL;
  Parts parts;
  YokePlan* plan;
  YokeHost* host;
  YokeModel* model;
  YokeContext* context;

  must(backend.describe(&description, err), "describe");
  printf("backend %s %d\n", description->name.data, (int)description->num_param_dtypes);
  make_summary(&parts);
  plan = planned(&backend, parts.summary, err);
  host = make_host();
  context = start(&backend, plan, host, err);
  model = make_model(parts.summary);
  use_model(&backend, context, model, err);
  backend.destroy(&context);
#ifdef YOKE_LATER
  printf("later description %d\n",
         YOKE_HAS(YokeDescription, description, later) ? (int)description->later : 0);
  if (backend.later != NULL) printf("later slot %d\n", backend.later(7));
#endif
  free((void*)plan->optimizer);
  free(plan);
  free(host);
  free(model);
  free_summary(&parts);
  free(err);
  return 0;
}
