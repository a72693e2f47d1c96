/* The backend `serial` with exactly one fault, which the macro FAULT selects at compile time.
 *
 * The code of serial is unchanged. This file wraps it: the host calls the functions here, which
 * call serial's, and serial calls callbacks here, which call the host's. The fault is in this
 * layer, so everything else about the backend is known to be correct.
 *
 * serial.c and the two parts below are included instead of linked, because the functions of serial
 * are static and the library must export one symbol only. */
#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "yoke/half.h"
#include "yoke/parallel_backend.h"
#define parallel_backend_entry_v1 honest_entry
#include "sdk/examples/serial.c"
#undef parallel_backend_entry_v1
#include "tests/conformance/hostile_faults.h"
#include "tests/conformance/hostile_host.inc"
#include "tests/conformance/hostile_model.inc"

/* ---- The function table ---- */

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
  if (IS(NEEDS_A_NEWER_HOST)) table->min_host_minor = 42;
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
