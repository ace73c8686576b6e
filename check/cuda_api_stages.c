/* The stages of Gated DeltaNet of quern/cuda.h on a GPU: each against the CPU's stage with the same inputs, which are the CPU's
 * results of the stages before it. */
#include "check/cuda_deltanet.h"

#include "quern/cuda.h"

#include <stdio.h>
#include <string.h>

/* Of f32 results, whose operands are exact: sums of at most 256 terms in another order. */
#define TOLERANCE_F32 1e-5
/* Of results that are rounded to D, and whose operands are, at other points than on the CPU: three roundings of 1.7e-3 rms in
 * bf16, and an eighth of this in f16. */
#define TOLERANCE_BF16 6e-3
#define TOLERANCE_F16 1e-3

enum { MAX_SEQUENCES = 5, GAP = 8, CHUNK = QN_GDN_CHUNK_SIZE };

struct shape {
    qn_dtype dtype;
    size_t n_sequences;
    uint32_t ends[MAX_SEQUENCES + 1];
    size_t k_heads, v_heads, head_k, head_v;
    bool tiled, increasing; /* increasing: gc is not monotonic */
};

enum array { Q, K, V, G, BETA, GC, A, INVERSE, W, U, INITIAL, H, V_NEW, FINAL, O, ARRAYS };

static const char *const names[ARRAYS] = { "q", "k", "v",       "g", "beta",  "gc",    "a", "inverse",
                                           "w", "u", "initial", "h", "v_new", "final", "o" };

struct problem {
    const struct shape *s;
    size_t rows, n_chunks, n[ARRAYS], row[ARRAYS]; /* row: elements of a token, 0: no rows of tokens */
    qn_dtype dtype[ARRAYS];
    void *host[ARRAYS];
    qn_gpu_guarded gpu[ARRAYS], ends;
    qn_gdn_shape cpu_shape;
    qn_cuda_gdn_shape shape;
};

static qn_cuda_kernels *kernels;

static size_t size_of(qn_dtype dtype)
{
    return dtype == QN_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
}

static void set(struct problem *p, enum array i, qn_dtype dtype, size_t row, size_t n)
{
    p->dtype[i] = dtype;
    p->row[i] = row;
    p->n[i] = row ? p->rows * row : n;
    unsigned char *bytes;
    qn_assert_ok(qn_alloc(&bytes, p->n[i], size_of(dtype), "quern-check"));
    memset(bytes, 0, p->n[i] * size_of(dtype));
    p->host[i] = bytes;
}

static qn_view host_view(const struct problem *p, enum array i)
{
    return (qn_view){ p->host[i], p->dtype[i], p->n[i] };
}

/* Elements from a row to the next on the device. */
static size_t stride_of(const struct problem *p, enum array i)
{
    return p->row[i] ? p->row[i] + GAP : 0;
}

static size_t gpu_bytes(const struct problem *p, enum array i)
{
    return (p->row[i] ? p->rows * stride_of(p, i) : p->n[i]) * size_of(p->dtype[i]);
}

static qn_cuda_view gpu_view(const struct problem *p, enum array i)
{
    return (qn_cuda_view){ (void *)(uintptr_t)p->gpu[i].data, p->dtype[i], gpu_bytes(p, i) / size_of(p->dtype[i]),
                           stride_of(p, i) };
}

/* Copies rows between the host and its layout on the device. */
static void copy_rows(const struct problem *p, enum array i, unsigned char *gpu, bool back)
{
    const size_t size = size_of(p->dtype[i]), row = (p->row[i] ? p->row[i] : p->n[i]) * size,
                 stride = p->row[i] ? stride_of(p, i) * size : row, n = p->row[i] ? p->rows : 1;
    unsigned char *host = p->host[i];
    for (size_t r = 0; r < n; r++)
        memcpy(back ? host + r * row : gpu + r * stride, back ? gpu + r * stride : host + r * row, row);
}

