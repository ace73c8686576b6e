/* Attention on the CPU: biases, qk_norm, rope and kv_store; attention over the cache; split-KV combine. A query attends
 * to its visible positions split by split: all splits in one thread, or distributed over threads (split-KV). Either way
 * the splits' results are combined in the same order, so results do not depend on the number of threads. qn_kv_view in
 * view.h describes pages, and which pages of an AURA cache are fp16. */
#include "cpu/acts.h"
#include "cpu/follow.h"
#include "cpu/memory.h"

#include "base/f16.h"
#include "base/memory.h"
#include "kernels/attention/attention.h"

#include <string.h>

_Static_assert((int)QN_KEY_BLOCK == (int)QN_AURA_BLOCK, "caches with and without codes have the same blocks");

/* The part of a row's cache that has the layer of an operation. */
static const qn_kv_view *cache_of(const qn_executor *ex, const qn_op *op, const qn_row *row)
{
    const qn_cpu_memory *memory = qn_cpu_memory_of(row);
    return (size_t)op->layer < qn_plan_trunk_layers(ex->plan) ? &memory->kv : &memory->head_kv;
}

static bool has_codes(const qn_row *row)
{
    return qn_cpu_memory_of(row)->kv.key_codec != NULL;
}

/* The kernels for the pages of a cache that hold no codes. */
static const qn_attention_cache_kernels *kernels_of(const qn_executor *ex, const qn_kv_view *cache)
{
    return cache->is_f32 ? &ex->kernels->attention.f32 : &ex->kernels->attention.f16;
}

/* Scratch of one thread: a tile of queries with running results (acc, m, l), the results of one split (block, block_m,
 * block_l), and scores. With an AURA cache, queries are int16 for codes, and floats for fp16 pages. */
struct attention_scratch {
    float *queries, *block, *acc, *scores;
    int16_t *queries_i16;
    float query_scales[QN_QUERY_TILE];
    float m[QN_QUERY_TILE], l[QN_QUERY_TILE], block_m[QN_QUERY_TILE], block_l[QN_QUERY_TILE];
    uint16_t visible[QN_QUERY_TILE];
};

size_t qn_attention_scratch(size_t head_dim)
{
    return qn_round_up(sizeof(struct attention_scratch), QN_ALIGN) +
           QN_QUERY_TILE * ((3 * head_dim + QN_KEY_BLOCK) * sizeof(float) + head_dim * sizeof(int16_t));
}

static struct attention_scratch *attention_scratch_at(unsigned char *memory, size_t head_dim)
{
    struct attention_scratch *s = (struct attention_scratch *)memory;
    s->queries = (float *)(memory + qn_round_up(sizeof *s, QN_ALIGN));
    s->block = s->queries + QN_QUERY_TILE * head_dim;
    s->acc = s->block + QN_QUERY_TILE * head_dim;
    s->scores = s->acc + QN_QUERY_TILE * head_dim;
    s->queries_i16 = (int16_t *)(void *)(s->scores + QN_QUERY_TILE * QN_KEY_BLOCK);
    return s;
}

/* ---- Queries, keys and values ---- */

static void add_bias(float *y, const float *x, const float *bias, size_t dim)
{
    for (size_t d = 0; d < dim; d++)
        y[d] = x[d] + bias[d];
}

static void norm_rope_head(const qn_executor *ex, const qn_op *op, float *x, const float *norm, size_t row)
{
    const qn_attention_shape *h = &op->qk_norm_rope_store.shape;
    const size_t half = h->n_rot / 2;
    if (norm)
        qn_rms_norm_row(&ex->kernels->norm, x, x, norm, h->head_dim, op->qk_norm_rope_store.eps);
    ex->kernels->rope.apply(x, ex->workspace.cosines + row * half, ex->workspace.sines + row * half, h->n_rot, h->rope);
}

static void quantize_query(const qn_executor *ex, const qn_aura_codec *codec, float *q)
{
    float rotated[QN_AURA_MAX_DIM], scale;
    int16_t queries_i16[QN_AURA_MAX_DIM];
    qn_aura_rotate(&ex->kernels->aura, codec, rotated, q);
    qn_aura_quantize_query(queries_i16, &scale, rotated, codec);
    memcpy(q, queries_i16, codec->dim * sizeof *queries_i16);
    memcpy((uint8_t *)q + codec->dim * sizeof *queries_i16, &scale, sizeof scale);
}

