/* Matmuls of quern/cuda.h on a GPU against the CPU's functions: weights of every type, packed on the device; all types
 * of activations and outputs with any stride; several matrices, fused operations before the matmul, results added to
 * outputs; captured in a graph. */
#include "cuda_api.h"
#include "cuda_views.h"

#include "problem.h"
#include "quant/quant.h"

enum { MATRICES = 3, ADDED = 1 /* the matrix whose result is added to its output */ };

static const size_t few_rows[MATRICES] = { 37, 16, 1 };
static const qn_dtype floats[3] = { QN_DTYPE_F32, QN_DTYPE_F16, QN_DTYPE_BF16 };

struct shape {
    qn_dtype weights, x, y;
    size_t n_cols, n_matrices, n_rows[MATRICES], n_tokens;
    qn_cuda_matmul_op op;
    bool is_aligned; /* rows at multiples of 16 bytes */
};

struct problem {
    struct shape s;
    const qn_type_info *type;
    uint64_t stored[MATRICES], packed, workspace;
    float *weights[MATRICES], *norm;
    qn_gpu_rows x, up, out[MATRICES];
    double *acts; /* [n_tokens][n_cols]: after the operation */
    qn_cuda_matmul_weights api;
    qn_cuda_matmul_acts api_acts;
    qn_cuda_matmul_out outs[MATRICES];
};

static bool is_low_bit(qn_dtype t)
{
    return t == QN_DTYPE_Q1_0 || t == QN_DTYPE_Q2_0 || t == QN_DTYPE_PQ2_0 || t == QN_DTYPE_PTQ1_0 ||
           t == QN_DTYPE_TQ1_0 || t == QN_DTYPE_TQ2_0;
}

/* Whether activations are integers of 16 bits, by the rule of quern/cuda.h. */
static bool is_hilo(const struct shape *s)
{
    return is_low_bit(s->weights) && s->n_tokens <= 64;
}

/* Random blocks of plain types would be numbers of any exponent, most of them far too small to matter. */
static void draw_weights(struct problem *p, size_t i)
{
    const size_t n = p->s.n_rows[i] * p->s.n_cols, bytes = n / p->type->block_weights * p->type->block_bytes;
    uint8_t *blocks = qn_new(bytes, 1);
    const qn_view stored = { blocks, p->s.weights, n };
    const qn_view values = { p->weights[i] = qn_floats_of(n, 0.5f), QN_DTYPE_F32, n };
    if (p->type->block_weights == 1)
        qn_assert_ok(qn_encode(values, stored));
    else
        qn_random_blocks(p->type, blocks, n / p->type->block_weights, 4);
    qn_assert_ok(qn_decode(stored, values));
    p->stored[i] = qn_gpu_copy(blocks);
}

static void apply_op(struct problem *p)
{
    const size_t n = p->s.n_cols;
    p->acts = qn_doubles(p->s.n_tokens * n);
    for (size_t token = 0; token < p->s.n_tokens; token++) {
        const float *x = p->x.values + token * n;
        double square = 0;
        for (size_t k = 0; k < n; k++)
            square += (double)x[k] * (double)x[k];
        const double scale = 1 / sqrt(square / (double)n + (double)p->api_acts.eps);
        for (size_t k = 0; k < n; k++) {
            double y = (double)x[k];
            if (p->s.op == QN_CUDA_MATMUL_RMS_NORM)
                y *= scale * (double)p->norm[k];
            else if (p->s.op == QN_CUDA_MATMUL_SWIGLU)
                y = y / (1 + exp(-y)) * (double)p->up.values[token * n + k];
            p->acts[token * n + k] = y;
        }
    }
}

static void problem_new(struct problem *p, const struct shape *s)
{
    size_t bytes;
    *p = (struct problem){ .s = *s, .type = qn_type_find((uint32_t)s->weights) };
    const size_t gap = s->is_aligned ? 8 : 3, shift = s->is_aligned ? 8 : 1;
    p->norm = qn_floats_of(s->n_cols, 1);
    p->x = qn_gpu_rows_random(s->x, s->n_tokens, s->n_cols, gap, shift, 1);
    p->up = qn_gpu_rows_random(s->x, s->n_tokens, s->n_cols, gap, shift, 1);
    p->api = (qn_cuda_matmul_weights){ .dtype = s->weights, .n_cols = s->n_cols, .n_matrices = s->n_matrices };
    for (size_t i = 0; i < s->n_matrices; i++) {
        draw_weights(p, i);
        p->api.n_rows[i] = s->n_rows[i];
        p->out[i] = i == ADDED ? qn_gpu_rows_random(s->y, s->n_tokens, s->n_rows[i], gap, shift, 1)
                               : qn_gpu_rows_poison(s->y, s->n_tokens, s->n_rows[i], i ? gap : 0, shift);
        p->outs[i] = (qn_cuda_matmul_out){ qn_gpu_rows_view(&p->out[i]), i == ADDED };
    }
    p->api_acts = (qn_cuda_matmul_acts){ .op = s->op,
                                         .n_tokens = s->n_tokens,
                                         .x = qn_gpu_rows_view(&p->x),
                                         .up = qn_gpu_rows_view(&p->up),
                                         .weight = qn_array_view(qn_gpu_copy(p->norm), QN_DTYPE_F32),
                                         .eps = 1e-5f };
    qn_assert_ok(qn_cuda_matmul_packed_bytes(&p->api, &bytes));
    p->packed = qn_gpu_new(bytes);
    p->api.packed = (void *)(uintptr_t)p->packed;
    p->api.bytes = bytes;
    qn_assert_ok(qn_cuda_matmul_workspace(qn_api(), &p->api, &p->api_acts, &bytes));
    p->workspace = qn_gpu_new(bytes);
    apply_op(p);
}

