/* Gated DeltaNet over open chunks on a Vulkan device, from the projections to the gated norm, against the CPU's f32
 * kernels: the same bits however rows are divided among steps, after refused rows, and from a state alone. Items lie
 * across granules, which are in any order; memory of other layers must not change. */
#include "vulkan.h"

#include "delta_layer.h"
#include "delta_states.h"

#include "gpu/recurrent_layout.h"

/* Keys and v' of the chunk are f16, and rows are computed from S rounded to f16: each by at most 2^-11 of itself, 2e-4
 * in the mean square. What is computed is S k + the rows' contributions, of which S or the rows are the larger part. */
#define BAR_OPEN 1e-3

enum {
    SEQUENCES = 2,
    TOKENS = 140,
    MAX_ROWS = SEQUENCES * TOKENS + 1,
    LAYERS = 2, /* of an item: the second one is used */
    LAYER = 1,
    STATES = 2 * SEQUENCES,
    SHIFT = 16,
    GRANULE = 1 << SHIFT,
    NO_SEQUENCE = -1
};

struct run {
    struct delta_layer l;
    qn_gpu_recurrent_layout layout;
    size_t state_bytes, open_bytes; /* from one item to the next */
    size_t n_granules;
    qn_vk_array *memory;
    const qn_vk_array *granules, *conv, *bias, *factor, *norm;
    uint32_t length[SEQUENCES], state_position[SEQUENCES], from[SEQUENCES];
    uint32_t restarts[SEQUENCES]; /* RESUMED: positions up to this one were left for the state before them */
    float *found;                 /* [SEQUENCES][TOKENS][values] */
};

/* Rows of a step: `kept` at the sequence's next positions, and then `refused`, with the inputs of other tokens. */
struct piece {
    uint32_t sequence, kept, refused;
};

/* ---- The pool ---- */

static uint64_t state_address(const struct run *r, uint32_t item)
{
    return GRANULE + item * r->state_bytes;
}

static uint64_t open_address(const struct run *r, uint32_t sequence)
{
    return GRANULE + STATES * r->state_bytes + sequence * r->open_bytes;
}

/* The offset of a pool address in r->memory. The factor is coprime to the number of granules, which is a power of two.
 */
static size_t offset_of(const struct run *r, uint64_t address)
{
    return (size_t)((address >> SHIFT) * 5 + 3) % r->n_granules * GRANULE + (size_t)(address & (GRANULE - 1));
}

/* Copies a range of the pool from a copy of r->memory. */
static void gather(const struct run *r, const uint8_t *memory, uint64_t address, size_t bytes, void *to)
{
    uint8_t *out = to;
    for (size_t i = 0; i < bytes; i += sizeof(float))
        memcpy(out + i, memory + offset_of(r, address + i), sizeof(float));
}

static void create_pool(struct run *r)
{
    const qn_recurrent_shape shape = { r->l.k_heads, r->l.v_heads, r->l.head_k, r->l.head_v, r->l.taps };
    r->layout = qn_gpu_recurrent_layout_of(&shape);
    r->state_bytes = LAYERS * r->layout.state_layer_bytes + 16;
    r->open_bytes = LAYERS * r->layout.open.bytes + 16;
    const size_t needed = (size_t)(open_address(r, SEQUENCES) >> SHIFT) + 1;
    for (r->n_granules = 1; r->n_granules < needed;)
        r->n_granules *= 2;
    r->memory = qn_vk_new_array(r->n_granules * GRANULE);
    uint64_t *granules = qn_new(r->n_granules, sizeof *granules);
    for (size_t i = 0; i < r->n_granules; i++)
        granules[i] = r->memory->at + offset_of(r, (uint64_t)i << SHIFT);
    r->granules = qn_vk_array_of(granules);
}

static void run_new(struct run *r)
{
    qn_delta_layer_draw(&r->l);
    for (size_t h = 0; h < r->l.v_heads; h++) /* heads that forget at once and heads that never do */
        r->l.factor[h] = h % 4 == 1 ? -30 : h % 4 == 2 ? -1e-7f : r->l.factor[h];
    qn_delta_layer_expect(&r->l);
    create_pool(r);
    r->conv = qn_vk_array_of(r->l.conv);
    r->bias = qn_vk_array_of(r->l.bias);
    r->factor = qn_vk_array_of(r->l.factor);
    r->norm = qn_vk_array_of(r->l.norm);
    r->found = qn_floats(SEQUENCES * TOKENS * r->l.values);
}

