/* Operations on rows, the convolution and the Hadamard transform of quern/cuda.h on a fake driver: what is refused, and
 * which launches are queued with which arguments. The results are checked by quern-check, on a device. */
#include "helper_cuda_api.h"

#include "cuda/kernels/conv/conv.h"
#include "cuda/kernels/elementwise/elementwise.h"
#include "cuda/kernels/hadamard/hadamard.h"
#include "cuda/kernels/norm/norm.h"
#include "cuda/kernels/sample/argmax.h"

#include <math.h>

static size_t args_bytes(const char *function)
{
    return !strncmp(function, "qn_norm_views", 13)            ? sizeof(qn_norm_views_args)
           : !strcmp(function, "qn_elementwise_swiglu_views") ? sizeof(qn_elementwise_swiglu_views_args)
           : !strcmp(function, "qn_argmax_rows")              ? sizeof(qn_argmax_rows_args)
           : !strncmp(function, "qn_conv", 7)                 ? sizeof(qn_conv_args)
           : !strcmp(function, "qn_hadamard_tiles")           ? sizeof(qn_hadamard_tiles_args)
                                                              : sizeof(qn_hadamard_cross_args);
}

static int open_kernels(void)
{
    static const qn_gpu_cubin cubins[] = { FAKE_CUBIN("norm/norm_views.cu", ""),
                                           FAKE_CUBIN("elementwise/elementwise.cu", ""),
                                           FAKE_CUBIN("sample/argmax.cu", ""),
                                           FAKE_CUBIN("conv/conv.cu", "-DQN_CHANNELS=8"),
                                           FAKE_CUBIN("conv/conv.cu", "-DQN_CHANNELS=1"),
                                           FAKE_CUBIN("hadamard/hadamard.cu", "") };
    open_fake_kernels(cubins, COUNT(cubins));
    fake.args_bytes = args_bytes;
    return 0;
}

TEST_EVERY(open_kernels, close_kernels)

static const size_t many = (size_t)1 << 40;

static qn_cuda_view view(size_t at, qn_dtype dtype)
{
    return (qn_cuda_view){ address(at), dtype, many, 0 };
}

static qn_cuda_view strided(size_t at, qn_dtype dtype, size_t stride)
{
    return (qn_cuda_view){ address(at), dtype, many, stride };
}

static const qn_cuda_view none = { 0 };

/* ---- Norms ---- */

TEST(norms)
{
    const qn_cuda_view weight = view(4096, QN_DTYPE_F32);
    assert_ok(qn_cuda_rms_norm(kernels, strided(16, QN_DTYPE_BF16, 136), weight, 9, 128, 1e-5f, view(32, QN_DTYPE_BF16),
                               NULL));
    const qn_norm_views_args *a = expect_launch(0, 1, "qn_norm_views_by_warps", 2, 1, true);
    assert_true(a->x == 16 && a->weight == 4096 && a->y == 32 && a->x_stride == 136 && a->y_stride == 128);
    assert_true(a->n_rows == 9 && a->n == 128 && a->op == QN_NORM_RMS && a->dtype == QN_DTYPE_BF16 && a->eps == 1e-5f);
    assert_true(a->is_aligned);
    assert_ok(qn_cuda_gated_rms_norm(kernels, view(16, QN_DTYPE_F32), strided(36, QN_DTYPE_F32, 2000), weight, 3, 1025,
                                     1e-5f, view(16, QN_DTYPE_F32), NULL));
    a = expect_launch(0, 1, "qn_norm_views_by_blocks", 3, 1, true);
    assert_true(a->gate == 36 && a->gate_stride == 2000 && a->op == QN_NORM_GATED && !a->is_aligned);
    assert_ok(qn_cuda_l2_norm(kernels, view(16, QN_DTYPE_F16), 1, 1024, 1e-6f, view(16, QN_DTYPE_F16), NULL));
    a = expect_launch(0, 1, "qn_norm_views_by_warps", 1, 1, true);
    assert_true(a->op == QN_NORM_L2 && a->weight == 0 && a->dtype == QN_DTYPE_F16);
    /* Rows of 127 of fp16 do not begin at multiples of 16 bytes. */
    assert_ok(qn_cuda_l2_norm(kernels, view(16, QN_DTYPE_F16), 2, 127, 1e-6f, view(16, QN_DTYPE_F16), NULL));
    assert_false(((const qn_norm_views_args *)arguments(0, 1))->is_aligned);
    const int launches = fake.launches;
    assert_ok(qn_cuda_l2_norm(kernels, view(16, QN_DTYPE_F16), 0, 128, 1e-6f, view(16, QN_DTYPE_F16), NULL));
    assert_ok(qn_cuda_rms_norm(kernels, view(16, QN_DTYPE_F16), weight, 5, 0, 1e-6f, view(16, QN_DTYPE_F16), NULL));
    assert_int_equal(fake.launches, launches);
}

