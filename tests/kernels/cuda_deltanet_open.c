/* Gated DeltaNet over open chunks on the GPU: qn_gdn_open_step and qn_gdn_open_fold against the CPU's f32 kernels.
 * Sequences start at different steps, so that the rows of a launch are at different positions and some of them fold.
 * All memory that a launch must not write is compared before and after. */
#include "cuda_deltanet.h"

/* Keys and v' of the chunk are f16, and rows are computed from S rounded to f16: each by at most 2^-11 of itself, 2e-4
 * in the mean square. What is computed is S k + the rows' contributions, of which S or the rows are the larger part:
 * 3e-4. Measured in an emulation of the kernels: 2e-4 for outputs, 3.5e-4 for states. */
#define BAR_OPEN 1e-3
/* The same rows, computed in other blocks of rows: rows of a block see each other before they are rounded. */
#define BAR_SPLIT 5e-4

enum {
    SEQUENCES = 4,
    TOKENS = 200,
    MAX_ROWS = SEQUENCES * 72,
    STATE_SLOTS = 3 * SEQUENCES + 1,
    OPEN_SLOTS = 2 * SEQUENCES + 1
};

/* The layers of a slot: the second one is used. */
enum { LAYERS = 3, LAYER = 1 };

/* Arrays of indices, one after the other in device memory. */
enum { STATE_FROM, STATE_TO, STATE_POSITION, OPEN_SLOT, POSITION, CU_SEQLENS, N_INDICES, INDEX_ROW = SEQUENCES + 1 };

struct open_run {
    struct delta_layer l;
    uint64_t indices;
    qn_gdn_open_args args;                       /* with the rows of a launch */
    size_t state_bytes, history;                 /* of the layer; in it */
    uint32_t length[SEQUENCES], from[SEQUENCES]; /* rows that are kept, state slots */
    uint32_t state_position[SEQUENCES];
    enum { STEP, ROW, FEW } kernel;
    float *found; /* [SEQUENCES][TOKENS][values] */
};

/* Rows of a launch for a sequence: `kept` at its next positions, and then `refused`, with the inputs of other
 * tokens. */
struct piece {
    uint32_t sequence, kept, refused;
};

static uint64_t new_rows(size_t width)
{
    return qn_gpu_floats(MAX_ROWS * width);
}

/* The address of an array of indices. */
static uint64_t index_row(const struct open_run *r, size_t row)
{
    return r->indices + row * INDEX_ROW * sizeof(uint32_t);
}

/* sizes: key heads, value heads, keys, values, taps. */
static struct open_run run_of(const size_t sizes[5])
{
    return (struct open_run){ .l = { .sessions = SEQUENCES,
                                     .tokens = TOKENS,
                                     .k_heads = sizes[0],
                                     .v_heads = sizes[1],
                                     .head_k = sizes[2],
                                     .head_v = sizes[3],
                                     .taps = sizes[4] } };
}

static void run_new(struct open_run *r)
{
    struct delta_layer *l = &r->l;
    qn_delta_layer_draw(l);
    for (size_t h = 0; h < l->v_heads; h++) /* heads that forget at once and heads that never do */
        l->factor[h] = h % 4 == 1 ? -30 : h % 4 == 2 ? -1e-7f : l->factor[h];
    qn_delta_layer_expect(l);
    const qn_recurrent_shape shape = { l->k_heads, l->v_heads, l->head_k, l->head_v, l->taps };
    const qn_gpu_recurrent_layout layout = qn_gpu_recurrent_layout_of(&shape);
    qn_gdn_open_args *a = &r->args;
    r->state_bytes = layout.state_layer_bytes;
    r->history = layout.history;
    r->indices = qn_gpu_new(sizeof(uint32_t) * N_INDICES * INDEX_ROW);
    r->found = qn_floats(SEQUENCES * TOKENS * l->values);
    *a = qn_gdn_open_args_of_layer(l);
    a->qkv = new_rows(l->width);
    a->alpha = new_rows(l->v_heads);
    a->beta = new_rows(l->v_heads);
    a->gate = new_rows(l->values);
    a->out = new_rows(l->values);
    a->state_stride = LAYERS * r->state_bytes + 16;
    a->state_offset = LAYER * r->state_bytes;
    a->open_stride = LAYERS * layout.open.bytes + 16;
    a->open_offset = LAYER * layout.open.bytes;
    a->states = qn_gpu_new(STATE_SLOTS * a->state_stride);
    a->open = qn_gpu_new(OPEN_SLOTS * a->open_stride);
    a->arrivals = qn_gpu_zeros(SEQUENCES * l->k_heads * sizeof(uint32_t));
    a->state_from = index_row(r, STATE_FROM);
    a->state_to = index_row(r, STATE_TO);
    a->state_positions = index_row(r, STATE_POSITION);
    a->open_slots = index_row(r, OPEN_SLOT);
    a->positions = index_row(r, POSITION);
}

