# Which files are compiled for which instruction set. The name says it: matmul_avx512.c is compiled with AVX-512 and called
# only where the processor has it. A file for another architecture is left out.

set(QN_FLAGS_avx2 -mavx2 -mfma -mf16c)
# Sanitizers: the reference kernels, which do the same, are checked for undefined behaviour; here that would cost most of the
# suite's time. Accesses to memory are checked everywhere. The flags come behind those of CMakeLists.txt.
if(QN_SANITIZE MATCHES "undefined")
    list(APPEND QN_FLAGS_avx2 -O2 -fno-sanitize=undefined)
    if(QN_FUZZ)
        list(APPEND QN_FLAGS_avx2 -fno-sanitize=fuzzer-no-link)
    endif()
endif()
set(QN_FLAGS_avx512 ${QN_FLAGS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi -mgfni
                    -mprefer-vector-width=512)
set(QN_FLAGS_avxvnni ${QN_FLAGS_avx2} -mavxvnni)
set(QN_FLAGS_neon "")
set(QN_FLAGS_neondot -march=armv8.2-a+dotprod+fp16)

# qn_select_isa(list) - drops from the named list of sources what this target cannot be, and sets the flags of the others.
function(qn_select_isa list)
    set(isas "")
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
        set(isas avx2 avx512)
        check_c_compiler_flag(-mavxvnni QN_COMPILER_HAS_AVXVNNI)
        if(QN_COMPILER_HAS_AVXVNNI)
            list(APPEND isas avxvnni)
            add_compile_definitions(QN_HAVE_AVXVNNI)
        endif()
    elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
        set(isas neon neondot)
    endif()
    set(kept "")
    foreach(source IN LISTS ${list})
        if(source MATCHES "_(avx2|avx512|avxvnni|neon|neondot)\\.c$")
            set(isa ${CMAKE_MATCH_1})
            if(NOT isa IN_LIST isas)
                continue()
            endif()
            set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${QN_FLAGS_${isa}}")
        endif()
        list(APPEND kept ${source})
    endforeach()
    set(${list} ${kept} PARENT_SCOPE)
endfunction()
