/* KV caches in pages: kernels that read and write them through page tables, compared with the same kernels over
 * contiguous caches, which other checks compare with float64. Pages are scattered over a pool, whose other bytes are
 * poison; sequences share pages. The same bits are expected: of attention of all sequences in one launch and of each
 * alone, of prefill in pieces, of stored rows, of quantised pages. */
#include "cuda_pages.h"

#include "base/f16.h"
#include "gpu/format.h"
#include "cuda/kernels/rope/rope.h"

enum { N_OPEN = 2 };

/* ---- Pages ---- */

/* Space for an array of `bytes` in an item. */
static size_t add_array(size_t *item, size_t bytes)
{
    const size_t at = *item;
    *item += (bytes + 255) / 256 * 256;
    return at;
}

qn_pages_layout qn_pages_layout_of(const qn_pages_shape *s)
{
    const size_t heads = s->n_kv_heads * QN_PAGE;
    qn_pages_layout l = { .key_row = qn_gpu_row_bytes(s->dim, s->key_bits),
                          .value_row = qn_gpu_row_bytes(s->dim, s->value_bits) };
    const bool codes = s->key_bits != 16;
    l.keys = add_array(&l.layer_bytes, heads * l.key_row);
    l.values = add_array(&l.layer_bytes, heads * l.value_row);
    l.key_scales = add_array(&l.layer_bytes, codes ? heads * sizeof(float) : 0);
    l.value_scales = add_array(&l.layer_bytes, codes ? heads * sizeof(float) : 0);
    l.f16_keys = add_array(&l.f16_layer_bytes, heads * s->dim * sizeof(uint16_t));
    l.f16_values = add_array(&l.f16_layer_bytes, heads * s->dim * sizeof(uint16_t));
    l.means = add_array(&l.f16_layer_bytes, s->n_kv_heads * s->dim * sizeof(float));
    return l;
}

qn_attention_gpu_cache qn_pages_cache(const qn_pages_shape *s, const qn_pages_layout *l, size_t layer, uint64_t tables)
{
    const size_t at = layer * l->layer_bytes;
    return (qn_attention_gpu_cache){ .keys = at + l->keys,
                                     .values = at + l->values,
                                     .key_scales = at + l->key_scales,
                                     .value_scales = at + l->value_scales,
                                     .key_head_stride = QN_PAGE * l->key_row,
                                     .value_head_stride = QN_PAGE * l->value_row,
                                     .scale_head_stride = s->key_bits == 16 ? 0 : QN_PAGE * sizeof(float),
                                     .tables = tables };
}

qn_attention_gpu_pages qn_pages_f16(const qn_pages_shape *s, const qn_pages_layout *l, size_t layer, uint64_t tables)
{
    const size_t at = layer * l->f16_layer_bytes;
    return (qn_attention_gpu_pages){ .keys = at + l->f16_keys,
                                     .values = at + l->f16_values,
                                     .means = at + l->means,
                                     .head = QN_PAGE * s->dim * sizeof(uint16_t),
                                     .tables = tables };
}

qn_attention_gpu qn_pages_gpu(const qn_pages_shape *s)
{
    return qn_attention_device(s->dim, s->n_heads, s->n_kv_heads, s->key_bits, s->value_bits, s->key_bits != 16);
}

/* ---- A problem: the same caches twice ---- */

/* A piece of a step: rows at positions [first, length) of a sequence. Its first n_shared pages are those of piece 0. */
struct piece {
    uint32_t first, length, n_shared;
};

/* One array of a contiguous cache, [layer][piece][head][rows][row_bytes], on the host and on the device. */
struct array {
    size_t row_bytes, rows;
    uint8_t *host;
    uint64_t gpu;
};

/* Of keys and of values; scales of codes; fp16 pages of a cache of codes, and the means of keys. */
enum { KEYS, VALUES, KEY_SCALES, VALUE_SCALES, F16_KEYS, F16_VALUES, MEANS, ARRAYS };

/* Pages of one class: items of a pool, in random order, and page tables; 0 for pages that a sequence does not have. */
struct pool {
    size_t item_bytes, n_items, used;
    uint32_t *order;
    uint64_t *entries; /* [piece][n_pages] */
    uint8_t *host;
    uint64_t gpu;
    uint64_t tables;
};

struct problem {
    const qn_pages_shape *s;
    const struct piece *pieces;
    size_t n_pieces, n_rows, n_pages, n_layers, n_open; /* n_pages: of a page table */
    bool codes;
    qn_pages_layout layout;
    qn_aura_codec *codecs[2];
    qn_aura_gpu_rotation rotations[2]; /* none if not codes */
    struct array arrays[ARRAYS];
    struct pool pages, f16_pages;
    uint32_t *positions, *sessions, *cu_seqlens, *firsts; /* positions, sessions: [n_rows] */
    uint64_t gpu_positions, gpu_sessions, gpu_cu_seqlens, gpu_firsts;
};

