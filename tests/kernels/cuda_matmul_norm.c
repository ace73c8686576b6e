/* Few rows of fp16 weights by the RMS norm of rows of floats, against float64; single tokens, tokens among others, and
 * repeated tokens; and the time compared with a norm that writes activations and their matmul. */
#include "cuda_matmul_problem.h"

enum { MAX_TOKENS = QN_FEW_MAX_TOKENS, STRIDE_PADDING = 4 };

static const float eps = 1e-6f;

/* Two matrices, the second one added to the previous contents; rows of floats are `stride` apart. */
struct norm_problem {
    struct gpu_weights w;
    size_t n_cols, stride;
    float *x, *norm;
    uint64_t gx, gnorm, workspace, out[2];
    float *found[2]; /* [MAX_TOKENS][rows] */
};

static struct norm_problem problem_new(const qn_type_info *type, size_t n_cols, const size_t *n_rows)
{
    const qn_matmul_gpu gpu = qn_check_matmul_gpu();
    struct norm_problem p = { .w = qn_check_weights_new(type, n_cols, 2, n_rows, 100),
                              .n_cols = n_cols,
                              .stride = n_cols + STRIDE_PADDING };
    p.x = qn_floats_of(MAX_TOKENS * p.stride, 3);
    p.norm = qn_floats_of(n_cols, 1);
    for (size_t i = 0; i < MAX_TOKENS * p.stride; i++) /* from tiny to large, and groups of zeros */
        p.x[i] *= i / 32 % 5 == 1 ? 1e-30f : i / 32 % 5 == 2 ? 1e2f : i / 32 % 5 == 3 ? 0 : 1;
    p.gx = qn_gpu_copy(p.x);
    p.gnorm = qn_gpu_copy(p.norm);
    p.workspace = qn_gpu_new(qn_matmul_gpu_workspace_bytes(&gpu));
    qn_assert_ok(qn_cuda_memset(qn_gpu(), qn_gpu_stream(), p.workspace, 0, QN_MATMUL_COUNTERS_BYTES));
    for (size_t i = 0; i < 2; i++) {
        p.out[i] = qn_gpu_floats(MAX_TOKENS * n_rows[i]);
        p.w.matrix.outs[i] = (qn_matmul_out){ p.out[i], (uint32_t)(p.w.first_row[i] / QN_TILE_ROWS),
                                              (uint32_t)n_rows[i], (uint32_t)n_rows[i], i == 1 };
    }
    return p;
}

static qn_matmul_launch norm_launch(const struct norm_problem *p, size_t first, size_t n_tokens)
{
    const qn_matmul_gpu gpu = qn_check_matmul_gpu();
    const qn_matmul_norm_rows rows = {
        .x = p->gx + first * p->stride * sizeof(float), .weight = p->gnorm, .stride = p->stride, .eps = eps
    };
    qn_tiled_matrix matrix = p->w.matrix;
    qn_matmul_launch l;
    for (size_t i = 0; i < 2; i++)
        matrix.outs[i].data += first * p->w.n_rows[i] * sizeof(float);
    qn_assert_ok(qn_matmul_gpu_gemv_norm(&gpu, &matrix, &rows, p->workspace, n_tokens, &l));
    return l;
}

/* What the second matrix's results are added to. */
static float before(size_t i)
{
    return (float)(i % 13) - 6;
}

static void set_outputs(const struct norm_problem *p)
{
    const size_t n = MAX_TOKENS * p->w.n_rows[1];
    float *start = qn_floats(n);
    for (size_t i = 0; i < n; i++)
        start[i] = before(i);
    qn_gpu_poison(p->out[0]);
    qn_gpu_write(p->out[1], start, n * sizeof *start);
}

/* Tokens [0, n_tokens) in launches of up to `each`. */
static void run(struct norm_problem *p, size_t n_tokens, size_t each)
{
    set_outputs(p);
    for (size_t first = 0; first < n_tokens; first += each) {
        const qn_matmul_launch l = norm_launch(p, first, n_tokens - first < each ? n_tokens - first : each);
        qn_check_launch(&l);
    }
    for (size_t i = 0; i < 2; i++)
        p->found[i] = qn_gpu_read(p->out[i]);
}

/* Values and weights are rounded to fp16, 2^-11 of each together: those of a token and 32 columns, of which the
 * smallest are subnormals of the group's scale. f32 as in cuda_matmul.c. */
static void expect_token(const struct norm_problem *p, size_t matrix, size_t token, const float *weights, size_t row)
{
    const float *x = p->x + token * p->stride;
    double sumsq = 0, sum = 0, allowed = 0;
    for (size_t k = 0; k < p->n_cols; k++)
        sumsq += (double)x[k] * (double)x[k];
    const double rms = 1 / sqrt(sumsq / (double)p->n_cols + (double)eps);
    for (size_t begin = 0; begin < p->n_cols; begin += 32) {
        double amax = 0, size = 0;
        for (size_t k = begin; k < p->n_cols && k < begin + 32; k++) {
            const double value = (double)x[k] * (double)p->norm[k] * rms, term = value * (double)weights[k];
            sum += term;
            allowed += fabs(term) * (3e-5 + 0x1p-11 + (p->w.type->type == QN_TYPE_F16 ? 0 : 0x1p-11));
            amax = fmax(amax, fabs(value));
            size += fabs((double)weights[k]);
        }
        allowed += amax * size * 0x1p-24;
    }
    const size_t at = token * p->w.n_rows[matrix] + row;
    const double start = matrix ? (double)before(at) : 0, found = (double)p->found[matrix][at];
    qn_expect(fabs(found - start - sum) <= allowed + 0x1p-23 * fabs(found),
              "matrix %zu, token %zu, row %zu: %g, expected %g, within %g", matrix, token, row, found, start + sum,
              allowed);
}

