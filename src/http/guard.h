/* Which requests a server accepts: pure functions of paths and header values, which are untrusted. They keep out web
 * pages open in a browser on the same machine (DNS rebinding, cross-site requests) and paths with tricks. */
#ifndef QN_HTTP_GUARD_H
#define QN_HTTP_GUARD_H

#include "base/socket.h"

/* qn_guard_host - whether a Host header names this server: an IPv4 address, an IPv6 address in brackets, localhost or a
 * name of `allowed` [n_allowed], in any case of letters, with or without a port. Other names are refused even if they
 * resolve to this machine, as DNS rebinding uses them. NULL and "" are refused. */
bool qn_guard_host(const char *host, const char *const *allowed, size_t n_allowed);

/* qn_guard_listed_host - whether a Host header names one of `allowed`: names, or addresses without brackets. */
bool qn_guard_listed_host(const char *host, const char *const *allowed, size_t n_allowed);

/* qn_guard_origin - whether a page of this origin may make requests: there is no origin (NULL: not a browser); or it
 * has the name and port of Host and one of `schemes`, a missing port being that of the scheme; or it is in `allowed`
 * [n_allowed], as "https://name:port", or "*" for all. "null", the origin of files and sandboxes, is allowed only if it
 * is listed. */
enum { QN_GUARD_HTTP = 1, QN_GUARD_HTTPS = 2 };
bool qn_guard_origin(const char *origin, const char *host, unsigned schemes, const char *const *allowed,
                     size_t n_allowed);

/* qn_guard_is_origin - whether a text can be listed in `allowed` of origins: "*", "null" or SCHEME://NAME[:PORT], as
 * Origin headers have it: without the scheme's own port, which browsers leave out. */
bool qn_guard_is_origin(const char *text);

/* qn_guard_is_host - whether a text can be listed in `allowed` of hosts: a name or an address without port and
 * brackets. */
bool qn_guard_is_host(const char *text);

/* qn_guard_listed_origin - whether an origin is listed: CORS headers are sent only to listed origins. */
bool qn_guard_listed_origin(const char *origin, const char *const *allowed, size_t n_allowed);

/* qn_guard_token - the number of bytes at the beginning of text [length] that are characters of an HTTP token: a
 * method, a header name, a type. */
size_t qn_guard_token(const char *text, size_t length);

/* qn_guard_json - whether a Content-Type is JSON: application/json or a type that ends with "+json", with any
 * parameters. Browsers send other types across sites without a preflight. NULL is refused. */
bool qn_guard_json(const char *content_type);

/* qn_guard_is_loopback - whether an address is 127.0.0.0/8, ::1, or 127.0.0.0/8 mapped to IPv6. */
bool qn_guard_is_loopback(const qn_address *address);

/* qn_guard_path - percent-decode the path of a request target, without its query. False: it does not begin with '/',
 * decodes to `capacity` bytes or more, or has an invalid escape, an escaped '/' outside the name after "/models/", a
 * backslash, a control character, invalid UTF-8, or a segment "." or "..". */
bool qn_guard_path(const char *path, char *out, size_t capacity);

#endif
