/* Choosing a token on the GPU: the same token as qn_sample_token (sample.h) for the same logits and random number. Shared by C
 * and CUDA.
 *
 * qn_sample_argmax finds the likeliest token of each block's share of the logits. For a greedy choice the best of those is all.
 * With a small top_k, k, all that can be kept is at least as likely as the k-th of the blocks' best: few tokens, which
 * qn_sample_draw takes in order, and draws. Else qn_sample_histogram goes before it: it sorts tokens by how much less likely than
 * the best they are into bins, in whose order the filters can be followed, and finds the few bins in which they, and the draw,
 * end; then those have the candidates. Sums are of whole numbers, so their order does not matter.
 *
 * Where there are more than QN_SAMPLE_CANDIDATES candidates (thousands of equal logits; a top_k of thousands; min_p over an
 * almost even distribution) nothing is chosen, and the host has to. */
#ifndef QN_KERNELS_SAMPLE_SAMPLE_CUDA_H
#define QN_KERNELS_SAMPLE_SAMPLE_CUDA_H

#include "kernels/launch.h"

enum {
    QN_SAMPLE_THREADS = 512,
    QN_SAMPLE_BLOCKS = 128, /* at most; they take turns with as many logits as they have threads */
    QN_SAMPLE_BINS = 2048,
    QN_SAMPLE_CANDIDATES = 4096
};

/* Which kernels. */
typedef enum qn_sample_mode {
    QN_SAMPLE_HOST,      /* none */
    QN_SAMPLE_ARGMAX,    /* qn_sample_argmax */
    QN_SAMPLE_TOP_K,     /* then qn_sample_draw */
    QN_SAMPLE_HISTOGRAM, /* with qn_sample_histogram between them */
    QN_SAMPLE_MODES
} qn_sample_mode;

/* qn_sample_request as the kernels want it (qn_sample_gpu_params). */
typedef struct qn_sample_params {
    uint64_t random;
    float penalty, inverse, top_p, min_p; /* inverse: of the temperature */
    float weight_unit;                    /* 2^qn_sample_weight_bits(n) */
    float bins_per_unit;                  /* of (largest - logit) * inverse; a weight beyond the last bin is 0 */
    uint32_t last_bin;                    /* in which a weight can be min_p or more */
    uint32_t top_k;                       /* 0: all */
    uint32_t n_recent;
    uint32_t pad;
} qn_sample_params;

/* What passes from one kernel to the next. Zeros before the first. */
typedef struct qn_sample_state {
    uint64_t best[QN_SAMPLE_BLOCKS];  /* keys of the blocks' best */
    uint64_t weights[QN_SAMPLE_BINS]; /* kept where there is no top_k */
    uint32_t counts[QN_SAMPLE_BINS];
    uint32_t tickets[3];
    /* What qn_sample_histogram has decided: tokens of bins [first, last] and of bin `cut` are candidates. */
    uint32_t first, last, cutoff_bin;
    uint32_t n_first;                          /* candidates in [first, last] */
    uint32_t n_candidates;                     /* so far */
    uint64_t total;                            /* of all weights, where there is no top_k */
    uint64_t weight_before;                    /* weights of likelier tokens */
    uint64_t weight_gap;                       /* what is added to that for candidates of `cut` behind those of [first, last] */
    uint64_t candidates[QN_SAMPLE_CANDIDATES]; /* keys */
} qn_sample_state;

/* What the host reads. */
typedef struct qn_sample_result {
    uint64_t best; /* as qn_sample_request */
    int32_t token; /* -1: of what was drawn nothing is known; the logits, after the penalty, are for the host to look at */
    uint32_t pad;
} qn_sample_result;

/* Recent tokens' logits are changed in place, by qn_sample_argmax. */
typedef struct qn_sample_args {
    QN_GPU_PTR(float) logits; /* [n] */
    QN_GPU_PTR(const qn_sample_params) params;
    QN_GPU_PTR(const int32_t) recent; /* [params->n_recent], each once */
    QN_GPU_PTR(qn_sample_state) state;
    QN_GPU_PTR(qn_sample_result) result; /* in memory that the device can write */
    uint32_t n;
    uint32_t mode; /* qn_sample_mode */
} qn_sample_args;

#ifndef __CUDACC__

#include "kernels/sample/sample.h"

enum { QN_SAMPLE_LAUNCHES = 3 };

/* qn_sample_gpu_mode - how such a choice from n logits is made. */
qn_sample_mode qn_sample_gpu_mode(const qn_sample_request *request, size_t n);

/* qn_sample_gpu_params - of a choice from n logits; n_recent is the caller's to set. */
qn_sample_params qn_sample_gpu_params(const qn_sample_request *request, size_t n);

/* qn_sample_gpu_launches - the launches of a way, in order, all with the same arguments. QN_ERR_INVALID for n = 0, or one above
 * INT32_MAX. */
qn_status qn_sample_gpu_launches(qn_sample_mode mode, size_t n, qn_launch launches[QN_SAMPLE_LAUNCHES], size_t *n_launches);

#endif
#endif
