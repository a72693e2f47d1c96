# Rewrites links in installed documents if their targets are in other folders in an install than in the repository.
set(_doc "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/share/doc/yoke")

# rewrite(PAGE REGEX REPLACEMENT ...) changes link targets of a page, if it is installed.
function(rewrite page)
  if(NOT EXISTS ${page})
    return()
  endif()
  file(READ ${page} _text)
  while(ARGN)
    list(POP_FRONT ARGN _regex _replacement)
    string(REGEX REPLACE "\\]\\(${_regex}" "](${_replacement}" _text "${_text}")
  endwhile()
  file(WRITE ${page} "${_text}")
endfunction()

rewrite(${_doc}/docs/several_machines.md "\\.\\./configs/" "../../../yoke/configs/")
rewrite(${_doc}/docs/python.md "\\.\\./sdk/examples/" "../../../yoke/examples/")
rewrite(${_doc}/sdk/README.md "include/" "../../../../include/" "examples/" "../../../yoke/examples/")
rewrite(${_doc}/sdk/examples/README.md "pipeline/" "../../../../yoke/examples/pipeline/")
rewrite(${_doc}/plugins/validate/README.md "\\.\\./\\.\\./sdk/include/" "../../../../../include/")
rewrite(${_doc}/../../yoke/examples/README.md "\\.\\./README" "../../doc/yoke/sdk/README")
