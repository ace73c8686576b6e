/* Gated delta rule over sixteen-lane vectors; included by one file per instruction set, which defines the register
 * tile: ROWS x VECTORS accumulators for many rows, up to two rows x WIDE for few.
 *
 * Many rows: b is in cache. It is processed in blocks of DEPTH rows, so that a panel stays in L1, and each load of b is
 * used for ROWS rows. Few rows: b is read from memory, once, in memory order and prefetched. Accumulators are stored to
 * c between blocks as f32, so blocking does not change the result. */
#ifndef QN_KERNELS_DELTANET_DELTANET_SIMD_H
#define QN_KERNELS_DELTANET_DELTANET_SIMD_H

#include "kernels/deltanet/deltanet.h"
#include "kernels/vec16.h"

/* Data read once is prefetched 4 KB ahead, into L2, so that the first lines of a memory page arrive while the previous
 * page is read. Measured on Zen 4, one core: 38 GB/s for states; 30 with a prefetch into L1, 25 with a larger distance,
 * 33 without prefetch. */
enum { FEW = 2, DEPTH = 64, FEW_DEPTH = 16, PREFETCH_DISTANCE = 4096 };

typedef struct gemm_operands {
    float *c;
    const float *a, *b;
    size_t c_row, a_row, a_col, b_row, k;
    uintptr_t prefetch; /* address prefetched meanwhile: line by line if sequential, else lines b_row elements apart */
    bool accumulate, sequential;
} gemm_operands;

/* Computes a tile of rows x vectors accumulators, the last vector of `tail` floats. rows, vectors and prefetch are
 * compile-time constants at every call, and so is tail, except in the last panel. */
QN_INLINE void tile(const gemm_operands *t, size_t row, size_t column, size_t rows, size_t vectors, size_t tail,
                    bool prefetch)
{
    float *c = t->c + row * t->c_row + column;
    const float *a = t->a + row * t->a_row, *b = t->b + column;
    const size_t c_row = t->c_row, a_row = t->a_row, a_col = t->a_col, b_row = t->b_row, k = t->k;
    v16 sum[ROWS * VECTORS > FEW * WIDE ? ROWS * VECTORS : FEW * WIDE];
    QN_UNROLLED
    for (size_t i = 0; i < rows; i++) {
        QN_UNROLLED
        for (size_t v = 0; v < vectors; v++) {
            const float *from = c + i * c_row + v * QN_LANES;
            sum[i * vectors + v] = !t->accumulate    ? v16_set1(0)
                                   : tail < QN_LANES ? v16_load_n(from, tail)
                                                     : v16_load(from);
        }
    }
    /* The panels partition the next block line by line. Prefetching their own columns instead gives two thirds of the
     * speed. */
    uintptr_t next = t->prefetch + column * (t->sequential ? k : 1) * sizeof(float);
    const size_t next_step = (t->sequential ? vectors * QN_LANES : b_row) * sizeof(float);
    for (size_t j = 0; j < k; j++, next += next_step) {
        v16 line[WIDE > VECTORS ? WIDE : VECTORS];
        QN_UNROLLED
        for (size_t v = 0; v < vectors; v++) {
            const float *from = b + j * b_row + v * QN_LANES;
            if (prefetch)
                __builtin_prefetch((const void *)(next + v * QN_LANES * sizeof(float)), 0, 2);
            line[v] = tail < QN_LANES ? v16_load_n(from, tail) : v16_load(from);
        }
        QN_UNROLLED
        for (size_t i = 0; i < rows; i++) {
            const v16 factor = v16_set1(a[i * a_row + j * a_col]);
            QN_UNROLLED
            for (size_t v = 0; v < vectors; v++)
                sum[i * vectors + v] = v16_fma(factor, line[v], sum[i * vectors + v]);
        }
    }
    QN_UNROLLED
    for (size_t i = 0; i < rows; i++) {
        QN_UNROLLED
        for (size_t v = 0; v < vectors; v++) {
            float *to = c + i * c_row + v * QN_LANES;
            if (tail < QN_LANES)
                v16_store_n(to, sum[i * vectors + v], tail);
            else
                v16_store(to, sum[i * vectors + v]);
        }
    }
}

/* Computes all rows of a panel of columns. */
QN_INLINE void panel(const gemm_operands *t, size_t m, size_t column, size_t vectors, size_t tail)
{
    size_t row = 0;
    for (; row + ROWS <= m; row += ROWS)
        tile(t, row, column, ROWS, vectors, tail, false);
    for (; row + 2 <= m; row += 2)
        tile(t, row, column, 2, vectors, tail, false);
    if (row < m)
        tile(t, row, column, 1, vectors, tail, false);
}

QN_INLINE void many_rows(const gemm_operands *t, size_t m, size_t n)
{
    size_t x = 0;
    for (; x + VECTORS * QN_LANES <= n; x += VECTORS * QN_LANES)
        panel(t, m, x, VECTORS, QN_LANES);
    for (; x + QN_LANES <= n; x += QN_LANES)
        panel(t, m, x, 1, QN_LANES);
    if (x < n)
        panel(t, m, x, 1, n - x);
}