static void run_reset(struct run *r)
{
    qn_vk_poison(r->memory, 0, r->memory->bytes);
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        r->length[s] = r->state_position[s] = r->restarts[s] = 0;
        r->from[s] = 2 * s;
    }
    memset(r->found, 0xff, SEQUENCES * TOKENS * r->l.values * sizeof(float));
}

/* ---- A step ---- */

/* A row of each token of the step, in the order of the pieces, and a row of padding. */
static const qn_vk_array *rows_of(const struct run *r, const float *from, size_t width, const struct piece *pieces,
                                  size_t n)
{
    float *rows = qn_floats(MAX_ROWS * width);
    size_t row = 0;
    for (size_t p = 0; p < n; p++)
        for (uint32_t i = 0; i < pieces[p].kept + pieces[p].refused; i++) {
            const uint32_t token = r->length[pieces[p].sequence] + i, other = TOKENS - 1 - token % TOKENS;
            memcpy(rows + row++ * width,
                   from + (pieces[p].sequence * TOKENS + (i < pieces[p].kept ? token : other)) * width,
                   width * sizeof *rows);
        }
    return qn_vk_array_of(rows);
}

struct step {
    size_t n_rows; /* with the padding */
    const qn_vk_array *sequences, *sequence_of, *qkv, *alpha, *beta, *gate, *convolved, *scores, *o, *y;
};

static struct step step_of(const struct run *r, const struct piece *pieces, size_t n, bool separate)
{
    const struct delta_layer *l = &r->l;
    struct step s = { 0 };
    qn_vk_sequence *sequences = qn_new(SEQUENCES + 1, sizeof *sequences);
    int32_t *sequence_of = qn_new(MAX_ROWS, sizeof *sequence_of);
    for (size_t p = 0; p < n; p++) {
        const uint32_t id = pieces[p].sequence, rows = pieces[p].kept + pieces[p].refused;
        sequences[p] = (qn_vk_sequence){ .from = state_address(r, r->from[id]),
                                         .to = state_address(r, r->from[id] ^ separate),
                                         .open = open_address(r, id),
                                         .state_position = r->state_position[id],
                                         .position = r->length[id],
                                         .begin = (uint32_t)s.n_rows,
                                         .end = (uint32_t)s.n_rows + rows };
        for (uint32_t i = 0; i < rows; i++)
            sequence_of[s.n_rows++] = (int32_t)p;
    }
    sequences[n] = (qn_vk_sequence){ .begin = (uint32_t)s.n_rows, .end = (uint32_t)s.n_rows };
    sequence_of[s.n_rows++] = NO_SEQUENCE;
    s.sequences = qn_vk_array_of(sequences);
    s.sequence_of = qn_vk_array_of(sequence_of);
    s.qkv = rows_of(r, l->qkv, l->width, pieces, n);
    s.alpha = rows_of(r, l->alpha, l->v_heads, pieces, n);
    s.beta = rows_of(r, l->beta_in, l->v_heads, pieces, n);
    s.gate = rows_of(r, l->gate, l->values, pieces, n);
    s.convolved = qn_vk_new_array(s.n_rows * l->width * sizeof(float));
    s.scores = qn_vk_new_array(s.n_rows * l->v_heads * QN_VK_ROW_SCORES * sizeof(float));
    s.o = qn_vk_new_array(s.n_rows * l->values * sizeof(float));
    s.y = qn_vk_new_array(s.n_rows * l->values * sizeof(float));
    return s;
}

