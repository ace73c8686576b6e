/* Filters and the draw of a token, applied to the tokens that remain after mask, bias and penalties. */
#ifndef QN_KERNELS_SAMPLE_SAMPLE_DRAW_H
#define QN_KERNELS_SAMPLE_SAMPLE_DRAW_H

#include "kernels/sample/sample_search.h"

/* The remaining tokens, in ascending order of their ids. */
typedef struct qn_sample_tokens {
    const float *logits;
    const uint32_t *ids; /* NULL: a token's id is its position */
    size_t n;
} qn_sample_tokens;

static inline uint32_t qn_sample_id(const qn_sample_tokens *t, size_t position)
{
    return t->ids ? t->ids[position] : (uint32_t)position;
}

/* A token of a list. */
typedef struct qn_sample_candidate {
    float logit;
    int32_t position;
} qn_sample_candidate;

/* qn_sample_select_few - finds the k most likely of n logits, 1 <= k <= n, in any order. For small k: the time grows
 * with k. */
void qn_sample_select_few(const qn_sample_kernels *kernels, const float *logits, size_t n, qn_sample_candidate *top,
                          size_t k);

typedef struct qn_sample_draw {
    const qn_sample_kernels *kernels;
    const qn_sample_request *request;
    qn_sample_scale scale;
    qn_sample_tokens left;
    /* Scratch. Each array has an element for each token that remained at first: logits and ids for the tokens that
     * remain after a filter (`left` may already be there), list and positions for searches, heap for a small top_k. */
    float *logits;
    uint32_t *ids;
    float *list;
    uint32_t *positions;
    qn_sample_candidate *heap;
} qn_sample_draw;

/* qn_sample_draw_token - applies the filters, draws a token with request->random and returns its id. n_vocab: size of
 * the vocabulary. */
int32_t qn_sample_draw_token(qn_sample_draw *draw, size_t n_vocab);

/* qn_sample_draw_mirostat - draws a token with mirostat 2 and returns its id, and its surprise in *surprise. */
int32_t qn_sample_draw_mirostat(qn_sample_draw *draw, float *surprise);

/* qn_sample_set_certain - sets logprobs_after of a token that is the only one left. */
void qn_sample_set_certain(qn_sample_request *request);

#endif
