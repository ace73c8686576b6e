/* Gated DeltaNet on the GPU: the chunk kernels on tensor cores and the token-by-token kernels against the CPU's f32
 * kernels, which are within 1e-5 of the recurrence in float64; and layers, in pieces as the engine computes them.
 * Covers lengths, decays, keys, head mappings, ragged sequences and strides. */
#include "cuda_deltanet.h"

#include "base/f16.h"
#include "base/memory.h"
#include "kernels/deltanet/deltanet.h"
#include "cuda/kernels/deltanet/deltanet.h"
#include "quern/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The project's tolerance for bf16 from end to end: a rounding is 1.7e-3 rms, and there are eight in sequence.
 * Measured: at most 6.3e-3, for equal keys. */
#define BAR_BF16 1e-2
/* f16 has three bits more. */
#define BAR_F16 2e-3
/* The tolerance of the CPU's f32 kernels. Measured: 2e-7. */
#define BAR_F32 1e-5

enum { MAX_SEQUENCES = 6 };

/* ---- The delta rule alone ---- */

enum keys { RANDOM_KEYS, SIMILAR_KEYS, EQUAL_KEYS, KEYS };

struct rule {
    size_t n_sequences;
    uint32_t ends[MAX_SEQUENCES + 1];
    size_t k_heads, v_heads, head_k, head_v;
    bool f16; /* else bf16 */
    bool tiled, normalize, initial;
    bool in_place;    /* with an initial state: the final state replaces it */
    bool planes;      /* states as the engine has them; else f32 */
    bool interleaved; /* a row holds q, k and v; else q, k and v are separate arrays */
    enum decay decay;
    enum keys keys;
};

/* Rows of heads: unit vectors, or of any norm if the kernel normalises. */
static float *draw_vectors(const struct rule *r, size_t rows, enum keys keys)
{
    const size_t head_k = r->head_k, width = r->k_heads * head_k;
    float *x = normal(rows * width, 1), *shared = normal(width, 1);
    for (size_t i = 0; i < rows * width; i++)
        if (keys != RANDOM_KEYS)
            x[i] = shared[i % width] + (keys == SIMILAR_KEYS ? 0.05f * x[i] : 0);
    for (size_t head = 0; head < rows * r->k_heads; head++) {
        float *row = x + head * head_k, sum = 0;
        for (size_t i = 0; i < head_k; i++)
            sum += row[i] * row[i];
        for (size_t i = 0; i < head_k; i++)
            row[i] *= r->normalize ? 1.7f : 1 / sqrtf(sum);
    }
    qn_free(shared);
    return x;
}

/* Interleaved: rows of q, k, v; else all of q, then all of k, then all of v. */
static uint16_t *pack_qkv(const struct rule *r, const uint16_t *const qkv_parts[3], const size_t widths[3], size_t rows)
{
    const size_t width = widths[0] + widths[1] + widths[2];
    size_t before = 0;
    uint16_t *all;
    qn_assert_ok(qn_alloc(&all, rows * width, sizeof *all, "quern-check"));
    for (int p = 0; p < 3; before += widths[p++])
        for (size_t row = 0; row < rows; row++)
            memcpy(all + (r->interleaved ? row * width + before : rows * before + row * widths[p]),
                   qkv_parts[p] + row * widths[p], widths[p] * sizeof *all);
    return all;
}

/* The CPU's result, token by token. Tokens outside of all sequences are not written. */
static void expected_rule(const struct rule *r, const float *q, const float *k, const float *v, const float *g,
                          const float *beta, float *state, float *o)
{
    const uint32_t tokens = r->ends[r->n_sequences];
    const qn_gdn_shape shape = { .batch = 1,
                                 .tokens = tokens,
                                 .k_heads = r->k_heads,
                                 .v_heads = r->v_heads,
                                 .head_k = r->head_k,
                                 .head_v = r->head_v,
                                 .mapping = r->tiled ? QN_GDN_TILED : QN_GDN_GROUPED,
                                 .scale = 0.0884f,
                                 .normalize = r->normalize,
                                 .n_sequences = r->n_sequences,
                                 .cu_seqlens = { (void *)(uintptr_t)r->ends, QN_DTYPE_U32, r->n_sequences + 1 } };
    const size_t n_k = tokens * r->k_heads * r->head_k, n_v = tokens * r->v_heads * r->head_v,
                 n_gates = tokens * r->v_heads;
    qn_assert_ok(qn_gdn_step(&shape, view(q, n_k), view(k, n_k), view(v, n_v), view(g, n_gates), view(beta, n_gates),
                             view(state, r->n_sequences * r->v_heads * r->head_v * r->head_k), view(o, n_v)));
}

