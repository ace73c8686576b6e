# The chat page in the binary: src/page/, marked, a parser of Markdown, from Debian's libjs-marked, and KaTeX, which sets
# formulas, from libjs-katex and fonts-katex. Without the first marked.js is empty, and the page shows text and code
# blocks alone; without the others katex.js and katex.css are, and it shows formulas as they are written.

find_file(QN_MARKED marked.min.js PATHS /usr/share/javascript/marked NO_CMAKE_FIND_ROOT_PATH DOC "marked, as Debian's libjs-marked has it")
find_file(QN_MARKED_LICENSE copyright PATHS /usr/share/doc/libjs-marked NO_CMAKE_FIND_ROOT_PATH NO_DEFAULT_PATH DOC "marked's licence")
find_path(QN_KATEX katex.min.css PATHS /usr/share/javascript/katex NO_CMAKE_FIND_ROOT_PATH NO_DEFAULT_PATH
          DOC "KaTeX, as Debian's libjs-katex has it")
find_path(QN_KATEX_FONTS KaTeX_Main-Regular.woff2 PATHS /usr/share/fonts/truetype/katex NO_CMAKE_FIND_ROOT_PATH
          NO_DEFAULT_PATH DOC "KaTeX's fonts, as Debian's fonts-katex has them")
find_file(QN_KATEX_LICENSE copyright PATHS /usr/share/doc/libjs-katex NO_CMAKE_FIND_ROOT_PATH NO_DEFAULT_PATH
          DOC "KaTeX's licence")
find_program(QN_GZIP gzip NO_CMAKE_FIND_ROOT_PATH DOC "gzip, which compresses the page's files")

# qn_write_file(PATH CONTENT) - unless the file has the content already.
function(qn_write_file path content)
    file(WRITE ${path}.new "${content}")
    configure_file(${path}.new ${path} COPYONLY)
endfunction()

# qn_read_file(PATH VARIABLE) - and configure again when the file changes.
function(qn_read_file path variable)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
    file(READ ${path} content)
    set(${variable} "${content}" PARENT_SCOPE)
endfunction()

# qn_add_katex(FOLDER FILES LICENCES) - makes katex.js (with mhchem, for chemistry) and katex.css in FOLDER; appends
# their paths and those of the fonts to the list FILES, and the licence to LICENCES.
function(qn_add_katex folder files_name licences_name)
    if(QN_KATEX AND QN_KATEX_FONTS AND QN_KATEX_LICENSE)
        qn_read_file(${QN_KATEX}/katex.min.js script)
        qn_read_file(${QN_KATEX}/contrib/mhchem.js chemistry)
        qn_read_file(${QN_KATEX}/katex.min.css style)
        qn_read_file(${QN_KATEX_LICENSE} licence)
        # Every browser that the page supports reads WOFF2.
        string(REGEX REPLACE "url\\(fonts/([A-Za-z0-9_-]+\\.woff2)\\) format\\('woff2'\\)(,url\\([^)]*\\) format\\('[a-z]+'\\))*"
                             "url(\\1) format('woff2')" style "${style}")
        string(REGEX MATCHALL "KaTeX_[A-Za-z0-9_-]+\\.woff2" fonts "${style}")
        list(REMOVE_DUPLICATES fonts)
        list(TRANSFORM fonts PREPEND ${QN_KATEX_FONTS}/)
        qn_write_file(${folder}/katex.js "${script}\n${chemistry}\n")
        qn_write_file(${folder}/katex.css "${style}\n")
        set(${licences_name} "${${licences_name}}\n\n\nKaTeX\n\n${licence}" PARENT_SCOPE)
        list(APPEND ${files_name} ${folder}/katex.js ${folder}/katex.css ${fonts})
    else()
        message(STATUS "libjs-katex is not here: the chat page will show formulas as text")
        qn_write_file(${folder}/katex.js "")
        qn_write_file(${folder}/katex.css "")
        list(APPEND ${files_name} ${folder}/katex.js ${folder}/katex.css)
    endif()
    set(${files_name} "${${files_name}}" PARENT_SCOPE)
endfunction()