TEST(norms_refuse)
{
    const qn_cuda_view x = view(16, QN_DTYPE_F32), weight = view(4096, QN_DTYPE_F32);
    qn_cuda_view v = x;
    refused(qn_cuda_rms_norm(NULL, x, weight, 2, 8, 1e-5f, x, NULL), "kernels: NULL");
    v.dtype = QN_DTYPE_Q8_0;
    refused(qn_cuda_rms_norm(kernels, v, weight, 2, 8, 1e-5f, v, NULL),
            "x: data type 8, expected 0 (f32), 1 (f16) or 30 (bf16)");
    refused(qn_cuda_rms_norm(kernels, x, weight, 2, 8, 0, x, NULL), "eps: 0, expected finite and more than 0");
    refused(qn_cuda_l2_norm(kernels, x, 2, 8, NAN, x, NULL), "eps: ");
    refused(qn_cuda_l2_norm(kernels, x, 2, 8, INFINITY, x, NULL), "eps: inf");
    refused(qn_cuda_l2_norm(kernels, x, (size_t)1 << 31, 8, 1, x, NULL), "2147483648 rows of 8");
    refused(qn_cuda_l2_norm(kernels, x, 1, (size_t)1 << 31, 1, x, NULL), "1 rows of 2147483648");
    v = x;
    v.count = 15;
    refused(qn_cuda_rms_norm(kernels, v, weight, 2, 8, 1e-5f, x, NULL), "x: 15 elements, expected at least 16");
    refused(qn_cuda_rms_norm(kernels, x, weight, 2, 8, 1e-5f, v, NULL), "out: 15 elements, expected at least 16");
    refused(qn_cuda_gated_rms_norm(kernels, x, v, weight, 2, 8, 1e-5f, x, NULL), "gate: 15 elements");
    v = x;
    v.stride = 7;
    refused(qn_cuda_l2_norm(kernels, v, 2, 8, 1e-5f, x, NULL), "x: rows are 7 elements apart, expected 8");
    v = x;
    v.dtype = QN_DTYPE_F16;
    refused(qn_cuda_l2_norm(kernels, x, 2, 8, 1e-5f, v, NULL), "out: data type 1, expected 0");
    refused(qn_cuda_gated_rms_norm(kernels, x, v, weight, 2, 8, 1e-5f, x, NULL), "gate: data type 1, expected 0");
    v = x;
    v.data = address(18);
    refused(qn_cuda_l2_norm(kernels, v, 2, 8, 1e-5f, x, NULL), "x: address 0x12, expected a multiple of 4");
    v = weight;
    v.count = 7;
    refused(qn_cuda_rms_norm(kernels, x, v, 2, 8, 1e-5f, x, NULL), "weight: 7 elements, expected at least 8");
    v = weight;
    v.dtype = QN_DTYPE_BF16;
    refused(qn_cuda_rms_norm(kernels, x, v, 2, 8, 1e-5f, x, NULL), "weight: data type 30, expected 0");
    v = weight;
    v.data = address(4100);
    refused(qn_cuda_rms_norm(kernels, x, v, 2, 8, 1e-5f, x, NULL), "weight: address 0x1004, expected a multiple of 16");
}

