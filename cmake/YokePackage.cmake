# What an install holds besides programs and headers, and the archive: cpack --config <build>/CPackConfig.cmake
install(FILES README.md CHANGELOG.md LICENSE NOTICE DESTINATION share/doc/yoke COMPONENT runtime)
install(FILES sdk/README.md DESTINATION share/doc/yoke RENAME sdk.md COMPONENT sdk)
install(DIRECTORY configs DESTINATION share/yoke COMPONENT runtime)
# The licences of what is compiled in, as Debian keeps them.
foreach(_work libcli11-dev libfmt-dev libspdlog-dev libtomlplusplus-dev libyaml-cpp-dev nlohmann-json3-dev)
  install(FILES /usr/share/doc/${_work}/copyright DESTINATION share/doc/yoke/licences RENAME ${_work}
    COMPONENT runtime OPTIONAL)
endforeach()

set(CPACK_GENERATOR TGZ)
# CPack leaves another name in its own variable.
string(TOLOWER yoke-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR} YOKE_ARCHIVE_NAME)
set(CPACK_PACKAGE_FILE_NAME ${YOKE_ARCHIVE_NAME})
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/finish_archive.cmake)
set(CPACK_VERBATIM_VARIABLES ON)
include(CPack)
