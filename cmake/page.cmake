# The chat page in the binary: src/page/ and marked, a parser of Markdown, from Debian's libjs-marked. Without that package
# marked.js is empty, and the page shows text and code blocks alone.

find_file(QN_MARKED marked.min.js PATHS /usr/share/javascript/marked NO_CMAKE_FIND_ROOT_PATH DOC "marked, as Debian's libjs-marked has it")
find_file(QN_MARKED_LICENSE copyright PATHS /usr/share/doc/libjs-marked NO_CMAKE_FIND_ROOT_PATH NO_DEFAULT_PATH DOC "marked's licence")

# qn_add_page() - the library quern-page.
function(qn_add_page)
    set(source ${PROJECT_SOURCE_DIR}/src/page)
    set(folder ${PROJECT_BINARY_DIR}/page)
    file(GLOB files CONFIGURE_DEPENDS ${source}/*.html ${source}/*.css ${source}/*.js ${source}/*.svg)
    # "/" is the first row of the table.
    list(REMOVE_ITEM files ${source}/index.html)
    list(INSERT files 0 ${source}/index.html)

    # The licence is served only beside the code that it is for.
    if(QN_MARKED AND QN_MARKED_LICENSE)
        configure_file(${QN_MARKED} ${folder}/marked.js COPYONLY)
        configure_file(${QN_MARKED_LICENSE} ${folder}/licences.txt COPYONLY)
    else()
        message(STATUS "libjs-marked is not here: the chat page will show text and code blocks alone")
        file(CONFIGURE OUTPUT ${folder}/marked.js CONTENT "")
        file(CONFIGURE OUTPUT ${folder}/licences.txt CONTENT "This page has no code of others.\n")
    endif()
    list(APPEND files ${folder}/marked.js ${folder}/licences.txt)

    set(type_html "text/html; charset=utf-8")
    set(type_css "text/css; charset=utf-8")
    set(type_js "text/javascript; charset=utf-8")
    set(type_svg "image/svg+xml")
    set(type_txt "text/plain; charset=utf-8")
    set(number 0)
    foreach(file IN LISTS files)
        # The hash is of the table, which is written when configuring.
        set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
        file(SHA256 ${file} hash)
        file(SIZE ${file} size)
        string(SUBSTRING ${hash} 0 32 hash)
        get_filename_component(name ${file} NAME)
        string(REGEX REPLACE ".*\\." "" extension ${name})
        set(path "/page/${name}")
        if(name STREQUAL "index.html")
            set(path "/")
        endif()
        string(APPEND QN_PAGE_BLOBS "BLOB(qn_page_file_${number}, \"${file}\")\n")
        string(APPEND QN_PAGE_ROWS "        { \"${path}\", \"${type_${extension}}\", \"\\\"${hash}\\\"\", qn_page_file_${number}, ${size} },\n")
        math(EXPR number "${number} + 1")
    endforeach()
    configure_file(${PROJECT_SOURCE_DIR}/cmake/page_files.c.in ${folder}/page_files.c @ONLY)
    set_source_files_properties(${folder}/page_files.c PROPERTIES OBJECT_DEPENDS "${files}")

    add_library(quern-page STATIC ${source}/page.c ${folder}/page_files.c)
    target_include_directories(quern-page PUBLIC ${PROJECT_SOURCE_DIR}/src)
endfunction()