static void norm_rope_query(const qn_executor *ex, const qn_op *op, size_t row, size_t head)
{
    const qn_attention_shape *h = &op->qk_norm_rope_store.shape;
    const qn_kv_view *cache = cache_of(ex, op, &ex->step->rows[row]);
    const float *from =
        qn_buffer_row(ex, op->qk_norm_rope_store.queries, row) + head * h->head_dim * (h->gated ? 2 : 1);
    float *q = qn_buffer_row(ex, op->qk_norm_rope_store.out, row) + head * h->head_dim;
    if (op->qk_norm_rope_store.q_bias)
        add_bias(q, from, op->qk_norm_rope_store.q_bias + head * h->head_dim, h->head_dim);
    else if (q != from)
        memcpy(q, from, h->head_dim * sizeof *q);
    norm_rope_head(ex, op, q, op->qk_norm_rope_store.q_norm, row);
    for (size_t d = 0; d < h->head_dim; d++)
        q[d] *= h->scale;
    if (cache->key_codec)
        quantize_query(ex, cache->key_codec, q);
}

/* Computes the mean of page 0's keys. */
static void compute_key_mean(const qn_kv_view *cache, size_t layer, size_t kv)
{
    const size_t dim = cache->key_codec->dim;
    const uint16_t *keys = qn_kv_f16_keys(cache, layer, 0, kv);
    float *mean = qn_kv_key_mean(cache, layer, kv);
    for (size_t d = 0; d < dim; d++) {
        float sum = 0;
        for (size_t i = 0; i < QN_PAGE; i++)
            sum += qn_f16_to_f32(keys[(i / QN_KEY_TILE * dim + d) * QN_KEY_TILE + i % QN_KEY_TILE]);
        mean[d] = sum / QN_PAGE;
    }
}

/* Quantises a complete page of one head: keys minus their mean, and values. */
static void quantize_page(const qn_executor *ex, const qn_kv_view *cache, size_t layer, size_t page, size_t kv)
{
    const size_t dim = cache->key_codec->dim;
    const uint16_t *keys = qn_kv_f16_keys(cache, layer, page, kv), *values = qn_kv_f16_values(cache, layer, page, kv);
    const float *mean = qn_kv_key_mean(cache, layer, kv);
    float key[QN_AURA_MAX_DIM], value[QN_AURA_MAX_DIM];
    for (size_t i = 0; i < QN_PAGE; i++) {
        const uint16_t *tile = keys + i / QN_KEY_TILE * dim * QN_KEY_TILE + i % QN_KEY_TILE;
        for (size_t d = 0; d < dim; d++) {
            key[d] = qn_f16_to_f32(tile[d * QN_KEY_TILE]) - mean[d];
            value[d] = qn_f16_to_f32(values[i * dim + d]);
        }
        qn_aura_store_position(&ex->kernels->aura, cache->key_codec, cache->value_codec,
                               qn_kv_keys(cache, layer, page, kv), qn_kv_values(cache, layer, page, kv), i, key, value);
    }
}

static void store_rotated(const qn_executor *ex, const qn_kv_view *cache, size_t layer, size_t position, size_t kv,
                          const float *key, const float *value)
{
    const size_t page = position / QN_PAGE;
    float rotated_key[QN_AURA_MAX_DIM], rotated_value[QN_AURA_MAX_DIM];
    qn_aura_rotate(&ex->kernels->aura, cache->key_codec, rotated_key, key);
    qn_aura_rotate(&ex->kernels->aura, cache->value_codec, rotated_value, value);
    kernels_of(ex, cache)->store(qn_kv_f16_keys(cache, layer, page, kv), qn_kv_f16_values(cache, layer, page, kv),
                                 position % QN_PAGE, rotated_key, rotated_value, cache->key_codec->dim);
    if ((position + 1) % QN_PAGE)
        return;
    if (page)
        quantize_page(ex, cache, layer, page, kv);
    else
        compute_key_mean(cache, layer, kv);
}

/* Stores a row without pairs as zeros. */
static void leave_out(const qn_executor *ex, const qn_op *op, size_t row, size_t kv)
{
    const size_t dim = op->qk_norm_rope_store.shape.head_dim;
    memset(qn_buffer_row(ex, op->qk_norm_rope_store.keys, row) + kv * dim, 0, dim * sizeof(float));
    memset(qn_buffer_row(ex, op->qk_norm_rope_store.values, row) + kv * dim, 0, dim * sizeof(float));
}

