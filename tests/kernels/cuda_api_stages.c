/* The stages of Gated DeltaNet of quern/cuda.h on a GPU: each against the CPU's stage with the same inputs, which are
 * the CPU's results of the previous stages. */
#include "cuda_deltanet.h"
#include "cuda_views.h"

/* Of f32 results, whose operands are exact: sums of at most 256 terms in another order. */
#define TOLERANCE_F32 1e-5
/* Of results that are rounded to D, and whose operands are, at other points than on the CPU: three roundings of 1.7e-3
 * rms in bf16, and an eighth of this in f16. */
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

/* The CPU's arrays, contiguous and of their types; and with their values as rows on the device. */
struct problem {
    const struct shape *s;
    size_t tokens, n_chunks;
    qn_view host[ARRAYS];
    qn_gpu_rows gpu[ARRAYS];
    qn_gdn_shape cpu_shape;
    qn_cuda_gdn_shape shape;
};

/* Sizes of an array on the device: rows of tokens with gaps between them, or one row of n. */
struct size {
    qn_dtype dtype;
    size_t n_rows, n, gap;
};

static qn_cuda_kernels *kernels;

static struct size size_of(const struct problem *p, enum array i)
{
    const struct shape *s = p->s;
    const size_t keys = s->k_heads * s->head_k, values = s->v_heads * s->head_v, state = values * s->head_k;
    switch (i) {
    case Q:
    case K: return (struct size){ s->dtype, p->tokens, keys, GAP };
    case W: return (struct size){ s->dtype, p->tokens, s->v_heads * s->head_k, GAP };
    case V:
    case U:
    case V_NEW:
    case O: return (struct size){ s->dtype, p->tokens, values, GAP };
    case G:
    case BETA:
    case GC: return (struct size){ QN_DTYPE_F32, p->tokens, s->v_heads, GAP };
    case A:
    case INVERSE: return (struct size){ QN_DTYPE_F32, p->tokens, s->v_heads * CHUNK, GAP };
    case H: return (struct size){ s->dtype, 1, p->n_chunks * state, 0 };
    default: return (struct size){ QN_DTYPE_F32, 1, s->n_sequences * state, 0 };
    }
}

static double tolerance_of(qn_dtype dtype)
{
    return dtype == QN_DTYPE_F32 ? TOLERANCE_F32 : dtype == QN_DTYPE_F16 ? TOLERANCE_F16 : TOLERANCE_BF16;
}

/* Compares the device's result with the CPU's. */
static void compare(const struct problem *p, enum array i, double tolerance)
{
    float *found = qn_gpu_rows_read(&p->gpu[i], names[i]);
    const double error = qn_relative_error(found, p->gpu[i].values, p->host[i].count);
    qn_expect(error <= tolerance, "%s: relative error %.2e, more than %.0e", names[i], error, tolerance);
}

static void draw(struct problem *p, enum array i, float scale)
{
    const size_t n = p->host[i].count;
    float *x = qn_floats_of(n, scale);
    if (i == Q || i == K)
        for (size_t head = 0; head < p->tokens * p->s->k_heads; head++) {
            float *at = x + head * p->s->head_k, sum = 0;
            for (size_t j = 0; j < p->s->head_k; j++)
                sum += at[j] * at[j];
            for (size_t j = 0; j < p->s->head_k; j++)
                at[j] /= sqrtf(sum);
        }
    qn_assert_ok(qn_encode(view(x, n), p->host[i]));
}

