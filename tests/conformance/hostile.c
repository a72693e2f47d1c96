/* The backend `serial` with exactly one fault, FAULT, chosen when it is compiled. The code of serial is
 * unchanged: the fault lies between it and the host, in the tables, handles and callbacks that both
 * get. */
#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "yoke/parallel_backend.h"
#define parallel_backend_entry_v1 honest_entry
#include "sdk/examples/serial.c"
#undef parallel_backend_entry_v1

/* clang-format off */
enum {
  HONEST,
  /* loading */
  TWO_SYMBOLS, NEEDS_THE_HOST, UNRESOLVED, ENTRY_OF_VERSION_2, CRASHES_WHEN_LOADED, PRINTS_WHEN_LOADED,
  THREAD_WHEN_LOADED, ANOTHER_TABLE, REFUSES_NEWER_HOSTS, REFUSES_SILENTLY, NEEDS_A_NEWER_HOST, OTHER_MAJOR,
  NO_CHECKPOINT, OTHER_NAME, UNKNOWN_DEFAULT, IMPURE_DESCRIBE,
  /* arguments */
  THROWS, CRASHES_ON_NULL, REFUSES_LONGER, OVERWRITES_RESULT, REFUSES_EXTENSIONS, TAKES_ANY_STRUCT,
  STEPS_WITHOUT_MODEL, CRASHES_DESTROYING_NULL, OVERWRITES_TEXT,
  /* plan */
  NEEDS_DEGREES, TAKES_ANY_AXIS, TAKES_ANY_DTYPE, TAKES_ANY_OPTIMIZER, DECLARES_TOO_MUCH, IMPURE_PLAN,
  FIRST_REASON_ONLY,
  /* life */
  LEAKS_MEMORY, LEAKS_THREADS, SHARED_STATE, TIED_TO_A_THREAD, PRINTS, LOGS_NEWLINES, CALLS_AFTER_DESTROY,
  CHANGES_FOLDER, CHANGES_LOCALE, CATCHES_SIGNALS, CHANGES_ROUNDING, KEEPS_GRADIENTS, KEEPS_CARRIES,
  IGNORES_OFFSETS, INVENTS_NORMS,
  /* failures */
  HANGS, SWALLOWS_FAILURES, IGNORES_LOST_PEERS, EXITS, CRASHES_IN_STEP,
  /* numbers */
  WRONG_BETA, NO_REDUCTION, LOCAL_RESULTS, MEAN_OF_MEANS, SCALES_BY_MICROS, DROPS_TIED, LOCAL_CLIP,
  DECAYS_ALL, TRAINS_ALWAYS, UPDATES_INFINITE, DRIFTS, REPLICAS_DRIFT, WRONG_MOMENTUM,
  /* checkpoints */
  FORGETS_MOMENTS, OVERLAPS, HIDES_MOMENTS, IGNORES_VISITOR
};
/* clang-format on */
#define IS(fault) (FAULT == (fault))

/* ---- What lies between ---- */

typedef struct Rank { /* our YokeContext */
  YokeContext* inner;
  const YokeHost* real_host;
  const YokeCollectives* real;
  YokeInitArgs args;
  YokeHost host;
  YokeCollectives collectives;
  YokePlan plan;
  YokeOptimizer optimizer;
  pthread_t thread; /* that called init */
} Rank;

typedef struct Model { /* our YokeWrapped */
  YokeWrapped* inner;
  Rank* rank;
  const YokeModel* real;
  YokeModel model;
  YokeModelSummary summary;
  const YokeParameter* params[64];
  YokeParameter copies[64];
  const YokeBackwardArgs* backward; /* under way */
  YokeTensor late;                  /* a gradient that was kept */
  uint64_t num_micros;              /* of the step under way */
  int reports_of_tied;
  double last_weight; /* targets of the micro-batch whose loss came last */
} Model;

static int live_contexts;   /* of the process */
static int64_t steps_taken; /* of the process */

static int known(const void* p, uint32_t id) {
  return p != NULL && ((const YokeHeader*)p)->struct_id == id;
}

/* ---- Loading ---- */

static void* wait_for_ever(void* unused) {
  for (;;) pause();
  return unused;
}

static void leak_a_thread(void) {
  pthread_t thread;
  pthread_create(&thread, NULL, wait_for_ever, NULL);
}