static uint8_t *row_of(const struct problem *p, size_t array, size_t layer, size_t piece, size_t head, size_t row)
{
    const struct array *a = &p->arrays[array];
    return a->host + (((layer * p->n_pieces + piece) * p->s->n_kv_heads + head) * a->rows + row) * a->row_bytes;
}

static void array_new(struct problem *p, size_t array, size_t rows, size_t row_bytes)
{
    const size_t bytes = p->n_layers * p->n_pieces * p->s->n_kv_heads * rows * row_bytes;
    p->arrays[array] = (struct array){ row_bytes, rows, memset(qn_new(bytes, 1), 0xff, bytes), 0 };
}

static void fill_f16(uint8_t *row, size_t dim)
{
    for (size_t i = 0; i < dim; i++) {
        const uint16_t x = qn_f32_to_f16(qn_random_normal());
        memcpy(row + 2 * i, &x, sizeof x);
    }
}

/* Scales as of rows with elements of about 1. */
static void fill_codes(const struct problem *p, uint8_t *row, size_t bytes, uint8_t *scale)
{
    const float x = sqrtf((float)p->s->dim) * (0.3f + 1.4f * (float)qn_random_below(1000) / 1000);
    for (size_t i = 0; i < bytes; i++)
        row[i] = (uint8_t)qn_random();
    memcpy(scale, &x, sizeof x);
}

static size_t last_page(const struct problem *p, size_t piece)
{
    return (p->pieces[piece].length - 1) / QN_PAGE;
}

/* Pages with rows of the step are fp16, and page 0. */
static bool is_f16_page(const struct problem *p, size_t piece, size_t page)
{
    return p->codes && (page == 0 || page >= p->pieces[piece].first / QN_PAGE);
}

static size_t f16_row(const struct problem *p, size_t position)
{
    const size_t page = position / QN_PAGE;
    return (page ? 1 + (page - 1) % p->n_open : 0) * QN_PAGE + position % QN_PAGE;
}

static void copy_row(const struct problem *p, size_t array, size_t layer, size_t piece, size_t head, size_t row)
{
    memcpy(row_of(p, array, layer, piece, head, row), row_of(p, array, layer, 0, head, row),
           p->arrays[array].row_bytes);
}

/* Contents of a head of a sequence: rows below its length, or below `stored`, those of shared pages from piece 0. */
static void fill_head(struct problem *p, size_t layer, size_t piece, size_t head, size_t stored)
{
    const size_t shared = piece ? p->pieces[piece].n_shared * QN_PAGE : 0, dim = p->s->dim;
    for (size_t t = 0; t < stored; t++) {
        const size_t page = t / QN_PAGE;
        const bool complete = (page + 1) * QN_PAGE <= stored;
        if (!p->codes && t < shared) {
            copy_row(p, KEYS, layer, piece, head, t);
            copy_row(p, VALUES, layer, piece, head, t);
        } else if (!p->codes) {
            fill_f16(row_of(p, KEYS, layer, piece, head, t), dim);
            fill_f16(row_of(p, VALUES, layer, piece, head, t), dim);
        }
        if (p->codes && page > 0 && complete) {
            const size_t row = t - QN_PAGE;
            for (size_t i = 0; i < 2; i++) {
                if (t < shared) {
                    copy_row(p, KEYS + i, layer, piece, head, row);
                    copy_row(p, KEY_SCALES + i, layer, piece, head, row);
                } else {
                    fill_codes(p, row_of(p, KEYS + i, layer, piece, head, row), p->arrays[KEYS + i].row_bytes,
                               row_of(p, KEY_SCALES + i, layer, piece, head, row));
                }
            }
        }
        if (is_f16_page(p, piece, page)) {
            for (size_t i = 0; i < 2; i++) {
                if (t < shared && page == 0)
                    copy_row(p, F16_KEYS + i, layer, piece, head, t);
                else
                    fill_f16(row_of(p, F16_KEYS + i, layer, piece, head, f16_row(p, t)), dim);
            }
        }
    }
    if (!p->codes)
        return;
    float *mean = (float *)(void *)row_of(p, MEANS, layer, piece, head, 0);
    qn_random_floats(mean, dim, 1);
    if (shared)
        copy_row(p, MEANS, layer, piece, head, 0);
}

static void pool_new(struct problem *p, struct pool *pool, size_t item_bytes)
{
    pool->item_bytes = item_bytes;
    pool->n_items = p->n_pieces * p->n_pages + 3; /* some of them not used */
    pool->order = qn_new(pool->n_items, sizeof *pool->order);
    pool->entries = qn_new(p->n_pieces * p->n_pages, sizeof *pool->entries);
    pool->host = memset(qn_new(pool->n_items, item_bytes), 0xff, pool->n_items * item_bytes);
    for (size_t i = 0; i < pool->n_items; i++) {
        const size_t j = qn_random_below(i + 1);
        pool->order[i] = pool->order[j];
        pool->order[j] = (uint32_t)i;
    }
    pool->gpu = qn_gpu_new(pool->n_items * item_bytes);
}