/* State slots 2 s and 2 s + 1 belong to sequence s, slots from 2 SEQUENCES on are for folds at any length, and the last
 * is nobody's. Open slot 2 s + 1 belongs to sequence s, the even ones to nobody. */
static void run_reset(struct open_run *r)
{
    qn_gpu_poison(r->args.states, r->args.open);
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        r->length[s] = r->state_position[s] = 0;
        r->from[s] = 2 * s;
    }
    memset(r->found, 0xff, SEQUENCES * TOKENS * r->l.values * sizeof(float));
}

static bool folds(const struct open_run *r, uint32_t sequence, uint32_t n)
{
    return r->length[sequence] - r->state_position[sequence] + n > 64;
}

/* Copies a row of each token of the launch, in the order of the pieces. */
static void upload_rows(const struct open_run *r, uint64_t to, const float *from, size_t width,
                        const struct piece *pieces, size_t n)
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
    qn_gpu_write(to, rows, row * width * sizeof *rows);
}

static void keep_outputs(struct open_run *r, const struct piece *pieces, size_t n)
{
    const size_t values = r->l.values;
    const float *out = qn_gpu_read(r->args.out);
    size_t row = 0;
    for (size_t p = 0; p < n; p++) {
        const uint32_t s = pieces[p].sequence;
        memcpy(r->found + (s * TOKENS + r->length[s]) * values, out + row * values,
               pieces[p].kept * values * sizeof *out);
        row += pieces[p].kept + pieces[p].refused;
    }
}

/* Only state_to of sequences that fold may have changed, of one layer or of all. */
static void check_states_unchanged(const struct open_run *r, const uint8_t *all_before, const uint8_t *all_after,
                                   const bool *may_change, bool all_layers)
{
    const size_t stride = r->args.state_stride;
    for (size_t slot = 0; slot < STATE_SLOTS; slot++) {
        const size_t begin = r->args.state_offset, end = begin + r->state_bytes;
        const uint8_t *before = all_before + slot * stride, *after = all_after + slot * stride;
        qn_expect((may_change[slot] && all_layers) ||
                      (!memcmp(before, after, begin) && !memcmp(before + end, after + end, stride - end)),
                  "state slot %zu: other layers changed", slot);
        qn_expect(may_change[slot] || !memcmp(before + begin, after + begin, end - begin), "state slot %zu changed",
                  slot);
    }
}

