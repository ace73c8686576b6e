/* The persistent decode kernel with several rows: an attention layer and a Gated DeltaNet layer, rows of different
 * sequences at different positions. Each row is compared with the kernel of one row, which other checks compare with
 * references: outputs, the stored keys and values, the row of the open chunk. A row's bits must not depend on the
 * number of rows. (The check of "persistent" compares GEMVs of several rows with float64.) Benchmark: these two
 * layers. */
#include "cuda_paged_arrays.h"
#include "cuda_persistent.h"
#include "cuda_deltanet.h"

#include "kernels/rope/rope.h"

/* Activations are rounded to 15 or 16 bits (7e-5 of the norm, see the other checks), queries, softmax weights, keys and
 * v' to fp16: few of them to another side, which is 2^-11 each. Of one layer after the other, and of single heads. */
#define TOLERANCE 5e-3

enum {
    ROWS = QN_PERSISTENT_MAX_ROWS,
    HEAD = 128,
    TAPS = 4,
    CAPACITY = 1088,
    CHUNK = QN_GDN_CHUNK,
    SCALES = HEAD / QN_GDN_SCALE_VALUES, /* of a row of values */
    MAX_PHASES = 96
};

/* Positions of the rows: of one tile, of several splits, at the edges of chunks and pages. */
static const uint32_t row_positions[ROWS] = { 70, 5, 0, 1000, 63, 64, 129, 300 };

struct shape {
    const char *name;
    size_t hidden, dim, n_heads, n_kv_heads, n_rot, k_heads, v_heads;
    bool gated;
    uint32_t rotation; /* of the outputs' matrices */
};

/* The GEMVs of the two layers. */
enum { QKV, ATTENTION_OUT, IN, DELTA_OUT, GEMVS };

struct weights {
    uint64_t tiles;
    qn_tile_layout layout;
    size_t n_rows, n_cols;
};

struct problem {
    const struct shape *s;
    size_t query_stride, width, values; /* width: of the convolution; values: of the delta rule's output */
    struct weights weights[GEMVS], f16;
    /* Constants */
    uint64_t norm, head_norm, conv, bias, factor, signs;
    /* Of all rows */
    uint64_t x, cosines, sines, positions, state_positions, slots, sequences, states, open;
    qn_paged_arrays pages;
    qn_gdn_open_layout layout;
    size_t state_bytes;
    /* Written by each run */
    uint64_t x_out[2], sumsq[2], out[GEMVS], f16_out, heads, partials, maxima, acts, acts_scale, acts_f32, barrier;
    uint64_t results[2]; /* of the two layers, [ROWS][hidden] */
    uint8_t *initial_open;
};

/* ---- Inputs ---- */

static struct weights weights_new(const qn_type_info *type, size_t n_rows, size_t n_cols)
{
    struct weights w = { .layout = qn_matmul_gpu_tile_layout(type), .n_rows = n_rows, .n_cols = n_cols };
    w.tiles = qn_persistent_random_tiles(&w.layout, n_rows / QN_TILE_ROWS, n_cols);
    return w;
}

static void rope_new(struct problem *p)
{
    const size_t half = p->s->n_rot / 2;
    double *frequencies = qn_doubles(half);
    float *cosines = qn_floats(ROWS * half), *sines = qn_floats(ROWS * half);
    qn_rope_frequencies(1e6, NULL, NULL, p->s->n_rot, frequencies);
    for (size_t row = 0; row < ROWS; row++)
        qn_rope_angles(row_positions[row], frequencies, 1, p->s->n_rot, cosines + row * half, sines + row * half);
    p->cosines = qn_gpu_copy(cosines);
    p->sines = qn_gpu_copy(sines);
}

/* Random keys and values of each row's positions, NaN after them. */
static void caches_new(struct problem *p)
{
    const struct shape *s = p->s;
    const size_t row_bytes[QN_PAGED_ARRAYS] = { s->dim * 2, s->dim * 2 }, head = CAPACITY * s->dim;
    qn_paged_new(&p->pages, ROWS, CAPACITY / QN_PAGE, s->n_kv_heads, row_bytes);
    for (size_t array = 0; array < 2; array++) {
        uint16_t *cache = qn_new(ROWS * s->n_kv_heads * head, sizeof *cache);
        for (size_t i = 0; i < ROWS * s->n_kv_heads * head; i++)
            cache[i] = i % head / s->dim < row_positions[i / (s->n_kv_heads * head)] ? qn_f32_to_f16(qn_random_normal())
                                                                                     : 0x7e00;
        qn_paged_scatter(&p->pages, array, cache, CAPACITY);
    }
    qn_paged_upload(&p->pages);
}

