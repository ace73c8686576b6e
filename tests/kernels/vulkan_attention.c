/* Keys and values stored in pages, their codes, and attention over both, on a Vulkan device, against float64: granules
 * of the pool in any order, positions on all sides of a page's end, rows of several sequences, padding. Rows have the
 * same bits in splits and in tiles of many rows. */
#include "vulkan.h"

#include "base/f16.h"
#include "kernels/aura/aura.h"
#include "plan/page.h"

enum {
    SHIFT = 16 /* a head's rows fit in a granule */,
    GRANULE = 1 << SHIFT,
    N_GRANULES = 128,
    N_SEQUENCES = 3,
    NO_SEQUENCE = -1,
    F16 = QN_VK_F16_BITS
};

/* bits: F16 or of codes. max_length: of the lengths below. */
static const struct shape {
    size_t n_heads, n_kv_heads, dim;
    uint32_t key_bits, value_bits;
    size_t max_length;
} shapes[] = {
    { 1, 1, 16, F16, F16, 16500 }, { 9, 1, 80, F16, F16, 150 }, { 6, 1, 256, F16, F16, 65 },
    { 2, 1, 512, F16, F16, 65 },   { 4, 2, 64, 4, 4, 330 },     { 3, 1, 80, 3, 3, 200 },
    { 2, 1, 256, 8, 8, 150 },      { 2, 1, 96, 6, 2, 150 },     { 1, 1, 32, F16, F16, 16500 },
};

static const size_t lengths[] = { 1, 2, 63, 64, 65, 150, 200, 330, 16500 };

/* The arrays of a layer in a page, from its start; the items begin anywhere in a granule. */
struct layout {
    uint32_t key_at, value_at, key_scales_at, value_scales_at, means_at;
    size_t item_bytes;
};

/* A cache of N_SEQUENCES sequences of `length` positions, and its copy on the device. */
struct cache {
    const struct shape *shape;
    size_t length, n_pages;
    bool has_codes;
    struct layout codes, f16; /* of pages of codes, and of fp16 pages: the only ones without codes */
    qn_aura_codecs aura;
    qn_vk_rotation rotation;
    const qn_vk_array *memory, *granules, *tables, *f16_tables, *levels;
    float *keys, *values;           /* [sequences][length][heads][dim] as stored: fp16 */
    float *code_keys, *code_values; /* likewise, from codes; no page 0 */
    float *means;                   /* [sequences][heads][dim] of page 0 */
};

static uint64_t granule_address(const struct cache *c, size_t granule)
{
    return c->memory->at + (granule * 37 + 11) % N_GRANULES * GRANULE;
}

/* Pool addresses of pages, from granule 1 on: first fp16 pages. */
static uint64_t page_address(const struct cache *c, bool is_f16, size_t sequence, size_t page)
{
    const size_t index = sequence + N_SEQUENCES * page, all = N_SEQUENCES * c->n_pages;
    return GRANULE + (is_f16 ? index * c->f16.item_bytes : all * c->f16.item_bytes + index * c->codes.item_bytes);
}

static const qn_vk_array *new_tables(const struct cache *c, bool is_f16)
{
    uint64_t *addresses = qn_new(N_SEQUENCES, sizeof *addresses);
    for (size_t s = 0; s < N_SEQUENCES; s++) {
        uint64_t *pages = qn_new(c->n_pages, sizeof *pages);
        for (size_t page = 0; page < c->n_pages; page++)
            pages[page] = page_address(c, is_f16, s, page);
        addresses[s] = qn_vk_array_of(pages)->at;
    }
    return qn_vk_array_of(addresses);
}

/* The offset in `memory` of a pool address. */
static size_t offset_of(const struct cache *c, uint64_t at)
{
    return (size_t)(granule_address(c, at >> SHIFT) - c->memory->at + (at & (GRANULE - 1)));
}

/* Reads a word of the pool from a copy of `memory`. */
static uint32_t word_of(const struct cache *c, const uint8_t *memory, uint64_t at)
{
    uint32_t word;
    memcpy(&word, memory + offset_of(c, at), sizeof word);
    return word;
}

static float float_of(const struct cache *c, const uint8_t *memory, uint64_t at)
{
    const uint32_t word = word_of(c, memory, at);
    float x;
    memcpy(&x, &word, sizeof x);
    return x;
}

/* ---- Codecs ---- */