/* ---- SwiGLU, argmax ---- */

TEST(swiglu)
{
    const qn_cuda_view x = view(16, QN_DTYPE_F16);
    assert_ok(qn_cuda_swiglu(kernels, strided(16, QN_DTYPE_F16, 6000), strided(48, QN_DTYPE_F16, 6008), 7, 3000,
                             strided(64, QN_DTYPE_F16, 3008), NULL));
    const qn_elementwise_swiglu_views_args *a = expect_launch(0, 1, "qn_elementwise_swiglu_views", 7, 2, true);
    assert_true(a->gate == 16 && a->up == 48 && a->y == 64 && a->gate_stride == 6000 && a->up_stride == 6008);
    assert_true(a->y_stride == 3008 && a->n == 3000 && a->dtype == QN_DTYPE_F16 && a->is_aligned);
    qn_cuda_view v = view(16, QN_DTYPE_BF16);
    refused(qn_cuda_swiglu(kernels, x, v, 2, 8, x, NULL), "up: data type 30, expected 1");
    refused(qn_cuda_swiglu(kernels, x, x, 2, 8, v, NULL), "out: data type 30, expected 1");
    v = x;
    v.data = NULL;
    refused(qn_cuda_swiglu(kernels, v, x, 2, 8, x, NULL), "gate: NULL, expected 16 elements");
    refused(qn_cuda_swiglu(kernels, x, x, 2, 134215681, x, NULL), "2 rows of 134215681");
    refused(qn_cuda_swiglu(kernels, view(16, QN_DTYPE_I64), x, 2, 8, x, NULL), "gate: data type 27");
    refused(qn_cuda_swiglu(NULL, x, x, 2, 8, x, NULL), "kernels: NULL");
    const int launches = fake.launches;
    assert_ok(qn_cuda_swiglu(kernels, x, x, 0, 8, x, NULL));
    assert_int_equal(fake.launches, launches);
}

TEST(argmax)
{
    const qn_cuda_view x = view(16, QN_DTYPE_BF16), index = view(32, QN_DTYPE_I64);
    assert_ok(qn_cuda_argmax(kernels, strided(18, QN_DTYPE_BF16, 152), 4, 151, index, NULL));
    const qn_argmax_rows_args *a = expect_launch(0, 1, "qn_argmax_rows", 4, 1, true);
    assert_true(a->x == 18 && a->index == 32 && a->stride == 152 && a->n == 151 && a->is_wide && !a->is_aligned);
    assert_ok(qn_cuda_argmax(kernels, x, 4, 152, view(32, QN_DTYPE_I32), NULL));
    a = arguments(0, 1);
    assert_true(!a->is_wide && a->is_aligned);
    refused(qn_cuda_argmax(kernels, x, 4, 0, index, NULL), "logits: 0 elements in a row, expected at least 1");
    refused(qn_cuda_argmax(kernels, x, 4, 8, view(32, QN_DTYPE_U32), NULL),
            "index: data type 1000, expected 26 (i32) or 27 (i64)");
    qn_cuda_view v = index;
    v.count = 3;
    refused(qn_cuda_argmax(kernels, x, 4, 8, v, NULL), "index: 3 elements, expected at least 4");
    v = x;
    v.count = 31;
    refused(qn_cuda_argmax(kernels, v, 4, 8, index, NULL), "logits: 31 elements, expected at least 32");
    assert_ok(qn_cuda_argmax(kernels, x, 0, 0, index, NULL));
}

/* ---- Convolution ---- */

struct conv {
    qn_cuda_kernels *kernels;
    qn_cuda_conv_shape shape;
    qn_cuda_view x, weights, bias, initial, final, y;
};