static void store_head(const qn_executor *ex, const qn_op *op, size_t row, size_t kv, int thread)
{
    const size_t dim = op->qk_norm_rope_store.shape.head_dim, layer = (size_t)op->layer;
    const qn_row *r = &ex->step->rows[row];
    const qn_kv_view *cache = cache_of(ex, op, r);
    const size_t page = r->position / QN_PAGE;
    float *key = qn_buffer_row(ex, op->qk_norm_rope_store.keys, row) + kv * dim;
    const float *value = qn_buffer_row(ex, op->qk_norm_rope_store.values, row) + kv * dim;
    if (op->qk_norm_rope_store.k_bias)
        add_bias(key, key, op->qk_norm_rope_store.k_bias + kv * dim, dim);
    if (op->qk_norm_rope_store.v_bias) {
        float *biased = (float *)qn_thread_scratch(ex, thread);
        add_bias(biased, value, op->qk_norm_rope_store.v_bias + kv * dim, dim);
        value = biased;
    }
    if (ex->step->without_pairs && layer >= qn_plan_trunk_layers(ex->plan))
        leave_out(ex, op, row, kv);
    else
        norm_rope_head(ex, op, key, op->qk_norm_rope_store.k_norm, row);
    if (cache->key_codec)
        store_rotated(ex, cache, layer, r->position, kv, key, value);
    else
        kernels_of(ex, cache)->store(qn_kv_keys(cache, layer, page, kv), qn_kv_values(cache, layer, page, kv),
                                     r->position % QN_PAGE, key, value, dim);
}

/* Returns the number of rows, from `row`, that one thread must store in order: the rows of one session in one page; but
 * all rows of the session if the first is in page 0, because quantising later pages needs the mean of page 0. */
static size_t rows_of_page(const qn_step *step, size_t row)
{
    const qn_row *first = &step->rows[row];
    const bool all = has_codes(first) && first->position < QN_PAGE;
    size_t n = 1;
    while (row + n < step->n_rows && first[n].memory == first->memory &&
           (all || first[n].position / QN_PAGE == first->position / QN_PAGE))
        n++;
    return n;
}

static void norm_rope_queries(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    const size_t n_heads = op->qk_norm_rope_store.shape.n_heads;
    for (size_t i = range->begin; i < range->end; i++)
        norm_rope_query(ex, op, i / n_heads, i % n_heads);
}

static size_t count_page_rows(const qn_step *step)
{
    size_t n = 0;
    for (size_t row = 0; row < step->n_rows; row += rows_of_page(step, row))
        n++;
    return n;
}

/* Items: pairs of (rows of a page, KV head). */
static void store_pages(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    const size_t n_kv_heads = op->qk_norm_rope_store.shape.n_kv_heads;
    size_t first = 0;
    for (size_t row = 0, n; row < ex->step->n_rows && first < range->end; row += n, first += n_kv_heads) {
        n = rows_of_page(ex->step, row);
        for (size_t kv = 0; kv < n_kv_heads; kv++)
            for (size_t i = 0; first + kv >= range->begin && first + kv < range->end && i < n; i++)
                store_head(ex, op, row + i, kv, range->thread);
    }
}

size_t qn_executor_qk_norm_rope_store(const qn_executor *ex, const qn_op *op, qn_cpu_work *works)
{
    const qn_attention_shape *h = &op->qk_norm_rope_store.shape;
    works[0] = (qn_cpu_work){ .run = norm_rope_queries, .count = ex->step->n_rows * h->n_heads };
    (void)qn_executor_k_norm_rope_store(ex, op, &works[1]);
    return 2;
}

size_t qn_executor_k_norm_rope_store(const qn_executor *ex, const qn_op *op, qn_cpu_work *works)
{
    works[0] = (qn_cpu_work){ .run = store_pages,
                              .count = count_page_rows(ex->step) * op->qk_norm_rope_store.shape.n_kv_heads,
                              .spread = QN_SPREAD_SINGLE };
    return 1;
}

/* ---- Splits ---- */

/* Returns the last position that a row attends to: its own; in a block of a drafter that is not causal, that of the
 * block's last row. In a cache of codes both are in one page. */