static void upload(struct problem *p, enum array i)
{
    unsigned char *bytes;
    qn_assert_ok(qn_alloc(&bytes, gpu_bytes(p, i), 1, "quern-check"));
    memset(bytes, 0xff, gpu_bytes(p, i));
    copy_rows(p, i, bytes, false);
    p->gpu[i] = qn_gpu_from(bytes, gpu_bytes(p, i));
    qn_free(bytes);
}

static float *to_floats(const struct problem *p, enum array i, const void *data)
{
    float *x = floats(p->n[i]);
    for (size_t at = 0; at < p->n[i]; at++)
        x[at] = p->dtype[i] == QN_DTYPE_F32   ? ((const float *)data)[at]
                : p->dtype[i] == QN_DTYPE_F16 ? qn_f16_to_f32(((const uint16_t *)data)[at])
                                              : qn_bf16_to_f32(((const uint16_t *)data)[at]);
    return x;
}

static double tolerance_of(qn_dtype dtype)
{
    return dtype == QN_DTYPE_F32 ? TOLERANCE_F32 : dtype == QN_DTYPE_F16 ? TOLERANCE_F16 : TOLERANCE_BF16;
}

/* Compares what the device wrote with the CPU's result. */
static void compare(struct problem *p, enum array i, double tolerance)
{
    unsigned char *bytes;
    void *expected = p->host[i];
    qn_assert_ok(qn_alloc(&bytes, gpu_bytes(p, i), 1, "quern-check"));
    qn_gpu_read(&p->gpu[i], bytes);
    qn_assert_ok(qn_alloc((unsigned char **)&p->host[i], p->n[i], size_of(p->dtype[i]), "quern-check"));
    copy_rows(p, i, bytes, true);
    float *x = to_floats(p, i, expected), *y = to_floats(p, i, p->host[i]);
    const double error = qn_relative_error(y, x, p->n[i]);
    qn_expect(error <= tolerance, "%s: relative error %.2e, more than %.0e", names[i], error, tolerance);
    qn_expect(qn_gpu_guards_intact(&p->gpu[i]), "%s: bytes outside were written", names[i]);
    qn_free(x);
    qn_free(y);
    qn_free(bytes);
    qn_free(p->host[i]);
    p->host[i] = expected;
}

static void draw(struct problem *p, enum array i, float scale)
{
    float *x = normal(p->n[i], scale);
    if (i == Q || i == K)
        for (size_t head = 0; head < p->rows * p->s->k_heads; head++) {
            float *at = x + head * p->s->head_k, sum = 0;
            for (size_t j = 0; j < p->s->head_k; j++)
                sum += at[j] * at[j];
            for (size_t j = 0; j < p->s->head_k; j++)
                at[j] /= sqrtf(sum);
        }
    if (p->dtype[i] == QN_DTYPE_F32) {
        memcpy(p->host[i], x, p->n[i] * sizeof *x);
    } else {
        uint16_t *rounded = to_16_bits(x, p->n[i], p->dtype[i]);
        memcpy(p->host[i], rounded, p->n[i] * sizeof *rounded);
        qn_free(rounded);
    }
    qn_free(x);
}

static void run_cpu(struct problem *p)
{
    const qn_gdn_shape *s = &p->cpu_shape;
#define HOST(i) host_view(p, i)
    qn_assert_ok(qn_gdn_cumsum(s, HOST(G), HOST(GC)));
    if (p->s->increasing)
        for (size_t at = 3 * p->s->v_heads; at < p->n[GC]; at += 5 * p->s->v_heads)
            ((float *)p->host[GC])[at] *= 0.5f;
    qn_assert_ok(qn_gdn_kkt(s, HOST(K), HOST(BETA), HOST(GC), HOST(A)));
    qn_assert_ok(qn_gdn_tril_inverse(s, HOST(A), HOST(INVERSE)));
    qn_assert_ok(qn_gdn_recompute_w_u(s, HOST(K), HOST(V), HOST(BETA), HOST(GC), HOST(INVERSE), HOST(W), HOST(U)));
    qn_assert_ok(qn_gdn_state_pass(s, HOST(K), HOST(W), HOST(U), HOST(GC), HOST(INITIAL), HOST(H), HOST(V_NEW), HOST(FINAL)));
    qn_assert_ok(qn_gdn_chunk_output(s, HOST(Q), HOST(K), HOST(V_NEW), HOST(H), HOST(GC), HOST(O)));
#undef HOST
}

