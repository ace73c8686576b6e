/* Compares header values and paths with what the server may serve. */
#include "http/guard.h"

#include "base/strings.h"
#include "http/bytes.h"

#include <string.h>
#include <strings.h>

/* ---- Hosts ---- */

/* "name", "name:port", "[address]" or "[address]:port". */
typedef struct host {
    const char *name; /* [length] without brackets */
    size_t length;
    bool is_ipv6;
    int port; /* -1: none */
} host;

static bool read_port(const char *text, int *port)
{
    *port = -1;
    if (!*text)
        return true;
    const size_t n = strlen(text + 1);
    if (*text != ':' || !n || n > 5 || strspn(text + 1, "0123456789") != n)
        return false;
    *port = 0;
    for (const char *c = text + 1; *c; c++)
        *port = *port * 10 + (*c - '0');
    return *port <= 65535;
}

static bool split_host(const char *text, host *out)
{
    const bool is_ipv6 = *text == '[';
    const char *name = text + is_ipv6, *end = is_ipv6 ? strchr(name, ']') : name + strcspn(name, ":");
    if (!end || end == name)
        return false;
    *out = (host){ .name = name, .length = (size_t)(end - name), .is_ipv6 = is_ipv6 };
    return read_port(end + is_ipv6, &out->port);
}

static bool is_name(const host *h, const char *name)
{
    return strlen(name) == h->length && !strncasecmp(h->name, name, h->length);
}

/* Whether a host is an IPv4 or IPv6 address. Strict: resolvers take "127.1" and "2130706433" for addresses, this
 * function does not. */
static bool is_address(const host *h)
{
    char text[QN_ADDRESS_TEXT_BYTES];
    qn_address address;
    if (h->length >= sizeof text)
        return false;
    memcpy(text, h->name, h->length);
    text[h->length] = '\0';
    return qn_address_read(text, h->is_ipv6, &address);
}

bool qn_guard_listed_host(const char *host_header, const char *const *allowed, size_t n_allowed)
{
    host h;
    if (!host_header || !split_host(host_header, &h))
        return false;
    for (size_t i = 0; i < n_allowed; i++)
        if (is_name(&h, allowed[i]))
            return true;
    return false;
}

bool qn_guard_host(const char *host_header, const char *const *allowed, size_t n_allowed)
{
    host h;
    if (!host_header || !split_host(host_header, &h))
        return false;
    if (is_address(&h))
        return true;
    return !h.is_ipv6 && (is_name(&h, "localhost") || qn_guard_listed_host(host_header, allowed, n_allowed));
}

/* ---- Origins ---- */

