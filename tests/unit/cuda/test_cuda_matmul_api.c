/* Matmuls of quern/cuda.h on a fake driver: what is refused, and which launches are queued with which arguments. The
 * results are checked by quern-check, on a device. */
#include "helper_cuda_api.h"

#include "cuda/kernels/matmul/matmul.h"
#include "quant/quant.h"

#include <math.h>

enum { MAX_CUBINS = 1024, COLS = 512, ROWS = 40, TOKENS = 17 };

static size_t args_bytes(const char *function)
{
    return !strcmp(function, "qn_matmul_pack")            ? sizeof(qn_matmul_pack_args)
           : !strcmp(function, "qn_matmul_quantize_acts") ? sizeof(qn_matmul_quantize_acts_args)
           : !strcmp(function, "qn_matmul_gemv")          ? sizeof(qn_matmul_gemv_args)
           : !strcmp(function, "qn_matmul_gemm_few")      ? sizeof(qn_matmul_few_args)
                                                          : sizeof(qn_matmul_gemm_args);
}

/* A handle with the built-in variants whose definitions contain `part`. */
static void open_with(const char *part)
{
    static qn_gpu_cubin cubins[MAX_CUBINS];
    const qn_gpu_code *code = qn_gpu_code_built_in();
    size_t n = 0;
    for (size_t i = 0; i < code->n_pipelines; i++)
        if (strstr(code->pipelines[i].defines, part)) {
            assert_in_range(n, 0, MAX_CUBINS - 1);
            cubins[n++] = (qn_gpu_cubin)FAKE_CUBIN(code->pipelines[i].source, code->pipelines[i].defines);
        }
    open_fake_kernels(cubins, n);
    fake.args_bytes = args_bytes;
}

static int open_kernels(void)
{
    open_with("");
    return 0;
}

TEST_EVERY(open_kernels, close_kernels)

/* Arguments of a valid call: two matrices, the second of which is added to its output. */
struct call {
    qn_cuda_kernels *kernels;
    qn_cuda_matmul_weights weights;
    qn_cuda_matmul_acts acts;
    qn_cuda_matmul_out outs[QN_CUDA_MATMUL_MATRICES];
    qn_cuda_view rows;
    void *workspace;
    size_t bytes;
};

static struct call call_of(qn_dtype weights, size_t n_tokens, qn_dtype x, qn_dtype y)
{
    const size_t many = (size_t)1 << 40;
    return (struct call){ .kernels = kernels,
                          .weights = { .dtype = weights,
                                       .n_cols = COLS,
                                       .n_matrices = 2,
                                       .n_rows = { ROWS, 16 },
                                       .packed = address(128),
                                       .bytes = many },
                          .acts = { .n_tokens = n_tokens,
                                    .x = { address(4096), x, many, 0 },
                                    .up = { address(1 << 20), x, many, 0 },
                                    .weight = { address(2 << 20), QN_DTYPE_F32, COLS, 0 },
                                    .eps = 1e-6f },
                          .outs = { { { address(3 << 20), y, many, 0 }, false },
                                    { { address(4 << 20), y, many, 100 }, true } },
                          .rows = { address(5 << 20), weights, many, 0 },
                          .workspace = address(6 << 20),
                          .bytes = many };
}

static qn_status matmul(const struct call *c)
{
    return qn_cuda_matmul(c->kernels, &c->weights, &c->acts, c->outs, c->workspace, c->bytes, NULL);
}

static qn_status pack(const struct call *c, size_t matrix)
{
    return qn_cuda_matmul_pack(c->kernels, &c->weights, matrix, c->rows, NULL);
}

/* ---- Weights ---- */

