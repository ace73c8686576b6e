/* The device memory of one sequence of tokens: pages of keys and values, and for recurrent layers a state and an open
 * chunk. All of it is allocated as pool items (cache/pool.h). This module counts their references; the device writes
 * their contents.
 *
 * Pages. Page r holds positions [64 r, 64 r + 64) of all attention layers. A complete page never changes and may be
 * shared with other sequences. In a cache of AURA codes, page 0 and the open page are fp16, and complete pages from 1
 * on are codes. The page of the last position is also kept in fp16 when it is complete, so that the sequence can be
 * truncated into it.
 *
 * Recurrent layers. The state is the one at state_position, a multiple of 64; the open chunk holds the rows since then,
 * up to 64. The first row after a full open chunk folds the chunk into the state. On a device that folds whole chunks,
 * a step that contains positions [64 a, 64 a + 64) for some a leaves the state at the last multiple of 64 that it
 * reaches. If that is the length, the open chunk is empty. A shared state is not changed: a fold writes the new state
 * to another item.
 *
 * Drafted rows. A step may end with rows of drafted tokens that the model has to verify. They are committed like other
 * rows, and the sequence is then truncated to the accepted rows. A drafted row must neither fold a chunk nor begin the
 * page after a page of codes, because neither can be undone. So a step has at most qn_sequence_max_drafted drafted
 * rows, and they end no later than the page of the last row before them. A page that a drafted row completes is open
 * again after truncation, with its fp16 rows.
 *
 * A step that appends rows: qn_sequence_reserve, the device's work, qn_sequence_commit. Rows of a second step may be
 * reserved while the device computes the first: reserve, advance, reserve; settle when the first step has ended; then
 * advance again, commit or discard.
 *
 * Threads. One thread at a time may use a sequence; different threads may use sequences that share items. create,
 * reserve, fork, assign and restore take items with qn_pool_take, which may evict prefixes: the caller must hold no
 * lock of a prefix cache. */
#ifndef QN_CACHE_SEQUENCE_H
#define QN_CACHE_SEQUENCE_H

#include "cache/pool.h"
#include "plan/page.h"

#define QN_NO_ITEM UINT32_MAX

/* The item classes of sequences with one cache format, and how the device copies items. Constant after
 * creation; any thread may use it. Must outlive its sequences. The functions may be called from any thread. */
typedef struct qn_cache {
    qn_pool_class *pages;                /* pages in the cache's format; NULL without attention layers */
    qn_pool_class *f16_pages;            /* fp16 pages of a cache of AURA codes; else NULL */
    qn_pool_class *states, *open_chunks; /* NULL without recurrent layers */
    bool folds_whole_chunks;             /* how steps advance the state: see above */
    uint32_t max_dropped; /* rows of an open chunk that truncation can drop: 64, or fewer if the device keeps fewer
                             convolution inputs */
    /* Copies device memory; returns when the copy is complete. */
    qn_status (*copy)(void *context, uint64_t to, uint64_t from, size_t bytes);
    /* Copy items to host memory and back (cache/spill.h); also return when the copy is complete. NULL if items are in
     * host memory. */
    qn_status (*copy_out)(void *context, void *to, uint64_t from, size_t bytes);
    qn_status (*copy_in)(void *context, uint64_t to, const void *from, size_t bytes);
    void *context;
} qn_cache;

/* A sequence. It holds a reference to each of its items. Used by one thread at a time. */
typedef struct qn_sequence {
    const qn_cache *cache;
    uint32_t length, reserved;   /* tokens; rows of the next step, for which items are reserved */
    uint32_t *pages, *f16_pages; /* [max_pages] item of each page, or QN_NO_ITEM. In a cache of codes pages[0] is always
                                    QN_NO_ITEM */
    size_t max_pages;
    uint32_t state;          /* QN_NO_ITEM: a state of zeros */
    uint32_t state_to;       /* while rows are reserved: the item that a fold writes the new state to; may be `state` */
    uint32_t state_position; /* a multiple of QN_PAGE, at most length */
    uint32_t min_length; /* shortest length above 0 that truncation can reach: convolution inputs before it are missing.
                            No limit if it is at most state_position */
    uint32_t open_chunk;
    bool is_ahead;      /* between qn_sequence_advance and qn_sequence_settle */
    uint32_t old_state; /* between these calls: the state before the advance, if it is another item; else QN_NO_ITEM */
} qn_sequence;

/* qn_sequence_create - creates an empty sequence. It takes the item of the open chunk, whose memory need not be zero:
 * rows are written before they are read. Free with qn_sequence_free, which accepts a zeroed struct. */
qn_status qn_sequence_create(const qn_cache *cache, qn_sequence *sequence);
void qn_sequence_free(qn_sequence *sequence);

/* qn_sequence_reserve - takes all items for appending up to n > 0 rows, and copies shared items that would change.
 * QN_ERR_MEMORY, with nothing changed, if there is no memory. */
qn_status qn_sequence_reserve(qn_sequence *sequence, size_t n);