static void run_cpu(struct problem *p)
{
    const qn_gdn_shape *s = &p->cpu_shape;
    const qn_view *h = p->host;
    qn_assert_ok(qn_gdn_cumsum(s, h[G], h[GC]));
    if (p->s->increasing)
        for (size_t at = 3 * p->s->v_heads; at < h[GC].count; at += 5 * p->s->v_heads)
            ((float *)h[GC].data)[at] *= 0.5f;
    qn_assert_ok(qn_gdn_kkt(s, h[K], h[BETA], h[GC], h[A]));
    qn_assert_ok(qn_gdn_tril_inverse(s, h[A], h[INVERSE]));
    qn_assert_ok(qn_gdn_recompute_w_u(s, h[K], h[V], h[BETA], h[GC], h[INVERSE], h[W], h[U]));
    qn_assert_ok(qn_gdn_state_pass(s, h[K], h[W], h[U], h[GC], h[INITIAL], h[H], h[V_NEW], h[FINAL]));
    qn_assert_ok(qn_gdn_chunk_output(s, h[Q], h[K], h[V_NEW], h[H], h[GC], h[O]));
}

static void problem_new(struct problem *p, const struct shape *s)
{
    *p = (struct problem){ .s = s, .tokens = s->ends[s->n_sequences] };
    p->cpu_shape = (qn_gdn_shape){ .batch = 1,
                                   .tokens = p->tokens,
                                   .k_heads = s->k_heads,
                                   .v_heads = s->v_heads,
                                   .head_k = s->head_k,
                                   .head_v = s->head_v,
                                   .mapping = s->tiled ? QN_GDN_TILED : QN_GDN_GROUPED,
                                   .scale = 0.09f,
                                   .n_sequences = s->n_sequences,
                                   .cu_seqlens = { (void *)(uintptr_t)s->ends, QN_DTYPE_U32, s->n_sequences + 1 } };
    qn_assert_ok(qn_gdn_chunk_count(&p->cpu_shape, &p->n_chunks));
    for (enum array i = 0; i < ARRAYS; i++) {
        const struct size size = size_of(p, i);
        const size_t n = size.n_rows * size.n;
        p->host[i] = (qn_view){ qn_floats(n), size.dtype, n };
    }
    draw(p, Q, 1);
    draw(p, K, 1);
    draw(p, V, 1);
    draw(p, INITIAL, 0.3f);
    for (size_t i = 0; i < p->host[G].count; i++) {
        ((float *)p->host[G].data)[i] = draw_decay(MILD);
        ((float *)p->host[BETA].data)[i] = (float)uniform();
    }
    run_cpu(p);
    p->shape = (qn_cuda_gdn_shape){ .batch = 1,
                                    .tokens = p->tokens,
                                    .k_heads = s->k_heads,
                                    .v_heads = s->v_heads,
                                    .head_k = s->head_k,
                                    .head_v = s->head_v,
                                    .mapping = p->cpu_shape.mapping,
                                    .scale = 0.09f };
    if (s->n_sequences > 1) {
        p->shape.n_sequences = s->n_sequences;
        p->shape.cu_seqlens = qn_seqlens_view(s->ends, s->n_sequences, QN_DTYPE_I32);
    }
    for (enum array i = 0; i < ARRAYS; i++) {
        const struct size size = size_of(p, i);
        float *x = qn_floats(p->host[i].count);
        qn_assert_ok(qn_decode(p->host[i], view(x, p->host[i].count)));
        p->gpu[i] = qn_gpu_rows_of(x, size.dtype, size.n_rows, size.n, size.gap, 0);
    }
}

