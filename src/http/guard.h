/* Which requests a server looks at: pure functions of the values of headers and of paths, which are untrusted. They keep out
 * web pages that a browser of the same machine shows (DNS rebinding, cross-site requests) and paths with tricks. */
#ifndef QN_HTTP_GUARD_H
#define QN_HTTP_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

/* qn_guard_host - whether the value of a Host header names this server: an address of IPv4, one of IPv6 in brackets, localhost
 * or a name of `allowed` [n_allowed], in any case of letters, with or without a port. A name that resolves here but is none of
 * these is what DNS rebinding uses. NULL and "" are refused. qn_guard_listed_host - whether it is one of `allowed`, which may be
 * addresses, without brackets, too. */
bool qn_guard_host(const char *host, const char *const *allowed, size_t n_allowed);
bool qn_guard_listed_host(const char *host, const char *const *allowed, size_t n_allowed);

/* qn_guard_origin - whether a page of this origin may make requests: there is none (NULL: no browser), it is that of Host
 * (name and port; a missing port is that of the origin's scheme) with one of `schemes`, or it is one of `allowed` [n_allowed], as
 * "https://name:port"; "*" there allows all. "null", the origin of files and sandboxes, only if it is listed. */
enum { QN_GUARD_HTTP = 1, QN_GUARD_HTTPS = 2 };
bool qn_guard_origin(const char *origin, const char *host, unsigned schemes, const char *const *allowed, size_t n_allowed);

/* qn_guard_is_origin - whether a text is one of `allowed`'s kind: "*", "null" or SCHEME://NAME[:PORT], which is all that an Origin header
 * can say; not with the scheme's own port, which browsers leave out. qn_guard_is_host - whether it is a name or an address without a port and brackets, as `allowed` of hosts. */
bool qn_guard_is_origin(const char *text);
bool qn_guard_is_host(const char *text);

/* qn_guard_listed_origin - whether `allowed` has it: what CORS headers are sent for. */
bool qn_guard_listed_origin(const char *origin, const char *const *allowed, size_t n_allowed);

/* qn_guard_token - how many bytes at the beginning of text [length] are characters of a token of HTTP: a method, the name of a
 * header, a type. */
size_t qn_guard_token(const char *text, size_t length);

/* qn_guard_json - whether a Content-Type is JSON: application/json, or any with "+json" at its end, with any parameters. Pages
 * can send other types across sites without being asked first. NULL is refused. */
bool qn_guard_json(const char *content_type);

/* qn_guard_is_loopback - 127.0.0.0/8, ::1, 127.0.0.0/8 as IPv6, or a Unix socket. */
bool qn_guard_is_loopback(const struct sockaddr *address);

/* qn_guard_path - a path as it stands in the request, percent-decoded, without its query. False: it does not begin with '/',
 * has an invalid escape, an escaped '/' other than after "/models/", where names have them, a backslash, a control character,
 * invalid UTF-8 or a segment "." or "..", or has `capacity` bytes or more. */
bool qn_guard_path(const char *path, char *out, size_t capacity);

#endif
