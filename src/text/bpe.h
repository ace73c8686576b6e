/* Byte-pair encoding: the list of merges, and merging of a sequence of tokens. The first tokens come from the
 * vocabulary (vocab.h), the boundaries between sequences from the pre-tokeniser (pretokenize.h). */
#ifndef QN_TEXT_BPE_H
#define QN_TEXT_BPE_H

#include "base/keyed_hash.h"
#include "text/vocab.h"

typedef struct qn_merge {
    uint32_t left, right; /* the pair */
    uint32_t token;       /* the merged token */
    uint32_t rank;        /* 1 + index in the file's list: the lowest rank is merged first; 0 for an empty slot */
} qn_merge;

/* A hash table of merges by pair. */
typedef struct qn_merges {
    qn_merge *slots;
    size_t slot_mask;
    qn_keyed_words words; /* key of the hash of pairs */
} qn_merges;

/* qn_merges_load - reads tokenizer.ggml.merges.
 *
 *   merges   zeroed; free it with qn_merges_free, even after an error
 *
 * A merge whose result is a control token is skipped, because text must not become a control token. QN_ERR_FORMAT,
 * with the merge, if it is not two tokens separated by a space, or if one of them or the result is not in the
 * vocabulary. */
qn_status qn_merges_load(qn_merges *merges, const qn_vocab *vocab, const qn_gguf *file);
void qn_merges_free(qn_merges *merges);

/* Scratch memory of one thread; grows with the longest sequence. Zero it before use; free it with
 * qn_bpe_scratch_free. */
typedef struct qn_bpe_scratch {
    struct qn_bpe_links *links;
    size_t links_capacity;
    struct qn_bpe_pair *heap;
    size_t heap_capacity;
    size_t n_heap;
} qn_bpe_scratch;

void qn_bpe_scratch_free(qn_bpe_scratch *scratch);

/* qn_bpe_merge - merges tokens in place: always the pair with the lowest rank, the leftmost of equal ranks, until none
 * can be merged.
 *
 *   without   [size of the vocabulary] tokens that no merge may produce; NULL: none
 *   tokens    [*n]
 *   n         at most 2^31-1; receives the new length
 *
 * Time is O(n log n). */
qn_status qn_bpe_merge(const qn_merges *merges, qn_bpe_scratch *scratch, const bool *without, int32_t *tokens,
                       size_t *n);

#endif
