# Finds Apache Arrow C++, with Parquet, in the PyPI wheel pyarrow.
#   YOKE_ARROW_DIR   the package pyarrow, with include/ and the libraries. Default: the one beside LibTorch
# Defines the imported target arrow::parquet, and ArrowWheel_VERSION and ArrowWheel_DIR. The libraries of the wheel have
# the version of their interface in their names and no name without it, so a build works with one version only.
set(YOKE_ARROW_DIR "" CACHE PATH "The package pyarrow; empty = the one beside LibTorch")

set(_arrow ${YOKE_ARROW_DIR})
if(NOT _arrow)
  get_filename_component(_arrow ${TorchWheel_DIR}/../pyarrow ABSOLUTE)
endif()
if(EXISTS ${_arrow}/include/arrow/util/config.h)
  file(STRINGS ${_arrow}/include/arrow/util/config.h _version REGEX "define ARROW_VERSION_STRING")
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" ArrowWheel_VERSION "${_version}")
endif()
file(GLOB ArrowWheel_LIBRARY ${_arrow}/libarrow.so.*)
file(GLOB ArrowWheel_PARQUET ${_arrow}/libparquet.so.*)
set(ArrowWheel_DIR ${_arrow})

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(ArrowWheel
  REQUIRED_VARS ArrowWheel_PARQUET ArrowWheel_LIBRARY VERSION_VAR ArrowWheel_VERSION
  REASON_FAILURE_MESSAGE "run scripts/setup --parquet, or give -DYOKE_ARROW_DIR=<the package pyarrow>")

if(ArrowWheel_FOUND AND NOT TARGET arrow::parquet)
  add_library(arrow::arrow SHARED IMPORTED GLOBAL)
  set_target_properties(arrow::arrow PROPERTIES
    IMPORTED_LOCATION ${ArrowWheel_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${_arrow}/include)
  add_library(arrow::parquet SHARED IMPORTED GLOBAL)
  set_target_properties(arrow::parquet PROPERTIES
    IMPORTED_LOCATION ${ArrowWheel_PARQUET}
    INTERFACE_LINK_LIBRARIES arrow::arrow)
endif()