static void create_codecs(struct cache *c)
{
    const struct shape *s = c->shape;
    qn_vk_levels *levels = qn_new(1, sizeof *levels);
    qn_assert_ok(qn_aura_codecs_new(&c->aura, s->dim, s->key_bits, s->value_bits, 1));
    const qn_aura_codec *keys = c->aura.keys, *values = c->aura.values;
    memset(levels, 0, sizeof *levels);
    memcpy(levels->keys.boundaries, keys->boundaries, sizeof keys->boundaries);
    memcpy(levels->keys.codebook, keys->codebook, sizeof keys->codebook);
    memcpy(levels->values.boundaries, values->boundaries, sizeof values->boundaries);
    memcpy(levels->values.codebook, values->codebook, sizeof values->codebook);
    c->levels = qn_vk_array_of(levels);
    const float *const tables[3] = { keys->signs, keys->signs ? NULL : keys->transpose,
                                     keys->signs ? NULL : keys->rotation };
    uint64_t at[3] = { 0 };
    for (size_t i = 0; i < 3; i++)
        if (tables[i]) {
            const size_t n = i ? s->dim * s->dim : s->dim;
            float *copy = qn_floats(n);
            memcpy(copy, tables[i], n * sizeof *copy);
            at[i] = qn_vk_array_of(copy)->at;
        }
    c->rotation = (qn_vk_rotation){ at[0], at[1], at[2], 1 / sqrtf((float)s->dim) };
}

/* Element (i, j) of the rotation. */
static double rotation_at(const qn_aura_codec *codec, size_t i, size_t j)
{
    if (!codec->signs)
        return (double)codec->rotation[i * codec->dim + j];
    return (double)codec->signs[j] * (__builtin_popcountll(i & j) % 2 ? -1 : 1) / sqrt((double)codec->dim);
}

static void rotate(const qn_aura_codec *codec, bool is_inverse, const double *x, double *y)
{
    for (size_t i = 0; i < codec->dim; i++) {
        y[i] = 0;
        for (size_t j = 0; j < codec->dim; j++)
            y[i] += (is_inverse ? rotation_at(codec, j, i) : rotation_at(codec, i, j)) * x[j];
    }
}

/* ---- Storing ---- */

static float as_stored(float x)
{
    return qn_f16_to_f32(qn_f32_to_f16(x));
}

/* Stores all rows of all sequences by the kernel. */
static void store_rows(struct cache *c, const float *keys, const float *values, const float *bias)
{
    const struct shape *s = c->shape;
    const size_t n_rows = N_SEQUENCES * c->length;
    uint32_t *positions = qn_new(n_rows + 1, sizeof *positions);
    int32_t *sequences = qn_new(n_rows + 1, sizeof *sequences);
    for (size_t i = 0; i < n_rows; i++) {
        positions[i] = (uint32_t)(i % c->length);
        sequences[i] = (int32_t)(i / c->length);
    }
    sequences[n_rows] = NO_SEQUENCE;
    qn_vk_rope_args args = { .x = qn_vk_array_of(keys)->at,
                             .tables = c->f16_tables->at,
                             .positions = qn_vk_array_of(positions)->at,
                             .sequences = qn_vk_array_of(sequences)->at,
                             .granules = c->granules->at,
                             .shift = SHIFT,
                             .at = c->f16.key_at,
                             .stride = (uint32_t)s->dim,
                             .dim = (uint32_t)s->dim,
                             .scale = 1 };
    qn_vk_launch_now(qn_vk_rope(n_rows + 1, s->n_kv_heads), &args);
    args.x = qn_vk_array_of(values)->at;
    args.bias = qn_vk_array_of(bias)->at;
    args.signs = c->rotation.signs;
    args.matrix = c->rotation.forward;
    args.at = c->f16.value_at;
    args.factor = c->rotation.factor;
    qn_vk_launch_now(qn_vk_rope(n_rows + 1, s->n_kv_heads), &args);
}

/* What is stored of rows: of fp16 caches bit for bit what the host would store; rotated values within the rounding of
 * fp16. */