static struct conv conv_of(qn_dtype dtype)
{
    return (struct conv){ .kernels = kernels,
                          .shape = { .batch = 2, .tokens = 100, .channels = 2048, .taps = 4 },
                          .x = strided(1 << 20, dtype, 4096),
                          .weights = view(2 << 20, QN_DTYPE_F32),
                          .bias = view(3 << 20, QN_DTYPE_F32),
                          .initial = view(4 << 20, dtype),
                          .final = strided(5 << 20, dtype, 8192),
                          .y = view(6 << 20, dtype) };
}

static qn_status scan(const struct conv *c)
{
    return qn_cuda_conv_scan(c->kernels, &c->shape, c->x, c->weights, c->bias, c->initial, c->final, c->y, NULL);
}

static qn_status step(const struct conv *c)
{
    return qn_cuda_conv_step(c->kernels, &c->shape, c->x, c->weights, c->bias, c->initial, c->y, NULL);
}

TEST(scans)
{
    struct conv c = conv_of(QN_DTYPE_BF16);
    assert_ok(scan(&c));
    expect_launch(0, 2, "qn_conv_scan", 25, 2, true); /* few tokens: few for each block */
    expect_launch(1, 2, "qn_conv_final", 2, 2, true);
    const qn_conv_args *a = arguments(0, 2);
    assert_true(a->x == 1 << 20 && a->weights == 2 << 20 && a->bias == 3 << 20 && a->initial == 4 << 20);
    assert_true(a->final == 5 << 20 && a->y == 6 << 20 && a->x_stride == 4096 && a->y_stride == 2048);
    assert_true(a->initial_stride == 3 * 2048 && a->final_stride == 8192 && a->block_tokens == 8);
    assert_true(a->rows == 200 && a->tokens == 100 && a->sequences == 2 && a->channels == 2048 && a->taps == 4 &&
                a->silu);
    assert_true(!a->cu_seqlens && !a->state_indices && a->dtype == QN_DTYPE_BF16);
    c.shape.tokens = 1 << 20;
    assert_ok(scan(&c));
    expect_launch(0, 2, "qn_conv_scan", (2 << 20) / 64, 2, true);
    /* Sequences of different lengths, states in a pool, without states at the end. */
    c = conv_of(QN_DTYPE_F32);
    c.shape = (qn_cuda_conv_shape){ .batch = 1,
                                    .tokens = 100,
                                    .channels = 2048,
                                    .taps = 7,
                                    .linear = true,
                                    .n_sequences = 3,
                                    .cu_seqlens = { address(64), QN_DTYPE_I64, 4, 0 },
                                    .state_indices = { address(128), QN_DTYPE_I32, 3, 0 } };
    c.final = none;
    c.initial.count = 6 * 2048; /* one state is enough */
    assert_ok(scan(&c));
    a = expect_launch(0, 1, "qn_conv_scan_long", 13, 2, true);
    assert_true(a->cu_seqlens == 64 && a->wide_seqlens && a->state_indices == 128 && a->sequences == 3 && !a->silu &&
                !a->final);
    /* One channel a thread: a block has an eighth of the channels. */
    c = conv_of(QN_DTYPE_F16);
    c.x.data = address((1 << 20) + 2);
    assert_ok(scan(&c));
    assert_int_equal(launched(0, 2)->grid[1], 16);
    c = conv_of(QN_DTYPE_F16);
    c.final.stride = 8194;
    assert_ok(scan(&c));
    assert_int_equal(launched(1, 2)->grid[1], 16);
    c = conv_of(QN_DTYPE_F16);
    c.shape.channels = 2047;
    assert_ok(scan(&c));
    assert_int_equal(launched(0, 2)->grid[1], 16);
    /* Without tokens the state is copied; without states there is nothing to do. */
    const int launches = fake.launches;
    c = conv_of(QN_DTYPE_F16);
    c.shape.tokens = 0;
    assert_ok(scan(&c));
    expect_launch(0, 1, "qn_conv_final", 2, 2, true);
    c.final = none;
    assert_ok(scan(&c));
    assert_int_equal(fake.launches, launches + 1);
}

