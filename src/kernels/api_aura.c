/* The public AURA operations: check arguments, then process row by row, or a tile of queries against a block of keys,
 * with the kernels of kernels/aura/. Codes are in the packed stream and arithmetic is float32; a session's cache uses
 * the blocks of kernels/aura/aura.h instead. */
#include "quern/kernels.h"

#include "base/memory.h"
#include "kernels/api_check.h"
#include "kernels/canon.h"

#include <math.h>
#include <string.h>

enum {
    ROWS = 64,      /* queries of a tile, which share decoded rows */
    KEY_BLOCK = 256 /* keys per step of the online softmax */
};

/* ---- Codecs ---- */

static qn_status check_codec(const char *name, const qn_aura_codec *codec)
{
    return codec ? QN_OK : qn_fail(QN_ERR_INVALID, "%s: NULL", name);
}

qn_status qn_aura_codec_create(qn_aura_codec **codec, size_t dim, unsigned bits, uint64_t seed)
{
    if (!codec)
        return qn_fail(QN_ERR_INVALID, "codec: NULL");
    return qn_aura_codec_new(codec, dim, bits, seed);
}

static qn_status check_finite(const char *name, qn_view view, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(((const float *)view.data)[i]))
            return qn_fail(QN_ERR_INVALID, "%s: element %zu is %g, expected a finite value", name, i,
                           (double)((const float *)view.data)[i]);
    return QN_OK;
}

qn_status qn_aura_codec_create_with(qn_aura_codec **codec, size_t dim, unsigned bits, qn_view rotation,
                                    qn_view boundaries, qn_view codebook)
{
    if (!codec)
        return qn_fail(QN_ERR_INVALID, "codec: NULL");
    *codec = NULL;
    QN_TRY(qn_aura_check_shape(dim, bits));
    const size_t levels = (size_t)1 << bits;
    QN_TRY(qn_check_view("rotation", rotation, QN_DTYPE_F32, dim, dim, 1));
    QN_TRY(qn_check_view("boundaries", boundaries, QN_DTYPE_F32, levels - 1, 1, 1));
    QN_TRY(qn_check_view("codebook", codebook, QN_DTYPE_F32, levels, 1, 1));
    QN_TRY(check_finite("rotation", rotation, dim * dim));
    QN_TRY(check_finite("boundaries", boundaries, levels - 1));
    QN_TRY(check_finite("codebook", codebook, levels));
    const float *b = boundaries.data;
    for (size_t i = 1; i < levels - 1; i++)
        if (b[i] < b[i - 1])
            return qn_fail(QN_ERR_INVALID, "boundaries: element %zu is %g, expected at least %g", i, (double)b[i],
                           (double)b[i - 1]);
    return qn_aura_codec_from_tables(codec, dim, bits, rotation.data, b, codebook.data);
}

void qn_aura_codec_free(qn_aura_codec *codec)
{
    qn_aura_codec_delete(codec);
}

size_t qn_aura_words(const qn_aura_codec *codec)
{
    return codec ? qn_aura_row_words(codec->dim, codec->bits) : 0;
}

/* Writes the rotation as a matrix, column by column: the rotated unit vectors. */
static void write_rotation(const qn_aura_codec *codec, float *rotation)
{
    float unit[QN_AURA_MAX_DIM] = { 0 }, column[QN_AURA_MAX_DIM];
    for (size_t j = 0; j < codec->dim; j++) {
        unit[j] = 1;
        qn_aura_rotate(&qn_api_kernels.aura, codec, column, unit);
        unit[j] = 0;
        for (size_t i = 0; i < codec->dim; i++)
            rotation[i * codec->dim + j] = column[i];
    }
}

qn_status qn_aura_codec_tables(const qn_aura_codec *codec, qn_view rotation, qn_view boundaries, qn_view codebook)
{
    QN_TRY(qn_api_ready());
    QN_TRY(check_codec("codec", codec));
    const size_t levels = (size_t)1 << codec->bits;
    if (!qn_view_absent(rotation))
        QN_TRY(qn_check_view("rotation", rotation, QN_DTYPE_F32, codec->dim, codec->dim, 1));
    if (!qn_view_absent(boundaries))
        QN_TRY(qn_check_view("boundaries", boundaries, QN_DTYPE_F32, levels - 1, 1, 1));
    if (!qn_view_absent(codebook))
        QN_TRY(qn_check_view("codebook", codebook, QN_DTYPE_F32, levels, 1, 1));
    if (!qn_view_absent(rotation))
        write_rotation(codec, rotation.data);
    if (!qn_view_absent(boundaries))
        memcpy(boundaries.data, codec->boundaries, (levels - 1) * sizeof(float));
    if (!qn_view_absent(codebook))
        memcpy(codebook.data, codec->codebook, levels * sizeof(float));
    return QN_OK;
}