static void check_stored(struct cache *c, const float *keys, const float *values, const float *bias)
{
    const struct shape *s = c->shape;
    const uint8_t *memory = qn_vk_contents(c->memory);
    double *value = qn_doubles(s->dim), *rotated = qn_doubles(s->dim);
    size_t n_wrong = 0;
    for (size_t i = 0; i < N_SEQUENCES * c->length * s->n_kv_heads; i++) {
        const size_t h = i % s->n_kv_heads, row = i / s->n_kv_heads, position = row % c->length;
        const uint64_t page = page_address(c, true, row / c->length, position / QN_PAGE);
        const size_t at = ((h * QN_PAGE + position % QN_PAGE) * s->dim) * sizeof(uint16_t);
        for (size_t d = 0; d < s->dim; d++)
            value[d] = (double)(values[i * s->dim + d] + bias[h * s->dim + d]);
        if (c->has_codes)
            rotate(c->aura.values, false, value, rotated);
        for (size_t d = 0; d < s->dim; d++) {
            const size_t in_word = d % 2 * 16, word = at + d / 2 * sizeof(uint32_t);
            const float key = keys[i * s->dim + d], expected = fabsf(key) > 65504 ? 65504 : as_stored(key),
                        found = qn_f16_to_f32((uint16_t)(word_of(c, memory, page + c->f16.key_at + word) >> in_word)),
                        v = qn_f16_to_f32((uint16_t)(word_of(c, memory, page + c->f16.value_at + word) >> in_word));
            n_wrong += found != expected;
            n_wrong += c->has_codes ? !(fabs((double)v - rotated[d]) <= fabs(rotated[d]) * 0x1p-11 + 1e-5)
                                    : v != as_stored((float)value[d]);
            c->keys[i * s->dim + d] = found;
            c->values[i * s->dim + d] = v;
        }
    }
    qn_expect(!n_wrong, "%zu stored values are wrong", n_wrong);
}

/* ---- Codes ---- */

/* Quantises complete pages: those of all sequences by a launch, or page by page as decode steps do. */
static void quantize(const struct cache *c, bool is_decode)
{
    const struct shape *s = c->shape;
    const size_t n_pages = c->length / QN_PAGE;
    const qn_vk_codes codes = { s->key_bits, s->value_bits };
    qn_vk_quantize_args args = { .tables = c->tables->at,
                                 .f16_tables = c->f16_tables->at,
                                 .granules = c->granules->at,
                                 .levels = c->levels->at,
                                 .shift = SHIFT,
                                 .dim = (uint32_t)s->dim,
                                 .key_at = c->codes.key_at,
                                 .value_at = c->codes.value_at,
                                 .key_scales_at = c->codes.key_scales_at,
                                 .value_scales_at = c->codes.value_scales_at,
                                 .f16_key_at = c->f16.key_at,
                                 .f16_value_at = c->f16.value_at,
                                 .means_at = c->f16.means_at,
                                 .n_pieces = is_decode ? 0 : N_SEQUENCES };
    for (size_t step = 0; step < (is_decode ? n_pages : n_pages != 0); step++) {
        uint32_t *first = qn_new(N_SEQUENCES, sizeof *first), *begins = qn_new(N_SEQUENCES + 1, sizeof *begins);
        for (uint32_t i = 0; i < N_SEQUENCES; i++) {
            first[i] = is_decode ? (uint32_t)(step * QN_PAGE + QN_PAGE - 1) : 0;
            begins[i + 1] = begins[i] + (is_decode ? 1 : (uint32_t)c->length);
        }
        args.first_positions = qn_vk_array_of(first)->at;
        args.row_begins = qn_vk_array_of(begins)->at;
        qn_vk_launch_now(qn_vk_quantize(&codes, is_decode ? N_SEQUENCES : N_SEQUENCES * n_pages, s->n_kv_heads, 1),
                         &args);
    }
}

/* Checks the codes of a row y, without the mean, and writes what they stand for. Returns whether they are right: within
 * rounding of the boundaries, and of the norm. */
