/* Merging by byte-pair encoding: which pairs of tokens join, and joining them in a sequence. The tokens that a text begins with
 * come from the vocabulary; where to cut it beforehand is pretokenize.h's. */
#ifndef QN_TEXT_BPE_H
#define QN_TEXT_BPE_H

#include "text/vocab.h"

typedef struct qn_merge {
    uint32_t left, right; /* the tokens that join */
    uint32_t token;       /* into this one */
    uint32_t rank;        /* 1 + place in the file's list, lowest first; 0 marks a free slot */
} qn_merge;

typedef struct qn_merges {
    qn_merge *slots;
    size_t slot_mask;
} qn_merges;

/* qn_merges_load - read tokenizer.ggml.merges. *merges must be zeroed; it is to be freed also after a failure. QN_ERR_FORMAT,
 * naming the merge, where one is not two tokens with a space between, or a part or the whole is not in the vocabulary. A merge
 * that would make a control token is left out: text must not become one. */
qn_status qn_merges_load(qn_merges *merges, const qn_vocab *vocab, const qn_gguf *file);
void qn_merges_free(qn_merges *merges);

/* What one thread needs to merge: grows with the longest sequence. Zero it before, qn_bpe_scratch_free after. */
typedef struct qn_bpe_scratch {
    struct qn_bpe_links *links;
    size_t links_capacity;
    struct qn_bpe_pair *heap;
    size_t heap_capacity;
    size_t n_heap;
} qn_bpe_scratch;

void qn_bpe_scratch_free(qn_bpe_scratch *scratch);

/* qn_bpe_merge - join tokens[0..*n), always the pair that comes first in the list of merges, the leftmost of equal ones, until
 * none is left; the result is in place and *n its length. Takes n log n steps. n is at most 2^31-1. */
qn_status qn_bpe_merge(const qn_merges *merges, qn_bpe_scratch *scratch, int32_t *tokens, size_t *n);

#endif
