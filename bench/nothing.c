/* A backend whose step does nothing, so the time of a step is the overhead of the host. Every loss
 * is 1. It holds the state of the model, because the host starts no run without one. */
#include <yoke/flat.h>

struct YokeContext {
  YokeInitArgs args; /* what it points to lives until destroy returns */
};
struct YokeWrapped {
  YokeFlat flat;
};

static YokeContext the_context;
static YokeWrapped the_model;

static const int32_t kDtypes[] = {YOKE_F32, YOKE_F64};

static const YokeDescription kDescription = {
    .header = YOKE_HEADER(YokeDescription, YOKE_ID_DESCRIPTION),
    .name = YOKE_STRING("nothing"),
    .version = YOKE_STRING("1"),
    .vendor = YOKE_STRING("bench"),
    .summary = YOKE_STRING("does nothing, to measure what the host costs"),
    .torch_tag = YOKE_STRING(""),
    .param_dtypes = kDtypes,
    .num_param_dtypes = 2,
    .axes = YOKE_AXIS_BIT(YOKE_DP_REPLICATE),
    .devices = 1u << YOKE_DEVICE_CPU,
    .zero_stages = 1, /* bit 0: stage 0 only */
};

static int32_t describe(const YokeDescription** out, YokeError* err) {
  (void)err;
  *out = &kDescription;
  return YOKE_OK;
}

static int32_t plan(const YokePlanArgs* args, YokePlan* run, YokeError* err) {
  (void)args;
  (void)run;
  (void)err;
  return YOKE_OK;
}

static int32_t init(const YokeInitArgs* args, YokeContext** out, YokeError* err) {
  (void)err;
  the_context.args = *args;
  *out = &the_context;
  return YOKE_OK;
}

static int32_t wrap_model(YokeContext* context,
                          const YokeModel* model,
                          YokeWrapResult* out,
                          YokeError* err) {
  /* plugin_call measures the calls alone, without a model. */
  if (model->summary != NULL)
    YOKE_TRY(yoke_flat_make(&the_model.flat, model, context->args.plan, err));
  out->model = &the_model;
  return YOKE_OK;
}

static int32_t step(YokeWrapped* model,
                    const YokeStepArgs* args,
                    YokeStepResult* out,
                    YokeError* err) {
  (void)model;
  (void)err;
  out->loss_sum = args->batch->token_weight;
  out->loss_weight = args->batch->token_weight;
  out->grad_norm = 1;
  return YOKE_OK;
}

static int32_t checkpoint(YokeWrapped* model, const YokeCheckpointArgs* args, YokeError* err) {
  return yoke_flat_visit(&model->flat, args, the_context.args.host->rank, err);
}

static void destroy_model(YokeWrapped** model) {
  if (model == NULL || *model == NULL) return;
  yoke_flat_free(&(*model)->flat);
  *model = NULL;
}

static void destroy(YokeContext** context) {
  if (context != NULL) *context = NULL;
}

static const ParallelBackend kBackend = {
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

const ParallelBackend* parallel_backend_entry_v1(uint32_t host_minor, YokeError* err) {
  (void)host_minor;
  (void)err;
  return &kBackend;
}
