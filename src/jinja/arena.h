/* An arena: memory that is freed all at once, with a limit. Templates and the values of a rendering live in one. */
#ifndef QN_JINJA_ARENA_H
#define QN_JINJA_ARENA_H

#include "quern/status.h"

#include <stddef.h>

typedef struct qn_arena_block qn_arena_block;

typedef struct qn_arena {
    qn_arena_block *blocks;
    size_t bytes; /* allocated */
    size_t limit; /* most of them */
} qn_arena;

/* qn_arena_alloc - allocate zeroed memory, aligned to 16 bytes.
 *
 *   out     address of a pointer of any object type
 *   count   of objects of `size` bytes; 0 gives a valid pointer
 *
 * QN_ERR_INVALID if the arena's limit is exceeded, QN_ERR_MEMORY if there is no memory. */
qn_status qn_arena_alloc(qn_arena *arena, void *out, size_t count, size_t size);

/* qn_arena_grow - make memory of `old_bytes` larger, or allocate some where it is NULL. What is new is not zeroed. Only the last
 * pointer to it may be used afterwards: *out. Long memory is grown where it is, so that nothing of it is left behind. */
qn_status qn_arena_grow(qn_arena *arena, void *out, size_t old_bytes, size_t new_bytes);

/* qn_arena_free - free all memory. The arena can be used again. */
void qn_arena_free(qn_arena *arena);

#endif
