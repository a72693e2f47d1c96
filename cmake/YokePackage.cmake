# Installs documents, run files and licences, and configures the archive: cpack --config <build>/CPackConfig.cmake
install(FILES LICENSE NOTICE DESTINATION share/doc/yoke COMPONENT runtime)
# The documents keep their folders of the repository, so links between them work. finish_documents.cmake rewrites the
# links to files that are in other folders of an install.
file(GLOB _pages RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS *.md)
file(GLOB_RECURSE _more RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS
  docs/*.md bench/*.md plugins/*.md sdk/*.md)
foreach(_page ${_pages} ${_more})
  get_filename_component(_folder ${_page} DIRECTORY)
  install(FILES ${_page} DESTINATION share/doc/yoke/${_folder} COMPONENT runtime)
endforeach()
install(DIRECTORY docs/pictures DESTINATION share/doc/yoke/docs COMPONENT runtime)
install(SCRIPT ${CMAKE_CURRENT_LIST_DIR}/finish_documents.cmake ALL_COMPONENTS)
install(DIRECTORY configs DESTINATION share/yoke COMPONENT runtime)
# Licences of the libraries that are compiled in, from Debian's packages.
foreach(_work libcli11-dev libfmt-dev libpcre2-dev libspdlog-dev libtomlplusplus-dev liburing-dev libutf8proc-dev
        libxxhash-dev libyaml-cpp-dev nlohmann-json3-dev)
  install(FILES /usr/share/doc/${_work}/copyright DESTINATION share/doc/yoke/licences RENAME ${_work}
    COMPONENT runtime OPTIONAL)
endforeach()

set(CPACK_GENERATOR TGZ)
# CPack changes the variable CPACK_PACKAGE_FILE_NAME, so the name is also kept in another variable.
string(TOLOWER yoke-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR} YOKE_ARCHIVE_NAME)
set(CPACK_PACKAGE_FILE_NAME ${YOKE_ARCHIVE_NAME})
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/finish_archive.cmake)
set(CPACK_VERBATIM_VARIABLES ON)
include(CPack)