static qn_vk_conv_args conv_args_of(const struct run *r, const struct step *s)
{
    return (qn_vk_conv_args){ .qkv = s->qkv->at,
                              .y = s->convolved->at,
                              .alpha = s->alpha->at,
                              .beta = s->beta->at,
                              .weights = r->conv->at,
                              .bias = r->bias->at,
                              .factor = r->factor->at,
                              .sequence_of = s->sequence_of->at,
                              .sequences = s->sequences->at,
                              .granules = r->granules->at,
                              .shift = SHIFT,
                              .history_at = (uint32_t)(LAYER * r->layout.state_layer_bytes + r->layout.history),
                              .inputs_at = (uint32_t)(LAYER * r->layout.open.bytes + r->layout.open.inputs),
                              .k_heads = (uint32_t)r->l.k_heads,
                              .v_heads = (uint32_t)r->l.v_heads,
                              .head_k = (uint32_t)r->l.head_k,
                              .head_v = (uint32_t)r->l.head_v };
}

static qn_vk_delta_args delta_args_of(const struct run *r, const struct step *s)
{
    const uint32_t open = (uint32_t)(LAYER * r->layout.open.bytes);
    return (qn_vk_delta_args){ .qkv = s->convolved->at,
                               .decays = s->alpha->at,
                               .betas = s->beta->at,
                               .y = s->o->at,
                               .row_scores = s->scores->at,
                               .sequences = s->sequences->at,
                               .granules = r->granules->at,
                               .shift = SHIFT,
                               .state_at = (uint32_t)(LAYER * r->layout.state_layer_bytes),
                               .keys_at = open + (uint32_t)r->layout.open.keys,
                               .values_at = open + (uint32_t)r->layout.open.values,
                               .scales_at = open + (uint32_t)r->layout.open.scales,
                               .decays_at = open + (uint32_t)r->layout.open.decays,
                               .k_heads = (uint32_t)r->l.k_heads,
                               .v_heads = (uint32_t)r->l.v_heads,
                               .head_k = (uint32_t)r->l.head_k,
                               .head_v = (uint32_t)r->l.head_v,
                               .scale = qn_delta_layer_scale(&r->l) };
}

/* convolves: the delta rule of single rows computes the convolution, too. */
static qn_vk_append_args append_args_of(const struct run *r, const struct step *s, bool convolves)
{
    const qn_vk_conv_args conv = conv_args_of(r, s);
    const qn_vk_delta_args delta = delta_args_of(r, s);
    return (qn_vk_append_args){ .qkv = conv.qkv,
                                .convolved = conv.y,
                                .decays = conv.alpha,
                                .bias = convolves ? conv.bias : 0,
                                .factor = convolves ? conv.factor : 0,
                                .sequences = conv.sequences,
                                .granules = conv.granules,
                                .shift = SHIFT,
                                .history_at = conv.history_at,
                                .keys_at = delta.keys_at,
                                .decays_at = delta.decays_at,
                                .inputs_at = conv.inputs_at,
                                .k_heads = conv.k_heads,
                                .v_heads = conv.v_heads,
                                .head_k = conv.head_k,
                                .head_v = conv.head_v,
                                .taps = (uint32_t)r->l.taps };
}

/* The delta rule of single rows, which also computes the convolution and the gated norm: the integers of `norm`, to the
 * bit. */