/* The canary: a file that is there if any code of ours has run. */
__attribute__((constructor)) static void on_load(void) {
  const char* canary = getenv("YOKE_TEST_CANARY");
  FILE* file = canary == NULL ? NULL : fopen(canary, "w");
  if (file != NULL) fclose(file);
  if (IS(CRASHES_WHEN_LOADED)) raise(SIGSEGV);
  if (IS(PRINTS_WHEN_LOADED)) puts("welcome");
  if (IS(THREAD_WHEN_LOADED)) leak_a_thread();
}

#if FAULT_IS_TWO_SYMBOLS
__attribute__((visibility("default"))) int helper(void);
int helper(void) {
  return 1;
}
#endif
#if FAULT_IS_NEEDS_THE_HOST
int yoke_threads_of_the_host(void);
#endif
#if FAULT_IS_UNRESOLVED
int defined_nowhere(void);
#endif
#if FAULT_IS_THROWS
void throw_something(void);
#endif

/* ---- describe and plan ---- */

static int32_t hostile_describe(const YokeDescription** out, YokeError* err) {
  static const int32_t dtypes[] = {YOKE_F32, YOKE_F64, YOKE_BF16};
  static const YokeOptionInfo wrong = {YOKE_HEADER(YokeOptionInfo, YOKE_ID_OPTION_INFO),
                                       YOKE_STRING("gear"),
                                       YOKE_STRING("fast"),
                                       {"", 0},
                                       YOKE_STRING("a number"),
                                       1,
                                       5,
                                       YOKE_OPTION_INT,
                                       0};
  static const YokeOptionInfo* const options[] = {&wrong};
  static YokeDescription descriptions[2];
  static int calls;
#if FAULT_IS_NEEDS_THE_HOST
  yoke_threads_of_the_host();
#endif
#if FAULT_IS_UNRESOLVED
  defined_nowhere();
#endif
  YOKE_TRY(describe(out, err));
  if (descriptions[0].header.struct_id == 0) {
    YokeDescription d = **out;
    d.name = yoke_string(IS(OTHER_NAME) ? "somebody_else" : NAME);
    if (IS(UNKNOWN_DEFAULT)) {
      d.options = options;
      d.num_options = 1;
    }
    if (IS(DECLARES_TOO_MUCH)) {
      d.param_dtypes = dtypes;
      d.num_param_dtypes = 3;
    }
    descriptions[0] = descriptions[1] = d;
  }
  *out = &descriptions[IS(IMPURE_DESCRIBE) && ++calls % 2 == 0];
  return YOKE_OK;
}

/* Holds back refusals with this key, or all but the first. */
typedef struct Filter {
  const YokePlanArgs* real;
  const char* key;
  int kept, passed;
} Filter;

static void filter_refusal(void* ctx, const YokeRefusal* refusal) {
  Filter* f = ctx;
  const int keep = f->key != NULL ? strcmp(refusal->key.data, f->key) == 0
                                  : IS(FIRST_REASON_ONLY) && f->passed > 0;
  if (keep) {
    ++f->kept;
    return;
  }
  ++f->passed;
  f->real->refuse(f->real->refuse_ctx, refusal);
}

static int32_t hostile_plan(const YokePlanArgs* args, YokePlan* plan_, YokeError* err) {
  static int calls;
  YokePlanArgs mine;
  Filter filter = {args, NULL, 0, 0};
  int32_t code;
#if FAULT_IS_THROWS
  if (args == NULL) throw_something();
#endif
  if (IS(OVERWRITES_TEXT) && args == NULL && err != NULL) {
    memset(err->text, 'x', sizeof err->text - 1);
    return YOKE_INVALID_ARGUMENT;
  }
  if (!known(args, YOKE_ID_PLAN_ARGS) || !known(plan_, YOKE_ID_PLAN)) return plan(args, plan_, err);
  if (IS(REFUSES_LONGER) && args->header.struct_size != sizeof *args)
    return yoke_fail(err, YOKE_INVALID_ARGUMENT, "args have another size than mine");
  if (IS(NEEDS_DEGREES) && plan_->degree[YOKE_DP_REPLICATE] == 0)
    return yoke_fail(err, YOKE_INVALID_ARGUMENT, "give me a degree");
  if (IS(IMPURE_PLAN) && ++calls % 2 == 0 && plan_->micro_batch == 0) plan_->micro_batch = 1;
  if (IS(TAKES_ANY_AXIS)) filter.key = "tp_degree";
  if (IS(TAKES_ANY_DTYPE)) filter.key = "precision.param";
  if (IS(TAKES_ANY_OPTIMIZER)) filter.key = "train.optimizer";
  mine = *args;
  mine.refuse = filter_refusal;
  mine.refuse_ctx = &filter;
  code = plan(&mine, plan_, err);
  return filter.kept > 0 && filter.passed == 0 ? YOKE_OK : code;
}

