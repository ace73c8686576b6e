/* Bias and penalties of one token, which every device computes with the same bits, in C and in CUDA; and the length
 * limit of lists of log probabilities. A CUDA source must include the types of <stdint.h> (cuda.cuh) before. */
#ifndef QN_KERNELS_SAMPLE_ADJUST_H
#define QN_KERNELS_SAMPLE_ADJUST_H

#include "kernels/exp.h"

#ifndef __CUDACC__
#include <stdint.h>
#endif

enum { QN_SAMPLE_TOP_LOGPROBS = 20 };

/* Changes to the logit of a token. */
typedef struct qn_sample_entry {
    int32_t token;
    uint32_t is_recent;   /* repeat_penalty applies */
    uint32_t n_generated; /* occurrences in the generated text */
    float bias;
} qn_sample_entry;

typedef struct qn_sample_penalties {
    float repeat, frequency, presence;
} qn_sample_penalties;

/* Each operation is rounded: without the intrinsics, a CUDA compiler would fuse a multiplication with the addition
 * after it. */
#ifdef __CUDACC__
#define QN_ADD(a, b) __fadd_rn(a, b)
#define QN_MULTIPLY(a, b) __fmul_rn(a, b)
#define QN_DIVIDE(a, b) __fdiv_rn(a, b)
#else
#define QN_ADD(a, b) ((a) + (b))
#define QN_MULTIPLY(a, b) ((a) * (b))
#define QN_DIVIDE(a, b) ((a) / (b))
#endif

QN_HOST_DEVICE float qn_sample_adjust(float logit, const qn_sample_entry *entry, const qn_sample_penalties *p)
{
    float x = QN_ADD(logit, entry->bias);
    if (entry->is_recent)
        x = x > 0 ? QN_DIVIDE(x, p->repeat) : QN_MULTIPLY(x, p->repeat);
    if (entry->n_generated)
        x = QN_ADD(x, -QN_ADD(QN_MULTIPLY((float)entry->n_generated, p->frequency), p->presence));
    return x;
}

#undef QN_ADD
#undef QN_MULTIPLY
#undef QN_DIVIDE

#endif
