/* The prefix cache: finds the pages of earlier sequences again by the tokens that they hold.
 *
 * A tree with a node for each page of 64 tokens. A path from a root spells the tokens of a prefix, and a node holds a reference to
 * its page, so that a new sequence can take over all pages of the longest path that its tokens match. Tokens are compared, not
 * hashes alone. Each scope has a root of its own: sequences of different scopes share nothing.
 *
 * With recurrent layers a sequence can begin only where a state is kept. States are kept at nodes within a budget of their own,
 * the least recently used ones go first. Nodes are evicted leaves first, least recently used first, when the pool is full.
 *
 * One thread at a time. */
#ifndef QN_CACHE_PREFIX_H
#define QN_CACHE_PREFIX_H

#include "cache/sequence.h"

typedef struct qn_prefix qn_prefix;

/* qn_prefix_create - an empty prefix cache for sequences of one qn_cache, which outlives it. state_budget: bytes of states that
 * are kept. Free with qn_prefix_free, which accepts NULL. */
qn_status qn_prefix_create(const qn_cache *cache, uint64_t state_budget, qn_prefix **out);
void qn_prefix_free(qn_prefix *prefix);

/* qn_prefix_adopt - let an empty sequence share the longest prefix of its tokens that the cache holds.
 *
 *   scope      a name; NULL is ""
 *   tokens     [n] of the sequence to be. At least its last token is left to be evaluated
 *   sequence   empty; its length is a multiple of 64 afterwards, 0 if nothing is found
 *   matched    written: tokens whose pages are in the cache, a multiple of 64. It is more than the sequence's length where no
 *              state is kept: a caller then keeps one there, because the prefix has been passed a second time
 *
 * QN_ERR_MEMORY leaves the sequence empty. */
qn_status qn_prefix_adopt(qn_prefix *prefix, const char *scope, const int32_t *tokens, size_t n, qn_sequence *sequence,
                          uint32_t *matched);

/* qn_prefix_add - add the complete pages of a sequence, [length] tokens. Pages that are there already stay. Without memory for
 * nodes, pages are left out. */
void qn_prefix_add(qn_prefix *prefix, const char *scope, const int32_t *tokens, const qn_sequence *sequence);

/* qn_prefix_keep_state - keep the state at the sequence's state_position, if that is not 0, after qn_prefix_add. Nothing happens
 * if the state is larger than the budget, or one is kept there already. */
void qn_prefix_keep_state(qn_prefix *prefix, const char *scope, const int32_t *tokens, const qn_sequence *sequence);

/* qn_prefix_evict - drop the page, or the state, that was not used for the longest time and that no sequence holds. False if
 * there is none. */
bool qn_prefix_evict(qn_prefix *prefix);

/* qn_prefix_clear - drop everything. */
void qn_prefix_clear(qn_prefix *prefix);

typedef struct qn_prefix_counts {
    size_t pages, states;
} qn_prefix_counts;

qn_prefix_counts qn_prefix_get_counts(const qn_prefix *prefix);

#endif
