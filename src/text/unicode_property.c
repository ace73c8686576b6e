/* Finds the code points of a property by matching runs of it in a text of all code points: PCRE2 has the tables. */
#include "text/unicode_property.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/append.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/utf8.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 64, LAST_CODE = 0x10ffff, MAX_BYTES = 4 * (LAST_CODE + 1) };

typedef struct property {
    struct property *next;
    char name[MAX_NAME + 8];
    qn_code_range *ranges;
    size_t n;
} property;

static property *known;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- Names ---- */

/* General categories by their long names: https://www.unicode.org/Public/UCD/latest/ucd/PropertyValueAliases.txt */
static const char *short_name(const char *name)
{
    static const char *const names[][2] = {
        { "letter", "L" },
        { "casedletter", "L&" },
        { "lc", "L&" },
        { "uppercaseletter", "Lu" },
        { "lowercaseletter", "Ll" },
        { "titlecaseletter", "Lt" },
        { "modifierletter", "Lm" },
        { "otherletter", "Lo" },
        { "mark", "M" },
        { "combiningmark", "M" },
        { "nonspacingmark", "Mn" },
        { "spacingmark", "Mc" },
        { "enclosingmark", "Me" },
        { "number", "N" },
        { "decimalnumber", "Nd" },
        { "digit", "Nd" },
        { "letternumber", "Nl" },
        { "othernumber", "No" },
        { "punctuation", "P" },
        { "punct", "P" },
        { "connectorpunctuation", "Pc" },
        { "dashpunctuation", "Pd" },
        { "openpunctuation", "Ps" },
        { "closepunctuation", "Pe" },
        { "initialpunctuation", "Pi" },
        { "finalpunctuation", "Pf" },
        { "otherpunctuation", "Po" },
        { "symbol", "S" },
        { "mathsymbol", "Sm" },
        { "currencysymbol", "Sc" },
        { "modifiersymbol", "Sk" },
        { "othersymbol", "So" },
        { "separator", "Z" },
        { "spaceseparator", "Zs" },
        { "lineseparator", "Zl" },
        { "paragraphseparator", "Zp" },
        { "other", "C" },
        { "control", "Cc" },
        { "cntrl", "Cc" },
        { "format", "Cf" },
        { "surrogate", "Cs" },
        { "privateuse", "Co" },
        { "unassigned", "Cn" },
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i][0]))
            return names[i][1];
    return name;
}

/* Writes the name without case, spaces, hyphens and underscores, which PCRE2 ignores, and its prefix. False if it has
 * other characters than a name. */
static bool normalise(const char *name, size_t length, char out[MAX_NAME + 1], const char **prefix)
{
    static const char *const prefixes[][2] = {
        { "generalcategory=", "" }, { "gc=", "" },        { "scriptextensions=", "scx:" },
        { "scx=", "scx:" },         { "script=", "sc:" }, { "sc=", "sc:" }
    };
    size_t n = 0;
    if (length > MAX_NAME)
        return false;
    for (size_t i = 0; i < length; i++) {
        const char c = name[i], lower = c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
        const bool is_kept = (lower >= 'a' && lower <= 'z') || (c >= '0' && c <= '9') || c == '=';
        if (!is_kept && c != '_')
            return false;
        if (is_kept)
            out[n++] = lower;
    }
    out[n] = 0;
    *prefix = "";
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (!strncmp(out, prefixes[i][0], strlen(prefixes[i][0]))) {
            *prefix = prefixes[i][1];
            memmove(out, out + strlen(prefixes[i][0]), n + 1 - strlen(prefixes[i][0]));
            break;
        }
    return *out && !strchr(out, '=');
}

/* ---- Code points ---- */

/* Returns all code points in UTF-8; free() it. */
static char *all_code_points(size_t *n)
{
    char *text = malloc(MAX_BYTES);
    *n = 0;
    for (uint32_t code = 0; text && code <= LAST_CODE; code++)
        if (code < 0xd800 || code > 0xdfff)
            *n += qn_utf8_encode(code, text + *n);
    return text;
}

static uint32_t code_at(const char *text, size_t n, size_t at)
{
    uint32_t code;
    size_t bytes;
    qn_utf8_next(text + at, n - at, &bytes, &code);
    return code;
}

/* Appends the runs of characters that match. */
static qn_status find_runs(const pcre2_code *code, const char *text, size_t n, property *p)
{
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    size_t capacity = 0, at = 0;
    qn_status status = match ? QN_OK : qn_fail(QN_ERR_MEMORY, "Unicode: no memory");
    while (status == QN_OK && at < n &&
           pcre2_match(code, (PCRE2_SPTR)text, n, at, PCRE2_NO_UTF_CHECK, match, NULL) > 0) {
        const size_t *span = pcre2_get_ovector_pointer(match);
        size_t last = span[1] - 1;
        while (((uint8_t)text[last] & 0xc0) == 0x80)
            last--;
        status = qn_realloc_array(&p->ranges, &capacity, p->n + 1, sizeof *p->ranges, "Unicode");
        if (status == QN_OK)
            p->ranges[p->n++] = (qn_code_range){ code_at(text, n, span[0]), code_at(text, n, last) };
        at = span[1];
    }
    pcre2_match_data_free(match);
    return status;
}

/* Finds the code points of a property. *is_known: PCRE2 knows it. */
static qn_status find_code_points(property *p, bool *is_known)
{
    char pattern[MAX_NAME + 24];
    size_t n, offset;
    int error;
    qn_text_buffer to = QN_APPEND_TO(pattern);
    qn_append(&to, !strcmp(p->name, "assigned") ? "[^\\p{Cn}]+" : "[\\p{%s}]+", p->name);
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)pattern, to.length, PCRE2_UTF | PCRE2_NO_UTF_CHECK, &error, &offset, NULL);
    *is_known = code != NULL;
    if (!code)
        return QN_OK;
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    char *text = all_code_points(&n);
    const qn_status status = text ? find_runs(code, text, n, p) : qn_fail(QN_ERR_MEMORY, "Unicode: no memory");
    free(text);
    pcre2_code_free(code);
    return status;
}

static qn_status find_property(const char *name, const char *prefix, property **out)
{
    property *p;
    char full[sizeof p->name];
    bool is_known = true;
    qn_text_buffer to = QN_APPEND_TO(full);
    qn_append(&to, "%s%s", prefix, *prefix ? name : short_name(name));
    for (p = known; p && strcmp(p->name, full) != 0;)
        p = p->next;
    *out = p;
    if (p)
        return QN_OK;
    if (!(p = calloc(1, sizeof *p)))
        return qn_fail(QN_ERR_MEMORY, "Unicode: no memory");
    memcpy(p->name, full, sizeof full);
    const qn_status status = find_code_points(p, &is_known);
    if (status != QN_OK || !is_known) {
        free(p->ranges);
        free(p);
        return status;
    }
    p->next = known;
    known = *out = p;
    return QN_OK;
}

qn_status qn_unicode_property(const char *name, size_t length, const qn_code_range **ranges, size_t *n)
{
    char plain[MAX_NAME + 1];
    const char *prefix;
    property *p = NULL;
    *ranges = NULL;
    *n = 0;
    if (!normalise(name, length, plain, &prefix))
        return QN_OK;
    pthread_mutex_lock(&lock);
    const qn_status status = find_property(plain, prefix, &p);
    pthread_mutex_unlock(&lock);
    if (p) {
        static const qn_code_range none = { 1, 0 };
        *ranges = p->n ? p->ranges : &none;
        *n = p->n;
    }
    return status;
}