static void problem_new(struct problem *p, const struct shape *s)
{
    const size_t keys = s->k_heads * s->head_k, values = s->v_heads * s->head_v, state = values * s->head_k;
    *p = (struct problem){ .s = s, .rows = s->ends[s->n_sequences] };
    p->cpu_shape = (qn_gdn_shape){ .batch = 1,
                                   .tokens = p->rows,
                                   .k_heads = s->k_heads,
                                   .v_heads = s->v_heads,
                                   .head_k = s->head_k,
                                   .head_v = s->head_v,
                                   .mapping = s->tiled ? QN_GDN_TILED : QN_GDN_GROUPED,
                                   .scale = 0.09f,
                                   .n_sequences = s->n_sequences,
                                   .cu_seqlens = { (void *)(uintptr_t)s->ends, QN_DTYPE_U32, s->n_sequences + 1 } };
    qn_assert_ok(qn_gdn_chunk_count(&p->cpu_shape, &p->n_chunks));
    const struct {
        enum array i;
        bool typed;
        size_t row, n;
    } arrays[] = { { Q, true, keys, 0 },
                   { K, true, keys, 0 },
                   { V, true, values, 0 },
                   { G, false, s->v_heads, 0 },
                   { BETA, false, s->v_heads, 0 },
                   { GC, false, s->v_heads, 0 },
                   { A, false, s->v_heads * CHUNK, 0 },
                   { INVERSE, false, s->v_heads * CHUNK, 0 },
                   { W, true, s->v_heads * s->head_k, 0 },
                   { U, true, values, 0 },
                   { INITIAL, false, 0, s->n_sequences * state },
                   { H, true, 0, p->n_chunks * state },
                   { V_NEW, true, values, 0 },
                   { FINAL, false, 0, s->n_sequences * state },
                   { O, true, values, 0 } };
    for (size_t i = 0; i < ARRAYS; i++)
        set(p, arrays[i].i, arrays[i].typed ? s->dtype : QN_DTYPE_F32, arrays[i].row, arrays[i].n);
    draw(p, Q, 1);
    draw(p, K, 1);
    draw(p, V, 1);
    draw(p, INITIAL, 0.3f);
    for (size_t i = 0; i < p->n[G]; i++) {
        ((float *)p->host[G])[i] = draw_decay(MILD);
        ((float *)p->host[BETA])[i] = (float)uniform();
    }
    run_cpu(p);
    p->ends = qn_gpu_from(s->ends, sizeof s->ends);
    p->shape = (qn_cuda_gdn_shape){ .batch = 1,
                                    .tokens = p->rows,
                                    .k_heads = s->k_heads,
                                    .v_heads = s->v_heads,
                                    .head_k = s->head_k,
                                    .head_v = s->head_v,
                                    .mapping = p->cpu_shape.mapping,
                                    .scale = 0.09f };
    if (s->n_sequences > 1) {
        p->shape.n_sequences = s->n_sequences;
        p->shape.cu_seqlens = (qn_cuda_view){ (void *)(uintptr_t)p->ends.data, QN_DTYPE_I32, s->n_sequences + 1, 0 };
    }
    for (enum array i = 0; i < ARRAYS; i++)
        upload(p, i);
}

static void problem_free(struct problem *p)
{
    for (enum array i = 0; i < ARRAYS; i++) {
        qn_free(p->host[i]);
        qn_gpu_free(&p->gpu[i]);
    }
    qn_gpu_free(&p->ends);
}

