/* quern/cuda.h on a GPU: Gated DeltaNet through the public functions against the CPU's, with strided views, all types of
 * elements and of cu_seqlens, states of both orders, in place and in pools, gates computed in the kernels; captured in a graph;
 * from two threads on two streams. Then the checks of the other sections (cuda_api.h). */
#include "check/cuda_api.h"
#include "check/cuda_deltanet.h"
#include "check/cuda_views.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* For the reasons given in cuda_deltanet.c. */
#define TOLERANCE_BF16 1e-2
#define TOLERANCE_F16 2e-3
#define TOLERANCE_F32 1e-5

enum { MAX_SEQUENCES = 4, SPARE_STATES = 2, SKIPPED = 1 };

struct shape {
    qn_dtype dtype, seqlens; /* seqlens: of cu_seqlens; f32: none */
    size_t n_sequences;
    uint32_t ends[MAX_SEQUENCES + 1];
    size_t k_heads, v_heads, head_k, head_v;
    bool tiled, in_place;
    bool pool;       /* bf16 states in another order among others, and the sequence SKIPPED has none; else f32, state i */
    bool transposed; /* states are [head_k, head_v] */
    bool raw;        /* g and beta are bf16, before softplus and sigmoid */
};

/* One call: rows hold q, k and v of a token, with a gap behind them. */
struct problem {
    const struct shape *s;
    size_t rows, keys, values, width, n_state, element;
    size_t state, n_pool;                              /* elements of a sequence's state, and of all */
    float *q, *k, *v, *g, *beta, *initial, *o, *final; /* o and final: expected */
    qn_gpu_guarded qkv, gates, factors, states, indices, seqlens, workspace, out, out_state;
    qn_cuda_gdn_shape shape;
};

static qn_cuda_kernels *kernels;

static qn_view view(const float *x, size_t n)
{
    return (qn_view){ (void *)(uintptr_t)x, QN_DTYPE_F32, n };
}

static void *at(const qn_gpu_guarded *g, size_t bytes)
{
    return (void *)(uintptr_t)(g->data + bytes);
}

/* Copies rows of x to columns of all, rounded to the type; x keeps the rounded values. */
static void pack(const struct problem *p, float *x, size_t n, unsigned char *all, size_t column)
{
    uint16_t *rounded = p->s->dtype != QN_DTYPE_F32 ? to_16_bits(x, p->rows * n, p->s->dtype) : NULL;
    for (size_t row = 0; row < p->rows; row++)
        memcpy(all + (row * p->width + column) * p->element,
               rounded ? (const void *)(rounded + row * n) : (const void *)(x + row * n), n * p->element);
    qn_free(rounded);
}

static qn_gpu_guarded upload_seqlens(const struct shape *s)
{
    int64_t wide[MAX_SEQUENCES + 1];
    for (size_t i = 0; i <= s->n_sequences; i++)
        wide[i] = s->ends[i];
    return s->seqlens == QN_DTYPE_I64 ? qn_gpu_from(wide, (s->n_sequences + 1) * sizeof *wide)
                                      : qn_gpu_from(s->ends, (s->n_sequences + 1) * sizeof *s->ends);
}

static size_t index_of(const struct problem *p, size_t sequence)
{
    return p->s->pool ? p->s->n_sequences + SPARE_STATES - 1 - sequence : sequence;
}

static bool is_skipped(const struct problem *p, size_t sequence)
{
    return p->s->pool && sequence == SKIPPED;
}

/* A sequence's state between [head_v, head_k] and [head_k, head_v]. */
static void transpose(const struct problem *p, float *to, const float *from, bool back)
{
    const struct shape *s = p->s;
    for (size_t head = 0; head < s->v_heads; head++)
        for (size_t value = 0; value < s->head_v; value++)
            for (size_t key = 0; key < s->head_k; key++) {
                const size_t base = head * s->head_v * s->head_k, a = base + value * s->head_k + key,
                             b = base + key * s->head_v + value;
                to[back ? a : b] = from[back ? b : a];
            }
}

static void copy_state(const struct problem *p, float *to, const float *from, bool back)
{
    if (p->s->transposed)
        transpose(p, to, from, back);
    else
        memcpy(to, from, p->state * sizeof *to);
}

/* The pool as the device has it: all states that no sequence has are NaN. */
static void *pool_of(const struct problem *p)
{
    float *all = floats(p->n_pool);
    memset(all, 0xff, p->n_pool * sizeof *all);
    for (size_t i = 0; i < p->s->n_sequences; i++)
        if (!is_skipped(p, i))
            copy_state(p, all + index_of(p, i) * p->state, p->initial + i * p->state, false);
    if (!p->s->pool)
        return all;
    uint16_t *rounded = to_bf16(all, p->n_pool);
    qn_free(all);
    return rounded;
}

