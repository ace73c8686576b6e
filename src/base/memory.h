/* Allocates aligned memory, with overflow checks. Any thread may allocate and free. */
#ifndef QN_BASE_MEMORY_H
#define QN_BASE_MEMORY_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* The size of a cache line and of a 512-bit vector register, in bytes. */
enum { QN_ALIGN = 64 };

/* qn_alloc - allocates `count` objects of `size` bytes, zeroed and aligned to QN_ALIGN. Free them with qn_free.
 *
 *   out    address of a pointer of any object type; NULL on failure. A count of 0 gives a valid pointer
 *   what   names the objects in error texts
 *
 * QN_ERR_MEMORY if count*size overflows or there is not enough memory. */
qn_status qn_alloc(void *out, size_t count, size_t size, const char *what);

/* qn_realloc_array - grows an array geometrically to a capacity of at least `need` objects of `size` bytes.
 *
 *   array      address of the array pointer, from malloc or NULL, not from qn_alloc. Free it with free()
 *   capacity   number of objects allocated; updated
 *
 * On QN_ERR_MEMORY the array is unchanged. */
qn_status qn_realloc_array(void *array, size_t *capacity, size_t need, size_t size, const char *what);

/* qn_free - frees memory from qn_alloc. NULL is allowed. */
void qn_free(void *memory);

/* Size arithmetic with overflow checks. On overflow they return false, and *out is unspecified. */
static inline bool qn_mul_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool qn_add_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

/* qn_round_up - the smallest multiple of `to` (> 0) that is at least n. The result must not overflow. */
static inline size_t qn_round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

#endif