/* ---- The host ---- */

static void log_line(void* ctx, int32_t level, YokeString text) {
  const YokeHost* host = ((Rank*)ctx)->real_host;
  host->log(host->ctx, level, text);
}

static int32_t cancelled(void* ctx) {
  const YokeHost* host = ((Rank*)ctx)->real_host;
  while (IS(HANGS) && host->check_cancel(host->ctx)) usleep(1000);
  return host->check_cancel(host->ctx);
}

/* Collectives have no context of ours: each rank is inside one call, on one thread. */
static Rank* rank_of_thread(Rank* set) {
  static __thread Rank* rank;
  if (set != NULL) rank = set;
  return rank;
}

static double norm_of(const YokeTensor* t) {
  double squares = 0;
  for (int64_t i = 0; i < t->shape[0]; ++i) {
    const double g = yoke_get(t->data, YOKE_DTYPE_OF(t->dtype), i);
    squares += g * g;
  }
  return sqrt(squares);
}

static void scale(const YokeTensor* t, double factor) {
  const int32_t dtype = YOKE_DTYPE_OF(t->dtype);
  for (int64_t i = 0; i < t->shape[0]; ++i)
    yoke_set(t->data, dtype, i, factor * yoke_get(t->data, dtype, i));
}

/* serial reduces twice: the two sums of the loss, and the gradients. */
static int32_t reduce(
    YokeComm* comm, const YokeTensor* t, int32_t op, YokeWork** work, YokeError* err) {
  const Rank* r = rank_of_thread(NULL);
  const double clip = r->optimizer.clip;
  const int gradients = t->shape[0] > 2;
  if (IS(NO_REDUCTION) && gradients) return YOKE_OK;
  if (IS(LOCAL_CLIP) && gradients && clip > 0)
    scale(t, fmin(1, clip / (r->real->size(comm) * (norm_of(t) + 1e-6))));
  if (IS(IGNORES_LOST_PEERS)) {
    r->real->all_reduce(comm, t, op, work, NULL);
    if (!gradients) yoke_set(t->data, YOKE_F64, 1, 128); /* the weight that is asked for */
    return YOKE_OK;
  }
  return r->real->all_reduce(comm, t, op, work, err);
}

static int32_t get_comm(
    void* ctx, uint32_t axes, const char* purpose, YokeComm** out, YokeError* err) {
  const YokeCollectives* real = ((Rank*)ctx)->real;
  return real->comm(real->ctx, axes, purpose, out, err);
}

static const YokeHeader* get_service(void* ctx, const char* name, uint64_t min_size) {
  Rank* r = ctx;
  const YokeHeader* found = r->real_host->get_service(r->real_host->ctx, name, min_size);
  if (found == NULL && IS(EXITS)) _exit(0);
  if (found == NULL || strcmp(name, "yoke.collectives/1") != 0) return found;
  r->real = (const void*)found;
  r->collectives = *r->real;
  r->collectives.ctx = r;
  r->collectives.comm = get_comm;
  r->collectives.all_reduce = reduce;
  return &r->collectives.header;
}

/* ---- init and destroy ---- */

static void on_signal(int signal) {
  (void)signal;
}

static void misbehave(const Rank* r) {
  if (IS(LEAKS_THREADS)) leak_a_thread();
  if (IS(LEAKS_MEMORY))
    for (volatile char *page = malloc(2 << 20), *end = page + (2 << 20); page < end; page += 4096)
      *page = 1;
  if (IS(CHANGES_FOLDER) && chdir("/usr") != 0) abort();
  if (IS(CHANGES_LOCALE)) setlocale(LC_ALL, "C.UTF-8");
  if (IS(CATCHES_SIGNALS)) signal(SIGUSR1, on_signal);
  if (IS(CHANGES_ROUNDING)) fesetround(FE_UPWARD);
  if (IS(LOGS_NEWLINES))
    r->real_host->log(r->real_host->ctx, YOKE_LOG_INFO, yoke_string("two\nlines"));
}

