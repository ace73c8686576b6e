/* quern/cuda.h on a fake driver: the handle and its contexts, captures, checks of views and shapes, and what is queued.
 * The results of the kernels are checked by quern-check, on a device. */
#include "helper_cuda_api.h"

#include "cuda/kernels/deltanet/deltanet.h"

#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

#define CUBIN(source, defines) FAKE_CUBIN("deltanet/deltanet_" source ".cu", defines)
static const qn_gpu_cubin cubins[] = {
    CUBIN("prepare", "-DQN_HEAD_K=128"),
    CUBIN("compose", "-DQN_HEAD_K=128"),
    CUBIN("advance", "-DQN_HEAD_K=128 -DQN_GDN_STAGES=3 -DQN_GDN_SLICES=1"),
    CUBIN("advance", "-DQN_HEAD_K=128 -DQN_GDN_STAGES=3 -DQN_GDN_SLICES=2"),
    CUBIN("advance", "-DQN_HEAD_K=128 -DQN_GDN_STAGES=3 -DQN_GDN_SLICES=1 -DQN_GDN_EFFECTS"),
    CUBIN("advance", "-DQN_HEAD_K=128 -DQN_GDN_STAGES=3 -DQN_GDN_SLICES=2 -DQN_GDN_EFFECTS"),
    CUBIN("step", "-DQN_HEAD_K=128 -DQN_HEAD_V=128"),
    CUBIN("step", "-DQN_HEAD_K=128 -DQN_HEAD_V=128 -DQN_BF16"),
};

static void open_kernels(void)
{
    open_fake_kernels(cubins, COUNT(cubins));
}

enum { TOKENS = 4096, HEADS_K = 2, HEADS_V = 8, HEAD = 128 };

/* Arguments of a valid call. */
struct call {
    qn_cuda_kernels *kernels;
    qn_cuda_gdn_shape shape;
    qn_cuda_view q, k, v, g, beta, initial, final, o;
    size_t bytes;
};

static struct call call_of(qn_dtype dtype)
{
    const size_t keys = TOKENS * HEADS_K * HEAD, values = TOKENS * HEADS_V * HEAD, states = HEADS_V * HEAD * HEAD;
    return (struct call){ .kernels = kernels,
                          .shape = { .batch = 1,
                                     .tokens = TOKENS,
                                     .k_heads = HEADS_K,
                                     .v_heads = HEADS_V,
                                     .head_k = HEAD,
                                     .head_v = HEAD,
                                     .scale = 0.1f },
                          .q = { address(4096), dtype, keys, 0 },
                          .k = { address(4096), dtype, keys, 0 },
                          .v = { address(4096), dtype, values, 0 },
                          .g = { address(4096), QN_DTYPE_F32, TOKENS * HEADS_V, 0 },
                          .beta = { address(4096), QN_DTYPE_F32, TOKENS * HEADS_V, 0 },
                          .initial = { address(4096), QN_DTYPE_F32, states, 0 },
                          .final = { address(4096), QN_DTYPE_F32, states, 0 },
                          .o = { address(4096), dtype, values, 0 },
                          .bytes = (size_t)1 << 40 };
}

static qn_status chunk(const struct call *c)
{
    return qn_cuda_gdn_chunk(c->kernels, &c->shape, c->q, c->k, c->v, c->g, c->beta, c->initial, c->final, c->o,
                             address(4096), c->bytes, NULL);
}

static qn_status step(const struct call *c)
{
    return qn_cuda_gdn_step(c->kernels, &c->shape, c->q, c->k, c->v, c->g, c->beta, c->initial, c->o, NULL);
}

TEST(handles)
{
    assert_int_equal(qn_cuda_kernels_open_with(&kernels, 2, fake_driver(), &fake_tools), QN_ERR_INVALID);
    assert_null(kernels);
    qn_cuda_kernels_close(NULL);
    open_kernels();
    assert_int_equal(fake.contexts + fake.modules, 0); /* opening retains and loads nothing */
    const struct call c = call_of(QN_DTYPE_F32);
    fake.current = NULL;
    assert_fails(step(&c), QN_ERR_INVALID, "no CUDA context is current");
    fake.current = context(2);
    assert_fails(step(&c), QN_ERR_INVALID, "of another device");
    fake.fails = "cuCtxGetCurrent";
    assert_fails(step(&c), QN_ERR_DEVICE, "cuCtxGetCurrent");
    fake.fails = NULL;
    close_kernels();
    assert_ptr_equal(fake.current, context(2));
}

