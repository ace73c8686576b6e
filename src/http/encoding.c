/* Reads Accept-Encoding. */
#include "http/encoding.h"

#include "http/guard.h"

#include <string.h>
#include <strings.h>

static const char *skip_spaces(const char *at)
{
    return at + strspn(at, " \t");
}

/* Reads a weight, "0" to "1" with at most three decimals. Returns its end, or NULL. */
static const char *read_weight(const char *at, bool *is_zero)
{
    const char first = *at;
    if (first != '0' && first != '1')
        return NULL;
    at++;
    const size_t n = *at == '.' ? strspn(at + 1, "0123456789") : 0, n_zeros = n ? strspn(at + 1, "0") : 0;
    if (n > 3 || (first == '1' && n_zeros < n))
        return NULL;
    *is_zero = first == '0' && n_zeros == n;
    return *at == '.' ? at + 1 + n : at;
}

/* Reads ";q=WEIGHT", which may be missing. Returns its end, or NULL. */
static const char *read_parameter(const char *at, bool *is_zero)
{
    *is_zero = false;
    at = skip_spaces(at);
    if (*at != ';')
        return at;
    at = skip_spaces(at + 1);
    if (strncasecmp(at, "q=", 2) != 0)
        return NULL;
    at = read_weight(at + 2, is_zero);
    return at ? skip_spaces(at) : NULL;
}

static bool is_named(const char *at, size_t n, const char *name)
{
    return n == strlen(name) && !strncasecmp(at, name, n);
}

bool qn_encoding_accepts_gzip(const char *accept_encoding)
{
    bool is_listed = false, accepts_it = false, accepts_others = false;
    const char *at = accept_encoding;
    while (at && *(at = at + strspn(at, ", \t"))) {
        const size_t n = qn_guard_token(at, strcspn(at, ",; \t"));
        const char *const name = at;
        bool is_zero;
        at = n ? read_parameter(at + n, &is_zero) : NULL;
        if (!at || (*at && *at != ','))
            return false;
        if (is_named(name, n, "gzip") || is_named(name, n, "x-gzip")) {
            is_listed = true;
            accepts_it = !is_zero;
        } else if (is_named(name, n, "*")) {
            accepts_others = !is_zero;
        }
    }
    return is_listed ? accepts_it : accepts_others;
}