/* ---- Rows ---- */

static const void *row_of(qn_view view, size_t row, size_t dim)
{
    return (const char *)view.data + row * dim * (view.dtype == QN_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t));
}

static void load_row(float *x, qn_view view, size_t row, size_t dim)
{
    qn_api_kernels.gdn_rows.to_f32(x, row_of(view, row, dim), view.dtype, dim);
}

static void store_row(qn_view view, size_t row, const float *x, size_t dim)
{
    qn_api_kernels.gdn_rows.from_f32((void *)row_of(view, row, dim), x, view.dtype, dim);
}

/* Encodes row `from` of rows as row `to` of codes and scales. Returns false, and writes nothing, if the row or its
 * scale is not finite. */
static bool encode(const qn_aura_codec *codec, qn_view rows, size_t from, qn_view codes, qn_view scales, size_t to)
{
    float x[QN_AURA_MAX_DIM], scale;
    uint8_t row[QN_AURA_MAX_DIM];
    load_row(x, rows, from, codec->dim);
    if (!qn_aura_encode_row(&qn_api_kernels.aura, codec, x, row, &scale))
        return false;
    qn_aura_pack((uint32_t *)codes.data + to * qn_aura_words(codec), row, codec->dim, codec->bits);
    ((float *)scales.data)[to] = scale;
    return true;
}

qn_status qn_aura_encode(const qn_aura_codec *codec, qn_view rows, size_t n_rows, qn_view codes, qn_view scales)
{
    QN_TRY(qn_api_ready());
    QN_TRY(check_codec("codec", codec));
    QN_TRY(qn_check_float_type("rows", rows));
    QN_TRY(qn_check_view("rows", rows, rows.dtype, n_rows, codec->dim, 1));
    QN_TRY(qn_check_view("codes", codes, QN_DTYPE_U32, n_rows, qn_aura_words(codec), 1));
    QN_TRY(qn_check_view("scales", scales, QN_DTYPE_F32, n_rows, 1, 1));
    for (size_t row = 0; row < n_rows; row++)
        if (!encode(codec, rows, row, codes, scales, row))
            return qn_fail(QN_ERR_INVALID, "rows: row %zu is not finite, or its norm is not, expected finite values",
                           row);
    return QN_OK;
}

qn_status qn_aura_decode(const qn_aura_codec *codec, qn_view codes, qn_view scales, size_t n_rows, bool rotate_back,
                         qn_view rows)
{
    QN_TRY(qn_api_ready());
    QN_TRY(check_codec("codec", codec));
    QN_TRY(qn_check_view("codes", codes, QN_DTYPE_U32, n_rows, qn_aura_words(codec), 1));
    QN_TRY(qn_check_view("scales", scales, QN_DTYPE_F32, n_rows, 1, 1));
    QN_TRY(qn_check_float_type("rows", rows));
    QN_TRY(qn_check_view("rows", rows, rows.dtype, n_rows, codec->dim, 1));
    for (size_t row = 0; row < n_rows; row++) {
        const float scale = ((const float *)scales.data)[row];
        float y[QN_AURA_MAX_DIM], x[QN_AURA_MAX_DIM];
        qn_api_kernels.aura.decode(y, (const uint32_t *)codes.data + row * qn_aura_words(codec), codec);
        if (rotate_back)
            qn_aura_rotate_back(&qn_api_kernels.aura, codec, x, y);
        for (size_t d = 0; d < codec->dim; d++)
            x[d] = (rotate_back ? x[d] : y[d]) * scale;
        store_row(rows, row, x, codec->dim);
    }
    return QN_OK;
}

/* ---- Caches ---- */

static qn_status check_side(const char *codes_name, qn_view codes, const char *scales_name, qn_view scales,
                            const qn_aura_codec *codec, const qn_aura_cache *cache)
{
    QN_TRY(qn_check_view(codes_name, codes, QN_DTYPE_U32, cache->n_kv_heads, cache->capacity, qn_aura_words(codec)));
    return qn_check_view(scales_name, scales, QN_DTYPE_F32, cache->n_kv_heads, cache->capacity, 1);
}

