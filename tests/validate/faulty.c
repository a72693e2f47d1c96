/* The backend `serial` with one fault, which the option `fault` selects when the run starts. The
 * code of serial is unchanged: faults are added between serial and the host, as in
 * tests/conformance/hostile.c. Only one rank of a process may use it. */
#include <pthread.h>

#include "yoke/parallel_backend.h"
#define parallel_backend_entry_v1 serial_entry
#include "sdk/examples/serial.c"
#undef parallel_backend_entry_v1
#include "tests/validate/faults.h"

#define NAME_OF(name, rule, ranks) name,
#define TEXT_OF(name, rule, ranks) #name,
#define CHOICE_OF(name, rule, ranks) "|" #name
enum Fault { none, FAULTS(NAME_OF) };

static enum Fault fault;
static const YokeHost* real_host;
static YokeHost host;
static const YokeCollectives* real;
static YokeCollectives collectives;
static const YokeModel* real_model;
static YokeModel model;
static int visits_of_checkpoint; /* calls of checkpoint */

static void choose(const YokeOption* options) {
  static const char* const names[] = {"none", FAULTS(TEXT_OF)};
  int i;
  for (i = 0; i < (int)(sizeof names / sizeof *names); ++i)
    if (strcmp(names[i], options[0].string_value.data) == 0) fault = (enum Fault)i;
}

/* ---- describe and plan ---- */

static int32_t faulty_describe(const YokeDescription** out, YokeError* err) {
  static const YokeOptionInfo info = {.header = YOKE_HEADER(YokeOptionInfo, YOKE_ID_OPTION_INFO),
                                      .key = YOKE_STRING("fault"),
                                      .default_value = YOKE_STRING("none"),
                                      .choices = YOKE_STRING("none" FAULTS(CHOICE_OF)),
                                      .doc = YOKE_STRING("what is wrong"),
                                      .min = 1,
                                      .type = YOKE_OPTION_STRING};
  static const YokeOptionInfo* const infos[] = {&info};
  static YokeDescription description;
  YOKE_TRY(describe(out, err));
  description = **out;
  description.name = yoke_string("faulty");
  description.options = infos;
  description.num_options = 1;
  *out = &description;
  return YOKE_OK;
}

static int32_t faulty_plan(const YokePlanArgs* args, YokePlan* p, YokeError* err) {
  static int calls;
  int32_t code;
  choose(args->options);
  if (fault == refuses_and_accepts) yoke_refuse(args, "tp_degree", "2", "1", "no");
  code = plan(args, p, err);
  if (fault == halves_batch) p->global_batch /= 2;
  if (fault == impure_plan) p->micro_batch = ++calls % 2 + 1;
  if (fault == undeclared_axis) {
    p->degree[YOKE_DP_REPLICATE] = 1;
    p->degree[YOKE_TP] = p->world_size;
  }
  if (fault == changes_degree) { /* the test sets dp_degree = 2 */
    p->degree[YOKE_DP_REPLICATE] = 1;
    p->degree[YOKE_DP_SHARD] = p->world_size;
  }
  return code;
}

/* ---- The host ---- */

static int32_t never_cancelled(void* ctx) {
  return fault == never_asks_cancel ? 0 : real_host->check_cancel(ctx);
}

/* Rank 0 leaves its gradients in memory that the others believe to share. */
static int32_t add_shared(const YokeTensor* t) {
  static float shared[4];
  float* data = t->data;
  int i;
  for (i = 0; i < 4; ++i) data[i] += shared[i] += data[i];
  return YOKE_OK;
}

