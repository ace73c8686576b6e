/* quern/cuda.h on a GPU: Gated DeltaNet through the public functions against the CPU's, with strided views, all types
 * of elements and of cu_seqlens, states of both orders, in place and in pools, gates computed in the kernels; captured
 * in a graph; from two threads on two streams. Then the checks of the other sections (cuda_api.h). */
#include "cuda_api.h"
#include "cuda_deltanet.h"
#include "cuda_views.h"

#include <pthread.h>

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
    bool pool; /* bf16 states in another order among others, and the sequence SKIPPED has none; else f32, state i */
    bool transposed; /* states are [head_k, head_v] */
    bool raw;        /* g and beta are bf16, before softplus and sigmoid */
};

/* One call: rows hold q, k and v of a token, with a gap after them. */
struct problem {
    const struct shape *s;
    size_t rows, keys, values, state, n_states;         /* elements of a sequence's state; states of the pool */
    float *q, *k, *v, *g, *beta, *o, *final;            /* o and final: expected */
    qn_gpu_rows qkv, gates[2], states, out, out_states; /* gates: g and beta, or their inputs */
    uint64_t workspace;
    qn_cuda_gdn_shape shape;
};

static qn_cuda_kernels *kernels;

/* Columns of the rows of q, k and v: a copy of the values, and a view on the device. */
static float *columns_of(const struct problem *p, size_t first, size_t n)
{
    float *x = qn_floats(p->rows * n);
    for (size_t row = 0; row < p->rows; row++)
        memcpy(x + row * n, p->qkv.values + row * p->qkv.n + first, n * sizeof *x);
    return x;
}

static qn_cuda_view view_columns(const struct problem *p, size_t first, size_t n)
{
    qn_cuda_view all = qn_gpu_rows_view(&p->qkv);
    all.data = (char *)all.data + first * (p->s->dtype == QN_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t));
    all.count -= p->qkv.n - n;
    return all;
}

static size_t index_of(const struct problem *p, size_t sequence)
{
    return p->s->pool ? p->s->n_sequences + SPARE_STATES - 1 - sequence : sequence;
}

static bool is_skipped(const struct problem *p, size_t sequence)
{
    return p->s->pool && sequence == SKIPPED;
}

/* Copies a sequence's state of the pool as [head_v, head_k]. */
static void copy_state(const struct problem *p, float *to, const float *from)
{
    const struct shape *s = p->s;
    if (!s->transposed) {
        memcpy(to, from, p->state * sizeof *to);
        return;
    }
    for (size_t head = 0; head < s->v_heads; head++)
        for (size_t value = 0; value < s->head_v; value++)
            for (size_t key = 0; key < s->head_k; key++) {
                const size_t base = head * s->head_v * s->head_k;
                to[base + value * s->head_k + key] = from[base + key * s->head_v + value];
            }
}

/* All states that no sequence has are NaN. */
static qn_gpu_rows draw_pool(const struct problem *p)
{
    const size_t n = p->n_states * p->state;
    float *all = memset(qn_floats(n), 0xff, n * sizeof *all);
    for (size_t i = 0; i < p->s->n_sequences; i++)
        if (!is_skipped(p, i))
            qn_random_floats(all + index_of(p, i) * p->state, p->state, 0.3f);
    return qn_gpu_rows_of(all, p->s->pool ? QN_DTYPE_BF16 : QN_DTYPE_F32, p->n_states, p->state, 0, 0);
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
                                 .mapping = p->shape.mapping,
                                 .scale = p->shape.scale,
                                 .normalize = true,
                                 .n_sequences = s->n_sequences,
                                 .cu_seqlens = { (void *)(uintptr_t)s->ends, QN_DTYPE_U32, s->n_sequences + 1 } };
    for (size_t i = 0; i < s->n_sequences; i++)
        if (!is_skipped(p, i))
            copy_state(p, p->final + i * p->state, p->states.values + index_of(p, i) * p->state);
    qn_assert_ok(qn_gdn_step(&shape, view(p->q, p->rows * p->keys), view(p->k, p->rows * p->keys),
                             view(p->v, p->rows * p->values), view(p->g, p->rows * s->v_heads),
                             view(p->beta, p->rows * s->v_heads), view(p->final, s->n_sequences * p->state),
                             view(p->o, p->rows * p->values)));
}