static size_t last_seen(const qn_executor *ex, const qn_row *row)
{
    const qn_row *end = ex->step->rows + ex->step->n_rows;
    if (!ex->step->is_draft || !ex->plan->head.block || ex->plan->head.is_causal)
        return row->position;
    while (row + 1 < end && row[1].memory == row->memory)
        row++;
    return row->position;
}

/* Returns the first position that a row attends to; `first`: without a window. */
static size_t first_seen(const qn_attention_shape *h, size_t first, const qn_row *row)
{
    const size_t n = (size_t)row->position + 1;
    return h->window && n > h->window ? n - h->window : first;
}

/* A split of a row's visible positions. They are divided in this order: of a cache without codes, its blocks; of an
 * AURA cache, page 0, the blocks of codes, and the row's own page if that is not page 0. Pages without a visible
 * position are NULL. */
typedef struct kv_split {
    const qn_kv_view *cache;
    size_t layer, kv;
    bool is_codes;
    size_t first; /* positions before it are not attended to */
    const void *keys[QN_BLOCK_PAGES], *values[QN_BLOCK_PAGES];
} kv_split;

static size_t code_blocks(size_t position)
{
    const size_t page = position / QN_PAGE;
    return page ? ((page - 1) * QN_PAGE + QN_KEY_BLOCK - 1) / QN_KEY_BLOCK : 0;
}

static size_t visible_splits(const qn_executor *ex, const qn_row *row)
{
    const size_t last = last_seen(ex, row);
    if (!has_codes(row))
        return last / QN_KEY_BLOCK + 1;
    return last < QN_PAGE ? 1 : code_blocks(last) + 2;
}

/* Returns the index of the first split that a row attends to. */
static size_t first_split(const qn_attention_shape *h, const qn_row *row)
{
    const size_t first = first_seen(h, 0, row), page = row->position / QN_PAGE;
    if (!has_codes(row))
        return first / QN_KEY_BLOCK;
    if (first < QN_PAGE)
        return 0;
    return first / QN_PAGE < page ? 1 + (first - QN_PAGE) / QN_KEY_BLOCK : 1 + code_blocks(row->position);
}

/* Returns how many positions of a page or a block from `begin` on are before the first that a row attends to. */
static size_t skipped(const qn_op *op, const qn_row *row, size_t begin)
{
    const size_t first = first_seen(&op->attention.shape, op->attention.first, row);
    return first > begin ? first - begin : 0;
}

/* Returns a block, as far as `row` sees it. A block of codes in which its window begins is seen from the block's first
 * position on. */
static kv_split block_split(const qn_executor *ex, const qn_row *row, const qn_op *op, size_t kv, size_t block)
{
    const qn_kv_view *cache = cache_of(ex, op, row);
    const bool is_codes = cache->key_codec != NULL;
    const size_t first = is_codes + block * QN_BLOCK_PAGES, end = last_seen(ex, row) / QN_PAGE + !is_codes;
    const size_t layer = (size_t)op->layer;
    kv_split split = { .cache = cache,
                       .layer = layer,
                       .kv = kv,
                       .is_codes = is_codes,
                       .first = is_codes ? 0 : skipped(op, row, block * QN_KEY_BLOCK) };
    for (size_t i = 0; i < QN_BLOCK_PAGES && first + i < end; i++) {
        split.keys[i] = qn_kv_keys(cache, layer, first + i, kv);
        split.values[i] = qn_kv_values(cache, layer, first + i, kv);
    }
    return split;
}

static kv_split page_split(const qn_executor *ex, const qn_row *row, const qn_op *op, size_t kv, size_t page)
{
    const qn_kv_view *cache = cache_of(ex, op, row);
    const size_t layer = (size_t)op->layer;
    return (kv_split){ .cache = cache,
                       .layer = layer,
                       .kv = kv,
                       .first = skipped(op, row, page * QN_PAGE),
                       .keys = { qn_kv_f16_keys(cache, layer, page, kv) },
                       .values = { qn_kv_f16_values(cache, layer, page, kv) } };
}

static kv_split split_at(const qn_executor *ex, const qn_row *row, const qn_op *op, size_t kv, size_t index)
{
    if (!has_codes(row))
        return block_split(ex, row, op, kv, index);
    if (index == 0)
        return page_split(ex, row, op, kv, 0);
    if (index <= code_blocks(row->position))
        return block_split(ex, row, op, kv, index - 1);
    return page_split(ex, row, op, kv, row->position / QN_PAGE);
}