/* separate: a fold writes the sequence's other slot. */
static void run_pieces(struct open_run *r, const struct piece *pieces, size_t n, bool separate)
{
    const size_t mark = qn_mark();
    uint32_t indices[N_INDICES][INDEX_ROW] = { { 0 } };
    bool may_change[STATE_SLOTS] = { false };
    bool single = true;
    for (size_t p = 0; p < n; p++) {
        const uint32_t s = pieces[p].sequence, rows = pieces[p].kept + pieces[p].refused;
        indices[STATE_FROM][p] = r->from[s];
        indices[STATE_TO][p] = r->from[s] ^ separate;
        indices[OPEN_SLOT][p] = 2 * s + 1;
        indices[STATE_POSITION][p] = r->state_position[s];
        indices[POSITION][p] = r->length[s];
        indices[CU_SEQLENS][p + 1] = indices[CU_SEQLENS][p] + rows;
        may_change[indices[STATE_TO][p]] |= folds(r, s, rows);
        single &= rows == 1;
    }
    qn_gpu_write(r->indices, indices, sizeof indices);
    upload_rows(r, r->args.qkv, r->l.qkv, r->l.width, pieces, n);
    upload_rows(r, r->args.alpha, r->l.alpha, r->l.v_heads, pieces, n);
    upload_rows(r, r->args.beta, r->l.beta_in, r->l.v_heads, pieces, n);
    upload_rows(r, r->args.gate, r->l.gate, r->l.values, pieces, n);
    qn_gpu_poison(r->args.out);
    r->args.sequences = (uint32_t)n;
    if (r->kernel != STEP && n < SEQUENCES) { /* a sequence without rows */
        indices[CU_SEQLENS][n + 1] = indices[CU_SEQLENS][n];
        qn_gpu_write(r->indices, indices, sizeof indices);
        r->args.sequences++;
    }
    r->args.cu_seqlens = single && n == r->args.sequences ? 0 : index_row(r, CU_SEQLENS);
    const qn_gdn_gpu gpu = qn_gdn_device();
    qn_launch launch;
    qn_assert_ok(r->kernel == ROW   ? qn_gdn_gpu_open_row(&r->args, &gpu, &launch)
                 : r->kernel == FEW ? qn_gdn_gpu_open_few(&r->args, &gpu, &launch)
                                    : qn_gdn_gpu_open_step(&r->args, r->l.head_k, r->l.head_v, &gpu, &launch));
    const uint8_t *before = qn_gpu_read(r->args.states);
    qn_gpu_launch(&launch, &r->args);
    check_states_unchanged(r, before, qn_gpu_read(r->args.states), may_change, false);
    keep_outputs(r, pieces, n);
    for (size_t p = 0; p < n; p++) {
        const uint32_t s = pieces[p].sequence;
        if (folds(r, s, pieces[p].kept + pieces[p].refused)) {
            r->from[s] ^= separate;
            r->state_position[s] = (r->length[s] + pieces[p].kept + pieces[p].refused - 1) / 64 * 64;
        }
        r->length[s] += pieces[p].kept;
    }
    qn_release_to(mark);
}

static uint32_t at_most(uint32_t n, uint32_t limit)
{
    return n < limit ? n : limit;
}

/* The rows of a step. RESUMED: a sequence continues from a state and an empty open chunk at every multiple of 64.
 * BY_ROW: the same, with single rows and their kernel; BY_FEW: with up to 15 rows, some of them refused, and theirs. */
enum mode { SINGLE, RAGGED, REFUSED, RESUMED, BY_ROW, BY_FEW, MODES };

/* Folds a full open chunk, which is empty afterwards. The sequence's place is in the arguments. */
static void resume_from_state(struct open_run *r, uint32_t sequence, bool separate)
{
    qn_gdn_open_args args = r->args;
    args.positions = 0;
    args.sequences = args.layers = 1;
    args.sequence = (qn_gdn_open_sequence){ .position = r->length[sequence],
                                            .state_position = r->state_position[sequence],
                                            .state_from = r->from[sequence],
                                            .state_to = r->from[sequence] ^ separate,
                                            .open_slot = 2 * sequence + 1 };
    qn_gdn_fold(&args, r->l.head_k, r->l.head_v);
    qn_assert_ok(qn_cuda_memset(qn_gpu(), qn_gpu_stream(), args.open + args.sequence.open_slot * args.open_stride, 0xff,
                                args.open_stride));
    r->from[sequence] = args.sequence.state_to;
    r->state_position[sequence] = r->length[sequence];
}

static struct piece draw_piece(const struct open_run *r, uint32_t sequence, size_t step, enum mode mode)
{
    static const uint32_t sizes[] = { 2, 64, 1, 3, 17, 5, 40, 8, 9, 63 };
    const uint32_t left = TOKENS - r->length[sequence];
    struct piece p = { sequence, 1, 0 };
    if (mode == RAGGED || mode == RESUMED)
        p.kept = at_most(sizes[(step + 3 * sequence) % (QN_LENGTH(sizes))], left);
    if (mode == RESUMED)
        p.kept = at_most(p.kept, 64 - r->length[sequence] % 64);
    if (mode == REFUSED) {
        p.kept = at_most(1 + (uint32_t)(qn_random() % 3), left);
        const uint32_t length = r->length[sequence] + p.kept;
        p.refused = at_most((uint32_t)(qn_random() % (QN_GDN_DROPPED_ROWS + 1)), (64 - length % 64) % 64);
    }
    if (mode == BY_FEW) {
        const uint32_t rows = at_most(1 + (uint32_t)(qn_random() % QN_GDN_DROPPED_ROWS), 64 - r->length[sequence] % 64);
        p.kept = at_most(1 + (uint32_t)(qn_random() % rows), left);
        p.refused = rows - p.kept;
    }
    return p;
}

