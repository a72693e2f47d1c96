# Run by CPack on the files of the archive, before they are packed.
set(_root ${CPACK_TEMPORARY_INSTALL_DIRECTORY})
# Where LibTorch lies on the machine that built this is not where it lies elsewhere: YOKE_TORCH_LIB says it.
file(RPATH_REMOVE FILE ${_root}/lib/libyoke_worker.so)
file(COPY ${_root}/share/doc/yoke/README.md DESTINATION ${_root})
