/* Memory that is freed all at once: a list of blocks, each twice as large as the previous one. */
#include "jinja/arena.h"

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

static qn_status fail_limit(const qn_arena *arena)
{
    return qn_fail(QN_ERR_INVALID, "chat template: needs more than the %zu bytes that a template may use",
                   arena->limit);
}

static qn_status allocate(qn_arena *arena, void *out, size_t bytes)
{
    size_t padded;
    *(void **)out = NULL;
    if (!qn_add_size(bytes, ARENA_ALIGN - 1, &padded))
        return qn_fail(QN_ERR_MEMORY, "chat template: %zu bytes do not fit in memory", bytes);
    padded = padded / ARENA_ALIGN * ARENA_ALIGN;
    if (padded > arena->limit - arena->bytes)
        return fail_limit(arena);
    if (!arena->blocks || padded > arena->blocks->capacity - arena->blocks->used)
        QN_TRY(add_block(arena, padded));
    qn_arena_block *block = arena->blocks;
    *(void **)out = block->data + block->used;
    block->used += padded;
    arena->bytes += padded;
    return QN_OK;
}

qn_status qn_arena_alloc(qn_arena *arena, void *out, size_t count, size_t size)
{
    size_t bytes;
    *(void **)out = NULL;
    if (!qn_mul_size(count, size, &bytes))
        return qn_fail(QN_ERR_MEMORY, "chat template: %zu values of %zu bytes do not fit in memory", count, size);
    QN_TRY(allocate(arena, out, bytes));
    memset(*(void **)out, 0, bytes);
    return QN_OK;
}

/* The block of memory that is longer than LARGEST_BYTES, which has one of its own. */
static qn_arena_block **block_of(qn_arena *arena, const void *memory)
{
    qn_arena_block **at = &arena->blocks;
    while ((*at)->data != memory)
        at = &(*at)->next;
    return at;
}

static qn_status grow_block(qn_arena *arena, qn_arena_block **at, void *out, size_t bytes)
{
    size_t padded, total;
    if (!qn_add_size(bytes, ARENA_ALIGN - 1, &padded) || !qn_add_size(padded, sizeof(qn_arena_block), &total))
        return qn_fail(QN_ERR_MEMORY, "chat template: %zu bytes do not fit in memory", bytes);
    padded = padded / ARENA_ALIGN * ARENA_ALIGN;
    const size_t more = padded - (*at)->used;
    if (more > arena->limit - arena->bytes)
        return fail_limit(arena);
    qn_arena_block *block = realloc(*at, total);
    if (!block)
        return qn_fail(QN_ERR_MEMORY, "chat template: no memory for %zu bytes", total);
    block->capacity = block->used = padded;
    arena->bytes += more;
    *at = block;
    *(void **)out = block->data;
    return QN_OK;
}

qn_status qn_arena_grow(qn_arena *arena, void *out, size_t old_bytes, size_t new_bytes)
{
    const void *old = *(void **)out;
    if (old && old_bytes > LARGEST_BYTES)
        return grow_block(arena, block_of(arena, old), out, new_bytes);
    QN_TRY(allocate(arena, out, new_bytes));
    if (old_bytes)
        memcpy(*(void **)out, old, old_bytes);
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
