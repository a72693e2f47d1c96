# Enables CUDA if nvcc and the wheels that libtorch_cuda links to are present.
#   YOKE_CUDA                AUTO (CUDA if it is possible), ON (an error if it is not), OFF
#   YOKE_CUDA_ARCHITECTURES  compute capabilities of the kernels; newer cards run the PTX of the last one
# Sets YOKE_HAS_CUDA and YOKE_CUDA_VERDICT. With CUDA it also enables the language and defines torch::c10_cuda,
# torch::cuda and yoke_cuda_kernels(). A library that links torch::cuda is loaded only by runs on a device.
set(YOKE_CUDA AUTO CACHE STRING "Build for NVIDIA GPUs: AUTO, ON or OFF")
set_property(CACHE YOKE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(YOKE_CUDA_ARCHITECTURES "80;90" CACHE STRING "Compute capabilities of the CUDA kernels")

# Sets OUT to what is missing, or to "".
function(_yoke_missing_for_cuda out)
  set(${out} "" PARENT_SCOPE)
  if(YOKE_SANITIZE)
    set(${out} "sanitizers and CUDA do not go together" PARENT_SCOPE)
  elseif(NOT YOKE_NVCC)
    set(${out} "no nvcc in PATH or /usr/local/cuda/bin" PARENT_SCOPE)
  else()
    foreach(_file ${TorchWheel_DIR}/lib/libtorch_cuda.so ${_nvidia}/cu13/lib/libcudart.so.13
                  ${_nvidia}/nccl/lib/libnccl.so.2 ${_nvidia}/nccl/include/nccl.h)
      if(NOT EXISTS ${_file})
        set(${out} "${_file} is missing (scripts/setup --cuda installs it)" PARENT_SCOPE)
        return()
      endif()
    endforeach()
    find_package(CUDAToolkit QUIET)
    if(NOT CUDAToolkit_VERSION_MAJOR EQUAL 13)
      set(${out} "the toolkit of ${YOKE_NVCC} is ${CUDAToolkit_VERSION}, LibTorch's is 13" PARENT_SCOPE)
    endif()
  endif()
endfunction()

set(YOKE_HAS_CUDA OFF)
if(NOT YOKE_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "YOKE_CUDA=${YOKE_CUDA}; allowed: AUTO, ON, OFF")
endif()
if(YOKE_CUDA STREQUAL "OFF")
  set(YOKE_CUDA_VERDICT "off (YOKE_CUDA=OFF)")
else()
  find_program(YOKE_NVCC nvcc HINTS $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
  get_filename_component(_nvidia ${TorchWheel_DIR}/../nvidia ABSOLUTE)
  _yoke_missing_for_cuda(_missing)
  if(_missing STREQUAL "")
    set(YOKE_HAS_CUDA ON)
  elseif(YOKE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "YOKE_CUDA=ON, but ${_missing}")
  else()
    set(YOKE_CUDA_VERDICT "off: ${_missing}")
  endif()
endif()
if(NOT YOKE_HAS_CUDA)
  return()
endif()

set(CMAKE_CUDA_COMPILER ${YOKE_NVCC})
set(CMAKE_CUDA_ARCHITECTURES ${YOKE_CUDA_ARCHITECTURES})
set(CMAKE_CUDA_STANDARD 17) # the latest standard that CMake 3.25 supports for nvcc 13
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
if(CMAKE_CXX_COMPILER_LAUNCHER AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
list(JOIN YOKE_CUDA_ARCHITECTURES ", " _architectures)
set(YOKE_CUDA_VERDICT "toolkit ${CUDAToolkit_VERSION}, compute capability ${_architectures}")

# nccl.h must be that of the wheel, because c10d embeds a struct that grows from version to version. libnccl and
# libcudart are not linked: libtorch_cuda loads those of the wheel, and a system copy must not be found first.
add_library(torch::c10_cuda SHARED IMPORTED GLOBAL)
set_target_properties(torch::c10_cuda PROPERTIES
  IMPORTED_LOCATION ${TorchWheel_DIR}/lib/libc10_cuda.so
  INTERFACE_INCLUDE_DIRECTORIES "${_nvidia}/nccl/include;${CUDAToolkit_INCLUDE_DIRS}"
  INTERFACE_LINK_LIBRARIES torch::c10)
add_library(torch::cuda SHARED IMPORTED GLOBAL)
set_target_properties(torch::cuda PROPERTIES
  IMPORTED_LOCATION ${TorchWheel_DIR}/lib/libtorch_cuda.so
  INTERFACE_COMPILE_DEFINITIONS USE_C10D_NCCL
  INTERFACE_LINK_LIBRARIES "torch::cpu;torch::c10_cuda")

# yoke_cuda_kernels(TARGET SOURCES a.cu ... [WITH_LIBTORCH])
# Adds device code to TARGET. The CUDA run time is linked statically and exports no symbol, so TARGET can be loaded on
# machines without CUDA. With WITH_LIBTORCH, TARGET links torch::cuda, which has its own CUDA run time, so none is added.
# The device code may then include LibTorch's header-only part, and nothing else of LibTorch.
function(yoke_cuda_kernels target)
  cmake_parse_arguments(A "WITH_LIBTORCH" "" "SOURCES" ${ARGN})
  add_library(${target}_device OBJECT ${A_SOURCES})
  target_include_directories(${target}_device PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/sdk/include)
  target_compile_options(${target}_device PRIVATE -Xcompiler=-Wall,-Wextra,-Wno-unused-parameter)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_device>)
  set_target_properties(${target} PROPERTIES CUDA_RUNTIME_LIBRARY None)
  if(A_WITH_LIBTORCH)
    target_include_directories(${target}_device SYSTEM PRIVATE ${TorchWheel_DIR}/include)
  else()
    target_link_libraries(${target} PRIVATE CUDA::cudart_static)
    target_link_options(${target} PRIVATE LINKER:--exclude-libs,libcudart_static.a)
  endif()
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
endfunction()