static bool check_row(const struct cache *c, const uint8_t *memory, const qn_aura_codec *codec, const double *y,
                      uint64_t words, uint64_t scale_at, float *decoded)
{
    double square = 0, length = 0;
    bool ok = true;
    for (size_t d = 0; d < codec->dim; d++)
        square += y[d] * y[d];
    const float scale = float_of(c, memory, scale_at);
    for (size_t d = 0; d < codec->dim; d++) {
        const size_t bit = d * codec->bits, in_word = bit % 32;
        uint64_t word = word_of(c, memory, words + bit / 32 * sizeof(uint32_t));
        if (in_word + codec->bits > 32)
            word |= (uint64_t)word_of(c, memory, words + (bit / 32 + 1) * sizeof(uint32_t)) << 32;
        const uint32_t code = word >> in_word & ((1u << codec->bits) - 1);
        const double unit = y[d] / sqrt(square), eps = 1e-6;
        ok = ok && (code == 0 || unit > (double)codec->boundaries[code - 1] - eps);
        ok = ok && (code == (1u << codec->bits) - 1 || unit <= (double)codec->boundaries[code] + eps);
        length += (double)codec->codebook[code] * (double)codec->codebook[code];
        decoded[d] = scale * codec->codebook[code];
    }
    return ok && fabs((double)scale - sqrt(square / length)) <= 1e-5 * (double)scale;
}

static void check_codes(struct cache *c)
{
    const struct shape *s = c->shape;
    const uint8_t *memory = qn_vk_contents(c->memory);
    const size_t row = s->n_kv_heads * s->dim, key_words = (s->dim * s->key_bits + 31) / 32,
                 value_words = (s->dim * s->value_bits + 31) / 32, end = c->length / QN_PAGE * QN_PAGE;
    double *key = qn_doubles(s->dim), *value = qn_doubles(s->dim);
    size_t n_wrong = 0;
    for (size_t i = 0; i < N_SEQUENCES * s->n_kv_heads && end; i++) {
        const size_t sequence = i / s->n_kv_heads, h = i % s->n_kv_heads;
        const float *keys = c->keys + sequence * c->length * row + h * s->dim;
        for (size_t d = 0; d < s->dim; d++) {
            double sum = 0;
            for (size_t p = 0; p < QN_PAGE; p++)
                sum += (double)keys[p * row + d];
            const uint64_t at = page_address(c, true, sequence, 0) + c->f16.means_at;
            c->means[i * s->dim + d] = float_of(c, memory, at + (h * s->dim + d) * sizeof(float));
            n_wrong += !(fabs((double)c->means[i * s->dim + d] - sum / QN_PAGE) <= 1e-5);
        }
    }
    qn_expect(!n_wrong, "%zu means are wrong", n_wrong);
    for (size_t i = 0; i < N_SEQUENCES * c->length * s->n_kv_heads; i++) {
        const size_t h = i % s->n_kv_heads, sequence = i / s->n_kv_heads / c->length,
                     position = i / s->n_kv_heads % c->length, at = h * QN_PAGE + position % QN_PAGE;
        const uint64_t page = page_address(c, false, sequence, position / QN_PAGE);
        if (position < QN_PAGE || position >= end)
            continue;
        const float *means = c->means + (sequence * s->n_kv_heads + h) * s->dim;
        for (size_t d = 0; d < s->dim; d++) {
            key[d] = (double)(c->keys[i * s->dim + d] - means[d]);
            value[d] = (double)c->values[i * s->dim + d];
        }
        n_wrong += !check_row(c, memory, c->aura.keys, key, page + c->codes.key_at + at * key_words * sizeof(uint32_t),
                              page + c->codes.key_scales_at + at * sizeof(float), c->code_keys + i * s->dim);
        n_wrong +=
            !check_row(c, memory, c->aura.values, value, page + c->codes.value_at + at * value_words * sizeof(uint32_t),
                       page + c->codes.value_scales_at + at * sizeof(float), c->code_values + i * s->dim);
        for (size_t d = 0; d < s->dim; d++)
            c->code_keys[i * s->dim + d] += means[d];
    }
    qn_expect(!n_wrong, "%zu rows of codes are wrong", n_wrong);
}

/* ---- A cache ---- */

static struct layout layout_of(const struct shape *s, bool is_f16)
{
    enum { BEFORE = 512, AFTER = 256 }; /* bytes of other layers */
    const size_t rows = s->n_kv_heads * QN_PAGE, scales = rows * sizeof(float);
    const size_t key_bytes = rows * 4 * ((s->dim * (is_f16 ? F16 : s->key_bits) + 31) / 32),
                 value_bytes = rows * 4 * ((s->dim * (is_f16 ? F16 : s->value_bits) + 31) / 32);
    struct layout l = { .key_at = BEFORE };
    l.value_at = l.key_at + (uint32_t)key_bytes;
    l.means_at = l.key_scales_at = l.value_at + (uint32_t)value_bytes;
    l.value_scales_at = l.key_scales_at + (uint32_t)scales;
    l.item_bytes = l.means_at + (is_f16 ? s->n_kv_heads * s->dim * sizeof(float) : 2 * scales) + AFTER;
    return l;
}

