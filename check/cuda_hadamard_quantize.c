/* Fused Hadamard transform and quantisation of one token on the GPU: every value within half a step of the row computed
 * in float64 with the CPU's transform, and the scales of QN_ACTS_HILO_N1. */
#include "check/cuda.h"

#include "base/memory.h"
#include "check/problem.h"
#include "kernels/hadamard/hadamard.h"
#include "kernels/matmul/hadamard_quantize_cuda.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const op_names[] = { "plain", "norm", "swiglu" };

static float *floats(size_t count)
{
    float *p;
    qn_assert_ok(qn_alloc(&p, count, sizeof *p, "check"));
    return p;
}

/* A row's inputs on host and device, and the activations. */
struct row {
    size_t n, block;
    int op;
    float *x, *other, *signs, *expected;
    qn_gpu_guarded gpu_x, gpu_other, gpu_signs, acts;
};

static const float eps = 1e-6f;

static struct row row_new(size_t n, size_t block, int op)
{
    struct row r = { .n = n, .block = block, .op = op };
    r.x = floats(n);
    r.other = floats(n);
    r.signs = floats(n);
    r.expected = floats(n);
    qn_random_floats(r.x, n, 3);
    qn_random_floats(r.other, n, 2);
    for (size_t i = 0; i < n; i++)
        r.signs[i] = qn_random() & 1 ? 1 : -1;
    r.gpu_x = qn_gpu_from(r.x, n * sizeof *r.x);
    r.gpu_other = qn_gpu_from(r.other, n * sizeof *r.x);
    r.gpu_signs = qn_gpu_from(r.signs, n * sizeof *r.x);
    r.acts = qn_gpu_new(qn_round_up(n, QN_TILE_COLS) / QN_TILE_COLS * QN_ACTS_N1_TILE_BYTES);
    return r;
}

static void row_free(struct row *r)
{
    qn_gpu_free(&r->gpu_x);
    qn_gpu_free(&r->gpu_other);
    qn_gpu_free(&r->gpu_signs);
    qn_gpu_free(&r->acts);
    qn_free(r->x);
    qn_free(r->other);
    qn_free(r->signs);
    qn_free(r->expected);
}

static qn_status plan(const struct row *r, bool with_signs, qn_launch *launch, qn_hadamard_quantize_args *args)
{
    const qn_matmul_acts acts = { .layout = QN_ACTS_HILO_N1, .address = r->acts.data, .n_cols = r->n, .capacity = 1 };
    return qn_matmul_gpu_hadamard_quantize(&acts, r->op, r->gpu_x.data, r->gpu_other.data, r->gpu_other.data, eps,
                                           with_signs ? r->gpu_signs.data : 0, r->block, launch, args);
}

static void expect_row(struct row *r, bool with_signs)
{
    qn_hadamard_kernels reference;
    double sum = 0;
    qn_hadamard_init_ref(&reference);
    for (size_t i = 0; i < r->n; i++)
        sum += (double)r->x[i] * r->x[i];
    for (size_t i = 0; i < r->n; i++) {
        const double x = r->x[i];
        r->expected[i] = (float)(r->op == QN_ACTS_OP_RMS_NORM ? x / sqrt(sum / (double)r->n + (double)eps) * r->other[i]
                                 : r->op == QN_ACTS_OP_SWIGLU ? x / (1 + exp(-x)) * r->other[i]
                                                              : x);
    }
    for (size_t i = 0; i < r->n; i += r->block)
        reference.block(r->expected + i, r->block, with_signs ? r->signs + i : NULL, NULL);
}

/* 128 columns from `column` on, which share a scale: half a step, and 1e-5 for the float32 of operation and transform. */
static void check_columns(const struct row *r, const uint8_t *acts, size_t column)
{
    const uint8_t *k_tile = acts + column / QN_TILE_COLS * QN_ACTS_N1_TILE_BYTES, *codes = k_tile + column % QN_TILE_COLS;
    float scale, amax = 0;
    memcpy(&scale, k_tile + 2 * QN_TILE_COLS + column % QN_TILE_COLS / QN_ACTS_HILO_COLS * sizeof scale, sizeof scale);
    for (size_t i = 0; i < QN_ACTS_HILO_COLS; i++)
        amax = fmaxf(amax, fabsf(r->expected[column + i]));
    qn_expect(fabsf(scale * (float)QN_HILO_MAX - amax) <= amax * 1e-5f, "the scale of columns %zu on is %g, expected %g",
              column, (double)scale, (double)amax / QN_HILO_MAX);
    for (size_t i = 0; i < QN_ACTS_HILO_COLS; i++) {
        const int code = 256 * (int8_t)codes[i] + (int8_t)codes[QN_TILE_COLS + i];
        const double value = code * (double)scale, expected = (double)r->expected[column + i];
        qn_expect(fabs(value - expected) <= 0.51 * (double)scale + 1e-5 * (double)amax,
                  "column %zu is %g, expected %g within half of %g", column + i, value, expected, (double)scale);
    }
}

static void check_row(size_t block, size_t n_blocks, int op, bool with_signs)
{
    struct row r = row_new(block * n_blocks, block, op);
    qn_launch launch;
    qn_hadamard_quantize_args args;
    uint8_t *found;
    qn_case_begin("hadamard-quantize", "cuda", "%s, %zu blocks of %zu%s", op_names[op], n_blocks, block,
                  with_signs ? ", signs" : "");
    qn_assert_ok(qn_alloc(&found, r.acts.bytes, 1, "check"));
    qn_assert_ok(plan(&r, with_signs, &launch, &args));
    qn_gpu_launch(&launch, &args);
    qn_gpu_read(&r.acts, found);
    expect_row(&r, with_signs);
    for (size_t column = 0; column < r.n; column += QN_ACTS_HILO_COLS)
        check_columns(&r, found, column);
    qn_expect(qn_gpu_guards_intact(&r.acts) && qn_gpu_guards_intact(&r.gpu_x), "bytes outside the activations were written");
    qn_free(found);
    row_free(&r);
}

struct timed {
    qn_launch launch;
    qn_hadamard_quantize_args args;
};

static void timed_launch(void *context, size_t turn)
{
    const struct timed *t = context;
    (void)turn;
    qn_gpu_launch(&t->launch, &t->args);
}

/* A token's row stays in the device's caches: this times the latency of a launch. */
static void bench_row(size_t n, int op)
{
    enum { REPEATS = 64 };
    struct row r = row_new(n, 1024, op);
    struct timed t;
    char shape[64];
    qn_assert_ok(plan(&r, true, &t.launch, &t.args));
    snprintf(shape, sizeof shape, "%s, a row of %zu", op_names[op], n);
    qn_gpu_bench("hadamard-quantize", "cuda", shape, (double)n, "value", 0, timed_launch, &t, REPEATS);
    row_free(&r);
}

void qn_check_cuda_hadamard_quantize(bool bench)
{
    for (size_t block = 512; block <= 2048; block *= 2)
        for (int op = 0; op < 3; op++)
            for (size_t n_blocks = 1; n_blocks <= 5; n_blocks += 2) {
                qn_random_seed(block + n_blocks);
                check_row(block, n_blocks, op, n_blocks != 3);
            }
    for (int op = 0; bench && op < 3; op++)
        bench_row(op == QN_ACTS_OP_SWIGLU ? 17408 : 5120, op);
}