/* Code is loaded once for each context, the current context stays current, and closing unloads everything. */
TEST(contexts_have_modules)
{
    open_kernels();
    const struct call c = call_of(QN_DTYPE_F32);
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < 2; i++) {
            label("round %d, context %zu", round, i);
            fake.current = context(i);
            assert_ok(step(&c));
            assert_ptr_equal(fake.current, context(i));
            assert_int_equal(fake.modules, round ? 2 : (int)i + 1);
        }
    assert_int_equal(fake.contexts, 0); /* no context was retained */
    close_kernels();
    assert_int_equal(fake.modules, 0);
    assert_ptr_equal(fake.current, context(1));
}

/* The modules of a context went with it: they are not used, nor unloaded, when another context has its address. */
TEST(contexts_end)
{
    open_kernels();
    const struct call c = call_of(QN_DTYPE_F32);
    assert_ok(step(&c));
    fake_end_contexts();
    assert_ok(step(&c));
    fake_end_contexts();
    close_kernels();
    assert_int_equal(fake.modules, 0);
}

TEST(captures)
{
    open_kernels();
    struct call c = call_of(QN_DTYPE_F32);
    fake.capturing = true;
    assert_fails(step(&c), QN_ERR_INVALID, "the stream is captured");
    assert_int_equal(fake.launches, 0);
    fake.capturing = false;
    assert_ok(qn_cuda_gdn_prepare(kernels, &c.shape, QN_DTYPE_F32));
    assert_int_equal(fake.launches, 0);
    fake.capturing = true;
    assert_ok(step(&c));
    assert_ok(chunk(&c));
    assert_int_equal(fake.launches, 2);
    /* A call of several kernels queues all of them or none. */
    c = call_of(QN_DTYPE_BF16);
    assert_int_equal(chunk(&c), QN_ERR_INVALID);
    assert_int_equal(fake.launches, 2);
    fake.capturing = false;
    assert_ok(qn_cuda_gdn_prepare(kernels, &c.shape, QN_DTYPE_BF16));
    fake.capturing = true;
    assert_ok(chunk(&c));
    assert_int_equal(fake.launches, 2 + 4); /* few heads: divided into spans */
    assert_ok(step(&c));
    assert_int_equal(fake.launches, 2 + 4 + 1);
    close_kernels();
}

TEST(workspaces)
{
    open_kernels();
    struct call c = call_of(QN_DTYPE_BF16);
    size_t bytes, longer;
    assert_ok(qn_cuda_gdn_chunk_workspace(kernels, &c.shape, QN_DTYPE_F32, &bytes));
    assert_int_equal(bytes, 0);
    assert_ok(qn_cuda_gdn_chunk_workspace(kernels, &c.shape, QN_DTYPE_BF16, &bytes));
    assert_true(bytes >= TOKENS / 64 * HEADS_V * (size_t)QN_GDN_RECORD);
    c.bytes = bytes - 1;
    assert_fails(chunk(&c), QN_ERR_INVALID, "workspace");
    c.bytes = bytes;
    assert_fails(
        qn_cuda_gdn_chunk(kernels, &c.shape, c.q, c.k, c.v, c.g, c.beta, c.initial, c.final, c.o, NULL, bytes, NULL),
        QN_ERR_INVALID, "workspace: address");
    assert_int_equal(qn_cuda_gdn_chunk_workspace(kernels, &c.shape, QN_DTYPE_BF16, NULL), QN_ERR_INVALID);
    assert_int_equal(qn_cuda_gdn_chunk_workspace(NULL, &c.shape, QN_DTYPE_BF16, &longer), QN_ERR_INVALID);
    c.shape.v_heads = 7;
    assert_int_equal(qn_cuda_gdn_chunk_workspace(kernels, &c.shape, QN_DTYPE_BF16, &longer), QN_ERR_INVALID);
    c.shape.v_heads = HEADS_V;
    c.shape.batch = 3;
    assert_ok(qn_cuda_gdn_chunk_workspace(kernels, &c.shape, QN_DTYPE_BF16, &longer));
    assert_true(longer > 2 * bytes);
    close_kernels();
}

#define refused_change(dtype, change, text) refused_with(chunk, call_of(dtype), change, text)