/* division: NULL for the token-by-token kernel. */
static void launch_rule(qn_gdn_chunk_args *args, const qn_gdn_division *division, uint64_t workspace)
{
    qn_gdn_chunk_launches chunk = { .n = 1 };
    qn_assert_ok(division
                     ? qn_gdn_gpu_chunk(args, division, qn_cuda_get_info(qn_gpu())->max_shared_bytes, workspace, &chunk)
                     : qn_gdn_gpu_recurrent(args, &chunk.launches[0]));
    for (size_t i = 0; i < chunk.n; i++)
        qn_gpu_launch(&chunk.launches[i], args);
}

/* Run twice into poisoned outputs, or from `initial`, which is as in memory, where it is replaced: the same bits both
 * times, and within the tolerance. */
static void check_outputs(qn_gdn_chunk_args *args, const qn_gdn_division *division, const qn_gpu_guarded *workspace,
                          const qn_gpu_guarded outputs[2], const float *initial, const float *expected_o,
                          const float *expected_state)
{
    const size_t n_o = outputs[0].bytes / 2, n_state = outputs[1].bytes / sizeof(float);
    uint16_t *o[2];
    float *state[2] = { floats(n_state), floats(n_state) }, *found = floats(n_o);
    for (int run = 0; run < 2; run++) {
        qn_assert_ok(qn_alloc(&o[run], n_o, sizeof *o[run], "quern-check"));
        qn_gpu_poison(&outputs[0]);
        qn_gpu_poison(&outputs[1]);
        qn_gpu_synchronize(); /* uploads run in another stream */
        if (args->initial == args->final)
            qn_assert_ok(qn_cuda_upload(qn_gpu(), args->final, initial, n_state * sizeof *initial, NULL, NULL));
        qn_gpu_poison(workspace);
        launch_rule(args, division, workspace->data);
        qn_gpu_read(&outputs[0], o[run]);
        qn_gpu_read(&outputs[1], state[run]);
    }
    for (size_t i = 0; i < n_o; i++)
        found[i] = args->dtype == QN_DTYPE_F16 ? qn_f16_to_f32(o[0][i]) : qn_bf16_to_f32(o[0][i]);
    const double bar = args->dtype == QN_DTYPE_F16 ? BAR_F16 : BAR_BF16;
    qn_expect(!memcmp(o[0], o[1], n_o * sizeof *o[0]) && !memcmp(state[0], state[1], n_state * sizeof(float)),
              "a second run gave different bits");
    if (args->state_type == QN_GDN_STATE_PLANES)
        qn_join_states(state[0], args->sequences, n_state / args->sequences);
    expect_close("o", found, expected_o, n_o, bar);
    expect_close("state", state[0], expected_state, n_state, bar);
    qn_expect(qn_gpu_guards_intact(&outputs[0]) && qn_gpu_guards_intact(&outputs[1]) && qn_gpu_guards_intact(workspace),
              "bytes outside the outputs and the workspace were written");
    for (int run = 0; run < 2; run++) {
        qn_free(o[run]);
        qn_free(state[run]);
    }
    qn_free(found);
}

/* Pieces of this number of chunks, 0 for heads that are not divided: of one chunk, of a part of a head, of several
 * heads. Decays forget a state within a piece, or not. */
static const struct {
    uint32_t chunks, slices;
} divisions[] = { { 0, 1 }, { 0, 2 }, { 1, 2 }, { 2, 1 }, { 3, 2 }, { 7, 1 }, { 7, 2 }, { 40, 2 } };
enum { N_DIVISIONS = sizeof divisions / sizeof *divisions };