# qn_compress(FILE OUTPUT SIZE) - compresses a file, with the same bytes each time; SIZE becomes 0 where that saves less
# than a tenth.
function(qn_compress file output size)
    set(${size} 0 PARENT_SCOPE)
    file(SIZE ${file} plain_size)
    if(NOT QN_GZIP OR plain_size EQUAL 0 OR file MATCHES "\\.woff2$") # WOFF2 is compressed
        return()
    endif()
    execute_process(COMMAND ${QN_GZIP} -9 -n -c INPUT_FILE ${file} OUTPUT_FILE ${output}.new RESULT_VARIABLE failed)
    if(failed)
        return()
    endif()
    configure_file(${output}.new ${output} COPYONLY)
    file(SIZE ${output} found)
    math(EXPR most "${plain_size} * 9 / 10")
    if(found LESS most)
        set(${size} ${found} PARENT_SCOPE)
    endif()
endfunction()

# qn_describe(FILE SYMBOL ROW) - appends a blob to QN_PAGE_BLOBS; ROW becomes the initializer of its qn_page_bytes.
function(qn_describe file symbol row)
    file(SHA256 ${file} hash)
    file(SIZE ${file} size)
    string(SUBSTRING ${hash} 0 32 hash)
    string(APPEND QN_PAGE_BLOBS "BLOB(${symbol}, \"${file}\")\n")
    set(QN_PAGE_BLOBS "${QN_PAGE_BLOBS}" PARENT_SCOPE)
    set(${row} "{ \"\\\"${hash}\\\"\", ${symbol}, ${size} }" PARENT_SCOPE)
endfunction()

# qn_add_page() - the library quern-page.
function(qn_add_page)
    set(source ${PROJECT_SOURCE_DIR}/src/page)
    set(folder ${PROJECT_BINARY_DIR}/page)
    file(GLOB files CONFIGURE_DEPENDS ${source}/*.html ${source}/*.css ${source}/*.js ${source}/*.svg)
    # "/" is the first row of the table.
    list(REMOVE_ITEM files ${source}/index.html)
    list(INSERT files 0 ${source}/index.html)

    # A licence is served only beside the code that it is for.
    set(licences "Licences of others' code in this page.")
    if(QN_MARKED AND QN_MARKED_LICENSE)
        configure_file(${QN_MARKED} ${folder}/marked.js COPYONLY)
        qn_read_file(${QN_MARKED_LICENSE} licence)
        string(APPEND licences "\n\n\nmarked\n\n${licence}")
    else()
        message(STATUS "libjs-marked is not here: the chat page will show text and code blocks alone")
        qn_write_file(${folder}/marked.js "")
    endif()
    list(APPEND files ${folder}/marked.js ${folder}/licences.txt)
    qn_add_katex(${folder} files licences)
    qn_write_file(${folder}/licences.txt "${licences}")

    set(type_html "text/html; charset=utf-8")
    set(type_css "text/css; charset=utf-8")
    set(type_js "text/javascript; charset=utf-8")
    set(type_svg "image/svg+xml")
    set(type_txt "text/plain; charset=utf-8")
    set(type_woff2 "font/woff2")
    set(number 0)
    set(blobs ${files})
    foreach(file IN LISTS files)
        # The hashes are in the table, which is written when configuring.
        set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
        get_filename_component(name ${file} NAME)
        string(REGEX REPLACE ".*\\." "" extension ${name})
        set(path "/page/${name}")
        if(name STREQUAL "index.html")
            set(path "/")
        endif()
        qn_describe(${file} qn_page_file_${number} plain)
        qn_compress(${file} ${folder}/${name}.gz size)
        set(gzip "{ NULL, NULL, 0 }")
        if(size)
            qn_describe(${folder}/${name}.gz qn_page_gzip_${number} gzip)
            list(APPEND blobs ${folder}/${name}.gz)
        endif()
        string(APPEND QN_PAGE_ROWS "        { \"${path}\", \"${type_${extension}}\", ${plain}, ${gzip} },\n")
        math(EXPR number "${number} + 1")
    endforeach()
    configure_file(${PROJECT_SOURCE_DIR}/cmake/page_files.c.in ${folder}/page_files.c @ONLY)
    set_source_files_properties(${folder}/page_files.c PROPERTIES OBJECT_DEPENDS "${blobs}")

    add_library(quern-page STATIC ${source}/page.c ${folder}/page_files.c)
    target_include_directories(quern-page PUBLIC ${PROJECT_SOURCE_DIR}/src)
endfunction()
