/* The stages of Gated DeltaNet of quern/cuda.h on a fake driver: which launches are queued with which arguments, and
 * what is refused. The results are checked by quern-check, on a device. */
#include "helper_cuda_api.h"

#include "cuda/kernels/deltanet/stages.h"

enum { TOKENS = 200, HEADS_K = 2, HEADS_V = 6, KEY = 128, VALUE = 192, CHUNKS = 4, INDICES = TOKENS / 64 + 1 };

static size_t args_bytes(const char *function)
{
    (void)function;
    return sizeof(qn_gdn_stage_args);
}

static int open_kernels(void)
{
    static const qn_gpu_cubin cubins[] = {
        FAKE_CUBIN("deltanet/deltanet_stages.cu", "-DQN_HEAD_K=128"),
        FAKE_CUBIN("deltanet/deltanet_stages.cu", "-DQN_HEAD_K=128 -DQN_F16"),
        FAKE_CUBIN("deltanet/deltanet_state_pass.cu", "-DQN_HEAD_K=128 -DQN_GDN_STAGES=3"),
        FAKE_CUBIN("deltanet/deltanet_state_pass.cu", "-DQN_HEAD_K=128 -DQN_GDN_STAGES=3 -DQN_F16"),
    };
    open_fake_kernels(cubins, COUNT(cubins));
    fake.args_bytes = args_bytes;
    return 0;
}

TEST_EVERY(open_kernels, close_kernels)

static qn_cuda_gdn_shape shape_of(void)
{
    return (qn_cuda_gdn_shape){ .batch = 1,
                                .tokens = TOKENS,
                                .k_heads = HEADS_K,
                                .v_heads = HEADS_V,
                                .head_k = KEY,
                                .head_v = VALUE,
                                .scale = 0.1f };
}

/* Rows of tokens at an address. */
static qn_cuda_view rows(size_t at, qn_dtype dtype, size_t row)
{
    return (qn_cuda_view){ address(at), dtype, TOKENS * row, 0 };
}

static const qn_cuda_view none = { 0 };

/* The arguments of a valid call of every stage. */
struct views {
    qn_cuda_view q, k, v, g, beta, gc, a, inverse, w, u, v_new, h, initial, final, o;
};

static struct views views_of(qn_dtype d)
{
    const size_t keys = HEADS_K * KEY, values = HEADS_V * VALUE, state = values * KEY;
    return (struct views){ .q = rows(1 << 12, d, keys),
                           .k = rows(2 << 12, d, keys),
                           .v = rows(3 << 12, d, values),
                           .g = rows(4 << 12, QN_DTYPE_BF16, HEADS_V),
                           .beta = rows(5 << 12, QN_DTYPE_F16, HEADS_V),
                           .gc = rows(6 << 12, QN_DTYPE_F32, HEADS_V),
                           .a = rows(7 << 12, QN_DTYPE_F32, HEADS_V * 64),
                           .inverse = rows(8 << 12, QN_DTYPE_F32, HEADS_V * 64),
                           .w = rows(9 << 12, d, HEADS_V * KEY),
                           .u = rows(10 << 12, d, values),
                           .v_new = rows(11 << 12, d, values),
                           .h = { address(12 << 12), d, CHUNKS * state, 0 },
                           .initial = { address(13 << 12), QN_DTYPE_F32, state, 0 },
                           .final = { address(14 << 12), QN_DTYPE_F32, state, 0 },
                           .o = rows(15 << 12, d, values) };
}

/* ---- The stages ---- */

static qn_status cumsum(const qn_cuda_gdn_shape *s, const struct views *v)
{
    return qn_cuda_gdn_cumsum(kernels, s, v->g, v->gc, NULL);
}

static qn_status kkt(const qn_cuda_gdn_shape *s, const struct views *v)
{
    return qn_cuda_gdn_kkt(kernels, s, v->k, v->beta, v->gc, v->a, NULL);
}