/* Returns the number of elements of [first, first + n) that are below `end`. */
static uint16_t count_before(size_t first, size_t n, size_t end)
{
    return (uint16_t)(end <= first ? 0 : end - first < n ? end - first : n);
}

/* Returns the number of a block's positions that a row attends to. Blocks of codes begin at page 1. */
static uint16_t visible_in_block(const qn_executor *ex, const qn_row *row, size_t block)
{
    const size_t page = row->position / QN_PAGE, codes = page ? (page - 1) * QN_PAGE : 0;
    return count_before(block * QN_KEY_BLOCK, QN_KEY_BLOCK, has_codes(row) ? codes : last_seen(ex, row) + 1);
}

/* Returns the number of positions of an fp16 page of an AURA cache that a row attends to. */
static uint16_t visible_in_page(const qn_executor *ex, const qn_row *row, size_t page)
{
    return page == 0 || row->position / QN_PAGE == page ? count_before(page * QN_PAGE, QN_PAGE, last_seen(ex, row) + 1)
                                                        : 0;
}

static uint16_t visible_at(const qn_executor *ex, const qn_row *row, size_t index)
{
    if (!has_codes(row))
        return visible_in_block(ex, row, index);
    if (index > 0 && index <= code_blocks(row->position))
        return visible_in_block(ex, row, index - 1);
    return visible_in_page(ex, row, index ? row->position / QN_PAGE : 0);
}

/* Returns the index of a row's first split in the partial buffers, in units of n_heads entries. */
static size_t partial_base(const qn_executor *ex, size_t row)
{
    size_t base = 0;
    for (size_t i = 0; i < row; i++)
        base += visible_splits(ex, &ex->step->rows[i]);
    return base;
}

bool qn_executor_split_kv(const qn_executor *ex)
{
    /* With several rows per thread, tiles of rows occupy all threads. With fewer, splits are distributed if the partial
     * buffers have the capacity. */
    const size_t min_units = 4 * (size_t)qn_team_size(ex->team);
    return ex->step->n_rows * ex->plan->heads.n_kv_heads < min_units &&
           partial_base(ex, ex->step->n_rows) <= ex->workspace.max_splits;
}

/* ---- Attention to splits ---- */

/* Loads query i of a tile, as QN_OP_QK_NORM_ROPE_STORE wrote it. */
static void load_query(struct attention_scratch *s, const qn_kv_view *cache, size_t i, const float *q, size_t dim)
{
    if (!cache->key_codec) {
        memcpy(s->queries + i * dim, q, dim * sizeof *q);
        return;
    }
    memcpy(s->queries_i16 + i * dim, q, dim * sizeof *s->queries_i16);
    memcpy(&s->query_scales[i], (const uint8_t *)q + dim * sizeof *s->queries_i16, sizeof s->query_scales[i]);
    const float unit = s->query_scales[i] / cache->key_codec->step;
    for (size_t d = 0; d < dim; d++)
        s->queries[i * dim + d] = (float)s->queries_i16[i * dim + d] * unit;
}

/* Computes the attention of the scratch's n queries to one split. `next`: the split whose keys to prefetch, or NULL. */
static void attend_one_split(const qn_executor *ex, struct attention_scratch *s, const kv_split *p,
                             const kv_split *next, size_t n, size_t dim, float *out, float *m, float *l)
{
    const qn_kv_view *cache = p->cache;
    if (!p->is_codes) {
        qn_attention_block block = { .first = p->first };
        for (size_t i = 0; i < QN_BLOCK_PAGES; i++) {
            block.keys[i] = p->keys[i];
            block.values[i] = p->values[i];
            block.next_keys[i] = next && !cache->key_codec ? next->keys[i] : NULL;
        }
        kernels_of(ex, cache)->block(s->queries, n, &block, s->visible, dim, out, m, l, s->scores);
        return;
    }
    qn_aura_block block = { .key_codec = cache->key_codec, .value_codec = cache->value_codec };
    for (size_t i = 0; i < QN_BLOCK_PAGES; i++) {
        block.keys[i] = p->keys[i];
        block.values[i] = p->values[i];
        block.next_keys[i] = next ? next->keys[i] : NULL;
    }
    ex->kernels->aura.block(s->queries_i16, s->query_scales, n, &block, s->visible, out, m, l);
    /* fp16 keys include the mean, codes do not: add query * mean to the scores, that is to their maximum. */
    const float *mean = qn_kv_key_mean(cache, p->layer, p->kv);
    for (size_t i = 0; i < n; i++)
        if (s->visible[i])
            m[i] += ex->kernels->aura.dot(s->queries + i * dim, mean, dim);
}