static void launch_rows(const struct run *r, const struct step *s, size_t n_sequences, const qn_vk_prepare_args *norm)
{
    const struct delta_layer *l = &r->l;
    const size_t row_bytes = qn_vk_act_row_bytes(l->values, 1), bytes = s->n_rows * row_bytes;
    const bool has_norm = l->head_v % 32 == 0, is_rotated = l->head_v % 128 == 0;
    const qn_vk_array *codes[2] = { qn_vk_array_of(qn_new(bytes, 1)), qn_vk_array_of(qn_new(bytes, 1)) };
    const qn_vk_array *arrived = qn_vk_array_of(qn_new(s->n_rows * l->v_heads, sizeof(uint32_t)));
    qn_vk_prepare_args integers = *norm;
    integers.y = 0;
    integers.planes = 1;
    integers.piece = (uint32_t)l->head_v;
    integers.codes = codes[0]->at;
    integers.signs = is_rotated ? qn_vk_array_of(qn_floats_of(l->values, 1))->at : 0;
    integers.factor = 0.0625f;
    const qn_vk_conv_args conv = conv_args_of(r, s);
    const qn_vk_delta_args delta = delta_args_of(r, s);
    qn_vk_delta_layer *layer = qn_new(1, sizeof *layer);
    *layer = qn_vk_delta_layer_of(&conv, has_norm ? &integers : NULL, is_rotated);
    layer->arrived = arrived->at;
    qn_vk_delta_row_args args = qn_vk_delta_row_args_of(&conv, &delta, has_norm ? &integers : NULL);
    args.layer = qn_vk_array_of(layer)->at;
    qn_vk_launch_now(qn_vk_delta_row(n_sequences, l->v_heads, l->head_v, l->taps), &args);
    const uint32_t *counters = qn_vk_contents(arrived);
    for (size_t i = 0; i < s->n_rows * l->v_heads; i++)
        qn_expect(!counters[i], "counter %zu is %u", i, counters[i]);
    if (!has_norm)
        return;
    integers.codes = codes[1]->at;
    qn_vk_launch_now(qn_vk_prepare(QN_VK_PREPARE_GATED_NORM, is_rotated, s->n_rows, l->values, integers.piece),
                     &integers);
    qn_expect(!memcmp(qn_vk_contents(codes[0]), qn_vk_contents(codes[1]), bytes - row_bytes),
              "the gated norm has other bits than in a kernel of its own");
}

static void launch_step(const struct run *r, const struct step *s, size_t n_sequences, bool convolves)
{
    const qn_vk_features *features = &qn_vk_device_info()->features;
    const struct delta_layer *l = &r->l;
    const qn_vk_conv_args conv = conv_args_of(r, s);
    const qn_vk_delta_args delta = delta_args_of(r, s);
    const qn_vk_append_args append = append_args_of(r, s, convolves);
    const qn_vk_prepare_args norm = { .x = s->o->at,
                                      .x2 = s->gate->at,
                                      .weight = r->norm->at,
                                      .y = s->y->at,
                                      .width = (uint32_t)l->values,
                                      .piece = 96, /* parts of heads */
                                      .dim = (uint32_t)l->head_v,
                                      .repeats = (uint32_t)(l->v_heads / l->k_heads),
                                      .eps = QN_DELTA_LAYER_EPS };
    if (convolves) {
        launch_rows(r, s, n_sequences, &norm);
    } else {
        const qn_vk_delta_row_args rows = qn_vk_delta_row_args_of(NULL, &delta, NULL);
        qn_vk_launch_now(qn_vk_conv(s->n_rows, l->k_heads, l->v_heads, l->taps), &conv);
        qn_vk_launch_now(qn_vk_delta_row(n_sequences, l->v_heads, l->head_v, l->taps), &rows);
        qn_vk_launch_now(qn_vk_delta_scores(s->n_rows, n_sequences, l->k_heads, features), &delta);
        qn_vk_launch_now(qn_vk_delta(n_sequences, l->v_heads, l->head_v, features), &delta);
    }
    qn_vk_launch_now(qn_vk_append(n_sequences, l->width, l->k_heads, l->v_heads), &append);
    qn_vk_launch_now(qn_vk_prepare(QN_VK_PREPARE_GATED_NORM, false, s->n_rows, l->values, norm.piece), &norm);
}

/* separate: a fold writes the sequence's other item. */
static void run_pieces(struct run *r, const struct piece *pieces, size_t n, bool separate)
{
    const size_t mark = qn_mark(), values = r->l.values;
    const struct step s = step_of(r, pieces, n, separate);
    bool is_single = true;
    for (size_t p = 0; p < n; p++)
        is_single = is_single && pieces[p].kept + pieces[p].refused == 1;
    launch_step(r, &s, n + 1, is_single);
    const float *y = qn_vk_contents(s.y);
    for (size_t p = 0, row = 0; p < n; p++) {
        const uint32_t id = pieces[p].sequence, rows = pieces[p].kept + pieces[p].refused, end = r->length[id] + rows;
        memcpy(r->found + (id * TOKENS + r->length[id]) * values, y + row * values,
               pieces[p].kept * values * sizeof *y);
        row += rows;
        if (end > r->state_position[id] + 64) {
            r->from[id] ^= separate;
            r->state_position[id] = (end - 1) / 64 * 64;
        }
        r->length[id] += pieces[p].kept;
    }
    qn_expect_guards();
    qn_release_to(mark);
}