static qn_gdn_division division_of(const qn_gdn_chunk_args *args, size_t i)
{
    const uint32_t chunks = divisions[i].chunks;
    const uint32_t all = (args->tokens / QN_GDN_CHUNK_TOKENS + args->sequences) * args->v_heads;
    return (qn_gdn_division){ chunks ? (all + chunks - 1) / chunks : 0, divisions[i].slices };
}

static void check_rule(const struct rule *r)
{
    if (!qn_case_selected())
        return;
    const size_t rows = r->ends[r->n_sequences], n_gates = rows * r->v_heads;
    const size_t widths[3] = { r->k_heads * r->head_k, r->k_heads * r->head_k, r->v_heads * r->head_v };
    const size_t width = widths[0] + widths[1] + widths[2], n_state = r->n_sequences * widths[2] * r->head_k;
    const qn_dtype dtype = r->f16 ? QN_DTYPE_F16 : QN_DTYPE_BF16;
    float *x[3] = { draw_vectors(r, rows, RANDOM_KEYS), draw_vectors(r, rows, r->keys), normal(rows * widths[2], 1) };
    float *g = floats(n_gates), *beta = floats(n_gates), *state = floats(n_state), *o = floats(rows * widths[2]);
    float *first_state = floats(n_state);
    uint16_t *qkv_parts[3];
    for (int p = 0; p < 3; p++)
        qkv_parts[p] = to_16_bits(x[p], rows * widths[p], dtype);
    for (size_t i = 0; i < n_gates; i++) {
        g[i] = draw_decay(r->decay);
        beta[i] = (float)uniform();
    }
    if (r->initial)
        qn_random_floats(state, n_state, 0.3f);
    else
        memset(state, 0, n_state * sizeof *state);
    memcpy(first_state, state, n_state * sizeof *state);
    if (r->planes)
        qn_split_states(first_state, r->n_sequences, n_state / r->n_sequences);
    uint16_t *all = pack_qkv(r, (const uint16_t *const *)qkv_parts, widths, rows);
    qn_gpu_guarded inputs = qn_gpu_from(all, rows * width * 2),
                   gates[2] = { qn_gpu_from(g, n_gates * sizeof *g), qn_gpu_from(beta, n_gates * sizeof *g) };
    qn_gpu_guarded initial = qn_gpu_from(first_state, n_state * sizeof *state),
                   ends = qn_gpu_from(r->ends, sizeof r->ends);
    qn_gpu_guarded outputs[2] = { qn_gpu_new(rows * widths[2] * 2), qn_gpu_new(n_state * sizeof *state) };
    expected_rule(r, x[0], x[1], x[2], g, beta, state, o);
    qn_gdn_chunk_args args = { .q = inputs.data,
                               .k = inputs.data + 2 * (r->interleaved ? widths[0] : rows * widths[0]),
                               .v = inputs.data + 4 * (r->interleaved ? widths[0] : rows * widths[0]),
                               .g = gates[0].data,
                               .beta = gates[1].data,
                               .initial = !r->initial   ? 0
                                          : r->in_place ? outputs[1].data
                                                        : initial.data,
                               .final = outputs[1].data,
                               .state_type = r->planes ? QN_GDN_STATE_PLANES : QN_GDN_STATE_F32,
                               .o = outputs[0].data,
                               .cu_seqlens = r->n_sequences > 1 ? ends.data : 0,
                               .tokens = (uint32_t)rows,
                               .sequences = (uint32_t)r->n_sequences,
                               .k_heads = (uint32_t)r->k_heads,
                               .v_heads = (uint32_t)r->v_heads,
                               .head_k = (uint32_t)r->head_k,
                               .head_v = (uint32_t)r->head_v,
                               .dtype = dtype,
                               .q_stride = (uint32_t)(r->interleaved ? width : widths[0]),
                               .k_stride = (uint32_t)(r->interleaved ? width : widths[1]),
                               .v_stride = (uint32_t)(r->interleaved ? width : widths[2]),
                               .o_stride = (uint32_t)widths[2],
                               .g_stride = (uint32_t)r->v_heads,
                               .beta_stride = (uint32_t)r->v_heads,
                               .tiled = r->tiled,
                               .normalize = r->normalize,
                               .scale = 0.0884f };
    for (size_t d = 0; d <= N_DIVISIONS; d++) {
        const qn_gdn_division chosen = d < N_DIVISIONS ? division_of(&args, d) : (qn_gdn_division){ 0 };
        const qn_gdn_division *division = d < N_DIVISIONS ? &chosen : NULL;
        if (division ? r->head_k > QN_GDN_MAX_SPAN_KEY && (division->pieces || division->slices > 1) : r->planes)
            continue;
        const size_t bytes = division ? qn_gdn_gpu_workspace_bytes(&args, division) : sizeof(uint32_t);
        qn_gpu_guarded workspace = qn_gpu_new(bytes);
        qn_case_begin(
            "deltanet", division ? "chunks" : "recurrent",
            "%zu tokens in %zu sequences, heads %zu/%zu of %zu/%zu%s%s%s%s%s%s, decay %d, keys %d, %u pieces, "
            "%u slices",
            rows, r->n_sequences, r->k_heads, r->v_heads, r->head_k, r->head_v, r->f16 ? ", f16" : "",
            r->tiled ? ", tiled" : "", r->normalize ? ", normalised" : "",
            !r->initial   ? ""
            : r->in_place ? ", with a state in place"
                          : ", with a state",
            r->planes ? ", planes" : "", r->interleaved ? ", interleaved" : "", (int)r->decay, (int)r->keys,
            division ? division->pieces : 0, division ? division->slices : 0);
        check_outputs(&args, division, &workspace, outputs, first_state, o, state);
        qn_gpu_free(&workspace);
    }
    for (int p = 0; p < 3; p++) {
        qn_free(x[p]);
        qn_free(qkv_parts[p]);
    }
    qn_free(g);
    qn_free(beta);
    qn_free(state);
    qn_free(first_state);
    qn_free(o);
    qn_free(all);
    qn_gpu_free(&inputs);
    qn_gpu_free(&gates[0]);
    qn_gpu_free(&gates[1]);
    qn_gpu_free(&initial);
    qn_gpu_free(&ends);
    qn_gpu_free(&outputs[0]);
    qn_gpu_free(&outputs[1]);
}