TEST(views)
{
    open_kernels();
    struct call c = call_of(QN_DTYPE_F32);
    assert_ok(chunk(&c));
    c.q.count--;
    refused(chunk(&c), "q: 1048575 elements, expected at least 1048576");
    refused_change(QN_DTYPE_F32, k.data = address(4100), "k: address 0x1004");
    refused_change(QN_DTYPE_F32, v.dtype = QN_DTYPE_BF16, "v: data type 30, expected 0");
    refused_change(QN_DTYPE_F32, o.stride = HEADS_V * HEAD - 1, "o: rows are 1023 elements apart, expected 1024");
    refused_change(QN_DTYPE_F32, o.stride = HEADS_V * HEAD + 1, "o: 4194304 elements, expected at least 4198399");
    refused_change(QN_DTYPE_BF16, q.stride = HEADS_K * HEAD + 4,
                   "q: rows are 260 elements apart, expected a multiple of 8");
    refused_change(QN_DTYPE_F32, beta.stride = HEADS_V + 1, "beta: 32768 elements, expected at least 36863");
    refused_change(QN_DTYPE_F32, g.dtype = QN_DTYPE_I32, "g: data type 26, expected 0 (f32), 1 (f16) or 30 (bf16)");
    refused_change(QN_DTYPE_F32, final.count = 1, "final: 1 elements");
    c = call_of(QN_DTYPE_F32);
    c.initial = (qn_cuda_view){ .count = c.initial.count };
    refused(chunk(&c), "initial: NULL");
    refused_change(QN_DTYPE_F32, final.dtype = QN_DTYPE_BF16, "final: data type 30, expected 0");
    c = call_of(QN_DTYPE_F32);
    c.shape.state_indices = (qn_cuda_view){ address(4096), QN_DTYPE_I64, 1, 0 };
    refused(chunk(&c), "state_indices: data type 27, expected 26");
    c = call_of(QN_DTYPE_F32);
    c.initial = c.final = (qn_cuda_view){ 0 };
    assert_ok(chunk(&c)); /* both are optional */
    close_kernels();
}

TEST(shapes)
{
    open_kernels();
    struct call c = call_of(QN_DTYPE_I32);
    refused(chunk(&c), "data type 26");
    refused_change(QN_DTYPE_BF16, shape.head_k = 288, "keys of 288");
    refused_change(QN_DTYPE_BF16, shape.head_v = 100, "values of 100");
    c = call_of(QN_DTYPE_BF16);
    c.shape.gate_bias = (qn_cuda_view){ address(4096), QN_DTYPE_F32, HEADS_V, 0 };
    refused(chunk(&c), "expected gate_factor too");
    c.shape.gate_factor = (qn_cuda_view){ address(4096), QN_DTYPE_F32, HEADS_V - 1, 0 };
    refused(chunk(&c), "gate_factor: 7 elements, expected at least 8");
    refused_change(QN_DTYPE_F32, shape.head_k = 40, "keys of 40");
    refused_change(QN_DTYPE_F32, shape.v_heads = 7, "7 value heads");
    refused_change(QN_DTYPE_F32, shape.v_heads = 0, "0 value heads");
    refused_change(QN_DTYPE_F32, shape.scale = INFINITY, "scale");
    refused_change(QN_DTYPE_F32, shape.mapping = (qn_gdn_mapping)5, "mapping: 5");
    refused_change(QN_DTYPE_F32, shape.tokens = 0, "of 0 tokens");
    c = call_of(QN_DTYPE_F32);
    c.shape.tokens = SIZE_MAX / 2;
    c.shape.batch = 4;
    refused(chunk(&c), "4 sequences of");
    c = call_of(QN_DTYPE_F32);
    c.shape.n_sequences = 3;
    refused(chunk(&c), "cu_seqlens: data type 0");
    c.shape.cu_seqlens = (qn_cuda_view){ address(4096), QN_DTYPE_I64, 3, 0 };
    refused(chunk(&c), "cu_seqlens: 3 elements, expected at least 4");
    c.shape.cu_seqlens.count = 4;
    refused(chunk(&c), "initial: 131072 elements, expected at least 393216");
    c.shape.batch = 2;
    refused(chunk(&c), "batch: 2");
    close_kernels();
}

/* Contexts are the parent's. The child calls nothing of the driver. */
TEST(a_forked_child_is_refused)
{
    open_kernels();
    const struct call c = call_of(QN_DTYPE_F32);
    int status;
    assert_ok(step(&c));
    const pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        const int modules = fake.modules;
        fake.fails = "cuCtxGetCurrent";
        const bool is_refused = step(&c) == QN_ERR_INVALID && strstr(qn_error_text(), "fork");
        close_kernels();
        _exit(!is_refused || fake.modules != modules);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close_kernels();
}