/* Log decays and beta; with raw gates, the device has their inputs. */
static void draw_gates(struct problem *p)
{
    const size_t heads = p->s->v_heads, n = p->rows * heads;
    float *factor = qn_floats_of(heads, 1), *bias = qn_floats_of(heads, 1);
    for (size_t h = 0; h < heads; h++)
        factor[h] = -expf(factor[h] - 2);
    for (size_t i = 0; i < 2; i++)
        p->gates[i] = qn_gpu_rows_random(p->s->raw ? QN_DTYPE_BF16 : QN_DTYPE_F32, p->rows, heads, 0, 0, 1);
    for (size_t i = 0; i < n; i++) {
        float *raw_g = p->gates[0].values + i, *raw_beta = p->gates[1].values + i;
        p->g[i] = p->s->raw ? factor[i % heads] * log1pf(expf(*raw_g + bias[i % heads])) : draw_decay(MILD);
        p->beta[i] = p->s->raw ? 1 / (1 + expf(-*raw_beta)) : (float)uniform();
        if (!p->s->raw) {
            *raw_g = p->g[i];
            *raw_beta = p->beta[i];
        }
    }
    for (size_t i = 0; i < 2; i++)
        qn_gpu_rows_reset(&p->gates[i]);
    if (p->s->raw) {
        p->shape.gate_factor = qn_array_view(qn_gpu_copy(factor), QN_DTYPE_F32);
        p->shape.gate_bias = qn_array_view(qn_gpu_copy(bias), QN_DTYPE_F32);
    }
}

static void problem_new(struct problem *p, const struct shape *s)
{
    *p = (struct problem){ .s = s,
                           .rows = s->ends[s->n_sequences],
                           .keys = s->k_heads * s->head_k,
                           .values = s->v_heads * s->head_v,
                           .state = s->v_heads * s->head_v * s->head_k,
                           .n_states = s->n_sequences + (s->pool ? SPARE_STATES : 0),
                           .shape = { .batch = 1,
                                      .tokens = s->ends[s->n_sequences],
                                      .k_heads = s->k_heads,
                                      .v_heads = s->v_heads,
                                      .head_k = s->head_k,
                                      .head_v = s->head_v,
                                      .mapping = s->tiled ? QN_GDN_TILED : QN_GDN_GROUPED,
                                      .scale = 0.09f,
                                      .normalize = true,
                                      .transposed_states = s->transposed,
                                      .sigmoid_beta = s->raw } };
    p->qkv = qn_gpu_rows_random(s->dtype, p->rows, 2 * p->keys + p->values, 16, 0, 1);
    p->q = columns_of(p, 0, p->keys);
    p->k = columns_of(p, p->keys, p->keys);
    p->v = columns_of(p, 2 * p->keys, p->values);
    p->g = qn_floats(p->rows * s->v_heads);
    p->beta = qn_floats(p->rows * s->v_heads);
    p->final = qn_floats(s->n_sequences * p->state);
    p->o = qn_floats(p->rows * p->values);
    draw_gates(p);
    p->states = draw_pool(p);
    p->out = qn_gpu_rows_poison(s->dtype, p->rows, p->values, 0, 0);
    p->out_states = qn_gpu_rows_poison(p->states.dtype, p->n_states, p->state, 0, 0);
    if (s->seqlens != QN_DTYPE_F32) {
        p->shape.n_sequences = s->n_sequences;
        p->shape.cu_seqlens = qn_seqlens_view(s->ends, s->n_sequences, s->seqlens);
    }
    if (s->pool) {
        int32_t *indices = qn_new(s->n_sequences, sizeof *indices);
        for (size_t i = 0; i < s->n_sequences; i++)
            indices[i] = is_skipped(p, i) ? -1 : (int32_t)index_of(p, i);
        p->shape.state_indices = qn_array_view(qn_gpu_copy(indices), QN_DTYPE_I32);
    }
    size_t bytes;
    qn_assert_ok(qn_cuda_gdn_chunk_workspace(kernels, &p->shape, s->dtype, &bytes));
    p->workspace = qn_gpu_new(bytes ? bytes : 16);
    expected(p);
}