/* qn_sequence_commit - appends n rows, at most the number reserved, and drops items that are no longer needed. n = 0
 * undoes the reservation, provided that the device has not changed the state. */
void qn_sequence_commit(qn_sequence *sequence, size_t n);

/* qn_sequence_advance - appends the reserved rows while the device still computes them, so that a second step's rows
 * can be reserved. Items that the first step reads are kept until qn_sequence_settle. */
void qn_sequence_advance(qn_sequence *sequence);

/* qn_sequence_settle - drops the items that only the first step read. Call it when that step has ended on the
 * device. */
void qn_sequence_settle(qn_sequence *sequence);

/* qn_sequence_discard - cancels the reservation of a row that the device has computed but that is not appended. The
 * sequence must not grow afterwards; its pages and its state may still be shared. If the row's step folded the open
 * chunk into the state in place, the state is now at the sequence's length: the folded rows are all before the
 * discarded row. */
void qn_sequence_discard(qn_sequence *sequence);

/* qn_sequence_folds - returns whether appending n rows changes the state. */
bool qn_sequence_folds(const qn_sequence *sequence, size_t n);

/* qn_sequence_rewind_length - returns the greatest length, at most `length`, to which the pages can be truncated
 * without evaluating tokens again: `length`, or its page's first position, less than QN_PAGE below it. */
uint32_t qn_sequence_rewind_length(const qn_sequence *sequence, uint32_t length);

/* qn_sequence_shortest - returns the shortest length above 0 to which the recurrent layers can be truncated by dropping
 * rows; 1 without recurrent layers, 0 if the sequence is empty. */
uint32_t qn_sequence_shortest(const qn_sequence *sequence);

/* qn_sequence_truncate - drops all rows from `length` on, which is not checked: it must be 0, or both a result of
 * qn_sequence_rewind_length and at least qn_sequence_shortest. */
void qn_sequence_truncate(qn_sequence *sequence, uint32_t length);

/* qn_sequence_max_drafted - returns the largest number of drafted rows that may follow n > 0 rows in a step, such that
 * the sequence can be truncated to any length from the end of those n rows on; SIZE_MAX without a limit. */
size_t qn_sequence_max_drafted(const qn_sequence *sequence, size_t n);

/* The extent of a sequence in a file. Without recurrent layers all members but the length are 0. With them, rows cannot
 * be computed again, so the file also keeps the fp16 rows of a complete last page of codes. */
typedef struct qn_extent {
    uint32_t length, state_position;
    uint32_t shortest;  /* qn_sequence_shortest */
    bool has_last_page; /* the file has the fp16 rows of the last page, although it is a complete page of codes */
} qn_extent;

qn_extent qn_sequence_extent(const qn_sequence *sequence);

/* qn_sequence_restore - gives an empty sequence the items that an extent describes. The caller then fills their
 * contents. QN_ERR_MEMORY leaves it empty. */
qn_status qn_sequence_restore(qn_sequence *sequence, const qn_extent *extent);

/* qn_sequence_assign - replaces the contents of a sequence by those of another of the same qn_cache, as
 * qn_sequence_fork does. QN_ERR_MEMORY leaves it empty. */
qn_status qn_sequence_assign(qn_sequence *to, const qn_sequence *from);

/* qn_sequence_fork - creates a sequence with the same contents. It shares complete pages and the state, and copies the
 * open page and the open chunk. */
qn_status qn_sequence_fork(const qn_sequence *from, qn_sequence *to);

/* ---- Taking over pages of other sequences ---- */

/* qn_sequence_begin - gives an empty sequence n_pages complete pages. Before any other call, the caller passes each
 * page to qn_sequence_take_page and, with recurrent layers, the state after them to qn_sequence_take_state.
 * QN_ERR_MEMORY leaves it empty. */
qn_status qn_sequence_begin(qn_sequence *sequence, size_t n_pages);

/* qn_sequence_take_page - adds a reference to a page's item and puts it into the sequence. Either `page`, in the
 * cache's format, or `f16_page` is an item; the other is QN_NO_ITEM. */
void qn_sequence_take_page(qn_sequence *sequence, size_t index, uint32_t page, uint32_t f16_page);

/* qn_sequence_take_state - adds a reference to a state and makes it the sequence's state, at its length. */
void qn_sequence_take_state(qn_sequence *sequence, uint32_t state);

/* qn_sequence_share_page - adds a reference to a complete page for the caller, who must drop it. Returns its item in
 * `page` or in `f16_page`, and QN_NO_ITEM in the other. */
void qn_sequence_share_page(const qn_sequence *sequence, size_t index, uint32_t *page, uint32_t *f16_page);

/* qn_cache_length - returns the greatest length that each of n sequences can have if the pool holds nothing else and
 * they grow by steps of few rows; 0 if they do not fit. */
uint64_t qn_cache_length(const qn_cache *cache, uint32_t n);

/* qn_sequence_bytes - returns the number of bytes of the items that a sequence holds, shared ones included. */
uint64_t qn_sequence_bytes(const qn_sequence *sequence);

#endif