/* Computes y = x / l, rotated back into the model's basis. Overwrites x. */
static void normalize_query(const qn_executor *ex, const qn_kv_view *cache, float *y, float *x, float l, size_t dim)
{
    if (!cache->value_codec) {
        ex->kernels->attention.normalize(y, x, l, dim);
        return;
    }
    ex->kernels->attention.normalize(x, x, l, dim);
    qn_aura_rotate_back(&ex->kernels->aura, cache->value_codec, y, x);
}

/* Few rows, split-KV. Items: (row, split, KV head), each written to the partial buffers. */
static void attend_split_kv(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    const qn_attention_shape *h = &op->attention.shape;
    const qn_cpu_workspace *workspace = &ex->workspace;
    const size_t group = h->n_heads / h->n_kv_heads, dim = h->head_dim;
    struct attention_scratch *s = attention_scratch_at(qn_thread_scratch(ex, range->thread), dim);
    const size_t begin = range->begin, end = range->end;
    size_t first_unit = 0;
    for (size_t row = 0; row < ex->step->n_rows; row++) {
        const qn_row *r = &ex->step->rows[row];
        const size_t n_units = visible_splits(ex, r) * h->n_kv_heads, n_skipped = first_split(h, r);
        for (size_t unit = begin > first_unit ? begin : first_unit; unit < end && unit < first_unit + n_units; unit++) {
            const size_t index = (unit - first_unit) / h->n_kv_heads, kv = (unit - first_unit) % h->n_kv_heads;
            const size_t entry = (first_unit / h->n_kv_heads + index) * h->n_heads + kv * group;
            if (index < n_skipped)
                continue;
            const size_t next_kv = (kv + 1) % h->n_kv_heads, next_index = next_kv ? index : index + 1;
            const kv_split p = split_at(ex, r, op, kv, index);
            /* Prefetch the next split only from block to block: pages are too short. */
            const bool more = unit + 1 < first_unit + n_units;
            const kv_split next = more ? split_at(ex, r, op, next_kv, next_index) : p;
            const kv_split *prefetched = next.is_codes == p.is_codes ? &next : &p;
            for (size_t q = 0; q < group; q += QN_QUERY_TILE) {
                const size_t n = group - q < QN_QUERY_TILE ? group - q : QN_QUERY_TILE;
                for (size_t i = 0; i < n; i++) {
                    s->visible[i] = visible_at(ex, r, index);
                    load_query(s, cache_of(ex, op, r), i,
                               qn_buffer_row(ex, op->attention.queries, row) + (kv * group + q + i) * dim, dim);
                }
                attend_one_split(ex, s, &p, prefetched, n, dim, workspace->partial + (entry + q) * dim,
                                 workspace->partial_m + entry + q, workspace->partial_l + entry + q);
            }
        }
        first_unit += n_units;
    }
    for (size_t unit = begin; ex->follower && unit < end; unit++) /* of one row */
        qn_follow_acts(ex, unit % h->n_kv_heads * group * dim, group * dim, visible_splits(ex, ex->step->rows),
                       range->thread);
}

/* A tile: queries of rows [row, row + n) and heads [head, head + n_heads), all of one KV head. */
struct tile {
    size_t row, n, head, n_heads, kv, dim;
    bool has_result; /* the running results hold at least one split */
};

/* Adds one split to the running results. visible(row, index) returns the number of the split's positions that a row
 * attends to. */
static void accumulate_split(const qn_executor *ex, struct tile *t, struct attention_scratch *s, const kv_split *p,
                             const kv_split *next,
                             uint16_t (*visible)(const qn_executor *ex, const qn_row *row, size_t index), size_t index)
{
    const size_t n_queries = t->n * t->n_heads;
    for (size_t q = 0; q < n_queries; q++)
        s->visible[q] = visible(ex, &ex->step->rows[t->row + q / t->n_heads], index);
    attend_one_split(ex, s, p, next, n_queries, t->dim, t->has_result ? s->block : s->acc,
                     t->has_result ? s->block_m : s->m, t->has_result ? s->block_l : s->l);
    for (size_t q = 0; t->has_result && q < n_queries; q++)
        if (s->visible[q])
            ex->kernels->attention.combine(s->acc + q * t->dim, &s->m[q], &s->l[q], s->block + q * t->dim,
                                           s->block_m[q], s->block_l[q], t->dim);
    t->has_result = true;
}