static int32_t reduce(
    YokeComm* comm, const YokeTensor* t, int32_t op, YokeWork** work, YokeError* err) {
  const int gradients = t->shape[0] > 2;
  const int32_t size = real->size(comm), rank = real->rank(comm);
  int64_t empty = 0;
  YokeTensor part = *t;
  YokeWork* started = NULL;
  if (fault == unknown_reduction) op = 9;
  if (fault == gathers_wrong_size) return real->all_gather(comm, t, t, work, err);
  if (fault == ranks_share_memory && gradients) return add_shared(t);
  if (fault == wrong_for_three && size == 3 && rank == 2 && gradients) {
    /* The last rank takes part, and then loses the second half of the sums. */
    YOKE_TRY(real->all_reduce(comm, t, op, NULL, err));
    memset((float*)t->data + t->shape[0] / 2, 0, (size_t)(t->shape[0] - t->shape[0] / 2) * 4);
    return YOKE_OK;
  }
  if (fault == waits_twice && gradients) {
    YOKE_TRY(real->all_reduce(comm, t, op, &started, err));
    YOKE_TRY(real->wait(started, err));
    return real->wait(started, err);
  }
  YOKE_TRY(real->all_reduce(comm, t, op, work, err));
  part.shape = &empty; /* the host answers such an operation without its peers */
  if (fault == one_rank_does_more && rank == 1) return real->all_reduce(comm, &part, op, NULL, err);
  return YOKE_OK;
}

static const YokeHeader* get_service(void* ctx, const char* name, uint64_t min_size) {
  const YokeHeader* found = real_host->get_service(ctx, name, min_size);
  if (found == NULL || strcmp(name, "yoke.collectives/1") != 0) return found;
  real = (const YokeCollectives*)(const void*)found;
  collectives = *real;
  collectives.all_reduce = reduce;
  return &collectives.header;
}

static int32_t faulty_init(const YokeInitArgs* args, YokeContext** out, YokeError* err) {
  static YokeInitArgs mine;
  choose(args->options);
  mine = *args;
  real_host = args->host;
  host = *real_host;
  host.check_cancel = never_cancelled;
  host.get_service = get_service;
  mine.host = &host;
  if (fault == logs_newline)
    real_host->log(real_host->ctx, YOKE_LOG_INFO, yoke_string("two\nlines"));
  return init(&mine, out, err);
}

/* ---- The model ---- */

static int32_t bind_param(void* ctx, int64_t param, const YokeTensor* view, YokeError* err) {
  YokeTensor other;
  if (view == NULL || fault != binds_other_dtype)
    return real_model->bind_param(ctx, param, view, err);
  other = *view;
  other.dtype.code = YOKE_CODE_INT;
  return real_model->bind_param(ctx, param, &other, err);
}

typedef struct Forward {
  void* ctx;
  const YokeForwardArgs* args;
  YokeForwardResult* out;
  YokeError* err;
  int32_t code;
} Forward;

static void* forward_elsewhere(void* arg) {
  Forward* f = arg;
  f->code = real_model->block_forward(f->ctx, f->args, f->out, f->err);
  return NULL;
}

static int32_t block_forward(void* ctx,
                             const YokeForwardArgs* args,
                             YokeForwardResult* out,
                             YokeError* err) {
  YokeForwardArgs mine = *args;
  Forward forward = {ctx, &mine, out, err, YOKE_OK};
  pthread_t thread;
  if (fault == runs_unbound)
    YOKE_TRY(real_model->bind_param(ctx, real_model->summary->blocks[1]->params[0], NULL, err));
  if (fault == unknown_block) mine.block += 1000;
  if (fault == carry_of_first_block && args->block == 0)
    mine.carry_in = &args->micro->inputs[0].tensor;
  if (fault == other_thread) {
    pthread_create(&thread, NULL, forward_elsewhere, &forward);
    pthread_join(thread, NULL);
    return forward.code;
  }
  YOKE_TRY(real_model->block_forward(ctx, &mine, out, err));
  if (fault == changes_carry && args->carry_in != NULL) ((float*)args->carry_in->data)[0] += 1;
  return YOKE_OK;
}

