/* Gated DeltaNet on the GPU: the chunk kernels on tensor cores and the token-by-token kernels against the CPU's f32
 * kernels, which are within 1e-5 of the recurrence in float64; and layers, in pieces as the engine computes them.
 * Covers lengths, decays, keys, head mappings, ragged sequences and strides. */
#include "cuda_deltanet.h"

#include "kernels/deltanet/deltanet.h"
#include "cuda/kernels/deltanet/deltanet.h"
#include "quern/kernels.h"

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
    float *x = qn_floats_of(rows * width, 1), *shared = qn_floats_of(width, 1);
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
    return x;
}

/* Interleaved: rows of q, k, v; else all of q, then all of k, then all of v. */
static uint16_t *pack_qkv(const struct rule *r, const uint16_t *const qkv_parts[3], const size_t widths[3], size_t rows)
{
    const size_t width = widths[0] + widths[1] + widths[2];
    size_t before = 0;
    uint16_t *all;
    all = qn_new(rows * width, sizeof *all);
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
    qn_assert_ok(division ? qn_gdn_gpu_chunk(args, division, qn_gpu_info()->max_shared_bytes, workspace, &chunk)
                          : qn_gdn_gpu_recurrent(args, &chunk.launches[0]));
    for (size_t i = 0; i < chunk.n; i++)
        qn_gpu_launch(&chunk.launches[i], args);
}

/* Run twice into poisoned outputs, or from `initial`, which is as in memory, where it is replaced: the same bits both
 * times, and within the tolerance. */
static void check_outputs(qn_gdn_chunk_args *args, const qn_gdn_division *division, uint64_t workspace,
                          const uint64_t outputs[2], const float *initial, const float *expected_o,
                          const float *expected_state)
{
    const size_t n_o = qn_gpu_bytes(outputs[0]) / 2, n_state = qn_gpu_bytes(outputs[1]) / sizeof(float);
    uint16_t *o[2];
    float *state[2], *found = qn_floats(n_o);
    for (int run = 0; run < 2; run++) {
        qn_gpu_poison(outputs[0], outputs[1], workspace);
        if (args->initial == args->final)
            qn_gpu_write(args->final, initial, n_state * sizeof *initial);
        launch_rule(args, division, workspace);
        o[run] = qn_gpu_read(outputs[0]);
        state[run] = qn_gpu_read(outputs[1]);
    }
    for (size_t i = 0; i < n_o; i++)
        found[i] = args->dtype == QN_DTYPE_F16 ? qn_f16_to_f32(o[0][i]) : qn_bf16_to_f32(o[0][i]);
    const double bar = args->dtype == QN_DTYPE_F16 ? BAR_F16 : BAR_BF16;
    qn_expect(!memcmp(o[0], o[1], n_o * sizeof *o[0]) && !memcmp(state[0], state[1], n_state * sizeof(float)),
              "a second run gave different bits");
    if (args->state_type == QN_GDN_STATE_PLANES)
        qn_join_states(state[0], args->sequences, n_state / args->sequences);
    qn_expect_close("o", found, expected_o, n_o, bar);
    qn_expect_close("state", state[0], expected_state, n_state, bar);
}

/* Pieces of this number of chunks, 0 for heads that are not divided: of one chunk, of a part of a head, of several
 * heads. Decays forget a state within a piece, or not. */
static const struct {
    uint32_t chunks, slices;
} divisions[] = { { 0, 1 }, { 0, 2 }, { 1, 2 }, { 2, 1 }, { 3, 2 }, { 7, 1 }, { 7, 2 }, { 40, 2 } };
enum { N_DIVISIONS = QN_LENGTH(divisions) };

static qn_gdn_division division_of(const qn_gdn_chunk_args *args, size_t i)
{
    const uint32_t chunks = divisions[i].chunks;
    const uint32_t all = (args->tokens / QN_GDN_CHUNK + args->sequences) * args->v_heads;
    return (qn_gdn_division){ chunks ? (all + chunks - 1) / chunks : 0, divisions[i].slices };
}