static size_t pool_bytes(const struct problem *p)
{
    return p->n_pool * (p->s->pool ? sizeof(uint16_t) : sizeof(float));
}

static void expected(const struct problem *p)
{
    const struct shape *s = p->s;
    const qn_gdn_shape shape = { .batch = 1,
                                 .tokens = p->rows,
                                 .k_heads = s->k_heads,
                                 .v_heads = s->v_heads,
                                 .head_k = s->head_k,
                                 .head_v = s->head_v,
                                 .mapping = s->tiled ? QN_GDN_TILED : QN_GDN_GROUPED,
                                 .scale = 0.09f,
                                 .normalize = true,
                                 .n_sequences = s->n_sequences,
                                 .cu_seqlens = { (void *)(uintptr_t)s->ends, QN_DTYPE_U32, s->n_sequences + 1 } };
    memcpy(p->final, p->initial, p->n_state * sizeof *p->final);
    qn_assert_ok(qn_gdn_step(&shape, view(p->q, p->rows * p->keys), view(p->k, p->rows * p->keys),
                             view(p->v, p->rows * p->values), view(p->g, p->rows * s->v_heads),
                             view(p->beta, p->rows * s->v_heads), view(p->final, p->n_state), view(p->o, p->rows * p->values)));
}

/* Log decays and beta; with raw gates, what they are computed from is on the device. */
static void draw_gates(struct problem *p)
{
    const size_t heads = p->s->v_heads, n = p->rows * heads;
    float *raw = normal(2 * n, 1), *factors = normal(2 * heads, 1); /* factors, then biases */
    for (size_t h = 0; h < heads; h++)
        factors[h] = -expf(factors[h] - 2);
    uint16_t *rounded = to_bf16(raw, 2 * n);
    for (size_t i = 0; i < n; i++) {
        p->g[i] = p->s->raw ? factors[i % heads] * log1pf(expf(raw[i] + factors[heads + i % heads])) : draw_decay(MILD);
        p->beta[i] = p->s->raw ? 1 / (1 + expf(-raw[n + i])) : (float)uniform();
    }
    p->gates = p->s->raw ? qn_gpu_from(rounded, 2 * n * sizeof *rounded) : qn_gpu_from(p->g, 2 * n * sizeof *p->g);
    p->factors = qn_gpu_from(factors, 2 * heads * sizeof *factors);
    qn_free(raw);
    qn_free(rounded);
    qn_free(factors);
}

static void problem_new(struct problem *p, const struct shape *s)
{
    *p = (struct problem){ .s = s,
                           .rows = s->ends[s->n_sequences],
                           .keys = s->k_heads * s->head_k,
                           .values = s->v_heads * s->head_v,
                           .n_state = s->n_sequences * s->v_heads * s->head_v * s->head_k,
                           .element = s->dtype == QN_DTYPE_F32 ? 4 : 2,
                           .state = s->v_heads * s->head_v * s->head_k };
    p->n_pool = (s->n_sequences + (s->pool ? SPARE_STATES : 0)) * p->state;
    p->width = 2 * p->keys + p->values + 16;
    p->q = normal(p->rows * p->keys, 1);
    p->k = normal(p->rows * p->keys, 1);
    p->v = normal(p->rows * p->values, 1);
    p->g = floats(2 * p->rows * s->v_heads);
    p->beta = p->g + p->rows * s->v_heads;
    p->initial = normal(p->n_state, 0.3f);
    p->final = floats(p->n_state);
    p->o = floats(p->rows * p->values);
    draw_gates(p);
    unsigned char *all;
    qn_assert_ok(qn_alloc(&all, p->rows * p->width, p->element, "quern-check"));
    memset(all, 0xff, p->rows * p->width * p->element);
    pack(p, p->q, p->keys, all, 0);
    pack(p, p->k, p->keys, all, p->keys);
    pack(p, p->v, p->values, all, 2 * p->keys);
    p->qkv = qn_gpu_from(all, p->rows * p->width * p->element);
    qn_free(all);
    if (s->pool)
        qn_free(to_bf16(p->initial, p->n_state));
    void *pool = pool_of(p);
    int32_t indices[MAX_SEQUENCES];
    for (size_t i = 0; i < s->n_sequences; i++)
        indices[i] = is_skipped(p, i) ? -1 : (int32_t)index_of(p, i);
    p->states = qn_gpu_from(pool, pool_bytes(p));
    p->indices = qn_gpu_from(indices, s->n_sequences * sizeof *indices);
    qn_free(pool);
    p->seqlens = upload_seqlens(s);
    p->out = qn_gpu_new(p->rows * p->values * p->element);
    p->out_state = qn_gpu_new(pool_bytes(p));
    p->shape = (qn_cuda_gdn_shape){ .batch = 1,
                                    .tokens = p->rows,
                                    .k_heads = s->k_heads,
                                    .v_heads = s->v_heads,
                                    .head_k = s->head_k,
                                    .head_v = s->head_v,
                                    .mapping = s->tiled ? QN_GDN_TILED : QN_GDN_GROUPED,
                                    .scale = 0.09f,
                                    .normalize = true,
                                    .transposed_states = s->transposed,
                                    .sigmoid_beta = s->raw };
    if (s->raw) {
        p->shape.gate_factor = (qn_cuda_view){ at(&p->factors, 0), QN_DTYPE_F32, s->v_heads, 0 };
        p->shape.gate_bias = (qn_cuda_view){ at(&p->factors, s->v_heads * sizeof(float)), QN_DTYPE_F32, s->v_heads, 0 };
    }
    if (s->seqlens != QN_DTYPE_F32) {
        p->shape.n_sequences = s->n_sequences;
        p->shape.cu_seqlens = (qn_cuda_view){ at(&p->seqlens, 0), s->seqlens, s->n_sequences + 1, 0 };
    }
    if (s->pool)
        p->shape.state_indices = (qn_cuda_view){ at(&p->indices, 0), QN_DTYPE_I32, s->n_sequences, 0 };
    size_t bytes;
    qn_assert_ok(qn_cuda_gdn_chunk_workspace(kernels, &p->shape, s->dtype, &bytes));
    p->workspace = qn_gpu_new(bytes ? bytes : 16);
    expected(p);
}

