/* Where a request ends: its header block, as bytes and as headers that were parsed. Pure functions of untrusted bytes. They
 * are strict, for a proxy before the server may read a lenient form in another way, and take for a request of its own what
 * is the body of another's. */
#ifndef QN_HTTP_FRAMING_H
#define QN_HTTP_FRAMING_H

#include <stdbool.h>
#include <stddef.h>

/* What was read of a request. Zero it before. */
typedef struct qn_framing {
    size_t n_hosts, n_lengths, n_encodings;
    size_t n_values;             /* headers, and what libmicrohttpd finds in queries and cookies */
    size_t at;                   /* the end of the last line that was read: of qn_framing_read alone */
    bool has_first, is_http_1_0; /* the first line was read */
} qn_framing;

/* qn_framing_method, qn_framing_target - parts of the first line. qn_framing_add - one header, its value without spaces at
 * the ends. qn_framing_end - all of them, of a request of HTTP/1.0 or 1.1. NULL, or what is wrong: a static string. A
 * method and a name are tokens, a target has no spaces. A value has no control character but tabs. Content-Length is
 * digits, Transfer-Encoding is chunked; one of them is there, or none, and once. Host is there once, but for HTTP/1.0
 * (is_http_1_0). */
const char *qn_framing_method(const char *method, size_t n);
const char *qn_framing_target(const char *target, size_t n);
const char *qn_framing_add(qn_framing *framing, const char *name, size_t n_name, const char *value, size_t n_value);
const char *qn_framing_end(const qn_framing *framing);

/* qn_framing_is_length - whether text is the value of a Content-Length: digits that make a number of 64 bits. */
bool qn_framing_is_length(const char *text, size_t n);

/* qn_framing_read - whether bytes [n] begin with a header block, which is the request's line and headers with the empty
 * line at their end; it ends at framing->at then. Called again with more of the same bytes it reads on. Lines end with
 * CRLF, and empty ones may stand before the first; the first is a method, a target without spaces and HTTP/1.0 or HTTP/1.1,
 * with one space between; headers are valid and not folded. QN_HEAD_LARGE: more than QN_FRAMING_VALUES values. *why it is
 * invalid or large: a static string. */
typedef enum qn_head { QN_HEAD_PART, QN_HEAD_COMPLETE, QN_HEAD_INVALID, QN_HEAD_LARGE } qn_head;
enum { QN_FRAMING_VALUES = 256 };
qn_head qn_framing_read(qn_framing *framing, const char *bytes, size_t n, const char **why);

#endif
