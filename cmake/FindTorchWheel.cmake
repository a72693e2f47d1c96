# Finds LibTorch in the PyPI wheel. It needs no CUDA toolkit at configure time.
#   YOKE_TORCH_DIR   folder that holds include/ and lib/ of LibTorch. Default: the folder above the one that the
#                    environment variable YOKE_TORCH_LIB names, else the package torch beside the package
#                    yoke_trainer that contains this file, else the wheel of scripts/setup.
# Defines the imported targets torch::c10 and torch::cpu, and TorchWheel_VERSION and TorchWheel_DIR.
# Only libtorch_cpu and libc10 are linked: libtorch.so would pull in libtorch_cuda (0.1 s and 230 MB at start).
set(YOKE_TORCH_DIR "" CACHE PATH "Folder with include/ and lib/ of LibTorch; empty = what scripts/setup installed")

set(_torch ${YOKE_TORCH_DIR})
if(NOT _torch AND DEFINED ENV{YOKE_TORCH_LIB})
  get_filename_component(_torch $ENV{YOKE_TORCH_LIB}/.. ABSOLUTE)
endif()
if(NOT _torch AND CMAKE_CURRENT_LIST_DIR MATCHES "^(.*)/yoke_trainer/prefix/lib/cmake/yoke$")
  file(GLOB _torch LIST_DIRECTORIES true ${CMAKE_MATCH_1}/torch)
endif()
if(NOT _torch)
  if(DEFINED ENV{YOKE_DEPS})
    set(_deps $ENV{YOKE_DEPS})
  elseif(DEFINED ENV{XDG_CACHE_HOME})
    set(_deps $ENV{XDG_CACHE_HOME}/yoke)
  else()
    set(_deps $ENV{HOME}/.cache/yoke)
  endif()
  file(GLOB _torch LIST_DIRECTORIES true ${_deps}/venv/lib/python3*/site-packages/torch)
endif()

if(_torch AND EXISTS ${_torch}/include/torch/headeronly/version.h)
  file(STRINGS ${_torch}/include/torch/headeronly/version.h _version REGEX "^ *\"[0-9.]+\"")
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" TorchWheel_VERSION "${_version}")
endif()
unset(TorchWheel_LIBRARY CACHE)
find_file(TorchWheel_LIBRARY libtorch_cpu.so PATHS ${_torch}/lib NO_DEFAULT_PATH)
set(TorchWheel_DIR ${_torch})

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TorchWheel
  REQUIRED_VARS TorchWheel_LIBRARY VERSION_VAR TorchWheel_VERSION
  REASON_FAILURE_MESSAGE "run scripts/setup of Yoke, or give -DYOKE_TORCH_DIR=<folder with include/ and lib/ of LibTorch>")

if(TorchWheel_FOUND AND NOT TARGET torch::cpu)
  add_library(torch::c10 SHARED IMPORTED GLOBAL)
  set_target_properties(torch::c10 PROPERTIES
    IMPORTED_LOCATION ${_torch}/lib/libc10.so
    INTERFACE_INCLUDE_DIRECTORIES "${_torch}/include;${_torch}/include/torch/csrc/api/include")
  # The libraries that libtorch_cpu.so needs are in other wheels, not in a system folder.
  file(GLOB _nvidia LIST_DIRECTORIES true ${_torch}/../nvidia/*/lib)
  list(TRANSFORM _nvidia PREPEND "LINKER:-rpath-link,")
  add_library(torch::cpu SHARED IMPORTED GLOBAL)
  set_target_properties(torch::cpu PROPERTIES
    IMPORTED_LOCATION ${_torch}/lib/libtorch_cpu.so
    INTERFACE_LINK_LIBRARIES torch::c10
    INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO"
    INTERFACE_LINK_OPTIONS "${_nvidia}")
endif()
