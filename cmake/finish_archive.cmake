# CPack runs this script on the files of the archive before it packs them.
set(_root ${CPACK_TEMPORARY_INSTALL_DIRECTORY})
# The folder of LibTorch differs between machines. YOKE_TORCH_LIB names it, so no library may contain this machine's
# path.
file(GLOB _ours ${_root}/lib/libyoke_*.so)
foreach(_library ${_ours})
  file(RPATH_REMOVE FILE ${_library})
endforeach()
# The README is also at the top of the archive; there its links go down to the other documents.
file(READ ${_root}/share/doc/yoke/README.md _text)
string(REGEX REPLACE "\\]\\(([A-Za-z])" "](share/doc/yoke/\\1" _text "${_text}")
string(REGEX REPLACE "\\]\\(share/doc/yoke/(https?:)" "](\\1" _text "${_text}")
file(WRITE ${_root}/README.md "${_text}")
