# Compiler defaults, and the functions that declare libraries and tests in every folder.
set(CMAKE_C_STANDARD 99)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set_property(GLOBAL PROPERTY USE_FOLDERS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

include(GNUInstallDirs)
# The build tree has the same folders as an install, so programs find their files in the same way in both.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(YOKE_BACKEND_DIR ${PROJECT_BINARY_DIR}/lib/yoke/backends)
set(CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
    WORLD_READ WORLD_EXECUTE) # independent of the umask: backends in a folder that others may write to are refused

find_program(YOKE_CCACHE ccache)
if(YOKE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # With these settings ccache also caches what includes precompiled headers.
  set(_launcher ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${YOKE_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${_launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${_launcher})
endif()
find_program(YOKE_MOLD mold)
if(YOKE_MOLD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_link_options(-fuse-ld=mold)
endif()

add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-Wall> $<$<COMPILE_LANGUAGE:C,CXX>:-Wextra>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
# GCC 12 warns about overlapping copies in "literal" + std::string although they do not overlap (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(YOKE_WERROR)
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
endif()
if(YOKE_SANITIZE)
  add_compile_options(-fsanitize=${YOKE_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${YOKE_SANITIZE})
endif()

find_package(Threads REQUIRED)

# yoke_library(NAME SOURCES a.cpp ... [LINK lib ...] [TORCH])
# Adds a static library. TORCH links LibTorch and reuses the one precompiled header.
function(yoke_library name)
  cmake_parse_arguments(A "TORCH" "" "SOURCES;LINK" ${ARGN})
  add_library(${name} STATIC ${A_SOURCES})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC yoke::sdk ${A_LINK} Threads::Threads)
  if(A_TORCH)
    yoke_use_torch(${name})
  endif()
endfunction()

# yoke_link_mesh(BACKEND) lets a backend find libyoke_mesh.so in the folder above its own, in the build tree and in an
# install.
function(yoke_link_mesh backend)
  set_target_properties(${backend} PROPERTIES SKIP_BUILD_RPATH OFF BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH $ORIGIN/..)
  target_link_libraries(${backend} PRIVATE yoke_mesh)
endfunction()

# The headers that nearly all code with LibTorch needs.
set(YOKE_TORCH_HEADERS <string> <vector> <memory> <functional>
  <ATen/ATen.h> <torch/csrc/autograd/autograd.h> <torch/csrc/autograd/custom_function.h>
  <torch/csrc/distributed/c10d/ProcessGroup.hpp>)

# yoke_torch_pch precompiles these headers. Compiling them once takes 19 s; each file then takes 2 s instead of 8. The
# target is created at top level because several folders use it.
function(yoke_make_torch_pch)
  file(WRITE ${PROJECT_BINARY_DIR}/torch_pch.cpp "")
  add_library(yoke_torch_pch OBJECT ${PROJECT_BINARY_DIR}/torch_pch.cpp)
  target_link_libraries(yoke_torch_pch PUBLIC torch::cpu Threads::Threads)
  set_target_properties(yoke_torch_pch PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(yoke_torch_pch PRIVATE -fPIC)
  target_precompile_headers(yoke_torch_pch PRIVATE ${YOKE_TORCH_HEADERS})
endfunction()

function(yoke_use_torch name)
  target_link_libraries(${name} PUBLIC torch::cpu)
  target_precompile_headers(${name} REUSE_FROM yoke_torch_pch)
  # Libraries and programs can share one precompiled header only if all are compiled with the same flag.
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${name} PRIVATE -fPIC $<$<BOOL:${YOKE_HIDE_PATHS}>:-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>)
endfunction()

# yoke_kernels(OUT NAME SOURCE MACRO) Compiles SOURCE once for each instruction set (baseline, avx2, avx512) and returns
# the objects in OUT. Each time, MACRO is defined as kernels_<set> and MACRO_SET as "<set>". Loops are marked with `omp
# simd`, which needs no OpenMP run time.
function(yoke_kernels out name source macro)
  set(_baseline -O3)
  set(_avx2 -O3 -march=x86-64-v3 -ffp-contract=fast)
  set(_avx512 -O3 -march=x86-64-v4 -mprefer-vector-width=512 -ffp-contract=fast)
  set(_sets baseline)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    list(APPEND _sets avx2 avx512)
  endif()
  foreach(_set ${_sets})
    add_library(${name}_${_set} OBJECT ${source})
    target_include_directories(${name}_${_set} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/sdk/include)
    target_compile_definitions(${name}_${_set} PRIVATE ${macro}=kernels_${_set} ${macro}_SET="${_set}")
    target_compile_options(${name}_${_set} PRIVATE ${_${_set}} -fopenmp-simd -fno-math-errno -fno-trapping-math)
    list(APPEND _objects $<TARGET_OBJECTS:${name}_${_set}>)
  endforeach()
  set(${out} ${_objects} PARENT_SCOPE)
endfunction()

# Tests run on the CPU even on a machine with GPUs, where `device = "auto"` would use a GPU. GPU tests set cuda. With
# GOMP_SPINCOUNT, a thread of OpenMP that waits for another one sleeps early. By default it keeps its core, even if the
# other one needs it, which multiplies the time of tests that run beside others.
set(YOKE_TEST_ENVIRONMENT YOKE_BIN=${PROJECT_BINARY_DIR}/bin YOKE_SOURCE=${PROJECT_SOURCE_DIR} YOKE_DEVICE=cpu
  GOMP_SPINCOUNT=10000)

# yoke_test(NAME SOURCES a_test.cpp ... [LINK lib ...] [LABELS l ...] [TORCH])
function(yoke_test name)
  cmake_parse_arguments(A "TORCH" "" "SOURCES;LINK;LABELS" ${ARGN})
  find_package(GTest REQUIRED)
  add_executable(${name} ${A_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE yoke::sdk ${A_LINK} GTest::gmock GTest::gtest_main Threads::Threads)
  if(A_TORCH)
    target_link_libraries(${name} PRIVATE torch::cpu)
    yoke_use_torch(${name})
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${A_LABELS}" TIMEOUT 3600 ENVIRONMENT "${YOKE_TEST_ENVIRONMENT}")
endfunction()

# yoke_nightly_cases(NAME PATTERN...) moves the cases of a GoogleTest program whose names match a pattern to the test
# NAME_nightly, which has the label nightly. Use it for variants of what other cases test on each commit.
function(yoke_nightly_cases name)
  list(JOIN ARGN ":" _patterns)
  get_test_property(${name} ENVIRONMENT _environment)
  get_test_property(${name} LABELS _labels)
  set_tests_properties(${name} PROPERTIES ENVIRONMENT "${_environment};GTEST_FILTER=-${_patterns}")
  add_test(NAME ${name}_nightly COMMAND ${name})
  set_tests_properties(${name}_nightly PROPERTIES LABELS "${_labels};nightly" TIMEOUT 36000
    FAIL_REGULAR_EXPRESSION "Running 0 tests" ENVIRONMENT "${_environment};GTEST_FILTER=${_patterns}")
endfunction()

# yoke_gpu_test(NAME ...) is yoke_test for tests that need a GPU. The test has the label gpu, is SKIPPED without a GPU,
# and never runs at the same time as another one. NAME ends in _gpu_test. scripts/gpu_test --pack copies the program.
function(yoke_gpu_test name)
  yoke_test(${name} LABELS gpu ${ARGN})
  set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]" RESOURCE_LOCK gpu)
  install(TARGETS ${name} DESTINATION tests COMPONENT gpu_test EXCLUDE_FROM_ALL)
endfunction()