/* Adds a page to a sequence, a new one or that of piece 0; returns it on the host. */
static uint8_t *pool_add(const struct problem *p, struct pool *pool, size_t piece, size_t page)
{
    uint64_t *entry = &pool->entries[piece * p->n_pages + page];
    if (piece && page < p->pieces[piece].n_shared)
        *entry = pool->entries[page];
    if (!*entry)
        *entry = pool->gpu + pool->order[pool->used++] * pool->item_bytes;
    return pool->host + (*entry - pool->gpu);
}

static void pool_upload(struct problem *p, struct pool *pool)
{
    uint64_t *tables = qn_new(p->n_pieces, sizeof *tables);
    const uint64_t entries = qn_gpu_copy(pool->entries);
    for (size_t i = 0; i < p->n_pieces; i++)
        tables[i] = entries + i * p->n_pages * sizeof *pool->entries;
    pool->tables = qn_gpu_copy(tables);
    qn_gpu_synchronize();
    qn_gpu_write(pool->gpu, pool->host, pool->n_items * pool->item_bytes);
}

/* Copies 64 rows of all heads of an array to their page. */
static void copy_to_page(const struct problem *p, size_t array, size_t layer, size_t piece, size_t row, uint8_t *to)
{
    const struct array *a = &p->arrays[array];
    const size_t rows = a->rows < QN_PAGE ? a->rows : QN_PAGE;
    for (size_t head = 0; head < p->s->n_kv_heads; head++)
        memcpy(to + head * rows * a->row_bytes, row_of(p, array, layer, piece, head, row), rows * a->row_bytes);
}

/* Writes the rows of the contiguous caches to the pages of a sequence; sealed: with pages of codes up to its length,
 * else up to the last page. */
static void fill_pages(struct problem *p, size_t piece, bool sealed)
{
    const qn_pages_layout *l = &p->layout;
    for (size_t page = 0; page <= last_page(p, piece); page++) {
        const bool complete = (page + 1) * QN_PAGE <= p->pieces[piece].length,
                   has_item = !p->codes || (page > 0 && (page < last_page(p, piece) || (sealed && complete)));
        uint8_t *item = has_item ? pool_add(p, &p->pages, piece, page) : NULL;
        const size_t row = (page - (p->codes ? 1 : 0)) * QN_PAGE;
        for (size_t layer = 0; item && layer < p->n_layers; layer++, item += l->layer_bytes) {
            copy_to_page(p, KEYS, layer, piece, row, item + l->keys);
            copy_to_page(p, VALUES, layer, piece, row, item + l->values);
            for (size_t i = 0; p->codes && i < 2; i++)
                copy_to_page(p, KEY_SCALES + i, layer, piece, row, item + (i ? l->value_scales : l->key_scales));
        }
        item = is_f16_page(p, piece, page) ? pool_add(p, &p->f16_pages, piece, page) : NULL;
        for (size_t layer = 0; item && layer < p->n_layers; layer++, item += l->f16_layer_bytes) {
            const size_t from = f16_row(p, page * QN_PAGE);
            copy_to_page(p, F16_KEYS, layer, piece, from, item + l->f16_keys);
            copy_to_page(p, F16_VALUES, layer, piece, from, item + l->f16_values);
            if (page == 0)
                copy_to_page(p, MEANS, layer, piece, 0, item + l->means);
        }
    }
}

/* Rows of the step, pieces after each other. */
static void make_rows(struct problem *p)
{
    p->positions = qn_new(p->n_rows, sizeof *p->positions);
    p->sessions = qn_new(p->n_rows, sizeof *p->sessions);
    p->cu_seqlens = qn_new(p->n_pieces + 1, sizeof *p->cu_seqlens);
    p->firsts = qn_new(p->n_pieces, sizeof *p->firsts);
    size_t row = 0;
    for (size_t i = 0; i < p->n_pieces; i++) {
        p->firsts[i] = p->pieces[i].first;
        for (uint32_t t = p->pieces[i].first; t < p->pieces[i].length; t++, row++) {
            p->positions[row] = t;
            p->sessions[row] = (uint32_t)i;
        }
        p->cu_seqlens[i + 1] = (uint32_t)row;
    }
    p->gpu_positions = qn_gpu_copy(p->positions);
    p->gpu_sessions = qn_gpu_copy(p->sessions);
    p->gpu_cu_seqlens = qn_gpu_copy(p->cu_seqlens);
    p->gpu_firsts = qn_gpu_copy(p->firsts);
}