/* Calls a stage. A result replaces the CPU's on the device until it is reset. */
static void call(const struct problem *p, size_t stage)
{
    const qn_cuda_gdn_shape *s = &p->shape;
    qn_stream stream = qn_gpu_stream();
#define GPU(i) qn_gpu_rows_view(&p->gpu[i])
    switch (stage) {
    case 0: qn_assert_ok(qn_cuda_gdn_cumsum(kernels, s, GPU(G), GPU(GC), stream)); break;
    case 1: qn_assert_ok(qn_cuda_gdn_kkt(kernels, s, GPU(K), GPU(BETA), GPU(GC), GPU(A), stream)); break;
    case 2: qn_assert_ok(qn_cuda_gdn_tril_inverse(kernels, s, GPU(A), GPU(INVERSE), stream)); break;
    case 3:
        qn_assert_ok(qn_cuda_gdn_recompute_w_u(kernels, s, GPU(K), GPU(V), GPU(BETA), GPU(GC), GPU(INVERSE), GPU(W),
                                               GPU(U), stream));
        break;
    case 4:
        qn_assert_ok(qn_cuda_gdn_state_pass(kernels, s, GPU(K), GPU(W), GPU(U), GPU(GC), GPU(INITIAL), GPU(H),
                                            GPU(V_NEW), GPU(FINAL), stream));
        break;
    default:
        qn_assert_ok(qn_cuda_gdn_chunk_output(kernels, s, GPU(Q), GPU(K), GPU(V_NEW), GPU(H), GPU(GC), GPU(O), stream));
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
enum { STAGES = QN_LENGTH(stages) };

static void check_stages(const struct shape *s)
{
    struct problem p;
    qn_random_seed(s->head_k + s->head_v + s->ends[1]);
    problem_new(&p, s);
    for (size_t i = s->increasing; i < STAGES; i++) { /* the CPU's gc was changed after its stage */
        qn_case_begin("api-stages", stages[i].name,
                      "%zu tokens in %zu sequences, heads %zu/%zu of %zu/%zu, type %d%s%s", p.tokens, s->n_sequences,
                      s->k_heads, s->v_heads, s->head_k, s->head_v, (int)s->dtype, s->tiled ? ", tiled" : "",
                      s->increasing ? ", increasing gc" : "");
        for (size_t r = 0; r < stages[i].n; r++)
            qn_gpu_poison(p.gpu[stages[i].results[r]].memory);
        call(&p, i);
        for (size_t r = 0; r < stages[i].n; r++) {
            const enum array result = stages[i].results[r];
            compare(&p, result, result == FINAL ? tolerance_of(s->dtype) : tolerance_of(p.gpu[result].dtype));
            qn_gpu_rows_reset(&p.gpu[result]);
        }
    }
    qn_release();
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

static double bytes_of_array(const qn_gpu_rows *rows)
{
    return (double)(rows->n_rows * rows->n) * (rows->dtype == QN_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t));
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
        bytes += bytes_of_array(&p->gpu[used[stage][i]]);
    return bytes;
}

/* The shape of a 27B model. The CPU computes nothing here: arrays hold values of 0.002 to 0.008 in bf16, with which the
 * recurrence stays finite. */
static void bench_stages(void)
{
    static const struct shape s = { QN_DTYPE_BF16, 1, { 0, 32768 }, 16, 48, 128, 128, .tiled = true };
    struct timed t = { .p = { .s = &s, .tokens = 32768, .n_chunks = 512 } };
    struct problem *p = &t.p;
    p->shape = (qn_cuda_gdn_shape){ .batch = 1,
                                    .tokens = p->tokens,
                                    .k_heads = 16,
                                    .v_heads = 48,
                                    .head_k = 128,
                                    .head_v = 128,
                                    .mapping = QN_GDN_TILED,
                                    .scale = 0.09f };
    for (enum array i = 0; i < ARRAYS; i++) {
        const struct size size = size_of(p, i);
        p->gpu[i] = qn_gpu_rows_poison(size.dtype, size.n_rows, size.n, size.gap, 0);
        const size_t bytes = qn_gpu_bytes(p->gpu[i].memory), mark = qn_mark();
        uint16_t *words = qn_new(bytes, 1);
        for (size_t at = 0; at < bytes / sizeof *words; at++)
            words[at] = (uint16_t)(0x3b00 + ((uint32_t)at * 2654435761u >> 24));
        qn_gpu_write(p->gpu[i].memory, words, bytes);
        qn_release_to(mark);
    }
    for (t.stage = 0; t.stage < STAGES; t.stage++)
        qn_gpu_bench("api-stages", stages[t.stage].name, "32768 tokens, heads 16/48 of 128", bytes_of(p, t.stage), "B",
                     qn_gpu_read_rate(), timed_stage, &t, 1);
    qn_release();
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
    kernels = qn_api();
    for (size_t i = 0; i < QN_LENGTH(shapes); i++)
        check_stages(&shapes[i]);
    if (bench)
        bench_stages();
}
