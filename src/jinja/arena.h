/* An arena: memory with a limit that is freed all at once. Templates and the values of a rendering are allocated in
 * one. An arena is used by one thread at a time. */
#ifndef QN_JINJA_ARENA_H
#define QN_JINJA_ARENA_H

#include "quern/status.h"

#include <stddef.h>

typedef struct qn_arena_block qn_arena_block;

/* Zero it, but for `limit`, before use. */
typedef struct qn_arena {
    qn_arena_block *blocks;
    size_t bytes; /* bytes allocated */
    size_t limit; /* limit of `bytes` */
} qn_arena;

/* qn_arena_alloc - allocates zeroed memory, aligned to 16 bytes.
 *
 *   out     address of a pointer of any object type
 *   count   number of objects of `size` bytes; 0 gives a valid pointer
 *
 * QN_ERR_INVALID if the arena's limit is exceeded, QN_ERR_MEMORY if there is no memory. */
qn_status qn_arena_alloc(qn_arena *arena, void *out, size_t count, size_t size);

/* qn_arena_grow - enlarges memory of `old_bytes`, or allocates it if *out is NULL. The new part is not zeroed.
 * Afterwards only *out may be used to access it. Large memory has a block of its own and grows in place, so that no
 * copy of it stays in the arena. */
qn_status qn_arena_grow(qn_arena *arena, void *out, size_t old_bytes, size_t new_bytes);

/* qn_arena_free - frees all memory. The arena can be used again. */
void qn_arena_free(qn_arena *arena);

#endif