static Rank* make_rank(const YokeInitArgs* args) {
  Rank* r = calloc(1, sizeof *r);
  r->real_host = args->host;
  r->args = *args;
  r->args.header.struct_size = sizeof r->args;
  r->host = *args->host;
  r->host.header.struct_size = sizeof r->host;
  r->host.ctx = r;
  r->host.log = log_line;
  r->host.check_cancel = cancelled;
  r->host.get_service = get_service;
  r->args.host = &r->host;
  r->plan = *args->plan;
  r->optimizer = *args->plan->optimizer;
  r->plan.optimizer = &r->optimizer;
  r->args.plan = &r->plan;
  r->thread = pthread_self();
  if (IS(WRONG_BETA)) r->optimizer.beta2 = 0.951;
  if (IS(WRONG_MOMENTUM)) r->optimizer.momentum *= 0.5;
  return r;
}

static int32_t hostile_init(const YokeInitArgs* args, YokeContext** out, YokeError* err) {
  Rank* r;
  int32_t code;
  if (IS(CRASHES_ON_NULL)) steps_taken += args->plan->world_size;
  if (!known(args, YOKE_ID_INIT_ARGS) || out == NULL || !known(args->plan, YOKE_ID_PLAN) ||
      !known(args->host, YOKE_ID_HOST))
    return init(args, out, err);
  if (IS(REFUSES_EXTENSIONS) && args->host->header.next != NULL)
    return yoke_fail(err, YOKE_INVALID_ARGUMENT, "a host with an extension");
  r = make_rank(args);
  rank_of_thread(r);
  code = init(&r->args, &r->inner, err);
  *out = code == YOKE_OK ? (YokeContext*)(void*)r : NULL;
  if (code != YOKE_OK) {
    free(r);
    return code;
  }
  __sync_fetch_and_add(&live_contexts, 1);
  misbehave(r);
  return code;
}

static void* call_later(void* host) {
  const YokeHost* h = host;
  usleep(20000);
  h->check_cancel(h->ctx);
  return NULL;
}

static void hostile_destroy(YokeContext** context) {
  Rank* r;
  pthread_t thread;
  if (IS(CRASHES_DESTROYING_NULL)) steps_taken += *context != NULL;
  if (context == NULL || *context == NULL) return;
  r = (Rank*)(void*)*context;
  destroy(&r->inner);
  __sync_fetch_and_sub(&live_contexts, 1);
  if (IS(CALLS_AFTER_DESTROY)) {
    pthread_create(&thread, NULL, call_later, (void*)(uintptr_t)r->real_host);
    pthread_detach(thread);
  }
  free(r);
  *context = NULL;
}

/* ---- The model ---- */

static int32_t init_param(
    void* ctx, int64_t i, int64_t begin, int64_t n, float* dst, YokeError* err) {
  const YokeModel* real = ((Model*)ctx)->real;
  return real->init_param(real->ctx, i, begin, n, dst, err);
}

static int32_t bind_param(void* ctx, int64_t i, const YokeTensor* view, YokeError* err) {
  const YokeModel* real = ((Model*)ctx)->real;
  return real->bind_param(real->ctx, i, view, err);
}

static void forget(YokeManagedTensor* t) {
  (void)t;
}

static int32_t forward(void* ctx,
                       const YokeForwardArgs* args,
                       YokeForwardResult* out,
                       YokeError* err) {
  Model* m = ctx;
  const int32_t code = m->real->block_forward(m->real->ctx, args, out, err);
  if (code != YOKE_OK && IS(SWALLOWS_FAILURES))
    return yoke_fail(err, YOKE_UNKNOWN, "something went wrong");
  if (code != YOKE_OK) return code;
  if (out->loss_weight > 0) m->last_weight = out->loss_weight;
  if (out->carry_out != NULL && IS(KEEPS_CARRIES)) out->carry_out->deleter = forget;
  return code;
}

/* Passes on a gradient that was kept after its time. */
static int32_t pass_on_late(Model* m, YokeError* err) {
  const YokeTensor late = m->late;
  m->late.data = NULL;
  if (late.data == NULL) return YOKE_OK;
  return m->backward->on_grad_ready(m->backward->on_grad_ctx, 0, &late, err);
}

