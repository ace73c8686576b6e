# What a wheel of pyquern holds (python/pyproject.toml): the shared library, beside the package that loads it, and the declarations
# of its functions. Read in place of install.cmake where scikit-build-core builds.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)

# A wheel has no symbolic links, so the library has one name. Its dependencies are those of the system, or of where they were found.
set_property(TARGET quern-shared PROPERTY VERSION)
set_property(TARGET quern-shared PROPERTY SOVERSION)
set_target_properties(quern-shared PROPERTIES INSTALL_RPATH "$ORIGIN" INSTALL_RPATH_USE_LINK_PATH ON)
install(TARGETS quern-shared LIBRARY DESTINATION pyquern COMPONENT python)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION pyquern COMPONENT python)

set(headers status kernels cuda output quern scheduler grammar)
list(TRANSFORM headers REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/include/quern/\\1.h")
add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/_cdef.py
                   COMMAND Python::Interpreter ${PROJECT_SOURCE_DIR}/python/make_cdef.py ${PROJECT_BINARY_DIR}/_cdef.py ${headers}
                   DEPENDS ${PROJECT_SOURCE_DIR}/python/make_cdef.py ${headers} VERBATIM)
add_custom_target(pyquern-cdef DEPENDS ${PROJECT_BINARY_DIR}/_cdef.py)
install(FILES ${PROJECT_BINARY_DIR}/_cdef.py DESTINATION pyquern COMPONENT python)
