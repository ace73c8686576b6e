/* The prefix cache: finds the pages of earlier sequences by the ids of the rows that they hold.
 *
 * It is a tree with a node for each page of 64 rows. A path from a root spells the ids of a prefix, and each node holds
 * a reference to its page. A new sequence takes over all pages of the longest path that its ids match. All ids are
 * compared, not only hashes of pages. Each scope has its own root: sequences of different scopes share nothing.
 *
 * With recurrent layers a sequence can begin only where a state is kept. Nodes keep states within a separate budget.
 * When that budget is full, periodic states (kept every QN_STATE_PERIOD tokens) are thinned: older ones remain only at
 * multiples of growing powers of two of the period. After that, the least recently used state is evicted; a periodic
 * state counts as four times as old as others.
 *
 * A request that takes over all pages of an earlier one, or half of its own, continues a conversation. Pages and states
 * of prefixes that were never continued count as four times as old. So side requests, such as for a title, evict each
 * other before they evict a conversation between two of its turns.
 *
 * When the pool is full, nodes are evicted leaves first, least recently used first. With a host memory budget, evicted
 * pages and states are spilled to host memory instead (cache/spill.h) and copied back for a sequence that takes them
 * over; when host memory is full too, they are dropped. A state less than QN_SPILL_TOKENS tokens after another one is
 * not worth its copy: it is dropped instead of spilled, and not copied back.
 *
 * Copies to host memory run on a thread of their own. An item that is being copied stays in the pool until
 * qn_prefix_end_copies; if it is used meanwhile, the copy is abandoned and the item stays in the pool. While
 * QN_SPILL_COPIES copies are in flight, states beyond the budget are dropped.
 *
 * One thread at a time may use a prefix cache: the caller has a lock (engine/kept.h). Only qn_prefix_wait may run next
 * to other calls. Ids and scopes are copied. */
#ifndef QN_CACHE_PREFIX_H
#define QN_CACHE_PREFIX_H

#include "cache/sequence.h"

enum { QN_STATE_PERIOD = 4096, QN_SPILL_TOKENS = 256, QN_FREE_SHARE = 32 };

typedef struct qn_prefix qn_prefix;

/* The ids of rows, in arrays of the caller. The id of a token at the position after the row before it is the token. Any
 * other row, such as an embedding, has the token -1, and as its id a hash of 64 bits, of everything that its keys and
 * values depend on besides the rows before it: the embedding, or what it was made of, and its position. No hash can be
 * mistaken for a token: what a row is, is decided by its token. */
typedef struct qn_row_ids {
    const int32_t *tokens;
    const uint64_t *hashes; /* read where the token is -1; NULL: all rows are tokens */
} qn_row_ids;

/* qn_token_ids - returns the ids of rows that are all tokens. */
static inline qn_row_ids qn_token_ids(const int32_t *tokens)
{
    return (qn_row_ids){ .tokens = tokens };
}

/* qn_row_ids_from - returns the ids of the rows from `first` on. */
static inline qn_row_ids qn_row_ids_from(qn_row_ids ids, size_t first)
{
    return (qn_row_ids){ ids.tokens + first, ids.hashes ? ids.hashes + first : NULL };
}

/* qn_prefix_create - creates an empty prefix cache.
 *
 *   cache          the qn_cache of all its sequences; must outlive the prefix cache
 *   state_budget   limit of the bytes of states kept in the pool
 *   host_budget    bytes of host memory for spilled items; 0, or a cache without copy_out: nothing is spilled
 *
 * Free with qn_prefix_free, which accepts NULL. */
qn_status qn_prefix_create(const qn_cache *cache, uint64_t state_budget, uint64_t host_budget, qn_prefix **out);
void qn_prefix_free(qn_prefix *prefix);

