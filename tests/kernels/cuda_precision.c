/* The precision of a matmul by weights of 1 and 2 bits does not depend on the number of tokens: its error against
 * float64, of the same tokens in calls of 1 to 64 of them, through quern/cuda.h. With `bench` the errors are
 * printed. */
#include "cuda_api.h"
#include "cuda_views.h"

#include "problem.h"
#include "quant/quant.h"
#include "quern/kernels.h"

enum { TOKENS = 64, ROWS = 256, COLS = 5120, COUNTS = 6 };

static const size_t counts[COUNTS] = { 1, 2, 8, 16, 17, 64 };

/* The limit of the largest error divided by the smallest. Only the order of float32 additions may differ. */
static const double tolerance = 1.1;

struct problem {
    qn_cuda_matmul_op op;
    float *x, *norm, *weights; /* [TOKENS][COLS], [COLS], [ROWS][COLS] */
    double *expected;          /* [TOKENS][ROWS] */
    uint64_t x_gpu, norm_gpu, packed, out;
    qn_cuda_matmul_weights api;
};

/* As hidden states of models are: a few columns are much larger than the others. */
static void draw_tokens(struct problem *p)
{
    static const size_t large[] = { 77, 1030, 1031, 4000 };
    p->x = qn_floats_of(TOKENS * COLS, 1);
    p->norm = qn_floats_of(COLS, 1);
    for (size_t token = 0; token < TOKENS; token++)
        for (size_t i = 0; i < QN_LENGTH(large); i++)
            p->x[token * COLS + large[i]] *= 30;
    p->x_gpu = qn_gpu_copy(p->x);
    p->norm_gpu = qn_gpu_copy(p->norm);
}

static void pack_weights(struct problem *p, const qn_type_info *type)
{
    const size_t n_blocks = ROWS * COLS / type->block_weights;
    uint8_t *stored = qn_new(n_blocks, type->block_bytes);
    size_t packed_bytes;
    qn_random_blocks(type, stored, n_blocks, 4);
    p->weights = qn_floats(ROWS * COLS);
    type->to_float(stored, n_blocks, p->weights);
    p->api =
        (qn_cuda_matmul_weights){ .dtype = (qn_dtype)type->type, .n_cols = COLS, .n_matrices = 1, .n_rows = { ROWS } };
    qn_assert_ok(qn_cuda_matmul_packed_bytes(&p->api, &packed_bytes));
    p->packed = qn_gpu_new(packed_bytes);
    p->api.packed = (void *)(uintptr_t)p->packed;
    p->api.bytes = packed_bytes;
    qn_assert_ok(
        qn_cuda_matmul_pack(qn_api(), &p->api, 0, qn_array_view(qn_gpu_copy(stored), p->api.dtype), qn_gpu_stream()));
}

static void multiply_f64(struct problem *p)
{
    p->expected = qn_doubles(TOKENS * ROWS);
    for (size_t token = 0; token < TOKENS; token++) {
        const float *x = p->x + token * COLS;
        double square = 0;
        for (size_t k = 0; k < COLS; k++)
            square += (double)x[k] * (double)x[k];
        const double scale = 1 / sqrt(square / COLS + 1e-6);
        for (size_t row = 0; row < ROWS; row++) {
            double sum = 0;
            for (size_t k = 0; k < COLS; k++)
                sum += (double)p->weights[row * COLS + k] * (double)x[k] *
                       (p->op == QN_CUDA_MATMUL_RMS_NORM ? scale * (double)p->norm[k] : 1);
            p->expected[token * ROWS + row] = sum;
        }
    }
}

/* Multiplies the tokens from `first` on in one call. */
static void multiply(struct problem *p, size_t first, size_t n_tokens)
{
    const qn_cuda_matmul_acts acts = { .op = p->op,
                                       .n_tokens = n_tokens,
                                       .x = { (float *)(uintptr_t)p->x_gpu + first * COLS, QN_DTYPE_F32,
                                              n_tokens * COLS, 0 },
                                       .weight = qn_array_view(p->norm_gpu, QN_DTYPE_F32),
                                       .eps = 1e-6f };
    const qn_cuda_matmul_out out = { .y = { (float *)(uintptr_t)p->out + first * ROWS, QN_DTYPE_F32, n_tokens * ROWS,
                                            0 } };
    size_t bytes;
    qn_assert_ok(qn_cuda_matmul_workspace(qn_api(), &p->api, &acts, &bytes));
    const uint64_t workspace = qn_gpu_new(bytes);
    qn_assert_ok(qn_cuda_matmul(qn_api(), &p->api, &acts, &out, (void *)(uintptr_t)workspace, bytes, qn_gpu_stream()));
}

/* The relative error of all tokens in calls of n_tokens. The last call begins early where TOKENS is no multiple. */
static double error_of(struct problem *p, size_t n_tokens)
{
    double error = 0, size = 0;
    qn_gpu_poison(p->out);
    for (size_t first = 0; first < TOKENS; first += n_tokens)
        multiply(p, first + n_tokens <= TOKENS ? first : TOKENS - n_tokens, n_tokens);
    float *found = qn_gpu_read(p->out);
    for (size_t i = 0; i < TOKENS * ROWS; i++) {
        const double difference = (double)found[i] - p->expected[i];
        error += difference * difference;
        size += p->expected[i] * p->expected[i];
    }
    return sqrt(error / size);
}

static void check_type(qn_type id, qn_cuda_matmul_op op, bool print)
{
    const qn_type_info *type = qn_type_find(id);
    const char *const name = op == QN_CUDA_MATMUL_X ? "" : ", normalised";
    struct problem p = { .op = op };
    double errors[COUNTS], best = INFINITY;
    qn_random_seed(id);
    qn_case_begin("precision", "cuda", "%s %dx%d%s", type->name, ROWS, COLS, name);
    draw_tokens(&p);
    pack_weights(&p, type);
    multiply_f64(&p);
    p.out = qn_gpu_floats(TOKENS * ROWS);
    for (size_t i = 0; i < COUNTS; i++) {
        errors[i] = error_of(&p, counts[i]);
        best = fmin(best, errors[i]);
    }
    for (size_t i = 0; i < COUNTS; i++) {
        if (print)
            printf("precision %s%s: %zu tokens, relative error %.3e\n", type->name, name, counts[i], errors[i]);
        qn_expect(errors[i] <= tolerance * best, "%zu tokens: relative error %.3e, with other numbers of tokens %.3e",
                  counts[i], errors[i], best);
    }
    qn_release();
}

void qn_check_cuda_precision(bool bench)
{
    static const qn_type types[] = { QN_TYPE_Q1_0, QN_TYPE_Q2_0, QN_TYPE_PQ2_0, QN_TYPE_PTQ1_0 };
    for (size_t i = 0; i < QN_LENGTH(types); i++) {
        check_type(types[i], QN_CUDA_MATMUL_X, bench);
        check_type(types[i], QN_CUDA_MATMUL_RMS_NORM, bench);
    }
}
