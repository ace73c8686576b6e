/* What choosing a token needs of a whole row of logits. The drawing itself, over a few candidates, is the engine's. */
#ifndef QN_KERNELS_SAMPLE_SAMPLE_H
#define QN_KERNELS_SAMPLE_SAMPLE_H

#include <stddef.h>

typedef struct qn_sample_kernels {
    /* The largest of logits [n], n >= 1, none of them NaN. */
    float (*maximum)(const float *logits, size_t n);
} qn_sample_kernels;

void qn_sample_kernels_init(qn_sample_kernels *kernels, unsigned cpu);

/* qn_argmax_row - the index of the largest logit, the lowest of equals. */
size_t qn_argmax_row(const qn_sample_kernels *kernels, const float *logits, size_t n);

void qn_sample_init_ref(qn_sample_kernels *kernels);
void qn_sample_init_avx2(qn_sample_kernels *kernels);
void qn_sample_init_avx512(qn_sample_kernels *kernels);
void qn_sample_init_neon(qn_sample_kernels *kernels);

#endif
