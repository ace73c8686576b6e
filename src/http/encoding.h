/* Which codings of a body a client accepts: a pure function of a header value, which is untrusted. */
#ifndef QN_HTTP_ENCODING_H
#define QN_HTTP_ENCODING_H

#include <stdbool.h>

/* qn_encoding_accepts_gzip - whether an Accept-Encoding header accepts gzip: by its name (or "x-gzip"), or by "*" where
 * the name is not listed, with a weight above 0 (RFC 9110, 12.5.3). NULL: there is no header, and gzip is not accepted.
 * A list with an error accepts nothing, as a client that reads no gzip may have sent it. */
bool qn_encoding_accepts_gzip(const char *accept_encoding);

#endif