TEST(steps)
{
    struct conv c = conv_of(QN_DTYPE_BF16);
    c.shape.tokens = 1;
    c.shape.state_indices = (qn_cuda_view){ address(128), QN_DTYPE_I32, 2, 0 };
    c.initial.stride = 10000;
    assert_ok(step(&c));
    const qn_conv_args *a = expect_launch(0, 1, "qn_conv_step", 2, 2, true);
    assert_true(a->initial == 4 << 20 && a->initial_stride == 10000 && a->state_indices == 128 && a->sequences == 2);
    c.shape.tokens = 2;
    refused(step(&c), "tokens, n_sequences: 2, 0, expected 1 and 0");
    c.shape = (qn_cuda_conv_shape){ .batch = 1,
                                    .tokens = 1,
                                    .channels = 8,
                                    .taps = 2,
                                    .n_sequences = 1,
                                    .cu_seqlens = { address(64), QN_DTYPE_U32, 2, 0 } };
    refused(step(&c), "tokens, n_sequences: 1, 1, expected 1 and 0");
    c = conv_of(QN_DTYPE_BF16);
    c.shape.tokens = 1;
    c.initial = none;
    refused(step(&c), "state: data type 0, expected 30");
    c.shape.taps = 1;
    c.initial.dtype = QN_DTYPE_BF16;
    assert_ok(step(&c)); /* a state of no rows */
    c.shape.batch = 0;
    const int launches = fake.launches;
    assert_ok(step(&c));
    assert_int_equal(fake.launches, launches);
}

static void refuses_both(const struct conv *c, const char *text)
{
    refused(scan(c), text);
    refused(step(c), text);
}

#define refused_change(change, text)                                                                                   \
    do {                                                                                                               \
        refused_with(scan, conv_of(QN_DTYPE_F16), change, text);                                                       \
        refused_with(step, conv_of(QN_DTYPE_F16), change, text);                                                       \
    } while (0)

TEST(conv_refuses)
{
    struct conv c = conv_of(QN_DTYPE_F16);
    refused(qn_cuda_conv_scan(kernels, NULL, c.x, c.weights, c.bias, c.initial, c.final, c.y, NULL), "shape: NULL");
    refused_change(kernels = NULL, "kernels: NULL");
    c.shape.channels = 0;
    refuses_both(&c, "channels: 0, expected 1 to 8388480");
    c.shape.channels = 8388481;
    refuses_both(&c, "channels: 8388481");
    c = conv_of(QN_DTYPE_F16);
    c.shape.taps = 8;
    refuses_both(&c, "taps: 8, expected 1 to 7 with a bias");
    c.bias = none;
    c.shape.taps = 9;
    refuses_both(&c, "taps: 9, expected 1 to 8");
    c.shape.taps = 0;
    refuses_both(&c, "taps: 0");
    c = conv_of(QN_DTYPE_F16);
    c.shape.tokens = (size_t)1 << 30;
    refuses_both(&c, "2 sequences of 1073741824 tokens");
    c.shape.tokens = SIZE_MAX;
    refuses_both(&c, "2 sequences of");
    c.shape.tokens = 0;
    c.shape.batch = INT32_MAX;
    refuses_both(&c, "2147483647 sequences, expected less");
    refused_change(x.dtype = QN_DTYPE_U32, "x: data type 1000");
    refused_change(y.dtype = QN_DTYPE_F32, "y: data type 0, expected 1");
    refused_change(weights.count = 8191, "weights: 8191 elements, expected at least 8192");
    refused_change(weights.dtype = QN_DTYPE_F16, "weights: data type 1, expected 0");
    refused_change(bias.count = 2047, "bias: 2047 elements");
    c = conv_of(QN_DTYPE_F16);
    c.shape.state_indices = (qn_cuda_view){ address(128), QN_DTYPE_I32, 1, 0 };
    refuses_both(&c, "state_indices: 1 elements, expected at least 2");
    c = conv_of(QN_DTYPE_F16);
    c.shape.n_sequences = 2;
    refuses_both(&c, "batch: 2, expected 1 with cu_seqlens");
    c.shape.batch = 1;
    refuses_both(&c, "cu_seqlens: data type 0");
    c.shape.cu_seqlens = (qn_cuda_view){ address(64), QN_DTYPE_I32, 2, 0 };
    refuses_both(&c, "cu_seqlens: 2 elements, expected at least 3");
    c = conv_of(QN_DTYPE_F16);
    c.shape.tokens = 1;
    c.initial.count = 2 * 3 * 2048 - 1;
    refused(scan(&c), "initial: 12287 elements, expected at least 12288");
    refused(step(&c), "state: 12287 elements, expected at least 12288");
    c = conv_of(QN_DTYPE_F16);
    c.final.dtype = QN_DTYPE_F32;
    refused(scan(&c), "final: data type 0, expected 1");
    c.final = strided(5 << 20, QN_DTYPE_F16, 6143);
    refused(scan(&c), "final: rows are 6143 elements apart, expected 6144");
}