/* Calls a stage. A result replaces the CPU's on the device until restore. */
static void call(const struct problem *p, size_t stage)
{
    const qn_cuda_gdn_shape *s = &p->shape;
    qn_stream stream = qn_gpu_stream();
#define GPU(i) gpu_view(p, i)
    switch (stage) {
    case 0: qn_assert_ok(qn_cuda_gdn_cumsum(kernels, s, GPU(G), GPU(GC), stream)); break;
    case 1: qn_assert_ok(qn_cuda_gdn_kkt(kernels, s, GPU(K), GPU(BETA), GPU(GC), GPU(A), stream)); break;
    case 2: qn_assert_ok(qn_cuda_gdn_tril_inverse(kernels, s, GPU(A), GPU(INVERSE), stream)); break;
    case 3:
        qn_assert_ok(
            qn_cuda_gdn_recompute_w_u(kernels, s, GPU(K), GPU(V), GPU(BETA), GPU(GC), GPU(INVERSE), GPU(W), GPU(U), stream));
        break;
    case 4:
        qn_assert_ok(qn_cuda_gdn_state_pass(kernels, s, GPU(K), GPU(W), GPU(U), GPU(GC), GPU(INITIAL), GPU(H), GPU(V_NEW),
                                            GPU(FINAL), stream));
        break;
    default: qn_assert_ok(qn_cuda_gdn_chunk_output(kernels, s, GPU(Q), GPU(K), GPU(V_NEW), GPU(H), GPU(GC), GPU(O), stream));
    }
#undef GPU
}

static const struct {
    const char *name;
    enum array results[3];
    size_t n;
} stages[] = { { "cumsum", { GC }, 1 },
               { "kkt", { A }, 1 },
               { "inverse", { INVERSE }, 1 },
               { "w u", { W, U }, 2 },
               { "state pass", { H, V_NEW, FINAL }, 3 },
               { "output", { O }, 1 } };
enum { STAGES = sizeof stages / sizeof *stages };

static void check_stages(const struct shape *s)
{
    struct problem p;
    qn_random_seed(s->head_k + s->head_v + s->ends[1]);
    problem_new(&p, s);
    for (size_t i = s->increasing; i < STAGES; i++) { /* the CPU's gc was changed after its stage */
        qn_case_begin("api-stages", stages[i].name, "%zu tokens in %zu sequences, heads %zu/%zu of %zu/%zu, type %d%s%s",
                      p.rows, s->n_sequences, s->k_heads, s->v_heads, s->head_k, s->head_v, (int)s->dtype,
                      s->tiled ? ", tiled" : "", s->increasing ? ", increasing gc" : "");
        for (size_t r = 0; r < stages[i].n; r++)
            qn_gpu_poison(&p.gpu[stages[i].results[r]]);
        call(&p, i);
        for (size_t r = 0; r < stages[i].n; r++) {
            const enum array result = stages[i].results[r];
            compare(&p, result, result == FINAL ? tolerance_of(s->dtype) : tolerance_of(p.dtype[result]));
            qn_gpu_free(&p.gpu[result]);
            upload(&p, result);
        }
    }
    problem_free(&p);
}

/* ---- Speed ---- */

struct timed {
    struct problem p;
    size_t stage;
};

static void timed_stage(void *context, size_t iteration)
{
    const struct timed *t = context;
    (void)iteration;
    call(&t->p, t->stage);
}

/* What a stage reads and writes: its arrays once. */
static double bytes_of(const struct problem *p, size_t stage)
{
    static const enum array used[STAGES][9] = { { G, GC, ARRAYS },
                                                { K, BETA, GC, A, ARRAYS },
                                                { A, INVERSE, ARRAYS },
                                                { K, V, BETA, GC, INVERSE, W, U, ARRAYS },
                                                { K, W, U, GC, H, V_NEW, ARRAYS },
                                                { Q, K, V_NEW, H, GC, O, ARRAYS } };
    double bytes = 0;
    for (size_t i = 0; used[stage][i] != ARRAYS; i++)
        bytes += (double)(p->n[used[stage][i]] * size_of(p->dtype[used[stage][i]]));
    return bytes;
}