static qn_status check_cache(const qn_aura_cache *cache)
{
    QN_TRY(qn_api_ready());
    if (!cache)
        return qn_fail(QN_ERR_INVALID, "cache: NULL");
    QN_TRY(check_codec("key_codec", cache->key_codec));
    QN_TRY(check_codec("value_codec", cache->value_codec));
    if (cache->key_codec->dim != cache->value_codec->dim)
        return qn_fail(QN_ERR_INVALID, "value_codec: dim %zu, expected that of key_codec, %zu", cache->value_codec->dim,
                       cache->key_codec->dim);
    if (!cache->n_kv_heads)
        return qn_fail(QN_ERR_INVALID, "n_kv_heads: 0, expected at least 1");
    QN_TRY(check_side("key_codes", cache->key_codes, "key_scales", cache->key_scales, cache->key_codec, cache));
    return check_side("value_codes", cache->value_codes, "value_scales", cache->value_scales, cache->value_codec,
                      cache);
}

static qn_status check_filled_cache(const qn_aura_cache *cache)
{
    QN_TRY(check_cache(cache));
    if (cache->n_keys > cache->capacity)
        return qn_fail(QN_ERR_INVALID, "n_keys: %zu, expected at most the capacity %zu", cache->n_keys,
                       cache->capacity);
    return QN_OK;
}

qn_status qn_aura_store(const qn_aura_cache *cache, qn_view keys, qn_view values, qn_view positions, size_t n_tokens)
{
    QN_TRY(check_cache(cache));
    const size_t heads = cache->n_kv_heads;
    QN_TRY(qn_check_float_type("keys", keys));
    QN_TRY(qn_check_view("keys", keys, keys.dtype, n_tokens, heads, cache->key_codec->dim));
    QN_TRY(qn_check_float_type("values", values));
    QN_TRY(qn_check_view("values", values, values.dtype, n_tokens, heads, cache->key_codec->dim));
    QN_TRY(qn_check_view("positions", positions, QN_DTYPE_U32, n_tokens, 1, 1));
    const uint32_t *at = positions.data;
    for (size_t t = 0; t < n_tokens; t++)
        if (at[t] >= cache->capacity)
            return qn_fail(QN_ERR_INVALID, "positions: token %zu is at %u, expected below the capacity %zu", t,
                           (unsigned)at[t], cache->capacity);
    for (size_t i = 0; i < n_tokens * heads; i++) {
        const size_t to = i % heads * cache->capacity + at[i / heads];
        const bool key = encode(cache->key_codec, keys, i, cache->key_codes, cache->key_scales, to);
        if (!key || !encode(cache->value_codec, values, i, cache->value_codes, cache->value_scales, to))
            return qn_fail(QN_ERR_INVALID,
                           "%s: token %zu, head %zu is not finite, or its norm is not, expected finite values",
                           key ? "values" : "keys", i / heads, i % heads);
    }
    return QN_OK;
}

static void decode_key(const qn_aura_cache *cache, size_t kv_head, size_t key, float *x, float *scale)
{
    const size_t row = kv_head * cache->capacity + key;
    const qn_aura_codec *codec = cache->key_codec;
    qn_api_kernels.aura.decode(x, (const uint32_t *)cache->key_codes.data + row * qn_aura_words(codec), codec);
    *scale = ((const float *)cache->key_scales.data)[row];
}

static void decode_value(const qn_aura_cache *cache, size_t kv_head, size_t key, float *x, float *scale)
{
    const size_t row = kv_head * cache->capacity + key;
    const qn_aura_codec *codec = cache->value_codec;
    qn_api_kernels.aura.decode(x, (const uint32_t *)cache->value_codes.data + row * qn_aura_words(codec), codec);
    *scale = ((const float *)cache->value_scales.data)[row];
}

/* ---- Queries ---- */

static qn_status check_heads(const qn_aura_cache *cache, size_t n_heads)
{
    if (n_heads && n_heads % cache->n_kv_heads == 0)
        return QN_OK;
    return qn_fail(QN_ERR_INVALID, "n_heads: %zu, expected a multiple of n_kv_heads %zu", n_heads, cache->n_kv_heads);
}

