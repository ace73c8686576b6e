/* Reductions over a row of logits: the reference, plain loops. The SIMD variants must give the same result. */
#include "kernels/sample/sample.h"

#include "kernels/canon.h"

static float maximum_ref(const float *logits, size_t n)
{
    float largest = logits[0];
    for (size_t i = 1; i < n; i++)
        largest = logits[i] > largest ? logits[i] : largest;
    return largest;
}

void qn_sample_init_ref(qn_sample_kernels *kernels)
{
    *kernels = (qn_sample_kernels){ .maximum = maximum_ref };
}
