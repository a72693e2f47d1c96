/* The backend `serial` with exactly one fault, which a macro selects at compile time. The code of
 * serial is unchanged: the fault is added in the collectives and callbacks that are passed to
 * serial. */
#include "yoke/parallel_backend.h"
#if defined(FAULT_OWN_UPDATE) /* declares a rule of its own, and does not reduce its gradients */
#define FAULT_MISSING_REDUCTION
#endif
#define parallel_backend_entry_v1 serial_entry
#include "sdk/examples/serial.c"
#undef parallel_backend_entry_v1
#include <unistd.h>

static const YokeHost* real_host;
static YokeHost host;
static YokeCollectives real, faulty;
static const YokeModel* real_model;
static YokeModel faulty_model;
static double bound;        /* gradient clip of the run */
static uint64_t num_micros; /* micro-batches of the current step */
static double last_weight;  /* number of targets of the last micro-batch that had a loss */

/* ---- Gradients ----
 *
 * reduce() replaces every all_reduce of serial, except for the one of the loss and the target
 * count. */

static int32_t real_all_reduce(YokeComm* comm, const YokeTensor* inout, YokeError* err) {
  return real.all_reduce(comm, inout, YOKE_SUM, NULL, err);
}

static void scale(float* g, int64_t n, double factor) {
  for (int64_t i = 0; i < n; ++i) g[i] = (float)(g[i] * factor);
}

#if defined(FAULT_MISSING_REDUCTION)
static int32_t reduce(YokeComm* comm, const YokeTensor* inout, YokeError* err) {
  (void)comm, (void)inout, (void)err;
  return YOKE_OK;
}
#elif defined(FAULT_DOUBLE_REDUCTION)
static int32_t reduce(YokeComm* comm, const YokeTensor* inout, YokeError* err) {
  YOKE_TRY(real_all_reduce(comm, inout, err));
  return real_all_reduce(comm, inout, err);
}
#elif defined(FAULT_LOCAL_CLIP)
static int32_t reduce(YokeComm* comm, const YokeTensor* inout, YokeError* err) {
  float* g = inout->data;
  double squares = 0;
  for (int64_t i = 0; i < inout->shape[0]; ++i) squares += (double)g[i] * g[i];
  scale(g, inout->shape[0], fmin(1, bound / (real.size(comm) * sqrt(squares))));
  return real_all_reduce(comm, inout, err);
}
#elif defined(FAULT_LOW_PRECISION)
static int32_t reduce(YokeComm* comm, const YokeTensor* inout, YokeError* err) {
  const int64_t n = inout->shape[0];
  uint32_t* bits = inout->data;
  uint16_t* half = malloc((size_t)n * sizeof *half);
  YokeTensor t = *inout;
  int32_t code;
  if (half == NULL) return yoke_fail(err, YOKE_RESOURCE_EXHAUSTED, "out of memory");
  for (int64_t i = 0; i < n; ++i)
    half[i] = (uint16_t)((bits[i] + 0x7fffu + (bits[i] >> 16 & 1)) >> 16);
  t.data = half;
  t.dtype.code = YOKE_CODE_BFLOAT;
  t.dtype.bits = 16;
  code = real_all_reduce(comm, &t, err);
  for (int64_t i = 0; i < n; ++i) bits[i] = (uint32_t)half[i] << 16;
  free(half);
  return code;
}
#elif defined(FAULT_ROUNDING)
/* This is not a fault: it only changes rounding errors, which a comparison must accept. */
static int32_t reduce(YokeComm* comm, const YokeTensor* inout, YokeError* err) {
  scale(inout->data, inout->shape[0], 3);
  YOKE_TRY(real_all_reduce(comm, inout, err));
  scale(inout->data, inout->shape[0], 1 / 3.);
  return YOKE_OK;
}
#else
static int32_t reduce(YokeComm* comm, const YokeTensor* inout, YokeError* err) {
  return real_all_reduce(comm, inout, err);
}
#endif

static int32_t faulty_all_reduce(
    YokeComm* comm, const YokeTensor* inout, int32_t op, YokeWork** work, YokeError* err) {
  (void)op, (void)work; /* serial always sums, and always waits */
  (void)scale;
  return inout->shape[0] == 2 ? real_all_reduce(comm, inout, err) : reduce(comm, inout, err);
}

static const YokeHeader* get_service(void* ctx, const char* name, uint64_t min_size) {
  const YokeCollectives* found = (const void*)real_host->get_service(ctx, name, min_size);
  if (found == NULL) return NULL;
  real = faulty = *found;
  faulty.all_reduce = faulty_all_reduce;
  return &faulty.header;
}

static int32_t faulty_init(const YokeInitArgs* args, YokeContext** out, YokeError* err) {
  YokeInitArgs mine = *args;
  real_host = args->host;
  bound = args->plan->optimizer->clip;
  host = *real_host;
  host.get_service = get_service;
  mine.host = &host;
  return init(&mine, out, err);
}