static qn_status check_sinks(qn_view sinks, size_t n_heads)
{
    if (qn_view_absent(sinks))
        return QN_OK;
    QN_TRY(qn_check_view("sinks", sinks, QN_DTYPE_F32, n_heads, 1, 1));
    return check_finite("sinks", sinks, n_heads);
}

static qn_status check_queries(const qn_aura_cache *cache, const qn_aura_queries *queries)
{
    QN_TRY(check_filled_cache(cache));
    if (!queries)
        return qn_fail(QN_ERR_INVALID, "queries: NULL");
    QN_TRY(check_heads(cache, queries->n_heads));
    QN_TRY(qn_check_float_type("queries", queries->queries));
    QN_TRY(qn_check_view("queries", queries->queries, queries->queries.dtype, queries->n_tokens, queries->n_heads,
                         cache->key_codec->dim));
    if (!isfinite(queries->scale))
        return qn_fail(QN_ERR_INVALID, "scale: %g, expected a finite value", (double)queries->scale);
    return QN_OK;
}

static qn_status check_mask(const qn_aura_queries *queries)
{
    return queries->causal || queries->window
               ? qn_check_view("positions", queries->positions, QN_DTYPE_U32, queries->n_tokens, 1, 1)
               : QN_OK;
}

/* A tile: queries of one key-value head that are processed together, and their results so far. */
typedef struct tile {
    const qn_aura_cache *cache;
    size_t kv_head, n;
    size_t row[ROWS];                   /* index in [n_tokens, n_heads] */
    size_t from[ROWS], to[ROWS];        /* visible keys: [from, to) */
    float query[ROWS][QN_AURA_MAX_DIM]; /* scaled and rotated */
    float scores[ROWS][KEY_BLOCK];
    float o[ROWS][QN_AURA_MAX_DIM], m[ROWS], l[ROWS];
    float partial[ROWS][QN_AURA_MAX_DIM]; /* results of the current block */
} tile;

/* Selects the tile's rows: those of kv_head, from `first` on. */
static void tile_rows(tile *t, const qn_aura_cache *cache, size_t n_tokens, size_t n_heads, size_t kv_head,
                      size_t first)
{
    const size_t group = n_heads / cache->n_kv_heads, left = n_tokens * group - first;
    t->cache = cache;
    t->kv_head = kv_head;
    t->n = left < ROWS ? left : ROWS;
    for (size_t i = 0; i < t->n; i++)
        t->row[i] = (first + i) / group * n_heads + kv_head * group + (first + i) % group;
}

static void tile_queries(tile *t, const qn_aura_queries *queries)
{
    const qn_aura_codec *codec = t->cache->key_codec;
    for (size_t i = 0; i < t->n; i++) {
        float x[QN_AURA_MAX_DIM];
        load_row(x, queries->queries, t->row[i], codec->dim);
        for (size_t d = 0; d < codec->dim; d++)
            x[d] *= queries->scale;
        qn_aura_rotate(&qn_api_kernels.aura, codec, t->query[i], x);
    }
}

static void tile_mask(tile *t, const qn_aura_queries *queries)
{
    for (size_t i = 0; i < t->n; i++) {
        const size_t token = t->row[i] / queries->n_heads, n_keys = t->cache->n_keys;
        const bool masked = queries->causal || queries->window;
        const size_t end = masked ? (size_t)((const uint32_t *)queries->positions.data)[token] + 1 : 0;
        t->from[i] = queries->window && end > queries->window ? end - queries->window : 0;
        t->to[i] = queries->causal && end < n_keys ? end : n_keys;
    }
}

/* Returns the first key that query i sees in a block that begins at `begin`. */
static size_t visible_from(const tile *t, size_t i, size_t begin)
{
    return t->from[i] > begin ? t->from[i] : begin;
}

/* Returns the end of the keys that query i sees in a block that ends at `end`. */
static size_t visible_to(const tile *t, size_t i, size_t end)
{
    return t->to[i] < end ? t->to[i] : end;
}

static bool any_visible(const tile *t, size_t key)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->from[i] <= key && key < t->to[i])
            return true;
    return false;
}