static void expect_results(const struct norm_problem *p, size_t n_tokens)
{
    float *weights = qn_floats(p->n_cols);
    for (size_t m = 0; m < 2; m++)
        for (size_t row = 0; row < p->w.n_rows[m]; row++) {
            qn_check_weights_row(&p->w, m, row, weights);
            for (size_t token = 0; token < n_tokens; token++)
                expect_token(p, m, token, weights, row);
        }
}

static void check_shape(const qn_type_info *type, size_t n_cols, const size_t *n_rows)
{
    static const size_t tokens[] = { 1, 2, 7, 8, 9, 33, 64 };
    struct norm_problem p = problem_new(type, n_cols, n_rows);
    qn_case_begin("matmul", "cuda", "%s by a norm, rows %zu+%zu cols %zu", type->name, n_rows[0], n_rows[1], n_cols);
    run(&p, MAX_TOKENS, MAX_TOKENS);
    expect_results(&p, MAX_TOKENS);
    const float *const most[2] = { p.found[0], p.found[1] };
    for (size_t t = 0; t < QN_LENGTH(tokens); t++) {
        qn_case_begin("matmul", "cuda", "%s by a norm, rows %zu+%zu cols %zu, %zu tokens a launch", type->name,
                      n_rows[0], n_rows[1], n_cols, tokens[t]);
        run(&p, MAX_TOKENS, tokens[t]);
        for (size_t i = 0; i < 2; i++)
            qn_expect(!memcmp(p.found[i], most[i], MAX_TOKENS * n_rows[i] * sizeof(float)),
                      "matrix %zu: results differ from those of %d tokens", i, MAX_TOKENS);
        run(&p, tokens[t], tokens[t]);
        for (size_t i = 0; i < n_rows[1]; i++) {
            const size_t at = tokens[t] * n_rows[1] + i;
            qn_expect(tokens[t] == MAX_TOKENS || p.found[1][at] == before(at), "token %zu was written, of %zu",
                      tokens[t], tokens[t]);
        }
    }
    qn_release();
}

/* A value that is not finite makes its token's results NaN, and no other's. */
static void check_not_finite(void)
{
    const size_t n_rows[] = { 20, 20 }, bad = 9;
    struct norm_problem p = problem_new(qn_type_find(QN_TYPE_F16), 512, n_rows);
    p.x[bad * p.stride + 300] = INFINITY;
    qn_gpu_write(p.gx, p.x, qn_gpu_bytes(p.gx));
    qn_case_begin("matmul", "cuda", "f16 by a norm, with infinity");
    run(&p, 16, 16);
    for (size_t i = 0; i < 16 * n_rows[0]; i++)
        qn_expect((bool)isnan(p.found[0][i]) == (i / n_rows[0] == bad), "token %zu: %g", i / n_rows[0],
                  (double)p.found[0][i]);
    qn_release();
}

/* ---- Speed ---- */

/* Weights stay in L2: this times the latency of the launches. */
static void bench(size_t n_tokens, bool rows)
{
    enum { REPEATS = 64 };
    const qn_matmul_gpu gpu = qn_check_matmul_gpu();
    const struct norm_problem p = problem_new(qn_type_find(QN_TYPE_F16), 5120, (size_t[]){ 48, 48 });
    const struct gpu_acts acts = qn_check_acts_new(QN_ACTS_F16, p.n_cols, n_tokens);
    qn_matmul_launch launches[REPEATS * 2];
    const size_t each = rows ? 1 : 2;
    if (rows) {
        launches[0] = norm_launch(&p, 0, n_tokens);
    } else {
        qn_assert_ok(qn_matmul_gpu_quantize(&acts.acts, QN_ACTS_OP_RMS_NORM, p.gx, 0, p.gnorm, eps, p.stride, n_tokens,
                                            &launches[0]));
        qn_assert_ok(qn_matmul_gpu_matmul(&gpu, &p.w.matrix, &acts.acts, n_tokens, &launches[1]));
    }
    for (size_t i = each; i < REPEATS * each; i++)
        launches[i] = launches[i % each];
    qn_check_bench(qn_text("f16 96x5120 tokens %zu, %s", n_tokens, rows ? "by a norm" : "norm and matmul"),
                   96 * 5120 * 2, "B", 0, launches, each, REPEATS);
    qn_release();
}

void qn_check_cuda_matmul_norm(bool with_bench)
{
    static const struct {
        qn_type type;
        size_t rows[2], cols;
    } cases[] = { { QN_TYPE_F16, { 48, 48 }, 5120 },
                  { QN_TYPE_F16, { 1, 240 }, 2048 },
                  { QN_TYPE_F16, { 33, 7 }, 4 },
                  { QN_TYPE_BF16, { 16, 5 }, 260 },
                  { QN_TYPE_F32, { 4, 4 }, 1000 } };
    for (size_t i = 0; i < QN_LENGTH(cases); i++) {
        qn_random_seed(600 + i);
        if (qn_case_selected())
            check_shape(qn_type_find(cases[i].type), cases[i].cols, cases[i].rows);
    }
    if (qn_case_selected())
        check_not_finite();
    for (size_t n_tokens = 2; with_bench && n_tokens <= MAX_TOKENS; n_tokens = n_tokens == 2 ? 8 : 8 * n_tokens)
        for (int rows = 0; rows < 2; rows++)
            bench(n_tokens, rows);
}