/* The call, as a chunk or step by step, with the workspace and the outputs of p. */
static qn_status call(const struct problem *p, bool chunk, qn_stream stream)
{
    const struct shape *s = p->s;
    const qn_cuda_view q = view_columns(p, 0, p->keys), k = view_columns(p, p->keys, p->keys),
                       v = view_columns(p, 2 * p->keys, p->values), g = qn_gpu_rows_view(&p->gates[0]),
                       beta = qn_gpu_rows_view(&p->gates[1]), o = qn_gpu_rows_view(&p->out),
                       initial = qn_gpu_rows_view(&p->states), final = qn_gpu_rows_view(&p->out_states);
    if (!chunk)
        return qn_cuda_gdn_step(kernels, &p->shape, q, k, v, g, beta, initial, o, stream);
    return qn_cuda_gdn_chunk(kernels, &p->shape, q, k, v, g, beta, initial, s->in_place ? initial : final, o,
                             (void *)(uintptr_t)p->workspace, qn_gpu_bytes(p->workspace), stream);
}

static void poison(const struct problem *p)
{
    qn_gpu_rows_reset(&p->out);
    qn_gpu_rows_reset(&p->out_states);
    qn_gpu_rows_reset(&p->states);
    qn_gpu_poison(p->workspace);
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
    const qn_gpu_rows *written = in_place ? &p->states : &p->out_states,
                      *other = in_place ? &p->out_states : &p->states;
    float *o = qn_gpu_rows_read(&p->out, "o"), *states = qn_gpu_rows_read(written, "states"),
          *found = qn_floats(p->state);
    for (size_t i = 0; i < s->n_sequences; i++) {
        const size_t first = s->ends[i] * p->values, n = s->ends[i + 1] * p->values - first;
        const float *state = states + index_of(p, i) * p->state;
        if (is_skipped(p, i)) {
            expect_unwritten("o", o + first, n);
            expect_unwritten("state", state, p->state);
            continue;
        }
        const double d_o = n ? qn_relative_error(o + first, p->o + first, n) : 0;
        copy_state(p, found, state);
        const double d_state = qn_relative_error(found, p->final + i * p->state, p->state);
        qn_expect(d_o <= tolerance, "o of sequence %zu: relative error %.2e", i, d_o);
        qn_expect(d_state <= tolerance, "state of sequence %zu: relative error %.2e", i, d_state);
    }
    qn_gpu_rows_expect_unchanged(other, in_place ? "final, which the call does not have" : "initial");
    qn_expect_guards();
}

static void check_shape(const struct shape *s)
{
    static const char *const names[] = { "step", "chunk" };
    struct problem p;
    qn_random_seed(s->head_k + s->v_heads + s->ends[1]);
    problem_new(&p, s);
    for (int chunk = 0; chunk < 2; chunk++) {
        qn_case_begin("api", names[chunk],
                      "delta rule, %zu tokens in %zu sequences, heads %zu/%zu of %zu/%zu, type %d, lengths %d%s%s%s%s",
                      p.rows, s->n_sequences, s->k_heads, s->v_heads, s->head_k, s->head_v, (int)s->dtype,
                      (int)s->seqlens, s->in_place ? ", in place" : "", s->pool ? ", states in a pool" : "",
                      s->transposed ? ", transposed states" : "", s->raw ? ", raw gates" : "");
        poison(&p);
        qn_assert_ok(call(&p, chunk, qn_gpu_stream()));
        compare(&p, !chunk || s->in_place);
    }
    qn_release();
}

/* A graph of the call gives the same result, run again and again. */
static void check_capture(const struct shape *s)
{
    struct problem p;
    qn_random_seed(1);
    problem_new(&p, s);
    qn_assert_ok(qn_cuda_gdn_prepare(kernels, &p.shape, s->dtype));
    qn_gpu_capture_begin();
    qn_assert_ok(call(&p, true, qn_gpu_stream()));
    qn_cuda_graph *graph = qn_gpu_capture_end();
    for (int run = 0; run < 3; run++) {
        qn_case_begin("api", "graph", "run %d of a captured call, %zu tokens, heads %zu/%zu", run, p.rows, s->k_heads,
                      s->v_heads);
        poison(&p);
        qn_gpu_graph_launch(graph);
        compare(&p, s->in_place);
    }
    qn_release();
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
    }
    qn_release();
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
    kernels = qn_api();
    for (size_t i = 0; i < QN_LENGTH(shapes); i++)
        check_shape(&shapes[i]);
    check_capture(&shapes[2]);
    check_threads(&shapes[0]);
    qn_check_api_aura();
    qn_check_api_attention();
    qn_check_api_matmul();
    qn_check_api_rows();
    qn_check_api_conv();
    if (bench)
        qn_bench_api();
}