/* ---- Hadamard transform ---- */

TEST(hadamard)
{
    const qn_cuda_view x = view(4096, QN_DTYPE_F32), signs = view(64, QN_DTYPE_F32);
    assert_ok(qn_cuda_hadamard(kernels, x, signs, 3, 1024, 128, QN_HADAMARD_SIGN_FIRST, NULL));
    const qn_hadamard_tiles_args *t = expect_launch(0, 1, "qn_hadamard_tiles", 2, 1, false);
    assert_true(t->x == 4096 && t->y == 4096 && t->signs_before == 64 && !t->signs_after && t->n == 128 &&
                t->n_signs == 1024);
    assert_int_equal(t->n_values, 3072);
    assert_ok(qn_cuda_hadamard(kernels, x, signs, 3, 8192, 4096, QN_HADAMARD_SIGN_LAST, NULL));
    expect_launch(0, 2, "qn_hadamard_tiles", 12, 1, false);
    const qn_hadamard_cross_args *c = expect_launch(1, 2, "qn_hadamard_cross", 16, 6, false);
    assert_true(c->y == 4096 && c->signs_after == 64 && c->n == 4096);
    assert_ok(qn_cuda_hadamard(kernels, x, none, 3, 64, 64, QN_HADAMARD_SIGN_LAST, NULL));
    t = arguments(0, 1);
    assert_true(!t->signs_before && !t->signs_after);
    /* Rows with gaps are rows of the grid. */
    assert_ok(qn_cuda_hadamard(kernels, strided(4096, QN_DTYPE_F32, 8196), signs, 3, 8192, 4096, QN_HADAMARD_SIGN_LAST,
                               NULL));
    expect_launch(0, 2, "qn_hadamard_tiles", 4, 3, false);
    expect_launch(1, 2, "qn_hadamard_cross", 16, 2, false);
    assert_int_equal(launched(1, 2)->grid[2], 3);
    t = arguments(0, 2);
    c = arguments(1, 2);
    assert_true(t->stride == 8196 && c->stride == 8196 && t->n_values == 8192);
    const qn_hadamard_order last = QN_HADAMARD_SIGN_LAST;
    refused(qn_cuda_hadamard(NULL, x, none, 3, 64, 64, last, NULL), "kernels: NULL");
    refused(qn_cuda_hadamard(kernels, x, none, 3, 64, 48, last, NULL),
            "block: 48, expected a power of two of 1 to 65536");
    refused(qn_cuda_hadamard(kernels, x, none, 3, 1 << 17, 1 << 17, last, NULL), "block: 131072");
    refused(qn_cuda_hadamard(kernels, x, none, 3, 64, 0, last, NULL), "block: 0");
    refused(qn_cuda_hadamard(kernels, x, none, 3, 96, 64, last, NULL),
            "width: 96, expected a multiple of the block 64");
    refused(qn_cuda_hadamard(kernels, x, none, 3, 64, 64, (qn_hadamard_order)7, NULL), "order: 7");
    refused(qn_cuda_hadamard(kernels, strided(4096, QN_DTYPE_F32, 70), none, 3, 64, 64, last, NULL),
            "x: 3 rows that are 70 elements apart, expected a multiple of 4");
    refused(qn_cuda_hadamard(kernels, strided(4096, QN_DTYPE_F32, 72), none, 65536, 64, 64, last, NULL),
            "x: 65536 rows");
    refused(qn_cuda_hadamard(kernels, view(4096, QN_DTYPE_F16), none, 3, 64, 64, last, NULL),
            "x: data type 1, expected 0");
    refused(qn_cuda_hadamard(kernels, x, (qn_cuda_view){ address(64), QN_DTYPE_F32, 63, 0 }, 3, 64, 64, last, NULL),
            "signs: 63 elements, expected at least 64");
    refused(qn_cuda_hadamard(kernels, x, none, 65536, 4096, 4096, last, NULL), "exceed the limits of one launch");
    refused(qn_cuda_hadamard(kernels, x, none, SIZE_MAX, 64, 64, last, NULL), "do not fit in memory");
    const int launches = fake.launches;
    assert_ok(qn_cuda_hadamard(kernels, x, none, 0, 64, 64, last, NULL));
    assert_ok(qn_cuda_hadamard(kernels, x, none, 3, 0, 64, last, NULL));
    assert_int_equal(fake.launches, launches);
}