/* All sequences to their ends. */
static void run_all(struct open_run *r, enum mode mode, bool separate)
{
    static const uint32_t starts[SEQUENCES] = { 0, 1, 30, 63 };
    run_reset(r);
    r->kernel = mode == BY_ROW ? ROW : mode == BY_FEW ? FEW : STEP;
    for (size_t step = 0, left = 1; left > 0; step++) {
        struct piece pieces[SEQUENCES];
        size_t n = 0;
        left = 0;
        for (uint32_t i = 0; i < SEQUENCES; i++) {
            const uint32_t s = (i + (uint32_t)step) % SEQUENCES;
            left += TOKENS - r->length[s];
            if (r->length[s] < TOKENS && ((mode != SINGLE && mode != BY_ROW) || step >= starts[s]))
                pieces[n++] = draw_piece(r, s, step, mode);
        }
        if (n > 0)
            run_pieces(r, pieces, n, separate);
        for (uint32_t s = 0; s < SEQUENCES && (mode == RESUMED || r->kernel != STEP); s++)
            if (r->length[s] % 64 == 0 && r->length[s] > r->state_position[s])
                resume_from_state(r, s, separate);
    }
}

static bool is_poison(const uint8_t *x, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (x[i] != 0xff)
            return false;
    return true;
}

static void check_memory(const struct open_run *r)
{
    const size_t stride = r->args.open_stride, begin = r->args.open_offset, end = begin + r->args.layout.bytes;
    const uint8_t *open = qn_gpu_read(r->args.open);
    const uint32_t *arrivals = qn_gpu_read(r->args.arrivals);
    for (size_t slot = 0; slot < OPEN_SLOTS; slot++) {
        const uint8_t *at = open + slot * stride;
        qn_expect(slot % 2 ? is_poison(at, begin) && is_poison(at + end, stride - end) : is_poison(at, stride),
                  "open slot %zu: memory that belongs to others was written", slot);
    }
    for (size_t i = 0; i < SEQUENCES * r->l.k_heads; i++)
        qn_expect(arrivals[i] == 0, "arrivals of sequence %zu, key head %zu: %u", i / r->l.k_heads, i % r->l.k_heads,
                  arrivals[i]);
    qn_expect_guards();
}

/* The history of a sequence's state at its length: exactly the inputs of its last tokens. */
static void check_history(const struct open_run *r, size_t sequence, const float *history)
{
    const size_t width = r->l.width, past = r->l.taps - 1;
    for (size_t i = 0; i < past * width; i++) {
        const size_t token = r->length[sequence] + i / width - past; /* wraps around before token 0 */
        const float expected = token < TOKENS ? r->l.qkv[(sequence * TOKENS + token) * width + i % width] : 0.0f;
        qn_expect(memcmp(&history[i], &expected, sizeof expected) == 0,
                  "sequence %zu at length %u: input %zu of channel %zu is %g, expected %g", sequence,
                  r->length[sequence], i / width, i % width, (double)history[i], (double)expected);
    }
}

/* The states at the sequences' lengths. All layers of the slots are folded in one launch; unused parts are poison. */
static void check_fold(struct open_run *r)
{
    const size_t n_state = r->history / sizeof(float);
    uint32_t indices[N_INDICES][INDEX_ROW] = { { 0 } };
    float *states = qn_floats(SEQUENCES * n_state);
    bool may_change[STATE_SLOTS] = { false };
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        indices[STATE_FROM][s] = r->from[s];
        indices[STATE_TO][s] = 2 * SEQUENCES + s;
        indices[OPEN_SLOT][s] = 2 * s + 1;
        indices[STATE_POSITION][s] = r->state_position[s];
        indices[POSITION][s] = r->length[s];
        may_change[2 * SEQUENCES + s] = true;
    }
    qn_gpu_write(r->indices, indices, sizeof indices);
    r->args.sequences = SEQUENCES;
    qn_gdn_open_args args = r->args;
    args.state_offset = args.open_offset = 0;
    args.layers = LAYERS;
    const uint8_t *before = qn_gpu_read(r->args.states);
    qn_gdn_fold(&args, r->l.head_k, r->l.head_v);
    const uint8_t *after = qn_gpu_read(r->args.states);
    check_states_unchanged(r, before, after, may_change, true);
    for (size_t s = 0; s < SEQUENCES; s++) {
        const uint8_t *state = after + (2 * SEQUENCES + s) * r->args.state_stride + r->args.state_offset;
        memcpy(states + s * n_state, state, r->history);
        check_history(r, s, (const float *)(const void *)(state + r->history));
    }
    const float *expected = r->l.expected_state;
    qn_join_states(states, SEQUENCES, n_state);
    if (r->length[0] > 0)
        qn_expect_close("folded state", states, expected, SEQUENCES * n_state, BAR_OPEN);
    else /* zeros have no relative error */
        qn_expect(!memcmp(states, expected, SEQUENCES * r->history), "the state at length 0 is not zeros");
}

