/* Keys and values stored in pages, and attention over them, on a Vulkan device, against float64: granules of the pool
 * in any order, positions on all sides of a page's end, rows of several sequences, padding. */
#include "vulkan.h"

#include "base/f16.h"
#include "plan/page.h"

enum { SHIFT = 14, GRANULE = 1 << SHIFT, N_GRANULES = 96, N_SEQUENCES = 3, NO_SEQUENCE = -1 };

static const struct shape {
    size_t n_heads, n_kv_heads, dim;
} shapes[] = { { 1, 1, 16 }, { 4, 2, 64 }, { 3, 1, 80 }, { 6, 2, 128 }, { 2, 1, 512 } };

static const uint32_t lengths[] = { 1, 2, 63, 64, 65, 150 };

/* A cache of N_SEQUENCES sequences of `length` positions, and its copy on the device. An item is a page: the keys of
 * all heads, then their values, after some bytes of other layers. */
struct cache {
    const struct shape *shape;
    size_t length, n_pages, item_bytes;
    uint32_t key_at, value_at, head_bytes;
    const qn_vk_array *memory, *granules, *tables[N_SEQUENCES], *addresses;
    float *keys, *values; /* [sequences][length][heads][dim], as stored: fp16 */
};

static uint64_t granule_address(const struct cache *c, size_t granule)
{
    return c->memory->at + (granule * 37 + 11) % N_GRANULES * GRANULE;
}

/* Pool addresses of pages, from granule 1 on. */
static uint64_t page_address(const struct cache *c, size_t sequence, size_t page)
{
    return GRANULE + (sequence + N_SEQUENCES * page) * c->item_bytes;
}

static void create_tables(struct cache *c)
{
    uint64_t *granules = qn_new(N_GRANULES, sizeof *granules), *addresses = qn_new(N_SEQUENCES, sizeof *addresses);
    for (size_t i = 0; i < N_GRANULES; i++)
        granules[i] = granule_address(c, i);
    c->granules = qn_vk_array_of(granules);
    for (size_t s = 0; s < N_SEQUENCES; s++) {
        uint64_t *pages = qn_new(c->n_pages, sizeof *pages);
        for (size_t page = 0; page < c->n_pages; page++)
            pages[page] = page_address(c, s, page);
        c->tables[s] = qn_vk_array_of(pages);
        addresses[s] = c->tables[s]->at;
    }
    c->addresses = qn_vk_array_of(addresses);
}

static float as_stored(float x)
{
    return qn_f16_to_f32(qn_f32_to_f16(x));
}

/* Stores all rows of all sequences by the kernel. */
static void fill(struct cache *c)
{
    const struct shape *s = c->shape;
    const size_t row = s->n_kv_heads * s->dim, n_rows = N_SEQUENCES * c->length;
    const float *bias = qn_floats_of(row, 1);
    uint32_t *positions = qn_new(n_rows + 1, sizeof *positions);
    int32_t *sequences = qn_new(n_rows + 1, sizeof *sequences);
    float *keys = qn_floats_of((n_rows + 1) * row, 1), *values = qn_floats_of((n_rows + 1) * row, 1);
    c->keys = qn_floats(n_rows * row);
    c->values = qn_floats(n_rows * row);
    for (size_t i = 0; i < n_rows; i++) {
        positions[i] = (uint32_t)(i % c->length);
        sequences[i] = (int32_t)(i / c->length);
    }
    sequences[n_rows] = NO_SEQUENCE;
    keys[0] = 1e9f;   /* saturates */
    keys[1] = -3e-6f; /* a denormal of fp16 */
    keys[2] = 5e-8f;
    for (size_t i = 0; i < n_rows * row; i++) {
        c->keys[i] = fabsf(keys[i]) > 65504 ? 65504 : as_stored(keys[i]);
        c->values[i] = as_stored(values[i] + bias[i % row]);
    }
    const qn_vk_store_args args = { .keys = qn_vk_array_of(keys)->at,
                                    .values = qn_vk_array_of(values)->at,
                                    .value_bias = qn_vk_array_of(bias)->at,
                                    .tables = c->addresses->at,
                                    .positions = qn_vk_array_of(positions)->at,
                                    .sequences = qn_vk_array_of(sequences)->at,
                                    .granules = c->granules->at,
                                    .shift = SHIFT,
                                    .dim = (uint32_t)s->dim,
                                    .key_at = c->key_at,
                                    .value_at = c->value_at,
                                    .head_bytes = c->head_bytes };
    qn_vk_launch_now(qn_vk_store(n_rows + 1, s->n_kv_heads), &args);
}

static void create_cache(const struct shape *s, size_t length, struct cache *c)
{
    *c = (struct cache){ .shape = s,
                         .length = length,
                         .n_pages = (length + QN_PAGE - 1) / QN_PAGE,
                         .key_at = 512,
                         .head_bytes = (uint32_t)(QN_PAGE * s->dim * sizeof(uint16_t)) };
    c->value_at = c->key_at + (uint32_t)s->n_kv_heads * c->head_bytes;
    c->item_bytes = c->value_at + s->n_kv_heads * c->head_bytes + 256; /* items begin anywhere in a granule */
    c->memory = qn_vk_new_array((size_t)N_GRANULES * GRANULE);
    create_tables(c);
    fill(c);
}