static void problem_free(struct problem *p)
{
    float *const host[] = { p->q, p->k, p->v, p->g, p->initial, p->final, p->o };
    qn_gpu_guarded *const gpu[] = { &p->qkv,     &p->gates,     &p->factors, &p->states,   &p->indices,
                                    &p->seqlens, &p->workspace, &p->out,     &p->out_state };
    for (size_t i = 0; i < sizeof host / sizeof *host; i++)
        qn_free(host[i]);
    for (size_t i = 0; i < sizeof gpu / sizeof *gpu; i++)
        qn_gpu_free(gpu[i]);
}

/* The call, as a chunk or step by step, with the workspace and the outputs of p. */
static qn_status call(const struct problem *p, bool chunk, qn_stream stream)
{
    const struct shape *s = p->s;
    const size_t gates = p->rows * s->v_heads, used = (p->rows - 1) * p->width;
    const qn_dtype gate_type = s->raw ? QN_DTYPE_BF16 : QN_DTYPE_F32;
    const qn_cuda_view q = { at(&p->qkv, 0), s->dtype, used + p->keys, p->width },
                       k = { at(&p->qkv, p->keys * p->element), s->dtype, used + p->keys, p->width },
                       v = { at(&p->qkv, 2 * p->keys * p->element), s->dtype, used + p->values, p->width },
                       g = { at(&p->gates, 0), gate_type, gates, 0 },
                       beta = { at(&p->gates, gates * (s->raw ? sizeof(uint16_t) : sizeof(float))), gate_type, gates, 0 },
                       o = { at(&p->out, 0), s->dtype, p->rows * p->values, 0 },
                       initial = { at(&p->states, 0), s->pool ? QN_DTYPE_BF16 : QN_DTYPE_F32, p->n_pool, 0 },
                       final = { at(&p->out_state, 0), initial.dtype, p->n_pool, 0 };
    if (!chunk)
        return qn_cuda_gdn_step(kernels, &p->shape, q, k, v, g, beta, initial, o, stream);
    return qn_cuda_gdn_chunk(kernels, &p->shape, q, k, v, g, beta, initial, s->in_place ? initial : final, o,
                             at(&p->workspace, 0), p->workspace.bytes, stream);
}

static void poison(const struct problem *p)
{
    qn_gpu_poison(&p->out);
    qn_gpu_poison(&p->out_state);
    qn_gpu_poison(&p->workspace);
    void *pool = pool_of(p);
    qn_gpu_synchronize();
    qn_assert_ok(qn_cuda_upload(qn_gpu(), p->states.data, pool, pool_bytes(p), NULL, NULL));
    qn_free(pool);
}

