/* What one sequence of tokens keeps on a device: pages of keys and values, and for recurrent layers a state and an open
 * chunk. All of it are items of a pool (cache/pool.h), of which this module counts references; the device writes their
 * contents.
 *
 * Pages. Page r holds positions [64 r, 64 r + 64) of all attention layers. A complete page never changes and may be
 * shared with other sequences. In a cache of AURA codes, page 0 and the open page are fp16, and complete pages from 1
 * on are codes; the last position's page is kept in fp16 as well when it is complete, so that the sequence can be
 * truncated into it.
 *
 * Recurrent layers. The state is that at state_position, a multiple of 64; the open chunk has the rows since, up to 64.
 * The first row after a full open chunk folds the chunk into the state. Where the device folds whole chunks, a step
 * that contains positions [64 a, 64 a + 64) for some a leaves the state at the last multiple of 64 that it reaches,
 * which may be the length: the open chunk is then empty. A state may be shared: it is then folded into another item.
 *
 * Drafted rows. A step may end with rows that are dropped afterwards: tokens of a drafter that the model has to verify.
 * They are committed as others are, and the sequence is truncated to the rows that are accepted. A drafted row must
 * neither fold a chunk nor begin the page after one of codes, because that cannot be undone: the step has at most
 * qn_sequence_max_drafted of them, which end with the page of the row before at the latest. A page that a drafted row
 * completes is open again afterwards, with its fp16 rows.
 *
 * A step that appends rows: qn_sequence_reserve, the device's work, qn_sequence_commit. Rows of another step may be
 * reserved while the device computes the first: reserve, advance, reserve; settle when the first step has ended; then
 * advance again, or commit, or discard. One thread at a time uses a sequence; sequences that share items may be used by
 * different threads. */
#ifndef QN_CACHE_SEQUENCE_H
#define QN_CACHE_SEQUENCE_H

#include "cache/pool.h"

enum { QN_PAGE = 64 }; /* positions of a page, and rows of a chunk */

#define QN_NO_ITEM UINT32_MAX

/* The classes of items that sequences of one cache format hold, and how the device copies items. Outlives its
 * sequences. */
typedef struct qn_cache {
    qn_pool_class *pages;                /* of the cache's format; NULL without attention layers */
    qn_pool_class *f16_pages;            /* with AURA codes; else NULL */
    qn_pool_class *states, *open_chunks; /* with recurrent layers; else NULL */
    bool folds_whole_chunks;             /* how steps advance the state: see above */
    uint32_t max_dropped; /* rows of an open chunk that truncation can drop: 64, or fewer where the device keeps
                            fewer inputs of the convolution */
    /* Copies device memory; returns when the copy is complete. */
    qn_status (*copy)(void *context, uint64_t to, uint64_t from, size_t bytes);
    /* Copies of items to host memory and back (cache/spill.h), likewise complete on return. NULL where items are in
     * host memory. */
    qn_status (*copy_out)(void *context, void *to, uint64_t from, size_t bytes);
    qn_status (*copy_in)(void *context, uint64_t to, const void *from, size_t bytes);
    void *context;
} qn_cache;

typedef struct qn_sequence {
    const qn_cache *cache;
    uint32_t length, reserved;   /* tokens; rows of the step for which items are reserved */
    uint32_t *pages, *f16_pages; /* [max_pages] item of each page, QN_NO_ITEM: none. With codes pages[0] is none */
    size_t max_pages;
    uint32_t state;          /* QN_NO_ITEM: zeros */
    uint32_t state_to;       /* while rows are reserved: the item that gets the state after a fold; may be `state` */
    uint32_t state_position; /* 0, or a multiple of QN_PAGE below length, or equal to it */
    uint32_t min_length; /* truncation reaches no shorter length above 0: inputs of the convolution before it are not
                            there. No limit if it is at most state_position */
    uint32_t open_chunk;
    bool is_ahead;      /* between qn_sequence_advance and qn_sequence_settle */
    uint32_t old_state; /* then: the state before the advance, if it is another item; else QN_NO_ITEM */
} qn_sequence;

/* qn_sequence_create - an empty sequence. Free with qn_sequence_free, which accepts a zeroed struct. Takes the open
 * chunk, zeroed memory or not: rows are written before they are read. */
qn_status qn_sequence_create(const qn_cache *cache, qn_sequence *sequence);
void qn_sequence_free(qn_sequence *sequence);

/* qn_sequence_reserve - take all items that appending up to n > 0 rows needs, and copy those that are shared and would
 * change. QN_ERR_MEMORY, with nothing changed, if there is no memory. */
qn_status qn_sequence_reserve(qn_sequence *sequence, size_t n);

