# Runs a real Slurm on machines made of namespaces, and submits configs/slurm/train.sbatch to it. SKIPPED if
# `scripts/setup --nodes` was not run, or if this machine does not allow namespaces.
if(TARGET ptd)
  add_test(NAME slurm_test COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/slurm_test.py)
  set_tests_properties(slurm_test PROPERTIES LABELS "nodes;nightly" SKIP_RETURN_CODE 77 TIMEOUT 7200 RUN_SERIAL TRUE
    ENVIRONMENT "${YOKE_TEST_ENVIRONMENT};PYTHONDONTWRITEBYTECODE=1")
endif()
