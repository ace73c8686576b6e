/* The chat page: files that the binary carries, for GET requests to a server. cmake/page.cmake writes their table from
 * the files next to this header. No HTTP here. Threads: all data is constant. */
#ifndef QN_PAGE_PAGE_H
#define QN_PAGE_PAGE_H

#include <stddef.h>
#include <stdint.h>

/* The Content-Security-Policy that an answer with a file must have: everything comes from the server itself, and
 * nothing is evaluated, framed or posted elsewhere. */
#define QN_PAGE_CONTENT_SECURITY_POLICY                                                                                \
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; connect-src 'self'; img-src 'self' "    \
    "data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

/* Bytes of a file, and the hash of them as an ETag with its quotation marks: both change only with the binary. */
typedef struct qn_page_bytes {
    const char *etag;
    const uint8_t *bytes; /* [size] */
    size_t size;
} qn_page_bytes;

typedef struct qn_page_file {
    const char *path;    /* of the URL: "/", "/page/app.js", ... */
    const char *type;    /* Content-Type */
    qn_page_bytes plain; /* the file itself */
    qn_page_bytes gzip;  /* compressed when quern was built, for clients that accept gzip; bytes NULL: it is not */
} qn_page_file;

/* qn_page_find - returns the file of a path without its query. NULL: there is none. */
const qn_page_file *qn_page_find(const char *path);

/* qn_page_files - returns all files [*n_files], "/" first. */
const qn_page_file *qn_page_files(size_t *n_files);

#endif
