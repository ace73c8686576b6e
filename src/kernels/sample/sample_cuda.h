/* Sampling on the GPU: the same token as qn_sample_token (sample.h) for the same logits and random number. Shared by C and
 * CUDA.
 *
 * qn_sample_argmax finds the most likely token of each block's slice of the logits. Greedy sampling needs only the maximum of
 * these. With a small top_k = k, every token that can be kept is at least as likely as the k-th largest block maximum:
 * these few candidates are sorted and sampled by qn_sample_draw. Otherwise qn_sample_histogram runs before it: it counts
 * tokens and their weights in bins of the distance to the largest logit, follows the filters over the bins in order, and
 * finds the few bins in which the filters and the draw end; the tokens of those bins are the candidates. Sums are of
 * integers, so their order does not matter.
 *
 * If there are more than QN_SAMPLE_CANDIDATES candidates (thousands of equal logits; a top_k of thousands; min_p over an
 * almost uniform distribution) no token is sampled, and the host must sample. */
#ifndef QN_KERNELS_SAMPLE_SAMPLE_CUDA_H
#define QN_KERNELS_SAMPLE_SAMPLE_CUDA_H

#include "kernels/launch.h"

enum {
    QN_SAMPLE_THREADS = 512,
    QN_SAMPLE_BLOCKS = 128, /* at most; logits are distributed over blocks QN_SAMPLE_THREADS at a time, round robin */
    QN_SAMPLE_BINS = 2048,
    QN_SAMPLE_CANDIDATES = 4096
};

/* Which kernels are launched. */
typedef enum qn_sample_mode {
    QN_SAMPLE_HOST,      /* none: qn_sample_token on the host */
    QN_SAMPLE_ARGMAX,    /* qn_sample_argmax alone */
    QN_SAMPLE_TOP_K,     /* then qn_sample_draw */
    QN_SAMPLE_HISTOGRAM, /* with qn_sample_histogram between them */
    QN_SAMPLE_MODES
} qn_sample_mode;

/* qn_sample_request in the kernels' form: qn_sample_gpu_params, the one place that converts it. */
typedef struct qn_sample_params {
    uint64_t random;
    float penalty, inverse, top_p, min_p; /* inverse: 1 / temperature */
    float weight_unit;                    /* 2^qn_sample_weight_bits(n) */
    float bins_per_unit;                  /* of (largest - logit) * inverse; a weight beyond the last bin is 0 */
    uint32_t last_bin;                    /* the last bin in which a weight can be min_p or more */
    uint32_t top_k;                       /* 0: all */
    uint32_t n_recent;
    uint32_t pad;
} qn_sample_params;

/* State between the kernels, in device memory. The caller zeroes it before the first use. */
typedef struct qn_sample_state {
    uint64_t best[QN_SAMPLE_BLOCKS];  /* the largest key of each block */
    uint64_t weights[QN_SAMPLE_BINS]; /* only without top_k */
    uint32_t counts[QN_SAMPLE_BINS];
    uint32_t tickets[3];
    /* Written by qn_sample_histogram: the tokens of bins first to last and of cutoff_bin are the candidates. */
    uint32_t first, last, cutoff_bin;
    uint32_t n_first;                          /* candidates in [first, last] */
    uint32_t n_candidates;                     /* counted by qn_sample_draw; may exceed QN_SAMPLE_CANDIDATES */
    uint64_t total;                            /* sum of all weights, without top_k */
    uint64_t weight_before;                    /* sum of the weights in bins before `first` */
    uint64_t weight_gap;                       /* sum of the weights in bins between `last` and cutoff_bin */
    uint64_t candidates[QN_SAMPLE_CANDIDATES]; /* keys */
} qn_sample_state;

/* The result, read by the host. */
typedef struct qn_sample_result {
    uint64_t best; /* as in qn_sample_request */
    int32_t token; /* -1: not sampled; the host must sample from the logits, to which the penalty is already applied */
    uint32_t pad;
} qn_sample_result;

/* Arguments of all three kernels. qn_sample_argmax applies the penalty to the logits in place. */
typedef struct qn_sample_args {
    QN_GPU_PTR(float) logits; /* [n] */
    QN_GPU_PTR(const qn_sample_params) params;
    QN_GPU_PTR(const int32_t) recent; /* [params->n_recent] ids below n, without duplicates */
    QN_GPU_PTR(qn_sample_state) state;
    QN_GPU_PTR(qn_sample_result) result; /* device-writable memory, also pinned host memory */
    uint32_t n;
    uint32_t mode; /* qn_sample_mode */
} qn_sample_args;

#ifndef __CUDACC__

#include "kernels/sample/sample.h"

enum { QN_SAMPLE_LAUNCHES = 3 };

/* qn_sample_gpu_mode - the kernels that sample from n logits with these parameters. */
qn_sample_mode qn_sample_gpu_mode(const qn_sampling *sampling, size_t n);

/* qn_sample_gpu_params - the kernels' parameters for n logits; the caller sets n_recent. */
qn_sample_params qn_sample_gpu_params(const qn_sample_request *request, size_t n);

/* qn_sample_gpu_launches - the launches of a mode, in order, all with the same arguments. QN_ERR_INVALID unless n is 1 to
 * INT32_MAX. */
qn_status qn_sample_gpu_launches(qn_sample_mode mode, size_t n, qn_launch launches[QN_SAMPLE_LAUNCHES], size_t *n_launches);

#endif
#endif