/* ---- The model ---- */

static int32_t init_param(
    void* ctx, int64_t param, int64_t begin, int64_t n, float* dst, YokeError* err) {
  YOKE_TRY(real_model->init_param(ctx, param, begin, n, dst, err));
#if defined(FAULT_INITIAL_VALUES)
  if (param == 5) scale(dst, n, 1.001);
#endif
  return YOKE_OK;
}

static int32_t block_forward(void* ctx,
                             const YokeForwardArgs* args,
                             YokeForwardResult* out,
                             YokeError* err) {
  YOKE_TRY(real_model->block_forward(ctx, args, out, err));
  if (out->loss_weight > 0) last_weight = out->loss_weight;
  return YOKE_OK;
}

static int32_t block_backward(void* ctx,
                              const YokeBackwardArgs* args,
                              YokeManagedTensor** grad_in,
                              YokeError* err) {
  YokeBackwardArgs mine = *args;
#if defined(FAULT_MEAN_OF_MEANS)
  mine.loss_grad = 1 / (last_weight * (double)num_micros * real_host->world_size);
#endif
  return real_model->block_backward(ctx, &mine, grad_in, err);
}

static int32_t faulty_wrap_model(YokeContext* c,
                                 const YokeModel* model,
                                 YokeWrapResult* out,
                                 YokeError* err) {
  real_model = model;
  faulty_model = *model;
  faulty_model.init_param = init_param;
  faulty_model.block_forward = block_forward;
  faulty_model.block_backward = block_backward;
  return wrap_model(c, &faulty_model, out, err);
}

/* ---- The batch ---- */

#if defined(FAULT_SAME_SAMPLES)
/* Trains on the samples of rank 0 on every rank. The memory of the host is not modified. */
static int32_t faulty_step(YokeWrapped* w,
                           const YokeStepArgs* args,
                           YokeStepResult* out,
                           YokeError* err) {
  YokeStepArgs my_args = *args;
  YokeBatch batch = *args->batch;
  YokeMicroBatch micro = *batch.micros[0];
  const YokeMicroBatch* micros = &micro;
  YokeInput inputs[8];
  int32_t code = YOKE_OK;
  for (uint64_t i = 0; i < micro.num_inputs; ++i) {
    YokeTensor* t = &inputs[i].tensor;
    const size_t bytes =
        (size_t)(micro.inputs[i].tensor.shape[0] * micro.inputs[i].tensor.shape[1]) * 8;
    inputs[i] = micro.inputs[i];
    t->data = malloc(bytes);
    t->strides = NULL;
    memcpy(t->data, micro.inputs[i].tensor.data, bytes);
    if (w->context->replicas.comm != NULL)
      code = real.broadcast(w->context->replicas.comm, t, 0, NULL, err);
  }
  micro.inputs = inputs;
  batch.micros = &micros;
  batch.num_micros = num_micros = 1;
  my_args.batch = &batch;
  if (code == YOKE_OK) code = step(w, &my_args, out, err);
  for (uint64_t i = 0; i < micro.num_inputs; ++i) free(inputs[i].tensor.data);
  return code;
}
#else
static int32_t faulty_step(YokeWrapped* w,
                           const YokeStepArgs* args,
                           YokeStepResult* out,
                           YokeError* err) {
  num_micros = args->batch->num_micros;
#if defined(FAULT_WRONG_UPDATE) /* the rate of the first step in all steps */
  YokeStepArgs mine = *args;
  if (args->step > 1) mine.lr /= (double)args->step;
  args = &mine;
#endif
#if defined(FAULT_HANG)
  if (args->step == 3) pause();
#elif defined(FAULT_CRASH)
  if (args->step == 3) abort();
#elif defined(FAULT_CRASH_ALONE)
  if (real_host->world_size == 1) abort();
#endif
  return step(w, args, out, err);
}
#endif

/* ---- The function table ---- */

static int32_t faulty_describe(const YokeDescription** out, YokeError* err) {
  static YokeDescription description;
  YOKE_TRY(describe(out, err));
  description = **out;
  description.name = yoke_string(FAULT_NAME);
#if defined(FAULT_UNDECLARED) /* serial supports more than this description declares */
  static const int32_t dtypes[] = {YOKE_F64};
  description.axes = 0;
  description.param_dtypes = dtypes;
  description.num_param_dtypes = 1;
#elif defined(FAULT_OWN_UPDATE)
  description.traits |= YOKE_OWN_UPDATE;
#endif
  *out = &description;
  return YOKE_OK;
}

const ParallelBackend* parallel_backend_entry_v1(uint32_t host_minor, YokeError* err) {
  static ParallelBackend table;
  table = *serial_entry(host_minor, err);
  table.describe = faulty_describe;
  table.init = faulty_init;
  table.wrap_model = faulty_wrap_model;
  table.step = faulty_step;
  return &table;
}
