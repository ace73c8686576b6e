/* Where a request ends: checks of its header block, as bytes or as parsed headers. Pure functions of untrusted bytes.
 * They are strict: a proxy before the server may read a lenient form in another way, and take a part of one body for
 * another request (request smuggling). */
#ifndef QN_HTTP_FRAMING_H
#define QN_HTTP_FRAMING_H

#include <stdbool.h>
#include <stddef.h>

/* What was read of a header block so far, of one connection: used by one thread at a time. Zero it before use. */
typedef struct qn_framing {
    size_t n_hosts, n_lengths, n_encodings; /* Host, Content-Length and Transfer-Encoding headers */
    size_t n_values;                        /* headers, cookies and query parameters, as libmicrohttpd counts them */
    size_t at;                              /* only qn_framing_read: the end of the last complete line */
    bool has_first, is_http_1_0;            /* the first line was read */
} qn_framing;

/* The four functions below return NULL, or what is wrong as a static string. */

/* qn_framing_method - check a method: a token. */
const char *qn_framing_method(const char *method, size_t n);

/* qn_framing_target - check a request target: no spaces, no control characters, not empty. */
const char *qn_framing_target(const char *target, size_t n);

/* qn_framing_add - check and count one header. The name is a token; the value has no spaces at its ends and no control
 * characters but tabs. Content-Length must be digits, Transfer-Encoding must be "chunked". */
const char *qn_framing_add(qn_framing *framing, const char *name, size_t n_name, const char *value, size_t n_value);

/* qn_framing_end - check the headers together: one Host (HTTP/1.0: at most one), at most one Content-Length or
 * Transfer-Encoding, and no Transfer-Encoding in HTTP/1.0 (is_http_1_0). */
const char *qn_framing_end(const qn_framing *framing);

/* qn_framing_is_length - whether a text is the value of a Content-Length: digits of a number that 64 bits hold. */
bool qn_framing_is_length(const char *text, size_t n);

/* qn_framing_read - read a header block from the beginning of bytes [n]: the request line and headers, up to and
 * including the empty line, after which framing->at stands. Call it again with more of the same bytes to read on. Lines
 * end with CRLF; empty lines may come first. The request line is a method, a target without spaces and HTTP/1.0 or
 * HTTP/1.1, with one space between; headers are valid and not folded. QN_HEAD_LARGE: more than QN_FRAMING_VALUES
 * values. *why: the reason of QN_HEAD_INVALID and QN_HEAD_LARGE, a static string. */
typedef enum qn_head { QN_HEAD_PART, QN_HEAD_COMPLETE, QN_HEAD_INVALID, QN_HEAD_LARGE } qn_head;
enum { QN_FRAMING_VALUES = 256 };
qn_head qn_framing_read(qn_framing *framing, const char *bytes, size_t n, const char **why);

#endif