/* ---- Runs ---- */

/* RESUMED: after each fold, the rows since then are computed again from the state alone. */
enum mode { SINGLE, ALL, RAGGED, REFUSED, RESUMED, MODES };

static uint32_t at_most(uint32_t n, uint32_t limit)
{
    return n < limit ? n : limit;
}

static struct piece draw_piece(const struct run *r, uint32_t sequence, size_t step, enum mode mode)
{
    static const uint32_t sizes[] = { 2, 64, 1, 3, 17, 5, 40, 8, 9, 63 };
    const uint32_t left = TOKENS - r->length[sequence];
    struct piece p = { sequence, 1, 0 };
    if (mode == ALL)
        p.kept = left;
    if (mode == RAGGED || mode == RESUMED)
        p.kept = at_most(sizes[(step + 3 * sequence) % QN_LENGTH(sizes)], left);
    if (mode == REFUSED) {
        p.kept = at_most(1 + (uint32_t)qn_random_below(9), left);
        const uint32_t length = r->length[sequence] + p.kept;
        const uint32_t refused = step % 2 ? (uint32_t)qn_random_below(QN_GDN_DROPPED_ROWS + 1) : QN_GDN_DROPPED_ROWS;
        p.refused = at_most(refused, (64 - length % 64) % 64);
    }
    return p;
}

/* Drops the rows since the last fold, once for each. */
static void restart(struct run *r, uint32_t s)
{
    if (r->state_position[s] == r->restarts[s])
        return;
    r->restarts[s] = r->length[s] = r->state_position[s];
    for (size_t i = 0, n; i < r->open_bytes; i += n) {
        const uint64_t at = open_address(r, s) + i;
        n = GRANULE - (at & (GRANULE - 1));
        n = n < r->open_bytes - i ? n : r->open_bytes - i;
        qn_vk_poison(r->memory, offset_of(r, at), n);
    }
}

/* All sequences to their ends. */
static void run_all(struct run *r, enum mode mode, bool separate)
{
    run_reset(r);
    for (size_t step = 0, left = 1; left > 0; step++) {
        struct piece pieces[SEQUENCES];
        size_t n = 0;
        left = 0;
        for (uint32_t i = 0; i < SEQUENCES; i++) {
            const uint32_t s = (i + (uint32_t)step) % SEQUENCES;
            left += TOKENS - r->length[s];
            if (r->length[s] < TOKENS && (mode != SINGLE || s == 0 || step > 2))
                pieces[n++] = draw_piece(r, s, step, mode);
        }
        if (n > 0)
            run_pieces(r, pieces, n, separate);
        for (uint32_t s = 0; s < SEQUENCES && mode == RESUMED; s++)
            restart(r, s);
    }
}

/* ---- What is in memory at the end ---- */

static void expect_poison(const struct run *r, const uint8_t *memory, uint64_t address, size_t bytes, const char *what)
{
    size_t n_wrong = 0;
    for (size_t i = 0; i < bytes; i++)
        n_wrong += memory[offset_of(r, address + i)] != 0xff;
    qn_expect(!n_wrong, "%s: %zu bytes that belong to others were written", what, n_wrong);
}

/* The state of the first sequence, and its history: exactly the inputs before it. */
static void check_state(const struct run *r, const uint8_t *memory)
{
    const struct delta_layer *l = &r->l;
    const size_t n = l->values * l->head_k, past = l->taps - 1;
    const uint64_t at = state_address(r, r->from[0]) + LAYER * r->layout.state_layer_bytes;
    float *state = qn_floats(n), *history = qn_floats(past * l->width);
    struct delta_layer before = *l;
    before.sessions = 1;
    before.tokens = r->state_position[0];
    before.expected_state = qn_floats(n);
    before.expected = qn_floats(before.tokens * l->values);
    qn_delta_layer_expect(&before);
    gather(r, memory, at, n * sizeof *state, state);
    qn_join_states(state, 1, n);
    qn_expect_close("state", state, before.expected_state, n, BAR_OPEN);
    gather(r, memory, at + r->layout.history, past * l->width * sizeof *history, history);
    qn_expect_same(history, l->qkv + (r->state_position[0] - past) * l->width, past * l->width, "history");
}