/* stored: the rows of the step are in the caches. */
static void problem_new(struct problem *p, const qn_pages_shape *s, const struct piece *pieces, size_t n_pieces,
                        size_t n_layers, bool stored)
{
    size_t longest = 0;
    *p = (struct problem){ .s = s,
                           .pieces = pieces,
                           .n_pieces = n_pieces,
                           .n_layers = n_layers,
                           .n_open = N_OPEN,
                           .codes = s->key_bits != 16,
                           .layout = qn_pages_layout_of(s) };
    for (size_t i = 0; i < n_pieces; i++) {
        const size_t open = last_page(p, i) - pieces[i].first / QN_PAGE + 1;
        longest = pieces[i].length > longest ? pieces[i].length : longest;
        p->n_open = open > p->n_open ? open : p->n_open;
        p->n_rows += pieces[i].length - pieces[i].first;
    }
    p->n_pages = (longest + QN_PAGE - 1) / QN_PAGE;
    const size_t rows = p->n_pages * QN_PAGE, f16 = p->codes ? (1 + p->n_open) * QN_PAGE : 0;
    for (unsigned i = 0; p->codes && i < 2; i++) {
        p->codecs[i] = qn_codec(s->dim, i ? s->value_bits : s->key_bits, 1 + i);
        p->rotations[i] = qn_gpu_rotation(p->codecs[i]);
    }
    array_new(p, KEYS, rows, p->layout.key_row);
    array_new(p, VALUES, rows, p->layout.value_row);
    for (size_t i = 0; i < 2; i++)
        array_new(p, KEY_SCALES + i, p->codes ? rows : 0, sizeof(float));
    array_new(p, F16_KEYS, f16, s->dim * sizeof(uint16_t));
    array_new(p, F16_VALUES, f16, s->dim * sizeof(uint16_t));
    array_new(p, MEANS, p->codes ? 1 : 0, s->dim * sizeof(float));
    pool_new(p, &p->pages, n_layers * p->layout.layer_bytes);
    pool_new(p, &p->f16_pages, n_layers * p->layout.f16_layer_bytes);
    for (size_t layer = 0; layer < n_layers; layer++)
        for (size_t i = 0; i < n_pieces; i++)
            for (size_t head = 0; head < s->n_kv_heads; head++)
                fill_head(p, layer, i, head, stored ? pieces[i].length : pieces[i].first);
    for (size_t i = 0; i < n_pieces; i++)
        fill_pages(p, i, !stored);
    for (size_t i = 0; i < ARRAYS; i++)
        if (p->arrays[i].rows)
            p->arrays[i].gpu = qn_gpu_copy(p->arrays[i].host);
    pool_upload(p, &p->pages);
    pool_upload(p, &p->f16_pages);
    make_rows(p);
}

static size_t head_bytes(const struct problem *p, size_t array)
{
    return p->arrays[array].rows * p->arrays[array].row_bytes;
}

static uint64_t layer_of(const struct problem *p, size_t array, size_t layer)
{
    return p->arrays[array].gpu + layer * p->n_pieces * p->s->n_kv_heads * head_bytes(p, array);
}

static qn_attention_gpu_cache contiguous_cache(const struct problem *p, size_t layer)
{
    const size_t heads = p->s->n_kv_heads;
    return (qn_attention_gpu_cache){ .keys = layer_of(p, KEYS, layer),
                                     .values = layer_of(p, VALUES, layer),
                                     .key_scales = layer_of(p, KEY_SCALES, layer),
                                     .value_scales = layer_of(p, VALUE_SCALES, layer),
                                     .key_head_stride = head_bytes(p, KEYS),
                                     .value_head_stride = head_bytes(p, VALUES),
                                     .scale_head_stride = head_bytes(p, KEY_SCALES),
                                     .key_session_stride = heads * head_bytes(p, KEYS),
                                     .value_session_stride = heads * head_bytes(p, VALUES),
                                     .scale_session_stride = heads * head_bytes(p, KEY_SCALES) };
}

static qn_attention_gpu_pages contiguous_f16(const struct problem *p, size_t layer)
{
    const size_t heads = p->s->n_kv_heads;
    return (qn_attention_gpu_pages){ .keys = layer_of(p, F16_KEYS, layer),
                                     .values = layer_of(p, F16_VALUES, layer),
                                     .means = layer_of(p, MEANS, layer),
                                     .head = head_bytes(p, F16_KEYS),
                                     .session = heads * head_bytes(p, F16_KEYS),
                                     .mean_session_stride = heads * head_bytes(p, MEANS),
                                     .n_open_pages = (uint32_t)p->n_open };
}

static qn_attention_gpu_cache cache_of(const struct problem *p, bool paged, size_t layer)
{
    return paged ? qn_pages_cache(p->s, &p->layout, layer, p->pages.tables) : contiguous_cache(p, layer);
}

static qn_attention_gpu_pages f16_of(const struct problem *p, bool paged, size_t layer)
{
    return paged ? qn_pages_f16(p->s, &p->layout, layer, p->f16_pages.tables) : contiguous_f16(p, layer);
}

