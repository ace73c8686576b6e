/* The prefix cache: finds the pages of earlier sequences again by the tokens that they hold.
 *
 * A tree with a node for each page of 64 tokens. A path from a root spells the tokens of a prefix, and a node holds a
 * reference to its page, so that a new sequence can take over all pages of the longest path that its tokens match.
 * Tokens are compared, not hashes alone. Each scope has a root of its own: sequences of different scopes share nothing.
 *
 * With recurrent layers a sequence can begin only where a state is kept. States are kept at nodes within a budget of
 * their own. When it is full, those that are kept every QN_STATE_PERIOD tokens are thinned: the older, the fewer
 * remain, at multiples of powers of two of the period. Then the least recently used state goes, where a periodic one
 * counts as four times as old as others.
 *
 * A request that takes over all pages of an earlier one, or half of its own, continues a conversation. Pages and states
 * of what was never continued count as four times as old: side requests, such as for a title, evict each other before
 * they evict a conversation between two of its turns.
 *
 * Nodes are evicted leaves first, least recently used first, when the pool is full. With a budget of host memory, pages
 * and states are spilled to it instead (cache/spill.h), and copied back for a sequence that takes them over; they are
 * dropped when it is full too. A state that is less than QN_SPILL_TOKENS tokens behind another one is not worth its
 * copy: it is dropped, and not copied back.
 *
 * Copies to host memory are made beside other work. What is being copied stays in the pool until qn_prefix_end_copies,
 * and stays there for good if it is wanted meanwhile. States beyond the budget are dropped while QN_SPILL_COPIES are in
 * flight.
 *
 * One thread at a time, but for qn_prefix_wait. */
#ifndef QN_CACHE_PREFIX_H
#define QN_CACHE_PREFIX_H

#include "cache/sequence.h"

enum { QN_STATE_PERIOD = 4096, QN_SPILL_TOKENS = 256, QN_FREE_SHARE = 32 };

typedef struct qn_prefix qn_prefix;

/* qn_prefix_create - an empty prefix cache for sequences of one qn_cache, which outlives it.
 *
 *   state_budget   bytes of states that are kept in the pool
 *   host_budget    bytes of host memory for what is spilled, of a cache that has copy_out; 0: nothing is spilled
 *
 * Free with qn_prefix_free, which accepts NULL. */
qn_status qn_prefix_create(const qn_cache *cache, uint64_t state_budget, uint64_t host_budget, qn_prefix **out);
void qn_prefix_free(qn_prefix *prefix);

/* qn_prefix_adopt - let an empty sequence share the longest prefix of its tokens that the cache holds.
 *
 *   scope      a name; NULL is ""
 *   tokens     [n] of the sequence to be. At least its last token is left to be evaluated
 *   sequence   empty; its length is a multiple of 64 afterwards, 0 if nothing is found
 *   matched    written: tokens whose pages are in the cache, a multiple of 64. It is more than the sequence's length
 *              where no state is kept: a caller then keeps one there, because the prefix has been passed a second time
 *
 * What is spilled is copied back; other pages and states are evicted for it. QN_ERR_MEMORY leaves the sequence
 * empty. */
qn_status qn_prefix_adopt(qn_prefix *prefix, const char *scope, const int32_t *tokens, size_t n, qn_sequence *sequence,
                          uint32_t *matched);

/* qn_prefix_is_spilled - whether qn_prefix_adopt would copy anything back. */
bool qn_prefix_is_spilled(const qn_prefix *prefix, const char *scope, const int32_t *tokens, size_t n);

/* qn_prefix_add - add the complete pages of a sequence, [length] tokens. Pages that are there already stay; of those
 * that are spilled the sequence's are kept instead. Without memory for nodes, pages are left out. */
void qn_prefix_add(qn_prefix *prefix, const char *scope, const int32_t *tokens, const qn_sequence *sequence);

/* Why a state is kept. */
typedef enum qn_state_kind {
    QN_STATE_PERIODIC, /* its position is a multiple of QN_STATE_PERIOD */
    QN_STATE_MARK      /* another request may continue there: ends of messages, of prompts and of answers, branches */
} qn_state_kind;

/* qn_prefix_keep_state - keep the state at the sequence's state_position, if that is not 0, after qn_prefix_add.
 * Nothing happens if the state is larger than the budget; one that is kept there already becomes a mark if this one
 * is. */
void qn_prefix_keep_state(qn_prefix *prefix, const char *scope, const int32_t *tokens, const qn_sequence *sequence,
                          qn_state_kind kind);

/* qn_prefix_end_copies - let the items go whose copies to host memory are complete. A page that could not be copied is
 * dropped with those after it. False if no copy has ended. */
bool qn_prefix_end_copies(qn_prefix *prefix);

typedef enum qn_evicted {
    QN_EVICTED_NONE,
    QN_EVICTED,
    QN_EVICTED_LATER /* when a copy has ended: after qn_prefix_wait and qn_prefix_end_copies */
} qn_evicted;

/* qn_prefix_begin_evict - drop, or begin to copy, the page, or the state, that was not used for the longest time and
 * that no sequence holds. Copies that are in flight come first. QN_EVICTED_NONE if the pool has none.
 *
 * qn_prefix_evict - the same, and wait. False if the pool has none. */
qn_evicted qn_prefix_begin_evict(qn_prefix *prefix);
bool qn_prefix_evict(qn_prefix *prefix);

/* qn_prefix_evict_ahead - end copies, and begin a few if nothing is being copied and less than 1/QN_FREE_SHARE of the
 * pool is free: who calls this often rarely waits for memory. Nothing happens without host memory. */
void qn_prefix_evict_ahead(qn_prefix *prefix);

/* qn_prefix_wait - wait until a copy to host memory has ended, if any is in flight. Other threads may use the cache
 * meanwhile, but not free it. */
void qn_prefix_wait(qn_prefix *prefix);

/* qn_prefix_clear - drop everything. */
void qn_prefix_clear(qn_prefix *prefix);

typedef struct qn_prefix_counts {
    size_t pages, states; /* spilled ones included */
    uint64_t host_bytes;  /* of spilled pages and states */
} qn_prefix_counts;

qn_prefix_counts qn_prefix_get_counts(const qn_prefix *prefix);

#endif