static void fill_f16(uint8_t *at, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        ((uint16_t *)(void *)at)[i] = qn_f32_to_f16(qn_random_normal() * scale);
}

static void fill_floats(uint8_t *at, size_t n, float scale, bool negative)
{
    for (size_t i = 0; i < n; i++) {
        const float x = qn_random_normal() * scale;
        ((float *)(void *)at)[i] = negative ? -fabsf(x) : x;
    }
}

static void states_new(struct problem *p)
{
    const struct shape *s = p->s;
    uint32_t positions[2][ROWS], slots[ROWS];
    const qn_recurrent_shape shape = { s->k_heads, s->v_heads, HEAD, HEAD, TAPS };
    const qn_gpu_recurrent_layout l = qn_gpu_recurrent_layout_of(&shape);
    p->layout = l.open;
    p->state_bytes = l.state_layer_bytes;
    float *states = qn_floats_of(ROWS * p->state_bytes / sizeof *states, 0.1f);
    p->initial_open = qn_new(ROWS, p->layout.bytes);
    for (size_t row = 0; row < ROWS; row++) {
        uint8_t *open = p->initial_open + row * p->layout.bytes;
        qn_split_states(states + row * (p->state_bytes / sizeof *states), 1, p->values * HEAD);
        fill_f16(open + p->layout.keys, s->k_heads * CHUNK * HEAD, 0.1f);
        fill_f16(open + p->layout.values, s->v_heads * CHUNK * HEAD, 0.5f);
        fill_floats(open + p->layout.scales, s->v_heads * SCALES * CHUNK, 1, false);
        fill_floats(open + p->layout.decays, s->v_heads * CHUNK, 0.1f, true);
        fill_floats(open + p->layout.inputs, QN_GDN_INPUT_ROWS(TAPS) * p->width, 1, false);
        positions[0][row] = row_positions[row];
        positions[1][row] = row_positions[row] / CHUNK * CHUNK;
        slots[row] = (uint32_t)(ROWS - 1 - row);
    }
    p->positions = qn_gpu_from(positions[0], sizeof positions[0]);
    p->state_positions = qn_gpu_from(positions[1], sizeof positions[1]);
    p->slots = qn_gpu_from(slots, sizeof slots);
    p->sequences = qn_gpu_new(ROWS * sizeof(uint32_t));
    p->states = qn_gpu_copy(states);
    p->open = qn_gpu_new(ROWS * p->layout.bytes);
}

/* Space for the partials of either kernel. */
static void outputs_new(struct problem *p)
{
    const struct shape *s = p->s;
    size_t widest = 0;
    for (size_t i = 0; i < GEMVS; i++) {
        p->out[i] = qn_gpu_floats((size_t)ROWS * QN_PERSISTENT_MAX_SLICES * p->weights[i].n_rows);
        widest = p->weights[i].n_cols > widest ? p->weights[i].n_cols : widest;
    }
    for (size_t i = 0; i < 2; i++) {
        p->x_out[i] = qn_gpu_floats(ROWS * s->hidden);
        p->sumsq[i] = qn_gpu_floats(ROWS * QN_PERSISTENT_MAX_SLICES);
        p->results[i] = qn_gpu_floats(ROWS * s->hidden);
    }
    const size_t k_tiles = (widest + QN_TILE_COLS - 1) / QN_TILE_COLS,
                 splits = ROWS * s->n_heads * QN_PERSISTENT_MAX_SPLITS;
    p->f16_out = qn_gpu_floats(ROWS * k_tiles * p->f16.n_rows);
    p->heads = qn_gpu_floats(ROWS * p->values);
    p->partials = qn_gpu_floats(splits * s->dim);
    p->maxima = qn_gpu_floats(splits * 2);
    p->acts = qn_gpu_new(k_tiles * 2 * QN_ACTS_HILO_BYTES);
    p->acts_scale = qn_gpu_floats(k_tiles * 2 * ROWS);
    p->acts_f32 = qn_gpu_floats(ROWS * k_tiles * QN_TILE_COLS);
    p->barrier = qn_persistent_barrier();
}

