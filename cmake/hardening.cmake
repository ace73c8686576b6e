# Hardening of every optimised build of library, program, checker and tests: stack protector, checked variants of libc's
# functions, probes of large stack frames, landing pads for indirect branches, read-only relocations, position-independent
# executables. What the compiler or the target lacks is left out. A build without optimisation has none (_FORTIFY_SOURCE needs
# it), nor has one with sanitizers, which check more. QN_HARDENING=OFF builds the same program without, to measure the cost.
# tests/test_hardening.sh reads the binaries.

option(QN_HARDENING "Harden optimised builds: stack protector, _FORTIFY_SOURCE, CET or BTI, full RELRO, PIE" ON)

include(CheckCCompilerFlag)
include(CheckLinkerFlag)
include(CheckPIESupported)

# qn_read_macros(text) - the macros that the compiler predefines under the flags of this build. They tell whether it optimises,
# and whether it has _FORTIFY_SOURCE by default or from its caller, as from dpkg-buildflags: a second one would be a warning.
function(qn_read_macros text)
    string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
    separate_arguments(flags UNIX_COMMAND "${CMAKE_C_FLAGS} ${CMAKE_C_FLAGS_${type}}")
    # zig leaves a null.o where it runs.
    execute_process(COMMAND ${CMAKE_C_COMPILER} ${flags} -dM -E -x c /dev/null OUTPUT_VARIABLE macros ERROR_QUIET
                    WORKING_DIRECTORY ${PROJECT_BINARY_DIR})
    set(${text} "${macros}" PARENT_SCOPE)
endfunction()

# qn_harden() - sets the flags for the targets that follow.
function(qn_harden)
    qn_read_macros(macros)
    if(NOT QN_HARDENING OR QN_SANITIZE OR NOT macros MATCHES "#define __OPTIMIZE__ ")
        return()
    endif()
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
        set(branches -mbranch-protection=standard)
    else()
        set(branches -fcf-protection=full)
    endif()
    set(flags -fstack-protector-strong -fstack-clash-protection ${branches})
    if(WIN32)
        # Windows probes large frames by itself; gcc fails on the unwind tables of aligned frames with probes of its own.
        set(flags -fstack-protector-strong)
    endif()
    foreach(flag IN LISTS flags)
        string(MAKE_C_IDENTIFIER "QN_COMPILER_HAS${flag}" has)
        check_c_compiler_flag(${flag} ${has})
        if(${has})
            add_compile_options(${flag})
        endif()
    endforeach()
    if(NOT macros MATCHES "#define _FORTIFY_SOURCE ")
        add_compile_definitions(_FORTIFY_SOURCE=2)
    endif()
    check_linker_flag(C "-Wl,-z,relro,-z,now,-z,noexecstack" QN_LINKER_HAS_RELRO)
    if(QN_LINKER_HAS_RELRO)
        add_link_options(-Wl,-z,relro,-z,now,-z,noexecstack)
    endif()
    # A static program is position-independent by -static-pie alone, which a toolchain file sets: with -pie after -static it
    # would not start.
    if(NOT CMAKE_EXE_LINKER_FLAGS MATCHES "-static")
        check_pie_supported(LANGUAGES C OUTPUT_VARIABLE complaint)
        if(NOT CMAKE_C_LINK_PIE_SUPPORTED)
            message(STATUS "the linker makes no position-independent executables: ${complaint}")
        endif()
    endif()
endfunction()