/* What a gradient was when it was reported; used by keeps_gradients. */
typedef struct Kept {
  const YokeBackwardArgs* real;
  YokeTensor grad[32];
  int64_t param[32];
  int count;
} Kept;

static int32_t keep(void* ctx, int64_t param, const YokeTensor* grad, YokeError* err) {
  Kept* kept = ctx;
  (void)err;
  kept->param[kept->count] = param;
  kept->grad[kept->count++] = *grad;
  return YOKE_OK;
}

static int32_t fail_gradient(void* ctx, int64_t param, const YokeTensor* grad, YokeError* err) {
  (void)ctx, (void)param, (void)grad;
  return yoke_fail(err, YOKE_INTERNAL, "no room for this gradient");
}

static void ignore_managed(YokeManagedTensor* self) {
  (void)self;
}

static int32_t block_backward(void* ctx,
                              const YokeBackwardArgs* args,
                              YokeManagedTensor** grad_in,
                              YokeError* err) {
  YokeBackwardArgs mine = *args;
  Kept kept = {args, {{0}}, {0}, 0};
  YokeTensor other;
  int32_t code, i;
  if (fault == keeps_saved && args->block == 0) return YOKE_OK;
  if (fault == keeps_gradients) {
    mine.on_grad_ready = keep;
    mine.on_grad_ctx = &kept;
  }
  if (fault == swallows_error && args->block == 0) {
    mine.on_grad_ready = fail_gradient;
    real_model->block_backward(ctx, &mine, grad_in, NULL);
    return YOKE_OK;
  }
  if (fault == wrong_grad_out && args->grad_out != NULL) {
    other = *args->grad_out;
    other.ndim -= 1;
    mine.grad_out = &other;
  }
  YOKE_TRY(real_model->block_backward(ctx, &mine, grad_in, err));
  if (fault == uses_saved_twice) return real_model->block_backward(ctx, &mine, grad_in, err);
  if (fault == deletes_twice && *grad_in != NULL) {
    (*grad_in)->deleter(*grad_in);
    (*grad_in)->deleter(*grad_in);
    (*grad_in)->deleter = ignore_managed;
  }
  for (i = 0; i < kept.count; ++i) {
    code = args->on_grad_ready(args->on_grad_ctx, kept.param[i], &kept.grad[i], err);
    if (code != YOKE_OK) return code;
  }
  return YOKE_OK;
}

/* Deletes a carry while the block that reads it still needs it. */
static int32_t forward_and_delete(void* ctx,
                                  const YokeForwardArgs* args,
                                  YokeForwardResult* out,
                                  YokeError* err) {
  static YokeManagedTensor* before;
  YOKE_TRY(real_model->block_forward(ctx, args, out, err));
  if (before != NULL && args->save) {
    before->deleter(before);
    before->deleter = ignore_managed;
  }
  before = out->carry_out;
  return YOKE_OK;
}

static int32_t faulty_wrap_model(YokeContext* c,
                                 const YokeModel* m,
                                 YokeWrapResult* out,
                                 YokeError* err) {
  real_model = m;
  model = *m;
  model.bind_param = bind_param;
  model.block_forward = fault == deletes_carry_early ? forward_and_delete : block_forward;
  model.block_backward = block_backward;
  YOKE_TRY(wrap_model(c, &model, out, err));
  if (fault == negative_bytes) out->grad_bytes = -5;
  return YOKE_OK;
}

/* ---- A step ---- */

static void nudge(YokeWrapped* w) {
  ((float*)w->flat.value)[0] += 0.5f;
}

