/* Sampling on the GPU, of many rows in a launch: the same token as qn_sample_token (kernels/sample/sample.h) for the
 * same logits and random number. Shared by C and CUDA.
 *
 * qn_sample_argmax applies mask, bias and penalties to the logits in place and finds the largest logit of each slice of
 * a row. Greedy sampling needs only the maximum of these. With a small top_k = k, every token that can be kept is at
 * least as likely as the k-th largest maximum of a slice: qn_sample_draw sorts these few candidates and samples from
 * them. Otherwise qn_sample_histogram runs before it: it counts tokens and their weights in bins of the distance to the
 * largest logit, applies the filters to the bins in order, and finds the few bins in which the filters and the draw
 * end; the tokens of those bins are the candidates. Sums are of integers, so their order does not matter.
 *
 * If there are more than QN_SAMPLE_CANDIDATES candidates (thousands of equal logits; a top_k of thousands; min_p over
 * an almost uniform distribution), qn_sample_select samples the row, for any number of tokens: it divides the bin in
 * which a filter or the draw ends into ranges of keys, and then the range in which it ends, until the range is one
 * token. It also samples rows with top_n_sigma, typical_p or XTC, from all tokens that these filters keep.
 *
 * Rows need different kernels (qn_sample_params.kind): a launch skips rows that do not need its kernel.
 *
 * Log probabilities are of the logits before qn_sample_argmax changes them: qn_sample_raw_argmax and
 * qn_sample_top_logprobs run first, with the candidates of the listed tokens found as for top_k. */
#ifndef QN_CUDA_KERNELS_SAMPLE_SAMPLE_H
#define QN_CUDA_KERNELS_SAMPLE_SAMPLE_H

#include "cuda/kernels/launch.h"
#include "kernels/sample/adjust.h"

enum {
    QN_SAMPLE_THREADS = 512,
    QN_SAMPLE_BLOCKS = 128, /* of a row, at most */
    QN_SAMPLE_GRID = 384,   /* of all rows, at most, but at least one a row: three resident on each of 132 SMs */
    QN_SAMPLE_VECTOR = 4,   /* logits of a load. Vectors go round robin to the threads of a row's blocks */
    QN_SAMPLE_SLICES = 256, /* of a row, at most; at least half this number, QN_SAMPLE_MAX_TOP_K of them not empty */
    QN_SAMPLE_MAX_TOP_K = 64,
    QN_SAMPLE_BINS = 2048,
    QN_SAMPLE_CANDIDATES = 4096,
    QN_SAMPLE_RANGES = 1024, /* of keys, in a pass of qn_sample_select */
    QN_SAMPLE_REDUCTIONS = 24,
    QN_SAMPLE_CLUSTER = 8 /* most blocks of a row in qn_sample_select if the device has clusters, else 1 */
};

/* The kernels that a row, or all rows of a launch, need: each mode includes the kernels of the modes before it. */
typedef enum qn_sample_mode {
    QN_SAMPLE_NONE,   /* of a launch without rows: no kernel. Of a row with qn_sample_is_on_host: qn_sample_argmax alone
                       */
    QN_SAMPLE_ARGMAX, /* qn_sample_argmax alone */
    QN_SAMPLE_TOP_K,  /* then qn_sample_draw */
    QN_SAMPLE_HISTOGRAM, /* with qn_sample_histogram and qn_sample_select between them */
    QN_SAMPLE_LOGPROBS,  /* added to one of the modes above: log probabilities first */
    QN_SAMPLE_MODES = 2 * QN_SAMPLE_LOGPROBS
} qn_sample_mode;

/* A qn_sample_request in the kernels' form, converted by qn_sample_gpu_params only. Its size is a multiple of 4 bytes:
 * threads copy words. */
typedef struct qn_sample_params {
    uint64_t random;
    QN_GPU_PTR(const qn_sample_entry) entries; /* [n_entries] of ids below n, each once */
    QN_GPU_PTR(const uint32_t) allowed;        /* as in qn_sample_request; 0: all tokens */
    QN_GPU_PTR(float) raw; /* [n_entries] receives the entries' logits before they change; 0: none */
    qn_sample_penalties penalties;
    float inverse, top_p, min_p;                 /* inverse: 1 / temperature */
    float top_n_sigma, typical_p, xtc_threshold; /* 0: without the first two */
    float surprisal_unit;                        /* of the weights of typical_p's mean */
    uint32_t deviation_bits;                     /* of top_n_sigma */
    uint32_t has_xtc;                            /* XTC applies to this token */
    uint32_t selects;    /* has top_n_sigma, typical_p or XTC: qn_sample_select samples the row */
    float weight_unit;   /* 2^qn_sample_weight_bits(n) */
    float bins_per_unit; /* of (largest - logit) * inverse; a weight beyond the last bin is 0 */
    uint32_t last_bin;   /* the last bin in which a weight can be min_p or more */
    uint32_t kind;       /* qn_sample_mode without QN_SAMPLE_LOGPROBS */
    uint32_t top_k;      /* 0: all */
    uint32_t n_entries;
    uint32_t has_logprobs, n_top;
} qn_sample_params;