static void block_scores(tile *t, size_t begin, size_t end)
{
    const qn_aura_kernels *kernels = &qn_api_kernels.aura;
    float x[QN_AURA_MAX_DIM], scale;
    for (size_t key = begin; key < end; key++) {
        if (!any_visible(t, key))
            continue;
        decode_key(t->cache, t->kv_head, key, x, &scale);
        for (size_t i = 0; i < t->n; i++)
            t->scores[i][key - begin] = kernels->dot(t->query[i], x, t->cache->key_codec->dim) * scale;
    }
}

/* Converts the scores of query i's visible keys to weights. */
static void block_softmax(tile *t, size_t i, size_t begin, size_t end, float *m, float *l)
{
    const size_t first = visible_from(t, i, begin) - begin, last = visible_to(t, i, end) - begin;
    double sum = 0;
    *m = t->scores[i][first];
    for (size_t j = first; j < last; j++)
        *m = t->scores[i][j] > *m ? t->scores[i][j] : *m;
    for (size_t j = first; j < last; j++) {
        t->scores[i][j] = qn_exp(t->scores[i][j] - *m);
        sum += (double)t->scores[i][j];
    }
    *l = (float)sum;
}

static void block_values(tile *t, size_t begin, size_t end)
{
    const qn_aura_kernels *kernels = &qn_api_kernels.aura;
    float x[QN_AURA_MAX_DIM], scale;
    for (size_t key = begin; key < end; key++) {
        if (!any_visible(t, key))
            continue;
        decode_value(t->cache, t->kv_head, key, x, &scale);
        for (size_t i = 0; i < t->n; i++)
            if (t->from[i] <= key && key < t->to[i])
                kernels->axpy(t->partial[i], t->scores[i][key - begin] * scale, x, t->cache->value_codec->dim);
    }
}

static void combine(float *o, float *m, float *l, const float *partial, float partial_m, float partial_l, size_t dim)
{
    if (*l != 0) {
        qn_api_kernels.attention.combine(o, m, l, partial, partial_m, partial_l, dim);
        return;
    }
    memcpy(o, partial, dim * sizeof *o);
    *m = partial_m;
    *l = partial_l;
}

/* Attends to keys [begin, end) and combines the result with o, m and l; l = 0 means that these are not set yet. */
static void tile_attend(tile *t, size_t begin, size_t end)
{
    const size_t dim = t->cache->key_codec->dim;
    for (size_t next; begin < end; begin = next) {
        float m[ROWS], l[ROWS];
        next = end - begin < KEY_BLOCK ? end : begin + KEY_BLOCK;
        block_scores(t, begin, next);
        for (size_t i = 0; i < t->n; i++) {
            memset(t->partial[i], 0, dim * sizeof t->partial[i][0]);
            if (visible_from(t, i, begin) < visible_to(t, i, next))
                block_softmax(t, i, begin, next, &m[i], &l[i]);
        }
        block_values(t, begin, next);
        for (size_t i = 0; i < t->n; i++)
            if (visible_from(t, i, begin) < visible_to(t, i, next))
                combine(t->o[i], &t->m[i], &t->l[i], t->partial[i], m[i], l[i], dim);
    }
}

static void normalize_row(const qn_aura_codec *codec, float *o, float l, qn_view out, size_t row)
{
    float x[QN_AURA_MAX_DIM] = { 0 };
    if (l != 0) {
        qn_api_kernels.attention.normalize(o, o, l, codec->dim);
        qn_aura_rotate_back(&qn_api_kernels.aura, codec, x, o);
    }
    store_row(out, row, x, codec->dim);
}

/* ---- Operations: a function for each tile of each key-value head ---- */

typedef struct call {
    const qn_aura_cache *cache;
    const qn_aura_queries *queries; /* or NULL */
    size_t n_tokens, n_heads, block, n_blocks;
    float skip;
    qn_view scores, weights, partials, m, l, out;
} call;

static qn_status for_each_tile(const call *c, void (*work)(const call *c, tile *t))
{
    const size_t rows = c->n_tokens * (c->n_heads / c->cache->n_kv_heads);
    tile *t;
    QN_TRY(qn_alloc(&t, 1, sizeof *t, "attention"));
    for (size_t kv_head = 0; kv_head < c->cache->n_kv_heads; kv_head++)
        for (size_t first = 0; first < rows; first += ROWS) {
            tile_rows(t, c->cache, c->n_tokens, c->n_heads, kv_head, first);
            if (c->queries)
                tile_queries(t, c->queries);
            work(c, t);
        }
    qn_free(t);
    return QN_OK;
}