static struct problem *problem_new(const struct shape *s, const qn_type_info *type)
{
    struct problem *p = qn_new(1, sizeof *p);
    p->s = s;
    p->query_stride = s->gated ? 2 * s->dim : s->dim;
    p->values = s->v_heads * HEAD;
    p->width = 2 * s->k_heads * HEAD + p->values;
    p->weights[QKV] = weights_new(type, s->n_heads * p->query_stride + 2 * s->n_kv_heads * s->dim, s->hidden);
    p->weights[ATTENTION_OUT] = weights_new(type, s->hidden, s->n_heads * s->dim);
    p->weights[IN] = weights_new(type, p->width + p->values, s->hidden);
    p->weights[DELTA_OUT] = weights_new(type, s->hidden, p->values);
    p->f16 = weights_new(qn_type_find(QN_TYPE_F16), qn_matmul_gpu_tile_count(2 * s->v_heads) * QN_TILE_ROWS, s->hidden);
    p->norm = qn_gpu_floats_of(s->hidden, 1);
    p->head_norm = qn_gpu_floats_of(HEAD, 1);
    p->conv = qn_gpu_floats_of(TAPS * p->width, 0.5f);
    p->bias = qn_gpu_floats_of(s->v_heads, 1);
    p->factor = qn_gpu_copy(qn_decay_factors(s->v_heads));
    float *signs = qn_floats_of(p->values + s->n_heads * s->dim, 1);
    for (size_t i = 0; i < p->values + s->n_heads * s->dim; i++)
        signs[i] = copysignf(1, signs[i]);
    p->signs = qn_gpu_copy(signs);
    p->x = qn_gpu_floats_of(ROWS * s->hidden, 2);
    rope_new(p);
    caches_new(p);
    states_new(p);
    outputs_new(p);
    return p;
}

/* ---- Phases ---- */

struct run {
    qn_persistent_phase phases[MAX_PHASES];
    size_t n_phases;
    bool of_several;
    size_t row; /* the only one, with the kernel of one row */
};

static uint64_t row_at(uint64_t g, const struct run *r, size_t width)
{
    return g + r->row * width * sizeof(float);
}

/* Adds a GEMV; its prologue is set. */
static qn_persistent_gemv add_gemv(struct run *r, const struct problem *p, size_t which, qn_persistent_gemv g)
{
    const struct weights *w = &p->weights[which];
    qn_persistent_set(&g, &w->layout, w->tiles, w->n_rows / QN_TILE_ROWS, w->n_cols, r->of_several ? ROWS : 1);
    g.out = p->out[which];
    if (r->of_several)
        r->phases[r->n_phases++] = (qn_persistent_phase){ .kind = QN_PHASE_ACTS, .u.gemv = g };
    r->phases[r->n_phases++] = (qn_persistent_phase){ .kind = QN_PHASE_GEMV, .u.gemv = g };
    return g;
}