static void check_memory(const struct run *r)
{
    const size_t mark = qn_mark();
    const uint8_t *memory = qn_vk_contents(r->memory);
    for (uint32_t i = 0; i < STATES; i++) {
        expect_poison(r, memory, state_address(r, i), LAYER * r->layout.state_layer_bytes, "state");
        expect_poison(r, memory, state_address(r, i + 1) - 16, 16, "state");
    }
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        expect_poison(r, memory, open_address(r, s), LAYER * r->layout.open.bytes, "open chunk");
        expect_poison(r, memory, open_address(r, s + 1) - 16, 16, "open chunk");
    }
    check_state(r, memory);
    qn_release_to(mark);
}

static void check_run(struct run *r)
{
    static const char *const names[MODES] = { "rows one by one", "all rows", "pieces", "refused rows", "from states" };
    run_new(r);
    const size_t n = SEQUENCES * TOKENS * r->l.values;
    float *all = qn_floats(n);
    run_all(r, ALL, false);
    memcpy(all, r->found, n * sizeof *all);
    for (int mode = SINGLE; mode < MODES; mode++) {
        const bool separate = mode == RAGGED || mode == RESUMED;
        qn_case_begin("deltanet", "vulkan", "heads %zu/%zu, keys %zu, values %zu, %zu taps: %s", r->l.k_heads,
                      r->l.v_heads, r->l.head_k, r->l.head_v, r->l.taps, names[mode]);
        run_all(r, (enum mode)mode, separate);
        qn_expect_close("out", r->found, r->l.expected, n, BAR_OPEN);
        qn_expect_same(r->found, all, n, "out, with that of all rows");
        check_memory(r);
    }
    qn_release();
}

/* ---- Speed ---- */

/* Rows of sequences, each after `open` rows of its open chunk. */
struct timed {
    uint32_t sequences, rows, open;
};