/* Computes the attention of a tile to all splits from the first that its rows attend to on. Every row attends to at
 * least one position of that one. */
static void attend_tile(const qn_executor *ex, const qn_op *op, struct tile *t, struct attention_scratch *s)
{
    const qn_row *rows = &ex->step->rows[t->row], *last = &rows[t->n - 1];
    const qn_kv_view *cache = cache_of(ex, op, rows);
    const bool is_codes = cache->key_codec != NULL;
    const size_t page = last->position / QN_PAGE, first = first_split(&op->attention.shape, rows);
    const size_t n_blocks = is_codes ? code_blocks(last->position) : last_seen(ex, last) / QN_KEY_BLOCK + 1;
    for (size_t q = 0; q < t->n * t->n_heads; q++)
        load_query(s, cache, q,
                   qn_buffer_row(ex, op->attention.queries, t->row + q / t->n_heads) +
                       (t->head + q % t->n_heads) * t->dim,
                   t->dim);
    if (is_codes && !first) {
        const kv_split p = page_split(ex, rows, op, t->kv, 0);
        accumulate_split(ex, t, s, &p, NULL, visible_in_page, 0);
    }
    for (size_t block = is_codes && first ? first - 1 : first; block < n_blocks; block++) {
        const kv_split p = block_split(ex, last, op, t->kv, block);
        /* A single row is memory-bound and prefetches; a tile of many rows is compute-bound. */
        const kv_split next = block + 1 < n_blocks ? block_split(ex, last, op, t->kv, block + 1) : p;
        accumulate_split(ex, t, s, &p, t->n == 1 ? &next : NULL, visible_in_block, block);
    }
    for (size_t r = rows->position / QN_PAGE; is_codes && r <= page; r++) {
        const kv_split p = page_split(ex, last, op, t->kv, r);
        if (r)
            accumulate_split(ex, t, s, &p, NULL, visible_in_page, r);
    }
    for (size_t q = 0; q < t->n * t->n_heads; q++)
        normalize_query(ex, cache,
                        qn_buffer_row(ex, op->attention.out, t->row + q / t->n_heads) +
                            (t->head + q % t->n_heads) * t->dim,
                        s->acc + q * t->dim, s->l[q], t->dim);
}

/* Rows of a tile from `row` on: of one session. Where rows have windows, these begin at different positions. */
static size_t rows_of_tile(const qn_executor *ex, const qn_op *op, size_t row)
{
    const qn_attention_shape *h = &op->attention.shape;
    const size_t group = h->n_heads / h->n_kv_heads,
                 most = h->window ? 1 : QN_QUERY_TILE / (group < QN_QUERY_TILE ? group : QN_QUERY_TILE);
    const qn_row *first = &ex->step->rows[row];
    size_t n = 1;
    while (n < most && row + n < ex->step->n_rows && first[n].memory == first->memory)
        n++;
    return n;
}

static size_t count_tiles(const qn_executor *ex, const qn_op *op)
{
    size_t n = 0;
    for (size_t row = 0; row < ex->step->n_rows; row += rows_of_tile(ex, op, row))
        n++;
    return n;
}

/* Many rows. Items: pairs of (tile of rows, KV head), the last ones first: later tiles attend to more keys, and what
 * takes longest should not be begun last. */
static void attend_unsplit(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    const qn_attention_shape *h = &op->attention.shape;
    const size_t group = h->n_heads / h->n_kv_heads, tile_heads = group < QN_QUERY_TILE ? group : QN_QUERY_TILE;
    struct attention_scratch *s = attention_scratch_at(qn_thread_scratch(ex, range->thread), h->head_dim);
    const size_t count = count_tiles(ex, op) * h->n_kv_heads, begin = count - range->end, end = count - range->begin;
    size_t item = 0;
    for (size_t row = 0, n; row < ex->step->n_rows && item < end; row += n) {
        n = rows_of_tile(ex, op, row);
        for (size_t kv = 0; kv < h->n_kv_heads; kv++, item++) {
            if (item < begin || item >= end)
                continue;
            for (size_t head = kv * group; head < (kv + 1) * group; head += tile_heads) {
                const size_t left = (kv + 1) * group - head;
                struct tile t = { row, n, head, left < tile_heads ? left : tile_heads, kv, h->head_dim, false };
                attend_tile(ex, op, &t, s);
            }
        }
    }
    for (size_t kv = begin; ex->follower && kv < end; kv++) /* of one row */
        qn_follow_acts(ex, kv * group * h->head_dim, group * h->head_dim, 1, range->thread);
}