static qn_persistent_partials add_attention(struct run *r, const struct problem *p)
{
    const struct shape *s = p->s;
    const qn_persistent_gpu gpu = qn_persistent_device();
    const size_t queries = s->n_heads * p->query_stride, page_head = QN_PAGE * s->dim * 2;
    const qn_persistent_gemv qkv = add_gemv(r, p, QKV,
                                            (qn_persistent_gemv){ .prologue = QN_PROLOGUE_RMS_NORM,
                                                                  .x = row_at(p->x, r, s->hidden),
                                                                  .x_out = p->x_out[0],
                                                                  .weight = p->norm,
                                                                  .sumsq = p->sumsq[0] });
    const qn_persistent_attention attention = {
        .qkv = qn_persistent_partials_of(&qkv, r->of_several),
        .k_row = (uint32_t)queries,
        .v_row = (uint32_t)(queries + s->n_kv_heads * s->dim),
        .query_stride = (uint32_t)p->query_stride,
        .head_dim = (uint32_t)s->dim,
        .n_heads = (uint32_t)s->n_heads,
        .n_kv_heads = (uint32_t)s->n_kv_heads,
        .n_rot = (uint32_t)s->n_rot,
        .n_splits = qn_persistent_gpu_splits(&gpu, s->dim, s->n_heads, s->n_kv_heads, s->n_rot),
        .cosines = row_at(p->cosines, r, s->n_rot / 2),
        .sines = row_at(p->sines, r, s->n_rot / 2),
        .cache = { .keys = p->pages.offsets[0],
                   .values = p->pages.offsets[1],
                   .key_head_stride = page_head,
                   .value_head_stride = page_head,
                   .tables = p->pages.tables + r->row * sizeof(uint64_t) },
        .partials = p->partials,
        .maxima = p->maxima,
        .eps = QN_PERSISTENT_EPS,
        .scale = 1 / sqrtf((float)s->dim),
    };
    r->phases[r->n_phases++] = (qn_persistent_phase){ .kind = QN_PHASE_ATTENTION, .u.attention = attention };
    const qn_persistent_gemv out = add_gemv(r, p, ATTENTION_OUT,
                                            (qn_persistent_gemv){ .prologue = QN_PROLOGUE_ATTENTION_COMBINE,
                                                                  .x = attention.partials,
                                                                  .maxima = attention.maxima,
                                                                  .from = attention.qkv,
                                                                  .signs = s->rotation ? p->signs : 0,
                                                                  .rotation = s->rotation,
                                                                  .head = (uint32_t)s->dim,
                                                                  .n_heads = (uint32_t)s->n_heads,
                                                                  .gated = s->gated,
                                                                  .n_splits = attention.n_splits });
    return qn_persistent_partials_of(&out, r->of_several);
}

static qn_persistent_partials add_delta(struct run *r, const struct problem *p, qn_persistent_partials from)
{
    const struct shape *s = p->s;
    const qn_persistent_gemv in =
        add_gemv(r, p, IN,
                 (qn_persistent_gemv){ .prologue = QN_PROLOGUE_RMS_NORM,
                                       .x = p->x_out[0],
                                       .from = from,
                                       .x_out = p->x_out[1],
                                       .weight = p->norm,
                                       .sumsq = p->sumsq[1],
                                       .f16_rows = p->f16.tiles,
                                       .f16_out = p->f16_out,
                                       .n_f16_tiles = (uint32_t)(p->f16.n_rows / QN_TILE_ROWS) });
    qn_persistent_partials qkv = qn_persistent_partials_of(&in, r->of_several), gates = qkv;
    gates.data = in.f16_out;
    gates.n_partials = in.n_k_tiles;
    gates.stride = in.n_f16_tiles * QN_TILE_ROWS;
    const qn_persistent_delta delta = { .qkv = qkv,
                                        .alpha = gates,
                                        .beta = gates,
                                        .beta_row = (uint32_t)s->v_heads,
                                        .conv = p->conv,
                                        .bias = p->bias,
                                        .factor = p->factor,
                                        .out = p->heads,
                                        .open = p->layout,
                                        .k_heads = (uint32_t)s->k_heads,
                                        .v_heads = (uint32_t)s->v_heads,
                                        .taps = TAPS,
                                        .scale = 1 / sqrtf(HEAD) };
    r->phases[r->n_phases++] = (qn_persistent_phase){ .kind = QN_PHASE_DELTA, .u.delta = delta };
    const qn_persistent_gemv out = add_gemv(r, p, DELTA_OUT,
                                            (qn_persistent_gemv){ .prologue = QN_PROLOGUE_GATED_NORM,
                                                                  .x = p->heads,
                                                                  .weight = p->head_norm,
                                                                  .from = qkv,
                                                                  .row = (uint32_t)p->width,
                                                                  .signs = s->rotation ? p->signs : 0,
                                                                  .rotation = s->rotation,
                                                                  .head = HEAD,
                                                                  .n_heads = (uint32_t)s->v_heads,
                                                                  .n_k_heads = (uint32_t)s->k_heads,
                                                                  .eps = QN_PERSISTENT_EPS });
    return qn_persistent_partials_of(&out, r->of_several);
}

static void add_store(struct run *r, const struct problem *p, size_t result, qn_persistent_partials from)
{
    r->phases[r->n_phases] = (qn_persistent_phase){ .kind = QN_PHASE_STORE, .u.store = { .from = from, .n_outs = 1 } };
    r->phases[r->n_phases].u.store.outs[0].out = row_at(p->results[result], r, p->s->hidden);
    r->phases[r->n_phases++].u.store.outs[0].n_rows = (uint32_t)p->s->hidden;
}

