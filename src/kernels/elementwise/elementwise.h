/* Elementwise operations: SwiGLU and sigmoid gates. */
#ifndef QN_KERNELS_ELEMENTWISE_ELEMENTWISE_H
#define QN_KERNELS_ELEMENTWISE_ELEMENTWISE_H

#include <stddef.h>
#include <stdint.h>

typedef struct qn_elementwise_kernels {
    /* y[i] = silu(gate[i]) * up[i] for i < n; y may be either input. Shazeer, GLU Variants Improve Transformer
     * (2020). */
    void (*swiglu)(float *y, const float *gate, const float *up, size_t n);
    /* y[i] = x[i] / (1 + e^-gate[i]) for i < n; y may be either input. */
    void (*gate)(float *y, const float *x, const float *gate, size_t n);
} qn_elementwise_kernels;

void qn_elementwise_kernels_init(qn_elementwise_kernels *kernels, unsigned cpu);

void qn_elementwise_init_ref(qn_elementwise_kernels *kernels);
void qn_elementwise_init_avx2(qn_elementwise_kernels *kernels);
void qn_elementwise_init_avx512(qn_elementwise_kernels *kernels);
void qn_elementwise_init_neon(qn_elementwise_kernels *kernels);

#endif