size_t qn_executor_attention(const qn_executor *ex, const qn_op *op, qn_cpu_work *works)
{
    const qn_attention_shape *h = &op->attention.shape;
    works[0] = ex->split_kv ? (qn_cpu_work){ .run = attend_split_kv,
                                             .count = partial_base(ex, ex->step->n_rows) * h->n_kv_heads,
                                             .item_bytes = 2 * sizeof(uint16_t) * QN_KEY_BLOCK * h->head_dim }
                            : (qn_cpu_work){ .run = attend_unsplit,
                                             .count = count_tiles(ex, op) * h->n_kv_heads,
                                             .spread = QN_SPREAD_SINGLE };
    return 1;
}

/* ---- Results ---- */

/* Combines the partials of one head of a row, in the order of the splits; `sum` is scratch [head_dim]. */
static void combine_head(const qn_executor *ex, const qn_op *op, size_t row, size_t head, float *out, float *sum)
{
    const qn_attention_shape *h = &op->attention_combine.shape;
    const qn_cpu_workspace *workspace = &ex->workspace;
    const size_t n_splits = visible_splits(ex, &ex->step->rows[row]), first = first_split(h, &ex->step->rows[row]);
    size_t entry = (partial_base(ex, row) + first) * h->n_heads + head;
    float m = workspace->partial_m[entry], l = workspace->partial_l[entry];
    memcpy(sum, workspace->partial + entry * h->head_dim, h->head_dim * sizeof *sum);
    for (size_t index = first + 1; index < n_splits; index++) {
        entry += h->n_heads;
        ex->kernels->attention.combine(sum, &m, &l, workspace->partial + entry * h->head_dim,
                                       workspace->partial_m[entry], workspace->partial_l[entry], h->head_dim);
    }
    normalize_query(ex, cache_of(ex, op, &ex->step->rows[row]), out, sum, l, h->head_dim);
}

/* Computes values [from, from + n) of a head's output, with its gate. */
static void output_head(const qn_executor *ex, const qn_op *op, size_t row, size_t head, size_t from, size_t n,
                        float *values, float *combined)
{
    const qn_attention_shape *h = &op->attention_combine.shape;
    if (ex->split_kv)
        combine_head(ex, op, row, head, combined, combined + h->head_dim);
    memcpy(values,
           (ex->split_kv ? combined : qn_buffer_row(ex, op->attention_combine.in, row) + head * h->head_dim) + from,
           n * sizeof *values);
    if (h->gated)
        ex->kernels->elementwise.gate(
            values, values, qn_buffer_row(ex, op->attention_combine.queries, row) + (2 * head + 1) * h->head_dim + from,
            n);
}

static void combine_slices(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    const size_t dim = op->attention_combine.shape.head_dim;
    const qn_op_acts *acts = &op->attention_combine.acts;
    float *combined = (float *)qn_thread_scratch(ex, range->thread) + qn_act_slice_width(ex->plan, acts);
    for (size_t index = range->begin; index < range->end; index++) {
        const qn_act_slice unit = qn_act_slice_at(ex, acts, index, range->thread);
        for (size_t i = 0, n; i < unit.n; i += n) {
            const size_t from = (unit.first + i) % dim;
            n = dim - from < unit.n - i ? dim - from : unit.n - i;
            output_head(ex, op, unit.row, (unit.first + i) / dim, from, n, unit.values + i, combined);
        }
        qn_act_slice_write(ex, acts, &unit);
    }
}

size_t qn_executor_attention_combine(const qn_executor *ex, const qn_op *op, qn_cpu_work *works)
{
    works[0] = (qn_cpu_work){ .run = combine_slices,
                              .count = qn_act_slices(ex, &op->attention_combine.acts, ex->step->n_rows) };
    return 1;
}
