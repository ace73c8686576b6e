/* Fused Hadamard transform and quantisation on the GPU, of one token and of several: every value within half a step of
 * the row computed in float64 with the CPU's transform, and the scales. */
#include "cuda_matmul_problem.h"

#include "base/memory.h"
#include "kernels/hadamard/hadamard.h"
#include "cuda/kernels/matmul/hadamard_quantize.h"

static const char *const op_names[] = { "plain", "norm", "swiglu" };

/* A row's inputs on host and device, and the activations. */
struct row {
    size_t n, block;
    int op;
    float *x, *other, *signs;
    uint64_t gpu_x, gpu_other, gpu_signs, acts;
};

static const float eps = 1e-6f;

static struct row row_new(size_t n, size_t block, int op)
{
    struct row r = { .n = n, .block = block, .op = op };
    r.x = qn_floats_of(n, 3);
    r.other = qn_floats_of(n, 2);
    r.signs = qn_signs_of(n);
    r.gpu_x = qn_gpu_copy(r.x);
    r.gpu_other = qn_gpu_copy(r.other);
    r.gpu_signs = qn_gpu_copy(r.signs);
    r.acts = qn_gpu_new(qn_round_up(n, QN_TILE_COLS) / QN_TILE_COLS * QN_ACTS_N1_TILE_BYTES);
    return r;
}

static qn_status plan(const struct row *r, bool with_signs, qn_launch *launch, qn_hadamard_quantize_args *args)
{
    const qn_matmul_acts acts = { .layout = QN_ACTS_HILO_N1, .address = r->acts, .n_cols = r->n, .capacity = 1 };
    return qn_matmul_gpu_hadamard_quantize(&acts, r->op, r->gpu_x, r->gpu_other, r->gpu_other, eps,
                                           with_signs ? r->gpu_signs : 0, r->block, launch, args);
}

/* The inputs of a row's quantisation. other: weights of the norm, or the second factor. */
static float *expected_row(int op, size_t block, const float *x, const float *other, const float *signs, size_t n)
{
    float *expected = qn_floats(n);
    qn_hadamard_kernels reference;
    double sum = 0;
    qn_hadamard_init_ref(&reference);
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    for (size_t i = 0; i < n; i++) {
        const double value = (double)x[i], factor = (double)other[i];
        expected[i] = (float)(op == QN_ACTS_OP_RMS_NORM ? value / sqrt(sum / (double)n + (double)eps) * factor
                              : op == QN_ACTS_OP_SWIGLU ? value / (1 + exp(-value)) * factor
                                                        : value);
    }
    for (size_t i = 0; i < n; i += block)
        reference.block(expected + i, block, signs ? signs + i : NULL, NULL);
    return expected;
}

/* 128 columns from `column` on, which share a scale: half a step, and 1e-5 for the float32 of operation and
 * transform. */
static void check_columns(const uint8_t *acts, const float *expected, size_t column)
{
    const uint8_t *k_tile = acts + column / QN_TILE_COLS * QN_ACTS_N1_TILE_BYTES,
                  *codes = k_tile + column % QN_TILE_COLS;
    float scale, amax = 0;
    memcpy(&scale, k_tile + 2 * QN_TILE_COLS + column % QN_TILE_COLS / QN_ACTS_HILO_COLS * sizeof scale, sizeof scale);
    for (size_t i = 0; i < QN_ACTS_HILO_COLS; i++)
        amax = fmaxf(amax, fabsf(expected[column + i]));
    qn_expect(fabsf(scale * (float)QN_HILO_MAX - amax) <= amax * 1e-5f,
              "the scale of columns %zu on is %g, expected %g", column, (double)scale, (double)amax / QN_HILO_MAX);
    for (size_t i = 0; i < QN_ACTS_HILO_COLS; i++) {
        const int code = 256 * (int8_t)codes[i] + (int8_t)codes[QN_TILE_COLS + i];
        const double value = code * (double)scale, wanted = (double)expected[column + i];
        qn_expect(fabs(value - wanted) <= 0.51 * (double)scale + 1e-5 * (double)amax,
                  "column %zu is %g, expected %g within half of %g", column + i, value, wanted, (double)scale);
    }
}