/* What is stored of a row: bit for bit what the host would store. */
static void check_stored(const struct cache *c)
{
    const struct shape *s = c->shape;
    const uint8_t *memory = qn_vk_contents(c->memory);
    size_t n_wrong = 0;
    for (size_t i = 0; i < N_SEQUENCES * c->length * s->n_kv_heads * s->dim; i++) {
        const size_t d = i % s->dim, head = i / s->dim % s->n_kv_heads, row = i / s->dim / s->n_kv_heads,
                     position = row % c->length;
        for (int is_value = 0; is_value < 2; is_value++) {
            const uint64_t at = page_address(c, row / c->length, position / QN_PAGE) +
                                (is_value ? c->value_at : c->key_at) + head * c->head_bytes +
                                (position % QN_PAGE * s->dim + d) * sizeof(uint16_t);
            const size_t offset = (size_t)(granule_address(c, at >> SHIFT) - c->memory->at + (at & (GRANULE - 1)));
            uint16_t h;
            memcpy(&h, memory + offset, sizeof h);
            n_wrong += qn_f16_to_f32(h) != (is_value ? c->values : c->keys)[i];
        }
    }
    qn_expect(!n_wrong, "%zu stored values are wrong", n_wrong);
}

/* Attention of a head in float64. */
static void expect_head(const struct cache *c, const float *query, size_t sequence, uint32_t position, size_t head,
                        double *y)
{
    const struct shape *s = c->shape;
    const size_t kv = head / (s->n_heads / s->n_kv_heads), row = s->n_kv_heads * s->dim;
    const float *keys = c->keys + sequence * c->length * row + kv * s->dim,
                *values = c->values + sequence * c->length * row + kv * s->dim;
    double *scores = qn_doubles(position + 1), most = -INFINITY, total = 0;
    for (uint32_t p = 0; p <= position; p++) {
        for (size_t d = 0; d < s->dim; d++)
            scores[p] += (double)query[d] * (double)keys[p * row + d];
        most = scores[p] > most ? scores[p] : most;
    }
    for (uint32_t p = 0; p <= position; p++) {
        const double weight = exp(scores[p] - most);
        total += weight;
        for (size_t d = 0; d < s->dim; d++)
            y[d] += weight * (double)values[p * row + d];
    }
    for (size_t d = 0; d < s->dim; d++)
        y[d] /= total;
}

static void check_attention(const struct shape *s, size_t length)
{
    enum { ROWS = N_SEQUENCES + 1 };
    struct cache c;
    uint32_t *positions = qn_new(ROWS, sizeof *positions);
    int32_t *sequences = qn_new(ROWS, sizeof *sequences);
    const size_t n = N_SEQUENCES * s->n_heads * s->dim;
    const float *queries = qn_floats_of(ROWS * s->n_heads * s->dim, 1.0f / sqrtf((float)s->dim));
    double *expected = qn_doubles(n), *bound = qn_doubles(n);
    qn_case_begin("attention", "vulkan", "%zu heads for %zu of %zu, %zu positions", s->n_heads, s->n_kv_heads, s->dim,
                  length);
    create_cache(s, length, &c);
    check_stored(&c);
    for (size_t i = 0; i < N_SEQUENCES; i++) {
        positions[i] = i ? (uint32_t)qn_random_below(length) : (uint32_t)length - 1;
        sequences[i] = (int32_t)(N_SEQUENCES - 1 - i);
        for (size_t head = 0; head < s->n_heads; head++)
            expect_head(&c, queries + (i * s->n_heads + head) * s->dim, (size_t)sequences[i], positions[i], head,
                        expected + (i * s->n_heads + head) * s->dim);
    }
    sequences[N_SEQUENCES] = NO_SEQUENCE;
    for (size_t i = 0; i < n; i++)
        bound[i] = 2e-5 + fabs(expected[i]) * 1e-5; /* scores of up to 20 within 2^-24 of their terms, values of 4 */
    const qn_vk_array *y = qn_vk_new_array(ROWS * s->n_heads * s->dim * sizeof(float));
    const qn_vk_attention_args args = { .queries = qn_vk_array_of(queries)->at,
                                        .y = y->at,
                                        .tables = c.addresses->at,
                                        .positions = qn_vk_array_of(positions)->at,
                                        .sequences = qn_vk_array_of(sequences)->at,
                                        .granules = c.granules->at,
                                        .shift = SHIFT,
                                        .dim = (uint32_t)s->dim,
                                        .heads_per_kv = (uint32_t)(s->n_heads / s->n_kv_heads),
                                        .key_at = c.key_at,
                                        .value_at = c.value_at,
                                        .head_bytes = c.head_bytes };
    qn_vk_launch_now(qn_vk_attention(ROWS, s->n_heads), &args);
    qn_expect_near(qn_vk_contents(y), expected, bound, n, "value");
    qn_release();
}

void qn_check_vulkan_attention(bool bench)
{
    (void)bench;
    qn_random_seed(3);
    for (size_t i = 0; i < QN_LENGTH(shapes); i++)
        for (size_t l = 0; l < QN_LENGTH(lengths); l++)
            check_attention(&shapes[i], lengths[l]);
}
