/* The faults of mutant.c. CMakeLists.txt reads the enumeration and builds one backend for each
 * enumerator. mutant_test.cpp lists the check that must find each of them. */
#ifndef YOKE_TESTS_CONFORMANCE_MUTANT_FAULTS_H_
#define YOKE_TESTS_CONFORMANCE_MUTANT_FAULTS_H_

/* clang-format off */
enum {
  NO_FAULT,
  SLOWS_DOWN, /* no fault: an update rule of its own, with a state of each rank */
  /* numbers */
  SKIPS_BY_SLICE, EMPTY_RANK_SKIPS_REDUCTION, COUNTS_SKIPPED_STEPS, IGNORES_REDUCE_DTYPE, POWERS_OF_TWO,
  DROPS_LATE_ELEMENTS, STEP_IN_A_BYTE, SHARES_STATIC_MEMORY, CUTS_GRADIENTS, NEGATIVE_NORM,
  TREATS_LION_AS_ADAMW, DECOUPLES_DECAY, ALWAYS_CORRECTS, UPDATES_LION_FIRST,
  /* contract */
  DROPS_LAST_ERROR, DROPS_ERROR_OF_WAIT, NEVER_CANCELS, REPORTS_MUCH_MEMORY, REPORTS_LITTLE_TRAFFIC,
  LEAKS_IN_STEPS, PRINTS_FAILURES, TAKES_ANY_FLAG, TAKES_ANY_OP, TAKES_ANY_DTYPE_IN_INIT, TAKES_ANY_DLPACK,
  CHANGES_DEGREE, CHANGES_BATCH, CHANGES_OPTIMIZER, REFUSES_RANKS,
  /* state of its own */
  HIDES_KIND, WRONG_ROW, MALFORMED_KIND,
  /* one reason for many failures */
  NO_ALL_REDUCE, REDUCES_TWICE, NORM_BEFORE_REDUCTION, CRASHES_IN_SECOND_STEP, EMPTY_CHECKPOINT, RAW_GRADIENT_KEPT
};
/* clang-format on */
/* Whether this library has that fault, a constant. */
#define IS(fault) (FAULT == (fault))

#endif /* YOKE_TESTS_CONFORMANCE_MUTANT_FAULTS_H_ */
