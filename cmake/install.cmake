# What `make install` puts where: libraries, headers, the program, and the files by which pkg-config and CMake find them.
include(CMakePackageConfigHelpers)

install(TARGETS quern-shared EXPORT quern-targets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} NAMELINK_COMPONENT development)
if(TARGET quern-kernels)
    install(TARGETS quern-kernels EXPORT quern-targets
            LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} NAMELINK_COMPONENT development)
endif()
install(TARGETS quern-static EXPORT quern-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/quern DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
foreach(program quern quern-check)
    if(TARGET ${program})
        install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    endif()
endforeach()
# Where src/cli/demo_model.c looks for it.
install(FILES ${PROJECT_SOURCE_DIR}/models/quern-demo.gguf DESTINATION ${CMAKE_INSTALL_DATADIR}/quern)
install(FILES ${PROJECT_SOURCE_DIR}/docs/quern.1 ${PROJECT_SOURCE_DIR}/docs/quern-check.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
# Completion for shells is printed by the program from its table of options.
if(TARGET quern AND NOT CMAKE_CROSSCOMPILING)
    set(places bash share/bash-completion/completions/quern zsh share/zsh/site-functions/_quern
               fish share/fish/vendor_completions.d/quern.fish)
    while(places)
        list(POP_FRONT places shell place)
        set(file ${PROJECT_BINARY_DIR}/completion/quern.${shell})
        add_custom_command(OUTPUT ${file} COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/completion
                           COMMAND quern help --completion ${shell} > ${file} DEPENDS quern VERBATIM)
        list(APPEND completions ${file})
        cmake_path(GET place PARENT_PATH folder)
        cmake_path(GET place FILENAME name)
        install(FILES ${file} DESTINATION ${folder} RENAME ${name})
    endwhile()
    add_custom_target(completions ALL DEPENDS ${completions})
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/quern.service.in ${PROJECT_BINARY_DIR}/quern.service @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/quern.service DESTINATION lib/systemd/system)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md
        DESTINATION ${CMAKE_INSTALL_DOCDIR})

# pkg-config requires absolute paths; with GNUInstallDirs a directory may be relative to the prefix or absolute already.
foreach(dir LIBDIR INCLUDEDIR)
    if(IS_ABSOLUTE "${CMAKE_INSTALL_${dir}}")
        set(QN_PC_${dir} "${CMAKE_INSTALL_${dir}}")
    else()
        set(QN_PC_${dir} "\${prefix}/${CMAKE_INSTALL_${dir}}")
    endif()
endforeach()
configure_file(${PROJECT_SOURCE_DIR}/quern.pc.in ${PROJECT_BINARY_DIR}/quern.pc @ONLY)
configure_file(${PROJECT_SOURCE_DIR}/quern-kernels.pc.in ${PROJECT_BINARY_DIR}/quern-kernels.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/quern.pc ${PROJECT_BINARY_DIR}/quern-kernels.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

set(QN_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/quern)
configure_package_config_file(${PROJECT_SOURCE_DIR}/quern-config.cmake.in ${PROJECT_BINARY_DIR}/quern-config.cmake
                              INSTALL_DESTINATION ${QN_CMAKE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/quern-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/quern-config.cmake ${PROJECT_BINARY_DIR}/quern-config-version.cmake
        DESTINATION ${QN_CMAKE_DIR})
install(EXPORT quern-targets NAMESPACE quern:: DESTINATION ${QN_CMAKE_DIR})
