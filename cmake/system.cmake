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

# qn_adapt_to_system() - definitions for the targets that follow, and QN_SYSTEM_LIBRARIES.
macro(qn_adapt_to_system)
    set(QN_SYSTEM_LIBRARIES "")
    if(WIN32)
        # Windows 10 and later; printf and scanf of C99; sizes of files in 64 bits; localtime_r and gmtime_r.
        add_compile_definitions(_WIN32_WINNT=0x0A00 __USE_MINGW_ANSI_STDIO=1 _FILE_OFFSET_BITS=64 _POSIX_C_SOURCE=200809L
                                WIN32_LEAN_AND_MEAN NOMINMAX)
        # gcc would check formats as those of Windows' own printf. Other builds check them.
        add_compile_options(-Wno-format -Wno-format-extra-args)
        set(QN_SYSTEM_LIBRARIES synchronization bcrypt ntdll psapi shell32 ssp)
    endif()
endmacro()
