/* Form C with the tables of utf8proc: decompose, sort combining marks, compose. */
#include "text/normalize.h"

#include "base/memory.h"
#include "base/utf8.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Above this number of characters the code points are freed as soon as the text has been made of them. */
enum { MOST_KEPT = 1 << 20 };

static void free_codes(qn_nfc_scratch *scratch)
{
    free(scratch->codes);
    free(scratch->sorted);
    scratch->codes = scratch->sorted = NULL;
    scratch->codes_capacity = scratch->sorted_capacity = 0;
}

void qn_nfc_scratch_free(qn_nfc_scratch *scratch)
{
    free_codes(scratch);
    free(scratch->bytes);
    *scratch = (qn_nfc_scratch){ 0 };
}

/* Whether all characters are below U+0300: such texts are in form C. */
static bool is_below_marks(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] >= 0xcc)
            return false;
    return true;
}

static int combining_class(int32_t code)
{
    return utf8proc_get_property(code)->combining_class;
}

/* Sorts a run of combining marks by class, a stable counting sort. utf8proc's own sort is quadratic in the length of
 * the run. */
static qn_status sort_marks(qn_nfc_scratch *scratch, int32_t *marks, size_t n)
{
    bool in_order = true;
    size_t at[257] = { 0 };
    for (size_t i = 0; i < n; i++) {
        const int class = combining_class(marks[i]);
        in_order = in_order && (!i || combining_class(marks[i - 1]) <= class);
        at[class + 1]++;
    }
    if (in_order)
        return QN_OK;
    QN_TRY(qn_realloc_array(&scratch->sorted, &scratch->sorted_capacity, n, sizeof *scratch->sorted, "normalising"));
    for (int c = 0; c < 256; c++)
        at[c + 1] += at[c];
    for (size_t i = 0; i < n; i++)
        scratch->sorted[at[combining_class(marks[i])]++] = marks[i];
    memcpy(marks, scratch->sorted, n * sizeof *marks);
    return QN_OK;
}

static qn_status decompose(qn_nfc_scratch *scratch, const char *text, size_t length, size_t *n_codes)
{
    enum { MAX_DECOMPOSITION = 16 }; /* no canonical decomposition is longer than 4 */
    size_t n = 0, bytes;
    for (size_t i = 0; i < length; i += bytes) {
        uint32_t code;
        int last_boundclass = 0;
        qn_utf8_next(text + i, length - i, &bytes, &code);
        QN_TRY(qn_realloc_array(&scratch->codes, &scratch->codes_capacity, n + MAX_DECOMPOSITION,
                                sizeof *scratch->codes, "normalising"));
        const utf8proc_ssize_t n_decomposed =
            utf8proc_decompose_char((int32_t)code, scratch->codes + n, MAX_DECOMPOSITION,
                                    UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &last_boundclass);
        if (n_decomposed < 0 || n_decomposed > MAX_DECOMPOSITION)
            return qn_fail(QN_ERR_UNSUPPORTED, "cannot normalise U+%04X: %s", code,
                           n_decomposed < 0 ? utf8proc_errmsg(n_decomposed) : "its decomposition is too long");
        n += (size_t)n_decomposed;
    }
    *n_codes = n;
    return QN_OK;
}

qn_status qn_nfc(qn_nfc_scratch *scratch, const char *text, size_t length, const char **out, size_t *out_length)
{
    *out = text;
    *out_length = length;
    if (is_below_marks(text, length))
        return QN_OK;
    size_t n = 0;
    QN_TRY(decompose(scratch, text, length, &n));
    for (size_t begin = 0, end; begin < n; begin = end) {
        end = begin + 1;
        if (!combining_class(scratch->codes[begin]))
            continue;
        while (end < n && combining_class(scratch->codes[end]))
            end++;
        QN_TRY(sort_marks(scratch, scratch->codes + begin, end - begin));
    }
    const utf8proc_ssize_t composed =
        utf8proc_normalize_utf32(scratch->codes, (utf8proc_ssize_t)n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    if (composed < 0)
        return qn_fail(QN_ERR_UNSUPPORTED, "cannot normalise a text: %s", utf8proc_errmsg(composed));
    size_t max_bytes;
    if (!qn_mul_size((size_t)composed, 4, &max_bytes))
        return qn_fail(QN_ERR_MEMORY, "normalising: a text of %zu characters does not fit in memory", (size_t)composed);
    QN_TRY(qn_realloc_array(&scratch->bytes, &scratch->bytes_capacity, max_bytes, 1, "normalising"));
    size_t n_bytes = 0;
    for (size_t i = 0; i < (size_t)composed; i++)
        n_bytes += qn_utf8_encode((uint32_t)scratch->codes[i], scratch->bytes + n_bytes);
    if (scratch->codes_capacity > MOST_KEPT)
        free_codes(scratch);
    *out = scratch->bytes;
    *out_length = n_bytes;
    return QN_OK;
}