static void pack_all(const struct problem *p)
{
    for (size_t i = 0; i < p->s.n_matrices; i++)
        qn_assert_ok(
            qn_cuda_matmul_pack(qn_api(), &p->api, i, qn_array_view(p->stored[i], p->s.weights), qn_gpu_stream()));
}

static void multiply(const struct problem *p)
{
    qn_assert_ok(qn_cuda_matmul(qn_api(), &p->api, &p->api_acts, p->outs, (void *)(uintptr_t)p->workspace,
                                qn_gpu_bytes(p->workspace), qn_gpu_stream()));
}

/* ---- Comparison ---- */

/* Expected results of a row of weights by a token, and the largest error of them:
 *
 *   3e-5 of the terms' magnitudes        float32 additions in any order, some truncated by the tensor cores, and the
 *                                        operation
 *   16 bits: half a step of each value   amax / 32639 of its 128 columns
 *   fp16: 2^-11 of each value            and half a step of the smallest values, which is 2^-25 of the token's scale
 *   fp16 weights: 2^-11 of each weight   of types whose values are not fp16; half a step of subnormal ones is 2^-25 */
static double bound_of(const struct problem *p, const float *w, const double *x)
{
    const bool exact = is_low_bit(p->s.weights) || p->s.weights == QN_DTYPE_F16;
    double terms = 0, weights = 0, values = 0, amax = 0, steps = 0;
    for (size_t k = 0; k < p->s.n_cols; k++) {
        terms += fabs((double)w[k] * x[k]);
        weights += fabs((double)w[k]);
        values += fabs(x[k]);
        amax = fmax(amax, fabs(x[k]));
    }
    for (size_t first = 0; is_hilo(&p->s) && first < p->s.n_cols; first += 128) {
        double group = 0, sum = 0;
        for (size_t k = first; k < p->s.n_cols && k < first + 128; k++) {
            group = fmax(group, fabs(x[k]));
            sum += fabs((double)w[k]);
        }
        steps += sum * group * (0.5 / 32639) * 1.01;
    }
    if (is_hilo(&p->s))
        return 3e-5 * terms + steps;
    return terms * (3e-5 + 1.01 * (0x1p-11 + (exact ? 0 : 0x1p-11))) + weights * amax * 0x1p-24 + values * 0x1p-25;
}

static void compare_matrix(const struct problem *p, size_t i, const char *what)
{
    const struct shape *s = &p->s;
    const size_t n = s->n_rows[i];
    double *expected = qn_doubles(s->n_tokens * n), *bound = qn_doubles(s->n_tokens * n);
    for (size_t token = 0; token < s->n_tokens; token++)
        for (size_t row = 0; row < n; row++) {
            const float *w = p->weights[i] + row * s->n_cols;
            const double *x = p->acts + token * s->n_cols;
            double sum = 0;
            for (size_t k = 0; k < s->n_cols; k++)
                sum += (double)w[k] * x[k];
            expected[token * n + row] = sum + (i == ADDED ? (double)p->out[i].values[token * n + row] : 0);
            bound[token * n + row] = bound_of(p, w, x) + fabs(expected[token * n + row]) * 0x1p-22;
        }
    qn_gpu_rows_expect(&p->out[i], expected, bound, what);
}

static void compare(const struct problem *p)
{
    static const char *const names[MATRICES] = { "outs[0]", "outs[1], added", "outs[2]" };
    for (size_t i = 0; i < p->s.n_matrices; i++)
        compare_matrix(p, i, names[i]);
    qn_expect_guards();
}

static void begin_case(const struct problem *p, const char *variant)
{
    static const char *const ops[] = { "x", "rms norm", "swiglu" };
    const struct shape *s = &p->s;
    qn_case_begin("api", variant, "%s %zux%zu of %zu matrices by %zu tokens, %s of %s to %s%s", p->type->name,
                  s->n_rows[0], s->n_cols, s->n_matrices, s->n_tokens, ops[s->op], qn_float_name(s->x),
                  qn_float_name(s->y), s->is_aligned ? "" : ", unaligned");
}

