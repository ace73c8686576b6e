/* Memory that is freed all at once: a list of blocks, each twice as large as the one before. */
#include "text/jinja/arena.h"

#include "base/memory.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_BYTES = 4096, LARGEST_BYTES = 1 << 20, ARENA_ALIGN = 16 };

struct qn_arena_block {
    qn_arena_block *next;
    size_t used, capacity;
    _Alignas(ARENA_ALIGN) unsigned char data[];
};

static qn_status add_block(qn_arena *arena, size_t bytes)
{
    size_t capacity = arena->blocks ? arena->blocks->capacity * 2 : FIRST_BYTES, total;
    capacity = capacity < LARGEST_BYTES ? capacity : LARGEST_BYTES;
    capacity = capacity > bytes ? capacity : bytes;
    if (!qn_add_size(capacity, sizeof(qn_arena_block), &total))
        return qn_fail(QN_ERR_MEMORY, "chat template: %zu bytes do not fit in memory", bytes);
    qn_arena_block *block = malloc(total);
    if (!block)
        return qn_fail(QN_ERR_MEMORY, "chat template: no memory for %zu bytes", total);
    *block = (qn_arena_block){ .next = arena->blocks, .capacity = capacity };
    arena->blocks = block;
    return QN_OK;
}

qn_status qn_arena_alloc(qn_arena *arena, void *out, size_t count, size_t size)
{
    size_t bytes, padded;
    *(void **)out = NULL;
    if (!qn_mul_size(count, size, &bytes) || !qn_add_size(bytes, ARENA_ALIGN - 1, &padded))
        return qn_fail(QN_ERR_MEMORY, "chat template: %zu values of %zu bytes do not fit in memory", count, size);
    padded = padded / ARENA_ALIGN * ARENA_ALIGN;
    if (padded > arena->limit - arena->bytes)
        return qn_fail(QN_ERR_INVALID, "chat template: needs more than the %zu bytes that a template may use", arena->limit);
    if (!arena->blocks || padded > arena->blocks->capacity - arena->blocks->used)
        QN_TRY(add_block(arena, padded));
    qn_arena_block *block = arena->blocks;
    void *memory = block->data + block->used;
    memset(memory, 0, bytes);
    block->used += padded;
    arena->bytes += padded;
    *(void **)out = memory;
    return QN_OK;
}

void qn_arena_free(qn_arena *arena)
{
    while (arena->blocks) {
        qn_arena_block *block = arena->blocks;
        arena->blocks = block->next;
        free(block);
    }
    arena->bytes = 0;
}