TEST(sizes)
{
    /* Two k-tiles of 3 and 1 tiles; bytes of codes and scales of each. */
    static const struct {
        qn_dtype dtype;
        size_t bytes;
    } types[] = { { QN_DTYPE_Q1_0, 512 + 64 },       { QN_DTYPE_Q2_0, 2 * 512 + 128 }, { QN_DTYPE_PQ2_0, 2 * 512 + 64 },
                  { QN_DTYPE_PTQ1_0, 2 * 512 + 64 }, { QN_DTYPE_TQ1_0, 2 * 512 + 64 }, { QN_DTYPE_TQ2_0, 2 * 512 + 64 },
                  { QN_DTYPE_Q4_0, 4 * 512 + 512 },  { QN_DTYPE_Q4_1, 4 * 512 + 512 }, { QN_DTYPE_Q8_0, 8 * 512 + 256 },
                  { QN_DTYPE_F16, 16 * 512 },        { QN_DTYPE_BF16, 16 * 512 },      { QN_DTYPE_F32, 16 * 512 },
                  { QN_DTYPE_Q5_0, 16 * 512 },       { QN_DTYPE_Q5_1, 16 * 512 },      { QN_DTYPE_Q4_K, 16 * 512 },
                  { QN_DTYPE_Q5_K, 16 * 512 },       { QN_DTYPE_Q6_K, 16 * 512 },      { QN_DTYPE_Q2_K, 16 * 512 },
                  { QN_DTYPE_Q3_K, 16 * 512 },       { QN_DTYPE_IQ4_NL, 16 * 512 },    { QN_DTYPE_IQ4_XS, 16 * 512 },
                  { QN_DTYPE_MXFP4, 16 * 512 },      { QN_DTYPE_NVFP4, 16 * 512 } };
    for (size_t i = 0; i < COUNT(types); i++) {
        label("type %d", (int)types[i].dtype);
        const struct call c = call_of(types[i].dtype, 1, QN_DTYPE_F32, QN_DTYPE_F32);
        size_t bytes;
        assert_ok(qn_cuda_matmul_packed_bytes(&c.weights, &bytes));
        assert_int_equal(bytes, 2 * 4 * types[i].bytes);
    }
    /* No type of the CPU's matmul is missing. */
    size_t n;
    const qn_type_info *all = qn_types(&n);
    for (size_t i = 0; i < n; i++)
        if (qn_type_find_stored((uint32_t)all[i].type)) {
            const struct call c = call_of((qn_dtype)all[i].type, 1, QN_DTYPE_F32, QN_DTYPE_F32);
            size_t bytes;
            label("%s", all[i].name);
            assert_ok(qn_cuda_matmul_packed_bytes(&c.weights, &bytes));
        }
}

static void refuses_weights(const struct call *c, const char *text)
{
    size_t bytes = 1;
    refused(qn_cuda_matmul_packed_bytes(&c->weights, &bytes), text);
    assert_int_equal(bytes, 0);
    refused(qn_cuda_matmul_workspace(kernels, &c->weights, &c->acts, &bytes), text);
    refused(pack(c, 0), text);
    refused(matmul(c), text);
    refused(qn_cuda_matmul_prepare(kernels, &c->weights, &c->acts), text);
}

TEST(weights)
{
    const struct call valid = call_of(QN_DTYPE_Q4_0, TOKENS, QN_DTYPE_F32, QN_DTYPE_F32);
    struct call c = valid;
    c.weights.dtype = QN_DTYPE_U32;
    refuses_weights(&c, "weights: type 1000 is not a weight type");
    c.weights.dtype = (qn_dtype)QN_TYPE_OX2_0;
    refuses_weights(&c, "weights: type 1042 is not a weight type");
    c.weights.dtype = (qn_dtype)QN_TYPE_NVFP4_L;
    refuses_weights(&c, "weights: type 1040 is not a weight type");
    c = valid;
    c.weights.n_cols = 48;
    refuses_weights(&c, "n_cols: 48, expected a multiple of 32 for q4_0");
    c.weights.n_cols = 0;
    refuses_weights(&c, "n_cols: 0");
    c = valid;
    c.weights.n_matrices = 5;
    refuses_weights(&c, "n_matrices: 5, expected 1 to 4");
    c.weights.n_matrices = 0;
    refuses_weights(&c, "n_matrices: 0");
    c = valid;
    c.weights.n_rows[1] = 0;
    refuses_weights(&c, "n_rows[1]: 0, expected 1");
    c.weights.n_rows[1] = (size_t)1 << 33;
    refuses_weights(&c, "n_rows[1]: 8589934592");
    c.weights.n_rows[0] = c.weights.n_rows[1] = INT32_MAX;
    refuses_weights(&c, "exceeds the kernels' 32-bit counts");
    size_t bytes;
    refused(qn_cuda_matmul_packed_bytes(NULL, &bytes), "weights: NULL");
    refused(qn_cuda_matmul_packed_bytes(&valid.weights, NULL), "bytes: NULL");
}