static void check_rules(void)
{
    static const uint32_t lengths[] = { 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 200, 1000 };
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        qn_random_seed(i);
        check_rule(&(struct rule){ .n_sequences = 1,
                                   .ends = { 0, lengths[i] },
                                   .k_heads = 1,
                                   .v_heads = 2,
                                   .head_k = 128,
                                   .head_v = 128,
                                   .tiled = i & 1,
                                   .normalize = true,
                                   .initial = i % 3 == 0,
                                   .in_place = i & 1,
                                   .planes = i & 1,
                                   .interleaved = i / 2 & 1,
                                   .decay = i & 1 ? MIXED : MILD });
    }
    for (int decay = NONE; decay < DECAYS; decay++)
        for (int keys = RANDOM_KEYS; keys < KEYS; keys++) {
            qn_random_seed((uint64_t)(100 + decay * KEYS + keys));
            check_rule(&(struct rule){ .n_sequences = 1,
                                       .ends = { 0, 333 },
                                       .k_heads = 1,
                                       .v_heads = 1,
                                       .head_k = 128,
                                       .head_v = 128,
                                       .normalize = keys != EQUAL_KEYS,
                                       .initial = true,
                                       .in_place = keys == SIMILAR_KEYS,
                                       .decay = (enum decay)decay,
                                       .keys = (enum keys)keys });
        }
    for (int variant = 0; variant < 6; variant++) {
        qn_random_seed((uint64_t)(200 + variant));
        check_rule(&(struct rule){ .n_sequences = 5,
                                   .ends = { 0, 5, 5, 69, 198, 598 },
                                   .k_heads = 2,
                                   .v_heads = variant < 2 ? 6 : 2,
                                   .head_k = 128,
                                   .head_v = variant < 2 ? 128 : (size_t)(variant - 1) * 64,
                                   .tiled = variant & 1,
                                   .normalize = true,
                                   .initial = variant % 3 != 0,
                                   .in_place = variant > 2,
                                   .planes = variant % 3 == 1,
                                   .interleaved = true,
                                   .decay = variant & 1 ? MIXED : MILD });
    }
    qn_random_seed(300);
    check_rule(&(struct rule){ .n_sequences = 1,
                               .ends = { 0, 4096 },
                               .k_heads = 2,
                               .v_heads = 4,
                               .head_k = 128,
                               .head_v = 128,
                               .tiled = true,
                               .normalize = true,
                               .initial = true,
                               .in_place = true,
                               .planes = true,
                               .decay = MILD });
}