/* Sums of a pass of qn_sample_select over the blocks of a row, for each range of keys. */
typedef struct qn_sample_pass {
    uint64_t weights[QN_SAMPLE_RANGES];
    uint32_t counts[QN_SAMPLE_RANGES];
} qn_sample_pass;

/* State of a row between the kernels, in device memory: 62 KiB. The caller zeroes it before the first use. */
typedef struct qn_sample_state {
    uint64_t best[QN_SAMPLE_SLICES]; /* the largest key of each slice, or of each block */
    uint64_t weights[QN_SAMPLE_BINS];
    uint32_t counts[QN_SAMPLE_BINS];
    uint32_t tickets[4];
    /* Written by qn_sample_histogram: the tokens of bins first to last and of cutoff_bin are the candidates. */
    uint32_t first, last, cutoff_bin;
    uint32_t n_first;       /* candidates in [first, last] */
    uint32_t n_candidates;  /* may exceed QN_SAMPLE_CANDIDATES */
    uint32_t select;        /* qn_sample_select samples the row, which has no candidates */
    uint64_t largest;       /* key of the largest logit */
    uint64_t total;         /* sum of all weights, and of the weights of log probabilities */
    uint64_t weight_before; /* sum of the weights in bins before `first` */
    uint64_t weight_gap;    /* sum of the weights in bins between `last` and cutoff_bin */
    /* For qn_sample_select, zeroed by qn_sample_histogram. Each reduction over the blocks of the row is used once.
     * Passes use three sums in turn: one is added to, one is read, one is zeroed. */
    uint64_t reductions[QN_SAMPLE_REDUCTIONS];
    union {
        uint64_t candidates[QN_SAMPLE_CANDIDATES]; /* keys */
        qn_sample_pass passes[3];
    };
} qn_sample_state;

/* The result of a row, read by the host. */
typedef struct qn_sample_result {
    uint64_t best; /* as in qn_sample_request */
    int32_t token; /* -1: the largest logit is not finite */
    float logit;   /* of the token, after mask, bias and penalties */
    /* Only with has_logprobs, of the logits before mask, bias and penalties: arguments of qn_sample_set_logprobs. */
    uint64_t largest, total, top[QN_SAMPLE_TOP_LOGPROBS];
} qn_sample_result;

/* Arguments of all kernels. */
typedef struct qn_sample_args {
    QN_GPU_PTR(float) logits; /* [rows][n] */
    QN_GPU_PTR(const qn_sample_params)
    params;                               /* [rows] device memory, not written by the kernel before the first launch */
    QN_GPU_PTR(qn_sample_state) states;   /* [rows] */
    QN_GPU_PTR(qn_sample_result) results; /* [rows] device-writable memory, also pinned host memory */
    QN_GPU_PTR(int32_t) tokens;           /* [rows] receives the results' tokens for the next step; 0: nothing */
    uint32_t n;
    uint32_t pad;
} qn_sample_args;

#ifndef __CUDACC__

#include "kernels/sample/sample.h"

enum { QN_SAMPLE_LAUNCHES = 6 };

/* qn_sample_gpu_mode - Returns the mode that samples from n logits by this request. */
qn_sample_mode qn_sample_gpu_mode(const qn_sample_request *request, size_t n);

/* qn_sample_gpu_join - Returns the mode whose kernels sample requests of both modes. */
qn_sample_mode qn_sample_gpu_join(qn_sample_mode a, qn_sample_mode b);

/* qn_sample_gpu_params - Returns the kernels' parameters of a request for n logits; the caller sets entries, n_entries,
 * allowed and raw. */
qn_sample_params qn_sample_gpu_params(const qn_sample_request *request, size_t n);

/* qn_sample_gpu_launches - Fills the launches of a mode for n_rows rows of n logits, in order, all with the same
 * arguments. They depend on these parameters only, so they can be captured. QN_ERR_INVALID unless n is 1 to INT32_MAX
 * and n_rows 1 to 65535.
 *
 *   clusters   the device has clusters (compute capability 9.0 and later) */
qn_status qn_sample_gpu_launches(qn_sample_mode mode, size_t n, size_t n_rows, bool clusters,
                                 qn_launch launches[QN_SAMPLE_LAUNCHES], size_t *n_launches);

#endif
#endif