TEST(packing)
{
    struct call c = call_of(QN_DTYPE_Q4_K, 1, QN_DTYPE_F32, QN_DTYPE_F32);
    assert_ok(pack(&c, 1));
    const qn_matmul_pack_args *a = expect_launch(0, 1, "qn_matmul_pack", 2, 1, false);
    assert_int_equal(a->rows, 5 << 20);
    assert_int_equal(a->tiles, 128);
    assert_int_equal(a->row_bytes, 2 * 144);
    assert_int_equal(a->n_rows, 16);
    assert_int_equal(a->n_cols, COLS);
    assert_int_equal(a->n_tiles, 4);
    assert_int_equal(a->first_tile, 3);
    assert_int_equal(a->stored, QN_STORED_Q4_K);
    assert_int_equal(a->bits, 16);
    c = call_of(QN_DTYPE_Q1_0, 1, QN_DTYPE_F32, QN_DTYPE_F32);
    assert_ok(pack(&c, 0));
    a = arguments(0, 1);
    assert_true(a->stored == QN_STORED_Q1_0 && a->bits == 1 && a->n_rows == ROWS && a->first_tile == 0);
    refused(pack(&c, 2), "matrix: 2, expected less than 2");
    c.rows.dtype = QN_DTYPE_F16;
    refused(pack(&c, 0), "rows: data type 1, expected 41");
    c.rows.dtype = QN_DTYPE_Q1_0;
    c.rows.count = ROWS * COLS - 1;
    refused(pack(&c, 0), "rows: 20479 elements, expected at least 20480");
    c.rows.count++;
    assert_ok(pack(&c, 0));
    c.weights.bytes = 8 * 576 - 1;
    refused(pack(&c, 0), "packed: 4607 bytes, expected at least 4608");
    c.weights.bytes++;
    c.weights.packed = address(64);
    refused(pack(&c, 0), "packed: address 0x40, expected a multiple of 128");
    c.weights.packed = NULL;
    refused(pack(&c, 0), "packed: address");
    c = call_of(QN_DTYPE_Q1_0, 1, QN_DTYPE_F32, QN_DTYPE_F32);
    c.weights.n_rows[0] = 65535 * 16 + 1;
    refused(pack(&c, 0), "a launch at most 65535");
    c.kernels = NULL;
    refused(pack(&c, 1), "kernels: NULL");
}

/* ---- Launches ---- */