static void add_layers(struct run *r, const struct problem *p)
{
    const qn_persistent_partials attention = add_attention(r, p), delta = add_delta(r, p, attention);
    add_store(r, p, 0, attention);
    add_store(r, p, 1, delta);
}

static qn_persistent_args args_of(struct run *r, const struct problem *p, uint32_t n_rows)
{
    const size_t at = r->row * sizeof(uint32_t);
    return (qn_persistent_args){ .phases = qn_persistent_link(r->phases, r->n_phases),
                                 .barrier = p->barrier,
                                 .positions = p->positions + at,
                                 .states = p->states,
                                 .open = p->open,
                                 .state_positions = p->state_positions + at,
                                 .state_from = p->slots + at,
                                 .open_slots = p->slots + at,
                                 .state_stride = p->state_bytes,
                                 .open_stride = p->layout.bytes,
                                 .n_phases = (uint32_t)r->n_phases,
                                 .n_rows = n_rows,
                                 .sequences = p->sequences,
                                 .acts = p->acts,
                                 .acts_scale = p->acts_scale,
                                 .acts_f32 = p->acts_f32 };
}

static qn_launch launch_of(const struct run *r, const struct problem *p)
{
    return qn_persistent_launch(&p->weights[0].layout, r->of_several ? ROWS : 1);
}

/* Launches the two layers for a run. */
static void launch_layers(struct run *r, const struct problem *p, uint32_t n_rows)
{
    add_layers(r, p);
    const qn_launch launch = launch_of(r, p);
    const qn_persistent_args args = args_of(r, p, n_rows);
    qn_gpu_launch(&launch, &args);
}

/* ---- Comparison ---- */

/* What a run has written. */
struct found {
    float *results[2];
    uint8_t *pages, *open;
};

static void reset(struct problem *p)
{
    qn_gpu_poison(p->x_out[0], p->x_out[1], p->sumsq[0], p->sumsq[1], p->f16_out, p->heads, p->partials, p->maxima,
                  p->acts, p->acts_scale, p->acts_f32, p->results[0], p->results[1], p->out[0], p->out[1], p->out[2],
                  p->out[3]);
    qn_gpu_write(p->open, p->initial_open, qn_gpu_bytes(p->open));
    qn_paged_upload(&p->pages); /* rows at the positions are NaN again */
}

static struct found read_all(const struct problem *p)
{
    qn_persistent_expect_barrier(p->barrier);
    return (struct found){ .results = { qn_gpu_read(p->results[0]), qn_gpu_read(p->results[1]) },
                           .pages = qn_gpu_read(p->pages.pool),
                           .open = qn_gpu_read(p->open) };
}

/* Every row by itself, with the kernel of one row. */
static struct found run_alone(struct problem *p)
{
    static struct run r;
    reset(p);
    for (size_t row = 0; row < ROWS; row++) {
        r = (struct run){ .row = row };
        launch_layers(&r, p, 1);
    }
    return read_all(p);
}

/* Computes the first n of n_rows rows; the other rows have no sequence. */
static struct found run_together(struct problem *p, uint32_t n, uint32_t n_rows)
{
    static struct run r;
    uint32_t sequences[ROWS];
    for (uint32_t row = 0; row < ROWS; row++)
        sequences[row] = row < n ? row : QN_ATTENTION_NO_SESSION;
    reset(p);
    qn_gpu_write(p->sequences, sequences, sizeof sequences);
    r = (struct run){ .of_several = true };
    launch_layers(&r, p, n_rows);
    return read_all(p);
}

/* As floats; numbers that are NaN in both are zeros. */
static void expect_close(const char *what, size_t row, float *found, float *expected, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (found[i] != found[i] && expected[i] != expected[i])
            found[i] = expected[i] = 0;
    if (!memcmp(found, expected, n * sizeof *found)) /* all zeros have no relative error */
        return;
    const double error = qn_relative_error(found, expected, n);
    qn_expect(error <= TOLERANCE, "row %zu: error of %s is %.2e, expected up to %.0e", row, what, error, TOLERANCE);
}