static int32_t faulty_step(YokeWrapped* w,
                           const YokeStepArgs* args,
                           YokeStepResult* out,
                           YokeError* err) {
  const int evaluates = (args->flags & YOKE_STEP_FORWARD_ONLY) != 0;
  YokeStepArgs mine = *args;
  if (fault == fails_without_text) return YOKE_RESOURCE_EXHAUSTED;
  if (fault == backward_in_evaluation && evaluates) mine.flags = 0;
  YOKE_TRY(step(w, &mine, out, err));
  if (fault == evaluation_updates && evaluates) nudge(w);
  if (fault == replicas_drift && real_host->rank == 1) nudge(w);
  if (fault == writes_behind_result) memset(out + 1, 1, 4);
  if (fault == negative_norm) out->grad_norm = -out->grad_norm;
  if (fault == counts_other_targets) out->loss_weight -= 1;
  if (fault == infinite_loss) out->loss_sum = INFINITY;
  if (fault == hides_skip) out->grad_norm = INFINITY;
  if (fault == ranks_disagree && real_host->rank == 1) out->loss_sum *= 1 + 1e-12;
  return YOKE_OK;
}

/* ---- Checkpoint ---- */

enum { kMostElements = 65535 };

/* Returns whether the fault leaves this piece out. */
static int leaves_out(const YokePiece* p) {
  const char* kind = p->kind.data;
  if (fault == misses_parameter) return p->name.data == real_model->summary->params[3]->name.data;
  if (fault == misses_moments) return strcmp(kind, "exp_avg_sq") == 0;
  if (fault == misses_step) return strcmp(kind, "step") == 0;
  return fault == pieces_change && visits_of_checkpoint > 1 && strcmp(kind, "exp_avg") == 0;
}

static int32_t visit(void* ctx, const YokePiece* piece, YokeError* err) {
  const YokeCheckpointArgs* args = ctx;
  static int64_t step_number;
  YokePiece p = *piece;
  YokeTensor view;
  void* scratch = NULL;
  int32_t code;
  if (leaves_out(piece)) return YOKE_OK;
  if (piece->view != NULL) view = *piece->view;
  if (fault == wrong_dtype_of_piece) p.dtype = YOKE_F64;
  if (fault == beyond_tensor) p.begin += 1;
  if (fault == undeclared_form_of_kind && strcmp(p.kind.data, "exp_avg") == 0)
    p.kind = yoke_string("Exp-Avg");
  if (fault == saves_twice) p.replica = 0;
  if (fault == drops_elements && p.count > kMostElements) {
    p.count = p.run = kMostElements;
    view.shape = &p.count;
    if (piece->view != NULL) p.view = &view;
  }
  if (fault == wrong_step && strcmp(p.kind.data, "step") == 0 && piece->view != NULL) {
    step_number = *(int64_t*)piece->view->data + 1;
    view.data = &step_number;
    p.view = &view;
  }
  if (fault == forgets_load && args->op == YOKE_CHECKPOINT_LOAD && p.ndim > 0) {
    scratch = malloc((size_t)(p.count * yoke_item_size(p.dtype)));
    view.data = scratch;
    p.view = &view;
  }
  code = args->visit(args->visit_ctx, &p, err);
  free(scratch);
  return code;
}

static int32_t faulty_checkpoint(YokeWrapped* w, const YokeCheckpointArgs* args, YokeError* err) {
  YokeCheckpointArgs mine = *args;
  YokeRanks* ranks = (YokeRanks*)(uintptr_t)&w->context->replicas;
  double one = 1;
  ++visits_of_checkpoint;
  if (fault == communicates_in_describe && args->op == YOKE_CHECKPOINT_DESCRIBE)
    YOKE_TRY(yoke_sum(ranks, &one, 1, YOKE_F64, err));
  mine.visit = visit;
  mine.visit_ctx = (void*)(uintptr_t)args;
  return checkpoint(w, &mine, err);
}

const ParallelBackend* parallel_backend_entry_v1(uint32_t host_minor, YokeError* err) {
  static ParallelBackend table;
  table = *serial_entry(host_minor, err);
  table.describe = faulty_describe;
  table.plan = faulty_plan;
  table.init = faulty_init;
  table.wrap_model = faulty_wrap_model;
  table.step = faulty_step;
  table.checkpoint = faulty_checkpoint;
  return &table;
}