static void fill(struct cache *c)
{
    const struct shape *s = c->shape;
    const size_t row = s->n_kv_heads * s->dim, n = N_SEQUENCES * c->length * row;
    const float *bias = qn_floats_of(row, 1);
    float *keys = qn_floats_of(n + row, 1), *values = qn_floats_of(n + row, 1);
    if (!c->has_codes) {
        keys[0] = 1e9f;   /* saturates */
        keys[1] = -3e-6f; /* a denormal of fp16 */
        keys[2] = 5e-8f;
    }
    c->keys = qn_floats(n);
    c->values = qn_floats(n);
    store_rows(c, keys, values, bias);
    check_stored(c, keys, values, bias);
    if (!c->has_codes)
        return;
    c->code_keys = qn_floats(n);
    c->code_values = qn_floats(n);
    c->means = qn_floats(N_SEQUENCES * row);
    quantize(c, c->length % 4 == 2);
    check_codes(c);
}

static void create_cache(const struct shape *s, size_t length, struct cache *c)
{
    uint64_t *granules = qn_new(N_GRANULES, sizeof *granules);
    *c = (struct cache){ .shape = s,
                         .length = length,
                         .n_pages = (length + QN_PAGE - 1) / QN_PAGE,
                         .has_codes = s->key_bits != F16,
                         .codes = layout_of(s, s->key_bits == F16),
                         .f16 = layout_of(s, true) };
    c->memory = qn_vk_new_array((size_t)N_GRANULES * GRANULE);
    for (size_t i = 0; i < N_GRANULES; i++)
        granules[i] = granule_address(c, i);
    c->granules = qn_vk_array_of(granules);
    c->f16_tables = new_tables(c, true);
    c->tables = c->has_codes ? new_tables(c, false) : c->f16_tables;
    if (c->has_codes)
        create_codecs(c);
    fill(c);
}

/* ---- Attention ---- */

/* Attention of a head in float64. */
static void expect_head(const struct cache *c, const float *query, size_t sequence, size_t position, size_t head,
                        double *y)
{
    const struct shape *s = c->shape;
    const size_t kv = head / (s->n_heads / s->n_kv_heads), row = s->n_kv_heads * s->dim,
                 first = (sequence * c->length) * row + kv * s->dim;
    double *scores = qn_doubles(position + 1), *sums = qn_doubles(s->dim), most = -INFINITY, total = 0;
    for (size_t p = 0; p <= position; p++) {
        const bool has_codes = c->has_codes && p >= QN_PAGE && p / QN_PAGE != position / QN_PAGE;
        const float *key = (has_codes ? c->code_keys : c->keys) + first + p * row;
        for (size_t d = 0; d < s->dim; d++)
            scores[p] += (double)query[d] * (double)key[d];
        most = scores[p] > most ? scores[p] : most;
    }
    for (size_t p = 0; p <= position; p++) {
        const bool has_codes = c->has_codes && p >= QN_PAGE && p / QN_PAGE != position / QN_PAGE;
        const float *value = (has_codes ? c->code_values : c->values) + first + p * row;
        const double weight = exp(scores[p] - most);
        total += weight;
        for (size_t d = 0; d < s->dim; d++)
            sums[d] += weight * (double)value[d];
    }
    for (size_t d = 0; d < s->dim; d++)
        sums[d] /= total;
    if (c->has_codes)
        rotate(c->aura.values, true, sums, y);
    else
        memcpy(y, sums, s->dim * sizeof *y);
}

/* Rows of a step: one of each sequence, and padding. */
enum { ROWS = N_SEQUENCES + 1 };

struct rows {
    uint32_t positions[ROWS];
    int32_t sequences[ROWS];
    const float *queries;
    qn_vk_attention_args args;
    qn_vk_combine_args combine;
};