static void check_run(struct open_run *r)
{
    static const char *const names[MODES] = { "open, one row",         "open, rows",
                                              "open, refused rows",    "open, from states",
                                              "open, kernel of a row", "open, kernel of few rows" };
    run_new(r);
    const size_t n = SEQUENCES * TOKENS * r->l.values;
    float *single = qn_floats(n);
    for (int mode = SINGLE; mode < MODES; mode++)
        for (int separate = 0; separate < 2; separate++) {
            if ((mode == SINGLE && separate) || (mode >= BY_ROW && (r->l.head_k != 128 || r->l.head_v != 128)))
                continue;
            qn_case_begin("deltanet", names[mode], "heads %zu/%zu, keys %zu, values %zu, %zu taps%s", r->l.k_heads,
                          r->l.v_heads, r->l.head_k, r->l.head_v, r->l.taps, separate ? ", folds to other slots" : "");
            run_all(r, (enum mode)mode, separate);
            qn_expect_close("out", r->found, r->l.expected, n, BAR_OPEN);
            if (mode == SINGLE)
                memcpy(single, r->found, n * sizeof *single);
            else
                qn_expect_close("out, with that of single rows", r->found, single, n, BAR_SPLIT);
            check_fold(r);
            check_memory(r);
        }
    qn_release();
}

/* Lengths that are multiples of 64, where a chunk is full, and 0, where the state is zeros and no slot is read. */
static void check_fold_lengths(void)
{
    static const uint32_t lengths[] = { 0, 1, 64, 65, 128 };
    struct open_run r = run_of((const size_t[]){ 1, 2, 128, 128, 4 });
    qn_random_seed(700);
    run_new(&r);
    const size_t n_state = r.history / sizeof(float);
    float *expected = qn_floats(SEQUENCES * n_state);
    for (size_t i = 0; i < QN_LENGTH(lengths); i++) {
        const struct delta_layer all = r.l;
        qn_case_begin("deltanet", "open, fold", "at length %u", lengths[i]);
        run_reset(&r);
        for (uint32_t s = 0; s < SEQUENCES && lengths[i] > 0; s++)
            for (uint32_t done = 0, rows; done < lengths[i]; done += rows) {
                rows = at_most(lengths[i] - done, 64);
                run_pieces(&r, &(struct piece){ s, rows, 0 }, 1, false);
            }
        memset(expected, 0, SEQUENCES * r.history);
        for (uint32_t s = 0; s < SEQUENCES && lengths[i] > 0; s++) {
            struct delta_layer part = all; /* the sequence's first tokens */
            part.sessions = 1;
            part.tokens = lengths[i];
            part.qkv += s * TOKENS * all.width;
            part.alpha += s * TOKENS * all.v_heads;
            part.beta_in += s * TOKENS * all.v_heads;
            part.gate += s * TOKENS * all.values;
            part.expected_state = expected + s * n_state;
            qn_delta_layer_expect(&part);
        }
        memcpy(r.l.expected_state, expected, SEQUENCES * r.history);
        check_fold(&r);
    }
    qn_release();
}

void qn_check_cuda_deltanet_open(void)
{
    static const size_t sizes[][5] = { { 2, 6, 128, 128, 4 }, { 1, 2, 128, 128, 8 }, { 3, 3, 128, 128, 1 },
                                       { 1, 3, 64, 64, 4 },   { 2, 2, 16, 16, 2 },   { 1, 2, 256, 144, 8 },
                                       { 1, 2, 208, 256, 5 }, { 3, 3, 48, 80, 1 } };
    for (size_t i = 0; i < QN_LENGTH(sizes); i++) {
        struct open_run r = run_of(sizes[i]);
        qn_random_seed(600 + i);
        if (qn_case_selected())
            check_run(&r);
    }
    if (qn_case_selected())
        check_fold_lengths();
}