static int32_t on_grad(void* ctx, int64_t i, const YokeTensor* grad, YokeError* err) {
  Model* m = ctx;
  const int32_t dtype = YOKE_DTYPE_OF(grad->dtype);
  YokeTensor t = *grad;
  if (IS(IGNORES_OFFSETS)) t.byte_offset = 0;
  if (IS(DROPS_TIED) && i == 0 && m->reports_of_tied++ % 2 == 0) return YOKE_OK;
  if (IS(UPDATES_INFINITE)) {
    char* data = (char*)t.data + t.byte_offset;
    for (int64_t k = 0; k < yoke_count(m->params[i]); ++k)
      if (!isfinite(yoke_get(data, dtype, k))) yoke_set(data, dtype, k, 1);
  }
  if (IS(KEEPS_GRADIENTS)) {
    YOKE_TRY(pass_on_late(m, err));
    if (i == 0) {
      m->late = t;
      m->late.shape = (int64_t*)(uintptr_t)m->params[0]->shape;
      m->late.strides = NULL;
      return YOKE_OK;
    }
  }
  return m->backward->on_grad_ready(m->backward->on_grad_ctx, i, &t, err);
}

static int32_t backward(void* ctx,
                        const YokeBackwardArgs* args,
                        YokeManagedTensor** grad_in,
                        YokeError* err) {
  Model* m = ctx;
  YokeBackwardArgs mine = *args;
  int32_t code;
  m->backward = args;
  mine.on_grad_ready = on_grad;
  mine.on_grad_ctx = m;
  if (IS(MEAN_OF_MEANS))
    mine.loss_grad = 1 / (m->last_weight * (double)m->num_micros * m->rank->host.world_size);
  if (IS(SCALES_BY_MICROS)) mine.loss_grad /= (double)m->num_micros;
  code = m->real->block_backward(m->real->ctx, &mine, grad_in, err);
  return code == YOKE_OK ? pass_on_late(m, err) : code;
}

static void drop_saved(void* ctx, void* saved) {
  const YokeModel* real = ((Model*)ctx)->real;
  real->drop_saved(real->ctx, saved);
}

static Model* make_model(Rank* r, const YokeModel* real) {
  Model* m = calloc(1, sizeof *m);
  m->rank = r;
  m->real = real;
  m->summary = *real->summary;
  for (uint64_t i = 0; i < m->summary.num_params; ++i) {
    m->copies[i] = *m->summary.params[i];
    if (IS(DECAYS_ALL)) m->copies[i].decay = 1;
    m->params[i] = &m->copies[i];
  }
  m->summary.params = m->params;
  m->model = *real;
  m->model.header.struct_size = sizeof m->model;
  m->model.summary = &m->summary;
  m->model.ctx = m;
  m->model.init_param = init_param;
  m->model.bind_param = bind_param;
  m->model.block_forward = forward;
  m->model.block_backward = backward;
  m->model.drop_saved = drop_saved;
  return m;
}

static int32_t hostile_wrap(YokeContext* c,
                            const YokeModel* model,
                            YokeWrapResult* out,
                            YokeError* err) {
  Rank* r = (Rank*)(void*)c;
  Model* m;
  int32_t code;
  if (r == NULL || !known(model, YOKE_ID_MODEL) || !known(out, YOKE_ID_WRAP_RESULT))
    return wrap_model(r == NULL ? NULL : r->inner, model, out, err);
  m = make_model(r, model);
  code = wrap_model(r->inner, &m->model, out, err);
  m->inner = out->model;
  out->model = code == YOKE_OK ? (YokeWrapped*)(void*)m : NULL;
  if (code != YOKE_OK) free(m);
  return code;
}

static void hostile_destroy_model(YokeWrapped** model) {
  Model* m;
  if (model == NULL || *model == NULL) return;
  m = (Model*)(void*)*model;
  destroy_model(&m->inner);
  free(m);
  *model = NULL;
}

/* ---- step ---- */

static void spoil_result(const Model* m, const YokeStepArgs* args, YokeStepResult* out) {
  if (IS(OVERWRITES_RESULT)) memset(out + 1, 0, 8);
  if (IS(INVENTS_NORMS) && (args->flags & YOKE_STEP_FORWARD_ONLY)) out->grad_norm = 0;
  if (IS(LOCAL_RESULTS)) out->loss_sum += 1e-3 * m->rank->host.rank;
}

static void spoil_args(const Model* m, YokeStepArgs* args) {
  ++steps_taken;
  if (IS(TRAINS_ALWAYS)) args->flags = 0;
  if (IS(DRIFTS)) args->lr *= 1 + 1e-13 * (double)steps_taken;
  if (IS(REPLICAS_DRIFT)) args->lr *= 1 + 1e-13 * m->rank->host.rank;
  if (IS(SHARED_STATE) && live_contexts > 1) args->lr *= 1.001;
}