static qn_status tril_inverse(const qn_cuda_gdn_shape *s, const struct views *v)
{
    return qn_cuda_gdn_tril_inverse(kernels, s, v->a, v->inverse, NULL);
}

static qn_status w_u(const qn_cuda_gdn_shape *s, const struct views *v)
{
    return qn_cuda_gdn_recompute_w_u(kernels, s, v->k, v->v, v->beta, v->gc, v->inverse, v->w, v->u, NULL);
}

static qn_status state_pass(const qn_cuda_gdn_shape *s, const struct views *v)
{
    return qn_cuda_gdn_state_pass(kernels, s, v->k, v->w, v->u, v->gc, v->initial, v->h, v->v_new, v->final, NULL);
}

static qn_status chunk_output(const qn_cuda_gdn_shape *s, const struct views *v)
{
    return qn_cuda_gdn_chunk_output(kernels, s, v->q, v->k, v->v_new, v->h, v->gc, v->o, NULL);
}

TEST(queues)
{
    const qn_cuda_gdn_shape s = shape_of();
    const struct views v = views_of(QN_DTYPE_BF16);
    assert_ok(cumsum(&s, &v));
    const qn_gdn_stage_args *a = expect_launch(0, 1, "qn_gdn_cumsum", INDICES, 1, true);
    assert_true(a->rule.g == 4 << 12 && a->gc == 6 << 12 && a->rule.g_dtype == QN_DTYPE_BF16 &&
                a->gc_stride == HEADS_V);
    assert_ok(kkt(&s, &v));
    a = expect_launch(0, 1, "qn_gdn_kkt", INDICES * HEADS_K, 1, true);
    assert_true(a->rule.k == 2 << 12 && a->rule.beta == 5 << 12 && a->a == 7 << 12 && a->a_stride == HEADS_V * 64);
    assert_ok(tril_inverse(&s, &v));
    a = expect_launch(0, 1, "qn_gdn_tril_inverse", INDICES * HEADS_V, 1, true);
    assert_true(a->a == 7 << 12 && a->inverse == 8 << 12);
    assert_ok(w_u(&s, &v));
    a = expect_launch(0, 1, "qn_gdn_recompute_w_u", INDICES * HEADS_V, 1, true);
    assert_true(a->rule.v == 3 << 12 && a->w == 9 << 12 && a->u == 10 << 12);
    assert_true(a->w_stride == HEADS_V * KEY && a->u_stride == HEADS_V * VALUE);
    assert_ok(state_pass(&s, &v));
    a = expect_launch(0, 1, "qn_gdn_state_pass", VALUE / 64, HEADS_V, true);
    assert_true(a->h == 12 << 12 && a->v_new == 11 << 12 && a->rule.initial == 13 << 12 && a->rule.final == 14 << 12);
    assert_ok(qn_cuda_gdn_state_pass(kernels, &s, v.k, v.w, v.u, v.gc, none, v.h, v.v_new, none, NULL));
    a = arguments(0, 1);
    assert_true(a->rule.initial == 0 && a->rule.final == 0);
    assert_ok(chunk_output(&s, &v));
    a = expect_launch(0, 1, "qn_gdn_chunk_output", INDICES * HEADS_V, 1, true);
    assert_true(a->rule.q == 1 << 12 && a->rule.o == 15 << 12 && a->rule.scale == 0.1f);
}