/* Keys and values of other sizes, and f16. */
static void check_sizes(void)
{
    static const struct {
        size_t head_k, head_v;
        bool f16;
    } sizes[] = { { 64, 64, false },   { 64, 128, true },   { 96, 96, false }, { 16, 48, false },   { 128, 128, true },
                  { 128, 80, false },  { 192, 192, false }, { 208, 64, true }, { 256, 256, false }, { 256, 112, true },
                  { 128, 256, false }, { 256, 128, false }, { 112, 64, false } };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int decay = NONE; decay < DECAYS; decay += 2) {
            qn_random_seed(400 + 10 * i + (size_t)decay);
            check_rule(&(struct rule){ .n_sequences = 4,
                                       .ends = { 0, 70, 70, 71, 421 },
                                       .k_heads = 1,
                                       .v_heads = 2,
                                       .head_k = sizes[i].head_k,
                                       .head_v = sizes[i].head_v,
                                       .f16 = sizes[i].f16,
                                       .tiled = decay > NONE,
                                       .normalize = true,
                                       .initial = decay != NONE,
                                       .in_place = i & 1,
                                       .planes = i % 4 > 1,
                                       .interleaved = i & 1,
                                       .decay = (enum decay)decay });
        }
}

/* ---- A layer: pieces of rows as the engine computes them, complete chunks by the chunk kernels, others in open chunks
 * ---- */

enum { SESSIONS = 2, LAYER_TOKENS = 390, CHUNK = QN_GDN_CHUNK_TOKENS };

struct layer {
    struct delta_layer h;
    qn_gpu_guarded gpu_qkv, gpu_alpha, gpu_beta_in, gpu_gate, gpu_conv, gpu_bias, gpu_factor, gpu_norm;
    qn_gpu_guarded out, y, o, g, beta, workspace; /* y, o: rows of a piece, in bf16 */
    qn_gpu_guarded states, open, arrivals;        /* two state slots and one open slot for each session */
    size_t state_bytes, history;
    qn_gdn_gpu gpu;
    qn_gdn_open_args args;
};

static const qn_gdn_division undivided = { 0, 1 };

/* n rows of a session from `token` on, without addresses of states. */
static qn_gdn_chunk_args chunk_args_of(const struct layer *l, size_t n)
{
    const size_t keys = l->h.k_heads * l->h.head_k;
    return (qn_gdn_chunk_args){ .q = l->y.data,
                                .k = l->y.data + keys * sizeof(uint16_t),
                                .v = l->y.data + 2 * keys * sizeof(uint16_t),
                                .g = l->g.data,
                                .beta = l->beta.data,
                                .o = l->o.data,
                                .tokens = (uint32_t)n,
                                .sequences = 1,
                                .k_heads = (uint32_t)l->h.k_heads,
                                .v_heads = (uint32_t)l->h.v_heads,
                                .head_k = (uint32_t)l->h.head_k,
                                .head_v = (uint32_t)l->h.head_v,
                                .dtype = QN_DTYPE_BF16,
                                .q_stride = (uint32_t)l->h.width,
                                .k_stride = (uint32_t)l->h.width,
                                .v_stride = (uint32_t)l->h.width,
                                .o_stride = (uint32_t)l->h.values,
                                .g_stride = (uint32_t)l->h.v_heads,
                                .beta_stride = (uint32_t)l->h.v_heads,
                                .tiled = true,
                                .normalize = true,
                                .scale = qn_delta_layer_scale(&l->h) };
}