static qn_attention_gpu_codec gpu_codec(const struct problem *p, size_t i)
{
    return p->codes ? qn_gpu_codec(p->codecs[i], 0) : (qn_attention_gpu_codec){ .gain = 1 };
}

static void begin_case(const qn_pages_shape *s, const char *variant, const struct piece *pieces, size_t n_pieces)
{
    qn_random_seed(s->dim * 100 + s->key_bits + n_pieces + pieces[0].length);
    qn_case_begin("pages", variant, "heads %zu of %zu over %zu, bits %u and %u, %zu sequences, rows %u to %u first",
                  s->n_heads, s->dim, s->n_kv_heads, s->key_bits, s->value_bits, n_pieces, pieces[0].first,
                  pieces[0].length);
}

/* Stores rows [first, first + n) of the step in a layer. rows: keys and values of all layers, of all rows. */
static void store_rows(struct problem *p, bool paged, size_t layer, size_t first, size_t n, uint64_t sessions,
                       uint64_t rows)
{
    const qn_pages_shape *s = p->s;
    const size_t row = s->n_kv_heads * s->dim, at = first * row;
    const qn_rope_qk_norm_store_args args = {
        .keys = rows + (2 * layer * p->n_rows * row + at) * sizeof(float),
        .values = rows + ((2 * layer + 1) * p->n_rows * row + at) * sizeof(float),
        .positions = p->gpu_positions + first * sizeof(uint32_t),
        .sessions = sessions + first * sizeof(uint32_t),
        .cache = cache_of(p, paged, layer),
        .pages = f16_of(p, paged, layer),
        .key_rotation = p->rotations[0],
        .value_rotation = p->rotations[1],
        .n_rows = (uint32_t)n,
        .n_kv_heads = (uint32_t)s->n_kv_heads,
        .key_row_stride = (uint32_t)row,
        .value_row_stride = (uint32_t)row,
        .capacity = (uint32_t)(p->n_pages * QN_PAGE),
    };
    qn_launch launch;
    qn_assert_ok(qn_rope_gpu_qk_norm_store(s->dim, p->codes, n, 0, s->n_kv_heads, &launch));
    qn_gpu_launch(&launch, &args);
}

/* ---- Decode ---- */

struct decode {
    struct problem p;
    qn_attention_gpu gpu;
    qn_attention_decode_args decode;
};

static void decode_new(struct decode *d, const qn_pages_shape *s, const struct piece *pieces, size_t n_pieces)
{
    *d = (struct decode){ .gpu = qn_pages_gpu(s) };
    problem_new(&d->p, s, pieces, n_pieces, 1, true);
    const qn_attention_splits splits = qn_attention_gpu_splits(&d->gpu, d->p.n_pages * QN_PAGE);
    d->decode = qn_decode_args(&d->gpu, d->p.n_rows, &splits);
    d->decode.queries = qn_gpu_floats_of(d->p.n_rows * s->n_heads * s->dim, 1);
    d->decode.key_codec = gpu_codec(&d->p, 0);
    d->decode.value_codec = gpu_codec(&d->p, 1);
    d->decode.rotation = d->p.rotations[1];
}

/* Arguments for rows [row, row + n), their sessions from `sessions` on. */
static qn_attention_decode_args args_of_rows(const struct decode *d, bool paged, size_t row, size_t n,
                                             uint64_t sessions)
{
    const size_t row_bytes = d->decode.query_stride * sizeof(float);
    qn_attention_decode_args args = d->decode;
    args.queries += row * row_bytes;
    args.mask = (qn_attention_mask){ .positions = d->p.gpu_positions + row * sizeof(uint32_t),
                                     .sessions = sessions,
                                     .n_keys = (uint32_t)(d->p.n_pages * QN_PAGE),
                                     .causal = 1 };
    args.cache = cache_of(&d->p, paged, 0);
    args.pages = f16_of(&d->p, paged, 0);
    args.n_rows = (uint32_t)n;
    args.out += row * row_bytes;
    return args;
}

static void run_rows(const struct decode *d, bool paged, size_t row, size_t n, uint64_t sessions)
{
    const qn_attention_decode_args args = args_of_rows(d, paged, row, n, sessions);
    qn_launch launch;
    qn_gpu_poison(args.partials, args.maxima);
    qn_assert_ok(qn_attention_gpu_decode(&d->gpu, n, &args.splits, &launch));
    qn_gpu_launch(&launch, &args);
}

static float *run_decode(struct decode *d, bool paged, uint64_t sessions)
{
    qn_gpu_poison(d->decode.out);
    run_rows(d, paged, 0, d->p.n_rows, sessions);
    return qn_gpu_read(d->decode.out);
}

/* Launches of a draft, in the order of a step: rows [row, row + n) are stored, then attend together, and what the store
 * does not write is loaded before it has ended. rows: as of store_rows. */
