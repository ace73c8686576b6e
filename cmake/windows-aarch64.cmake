# Toolchain file: compiles for 64-bit Windows on ARM with clang and the headers of Debian's mingw-w64, which are those of every processor.
# Debian has no libraries for it, so nothing is linked: the static libraries show that everything compiles. Headers of the libraries that
# quern needs are those of cmake/cross-libraries.sh for x86-64, whose folder is named by PKG_CONFIG_LIBDIR.
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER clang)
set(CMAKE_C_COMPILER_TARGET aarch64-w64-mingw32)
set(CMAKE_RC_COMPILER x86_64-w64-mingw32-windres)
set(CMAKE_AR llvm-ar CACHE FILEPATH "")
set(CMAKE_RANLIB llvm-ranlib CACHE FILEPATH "")
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(CMAKE_C_FLAGS_INIT
    "-isystem /usr/share/mingw-w64/include -DPCRE2_STATIC -DUTF8PROC_STATIC -DCURL_STATICLIB -DFD_SETSIZE=2048")
include(${CMAKE_CURRENT_LIST_DIR}/cross-prefix.cmake)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
