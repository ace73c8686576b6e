/* Gated delta rule: the reference, plain loops in the canonical order. The SIMD variants must give the same bits. */
#include "base/fmaf.h"
#include "kernels/deltanet/deltanet.h"

#include "kernels/canon.h"

static void gemm_ref(float *c, size_t c_row, const float *a, size_t a_row, size_t a_col, const float *b, size_t b_row,
                     size_t m, size_t n, size_t k, bool accumulate, const float *next)
{
    (void)next;
    for (size_t i = 0; i < m; i++)
        for (size_t x = 0; x < n; x++) {
            float sum = accumulate ? c[i * c_row + x] : 0;
            for (size_t j = 0; j < k; j++)
                sum = qn_fmaf(a[i * a_row + j * a_col], b[j * b_row + x], sum);
            c[i * c_row + x] = sum;
        }
}

static void gate_ref(float *x, size_t x_row, size_t m, double at, const double *gc, size_t n)
{
    for (size_t j = 0; j < n; j++) {
        const float factor = qn_exp((float)(at - gc[j]));
        for (size_t i = 0; i < m; i++)
            x[i * x_row + j] *= factor;
    }
}

static void scale_ref(float *y, const float *a, float factor, size_t n)
{
    for (size_t x = 0; x < n; x++)
        y[x] = factor * a[x];
}

static void delta_ref(float *y, const float *v, const float *a, float beta, size_t n)
{
    for (size_t x = 0; x < n; x++)
        y[x] = beta * (v[x] - a[x]);
}

static void conv_ref(float *y, const float *const *inputs, const float *weights, size_t w_row, size_t taps, size_t n)
{
    for (size_t x = 0; x < n; x++) {
        float sum = weights[x] * inputs[0][x];
        for (size_t t = 1; t < taps; t++)
            sum = qn_fmaf(weights[t * w_row + x], inputs[t][x], sum);
        y[x] = qn_silu(sum);
    }
}

void qn_deltanet_init_ref(qn_deltanet_kernels *kernels)
{
    *kernels = (qn_deltanet_kernels){
        .gemm = gemm_ref, .gate = gate_ref, .scale = scale_ref, .delta = delta_ref, .conv = conv_ref
    };
}