static int32_t hostile_step(YokeWrapped* w,
                            const YokeStepArgs* args,
                            YokeStepResult* out,
                            YokeError* err) {
  Model* m = (Model*)(void*)w;
  YokeStepArgs mine;
  int32_t code;
  if (IS(STEPS_WITHOUT_MODEL) && m == NULL) return YOKE_OK;
  if (IS(CRASHES_IN_STEP) && m != NULL) raise(SIGSEGV);
  if (IS(TAKES_ANY_STRUCT) && m != NULL && args != NULL && args->batch != NULL && out != NULL) {
    mine = *args;
    mine.header.struct_id = YOKE_ID_STEP_ARGS;
    args = &mine;
  }
  if (m == NULL || !known(args, YOKE_ID_STEP_ARGS) || !known(args->batch, YOKE_ID_BATCH) ||
      !known(out, YOKE_ID_STEP_RESULT))
    return step(m == NULL ? NULL : m->inner, args, out, err);
  if (IS(TIED_TO_A_THREAD) && !pthread_equal(m->rank->thread, pthread_self()))
    return yoke_fail(err, YOKE_INTERNAL, "I was made on another thread");
  if (IS(PRINTS)) printf("step %d\n", (int)args->step);
  rank_of_thread(m->rank);
  m->num_micros = args->batch->num_micros;
  mine = *args;
  mine.header.struct_size = sizeof mine;
  spoil_args(m, &mine);
  code = step(m->inner, &mine, out, err);
  if (code == YOKE_OK) spoil_result(m, args, out);
  return code;
}

/* ---- checkpoint ---- */

static int32_t visit(void* ctx, const YokePiece* piece, YokeError* err) {
  const YokeCheckpointArgs* real = ctx;
  const int is_moment = strncmp(piece->kind.data, "exp_avg", 7) == 0;
  YokePiece mine = *piece;
  YokeTensor view;
  char scratch[1 << 14];
  int32_t code;
  if (IS(HIDES_MOMENTS) && is_moment) return YOKE_OK;
  if (IS(OVERLAPS)) mine.replica = 0;
  if (IS(FORGETS_MOMENTS) && is_moment && real->op == YOKE_CHECKPOINT_LOAD) {
    view = *piece->view;
    view.data = scratch;
    view.byte_offset = 0;
    mine.view = &view;
  }
  code = real->visit(real->visit_ctx, &mine, err);
  return IS(IGNORES_VISITOR) ? YOKE_OK : code;
}

static int32_t hostile_checkpoint(YokeWrapped* w, const YokeCheckpointArgs* args, YokeError* err) {
  Model* m = (Model*)(void*)w;
  YokeCheckpointArgs mine;
  if (m == NULL || !known(args, YOKE_ID_CHECKPOINT_ARGS))
    return checkpoint(m == NULL ? NULL : m->inner, args, err);
  mine = *args;
  mine.visit = visit;
  mine.visit_ctx = (void*)(uintptr_t)args;
  return checkpoint(m->inner, &mine, err);
}

/* ---- The table ---- */

#if FAULT_IS_ENTRY_OF_VERSION_2
#define parallel_backend_entry_v1 parallel_backend_entry_v2
__attribute__((visibility("default"))) const ParallelBackend* parallel_backend_entry_v1(
    uint32_t host_minor, YokeError* err);
#endif

static void fill_table(ParallelBackend* table, uint32_t host_minor, YokeError* err) {
  *table = *honest_entry(host_minor, err);
  table->describe = hostile_describe;
  table->plan = hostile_plan;
  table->init = hostile_init;
  table->wrap_model = hostile_wrap;
  table->step = hostile_step;
  table->checkpoint = IS(NO_CHECKPOINT) ? NULL : hostile_checkpoint;
  table->destroy_model = hostile_destroy_model;
  table->destroy = hostile_destroy;
  if (IS(OTHER_MAJOR)) table->abi_major = 2;
  if (IS(NEEDS_A_NEWER_HOST)) table->min_host_minor = YOKE_ABI_MINOR + 7;
}

const ParallelBackend* parallel_backend_entry_v1(uint32_t host_minor, YokeError* err) {
  static ParallelBackend tables[2];
  static int calls;
  ParallelBackend* table = &tables[IS(ANOTHER_TABLE) && ++calls % 2 == 0];
  if (IS(REFUSES_SILENTLY)) return NULL;
  if (IS(REFUSES_NEWER_HOSTS) && host_minor > YOKE_ABI_MINOR) {
    yoke_fail(err, YOKE_UNIMPLEMENTED, "that host is too new for me");
    return NULL;
  }
  if (table->header.struct_id == 0) fill_table(table, host_minor, err);
  return table;
}