/* n values of the type that the device wrote. */
static float *read_values(const qn_gpu_guarded *g, size_t n, qn_dtype dtype)
{
    float *x = floats(n);
    uint16_t *rounded;
    if (dtype == QN_DTYPE_F32) {
        qn_gpu_read(g, x);
        return x;
    }
    qn_assert_ok(qn_alloc(&rounded, n, sizeof *rounded, "quern-check"));
    qn_gpu_read(g, rounded);
    for (size_t i = 0; i < n; i++)
        x[i] = dtype == QN_DTYPE_F16 ? qn_f16_to_f32(rounded[i]) : qn_bf16_to_f32(rounded[i]);
    qn_free(rounded);
    return x;
}

static double tolerance_of(const struct shape *s)
{
    if (s->dtype == QN_DTYPE_BF16 || s->pool)
        return TOLERANCE_BF16;
    return s->dtype == QN_DTYPE_F16 ? TOLERANCE_F16 : TOLERANCE_F32;
}

static void expect_unwritten(const char *what, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (x[i] == x[i]) {
            qn_expect(false, "%s: element %zu of a skipped sequence was written", what, i);
            return;
        }
}

static void compare(const struct problem *p, bool in_place)
{
    const struct shape *s = p->s;
    const double tolerance = tolerance_of(s);
    float *o = read_values(&p->out, p->rows * p->values, s->dtype), *found = floats(p->state);
    float *states = read_values(in_place ? &p->states : &p->out_state, p->n_pool, s->pool ? QN_DTYPE_BF16 : QN_DTYPE_F32);
    for (size_t i = 0; i < s->n_sequences; i++) {
        const size_t first = s->ends[i] * p->values, n = s->ends[i + 1] * p->values - first;
        const float *state = states + index_of(p, i) * p->state;
        if (is_skipped(p, i)) {
            expect_unwritten("o", o + first, n);
            expect_unwritten("state", state, p->state);
            continue;
        }
        const double d_o = n ? qn_relative_error(o + first, p->o + first, n) : 0;
        copy_state(p, found, state, true);
        const double d_state = qn_relative_error(found, p->final + i * p->state, p->state);
        qn_expect(d_o <= tolerance, "o of sequence %zu: relative error %.2e", i, d_o);
        qn_expect(d_state <= tolerance, "state of sequence %zu: relative error %.2e", i, d_state);
    }
    qn_expect(qn_gpu_guards_intact(&p->out) && qn_gpu_guards_intact(&p->out_state) && qn_gpu_guards_intact(&p->states) &&
                  qn_gpu_guards_intact(&p->workspace),
              "bytes outside the outputs and the workspace were written");
    qn_free(o);
    qn_free(found);
    qn_free(states);
}

static void check_shape(const struct shape *s)
{
    static const char *const names[] = { "step", "chunk" };
    struct problem p;
    qn_random_seed(s->head_k + s->v_heads + s->ends[1]);
    problem_new(&p, s);
    for (int chunk = 0; chunk < 2; chunk++) {
        qn_case_begin("api", names[chunk],
                      "delta rule, %zu tokens in %zu sequences, heads %zu/%zu of %zu/%zu, type %d, lengths %d%s%s%s%s", p.rows,
                      s->n_sequences, s->k_heads, s->v_heads, s->head_k, s->head_v, (int)s->dtype, (int)s->seqlens,
                      s->in_place ? ", in place" : "", s->pool ? ", states in a pool" : "",
                      s->transposed ? ", transposed states" : "", s->raw ? ", raw gates" : "");
        poison(&p);
        qn_assert_ok(call(&p, chunk, qn_gpu_stream()));
        compare(&p, !chunk || s->in_place);
    }
    problem_free(&p);
}

/* A graph of the call gives the same result, run again and again. */
static void check_capture(const struct shape *s)
{
    struct problem p;
    qn_cuda_graph *graph = NULL;
    qn_random_seed(1);
    problem_new(&p, s);
    qn_assert_ok(qn_cuda_gdn_prepare(kernels, &p.shape, s->dtype));
    qn_assert_ok(qn_cuda_capture_begin(qn_gpu(), qn_gpu_stream()));
    qn_assert_ok(call(&p, true, qn_gpu_stream()));
    qn_assert_ok(qn_cuda_capture_end(qn_gpu(), qn_gpu_stream(), &graph));
    for (int run = 0; run < 3; run++) {
        qn_case_begin("api", "graph", "run %d of a captured call, %zu tokens, heads %zu/%zu", run, p.rows, s->k_heads,
                      s->v_heads);
        poison(&p);
        qn_assert_ok(qn_cuda_graph_launch(qn_gpu(), graph, qn_gpu_stream()));
        compare(&p, s->in_place);
    }
    qn_cuda_graph_free(qn_gpu(), graph);
    problem_free(&p);
}