/* One token of 1-bit weights: a GEMV, without scales of tokens. */
TEST(one_token)
{
    struct call c = call_of(QN_DTYPE_Q1_0, 1, QN_DTYPE_F32, QN_DTYPE_F32);
    c.acts.op = QN_CUDA_MATMUL_RMS_NORM;
    c.workspace = address((6 << 20) + 16);
    assert_ok(matmul(&c));
    expect_launch(0, 2, "qn_matmul_quantize_acts", 1, 1, false); /* it waits for what packs the weights */
    expect_launch(1, 2, "qn_matmul_gemv", 4, 1, true);
    const qn_matmul_quantize_acts_args *q = arguments(0, 2);
    assert_int_equal(q->x, 4096);
    assert_int_equal(q->x2, 0);
    assert_int_equal(q->weight, 2 << 20);
    assert_true(q->eps == 1e-6f);
    assert_int_equal(q->out, (6 << 20) + 1024);
    assert_int_equal(q->scale, 0);
    assert_int_equal(q->n_cols, COLS);
    assert_int_equal(q->stride, COLS);
    assert_int_equal(q->n_tokens, 1);
    const qn_matmul_gemv_args *g = arguments(1, 2);
    assert_int_equal(g->weights, 128);
    assert_int_equal(g->acts, q->out);
    assert_int_equal(g->n_tiles, 4);
    assert_int_equal(g->n_outs, 2);
    assert_int_equal(g->out_dtype, QN_DTYPE_F32);
    const qn_matmul_out *o = g->outs;
    assert_true(o[0].data == 3 << 20 && o[0].first_tile == 0 && o[0].n_rows == ROWS && o[0].stride == ROWS &&
                !o[0].accumulate);
    assert_true(o[1].data == 4 << 20 && o[1].first_tile == 3 && o[1].n_rows == 16 && o[1].stride == 100 &&
                o[1].accumulate);
    /* Two tokens, which need scales of tokens. */
    c = call_of(QN_DTYPE_Q1_0, 2, QN_DTYPE_F32, QN_DTYPE_F32);
    c.workspace = address((6 << 20) + 16);
    assert_ok(matmul(&c));
    expect_launch(1, 2, "qn_matmul_gemm_few", 2, 1, true);
    q = arguments(0, 2);
    assert_int_equal(q->weight, 0);
    assert_int_equal(q->scale, q->out + 2 * 2 * QN_GEMM_TILE_N / 8 * QN_ACTS_HILO_BYTES);
    const qn_matmul_few_args *few = arguments(1, 2);
    assert_int_equal(few->weights, 128);
    assert_int_equal(few->acts, q->out);
    assert_int_equal(few->acts_scale, q->scale);
    assert_int_equal(few->sumsq, 0);
    /* Scales and sums of squares of four blocks of columns. */
    assert_true(few->slots == q->slots && q->slot_bytes >= QN_FEW_TILE_M * 4 * sizeof(float) &&
                few->slots >= few->acts_scale + 2 * 4 * QN_GEMM_TILE_N * sizeof(float));
    assert_true(few->slots % 256 == 0 && few->first_parts >= few->slots + q->slot_bytes);
    assert_true(few->n_tiles == 4 && few->n_tokens == 2 && few->capacity == QN_GEMM_TILE_N && few->n_outs == 2);
    assert_int_equal(few->out_dtype, QN_DTYPE_F32);
    assert_memory_equal(few->outs, o, sizeof few->outs);
}

TEST(types)
{
    struct call c = call_of(QN_DTYPE_Q8_0, 3, QN_DTYPE_BF16, QN_DTYPE_F16);
    c.acts.op = QN_CUDA_MATMUL_SWIGLU;
    c.acts.x.stride = c.acts.up.stride = COLS + 1;
    c.outs[0].y.data = address((3 << 20) + 2); /* elements are all that is aligned */
    c.acts.up.data = address((1 << 20) + 2);
    assert_ok(matmul(&c));
    const qn_matmul_quantize_acts_args *q = arguments(0, 2);
    assert_true(q->is_bf16 && q->x2 == (1 << 20) + 2 && q->stride == COLS + 1);
    assert_int_equal(((const qn_matmul_gemv_args *)arguments(1, 2))->out_dtype, QN_DTYPE_F16);
    c = call_of(QN_DTYPE_Q2_0, TOKENS, QN_DTYPE_F16, QN_DTYPE_BF16);
    assert_ok(matmul(&c));
    assert_false(((const qn_matmul_quantize_acts_args *)arguments(0, 2))->is_bf16);
    assert_int_equal(((const qn_matmul_few_args *)arguments_of("qn_matmul_gemm_few", 1, 2))->out_dtype, QN_DTYPE_BF16);
    c = call_of(QN_DTYPE_Q4_0, TOKENS, QN_DTYPE_F16, QN_DTYPE_BF16);
    assert_ok(matmul(&c));
    assert_int_equal(((const qn_matmul_gemm_args *)arguments_of("qn_matmul_gemm", 1, 2))->out_dtype, QN_DTYPE_BF16);
    close_kernels();
    /* The kernel for 16-bit rows is another one. */
    open_with("-DQN_16BIT");
    c = call_of(QN_DTYPE_Q8_0, 1, QN_DTYPE_F32, QN_DTYPE_F32);
    refused(matmul(&c), "quantize_acts");
    c = call_of(QN_DTYPE_Q8_0, 1, QN_DTYPE_F16, QN_DTYPE_F32);
    refused(matmul(&c), "gemv");
}