/* qn_prefix_adopt - lets an empty sequence share the longest prefix of its tokens that the cache holds.
 *
 *   scope      a name; NULL is ""
 *   ids        [n] ids of the rows of the future sequence; at least the last row is left to be evaluated
 *   sequence   empty; its length is a multiple of 64 afterwards, 0 if no prefix is found
 *   matched    output: number of rows whose pages are in the cache, a multiple of 64. It exceeds the sequence's
 *              length where no state is kept: the caller should then keep one at `matched`, because a second
 *              request has now passed this prefix
 *
 * Copies spilled items back to the pool and evicts others to make room. QN_ERR_MEMORY leaves the sequence empty. */
qn_status qn_prefix_adopt(qn_prefix *prefix, const char *scope, qn_row_ids ids, size_t n, qn_sequence *sequence,
                          uint32_t *matched);

/* qn_prefix_is_spilled - returns whether qn_prefix_adopt would copy an item from host memory. */
bool qn_prefix_is_spilled(const qn_prefix *prefix, const char *scope, qn_row_ids ids, size_t n);

/* qn_prefix_add - adds the complete pages of a sequence. `ids` are those of its [length] rows. Pages already in the
 * cache stay, but spilled ones are replaced by the sequence's. If there is no memory for nodes, the remaining pages are
 * left out. */
void qn_prefix_add(qn_prefix *prefix, const char *scope, qn_row_ids ids, const qn_sequence *sequence);

/* Why a state is kept. */
typedef enum qn_state_kind {
    QN_STATE_PERIODIC, /* its position is a multiple of QN_STATE_PERIOD */
    QN_STATE_MARK      /* another request may continue there: the end of a message, prompt or answer, or a branch */
} qn_state_kind;

/* qn_prefix_keep_state - keeps the state at the sequence's state_position, if that is not 0. Call it after
 * qn_prefix_add. Does nothing if the state is larger than the budget. If a state is already kept there, it stays, and
 * becomes QN_STATE_MARK if `kind` is. */
void qn_prefix_keep_state(qn_prefix *prefix, const char *scope, qn_row_ids ids, const qn_sequence *sequence,
                          qn_state_kind kind);

/* qn_prefix_end_copies - releases the pool items whose copy to host memory has ended. A page that could not be copied
 * is dropped with its descendants; if host memory was exhausted and could be freed, the item stays in the pool instead.
 * Returns false if no copy has ended. */
bool qn_prefix_end_copies(qn_prefix *prefix);

typedef enum qn_evicted {
    QN_EVICTED_NONE,
    QN_EVICTED,
    QN_EVICTED_LATER /* evicted when a copy ends: call qn_prefix_wait, then qn_prefix_end_copies */
} qn_evicted;

/* qn_prefix_begin_evict - evicts the least recently used page that no sequence holds, or if there is none, a state:
 * drops it, or begins its copy to host memory. If copies have ended, it only releases their items; if copies are in
 * flight, it begins nothing and returns QN_EVICTED_LATER. QN_EVICTED_NONE if nothing in the pool can be evicted. */
qn_evicted qn_prefix_begin_evict(qn_prefix *prefix);

/* qn_prefix_evict - qn_prefix_begin_evict, then waits for a copy if one is in flight. Returns false if nothing in the
 * pool can be evicted. */
bool qn_prefix_evict(qn_prefix *prefix);

/* qn_prefix_evict_ahead - ends copies, and begins a few if none is in flight and less than 1/QN_FREE_SHARE of the pool
 * is free. Frequent calls keep allocation from blocking. Without host memory, nothing is evicted. */
void qn_prefix_evict_ahead(qn_prefix *prefix);

/* qn_prefix_wait - waits until a copy to host memory has ended; returns at once if none is in flight. Other threads may
 * use the prefix cache meanwhile, but not free it. */
void qn_prefix_wait(qn_prefix *prefix);

/* qn_prefix_clear - drops all pages and states. */
void qn_prefix_clear(qn_prefix *prefix);

typedef struct qn_prefix_counts {
    size_t pages, states; /* spilled ones included */
    uint64_t host_bytes;  /* of spilled pages and states */
} qn_prefix_counts;

qn_prefix_counts qn_prefix_get_counts(const qn_prefix *prefix);

#endif