static void create_rows(const struct cache *c, struct rows *r)
{
    const struct shape *s = c->shape;
    uint32_t *positions = qn_new(ROWS, sizeof *positions);
    int32_t *sequences = qn_new(ROWS, sizeof *sequences);
    for (size_t i = 0; i < N_SEQUENCES; i++) {
        positions[i] = i ? (uint32_t)qn_random_below(c->length) : (uint32_t)c->length - 1;
        sequences[i] = (int32_t)(N_SEQUENCES - 1 - i);
    }
    sequences[N_SEQUENCES] = NO_SEQUENCE;
    memcpy(r->positions, positions, sizeof r->positions);
    memcpy(r->sequences, sequences, sizeof r->sequences);
    r->queries = qn_floats_of(ROWS * s->n_heads * s->dim, 1.0f / sqrtf((float)s->dim));
    r->args = (qn_vk_attention_args){ .queries = qn_vk_array_of(r->queries)->at,
                                      .tables = c->tables->at,
                                      .f16_tables = c->f16_tables->at,
                                      .positions = qn_vk_array_of(positions)->at,
                                      .sequences = qn_vk_array_of(sequences)->at,
                                      .granules = c->granules->at,
                                      .levels = c->has_codes ? c->levels->at : 0,
                                      .shift = SHIFT,
                                      .heads_per_kv = (uint32_t)(s->n_heads / s->n_kv_heads),
                                      .n_heads = (uint32_t)s->n_heads,
                                      .key_at = c->codes.key_at,
                                      .value_at = c->codes.value_at,
                                      .key_scales_at = c->codes.key_scales_at,
                                      .value_scales_at = c->codes.value_scales_at,
                                      .f16_key_at = c->f16.key_at,
                                      .f16_value_at = c->f16.value_at,
                                      .means_at = c->f16.means_at,
                                      .n_splits = QN_VK_MAX_SPLITS };
    r->combine = (qn_vk_combine_args){ .positions = r->args.positions,
                                       .sequences = r->args.sequences,
                                       .signs = c->rotation.signs,
                                       .matrix = c->rotation.inverse,
                                       .dim = (uint32_t)s->dim,
                                       .n_splits = r->args.n_splits,
                                       .factor = c->rotation.factor };
}

static const qn_vk_array *new_results(const struct shape *s)
{
    return qn_vk_new_array(ROWS * s->n_heads * s->dim * sizeof(float));
}

/* Results of all rows by splits, from row 1 on and then row 0, as two groups. */
static const float *run_splits(const struct cache *c, const struct rows *r)
{
    const struct shape *s = c->shape;
    const qn_vk_codes codes = { s->key_bits, s->value_bits };
    const qn_vk_array *y = new_results(s), *partials = qn_vk_new_array((ROWS - 1) * s->n_heads * QN_VK_MAX_SPLITS *
                                                                       (s->dim + QN_VK_PARTIAL_EXTRA) * sizeof(float));
    qn_vk_attention_args args = r->args;
    qn_vk_combine_args combine = r->combine;
    args.y = combine.partials = partials->at;
    combine.y = y->at;
    for (uint32_t row = 2; row-- > 0;) {
        const size_t n = row ? ROWS - 1 : 1;
        args.row = combine.row = row;
        qn_vk_launch_now(qn_vk_attention_splits(&codes, s->dim, n, s->n_heads, s->n_kv_heads, args.n_splits, false),
                         &args);
        qn_vk_launch_now(qn_vk_combine(n, s->n_heads), &combine);
    }
    return qn_vk_contents(y);
}

/* Results of row 0 as one of a piece of its sequence: other rows are in the tile, before it and after it. */
static const float *run_piece(const struct cache *c, const struct rows *r)
{
    enum { MOST = 5 };
    const struct shape *s = c->shape;
    const qn_vk_codes codes = { s->key_bits, s->value_bits };
    const size_t row = s->n_heads * s->dim, before = r->positions[0] < MOST ? r->positions[0] : MOST, n = before + 1;
    float *queries = qn_floats_of(n * row, 1);
    int32_t *sequences = qn_new(n, sizeof *sequences);
    const qn_vk_array *y = qn_vk_new_array(n * row * sizeof(float));
    qn_vk_attention_args args = r->args;
    qn_vk_combine_args combine = r->combine;
    memcpy(queries + before * row, r->queries, row * sizeof *queries);
    args.queries = qn_vk_array_of(queries)->at;
    args.y = combine.y = y->at;
    args.n_rows = (uint32_t)n;
    args.position = r->positions[0] - (uint32_t)before;
    args.sequence = (uint32_t)r->sequences[0];
    combine.sequences = qn_vk_array_of(sequences)->at;
    qn_vk_launch_now(qn_vk_attention_rows(&codes, s->dim, args.position, n, s->n_heads, s->n_kv_heads), &args);
    if (c->has_codes)
        qn_vk_launch_now(qn_vk_combine(n, s->n_heads), &combine);
    return (const float *)qn_vk_contents(y) + before * row;
}