/* More tokens than a pass has: the same workspace again, inputs and outputs further on. */
TEST(passes)
{
    enum { PASS = 32768, LAST = 5 };
    struct call c = call_of(QN_DTYPE_Q1_0, PASS + LAST, QN_DTYPE_F16, QN_DTYPE_BF16);
    size_t pass, all;
    assert_ok(qn_cuda_matmul_workspace(kernels, &c.weights, &c.acts, &all));
    c.acts.n_tokens = PASS;
    assert_ok(qn_cuda_matmul_workspace(kernels, &c.weights, &c.acts, &pass));
    assert_int_equal(all, pass);
    c.acts.n_tokens = PASS + LAST;
    c.bytes = all;
    assert_ok(matmul(&c));
    assert_int_equal(fake.launches, 4);
    const qn_matmul_quantize_acts_args *first = arguments(0, 4), *last = arguments(2, 4);
    assert_true(first->n_tokens == PASS && last->n_tokens == LAST && last->out == first->out);
    assert_int_equal(last->x, 4096 + (size_t)PASS * COLS * 2);
    expect_launch(1, 4, "qn_matmul_gemm", launched(1, 4)->grid[0], launched(1, 4)->grid[1], true);
    expect_launch(3, 4, "qn_matmul_gemm", 1, launched(3, 4)->grid[1], true); /* the activations of all passes are fp16
                                                                              */
    const qn_matmul_gemm_args *g = arguments(3, 4);
    assert_int_equal(g->outs[0].data, (3 << 20) + (size_t)PASS * ROWS * 2);
    assert_int_equal(g->outs[1].data, (4 << 20) + (size_t)PASS * 100 * 2);
    assert_int_equal(g->n_tokens, LAST);
}

TEST(captures)
{
    struct call c = call_of(QN_DTYPE_PQ2_0, TOKENS, QN_DTYPE_BF16, QN_DTYPE_BF16);
    fake.capturing = true;
    refused(matmul(&c), "the stream is captured");
    refused(pack(&c, 0), "the stream is captured");
    fake.capturing = false;
    assert_ok(qn_cuda_matmul_prepare(kernels, &c.weights, &c.acts));
    assert_int_equal(fake.launches, 0);
    fake.capturing = true;
    assert_ok(pack(&c, 0));
    assert_ok(matmul(&c));
    assert_int_equal(fake.launches, 3);
    c.acts.n_tokens = 1; /* another kernel */
    refused(matmul(&c), "the stream is captured");
    /* The last pass has other kernels: none of them is queued. */
    fake.capturing = false;
    c.acts.n_tokens = 32768;
    assert_ok(qn_cuda_matmul_prepare(kernels, &c.weights, &c.acts));
    fake.capturing = true;
    c.acts.n_tokens = 32768 + 5;
    refused(matmul(&c), "the stream is captured");
}

TEST(no_tokens)
{
    struct call c = call_of(QN_DTYPE_Q1_0, 0, QN_DTYPE_F32, QN_DTYPE_F32);
    size_t bytes = 1;
    assert_ok(qn_cuda_matmul_workspace(kernels, &c.weights, &c.acts, &bytes));
    assert_int_equal(bytes, 0);
    c.workspace = NULL;
    c.acts.x.data = NULL;
    c.acts.x.count = 0;
    assert_ok(matmul(&c));
    assert_ok(qn_cuda_matmul_prepare(kernels, &c.weights, &c.acts));
    assert_int_equal(fake.launches, 0);
}

/* ---- Refusals of a call ---- */

#define refused_change(function, change, text) refused_with(function, valid, change, text)