/* Computes a GEMM of few rows, tile by tile. rows is a compile-time constant at every call. */
QN_INLINE void few_rows(const gemm_operands *t, size_t rows, size_t n)
{
    size_t x = 0;
    for (; x + WIDE * QN_LANES <= n; x += WIDE * QN_LANES)
        tile(t, 0, x, rows, WIDE, QN_LANES, true);
    for (; x + 2 * QN_LANES <= n; x += 2 * QN_LANES)
        tile(t, 0, x, rows, 2, QN_LANES, true);
    if (x + QN_LANES <= n) {
        tile(t, 0, x, rows, 1, QN_LANES, true);
        x += QN_LANES;
    }
    if (x < n)
        tile(t, 0, x, rows, 1, n - x, false);
}

static void gemm_simd(float *c, size_t c_row, const float *a, size_t a_row, size_t a_col, const float *b, size_t b_row,
                      size_t m, size_t n, size_t k, bool accumulate, const float *next)
{
    /* Few rows whose accumulators fit in registers: one block, and a second one of the last prefetch_rows rows of b,
     * which prefetches `next`. Otherwise each block prefetches the following one. */
    const bool in_registers = n <= WIDE * QN_LANES;
    const size_t prefetch_rows = PREFETCH_DISTANCE / sizeof(float) / (b_row ? b_row : 1);
    const size_t depth = m > FEW ? DEPTH : !in_registers ? FEW_DEPTH : k > prefetch_rows ? k - prefetch_rows : k;
    size_t from = 0;
    do {
        gemm_operands t = { .c = c,
                            .a = a + from * a_col,
                            .b = b + from * b_row,
                            .c_row = c_row,
                            .a_row = a_row,
                            .a_col = a_col,
                            .b_row = b_row,
                            .k = k - from < depth ? k - from : depth,
                            .accumulate = accumulate || from };
        const bool last = from + t.k == k;
        t.sequential = last || n == b_row;
        t.prefetch = last && next ? (uintptr_t)next
                                  : (uintptr_t)t.b +
                                        (last ? 0 : (in_registers ? prefetch_rows : FEW_DEPTH) * b_row * sizeof(float));
        if (m > FEW)
            many_rows(&t, m, n);
        else if (m == 2)
            few_rows(&t, 2, n);
        else if (m == 1)
            few_rows(&t, 1, n);
        from += t.k;
    } while (from < k);
}

QN_INLINE void gate_vector(float *x, size_t x_row, size_t m, double at, const double *gc, size_t n)
{
    float difference[QN_LANES] = { 0 };
    for (size_t j = 0; j < n; j++)
        difference[j] = (float)(at - gc[j]);
    const v16 factor = v16_exp(v16_load(difference));
    for (size_t i = 0; i < m; i++) {
        if (n == QN_LANES)
            v16_store(x + i * x_row, v16_mul(v16_load(x + i * x_row), factor));
        else
            v16_store_n(x + i * x_row, v16_mul(v16_load_n(x + i * x_row, n), factor), n);
    }
}

static void gate_simd(float *x, size_t x_row, size_t m, double at, const double *gc, size_t n)
{
    size_t j = 0;
    for (; j + QN_LANES <= n; j += QN_LANES)
        gate_vector(x + j, x_row, m, at, gc + j, QN_LANES);
    if (j < n)
        gate_vector(x + j, x_row, m, at, gc + j, n - j);
}

static void scale_simd(float *y, const float *a, float factor, size_t n)
{
    const v16 by = v16_set1(factor);
    size_t x = 0;
    for (; x + QN_LANES <= n; x += QN_LANES)
        v16_store(y + x, v16_mul(by, v16_load(a + x)));
    if (x < n)
        v16_store_n(y + x, v16_mul(by, v16_load_n(a + x, n - x)), n - x);
}

QN_INLINE v16 delta_vector(v16 v, v16 a, v16 beta)
{
    return v16_mul(beta, v16_add(v, v16_mul(a, v16_set1(-1))));
}

static void delta_simd(float *y, const float *v, const float *a, float beta, size_t n)
{
    const v16 by = v16_set1(beta);
    size_t x = 0;
    for (; x + QN_LANES <= n; x += QN_LANES)
        v16_store(y + x, delta_vector(v16_load(v + x), v16_load(a + x), by));
    if (x < n)
        v16_store_n(y + x, delta_vector(v16_load_n(v + x, n - x), v16_load_n(a + x, n - x), by), n - x);
}

static void conv_simd(float *y, const float *const *inputs, const float *weights, size_t w_row, size_t taps, size_t n)
{
    size_t x = 0;
    for (; x + QN_LANES <= n; x += QN_LANES) {
        v16 sum = v16_mul(v16_load(weights + x), v16_load(inputs[0] + x));
        for (size_t t = 1; t < taps; t++)
            sum = v16_fma(v16_load(weights + t * w_row + x), v16_load(inputs[t] + x), sum);
        v16_store(y + x, v16_silu(sum));
    }
    if (x < n) {
        v16 sum = v16_mul(v16_load_n(weights + x, n - x), v16_load_n(inputs[0] + x, n - x));
        for (size_t t = 1; t < taps; t++)
            sum = v16_fma(v16_load_n(weights + t * w_row + x, n - x), v16_load_n(inputs[t] + x, n - x), sum);
        v16_store_n(y + x, v16_silu(sum), n - x);
    }
}

QN_INLINE void deltanet_init_simd(qn_deltanet_kernels *kernels)
{
    *kernels = (qn_deltanet_kernels){
        .gemm = gemm_simd, .gate = gate_simd, .scale = scale_simd, .delta = delta_simd, .conv = conv_simd
    };
}

#endif