struct worker {
    struct problem p;
    qn_cuda_stream stream;
    qn_cuda *gpu;
    qn_status status;
};

static void *run_worker(void *context)
{
    enum { CALLS = 20 };
    struct worker *w = context;
    /* Makes the device's context current to this thread. */
    w->status = qn_cuda_stream_synchronize(w->gpu, w->stream);
    for (int i = 0; i < CALLS && !w->status; i++)
        w->status = call(&w->p, true, w->stream);
    if (!w->status)
        w->status = qn_cuda_stream_synchronize(w->gpu, w->stream);
    return NULL;
}

static void check_threads(const struct shape *s)
{
    enum { THREADS = 2 };
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++) {
        qn_random_seed(50 + i);
        workers[i] = (struct worker){ .gpu = qn_gpu() };
        problem_new(&workers[i].p, s);
        poison(&workers[i].p);
        qn_assert_ok(qn_cuda_stream_create(qn_gpu(), &workers[i].stream));
    }
    qn_gpu_synchronize();
    for (size_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, run_worker, &workers[i]) != 0)
            qn_assert_ok(qn_fail(QN_ERR_MEMORY, "no thread"));
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < THREADS; i++) {
        qn_case_begin("api", "threads", "thread %zu of %d, each with a stream", i, (int)THREADS);
        qn_expect(workers[i].status == QN_OK, "%s", qn_status_name(workers[i].status));
        compare(&workers[i].p, false);
        qn_cuda_stream_free(qn_gpu(), workers[i].stream);
        problem_free(&workers[i].p);
    }
}

void qn_check_cuda_api(bool bench)
{
    static const struct shape shapes[] = {
        { QN_DTYPE_BF16, QN_DTYPE_F32, 1, { 0, 1000 }, 2, 4, 128, 128, .tiled = true },
        { QN_DTYPE_BF16, QN_DTYPE_U32, 4, { 0, 1, 64, 64, 700 }, 1, 3, 128, 64, .in_place = true },
        { QN_DTYPE_BF16, QN_DTYPE_I32, 3, { 0, 129, 256, 2000 }, 2, 8, 128, 128, .in_place = true, .transposed = true },
        { QN_DTYPE_BF16, QN_DTYPE_I64, 3, { 0, 500, 501, 1100 }, 1, 2, 128, 192, .tiled = true, .raw = true },
        { QN_DTYPE_BF16, QN_DTYPE_I64, 4, { 0, 100, 300, 301, 1500 }, 2, 4, 128, 128, .tiled = true, .pool = true },
        { QN_DTYPE_BF16,
          QN_DTYPE_I32,
          3,
          { 0, 64, 65, 130 },
          1,
          2,
          128,
          64,
          .in_place = true,
          .pool = true,
          .transposed = true },
        { QN_DTYPE_BF16, QN_DTYPE_F32, 1, { 0, 333 }, 1, 2, 64, 48, .raw = true },
        { QN_DTYPE_BF16, QN_DTYPE_I32, 2, { 0, 100, 400 }, 1, 2, 256, 256, .transposed = true },
        { QN_DTYPE_F16, QN_DTYPE_I32, 2, { 0, 100, 400 }, 1, 2, 192, 96, .transposed = true, .raw = true },
        { QN_DTYPE_F16, QN_DTYPE_U32, 3, { 0, 129, 256, 2000 }, 2, 4, 128, 128, .in_place = true },
        { QN_DTYPE_F16, QN_DTYPE_F32, 1, { 0, 129 }, 2, 2, 96, 64, .tiled = false },
        { QN_DTYPE_F32, QN_DTYPE_F32, 1, { 0, 100 }, 2, 4, 64, 192, .tiled = true, .raw = true },
        { QN_DTYPE_F32, QN_DTYPE_I64, 3, { 0, 7, 8, 90 }, 1, 3, 128, 128, .in_place = true, .transposed = true },
        { QN_DTYPE_F32, QN_DTYPE_I32, 3, { 0, 7, 8, 90 }, 1, 3, 48, 80, .in_place = true, .pool = true },
    };
    qn_assert_ok(qn_cuda_kernels_open(&kernels, qn_cuda_get_info(qn_gpu())->ordinal));
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_shape(&shapes[i]);
    check_capture(&shapes[2]);
    check_threads(&shapes[0]);
    qn_check_api_aura(kernels);
    qn_check_api_attention(kernels);
    qn_check_api_matmul(kernels);
    qn_check_api_rows(kernels);
    qn_check_api_conv(kernels);
    if (bench)
        qn_bench_api(kernels);
    qn_cuda_kernels_close(kernels);
}