TEST(acts)
{
    struct call valid = call_of(QN_DTYPE_Q4_0, TOKENS, QN_DTYPE_F32, QN_DTYPE_BF16);
    struct call c = valid;
    c.acts.n_tokens = ((size_t)1 << 30) + 1;
    refused(matmul(&c), "n_tokens: 1073741825");
    c = valid;
    c.acts.op = (qn_cuda_matmul_op)3;
    refused(matmul(&c), "op: 3, expected 0 to 2");
    refused(qn_cuda_matmul_prepare(kernels, &c.weights, &c.acts), "op: 3");
    c = valid;
    c.acts.x.dtype = QN_DTYPE_I32;
    refused(matmul(&c), "x: data type 26, expected 0 (f32), 1 (f16) or 30 (bf16)");
    refused(qn_cuda_matmul_prepare(kernels, &c.weights, &c.acts), "x: data type 26");
    c = valid;
    c.acts.x.stride = COLS - 1;
    refused(matmul(&c), "x: rows are 511 elements apart, expected 512");
    c.acts.x.stride = COLS + 1;
    c.acts.x.count = 16 * (COLS + 1) + COLS - 1;
    refused(matmul(&c), "x: 8719 elements, expected at least 8720");
    refused_change(matmul, acts.x.data = address(4098), "x: address 0x1002, expected a multiple of 4");
    c = valid;
    c.acts.op = QN_CUDA_MATMUL_RMS_NORM;
    c.acts.weight.count--;
    refused(matmul(&c), "weight: 511 elements, expected at least 512");
    c.acts.weight.count++;
    c.acts.weight.dtype = QN_DTYPE_BF16;
    refused(matmul(&c), "weight: data type 30, expected 0");
    c.acts.weight.dtype = QN_DTYPE_F32;
    c.acts.eps = 0;
    refused(matmul(&c), "eps: 0, expected finite and more than 0");
    c.acts.eps = INFINITY;
    refused(matmul(&c), "eps: inf");
    c = valid;
    c.acts.op = QN_CUDA_MATMUL_SWIGLU;
    c.acts.up.dtype = QN_DTYPE_F16;
    refused(matmul(&c), "up: data type 1, expected 0");
    c.acts.up.dtype = QN_DTYPE_F32;
    c.acts.up.stride = COLS + 4;
    refused(matmul(&c), "up: rows are 516 elements apart, expected 512 as those of x");
    refused(qn_cuda_matmul(kernels, &valid.weights, NULL, valid.outs, valid.workspace, valid.bytes, NULL),
            "acts: NULL");
    refused_with(matmul, valid, kernels = NULL, "kernels: NULL");
}

TEST(outputs)
{
    struct call valid = call_of(QN_DTYPE_Q4_0, TOKENS, QN_DTYPE_F32, QN_DTYPE_BF16);
    struct call c = valid;
    c.outs[0].y.dtype = QN_DTYPE_Q8_0;
    refused(matmul(&c), "outs[0]: data type 8, expected 0 (f32)");
    refused_change(matmul, outs[1].y.dtype = QN_DTYPE_F32, "outs[1]: data type 0, expected 30");
    refused_change(matmul, outs[1].y.stride = 15, "outs[1]: rows are 15 elements apart, expected 16");
    refused_change(matmul, outs[0].y.count = TOKENS * ROWS - 1, "outs[0]: 679 elements, expected at least 680");
    c = valid;
    c.outs[0].y.data = address((3 << 20) + 1);
    refused(matmul(&c), "outs[0]: address 0x300001, expected a multiple of 2");
    refused(qn_cuda_matmul(kernels, &valid.weights, &valid.acts, NULL, valid.workspace, valid.bytes, NULL),
            "outs: NULL");
    size_t bytes;
    assert_ok(qn_cuda_matmul_workspace(kernels, &valid.weights, &valid.acts, &bytes));
    c = valid;
    c.bytes = bytes - 1;
    refused(matmul(&c), "workspace: ");
    c.bytes = bytes;
    c.workspace = address((6 << 20) + 8);
    refused(matmul(&c), "workspace: address");
    c.workspace = address((6 << 20) + 1024 + 16); /* the most that is lost by alignment */
    assert_ok(matmul(&c));
    const qn_matmul_quantize_acts_args *q = arguments(0, 2);
    assert_int_equal(q->out % 1024, 0);
    assert_true(q->out + (q->scale - q->out) + QN_GEMM_TILE_N * sizeof(float) <= (6 << 20) + 1024 + 16 + bytes);
    c.weights.bytes = 1;
    refused(matmul(&c), "packed: 1 bytes");
    refused(qn_cuda_matmul_workspace(kernels, &valid.weights, &valid.acts, NULL), "bytes: NULL");
    refused(qn_cuda_matmul_workspace(NULL, &valid.weights, &valid.acts, &bytes), "kernels: NULL");
}