/* The activations of row 0 as splits combine them by themselves: those of the kernel that combines, to the bit. */
static void check_combination(const struct cache *c, const struct rows *r)
{
    const struct shape *s = c->shape;
    const qn_vk_codes codes = { s->key_bits, s->value_bits };
    const uint32_t planes = 1 + c->length % 2;
    const size_t width = s->n_heads * s->dim, bytes = qn_vk_act_row_bytes(width, planes);
    const qn_vk_array *found = qn_vk_array_of(qn_new(bytes, 1)), *expected = qn_vk_array_of(qn_new(bytes, 1)),
                      *gates = qn_vk_array_of(qn_floats_of(2 * width, 2)),
                      *partials = qn_vk_new_array(s->n_heads * QN_VK_MAX_SPLITS * (s->dim + QN_VK_PARTIAL_EXTRA) *
                                                  sizeof(float));
    qn_vk_attention_args args = r->args;
    qn_vk_combine_args combine = r->combine;
    args.y = combine.partials = partials->at;
    combine.y = new_results(s)->at;
    combine.codes = expected->at;
    combine.gates = gates->at;
    combine.planes = planes;
    qn_vk_launch_now(qn_vk_attention_splits(&codes, s->dim, 1, s->n_heads, s->n_kv_heads, args.n_splits, false), &args);
    qn_vk_launch_now(qn_vk_combine(1, s->n_heads), &combine);
    qn_vk_combination *combination = qn_new(1, sizeof *combination);
    *combination = (qn_vk_combination){ .arrived = qn_vk_array_of(qn_new(s->n_heads, sizeof(uint32_t)))->at,
                                        .signs = combine.signs,
                                        .matrix = combine.matrix,
                                        .codes = found->at,
                                        .gates = gates->at,
                                        .planes = planes,
                                        .factor = combine.factor };
    const uint64_t at = qn_vk_array_of(combination)->at;
    args.y = qn_vk_new_array(partials->bytes)->at;
    args.position = (uint32_t)at;
    args.sequence = (uint32_t)(at >> 32);
    for (int i = 0; i < 2; i++) /* the counters are 0 again */
        qn_vk_launch_now(qn_vk_attention_splits(&codes, s->dim, 1, s->n_heads, s->n_kv_heads, args.n_splits, true),
                         &args);
    qn_expect(!memcmp(qn_vk_contents(found), qn_vk_contents(expected), bytes),
              "the last workgroup of splits gives other activations than the kernel that combines them");
}

static void check_attention(const struct shape *s, size_t length)
{
    const size_t row = s->n_heads * s->dim, n = N_SEQUENCES * row;
    double *expected = qn_doubles(n), *bound = qn_doubles(n);
    struct cache c;
    struct rows r;
    qn_case_begin("attention", "vulkan", "%zu heads for %zu of %zu, %u and %u bits, %zu positions", s->n_heads,
                  s->n_kv_heads, s->dim, s->key_bits, s->value_bits, length);
    create_cache(s, length, &c);
    create_rows(&c, &r);
    for (size_t i = 0; i < n; i++)
        if (i % s->dim == 0)
            expect_head(&c, r.queries + i, (size_t)r.sequences[i / row], r.positions[i / row], i / s->dim % s->n_heads,
                        expected + i);
    for (size_t i = 0; i < n; i++)
        bound[i] = 2e-5 + fabs(expected[i]) * 1e-5; /* scores of up to 20 within 2^-24 of their terms, values of 4 */
    const float *y = run_splits(&c, &r);
    qn_expect_near(y, expected, bound, n, "value");
    qn_expect_same(run_piece(&c, &r), y, row, "value of a row of a piece");
    if (s->dim % QN_QUANT_GROUP == 0)
        check_combination(&c, &r);
    qn_aura_codecs_delete(&c.aura);
    qn_release();
}

/* ---- Speed ---- */

/* A row of every sequence over `length` positions of a layer; rows of a prompt after them. All entries of the page
 * tables are a few pages: caches of devices hold these, so that figures are those of arithmetic. */