static void check_rule(const struct rule *r)
{
    if (!qn_case_selected())
        return;
    const size_t rows = r->ends[r->n_sequences], n_gates = rows * r->v_heads;
    const size_t widths[3] = { r->k_heads * r->head_k, r->k_heads * r->head_k, r->v_heads * r->head_v };
    const size_t n_state = r->n_sequences * widths[2] * r->head_k;
    const qn_dtype dtype = r->f16 ? QN_DTYPE_F16 : QN_DTYPE_BF16;
    float *x[3] = { draw_vectors(r, rows, RANDOM_KEYS), draw_vectors(r, rows, r->keys),
                    qn_floats_of(rows * widths[2], 1) };
    float *g = qn_floats(n_gates), *beta = qn_floats(n_gates), *o = qn_floats(rows * widths[2]);
    uint16_t *qkv_parts[3];
    for (int p = 0; p < 3; p++)
        qkv_parts[p] = to_16_bits(x[p], rows * widths[p], dtype);
    for (size_t i = 0; i < n_gates; i++) {
        g[i] = draw_decay(r->decay);
        beta[i] = (float)uniform();
    }
    float *state = qn_floats(n_state), *first_state = qn_floats(n_state);
    if (r->initial)
        qn_random_floats(state, n_state, 0.3f);
    memcpy(first_state, state, n_state * sizeof *state);
    if (r->planes)
        qn_split_states(first_state, r->n_sequences, n_state / r->n_sequences);
    const uint64_t inputs = qn_gpu_copy(pack_qkv(r, (const uint16_t *const *)qkv_parts, widths, rows)),
                   initial = qn_gpu_copy(first_state),
                   outputs[2] = { qn_gpu_new(rows * widths[2] * 2), qn_gpu_floats(n_state) };
    expected_rule(r, x[0], x[1], x[2], g, beta, state, o);
    qn_gdn_chunk_args args = qn_gdn_chunk_args_of(r->n_sequences, rows, r->k_heads, r->v_heads, r->head_k, r->head_v);
    args.q = inputs;
    args.k = inputs + 2 * (r->interleaved ? widths[0] : rows * widths[0]);
    args.v = inputs + 4 * (r->interleaved ? widths[0] : rows * widths[0]);
    args.g = qn_gpu_copy(g);
    args.beta = qn_gpu_copy(beta);
    args.initial = !r->initial ? 0 : r->in_place ? outputs[1] : initial;
    args.final = outputs[1];
    args.o = outputs[0];
    args.cu_seqlens = r->n_sequences > 1 ? qn_gpu_from(r->ends, sizeof r->ends) : 0;
    args.state_type = r->planes ? QN_GDN_STATE_PLANES : QN_GDN_STATE_F32;
    args.dtype = dtype;
    args.tiled = r->tiled;
    args.normalize = r->normalize;
    if (r->interleaved)
        args.q_stride = args.k_stride = args.v_stride = (uint32_t)(widths[0] + widths[1] + widths[2]);
    for (size_t d = 0; d <= N_DIVISIONS; d++) {
        const qn_gdn_division chosen = d < N_DIVISIONS ? division_of(&args, d) : (qn_gdn_division){ 0 };
        const qn_gdn_division *division = d < N_DIVISIONS ? &chosen : NULL;
        if (division ? r->head_k > QN_GDN_MAX_SPAN_KEY && (division->pieces || division->slices > 1) : r->planes)
            continue;
        const size_t bytes = division ? qn_gdn_gpu_workspace_bytes(&args, division) : sizeof(uint32_t);
        const uint64_t workspace = qn_gpu_new(bytes);
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
        check_outputs(&args, division, workspace, outputs, first_state, o, state);
    }
    qn_release();
}