static void check_row(size_t block, size_t n_blocks, int op, bool with_signs)
{
    const struct row r = row_new(block * n_blocks, block, op);
    qn_launch launch;
    qn_hadamard_quantize_args args;
    qn_case_begin("hadamard-quantize", "cuda", "%s, %zu blocks of %zu%s", op_names[op], n_blocks, block,
                  with_signs ? ", signs" : "");
    qn_assert_ok(plan(&r, with_signs, &launch, &args));
    qn_gpu_launch(&launch, &args);
    const uint8_t *found = qn_gpu_read(r.acts);
    const float *expected = expected_row(op, block, r.x, r.other, with_signs ? r.signs : NULL, r.n);
    for (size_t column = 0; column < r.n; column += QN_ACTS_HILO_COLS)
        check_columns(found, expected, column);
    qn_release();
}

/* ---- Several tokens ---- */

/* Their rows. other: of all tokens the same, which only SwiGLU could have otherwise. */
struct rows {
    size_t n, n_tokens;
    float *x, *other, *signs;
    uint64_t gpu_x, gpu_other, gpu_signs;
    struct gpu_acts acts;
};

static struct rows rows_new(size_t n, size_t n_tokens)
{
    struct rows r = { .n = n, .n_tokens = n_tokens, .x = qn_floats(n_tokens * n), .other = qn_floats(n_tokens * n) };
    r.signs = qn_signs_of(n);
    r.acts = qn_check_acts_new(QN_ACTS_HILO, n, n_tokens);
    qn_random_floats(r.x, n_tokens * n, 3);
    qn_random_floats(r.other, n, 2);
    for (size_t i = n; i < n_tokens * n; i++)
        r.other[i] = r.other[i - n];
    r.gpu_x = qn_gpu_copy(r.x);
    r.gpu_other = qn_gpu_copy(r.other);
    r.gpu_signs = qn_gpu_copy(r.signs);
    return r;
}

static qn_matmul_launch rows_launch(const struct rows *r, int op, size_t block, bool with_signs)
{
    const qn_matmul_rotation rotation = { with_signs ? r->gpu_signs : 0, block };
    qn_matmul_launch l;
    qn_assert_ok(
        qn_matmul_gpu_quantize(&r->acts.acts, op, r->gpu_x, r->gpu_other, r->gpu_other, eps, r->n, r->n_tokens, &l));
    qn_assert_ok(qn_matmul_gpu_quantize_rotated(&l, &rotation));
    return l;
}

/* Half a step, and 1e-5 for the float32 of operation and transform. Columns beyond the row are zeros. */
static void check_token(const struct rows *r, int op, const float *expected, const uint8_t *codes, const float *scales,
                        size_t token)
{
    const size_t capacity = r->acts.acts.capacity, width = qn_round_up(r->n, QN_TILE_COLS),
                 n_blocks = width / QN_ACTS_HILO_COLS;
    double sum = 0;
    for (size_t block = 0; op == QN_ACTS_OP_RMS_NORM && block < n_blocks; block++)
        sum += (double)scales[(n_blocks + block) * capacity + token];
    const double factor = op == QN_ACTS_OP_RMS_NORM ? 1 / sqrt(sum / (double)r->n + (double)eps) : 1;
    for (size_t first = 0; first < width; first += QN_ACTS_HILO_COLS) {
        const double scale = 64 * factor * (double)scales[first / QN_ACTS_HILO_COLS * capacity + token];
        float amax = 0;
        for (size_t k = first; k < r->n && k < first + QN_ACTS_HILO_COLS; k++)
            amax = fmaxf(amax, fabsf(expected[k]));
        qn_expect(fabs(scale * QN_HILO_MAX - (double)amax) <= (double)amax * 1e-5,
                  "token %zu: the scale of columns %zu on is %g, expected %g", token, first, scale,
                  (double)amax / QN_HILO_MAX);
        for (size_t k = first; k < first + QN_ACTS_HILO_COLS; k++) {
            const double value = qn_check_hilo_code(&r->acts, codes, token, k) * scale,
                         wanted = k < r->n ? (double)expected[k] : 0;
            qn_expect(fabs(value - wanted) <= 0.51 * scale + 1e-5 * (double)amax,
                      "token %zu, column %zu is %g, expected %g within half of %g", token, k, value, wanted, scale);
        }
    }
}