static void layer_new(struct layer *l)
{
    const size_t rows = SESSIONS * LAYER_TOKENS;
    const qn_cuda_info *info = qn_cuda_get_info(qn_gpu());
    l->gpu = (qn_gdn_gpu){ .max_shared_bytes = info->max_shared_bytes, .n_sms = info->n_sms };
    qn_delta_layer_draw(&l->h);
    qn_delta_layer_expect(&l->h);
    const struct delta_layer *h = &l->h;
    l->gpu_qkv = qn_gpu_from(h->qkv, rows * h->width * sizeof(float));
    l->gpu_alpha = qn_gpu_from(h->alpha, rows * h->v_heads * sizeof(float));
    l->gpu_beta_in = qn_gpu_from(h->beta_in, rows * h->v_heads * sizeof(float));
    l->gpu_gate = qn_gpu_from(h->gate, rows * h->values * sizeof(float));
    l->gpu_conv = qn_gpu_from(h->conv, h->taps * h->width * sizeof(float));
    l->gpu_bias = qn_gpu_from(h->bias, h->v_heads * sizeof(float));
    l->gpu_factor = qn_gpu_from(h->factor, h->v_heads * sizeof(float));
    l->gpu_norm = qn_gpu_from(h->norm, h->head_v * sizeof(float));
    l->out = qn_gpu_new(rows * h->values * sizeof(float));
    l->y = qn_gpu_new(LAYER_TOKENS * h->width * sizeof(uint16_t));
    l->o = qn_gpu_new(LAYER_TOKENS * h->values * sizeof(uint16_t));
    l->g = qn_gpu_new(LAYER_TOKENS * h->v_heads * sizeof(float));
    l->beta = qn_gpu_new(LAYER_TOKENS * h->v_heads * sizeof(float));
    const qn_gdn_chunk_args longest = chunk_args_of(l, LAYER_TOKENS);
    l->workspace = qn_gpu_new(qn_gdn_gpu_workspace_bytes(&longest, &undivided));
    l->state_bytes = qn_gdn_gpu_state_bytes(h->k_heads, h->v_heads, h->head_k, h->head_v, h->taps);
    l->history = qn_gdn_gpu_history(h->v_heads, h->head_k, h->head_v);
    const qn_gdn_open_layout layout = qn_gdn_gpu_open_layout(h->k_heads, h->v_heads, h->head_k, h->head_v, h->taps);
    const uint32_t zeros[16] = { 0 };
    l->states = qn_gpu_new(2 * SESSIONS * l->state_bytes);
    l->open = qn_gpu_new(SESSIONS * layout.bytes);
    l->arrivals = qn_gpu_from(zeros, h->k_heads * sizeof *zeros);
    l->args = (qn_gdn_open_args){ .qkv = l->gpu_qkv.data,
                                  .alpha = l->gpu_alpha.data,
                                  .beta = l->gpu_beta_in.data,
                                  .gate = l->gpu_gate.data,
                                  .conv = l->gpu_conv.data,
                                  .bias = l->gpu_bias.data,
                                  .factor = l->gpu_factor.data,
                                  .norm = l->gpu_norm.data,
                                  .out = l->out.data,
                                  .arrivals = l->arrivals.data,
                                  .states = l->states.data,
                                  .open = l->open.data,
                                  .state_stride = l->state_bytes,
                                  .open_stride = layout.bytes,
                                  .layers = 1,
                                  .sequences = 1,
                                  .k_heads = (uint32_t)h->k_heads,
                                  .v_heads = (uint32_t)h->v_heads,
                                  .taps = (uint32_t)h->taps,
                                  .qkv_stride = (uint32_t)h->width,
                                  .alpha_stride = (uint32_t)h->v_heads,
                                  .beta_stride = (uint32_t)h->v_heads,
                                  .gate_stride = (uint32_t)h->values,
                                  .out_stride = (uint32_t)h->values,
                                  .grouped = true,
                                  .scale = qn_delta_layer_scale(h),
                                  .eps = QN_DELTA_LAYER_EPS };
}

static void layer_free(struct layer *l)
{
    qn_gpu_guarded *const gpu[] = { &l->gpu_qkv,   &l->gpu_alpha,  &l->gpu_beta_in, &l->gpu_gate, &l->gpu_conv,
                                    &l->gpu_bias,  &l->gpu_factor, &l->gpu_norm,    &l->out,      &l->y,
                                    &l->o,         &l->g,          &l->beta,        &l->states,   &l->open,
                                    &l->workspace, &l->arrivals };
    qn_delta_layer_free(&l->h);
    for (size_t i = 0; i < sizeof gpu / sizeof *gpu; i++)
        qn_gpu_free(gpu[i]);
}