bool qn_guard_is_host(const char *text)
{
    qn_address address;
    const size_t n = strlen(text);
    if (qn_address_read(text, true, &address))
        return true;
    return n && n < 256 && strspn(text, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-._") == n;
}

static bool is_scheme(const char *text, const char *scheme)
{
    return !strncasecmp(text, scheme, strlen(scheme));
}

bool qn_guard_is_origin(const char *text)
{
    char name[256];
    host h;
    const size_t n_scheme = strspn(text, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-.");
    if (!strcmp(text, "*") || !strcmp(text, "null"))
        return true;
    if (!n_scheme || (text[0] | 0x20) < 'a' || (text[0] | 0x20) > 'z' || strncmp(text + n_scheme, "://", 3) != 0 ||
        !split_host(text + n_scheme + 3, &h) || h.length >= sizeof name)
        return false;
    if (h.port == 0 || (h.port == 80 && is_scheme(text, "http://")) || (h.port == 443 && is_scheme(text, "https://")))
        return false;
    memcpy(name, h.name, h.length);
    name[h.length] = '\0';
    return h.is_ipv6 ? is_address(&h) : qn_guard_is_host(name);
}

bool qn_guard_listed_origin(const char *origin, const char *const *allowed, size_t n_allowed)
{
    for (size_t i = 0; origin && i < n_allowed; i++)
        if (!strcmp(allowed[i], "*") || !strcasecmp(allowed[i], origin))
            return true;
    return false;
}

bool qn_guard_origin(const char *origin, const char *host_header, unsigned schemes, const char *const *allowed,
                     size_t n_allowed)
{
    host page, server;
    if (!origin || qn_guard_listed_origin(origin, allowed, n_allowed))
        return true;
    const bool is_https = !strncasecmp(origin, "https://", 8);
    if (!(schemes & (is_https ? QN_GUARD_HTTPS : QN_GUARD_HTTP)) ||
        (!is_https && strncasecmp(origin, "http://", 7) != 0) || !host_header ||
        !split_host(origin + 7 + is_https, &page) || !split_host(host_header, &server))
        return false;
    const int standard = is_https ? 443 : 80;
    return page.is_ipv6 == server.is_ipv6 && page.length == server.length &&
           !strncasecmp(page.name, server.name, page.length) &&
           (page.port < 0 ? standard : page.port) == (server.port < 0 ? standard : server.port);
}

/* ---- Types ---- */

size_t qn_guard_token(const char *text, size_t length)
{
    static const char others[] = "!#$%&'*+-.^_`|~";
    size_t n = 0;
    while (n < length && ((text[n] >= '0' && text[n] <= '9') || (text[n] >= 'a' && text[n] <= 'z') ||
                          (text[n] >= 'A' && text[n] <= 'Z') || (text[n] && strchr(others, text[n]))))
        n++;
    return n;
}

bool qn_guard_json(const char *content_type)
{
    if (!content_type)
        return false;
    const char *type = content_type + strspn(content_type, " \t");
    const size_t n_type = qn_guard_token(type, strlen(type));
    if (!n_type || type[n_type] != '/')
        return false;
    const char *subtype = type + n_type + 1;
    const size_t n = qn_guard_token(subtype, strlen(subtype));
    const char *rest = subtype + n + strspn(subtype + n, " \t");
    if (*rest && *rest != ';')
        return false;
    return (n_type == 11 && n == 4 && !strncasecmp(type, "application/json", 16)) ||
           (n > 5 && !strncasecmp(subtype + n - 5, "+json", 5));
}

/* ---- Addresses ---- */

bool qn_guard_is_loopback(const qn_address *address)
{
    static const uint8_t loopback[16] = { [15] = 1 };
    if (!address->is_ipv6)
        return address->bytes[0] == 127;
    return !memcmp(address->bytes, loopback, sizeof loopback) ||
           (qn_address_is_mapped(address) && address->bytes[12] == 127);
}

/* ---- Paths ---- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Decodes the next character of a path, or returns -1 if it is not allowed. In names of models (is_name) clients escape
 * slashes. */
static int decode(const char **path, bool is_name)
{
    const char *at = *path;
    const bool is_escape = *at == '%';
    int c = (unsigned char)*at++;
    if (is_escape) {
        const int high = hex_digit(at[0]), low = high < 0 ? -1 : hex_digit(at[1]);
        c = low < 0 ? -1 : high * 16 + low;
        at += 2;
    }
    *path = at;
    return c < ' ' || c == 0x7f || c == '\\' || (is_escape && c == '/' && !is_name) ? -1 : c;
}

static bool has_dot_segment(const char *path)
{
    for (const char *at = path; at; at = strchr(at, '/')) {
        const size_t n = strcspn(++at, "/");
        if ((n == 1 && at[0] == '.') || (n == 2 && at[0] == '.' && at[1] == '.'))
            return true;
    }
    return false;
}

bool qn_guard_path(const char *path, char *out, size_t capacity)
{
    size_t n = 0;
    if (*path != '/')
        return false;
    while (*path && *path != '?' && *path != '#') {
        const int c = n + 1 < capacity ? decode(&path, qn_memmem(out, n, "/models/", 8) != NULL) : -1;
        if (c < 0)
            return false;
        out[n++] = (char)c;
    }
    out[n] = '\0';
    return qn_is_utf8(out, n) && !has_dot_segment(out);
}