/* n elements of an array of f16 or of floats as floats. */
static float *f16_of(const uint8_t *array, size_t first, size_t n)
{
    float *x = qn_floats(n);
    for (size_t i = 0; i < n; i++)
        x[i] = qn_f16_to_f32(((const uint16_t *)(const void *)array)[first + i]);
    return x;
}

static float *floats_of(const uint8_t *array, size_t first, size_t n)
{
    float *x = qn_floats(n);
    memcpy(x, array + first * sizeof *x, n * sizeof *x);
    return x;
}

/* Values of a head in a row of an open chunk. */
static float *values_of(const struct problem *p, const uint8_t *open, size_t head, size_t row)
{
    float *x = f16_of(open + p->layout.values, (head * CHUNK + row) * HEAD, HEAD);
    const float *scales = floats_of(open + p->layout.scales, head * SCALES * CHUNK, SCALES * CHUNK);
    for (size_t i = 0; i < HEAD; i++)
        x[i] *= scales[i / QN_GDN_SCALE_VALUES * CHUNK + row];
    return x;
}

/* The row of an open chunk that was appended; everything else in it is as it was. */
static void check_open(const struct problem *p, size_t row, const uint8_t *found, const uint8_t *expected)
{
    const struct shape *s = p->s;
    const size_t slot = (ROWS - 1 - row) * p->layout.bytes, at = row_positions[row] % CHUNK,
                 input = row_positions[row] % QN_GDN_INPUT_ROWS(TAPS);
    size_t changed = 0, written = 0;
    found += slot;
    expected += slot;
    for (size_t h = 0; h < s->k_heads; h++) {
        const size_t key = (h * CHUNK + at) * HEAD;
        expect_close("a key of the open chunk", row, f16_of(found + p->layout.keys, key, HEAD),
                     f16_of(expected + p->layout.keys, key, HEAD), HEAD);
    }
    const float *decays = floats_of(found + p->layout.decays, 0, s->v_heads * CHUNK),
                *expected_decays = floats_of(expected + p->layout.decays, 0, s->v_heads * CHUNK);
    float *x = qn_floats(s->v_heads), *y = qn_floats(s->v_heads);
    for (size_t h = 0; h < s->v_heads; h++) {
        expect_close("values of the open chunk", row, values_of(p, found, h, at), values_of(p, expected, h, at), HEAD);
        x[h] = decays[h * CHUNK + at];
        y[h] = expected_decays[h * CHUNK + at];
    }
    expect_close("decays of the open chunk", row, x, y, s->v_heads);
    expect_close("the inputs of the convolution", row, floats_of(found + p->layout.inputs, input * p->width, p->width),
                 floats_of(expected + p->layout.inputs, input * p->width, p->width), p->width);
    for (size_t i = 0; i < p->layout.bytes; i++) { /* bytes that one of both has changed; a byte may be the same by
                                                      chance */
        written += expected[i] != p->initial_open[slot + i];
        changed += found[i] != p->initial_open[slot + i];
    }
    qn_expect(changed <= written + written / 10 + 16, "row %zu: %zu bytes of the open chunk have changed, expected %zu",
              row, changed, written);
}

static void check_row(const struct problem *p, size_t row, const struct found *f, const struct found *alone)
{
    const size_t hidden = p->s->hidden, page = p->pages.item_bytes;
    static const char *const layers[2] = { "the attention layer", "the Gated DeltaNet layer" };
    for (size_t i = 0; i < 2; i++) {
        float *found = f->results[i] + row * hidden, *expected = alone->results[i] + row * hidden;
        for (size_t k = 0; k < hidden; k++)
            qn_expect(expected[k] == expected[k] && found[k] == found[k], "row %zu: %s has NaN", row, layers[i]);
        expect_close(layers[i], row, found, expected, hidden);
    }
    for (size_t i = 0; i < p->pages.n_pages; i++) {
        const size_t at = p->pages.items[row * p->pages.n_pages + i] * page;
        expect_close("keys and values", row, f16_of(f->pages + at, 0, page / 2), f16_of(alone->pages + at, 0, page / 2),
                     page / 2);
    }
    check_open(p, row, f->open, alone->open);
}