static void run_page_rows(struct decode *d, size_t row, size_t n, uint64_t rows)
{
    qn_attention_decode_args args = args_of_rows(d, true, row, n, d->p.gpu_sessions + row * sizeof(uint32_t));
    qn_launch launch;
    args.pdl_prefetch = 1;
    qn_gpu_poison(args.partials, args.maxima);
    qn_assert_ok(qn_attention_gpu_decode_page(&d->gpu, n, &args.splits, &launch));
    launch.pdl = true;
    store_rows(&d->p, true, 0, row, n, d->p.gpu_sessions, rows);
    qn_gpu_launch(&launch, &args);
}

/* expected: of all rows. Scores are added up in another order than for single rows. */
static void compare_page_rows(struct decode *d, size_t row, size_t n, uint64_t rows, const float *expected)
{
    static const double bar = 1e-3;
    const size_t width = d->p.s->n_heads * d->p.s->dim;
    qn_gpu_poison(d->decode.out);
    run_page_rows(d, row, n, rows);
    const float *found = qn_gpu_read(d->decode.out);
    for (size_t i = row; i < row + n; i++)
        qn_expect_close(qn_text("%zu rows of a page, that at position %u", n, d->p.positions[i]), found + i * width,
                        expected + i * width, width, bar);
}

/* Whether the device and the cache are those of qn_attention_gpu_decode_page. */
static bool expects_page_rows(const qn_attention_gpu *gpu)
{
    return gpu->max_shared_bytes >= 227 << 10 && (gpu->head_dim == 128 || gpu->head_dim == 256) &&
           gpu->key_bits == gpu->value_bits && (gpu->key_bits == 4 || gpu->key_bits == 8);
}

/* Rows of a sequence and a page together, three to as many as a draft has, against single rows over contiguous caches.
 * All rows of the step get other keys and values. */
static void check_page_rows(struct decode *d)
{
    enum { MOST = 16 };
    const bool has_page_rows = qn_attention_gpu_has_page_rows(&d->gpu, MOST);
    qn_expect(has_page_rows == expects_page_rows(&d->gpu), "rows of a page together: %d", has_page_rows);
    if (!has_page_rows)
        return;
    const uint64_t rows = qn_gpu_floats_of(2 * d->p.n_rows * d->p.s->n_kv_heads * d->p.s->dim, 1);
    store_rows(&d->p, false, 0, 0, d->p.n_rows, d->p.gpu_sessions, rows);
    const float *expected = run_decode(d, false, d->p.gpu_sessions);
    for (size_t i = 0; i < d->p.n_pieces; i++)
        for (size_t at = d->p.cu_seqlens[i], n; at < d->p.cu_seqlens[i + 1]; at += n) {
            const size_t left = d->p.cu_seqlens[i + 1] - at, of_page = QN_PAGE - d->p.positions[at] % QN_PAGE;
            n = left < of_page ? left : of_page;
            n = n < MOST ? n : MOST;
            if (qn_attention_gpu_has_page_rows(&d->gpu, n))
                compare_page_rows(d, at, n, rows, expected);
        }
}

/* All rows over contiguous caches, over pages, and with rows that have no session. Each sequence alone has the bits of
 * all together in deterministic launches: in others a block's warps depend on the number of rows. */
static void check_decode(const qn_pages_shape *s, const struct piece *pieces, size_t n_pieces)
{
    if (!qn_case_selected())
        return;
    struct decode d;
    begin_case(s, "decode", pieces, n_pieces);
    decode_new(&d, s, pieces, n_pieces);
    const size_t row = s->n_heads * s->dim, n = d.p.n_rows * row;
    float *expected = run_decode(&d, false, d.p.gpu_sessions);
    qn_expect_finite(expected, n, "attention over contiguous caches");
    qn_expect_same(run_decode(&d, true, d.p.gpu_sessions), expected, n, "element over pages");
    for (size_t i = 0; i < d.p.n_rows; i += 3) {
        d.p.sessions[i] = QN_ATTENTION_NO_SESSION;
        memset(expected + i * row, 0, row * sizeof *expected);
    }
    qn_expect_same(run_decode(&d, true, qn_gpu_copy(d.p.sessions)), expected, n,
                   "element beside rows without a session");
    d.gpu.deterministic = true;
    expected = run_decode(&d, true, d.p.gpu_sessions);
    qn_gpu_poison(d.decode.out);
    for (size_t i = 0; i < n_pieces; i++) {
        const size_t first = d.p.cu_seqlens[i];
        run_rows(&d, true, first, d.p.cu_seqlens[i + 1] - first, d.p.gpu_sessions + first * sizeof(uint32_t));
    }
    qn_expect_same(qn_gpu_read(d.decode.out), expected, n, "element of a sequence alone");
    d.gpu.deterministic = false;
    check_page_rows(&d);
    qn_release();
}