static void bench_shape(size_t n_heads, size_t n_kv_heads, size_t dim, uint32_t bits, size_t length)
{
    enum { BENCH_ROWS = 256 };
    const struct shape s = { n_heads, n_kv_heads, dim, bits, bits, 0 };
    const qn_vk_codes codes = { bits, bits };
    const size_t row = n_heads * dim;
    struct cache c;
    struct rows r;
    create_cache(&s, 3 * QN_PAGE, &c);
    create_rows(&c, &r);
    uint64_t *pages = qn_new(length / QN_PAGE + 8, sizeof *pages),
             *f16_pages = qn_new(length / QN_PAGE + 8, sizeof *pages), *tables = qn_new(2, sizeof *tables);
    uint32_t *position = qn_new(1, sizeof *position), *sequence = qn_new(1, sizeof *sequence);
    for (size_t i = 0; i < length / QN_PAGE + 8; i++) {
        pages[i] = page_address(&c, !c.has_codes, i % N_SEQUENCES, i ? 1 + i % 2 : 0);
        f16_pages[i] = page_address(&c, true, i % N_SEQUENCES, i ? 1 + i % 2 : 0);
    }
    tables[0] = qn_vk_array_of(pages)->at;
    tables[1] = qn_vk_array_of(f16_pages)->at;
    *position = (uint32_t)length - 1;
    const qn_vk_array *on_device = qn_vk_array_of(tables),
                      *partials = qn_vk_new_array(n_heads * QN_VK_MAX_SPLITS * (dim + QN_VK_PARTIAL_EXTRA) * 4),
                      *y = qn_vk_new_array(BENCH_ROWS * row * sizeof(float));
    qn_vk_attention_args args = r.args;
    args.queries = qn_vk_array_of(qn_floats_of(BENCH_ROWS * row, 0.1f))->at;
    args.tables = on_device->at;
    args.f16_tables = on_device->at + sizeof *tables;
    args.positions = qn_vk_array_of(position)->at;
    args.sequences = qn_vk_array_of(sequence)->at;
    args.y = partials->at;
    const double bytes = (double)length * (double)n_kv_heads * (double)dim * bits / 4;
    qn_vk_bench_launch(
        "attention splits", qn_text("%zu/%zu x %zu, %u bits, %zu positions", n_heads, n_kv_heads, dim, bits, length),
        bytes, "B", qn_vk_attention_splits(&codes, dim, 1, n_heads, n_kv_heads, QN_VK_MAX_SPLITS, false), &args);
    qn_vk_combine_args combine = r.combine;
    combine.partials = partials->at;
    combine.y = y->at;
    combine.positions = args.positions;
    combine.sequences = args.sequences;
    qn_vk_bench_launch("attention combine", qn_text("%zu x %zu, %zu positions", n_heads, dim, length), 1, "row",
                       qn_vk_combine(1, n_heads), &combine);
    args.y = y->at;
    args.n_rows = BENCH_ROWS;
    args.position = (uint32_t)length;
    const double flops = 4.0 * BENCH_ROWS * (double)row * (double)(length + BENCH_ROWS / 2);
    qn_vk_bench_launch(
        "attention rows",
        qn_text("%zu/%zu x %zu, %u bits, %d rows after %zu", n_heads, n_kv_heads, dim, bits, BENCH_ROWS, length), flops,
        "flop", qn_vk_attention_rows(&codes, dim, length, BENCH_ROWS, n_heads, n_kv_heads), &args);
    qn_aura_codecs_delete(&c.aura);
    qn_release();
}

void qn_check_vulkan_attention(bool bench)
{
    qn_random_seed(3);
    for (size_t i = 0; i < QN_LENGTH(shapes); i++) /* nearly all time is that of compiling pipelines of shapes */
        for (size_t l = 0, is_selected = qn_case_selected(); is_selected && l < QN_LENGTH(lengths); l++)
            if (lengths[l] <= shapes[i].max_length)
                check_attention(&shapes[i], lengths[l]);
    if (!bench)
        return;
    static const size_t depths[] = { 512, 4096, 32768 };
    static const uint32_t bits[] = { F16, 4, 3 };
    for (size_t d = 0; d < QN_LENGTH(depths); d++)
        for (size_t b = 0; b < QN_LENGTH(bits); b++) {
            bench_shape(32, 8, 128, bits[b], depths[d]);
            bench_shape(24, 4, 256, bits[b], depths[d]);
        }
}
