# Run by CPack on the files of the archive, before they are packed.
set(_root ${CPACK_TEMPORARY_INSTALL_DIRECTORY})
# Where LibTorch lies on the machine that built this is not where it lies elsewhere: YOKE_TORCH_LIB says it.
file(GLOB _ours ${_root}/lib/libyoke_*.so)
foreach(_library ${_ours})
  file(RPATH_REMOVE FILE ${_library})
endforeach()
file(COPY ${_root}/share/doc/yoke/README.md DESTINATION ${_root})