static void bench_shape(const struct timed *t)
{
    const uint32_t n = t->sequences * t->rows, position = t->open ? 64 + t->open : 0;
    struct run r = { .l = { .k_heads = 16, .v_heads = 48, .head_k = 128, .head_v = 128, .taps = 4 } };
    struct delta_layer *l = &r.l;
    l->values = l->v_heads * l->head_v;
    l->width = 2 * l->k_heads * l->head_k + l->values;
    const qn_recurrent_shape shape = { l->k_heads, l->v_heads, l->head_k, l->head_v, l->taps };
    r.layout = qn_gpu_recurrent_layout_of(&shape);
    const size_t item = LAYERS * (r.layout.state_layer_bytes + r.layout.open.bytes);
    const size_t n_granules = ((t->sequences * item) >> SHIFT) + 1;
    uint64_t *granules = qn_new(n_granules, sizeof *granules);
    qn_vk_sequence *sequences = qn_new(t->sequences, sizeof *sequences);
    int32_t *sequence_of = qn_new(n, sizeof *sequence_of);
    r.memory = qn_vk_array_of(qn_new(n_granules, GRANULE));
    for (size_t i = 0; i < n_granules; i++)
        granules[i] = r.memory->at + i * GRANULE;
    for (uint32_t i = 0; i < t->sequences; i++)
        sequences[i] = (qn_vk_sequence){ .from = i * item,
                                         .to = i * item,
                                         .open = i * item + LAYERS * r.layout.state_layer_bytes,
                                         .state_position = position / 64 * 64,
                                         .position = position,
                                         .begin = i * t->rows,
                                         .end = (i + 1) * t->rows };
    for (uint32_t row = 0; row < n; row++)
        sequence_of[row] = (int32_t)(row / t->rows);
    r.granules = qn_vk_array_of(granules);
    r.conv = qn_vk_array_of(qn_floats_of(l->taps * l->width, 0.5f));
    r.bias = qn_vk_array_of(qn_floats_of(l->v_heads, 1));
    r.factor = qn_vk_array_of(qn_decay_factors(l->v_heads));
    const struct step s = { .n_rows = n,
                            .sequences = qn_vk_array_of(sequences),
                            .sequence_of = qn_vk_array_of(sequence_of),
                            .qkv = qn_vk_array_of(qn_floats_of(n * l->width, 1)),
                            .alpha = qn_vk_array_of(qn_floats_of(n * l->v_heads, 1)),
                            .beta = qn_vk_array_of(qn_floats_of(n * l->v_heads, 1)),
                            .convolved = qn_vk_array_of(qn_floats(n * l->width)),
                            .scores = qn_vk_new_array(n * l->v_heads * QN_VK_ROW_SCORES * sizeof(float)),
                            .o = qn_vk_array_of(qn_floats(n * l->values)) };
    const qn_vk_conv_args conv = conv_args_of(&r, &s);
    const qn_vk_delta_args delta = delta_args_of(&r, &s);
    const qn_vk_prepare_args norm = { .x2 = qn_vk_array_of(qn_floats_of(n * l->values, 1))->at,
                                      .weight = qn_vk_array_of(qn_floats_of(l->head_v, 1))->at,
                                      .codes = qn_vk_new_array(n * qn_vk_act_row_bytes(l->values, 1))->at,
                                      .repeats = 1,
                                      .eps = QN_DELTA_LAYER_EPS,
                                      .planes = 1 };
    qn_vk_delta_layer *layer = qn_new(1, sizeof *layer);
    *layer = qn_vk_delta_layer_of(&conv, &norm, false);
    layer->arrived = qn_vk_array_of(qn_new(n * l->v_heads, sizeof(uint32_t)))->at;
    qn_vk_delta_row_args row = qn_vk_delta_row_args_of(&conv, &delta, &norm);
    row.layer = qn_vk_array_of(layer)->at;
    const qn_vk_append_args append = append_args_of(&r, &s, t->rows == 1);
    const char *name = qn_text("%u x %u rows after %u, 16/48 of 128", t->sequences, t->rows, position);
    qn_vk_bench_launch("conv", name, n, "row", qn_vk_conv(n, l->k_heads, l->v_heads, l->taps), &conv);
    if (t->rows == 1)
        qn_vk_bench_launch("conv, delta and norm", name, n, "row",
                           qn_vk_delta_row(t->sequences, l->v_heads, l->head_v, l->taps), &row);
    else
        qn_vk_bench_launch("scores", name, n, "row",
                           qn_vk_delta_scores(n, t->sequences, l->k_heads, &qn_vk_device_info()->features), &delta);
    if (t->rows > 1)
        qn_vk_bench_launch("delta", name, n, "row",
                           qn_vk_delta(t->sequences, l->v_heads, l->head_v, &qn_vk_device_info()->features), &delta);
    qn_vk_bench_launch("append", name, n, "row", qn_vk_append(t->sequences, l->width, l->k_heads, l->v_heads), &append);
    qn_release();
}

void qn_check_vulkan_deltanet(bool bench)
{
    static const size_t sizes[][5] = { { 1, 1, 128, 128, 4 }, { 2, 6, 32, 48, 4 }, { 2, 2, 16, 16, 2 },
                                       { 1, 1, 208, 80, 8 },  { 1, 3, 48, 80, 3 }, { 2, 4, 32, 96, 4 },
                                       { 2, 4, 32, 128, 4 } };
    static const struct timed timed[] = { { 1, 1, 32 }, { 1, 5, 32 }, { 32, 1, 32 }, { 1, 256, 0 }, { 1, 4096, 0 } };
    for (size_t i = 0; i < QN_LENGTH(sizes); i++) {
        struct run r = { .l = { .sessions = SEQUENCES,
                                .tokens = TOKENS,
                                .k_heads = sizes[i][0],
                                .v_heads = sizes[i][1],
                                .head_k = sizes[i][2],
                                .head_v = sizes[i][3],
                                .taps = sizes[i][4] } };
        qn_random_seed(600 + i);
        if (qn_case_selected())
            check_run(&r);
    }
    for (size_t i = 0; bench && i < QN_LENGTH(timed); i++)
        bench_shape(&timed[i]);
}