static void score_tile(const call *c, tile *t)
{
    const size_t n_keys = c->cache->n_keys, dim = c->cache->key_codec->dim;
    for (size_t key = 0; key < n_keys; key++) {
        float x[QN_AURA_MAX_DIM], scale;
        decode_key(c->cache, t->kv_head, key, x, &scale);
        for (size_t i = 0; i < t->n; i++)
            ((float *)c->scores.data)[t->row[i] * n_keys + key] = qn_api_kernels.aura.dot(t->query[i], x, dim) * scale;
    }
}

qn_status qn_aura_score(const qn_aura_cache *cache, const qn_aura_queries *queries, qn_view scores)
{
    QN_TRY(check_queries(cache, queries));
    QN_TRY(qn_check_view("scores", scores, QN_DTYPE_F32, queries->n_tokens, queries->n_heads, cache->n_keys));
    return for_each_tile(&(call){ .cache = cache,
                                  .queries = queries,
                                  .n_tokens = queries->n_tokens,
                                  .n_heads = queries->n_heads,
                                  .scores = scores },
                         score_tile);
}

static void value_tile(const call *c, tile *t)
{
    const size_t n_keys = c->cache->n_keys, dim = c->cache->value_codec->dim;
    for (size_t i = 0; i < t->n; i++)
        memset(t->o[i], 0, dim * sizeof t->o[i][0]);
    for (size_t key = 0; key < n_keys; key++) {
        float x[QN_AURA_MAX_DIM], scale = 0;
        bool decoded = false;
        for (size_t i = 0; i < t->n; i++) {
            const float weight = ((const float *)c->weights.data)[t->row[i] * n_keys + key];
            if (weight < c->skip)
                continue;
            if (!decoded)
                decode_value(c->cache, t->kv_head, key, x, &scale);
            decoded = true;
            qn_api_kernels.aura.axpy(t->o[i], weight * scale, x, dim);
        }
    }
    for (size_t i = 0; i < t->n; i++)
        normalize_row(c->cache->value_codec, t->o[i], 1, c->out, t->row[i]);
}

qn_status qn_aura_value(const qn_aura_cache *cache, qn_view weights, size_t n_tokens, size_t n_heads, float skip,
                        qn_view out)
{
    QN_TRY(check_filled_cache(cache));
    QN_TRY(check_heads(cache, n_heads));
    QN_TRY(qn_check_view("weights", weights, QN_DTYPE_F32, n_tokens, n_heads, cache->n_keys));
    if (!(skip >= 0))
        return qn_fail(QN_ERR_INVALID, "skip: %g, expected at least 0", (double)skip);
    QN_TRY(qn_check_float_type("out", out));
    QN_TRY(qn_check_view("out", out, out.dtype, n_tokens, n_heads, cache->value_codec->dim));
    return for_each_tile(
        &(call){
            .cache = cache, .n_tokens = n_tokens, .n_heads = n_heads, .skip = skip, .weights = weights, .out = out },
        value_tile);
}

static void pass1_tile(const call *c, tile *t)
{
    const size_t dim = c->cache->value_codec->dim, n_keys = c->cache->n_keys;
    tile_mask(t, c->queries);
    for (size_t b = 0; b < c->n_blocks; b++) {
        const size_t begin = b * c->block;
        memset(t->l, 0, sizeof t->l);
        tile_attend(t, begin, n_keys - begin < c->block ? n_keys : begin + c->block);
        for (size_t i = 0; i < t->n; i++) {
            const size_t at = t->row[i] * c->n_blocks + b;
            ((float *)c->l.data)[at] = t->l[i];
            if (t->l[i] == 0)
                continue;
            ((float *)c->m.data)[at] = t->m[i];
            memcpy((float *)c->partials.data + at * dim, t->o[i], dim * sizeof(float));
        }
    }
}

/* Checks partials, m and l of n_queries queries in n_blocks blocks. */
static qn_status check_partials(size_t n_queries, size_t n_blocks, size_t dim, qn_view partials, qn_view m, qn_view l)
{
    QN_TRY(qn_check_view("partials", partials, QN_DTYPE_F32, n_queries, n_blocks, dim));
    QN_TRY(qn_check_view("m", m, QN_DTYPE_F32, n_queries, n_blocks, 1));
    return qn_check_view("l", l, QN_DTYPE_F32, n_queries, n_blocks, 1);
}

