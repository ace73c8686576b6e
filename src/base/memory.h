/* Checked, aligned memory: the one allocator of the library. */
#ifndef QN_BASE_MEMORY_H
#define QN_BASE_MEMORY_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* One cache line, and the width of the widest vector register in use. */
enum { QN_ALIGN = 64 };

/* qn_alloc - `count` objects of `size` bytes, zeroed, aligned to QN_ALIGN; free with qn_free.
 * QN_ERR_MEMORY, with `what` in the text and *out = NULL, when count*size overflows or memory is short.
 * A zero count gives a valid pointer to one aligned line. */
qn_status qn_alloc(void *out, size_t count, size_t size, const char *what);

/* qn_realloc_array - grow *array (malloc family, not qn_alloc) to hold at least `need` objects of `size` bytes; *capacity is
 * the count it holds now and is updated. Growth is geometric. QN_ERR_MEMORY leaves *array as it was. Free with free(). */
qn_status qn_realloc_array(void *array, size_t *capacity, size_t need, size_t size, const char *what);

void qn_free(void *memory);

/* qn_advise_huge - ask for larger pages under memory that is going to be read from end to end: fewer misses of the page tables'
 * cache. Before it is first written; without them it works all the same. */
void qn_advise_huge(void *memory, size_t bytes);

/* Overflow-checked size arithmetic: false, and *out unspecified, when the result does not fit. */
static inline bool qn_mul_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool qn_add_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

/* qn_round_up - the smallest multiple of `to` (> 0) that is at least n; n must leave room for it. */
static inline size_t qn_round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

#endif
