/* Checked, aligned allocation. */
#include "base/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Allocates with calloc, and aligns the result: calloc returns untouched zero pages for large sizes, so the unused part
 * of an array does not become resident. Its pointer is stored in the word before the aligned address, for qn_free. */
qn_status qn_alloc(void *out, size_t count, size_t size, const char *what)
{
    void *aligned = NULL;
    size_t bytes;
    memcpy(out, &aligned, sizeof aligned);
    if (!qn_mul_size(count, size, &bytes) || bytes > PTRDIFF_MAX - 2 * QN_ALIGN)
        return qn_fail(QN_ERR_MEMORY, "%s: %zu objects of %zu bytes do not fit in memory", what, count, size);
    unsigned char *raw = calloc(1, qn_round_up(bytes, QN_ALIGN) + 2 * QN_ALIGN);
    if (!raw)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory for %zu bytes", what, bytes);
    /* at least 16, since calloc aligns to 16: enough for a pointer */
    const size_t shift = QN_ALIGN - (uintptr_t)raw % QN_ALIGN;
    aligned = raw + shift;
    memcpy(raw + shift - sizeof raw, &raw, sizeof raw);
    memcpy(out, &aligned, sizeof aligned);
    return QN_OK;
}

qn_status qn_realloc_array(void *array, size_t *capacity, size_t need, size_t size, const char *what)
{
    if (need <= *capacity)
        return QN_OK;
    size_t count = *capacity < 8 ? 8 : *capacity;
    while (count < need)
        if (!qn_add_size(count, count / 2, &count))
            return qn_fail(QN_ERR_MEMORY, "%s: %zu objects do not fit in memory", what, need);
    size_t bytes;
    if (!qn_mul_size(count, size, &bytes))
        return qn_fail(QN_ERR_MEMORY, "%s: %zu objects of %zu bytes do not fit in memory", what, count, size);
    void *old;
    memcpy(&old, array, sizeof old);
    void *grown = realloc(old, bytes);
    if (!grown)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory for %zu bytes", what, bytes);
    memcpy(array, &grown, sizeof grown);
    *capacity = count;
    return QN_OK;
}

void qn_free(void *memory)
{
    if (!memory)
        return;
    void *raw;
    memcpy(&raw, (unsigned char *)memory - sizeof raw, sizeof raw);
    free(raw);
}