/* All functions can be captured after the functions that prepare them, and none before. */
TEST(captures)
{
    const qn_cuda_view x = view(4096, QN_DTYPE_F32);
    struct conv c[4] = { conv_of(QN_DTYPE_F16), conv_of(QN_DTYPE_F16), conv_of(QN_DTYPE_F32), conv_of(QN_DTYPE_BF16) };
    c[1].shape.channels = 2041;
    c[2].shape.taps = 6;
    c[2].final.stride = 0;
    c[3].shape.taps = 5;
    c[3].shape.channels = 1;
    fake.capturing = true;
    refused(qn_cuda_l2_norm(kernels, x, 2, 8, 1, x, NULL), "the stream is captured");
    refused(scan(&c[0]), "the stream is captured");
    refused(qn_cuda_hadamard(kernels, x, none, 2, 8, 8, QN_HADAMARD_SIGN_LAST, NULL), "the stream is captured");
    fake.capturing = false;
    assert_ok(qn_cuda_rows_prepare(kernels));
    assert_ok(qn_cuda_conv_prepare(kernels));
    assert_ok(qn_cuda_hadamard_prepare(kernels));
    assert_int_equal(fake.launches, 0);
    fake.capturing = true;
    assert_ok(qn_cuda_l2_norm(kernels, x, 2, 8, 1, x, NULL));
    assert_ok(qn_cuda_rms_norm(kernels, x, x, 2, 2000, 1, x, NULL));
    assert_ok(qn_cuda_swiglu(kernels, x, x, 2, 8, x, NULL));
    assert_ok(qn_cuda_argmax(kernels, x, 2, 8, view(64, QN_DTYPE_I32), NULL));
    assert_ok(qn_cuda_hadamard(kernels, x, none, 2, 4096, 4096, QN_HADAMARD_SIGN_LAST, NULL));
    for (size_t i = 0; i < 4; i++) {
        assert_ok(scan(&c[i]));
        c[i].shape.tokens = 1;
        assert_ok(step(&c[i]));
    }
    assert_int_equal(fake.launches, 6 + 4 * 3);
    refused(qn_cuda_rows_prepare(NULL), "kernels: NULL");
    refused(qn_cuda_conv_prepare(NULL), "kernels: NULL");
    refused(qn_cuda_hadamard_prepare(NULL), "kernels: NULL");
}