static void open_rows(struct layer *l, const qn_gdn_open_sequence *rows)
{
    qn_launch launch;
    l->args.sequence = *rows;
    if (rows->begin == rows->end)
        return;
    qn_assert_ok(qn_gdn_gpu_open_step(&l->args, l->h.head_k, l->h.head_v, &l->gpu, &launch));
    qn_gpu_launch(&launch, &l->args);
}

static void fold(struct layer *l, const qn_gdn_open_sequence *sequence)
{
    qn_launch launch;
    l->args.sequence = *sequence;
    qn_assert_ok(qn_gdn_gpu_open_fold(&l->args, l->h.head_k, l->h.head_v, &l->gpu, &launch));
    qn_gpu_launch(&launch, &l->args);
}

/* n rows from `row` on, of all sessions' rows; from: address of the state before them, or 0; to: of the one after
 * them. */
static void complete_chunks(const struct layer *l, size_t row, size_t n, uint64_t from, uint64_t to)
{
    const uint64_t gates = row * l->h.v_heads * sizeof(float), values = row * l->h.values * sizeof(float);
    const qn_gdn_conv_args conv = { .qkv = l->gpu_qkv.data + row * l->h.width * sizeof(float),
                                    .alpha = l->gpu_alpha.data + gates,
                                    .beta_in = l->gpu_beta_in.data + gates,
                                    .conv = l->gpu_conv.data,
                                    .bias = l->gpu_bias.data,
                                    .factor = l->gpu_factor.data,
                                    .out = l->y.data,
                                    .g = l->g.data,
                                    .beta = l->beta.data,
                                    .history = from ? from + l->history : 0,
                                    .last = to + l->history,
                                    .rows = (uint32_t)n,
                                    .k_heads = (uint32_t)l->h.k_heads,
                                    .v_heads = (uint32_t)l->h.v_heads,
                                    .taps = (uint32_t)l->h.taps,
                                    .qkv_stride = (uint32_t)l->h.width,
                                    .alpha_stride = (uint32_t)l->h.v_heads,
                                    .beta_stride = (uint32_t)l->h.v_heads,
                                    .out_stride = (uint32_t)l->h.width };
    const qn_gdn_norm_args norm = { .o = l->o.data,
                                    .gate = l->gpu_gate.data + values,
                                    .norm = l->gpu_norm.data,
                                    .out = l->out.data + values,
                                    .rows = (uint32_t)n,
                                    .k_heads = (uint32_t)l->h.k_heads,
                                    .v_heads = (uint32_t)l->h.v_heads,
                                    .o_stride = (uint32_t)l->h.values,
                                    .gate_stride = (uint32_t)l->h.values,
                                    .out_stride = (uint32_t)l->h.values,
                                    .grouped = true,
                                    .eps = QN_DELTA_LAYER_EPS };
    qn_gdn_chunk_args rule = chunk_args_of(l, n);
    qn_launch launch;
    rule.initial = from;
    rule.final = to;
    rule.state_type = QN_GDN_STATE_PLANES;
    qn_assert_ok(qn_gdn_gpu_conv(&conv, l->h.head_k, l->h.head_v, &launch));
    qn_gpu_launch(&launch, &conv);
    launch_rule(&rule, &undivided, l->workspace.data);
    qn_assert_ok(qn_gdn_gpu_norm(&norm, l->h.head_k, l->h.head_v, &launch));
    qn_gpu_launch(&launch, &norm);
}

/* n rows from *at on. separate: states alternate between two slots. */
static void run_piece(struct layer *l, size_t session, uint32_t n, bool separate, qn_gdn_open_sequence *at)
{
    const uint32_t end = at->position + n, before = (CHUNK - at->position % CHUNK) % CHUNK,
                   row = (uint32_t)(session * LAYER_TOKENS);
    const bool has_chunks = n >= before + CHUNK;
    at->state_to = at->state_from ^ separate;
    at->begin = row + at->position;
    at->end = row + (has_chunks ? at->position + before : end);
    const bool folds = at->position - at->state_position + (at->end - at->begin) > CHUNK;
    open_rows(l, at);
    at->position += at->end - at->begin;
    if (folds) {
        at->state_position = (at->position - 1) / CHUNK * CHUNK;
        at->state_from = at->state_to;
    }
    if (!has_chunks)
        return;
    if (at->position > at->state_position) {
        fold(l, at);
        at->state_from = at->state_to;
    }
    const uint32_t chunks = (end - at->position) / CHUNK * CHUNK;
    complete_chunks(l, row + at->position, chunks, at->position ? l->states.data + at->state_from * l->state_bytes : 0,
                    l->states.data + at->state_to * l->state_bytes);
    at->position = at->state_position = at->position + chunks;
    at->state_from = at->state_to;
    at->begin = row + at->position;
    at->end = row + end;
    open_rows(l, at);
    at->position = end;
}