/* ---- Prefill ---- */

static void check_prefill(const qn_pages_shape *s, const struct piece *pieces, size_t n_pieces)
{
    if (!qn_case_selected())
        return;
    struct problem p;
    qn_launch launch;
    begin_case(s, "prefill", pieces, n_pieces);
    problem_new(&p, s, pieces, n_pieces, 1, true);
    const qn_attention_gpu gpu = qn_pages_gpu(s);
    const size_t row = s->n_heads * s->dim, n = p.n_rows * row;
    const uint64_t out = qn_gpu_floats(n), queries = qn_gpu_floats_of(n, 1);
    qn_attention_prefill_args args = { .queries = queries,
                                       .out = out,
                                       .key_codec = gpu_codec(&p, 0),
                                       .value_codec = gpu_codec(&p, 1),
                                       .rotation = p.rotations[1],
                                       .cache = cache_of(&p, false, 0),
                                       .pages = f16_of(&p, false, 0),
                                       .n_pieces = 1,
                                       .n_heads = (uint32_t)s->n_heads,
                                       .n_kv_heads = (uint32_t)s->n_kv_heads,
                                       .query_stride = (uint32_t)row,
                                       .out_stride = (uint32_t)row,
                                       .scale = 1 / sqrtf((float)s->dim) };
    for (size_t i = 0; i < n_pieces; i++) { /* contiguous, each piece alone */
        const size_t first = p.cu_seqlens[i], rows = p.cu_seqlens[i + 1] - first;
        if (!rows)
            continue;
        args.queries = queries + first * row * sizeof(float);
        args.out = out + first * row * sizeof(float);
        args.positions = p.gpu_firsts + i * sizeof(uint32_t);
        args.sessions = p.gpu_sessions + first * sizeof(uint32_t);
        args.n_rows = (uint32_t)rows;
        qn_assert_ok(qn_attention_gpu_prefill(&gpu, rows, 1, &launch));
        qn_gpu_launch(&launch, &args);
    }
    const float *expected = qn_gpu_read(out);
    qn_gpu_poison(out);
    args.queries = queries;
    args.out = out;
    args.positions = p.gpu_firsts;
    args.cu_seqlens = p.gpu_cu_seqlens;
    args.sessions = 0;
    args.cache = cache_of(&p, true, 0);
    args.pages = f16_of(&p, true, 0);
    args.n_rows = (uint32_t)p.n_rows;
    args.n_pieces = (uint32_t)n_pieces;
    qn_assert_ok(qn_attention_gpu_prefill(&gpu, p.n_rows, n_pieces, &launch));
    qn_gpu_launch(&launch, &args);
    qn_expect_finite(expected, n, "attention over contiguous caches");
    qn_expect_same(qn_gpu_read(out), expected, n, "element over pages");
    qn_release();
}

/* ---- Storing and quantising ---- */

/* The pages that the pieces complete: of contiguous caches layer by layer, of pages in one launch. */
static void quantize_pages(struct problem *p, bool paged, const qn_aura_gpu_levels levels[2])
{
    const size_t n_launches = paged ? 1 : p->n_layers;
    for (size_t layer = 0; layer < n_launches; layer++) {
        const qn_aura_quantize_page_args args = { .cache = cache_of(p, paged, layer),
                                                  .pages = f16_of(p, paged, layer),
                                                  .cu_seqlens = p->gpu_cu_seqlens,
                                                  .positions = p->gpu_firsts,
                                                  .key_levels = levels[0],
                                                  .value_levels = levels[1],
                                                  .layer_stride = p->layout.layer_bytes,
                                                  .f16_layer_stride = p->layout.f16_layer_bytes,
                                                  .n_pieces = (uint32_t)p->n_pieces };
        qn_launch launch;
        qn_assert_ok(qn_aura_gpu_quantize_page(p->s->dim, p->s->key_bits, p->s->value_bits,
                                               p->n_rows / QN_PAGE + p->n_pieces, p->s->n_kv_heads,
                                               paged ? p->n_layers : 1, &launch));
        qn_gpu_launch(&launch, &args);
    }
}

/* All bytes of a pool are those that its pages have in the contiguous caches; the others are poison still. */
static void expect_pool(const struct pool *pool, const char *what)
{
    const uint8_t *found = qn_gpu_read(pool->gpu);
    size_t differ = 0, first = 0;
    for (size_t i = 0; i < qn_gpu_bytes(pool->gpu); i++) {
        if (found[i] != pool->host[i]) {
            first = differ ? first : i;
            differ++;
        }
    }
    qn_expect(differ == 0, "%zu bytes of %s differ, the first at %zu of a page of %zu", differ, what,
              first % pool->item_bytes, pool->item_bytes);
}