/* qn_sequence_commit - n rows, at most as many as reserved, have been appended; drops what is no longer needed. With 0
 * the reservation is undone, unless the device has already changed the state. */
void qn_sequence_commit(qn_sequence *sequence, size_t n);

/* qn_sequence_advance - count the reserved rows as appended while the device still computes them, so that others can be
 * reserved behind them. What their step reads is dropped by qn_sequence_settle, when it has ended. */
void qn_sequence_advance(qn_sequence *sequence);
void qn_sequence_settle(qn_sequence *sequence);

/* qn_sequence_discard - the device has computed a reserved row which is not appended: the sequence is not to grow
 * further, but its pages and its state may be shared. The rows that the row has folded into the state are before it and
 * stay: a state in place of the old one is then at the length. */
void qn_sequence_discard(qn_sequence *sequence);

/* qn_sequence_folds - whether appending n rows changes the state. */
bool qn_sequence_folds(const qn_sequence *sequence, size_t n);

/* qn_sequence_rewind_length - the greatest length, at most `length`, to which pages can be truncated without evaluating
 * tokens again: length itself, or less than QN_PAGE below it. */
uint32_t qn_sequence_rewind_length(const qn_sequence *sequence, uint32_t length);

/* qn_sequence_shortest - the shortest length above 0 to which the recurrent layers can be truncated by dropping rows; 1
 * without recurrent layers, 0 if the sequence is empty. */
uint32_t qn_sequence_shortest(const qn_sequence *sequence);

/* qn_sequence_truncate - drop all rows from `length` on: 0, or a result of qn_sequence_rewind_length that is at least
 * qn_sequence_shortest. */
void qn_sequence_truncate(qn_sequence *sequence, uint32_t length);

/* qn_sequence_max_drafted - how many drafted rows may follow n > 0 rows in a step, so that the sequence can be
 * truncated to any length from those n rows on; SIZE_MAX without a limit. */
size_t qn_sequence_max_drafted(const qn_sequence *sequence, size_t n);

/* What a file holds of a sequence. All but the length is 0 without recurrent layers: these cannot compute rows again,
 * so the fp16 rows of a complete page of codes belong to the contents. */
typedef struct qn_extent {
    uint32_t length, state_position;
    uint32_t shortest;  /* qn_sequence_shortest */
    bool has_last_page; /* the fp16 rows of the last page are there although it is a complete page of codes */
} qn_extent;

qn_extent qn_sequence_extent(const qn_sequence *sequence);

/* qn_sequence_restore - let an empty sequence have the items that an extent describes, whose contents the caller then
 * fills. QN_ERR_MEMORY leaves it empty. */
qn_status qn_sequence_restore(qn_sequence *sequence, const qn_extent *extent);

/* qn_sequence_assign - replace the contents of a sequence by those of another of the same qn_cache, as qn_sequence_fork
 * would. With QN_ERR_MEMORY the sequence is empty. */
qn_status qn_sequence_assign(qn_sequence *to, const qn_sequence *from);

/* qn_sequence_fork - another sequence with the same contents: complete pages and the state are shared, the open page
 * and the open chunk are copied. */
qn_status qn_sequence_fork(const qn_sequence *from, qn_sequence *to);

/* ---- Taking over pages of other sequences ---- */

/* qn_sequence_begin - let an empty sequence have n_pages complete pages, each of which is given by
 * qn_sequence_take_page before anything else, and with recurrent layers the state after them by qn_sequence_take_state.
 * QN_ERR_MEMORY leaves it empty. */
qn_status qn_sequence_begin(qn_sequence *sequence, size_t n_pages);

/* qn_sequence_take_page, qn_sequence_take_state - add a reference to an item and put it into the sequence. Of a page
 * there is one item, of the cache's format or fp16, and the other is QN_NO_ITEM. */
void qn_sequence_take_page(qn_sequence *sequence, size_t index, uint32_t page, uint32_t f16_page);
void qn_sequence_take_state(qn_sequence *sequence, uint32_t state);

/* qn_sequence_share_page - add a reference to a complete page, for someone else to hold. */
void qn_sequence_share_page(const qn_sequence *sequence, size_t index, uint32_t *page, uint32_t *f16_page);

/* qn_cache_length - the greatest length that each of n sequences can have when the pool holds nothing else, and they
 * grow by steps of few rows; 0 if they do not fit. */
uint64_t qn_cache_length(const qn_cache *cache, uint32_t n);

/* qn_sequence_bytes - bytes of the items that a sequence holds, shared or not. */
uint64_t qn_sequence_bytes(const qn_sequence *sequence);

#endif