static void check_rows(size_t block, size_t n, size_t n_tokens, int op, bool with_signs)
{
    const struct rows r = rows_new(n, n_tokens);
    qn_case_begin("hadamard-quantize", "cuda", "%s, %zu tokens of %zu in blocks of %zu%s", op_names[op], n_tokens, n,
                  block, with_signs ? ", signs" : "");
    const qn_matmul_launch l = rows_launch(&r, op, block, with_signs);
    qn_check_launch(&l);
    const uint8_t *codes = qn_check_acts_read(&r.acts);
    const float *scales = qn_gpu_read(r.acts.scale);
    for (size_t token = 0; token < n_tokens; token++)
        check_token(&r, op, expected_row(op, block, r.x + token * n, r.other, with_signs ? r.signs : NULL, n), codes,
                    scales, token);
    qn_release();
}

/* ---- Speed ---- */

/* Rows stay in the device's caches: this times the latency of a launch. */
static void bench(const char *shape, size_t n, const qn_launch *launch, const void *args)
{
    enum { REPEATS = 64 };
    qn_gpu_bench_launches("hadamard-quantize", "cuda", shape, (double)n, "value", 0,
                          &(qn_gpu_timed){ .launch = *launch, .args = args }, 1, REPEATS);
    qn_release();
}

static void bench_rows(size_t n, size_t n_tokens, size_t block, int op)
{
    const struct rows r = rows_new(n, n_tokens);
    const qn_matmul_launch l = rows_launch(&r, op, block, true);
    bench(qn_text("%s, %zu tokens of %zu, block %zu", op_names[op], n_tokens, n, block), n * n_tokens, &l.launch,
          &l.args);
}

static void bench_row(size_t n, int op)
{
    const struct row r = row_new(n, 1024, op);
    qn_launch launch;
    qn_hadamard_quantize_args args;
    qn_assert_ok(plan(&r, true, &launch, &args));
    bench(qn_text("%s, a row of %zu", op_names[op], n), n, &launch, &args);
}

void qn_check_cuda_hadamard_quantize(bool bench)
{
    for (size_t block = 512; block <= 2048; block *= 2)
        for (int op = 0; op < 3; op++)
            for (size_t n_blocks = 1; n_blocks <= 5; n_blocks += 2) {
                qn_random_seed(block + n_blocks);
                check_row(block, n_blocks, op, n_blocks != 3);
            }
    for (size_t block = 1; block <= QN_MATMUL_MAX_HADAMARD; block *= 2)
        for (int op = 0; op < 3; op++) {
            static const size_t tokens[] = { 2, 7, 64 };
            qn_random_seed(3 * block + (size_t)op);
            const size_t least = block < 4 ? 4 : block, n = least * (1 + qn_random_below(1 + 3000 / least));
            if (qn_case_selected())
                check_rows(block, n, tokens[op], op, block != 64);
        }
    for (int op = 0; bench && op < 3; op++) {
        const size_t n = op == QN_ACTS_OP_SWIGLU ? 17408 : 5120;
        bench_row(n, op);
        for (size_t n_tokens = 8; n_tokens <= QN_FEW_MAX_TOKENS; n_tokens *= 8)
            for (size_t block = 128; block <= QN_MATMUL_MAX_HADAMARD; block *= 8)
                bench_rows(n, n_tokens, block, op);
    }
}