/* The rows of the step are in the contiguous caches: no element is poison. */
static void expect_stored(const struct problem *p)
{
    const size_t array = p->codes ? F16_KEYS : KEYS;
    size_t missing = 0;
    for (size_t row = 0; row < p->n_rows; row++) {
        const size_t at = p->codes ? f16_row(p, p->positions[row]) : p->positions[row];
        for (size_t i = 0; i < p->n_layers * p->s->n_kv_heads; i++) {
            uint16_t x;
            memcpy(&x, row_of(p, array, i / p->s->n_kv_heads, p->sessions[row], i % p->s->n_kv_heads, at), sizeof x);
            missing += x == 0xffff;
        }
    }
    qn_expect(missing == 0, "%zu of %zu rows were not stored", missing, p->n_rows * p->n_layers * p->s->n_kv_heads);
}

static void check_store(const qn_pages_shape *s, const struct piece *pieces, size_t n_pieces)
{
    enum { LAYERS = 2 };
    if (!qn_case_selected())
        return;
    struct problem p;
    begin_case(s, "store, quantise", pieces, n_pieces);
    problem_new(&p, s, pieces, n_pieces, LAYERS, false);
    const size_t n = 2 * LAYERS * p.n_rows * s->n_kv_heads * s->dim;
    const uint64_t rows = qn_gpu_floats_of(n, 1);
    qn_aura_gpu_levels levels[2] = { { 0 }, { 0 } };
    for (size_t i = 0; p.codes && i < 2; i++)
        levels[i] = qn_gpu_levels(p.codecs[i]);
    const uint64_t none = qn_gpu_new(p.n_rows * sizeof(uint32_t)); /* QN_ATTENTION_NO_SESSION: nothing is stored */
    store_rows(&p, true, 0, 0, p.n_rows, none, rows);
    expect_pool(p.codes ? &p.f16_pages : &p.pages, "pages after rows without a session");
    for (int paged = 0; paged < 2; paged++) {
        for (size_t layer = 0; layer < LAYERS; layer++)
            store_rows(&p, paged, layer, 0, p.n_rows, p.gpu_sessions, rows);
        if (p.codes)
            quantize_pages(&p, paged, levels);
    }
    for (size_t i = 0; i < ARRAYS; i++)
        if (p.arrays[i].gpu)
            p.arrays[i].host = qn_gpu_read(p.arrays[i].gpu);
    expect_stored(&p);
    for (size_t i = 0; i < n_pieces; i++)
        fill_pages(&p, i, true);
    expect_pool(&p.pages, p.codes ? "codes" : "pages");
    expect_pool(&p.f16_pages, "fp16 pages");
    qn_release();
}

void qn_check_cuda_pages(bool bench)
{
    static const qn_pages_shape shapes[] = { { 256, 24, 4, 4, 4 },  { 128, 32, 8, 16, 16 }, { 64, 6, 2, 8, 8 },
                                             { 80, 3, 3, 3, 6 },    { 256, 12, 2, 16, 16 }, { 128, 20, 1, 4, 2 },
                                             { 64, 14, 2, 16, 16 }, { 128, 20, 1, 4, 4 },   { 256, 12, 2, 8, 8 } };
    /* Lengths at the edges of pages and tiles; one is long, two share pages of it. */
    static const struct piece rows[] = { { 4096, 4097, 0 }, { 0, 1, 0 },        { 62, 63, 0 },   { 63, 64, 0 },
                                         { 64, 65, 0 },     { 126, 127, 0 },    { 127, 128, 0 }, { 128, 129, 0 },
                                         { 700, 707, 10 },  { 2111, 2112, 32 }, { 191, 193, 1 }, { 300, 301, 0 },
                                         { 4008, 4016, 0 }, { 4000, 4016, 0 } };
    static const struct piece steps[] = { { 500, 900, 0 }, { 0, 1, 0 },     { 0, 63, 0 },    { 0, 64, 0 },
                                          { 0, 65, 0 },    { 63, 130, 0 },  { 320, 321, 5 }, { 100, 300, 1 },
                                          { 64, 128, 1 },  { 130, 130, 2 }, { 191, 193, 0 } };
    struct piece spread[300];
    for (size_t i = 0; i < QN_LENGTH(spread); i++)
        spread[i] = (struct piece){ (uint32_t)(37 * i % 200), (uint32_t)(37 * i % 200) + 1, 0 };
    for (size_t i = 0; i < QN_LENGTH(shapes); i++) {
        check_decode(&shapes[i], rows, QN_LENGTH(rows));
        check_prefill(&shapes[i], steps, QN_LENGTH(steps));
        check_store(&shapes[i], steps, QN_LENGTH(steps));
        check_store(&shapes[i], rows, QN_LENGTH(rows));
    }
    check_decode(&shapes[2], spread, QN_LENGTH(spread));
    check_store(&shapes[2], spread, QN_LENGTH(spread));
    if (bench)
        qn_bench_cuda_pages();
}
