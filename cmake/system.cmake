# What differs between systems: folders posix/, win32/ and darwin/ that implement the headers above them, definitions and
# libraries. Nothing outside of them asks which system it is compiled for; tests/test_systems.sh holds it to that.

# qn_append_system(list folder) - appends the sources of this system below a folder. macOS has those of posix/, but for files of
# the same name in darwin/.
function(qn_append_system list folder)
    if(WIN32)
        file(GLOB sources CONFIGURE_DEPENDS ${folder}/win32/*.c)
    else()
        file(GLOB sources CONFIGURE_DEPENDS ${folder}/posix/*.c)
    endif()
    if(APPLE)
        file(GLOB own CONFIGURE_DEPENDS ${folder}/darwin/*.c)
        foreach(source IN LISTS own)
            get_filename_component(name ${source} NAME)
            list(REMOVE_ITEM sources ${folder}/posix/${name})
        endforeach()
        list(APPEND sources ${own})
    endif()
    set(${list} ${${list}} ${sources} PARENT_SCOPE)
endfunction()

# qn_adapt_to_system() - definitions for the targets that follow, the system's libraries, and how the assembler begins and ends
# bytes of a file (QN_BLOB_BEGIN, _END) and hides a symbol from other modules (QN_BLOB_HIDE). base/address.c gets
# QN_SOCKETS_HEADER.
macro(qn_adapt_to_system)
    set(QN_BLOB_BEGIN ".pushsection .rodata")
    set(QN_BLOB_HIDE ".hidden")
    set(QN_BLOB_END ".popsection")
    set(QN_SYSTEM posix)
    if(APPLE)
        set(QN_BLOB_BEGIN ".section __TEXT,__const")
        set(QN_BLOB_HIDE ".private_extern")
        set(QN_BLOB_END ".text")
    elseif(WIN32)
        set(QN_SYSTEM win32)
        set(QN_BLOB_BEGIN ".section .rdata,\\\"dr\\\"")
        set(QN_BLOB_HIDE "#") # a comment: symbols are hidden unless they are exported
        set(QN_BLOB_END ".text")
        # Windows 10 and later; printf and scanf of C99; sizes of files in 64 bits; localtime_r and gmtime_r.
        add_compile_definitions(_WIN32_WINNT=0x0A00 __USE_MINGW_ANSI_STDIO=1 _FILE_OFFSET_BITS=64 _POSIX_C_SOURCE=200809L
                                WIN32_LEAN_AND_MEAN NOMINMAX)
        # gcc would check formats as those of Windows' own printf. Other builds check them.
        add_compile_options(-Wno-format -Wno-format-extra-args)
        # At the end of each link: other static libraries need them, too.
        string(APPEND CMAKE_C_STANDARD_LIBRARIES " -lws2_32 -lcrypt32 -lsynchronization -lbcrypt -lntdll -lpsapi -lshell32 -lssp")
    endif()
    set_source_files_properties(${PROJECT_SOURCE_DIR}/src/base/address.c PROPERTIES
                                COMPILE_DEFINITIONS "QN_SOCKETS_HEADER=\"base/${QN_SYSTEM}/sockets.h\"")
endmacro()

# qn_list_exports(FILE) - writes the functions of the public headers as a list of names for the linker of Windows.
function(qn_list_exports file)
    file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/quern/*.h)
    if(NOT QN_HAVE_CUDA)
        list(FILTER headers EXCLUDE REGEX "/cuda\\.h$")
    endif()
    set(text "EXPORTS\n")
    foreach(header IN LISTS headers)
        set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
        file(STRINGS ${header} lines REGEX "^QN_API [^(]*[ *]qn_[a-z0-9_]*\\(")
        foreach(line IN LISTS lines)
            string(REGEX MATCH "qn_[a-z0-9_]*\\(" name "${line}")
            string(REPLACE "(" "" name "${name}")
            string(APPEND text "    ${name}\n")
        endforeach()
    endforeach()
    file(CONFIGURE OUTPUT ${file} CONTENT "${text}")
endfunction()