static void check_shape(const struct shape *s)
{
    struct problem p;
    qn_random_seed((uint64_t)s->weights * 1000 + s->n_tokens);
    problem_new(&p, s);
    begin_case(&p, "matmul");
    pack_all(&p);
    multiply(&p);
    compare(&p);
    qn_release();
}

/* A row of blocks, and a tail where the type's blocks allow one: not a multiple of 256, the columns of a tile. */
static size_t columns_of(const qn_type_info *type)
{
    return type->block_weights == 1 ? 333 : type->block_weights == 256 ? 512 : 5 * type->block_weights;
}

static struct shape small_shape(const qn_type_info *type, size_t n_tokens)
{
    struct shape s = {
        .weights = (qn_dtype)type->type, .n_cols = columns_of(type), .n_matrices = MATRICES, .n_tokens = n_tokens
    };
    memcpy(s.n_rows, few_rows, sizeof few_rows);
    return s;
}

/* Every type of files by every kernel; types of activations and outputs, operations and alignment change from case to
 * case. */
static void check_types(void)
{
    static const size_t tokens[] = { 1, 3, 8, 16, 17, 40, 70 };
    size_t n, i = 0;
    const qn_type_info *types = qn_types(&n);
    for (size_t type = 0; type < n; type++)
        for (size_t t = 0; t < QN_LENGTH(tokens) && qn_type_find_stored(types[type].type); t++, i++) {
            struct shape s = small_shape(&types[type], tokens[t]);
            s.x = floats[i % 3];
            s.y = floats[i / 3 % 3];
            s.op = (qn_cuda_matmul_op)(i % 4 == 3 ? QN_CUDA_MATMUL_X : i % 4);
            s.is_aligned = i % 2;
            check_shape(&s);
        }
}

/* All types of arrays with all operations, in 16 bits and fp16. */
static void check_arrays(void)
{
    static const qn_dtype weights[] = { QN_DTYPE_Q1_0, QN_DTYPE_Q4_0 };
    static const size_t tokens[] = { 1, 5, 19 };
    for (size_t i = 0; i < 2 * 3 * 3 * 3 * 3; i++) {
        struct shape s = small_shape(qn_type_find((uint32_t)weights[i % 2]), tokens[i / 2 % 3]);
        s.x = floats[i / 6 % 3];
        s.y = floats[i / 18 % 3];
        s.op = (qn_cuda_matmul_op)(i / 54);
        s.is_aligned = i / 2 % 2;
        check_shape(&s);
    }
}

/* A split over K by clusters; a large matrix of fp16 by one token; more tokens than a pass has. */
static void check_large(void)
{
    static const struct shape shapes[] = {
        { QN_DTYPE_Q1_0, QN_DTYPE_BF16, QN_DTYPE_BF16, 1536, 2, { 1100, 30 }, 150, QN_CUDA_MATMUL_RMS_NORM, true },
        { QN_DTYPE_Q4_K, QN_DTYPE_F16, QN_DTYPE_F16, 2048, 1, { 300 }, 33, QN_CUDA_MATMUL_SWIGLU, true },
        { QN_DTYPE_BF16, QN_DTYPE_BF16, QN_DTYPE_F32, 264, 1, { 5000 }, 1, QN_CUDA_MATMUL_X, true },
        { QN_DTYPE_PTQ1_0, QN_DTYPE_F32, QN_DTYPE_F16, 4096, 1, { 700 }, 1, QN_CUDA_MATMUL_SWIGLU, true },
        { QN_DTYPE_Q1_0, QN_DTYPE_F16, QN_DTYPE_BF16, 128, 2, { 7, 17 }, 32768 + 5, QN_CUDA_MATMUL_RMS_NORM, false },
    };
    for (size_t i = 0; i < QN_LENGTH(shapes); i++)
        check_shape(&shapes[i]);
}

static void check_capture(void)
{
    struct problem p;
    struct shape s = small_shape(qn_type_find(QN_TYPE_Q2_0), 1);
    s.op = QN_CUDA_MATMUL_RMS_NORM;
    s.x = s.y = QN_DTYPE_BF16;
    problem_new(&p, &s);
    qn_assert_ok(qn_cuda_matmul_prepare(qn_api(), &p.api, &p.api_acts));
    qn_gpu_capture_begin();
    pack_all(&p);
    multiply(&p);
    qn_cuda_graph *graph = qn_gpu_capture_end();
    for (int run = 0; run < 3; run++) {
        begin_case(&p, run ? "graph again" : "graph");
        for (size_t i = 0; i < s.n_matrices; i++)
            qn_gpu_rows_reset(&p.out[i]);
        qn_gpu_poison(p.packed, p.workspace);
        qn_gpu_graph_launch(graph);
        compare(&p);
    }
    qn_release();
}

void qn_check_api_matmul(void)
{
    check_types();
    check_arrays();
    check_large();
    check_capture();
}
