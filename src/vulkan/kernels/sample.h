/* Sampling of rows of logits: the same token as qn_sample_token (kernels/sample/sample.h) for the same logits and
 * random number. Three kernels: sample_argmax for all rows; sample_histogram only where a row is drawn; sample_draw for
 * all. */
#ifndef QN_VULKAN_KERNELS_SAMPLE_H
#define QN_VULKAN_KERNELS_SAMPLE_H

#include "kernels/sample/sample.h"
#include "vulkan/kernels/kernels.h"

enum { QN_VK_SAMPLE_SLICES = 128 /* of a row, at most */, QN_VK_SAMPLE_BINS = 512, QN_VK_SAMPLE_LAUNCHES = 3 };

/* What a row needs. NONE: no kernel, as of padding. */
typedef enum qn_vk_sample_kind { QN_VK_SAMPLE_NONE, QN_VK_SAMPLE_ARGMAX, QN_VK_SAMPLE_DRAW } qn_vk_sample_kind;

/* A request, as the kernels read it (sample.glsl). */
typedef struct qn_vk_sample_params {
    uint64_t random;
    uint64_t entries; /* qn_sample_entry [n_entries], each token once */
    uint64_t allowed; /* 0: all tokens */
    uint64_t raw;     /* [n_entries] receives the entries' logits before they change; 0: none */
    qn_sample_penalties penalties;
    float inverse, top_p, min_p; /* inverse: 1 / temperature */
    float bins_per_unit;         /* of (largest - logit) * inverse; weights after the last bin are 0 */
    uint32_t weight_bits;
    uint32_t first_edge, last_edge; /* the bins in which raw weights may be on either side of min_p */
    uint32_t kind;
    uint32_t top_k; /* 0: all */
    uint32_t n_entries;
    uint32_t unused;
} qn_vk_sample_params;

/* A row between the kernels. */
typedef struct qn_vk_sample_state {
    uint64_t best[QN_VK_SAMPLE_SLICES];
    uint32_t counts[QN_VK_SAMPLE_BINS], low[QN_VK_SAMPLE_BINS], high[QN_VK_SAMPLE_BINS];
} qn_vk_sample_state;

typedef struct qn_vk_sample_result {
    uint64_t best; /* as in qn_sample_request */
    int32_t token; /* -1: the largest logit is not finite */
    uint32_t unused;
} qn_vk_sample_result;

/* Arguments of all three kernels: addresses of [rows] each, but for logits [rows][n]. */
typedef struct qn_vk_sample_args {
    uint64_t logits, params, states, results;
    uint64_t tokens; /* i32 that the next step may read */
    uint32_t n, n_slices;
} qn_vk_sample_args;

/* qn_vk_sample_kind_of - returns what samples a request: NONE where only the host can, because of typical_p,
 * top_n_sigma, XTC, mirostat or log probabilities. */
qn_vk_sample_kind qn_vk_sample_kind_of(const qn_sample_request *request);

/* qn_vk_sample_params_of - returns the parameters of a request for n logits; the caller sets entries, n_entries,
 * allowed and raw. A row that the host samples is an ARGMAX. */
qn_vk_sample_params qn_vk_sample_params_of(const qn_sample_request *request, size_t n);

/* qn_vk_sample_slices - returns the slices of a row of n logits. */
uint32_t qn_vk_sample_slices(size_t n);

/* qn_vk_sample - sets the launches for n_rows rows, each to be followed by a barrier. They depend on these arguments
 * alone. Returns their number. */
size_t qn_vk_sample(const qn_vk_features *features, bool has_draws, size_t n, size_t n_rows,
                    qn_vk_launch launches[QN_VK_SAMPLE_LAUNCHES]);

#endif
