# For toolchain files: finds libraries in the folder that cross-libraries.sh has filled, which PKG_CONFIG_LIBDIR names when a folder
# is configured first.
if(NOT QN_CROSS_PREFIX AND NOT "$ENV{PKG_CONFIG_LIBDIR}" STREQUAL "")
    get_filename_component(prefix "$ENV{PKG_CONFIG_LIBDIR}/../.." ABSOLUTE)
    set(QN_CROSS_PREFIX ${prefix} CACHE PATH "Libraries for the system that is compiled for")
endif()
if(QN_CROSS_PREFIX)
    list(APPEND CMAKE_FIND_ROOT_PATH ${QN_CROSS_PREFIX})
    set(ENV{PKG_CONFIG_LIBDIR} ${QN_CROSS_PREFIX}/lib/pkgconfig)
endif()
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES QN_CROSS_PREFIX)
