# yoke_add_backend(NAME SOURCES a.cpp ... [LINK lib ...] [TORCH])
# Builds NAME.so, which exports the entry function and no other symbol, has no undefined symbols, and is never unloaded.
# TORCH: the backend uses yoke/torch.hpp and links LibTorch. The host decides which LibTorch is loaded, so no path is
# written into the file.
set(YOKE_BACKEND_MAP ${CMAKE_CURRENT_LIST_DIR}/backend.map)

function(yoke_add_backend name)
  cmake_parse_arguments(A "TORCH" "" "SOURCES;LINK" ${ARGN})
  if(NOT name MATCHES "^[a-z][a-z0-9_]*$")
    message(FATAL_ERROR "yoke_add_backend: name '${name}'; allowed: [a-z][a-z0-9_]*")
  endif()
  if(A_TORCH AND NOT TARGET torch::cpu)
    message(FATAL_ERROR "yoke_add_backend(${name} TORCH): LibTorch is not found; pass "
      "-DYOKE_TORCH_DIR=<folder with include/ and lib/ of LibTorch>, or remove TORCH")
  endif()
  add_library(${name} MODULE ${A_SOURCES})
  set_target_properties(${name} PROPERTIES PREFIX "" SUFFIX .so
    C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON SKIP_BUILD_RPATH ON INSTALL_RPATH "" LINK_DEPENDS ${YOKE_BACKEND_MAP})
  if(DEFINED YOKE_BACKEND_DIR)
    set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${YOKE_BACKEND_DIR})
    install(TARGETS ${name} DESTINATION lib/yoke/backends COMPONENT runtime)
  endif()
  target_link_libraries(${name} PRIVATE yoke::sdk ${A_LINK})
  target_link_options(${name} PRIVATE LINKER:--version-script=${YOKE_BACKEND_MAP} LINKER:-z,nodelete)
  if(NOT CMAKE_SHARED_LINKER_FLAGS MATCHES "sanitize" AND NOT YOKE_SANITIZE)
    target_link_options(${name} PRIVATE LINKER:-z,defs)
  endif()
  if(A_TORCH)
    target_link_libraries(${name} PRIVATE torch::cpu)
    if(COMMAND yoke_use_torch)
      yoke_use_torch(${name})
    endif()
  endif()
endfunction()