static void check_rules(void)
{
    static const uint32_t lengths[] = { 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 200, 1000 };
    for (size_t i = 0; i < QN_LENGTH(lengths); i++) {
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
    for (size_t i = 0; i < QN_LENGTH(sizes); i++)
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

enum { SESSIONS = 2, LAYER_TOKENS = 390, CHUNK = QN_GDN_CHUNK };

struct layer {
    struct delta_layer h;
    uint64_t y, o, g, beta, workspace; /* y, o: rows of a piece, in bf16 */
    size_t history;
    qn_gdn_open_args args; /* two state slots and one open slot for each session */
};

static const qn_gdn_division undivided = { 0, 1 };

/* n rows of a session, without addresses of states. */
static qn_gdn_chunk_args chunk_args_of(const struct layer *l, size_t n)
{
    const size_t keys = l->h.k_heads * l->h.head_k;
    qn_gdn_chunk_args args = qn_gdn_chunk_args_of(1, n, l->h.k_heads, l->h.v_heads, l->h.head_k, l->h.head_v);
    args.q = l->y;
    args.k = l->y + keys * sizeof(uint16_t);
    args.v = l->y + 2 * keys * sizeof(uint16_t);
    args.g = l->g;
    args.beta = l->beta;
    args.o = l->o;
    args.q_stride = args.k_stride = args.v_stride = (uint32_t)l->h.width;
    args.scale = l->args.scale;
    return args;
}

static void layer_new(struct layer *l)
{
    const struct delta_layer *h = &l->h;
    qn_delta_layer_draw(&l->h);
    qn_delta_layer_expect(&l->h);
    const qn_recurrent_shape shape = { h->k_heads, h->v_heads, h->head_k, h->head_v, h->taps };
    const qn_gpu_recurrent_layout layout = qn_gpu_recurrent_layout_of(&shape);
    l->history = layout.history;
    l->y = qn_gpu_new(LAYER_TOKENS * h->width * sizeof(uint16_t));
    l->o = qn_gpu_new(LAYER_TOKENS * h->values * sizeof(uint16_t));
    l->g = qn_gpu_floats(LAYER_TOKENS * h->v_heads);
    l->beta = qn_gpu_floats(LAYER_TOKENS * h->v_heads);
    l->args = qn_gdn_open_args_of_layer(h);
    l->args.qkv = qn_gpu_copy(h->qkv);
    l->args.alpha = qn_gpu_copy(h->alpha);
    l->args.beta = qn_gpu_copy(h->beta_in);
    l->args.gate = qn_gpu_copy(h->gate);
    l->args.out = qn_gpu_floats(SESSIONS * LAYER_TOKENS * h->values);
    l->args.state_stride = layout.state_layer_bytes;
    l->args.open_stride = layout.open.bytes;
    l->args.states = qn_gpu_new(2 * SESSIONS * l->args.state_stride);
    l->args.open = qn_gpu_new(SESSIONS * layout.open.bytes);
    l->args.arrivals = qn_gpu_zeros(h->k_heads * sizeof(uint32_t));
    l->args.layers = l->args.sequences = 1;
    const qn_gdn_chunk_args longest = chunk_args_of(l, LAYER_TOKENS);
    l->workspace = qn_gpu_new(qn_gdn_gpu_workspace_bytes(&longest, &undivided));
}

static void open_rows(struct layer *l, const qn_gdn_open_sequence *rows)
{
    const qn_gdn_gpu gpu = qn_gdn_device();
    qn_launch launch;
    l->args.sequence = *rows;
    if (rows->begin == rows->end)
        return;
    qn_assert_ok(qn_gdn_gpu_open_step(&l->args, l->h.head_k, l->h.head_v, &gpu, &launch));
    qn_gpu_launch(&launch, &l->args);
}

static void fold(struct layer *l, const qn_gdn_open_sequence *sequence)
{
    l->args.sequence = *sequence;
    qn_gdn_fold(&l->args, l->h.head_k, l->h.head_v);
}

/* n rows from `row` on, of all sessions' rows; from: address of the state before them, or 0; to: of the one after
 * them. */
static void complete_chunks(const struct layer *l, size_t row, size_t n, uint64_t from, uint64_t to)
{
    const qn_gdn_open_args *a = &l->args;
    const qn_gdn_conv_args conv = { .qkv = a->qkv + row * a->qkv_stride * sizeof(float),
                                    .alpha = a->alpha + row * a->alpha_stride * sizeof(float),
                                    .beta_in = a->beta + row * a->beta_stride * sizeof(float),
                                    .conv = a->conv,
                                    .bias = a->bias,
                                    .factor = a->factor,
                                    .out = l->y,
                                    .g = l->g,
                                    .beta = l->beta,
                                    .history = from ? from + l->history : 0,
                                    .last = to + l->history,
                                    .rows = (uint32_t)n,
                                    .k_heads = a->k_heads,
                                    .v_heads = a->v_heads,
                                    .taps = a->taps,
                                    .qkv_stride = a->qkv_stride,
                                    .alpha_stride = a->alpha_stride,
                                    .beta_stride = a->beta_stride,
                                    .out_stride = a->qkv_stride };
    const qn_gdn_norm_args norm = { .o = l->o,
                                    .gate = a->gate + row * a->gate_stride * sizeof(float),
                                    .norm = a->norm,
                                    .out = a->out + row * a->out_stride * sizeof(float),
                                    .rows = (uint32_t)n,
                                    .k_heads = a->k_heads,
                                    .v_heads = a->v_heads,
                                    .o_stride = a->out_stride,
                                    .gate_stride = a->gate_stride,
                                    .out_stride = a->out_stride,
                                    .grouped = true,
                                    .eps = a->eps };
    qn_gdn_chunk_args rule = chunk_args_of(l, n);
    qn_launch launch;
    rule.initial = from;
    rule.final = to;
    qn_assert_ok(qn_gdn_gpu_conv(&conv, l->h.head_k, l->h.head_v, &launch));
    qn_gpu_launch(&launch, &conv);
    launch_rule(&rule, &undivided, l->workspace);
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
    complete_chunks(l, row + at->position, chunks,
                    at->position ? l->args.states + at->state_from * l->args.state_stride : 0,
                    l->args.states + at->state_to * l->args.state_stride);
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
    const size_t n_state = l->history / sizeof(float);
    float *found = qn_floats(SESSIONS * n_state);
    for (size_t s = 0; s < SESSIONS; s++)
        fold(l, &at[s]);
    const uint8_t *states = qn_gpu_read(l->args.states);
    for (size_t s = 0; s < SESSIONS; s++)
        memcpy(found + s * n_state, states + at[s].state_to * l->args.state_stride, l->history);
    qn_join_states(found, SESSIONS, n_state);
    qn_expect_close("out", qn_gpu_read(l->args.out), l->h.expected, SESSIONS * LAYER_TOKENS * l->h.values, BAR_BF16);
    qn_expect_close("state", found, l->h.expected_state, SESSIONS * n_state, BAR_BF16);
    qn_expect_guards();
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
        qn_gpu_poison(l->args.out, l->args.states, l->args.open);
        for (uint32_t s = 0; s < SESSIONS; s++)
            at[s] = (qn_gdn_open_sequence){ .state_from = 2 * s, .open_slot = s };
        for (size_t i = 0; i < QN_LENGTH(pieces); i++)
            for (size_t s = 0; s < SESSIONS; s++)
                run_piece(l, s, pieces[i], separate, &at[s]);
        check_layer_results(l, at);
    }
    qn_release();
}

static void check_layers(void)
{
    static const size_t sizes[][5] = {
        { 2, 6, 128, 128, 4 }, { 2, 4, 128, 64, 4 }, { 1, 2, 64, 192, 8 }, { 1, 1, 64, 64, 1 }
    };
    for (size_t i = 0; i < QN_LENGTH(sizes); i++) {
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