qn_status qn_aura_flash_pass1(const qn_aura_cache *cache, const qn_aura_queries *queries, size_t block,
                              qn_view partials, qn_view m, qn_view l)
{
    QN_TRY(check_queries(cache, queries));
    QN_TRY(check_mask(queries));
    if (!block)
        return qn_fail(QN_ERR_INVALID, "block: 0, expected at least 1");
    const size_t n_blocks = cache->n_keys / block + (cache->n_keys % block != 0),
                 n = queries->n_tokens * queries->n_heads;
    QN_TRY(check_partials(n, n_blocks, cache->value_codec->dim, partials, m, l));
    return for_each_tile(&(call){ .cache = cache,
                                  .queries = queries,
                                  .n_tokens = queries->n_tokens,
                                  .n_heads = queries->n_heads,
                                  .block = block,
                                  .n_blocks = n_blocks,
                                  .partials = partials,
                                  .m = m,
                                  .l = l },
                         pass1_tile);
}

static void pass2_row(const qn_aura_codec *codec, size_t row, size_t n_heads, size_t n_blocks, qn_view partials,
                      qn_view m, qn_view l, qn_view sinks, qn_view out)
{
    float o[QN_AURA_MAX_DIM] = { 0 }, largest = 0, sum = 0;
    if (!qn_view_absent(sinks)) {
        largest = ((const float *)sinks.data)[row % n_heads];
        sum = 1;
    }
    for (size_t at = row * n_blocks; at < (row + 1) * n_blocks; at++)
        if (((const float *)l.data)[at] != 0)
            combine(o, &largest, &sum, (const float *)partials.data + at * codec->dim, ((const float *)m.data)[at],
                    ((const float *)l.data)[at], codec->dim);
    normalize_row(codec, o, sum, out, row);
}

qn_status qn_aura_flash_pass2(const qn_aura_codec *value_codec, size_t n_queries, size_t n_heads, size_t n_blocks,
                              qn_view partials, qn_view m, qn_view l, qn_view sinks, qn_view out)
{
    QN_TRY(qn_api_ready());
    QN_TRY(check_codec("value_codec", value_codec));
    if (!n_heads || n_queries % n_heads)
        return qn_fail(QN_ERR_INVALID, "n_queries: %zu, expected a multiple of n_heads %zu, which is at least 1",
                       n_queries, n_heads);
    QN_TRY(check_partials(n_queries, n_blocks, value_codec->dim, partials, m, l));
    QN_TRY(check_sinks(sinks, n_heads));
    QN_TRY(qn_check_float_type("out", out));
    QN_TRY(qn_check_view("out", out, out.dtype, n_queries, value_codec->dim, 1));
    for (size_t row = 0; row < n_queries; row++)
        pass2_row(value_codec, row, n_heads, n_blocks, partials, m, l, sinks, out);
    return QN_OK;
}

static void attention_tile(const call *c, tile *t)
{
    const size_t dim = c->cache->value_codec->dim;
    const bool sinks = !qn_view_absent(c->queries->sinks);
    tile_mask(t, c->queries);
    for (size_t i = 0; i < t->n; i++) {
        memset(t->o[i], 0, dim * sizeof t->o[i][0]);
        t->m[i] = sinks ? ((const float *)c->queries->sinks.data)[t->row[i] % c->n_heads] : 0;
        t->l[i] = sinks ? 1 : 0;
    }
    tile_attend(t, 0, c->cache->n_keys);
    for (size_t i = 0; i < t->n; i++)
        normalize_row(c->cache->value_codec, t->o[i], t->l[i], c->out, t->row[i]);
}

qn_status qn_aura_attention(const qn_aura_cache *cache, const qn_aura_queries *queries, qn_view out)
{
    QN_TRY(check_queries(cache, queries));
    QN_TRY(check_mask(queries));
    QN_TRY(check_sinks(queries->sinks, queries->n_heads));
    QN_TRY(qn_check_float_type("out", out));
    QN_TRY(qn_check_view("out", out, out.dtype, queries->n_tokens, queries->n_heads, cache->value_codec->dim));
    return for_each_tile(&(call){ .cache = cache,
                                  .queries = queries,
                                  .n_tokens = queries->n_tokens,
                                  .n_heads = queries->n_heads,
                                  .out = out },
                         attention_tile);
}