/* Results of all rows, and the states after them. */
static void check_layer_results(struct layer *l, qn_gdn_open_sequence *at)
{
    const size_t n = SESSIONS * LAYER_TOKENS * l->h.values, n_state = l->history / sizeof(float);
    float *out = floats(n), *states = floats(2 * SESSIONS * l->state_bytes / sizeof(float)),
          *found = floats(SESSIONS * n_state);
    for (size_t s = 0; s < SESSIONS; s++)
        fold(l, &at[s]);
    qn_gpu_read(&l->out, out);
    qn_gpu_read(&l->states, states);
    for (size_t s = 0; s < SESSIONS; s++)
        memcpy(found + s * n_state, states + at[s].state_to * (l->state_bytes / sizeof(float)), l->history);
    qn_join_states(found, SESSIONS, n_state);
    expect_close("out", out, l->h.expected, n, BAR_BF16);
    expect_close("state", found, l->h.expected_state, SESSIONS * n_state, BAR_BF16);
    const qn_gpu_guarded *const written[] = { &l->out,       &l->y,      &l->o,    &l->g,       &l->beta,
                                              &l->workspace, &l->states, &l->open, &l->arrivals };
    for (size_t i = 0; i < sizeof written / sizeof *written; i++)
        qn_expect(qn_gpu_guards_intact(written[i]), "bytes outside buffer %zu were written", i);
    qn_free(out);
    qn_free(states);
    qn_free(found);
}

/* Pieces begin and end within chunks and at multiples of 64, with full open chunks and without any. */
static void check_layer(struct layer *l)
{
    static const uint32_t pieces[] = { 66, 1, 2, 3, 130, 54, 64, 64, 1, 5 };
    layer_new(l);
    for (int separate = 0; separate < 2; separate++) {
        qn_gdn_open_sequence at[SESSIONS];
        qn_case_begin("deltanet", "pieces", "heads %zu/%zu, keys %zu, values %zu, %zu taps%s", l->h.k_heads,
                      l->h.v_heads, l->h.head_k, l->h.head_v, l->h.taps, separate ? ", states in other slots" : "");
        qn_gpu_poison(&l->out);
        qn_gpu_poison(&l->states);
        qn_gpu_poison(&l->open);
        for (uint32_t s = 0; s < SESSIONS; s++)
            at[s] = (qn_gdn_open_sequence){ .state_from = 2 * s, .open_slot = s };
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
            for (size_t s = 0; s < SESSIONS; s++)
                run_piece(l, s, pieces[i], separate, &at[s]);
        check_layer_results(l, at);
    }
    layer_free(l);
}

static void check_layers(void)
{
    static const size_t sizes[][5] = {
        { 2, 6, 128, 128, 4 }, { 2, 4, 128, 64, 4 }, { 1, 2, 64, 192, 8 }, { 1, 1, 64, 64, 1 }
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct layer l = { .h = { .sessions = SESSIONS,
                                  .tokens = LAYER_TOKENS,
                                  .k_heads = sizes[i][0],
                                  .v_heads = sizes[i][1],
                                  .head_k = sizes[i][2],
                                  .head_v = sizes[i][3],
                                  .taps = sizes[i][4] } };
        qn_random_seed(400 + i);
        if (qn_case_selected())
            check_layer(&l);
    }
}

void qn_check_cuda_deltanet(bool bench)
{
    check_rules();
    check_sizes();
    check_layers();
    qn_check_cuda_deltanet_open();
    if (bench) {
        qn_bench_cuda_deltanet();
        qn_bench_cuda_deltanet_open();
    }
}
