/* A backend that loads and describes itself, and does nothing else. Each macro TOY_... breaks one
 * thing, so that the tests get one library for each kind of error that the loader and the probe
 * must report. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "yoke/parallel_backend.h"

#ifndef TOY_NAME
#define TOY_NAME "toy"
#endif

#if defined(TOY_CRASH_ON_LOAD)
__attribute__((constructor)) static void on_load(void) {
  signal(SIGSEGV, SIG_DFL); /* a sanitizer must not catch it */
  raise(SIGSEGV);
}
#elif defined(TOY_HANG_ON_LOAD)
__attribute__((constructor)) static void on_load(void) {
  for (;;) pause();
}
#elif defined(TOY_EXIT_ON_LOAD)
__attribute__((constructor)) static void on_load(void) {
  fprintf(stderr, "no licence found\n");
  exit(0);
}
#elif defined(TOY_PRINT_ON_LOAD)
__attribute__((constructor)) static void on_load(void) {
  puts("welcome to the toy");
}
#endif

#ifdef TOY_UNRESOLVED
void toy_is_defined_nowhere(void);
#endif

static int32_t fail(YokeError* err, int32_t code, const char* text) {
  if (err != NULL) {
    err->code = code;
    snprintf(err->text, sizeof err->text, "%s", text);
  }
  return code;
}

static const YokeOptionInfo kGear = {YOKE_HEADER(YokeOptionInfo, YOKE_ID_OPTION_INFO),
                                     YOKE_STRING("gear"),
                                     YOKE_STRING("3"),
                                     {"", 0},
                                     YOKE_STRING("how fast"),
                                     1,
                                     5,
                                     YOKE_OPTION_INT,
                                     0,
                                     0,
                                     0};
static const YokeOptionInfo kColour = {YOKE_HEADER(YokeOptionInfo, YOKE_ID_OPTION_INFO),
                                       YOKE_STRING("colour"),
                                       YOKE_STRING("red"),
                                       YOKE_STRING("red|green"),
                                       YOKE_STRING("colour of the box"),
                                       1,
                                       0,
                                       YOKE_OPTION_STRING,
                                       0,
                                       0,
                                       0};
static const YokeOptionInfo* const kOptions[] = {&kGear, &kColour};
static const int32_t kDtypes[] = {YOKE_F32, YOKE_F64};
#ifndef TOY_TRAITS
#define TOY_TRAITS 0
#endif
static const YokeStateKind kKind = {YOKE_HEADER(YokeStateKind, YOKE_ID_STATE_KIND),
                                    YOKE_STRING("residual"),
                                    YOKE_STRING("what is left over"),
                                    YOKE_STATE_PER_RANK,
                                    0};
static const YokeStateKind* const kKinds[] = {&kKind};
static const YokeDescription kDescription = {YOKE_HEADER(YokeDescription, YOKE_ID_DESCRIPTION),
                                             YOKE_STRING(TOY_NAME),
                                             YOKE_STRING("1.2.3"),
                                             YOKE_STRING("the tests"),
                                             YOKE_STRING("does next to nothing"),
                                             {"", 0},
                                             kOptions,
                                             2,
                                             kDtypes,
                                             2,
                                             YOKE_AXIS_BIT(YOKE_DP_SHARD) | YOKE_AXIS_BIT(YOKE_TP),
                                             1u << 0 | 1u << 3,
                                             TOY_TRAITS,
                                             0,
                                             kKinds,
                                             (TOY_TRAITS & YOKE_OWN_UPDATE) != 0};

static int32_t describe(const YokeDescription** out, YokeError* err) {
#ifdef TOY_UNRESOLVED
  toy_is_defined_nowhere();
#endif
  (void)err;
  *out = &kDescription;
  return YOKE_OK;
}

static int32_t plan(const YokePlanArgs* args, YokePlan* plan, YokeError* err) {
  (void)args;
  (void)plan;
  return fail(err, YOKE_UNIMPLEMENTED, "the toy plans nothing");
}

static int32_t init(const YokeInitArgs* args, YokeContext** out, YokeError* err) {
  (void)args;
  *out = NULL;
  return fail(err, YOKE_UNIMPLEMENTED, "the toy starts nothing");
}

static int32_t wrap_model(YokeContext* context,
                          const YokeModel* model,
                          YokeWrapResult* out,
                          YokeError* err) {
  (void)context;
  (void)model;
  (void)out;
  return fail(err, YOKE_UNIMPLEMENTED, "the toy wraps nothing");
}

static int32_t step(YokeWrapped* model,
                    const YokeStepArgs* args,
                    YokeStepResult* out,
                    YokeError* err) {
  (void)model;
  (void)args;
  (void)out;
  return fail(err, YOKE_UNIMPLEMENTED, "the toy steps nowhere");
}

#ifndef TOY_NULL_SLOT
static int32_t checkpoint(YokeWrapped* model, const YokeCheckpointArgs* args, YokeError* err) {
  (void)model;
  (void)args;
  return fail(err, YOKE_UNIMPLEMENTED, "the toy has no state");
}
#else
#define checkpoint NULL
#endif

static void destroy_model(YokeWrapped** model) {
  (void)model;
}
static void destroy(YokeContext** context) {
  (void)context;
}

#ifndef TOY_MAJOR
#define TOY_MAJOR YOKE_ABI_MAJOR
#endif
#ifndef TOY_MINOR
#define TOY_MINOR 0
#endif
#ifndef TOY_MIN_HOST_MINOR
#define TOY_MIN_HOST_MINOR 0
#endif

/* The function table of a later minor version is longer than ours. A shorter one lacks required
 * functions. */
typedef struct LongTable {
  ParallelBackend known;
  void (*of_a_later_version)(void);
} LongTable;
#if defined(TOY_LATER)
#define TOY_SIZE sizeof(LongTable)
#elif defined(TOY_SHORT)
#define TOY_SIZE offsetof(ParallelBackend, step)
#else
#define TOY_SIZE sizeof(ParallelBackend)
#endif

static const LongTable kTable = {{{(uint32_t)TOY_SIZE, YOKE_ID_BACKEND, NULL},
                                  TOY_MAJOR,
                                  TOY_MINOR,
                                  TOY_MIN_HOST_MINOR,
                                  0,
                                  describe,
                                  plan,
                                  init,
                                  wrap_model,
                                  step,
                                  checkpoint,
                                  destroy_model,
                                  destroy},
                                 NULL};

#if defined(TOY_ENTRY_OF_VERSION_2)
#define parallel_backend_entry_v1 parallel_backend_entry_v2
__attribute__((visibility("default"))) const ParallelBackend* parallel_backend_entry_v1(
    uint32_t host_minor, YokeError* err);
#elif defined(TOY_NO_ENTRY)
/* The library refers to the entry symbol, as a host does, but does not define it. */
#pragma weak parallel_backend_entry_v1
const void* entry_of_somebody_else(void);
const void* entry_of_somebody_else(void) {
  return (const void*)(uintptr_t)parallel_backend_entry_v1;
}
#define parallel_backend_entry_v1 something_else
__attribute__((visibility("default"))) const ParallelBackend* parallel_backend_entry_v1(
    uint32_t host_minor, YokeError* err);
#endif

const ParallelBackend* parallel_backend_entry_v1(uint32_t host_minor, YokeError* err) {
  (void)host_minor;
#ifdef TOY_ENTRY_REFUSES
  fail(err, YOKE_FAILED_PRECONDITION, "the toy needs a licence");
  return NULL;
#endif
  (void)err;
  return &kTable.known;
}