/* The shape of a 27B model. The CPU computes nothing here: arrays hold small random values. */
static void bench_stages(void)
{
    static const struct shape s = { QN_DTYPE_BF16, 1, { 0, 32768 }, 16, 48, 128, 128, .tiled = true };
    struct timed t = { .p = { .s = &s, .rows = 32768, .n_chunks = 512 } };
    struct problem *p = &t.p;
    const size_t keys = 16 * 128, values = 48 * 128, state = values * 128;
    static const enum array typed[] = { Q, K, V, W, U, V_NEW, O };
    static const enum array gates[] = { G, BETA, GC };
    for (size_t i = 0; i < sizeof typed / sizeof *typed; i++)
        set(p, typed[i], QN_DTYPE_BF16, typed[i] == Q || typed[i] == K ? keys : values, 0);
    for (size_t i = 0; i < sizeof gates / sizeof *gates; i++)
        set(p, gates[i], QN_DTYPE_F32, 48, 0);
    set(p, A, QN_DTYPE_F32, 48 * CHUNK, 0);
    set(p, INVERSE, QN_DTYPE_F32, 48 * CHUNK, 0);
    set(p, INITIAL, QN_DTYPE_F32, 0, state);
    set(p, FINAL, QN_DTYPE_F32, 0, state);
    set(p, H, QN_DTYPE_BF16, 0, 512 * state);
    p->shape = (qn_cuda_gdn_shape){ .batch = 1,
                                    .tokens = p->rows,
                                    .k_heads = 16,
                                    .v_heads = 48,
                                    .head_k = 128,
                                    .head_v = 128,
                                    .mapping = QN_GDN_TILED,
                                    .scale = 0.09f };
    for (enum array i = 0; i < ARRAYS; i++) {
        uint16_t *words = p->host[i];
        for (size_t at = 0; at < p->n[i] * size_of(p->dtype[i]) / 2; at++)
            words[at] = (uint16_t)(0x3c00 + (at * 2654435761u >> 22)); /* 0.008 to 0.06 in bf16 */
        p->gpu[i] = qn_gpu_new(gpu_bytes(p, i));
        unsigned char *bytes;
        qn_assert_ok(qn_alloc(&bytes, gpu_bytes(p, i), 1, "quern-check"));
        memset(bytes, 0, gpu_bytes(p, i));
        copy_rows(p, i, bytes, false);
        qn_assert_ok(qn_cuda_upload(qn_gpu(), p->gpu[i].data, bytes, gpu_bytes(p, i), NULL, NULL));
        qn_free(bytes);
    }
    for (t.stage = 0; t.stage < STAGES; t.stage++)
        qn_gpu_bench("api-stages", stages[t.stage].name, "32768 tokens, heads 16/48 of 128", bytes_of(p, t.stage), "B",
                     qn_gpu_read_rate(), timed_stage, &t, 1);
    for (enum array i = 0; i < ARRAYS; i++) {
        qn_free(p->host[i]);
        qn_gpu_free(&p->gpu[i]);
    }
}

void qn_check_cuda_api_stages(bool bench)
{
    static const struct shape shapes[] = {
        { QN_DTYPE_BF16, 1, { 0, 300 }, 2, 4, 128, 128, .tiled = true },
        { QN_DTYPE_BF16, 5, { 0, 1, 64, 64, 129, 400 }, 1, 3, 128, 128, .tiled = false },
        { QN_DTYPE_F16, 2, { 0, 100, 230 }, 2, 4, 64, 96, .increasing = true },
        { QN_DTYPE_BF16, 1, { 0, 200 }, 1, 2, 256, 256, .tiled = true },
        { QN_DTYPE_F16, 1, { 0, 64 }, 2, 2, 48, 16, .tiled = true },
        { QN_DTYPE_BF16, 2, { 0, 65, 700 }, 1, 2, 192, 64, .increasing = true },
    };
    qn_assert_ok(qn_cuda_kernels_open(&kernels, qn_cuda_get_info(qn_gpu())->ordinal));
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_stages(&shapes[i]);
    if (bench)
        bench_stages();
    qn_cuda_kernels_close(kernels);
}
