/* Filters and the draw of a token, on the tokens that mask, bias and penalties have left. */
#ifndef QN_KERNELS_SAMPLE_SAMPLE_DRAW_H
#define QN_KERNELS_SAMPLE_SAMPLE_DRAW_H

#include "kernels/sample/sample_search.h"

/* The tokens that are left, in ascending order of their ids. */
typedef struct qn_sample_tokens {
    const float *logits;
    const uint32_t *ids; /* NULL: the positions */
    size_t n;
} qn_sample_tokens;

static inline uint32_t qn_sample_id(const qn_sample_tokens *t, size_t position)
{
    return t->ids ? t->ids[position] : (uint32_t)position;
}

/* A token of a list: its position there, its logit. */
typedef struct qn_sample_candidate {
    float logit;
    int32_t position;
} qn_sample_candidate;

/* qn_sample_select_few - the k most likely of n logits, 1 <= k <= n, unordered, for small k: the time grows with k. */
void qn_sample_select_few(const qn_sample_kernels *kernels, const float *logits, size_t n, qn_sample_candidate *top,
                          size_t k);

typedef struct qn_sample_draw {
    const qn_sample_kernels *kernels;
    const qn_sample_request *request;
    qn_sample_scale scale;
    qn_sample_tokens left;
    /* Scratch, each of as many elements as tokens were left: those that are left after a filter, where `left` may be
     * already; of searches; of a small top_k. */
    float *logits;
    uint32_t *ids;
    float *list;
    uint32_t *positions;
    qn_sample_candidate *heap;
} qn_sample_draw;

/* qn_sample_draw_token - apply the filters and draw by request->random: the id of the token. n_vocab: the vocabulary's
 * size. */
int32_t qn_sample_draw_token(qn_sample_draw *draw, size_t n_vocab);

/* qn_sample_draw_mirostat - the same for mirostat 2, with the token's surprise. */
int32_t qn_sample_draw_mirostat(qn_sample_draw *draw, float *surprise);

#endif
