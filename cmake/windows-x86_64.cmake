# Toolchain file: cross build for 64-bit Windows with Debian's gcc-mingw-w64-x86-64-posix. Static but for the system's own DLLs.
# The libraries that quern needs come from cmake/cross-libraries.sh, whose folder is named by PKG_CONFIG_LIBDIR.
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_C_COMPILER x86_64-w64-mingw32-gcc-posix)
set(CMAKE_RC_COMPILER x86_64-w64-mingw32-windres)
set(CMAKE_AR x86_64-w64-mingw32-gcc-ar-posix CACHE FILEPATH "")
set(CMAKE_RANLIB x86_64-w64-mingw32-gcc-ranlib-posix CACHE FILEPATH "")
# The libraries' headers would else declare imports from DLLs. FD_SETSIZE: sockets of libmicrohttpd and quern serve, 64 by default.
set(CMAKE_C_FLAGS_INIT "-DPCRE2_STATIC -DUTF8PROC_STATIC -DCURL_STATICLIB -DFD_SETSIZE=2048")
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
set(CMAKE_CROSSCOMPILING_EMULATOR wine)
set(CMAKE_FIND_ROOT_PATH /usr/x86_64-w64-mingw32)
include(${CMAKE_CURRENT_LIST_DIR}/cross-prefix.cmake)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