TEST(refuses_views)
{
    const qn_cuda_gdn_shape s = shape_of();
    struct views v = views_of(QN_DTYPE_BF16);
    v.g.dtype = QN_DTYPE_I32;
    refused(cumsum(&s, &v), "g: data type 26");
    v.gc.count--;
    refused(kkt(&s, &v), "gc: 1199 elements, expected at least 1200");
    v = views_of(QN_DTYPE_BF16);
    v.a.stride = HEADS_V * 64 + 2;
    v.a.count *= 2;
    refused(tril_inverse(&s, &v), "a: rows are 386 elements apart, expected a multiple of 4");
    v.a.stride = HEADS_V * 64 - 4;
    refused(kkt(&s, &v), "a: rows are 380 elements apart");
    v.w.dtype = QN_DTYPE_F16;
    refused(w_u(&s, &v), "w: data type 1, expected 30");
    v = views_of(QN_DTYPE_BF16);
    v.u.data = address(10008);
    refused(w_u(&s, &v), "u: address 0x2718");
    v = views_of(QN_DTYPE_BF16);
    v.h.count--;
    refused(state_pass(&s, &v), "h: 589823 elements");
    refused(chunk_output(&s, &v), "h: 589823 elements");
    v = views_of(QN_DTYPE_BF16);
    v.final.dtype = QN_DTYPE_BF16;
    refused(state_pass(&s, &v), "final: data type 30, expected 0");
    v.v_new.count = 1;
    refused(qn_cuda_gdn_state_pass(kernels, &s, v.k, v.w, v.u, v.gc, v.initial, v.h, v.v_new, none, NULL),
            "v_new: 1 elements");
}

TEST(refuses_shapes)
{
    qn_cuda_gdn_shape s = shape_of();
    struct views v = views_of(QN_DTYPE_F32);
    const int launches = fake.launches;
    assert_fails(kkt(&s, &v), QN_ERR_UNSUPPORTED, "data type 0");
    assert_int_equal(fake.launches, launches);
    v = views_of(QN_DTYPE_BF16);
    s.head_k = 24;
    refused(tril_inverse(&s, &v), "keys of 24");
    s = shape_of();
    s.v_heads = 5;
    refused(cumsum(&s, &v), "5 value heads");
    s = shape_of();
    s.n_sequences = 3;
    s.cu_seqlens = (qn_cuda_view){ address(4096), QN_DTYPE_I32, 3, 0 };
    refused(chunk_output(&s, &v), "cu_seqlens: 3 elements, expected at least 4");
    s.cu_seqlens = (qn_cuda_view){ address(4098), QN_DTYPE_I32, 4, 0 };
    refused(chunk_output(&s, &v), "cu_seqlens: address 0x1002");
    /* Elements are aligned, no more. With cu_seqlens the host does not have the number of chunks. */
    s.cu_seqlens.data = address(4100);
    v.h.count = HEADS_V * VALUE * KEY;
    assert_ok(chunk_output(&s, &v));
    expect_launch(0, 1, "qn_gdn_chunk_output", (TOKENS / 64 + 3) * HEADS_V, 1, true);
}

/* What prepare loads is what all stages need. */
static void capture_all(qn_dtype dtype)
{
    static qn_status (*const stages[])(
        const qn_cuda_gdn_shape *, const struct views *) = { cumsum, kkt, tril_inverse, w_u, state_pass, chunk_output };
    const qn_cuda_gdn_shape s = shape_of();
    const struct views v = views_of(dtype);
    fake.capturing = true;
    refused(kkt(&s, &v), "expected a call before the capture");
    fake.capturing = false;
    assert_ok(qn_cuda_gdn_stages_prepare(kernels, &s, dtype));
    fake.capturing = true;
    for (size_t i = 0; i < COUNT(stages); i++)
        assert_ok(stages[i](&s, &v));
}

TEST(captures_bf16)
{
    capture_all(QN_DTYPE_BF16);
}

TEST(captures_f16)
{
    capture_all(QN_DTYPE_F16);
}

TEST(in_place)
{
    const qn_cuda_gdn_shape s = shape_of();
    struct views v = views_of(QN_DTYPE_BF16);
    v.inverse = v.a;
    assert_ok(tril_inverse(&s, &v));
    v.inverse.stride = HEADS_V * 64 + 4;
    v.inverse.count *= 2;
    refused(tril_inverse(&s, &v), "inverse: rows are 388 elements apart, expected 384 as those of a");
    v.g.data = v.gc.data;
    refused(cumsum(&s, &v), "gc: data type 0, expected 30 as g");
}
