/* Headers and paths of requests: any that are accepted have the form on which the server relies.
 *
 * An input is texts separated by zero bytes: the path, Host, Origin, Content-Type, Accept-Encoding. */
#include "fuzz.h"

#include "http/bytes.h"
#include "http/encoding.h"
#include "http/guard.h"

#include <strings.h>

enum { N_TEXTS = 5, CAPACITY = 100 };

static void check_path(const char *path)
{
    char out[CAPACITY];
    if (!qn_guard_path(path, out, sizeof out))
        return;
    const size_t n = strlen(out);
    require(n < sizeof out && n <= strlen(path) && *out == '/', "it is a path of its length");
    require(qn_is_utf8(out, n), "it is UTF-8");
    require(!strstr(out, "/../") && !strstr(out, "/./"), "it has no segments of dots");
    require(n < 3 || strcmp(out + n - 3, "/..") != 0, "it does not end with one");
    for (size_t i = 0; i < n; i++)
        require((unsigned char)out[i] >= ' ' && out[i] != '\\' && out[i] != 0x7f, "it has no control characters");
}

static void check_host(const char *host)
{
    if (!qn_guard_host(host, NULL, 0))
        return;
    const size_t n = strcspn(host, ":");
    require((n == 9 && !strncasecmp(host, "localhost", 9)) || *host == '[' || strspn(host, "0123456789.") == n,
            "it is an address or localhost");
    require(strspn(host, "0123456789abcdefABCDEF:.[]localhstLOCALHST") == strlen(host), "it has no other characters");
}

static void check_origin(const char *origin, const char *host)
{
    const char *const all = "*";
    require(qn_guard_origin(origin, host, QN_GUARD_HTTPS, &all, 1), "all origins are allowed");
    require(qn_guard_origin(NULL, host, QN_GUARD_HTTPS, NULL, 0), "no origin is allowed");
    require(!qn_guard_origin(origin, host, QN_GUARD_HTTP, NULL, 0) || !strncasecmp(origin, "http://", 7),
            "it has the scheme of the server");
    if (qn_guard_origin(origin, host, QN_GUARD_HTTP | QN_GUARD_HTTPS, NULL, 0)) {
        const size_t n = strcspn(host, ":]");
        require(!strncasecmp(origin, "http", 4) && strcasestr(origin, "://"), "it has a scheme");
        require(!strncasecmp(strstr(origin, "://") + 3, host, n), "it is the host");
    }
}

static void check_type(const char *type)
{
    if (qn_guard_json(type))
        require(strcasestr(type, "json") && strcspn(type, ",") >= strcspn(type, ";"), "it is one type");
}

static void check_encoding(const char *text)
{
    if (!qn_encoding_accepts_gzip(text))
        return;
    require(strcasestr(text, "gzip") || strchr(text, '*'), "it names gzip, or all");
    require(strspn(text, "qQ=;., \t*-!#$%&'+^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") ==
                strlen(text),
            "it is a list of tokens");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *copy = malloc(size + N_TEXTS), *texts[N_TEXTS];
    require(copy, "there is memory");
    if (size)
        memcpy(copy, data, size);
    memset(copy + size, 0, N_TEXTS);
    char *at = copy;
    for (size_t i = 0; i < N_TEXTS; i++) {
        texts[i] = at;
        at += at < copy + size + N_TEXTS - 1 ? strlen(at) + 1 : 0;
    }
    check_path(texts[0]);
    check_host(texts[1]);
    check_origin(texts[2], texts[1]);
    check_type(texts[3]);
    check_encoding(texts[4]);
    free(copy);
    return 0;
}
