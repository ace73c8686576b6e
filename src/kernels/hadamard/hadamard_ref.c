/* Block Walsh-Hadamard transform: the reference, plain loops in the canonical order. The SIMD variants must give the
 * same bits. */
#include "kernels/hadamard/hadamard.h"

#include <math.h>

float qn_hadamard_scale(size_t n)
{
    return (float)(1 / sqrt((double)n));
}

static void block_ref(float *x, size_t n, const float *signs_before, const float *signs_after)
{
    const float scale = qn_hadamard_scale(n);
    for (size_t i = 0; signs_before && i < n; i++)
        x[i] *= signs_before[i];
    for (size_t distance = 1; distance < n; distance *= 2)
        for (size_t first = 0; first < n; first += 2 * distance)
            for (size_t i = first; i < first + distance; i++) {
                const float a = x[i], b = x[i + distance];
                x[i] = a + b;
                x[i + distance] = a - b;
            }
    for (size_t i = 0; i < n; i++)
        x[i] *= signs_after ? scale * signs_after[i] : scale;
}

void qn_hadamard_init_ref(qn_hadamard_kernels *kernels)
{
    *kernels = (qn_hadamard_kernels){ .block = block_ref };
}