/* Rows from n on are as they were. */
static void check_untouched(const struct problem *p, uint32_t n, const struct found *f)
{
    const size_t hidden = p->s->hidden;
    for (size_t row = n; row < ROWS; row++) {
        const size_t slot = (ROWS - 1 - row) * p->layout.bytes;
        for (size_t i = 0; i < 2 * hidden; i++) {
            const float x = f->results[i / hidden][row * hidden + i % hidden];
            qn_expect(x != x, "row %zu has a result without a sequence", row);
        }
        qn_expect(!memcmp(f->open + slot, p->initial_open + slot, p->layout.bytes),
                  "row %zu: the open chunk has changed", row);
        for (size_t i = 0; i < p->pages.n_pages; i++) {
            const size_t at = p->pages.items[row * p->pages.n_pages + i] * p->pages.item_bytes;
            qn_expect(!memcmp(f->pages + at, p->pages.host + at, p->pages.item_bytes), "row %zu: page %zu has changed",
                      row, i);
        }
    }
}

static void check_shape(const struct shape *s, const qn_type_info *type)
{
    static const uint32_t rows[][2] = { { 1, 2 }, { 2, 2 }, { 3, 3 }, { 3, 4 }, { 5, 8 } };
    if (!qn_case_selected())
        return;
    qn_random_seed(s->hidden + s->n_heads);
    qn_case_begin("persistent", "rows", "%s, %s", type->name, s->name);
    struct problem *p = problem_new(s, type);
    const struct found alone = run_alone(p), all = run_together(p, ROWS, ROWS);
    for (size_t i = 0; i < QN_LENGTH(rows); i++) {
        const struct found f = run_together(p, rows[i][0], rows[i][1]);
        for (size_t k = 0; k < 2; k++)
            qn_expect(!memcmp(f.results[k], all.results[k], rows[i][0] * s->hidden * sizeof(float)),
                      "layer %zu: bits of %u rows differ from those of %d", k, rows[i][0], ROWS);
        check_untouched(p, rows[i][0], &f);
    }
    for (size_t row = 0; row < ROWS; row++)
        check_row(p, row, &all, &alone);
    qn_release();
}

/* ---- Speed ---- */

static void bench_shape(const struct shape *s, const qn_type_info *type)
{
    enum { LAYERS = 4 };
    static const uint32_t rows[] = { 1, 2, 4, 8 }, sequences[ROWS] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    static struct run r;
    struct problem *p = problem_new(s, type);
    double bytes = 0;
    for (size_t k = 0; k < GEMVS; k++)
        bytes += (double)qn_gpu_bytes(p->weights[k].tiles);
    reset(p);
    qn_gpu_write(p->sequences, sequences, sizeof sequences);
    for (size_t i = 0; i < QN_LENGTH(rows); i++) {
        r = (struct run){ .of_several = rows[i] > 1 };
        for (size_t layer = 0; layer < LAYERS; layer++)
            add_layers(&r, p);
        const qn_launch launch = launch_of(&r, p);
        const qn_persistent_args args = args_of(&r, p, rows[i]);
        const double seconds = qn_persistent_seconds(&launch, &args, 1) / LAYERS;
        qn_report_rate(
            "persistent", "rows",
            qn_text("%s, %s: an attention and a Gated DeltaNet layer, %u rows", type->name, s->name, rows[i]), seconds,
            bytes / seconds, "B", qn_gpu_read_rate());
    }
    qn_release();
}

void qn_check_cuda_persistent_rows(bool bench)
{
    static const struct shape shapes[] = {
        { "few heads", 1024, 128, 8, 2, 128, 4, 8, false, 0 },
        { "rotated", 1024, 128, 8, 2, 64, 4, 8, true, 1024 },
        { "more units than blocks", 512, 256, 24, 4, 64, 16, 48, true, 128 },
        { "heads of 64", 512, 64, 12, 4, 64, 2, 6, false, 256 },
    };
    static const struct shape model = { "27B", 5120, 256, 24, 4, 64, 16, 48, true, 0 };
    static const qn_type types[] = { QN_TYPE_Q1_0, QN_TYPE_Q2_0, QN_TYPE_PQ2_0 };
    if (!qn_persistent_supported(2))
        return;
    for (size_t t = 0; t < QN_LENGTH(types); t++)
        for (size_t i = 0; i < QN_LENGTH(shapes); i++)
            check_shape(&shapes[i], qn_type_find(types[t]));
    if (bench)
        bench_shape(&model, qn_type_find(QN_TYPE_Q1_0));
}
