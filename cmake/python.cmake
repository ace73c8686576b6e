# What a wheel of pyquern holds (python/pyproject.toml): the shared library, beside the package that loads it, and the declarations
# of its functions. Read in place of install.cmake where scikit-build-core builds.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)

set(QN_PYTHON_LIBRARY "" CACHE FILEPATH "libquern.so to put into the wheel in place of one that is compiled for it")
if(QN_PYTHON_LIBRARY)
    add_custom_target(pyquern-library)
    file(REAL_PATH ${QN_PYTHON_LIBRARY} library) # not the symbolic link
    install(FILES ${library} DESTINATION pyquern RENAME libquern.so COMPONENT python)
else()
    # A wheel has no symbolic links, so the library has one name. Its dependencies are those of the system, or of where they were found.
    set_property(TARGET quern-shared PROPERTY VERSION)
    set_property(TARGET quern-shared PROPERTY SOVERSION)
    set_target_properties(quern-shared PROPERTIES INSTALL_RPATH "$ORIGIN" INSTALL_RPATH_USE_LINK_PATH ON)
    add_custom_target(pyquern-library DEPENDS quern-shared)
    install(TARGETS quern-shared LIBRARY DESTINATION pyquern COMPONENT python)
endif()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION pyquern COMPONENT python)

set(headers status kernels cuda output quern scheduler grammar)
list(TRANSFORM headers REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/include/quern/\\1.h")
add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/_cdef.py
                   COMMAND Python::Interpreter ${PROJECT_SOURCE_DIR}/python/make_cdef.py ${PROJECT_BINARY_DIR}/_cdef.py ${headers}
                   DEPENDS ${PROJECT_SOURCE_DIR}/python/make_cdef.py ${headers} VERBATIM)
add_custom_target(pyquern-cdef DEPENDS ${PROJECT_BINARY_DIR}/_cdef.py)
install(FILES ${PROJECT_BINARY_DIR}/_cdef.py DESTINATION pyquern COMPONENT python)
