/* AURA of quern/cuda.h: tables of codecs, checks of the arguments, then the launches of cuda/kernels/aura/. */
#include "cuda/api/api.h"

#include "kernels/api_check.h"
#include "kernels/aura/aura.h"
#include "cuda/kernels/aura/aura_attention.h"
#include "cuda/kernels/aura/aura.h"

#include <math.h>
#include <string.h>

/* ---- Codecs ----
 *
 * Tables: codebook [levels], boundaries [levels], the last of which is not used, then the signs [dim] or the dense
 * rotation, transposed [dim][dim] and itself. Each begins at a multiple of 16 bytes. */

static size_t levels_of(const qn_aura_codec *codec)
{
    return (size_t)1 << codec->bits;
}

size_t qn_cuda_aura_table_size(const qn_aura_codec *codec)
{
    if (!codec)
        return 0;
    return 2 * levels_of(codec) + (codec->signs ? codec->dim : 2 * codec->dim * codec->dim);
}

qn_status qn_cuda_aura_tables(const qn_aura_codec *codec, qn_view tables)
{
    if (!codec)
        return qn_fail(QN_ERR_INVALID, "codec: NULL");
    const size_t levels = levels_of(codec), square = codec->dim * codec->dim;
    QN_TRY(qn_check_view("tables", tables, QN_DTYPE_F32, qn_cuda_aura_table_size(codec), 1, 1));
    float *to = tables.data;
    memcpy(to, codec->codebook, levels * sizeof *to);
    memcpy(to + levels, codec->boundaries, (levels - 1) * sizeof *to);
    to[2 * levels - 1] = 0;
    to += 2 * levels;
    if (codec->signs) {
        memcpy(to, codec->signs, codec->dim * sizeof *to);
        return QN_OK;
    }
    memcpy(to, codec->transpose, square * sizeof *to);
    memcpy(to + square, codec->rotation, square * sizeof *to);
    return QN_OK;
}

static qn_status check_codec(const char *name, const char *tables_name, const qn_cuda_aura_codec *c)
{
    if (!c || !c->codec)
        return qn_fail(QN_ERR_INVALID, "%s: NULL", name);
    return qn_api_check_array(tables_name, c->tables, QN_DTYPE_F32, qn_cuda_aura_table_size(c->codec));
}

static qn_aura_gpu_levels gpu_levels(const qn_cuda_aura_codec *c)
{
    const uint64_t at = qn_api_address(c->tables);
    return (qn_aura_gpu_levels){ .codebook = at, .boundaries = at + levels_of(c->codec) * sizeof(float) };
}

static qn_aura_gpu_rotation gpu_rotation(const qn_cuda_aura_codec *c)
{
    const uint64_t at = qn_api_address(c->tables) + 2 * levels_of(c->codec) * sizeof(float);
    if (c->codec->signs)
        return (qn_aura_gpu_rotation){ .signs = at };
    return (qn_aura_gpu_rotation){ .forward = at, .inverse = at + c->codec->dim * c->codec->dim * sizeof(float) };
}

static qn_attention_gpu_codec gpu_codec(const qn_cuda_aura_codec *c)
{
    return (qn_attention_gpu_codec){ .codebook = qn_api_address(c->tables),
                                     .signs = gpu_rotation(c).signs,
                                     .gain = qn_attention_gpu_gain(c->codec->codebook, levels_of(c->codec)) };
}

/* ---- Rows ---- */

static qn_status check_rows(const qn_cuda_kernels *kernels, const qn_cuda_aura_codec *codec, qn_cuda_view rows,
                            size_t n_rows, qn_cuda_view codes, qn_cuda_view scales, uint32_t *stride)
{
    if (!kernels)
        return qn_fail(QN_ERR_INVALID, "kernels: NULL");
    QN_TRY(check_codec("codec", "tables of codec", codec));
    if (n_rows > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "n_rows: %zu, at most %d are allowed", n_rows, INT32_MAX);
    QN_TRY(qn_api_check_float_type("rows", rows));
    QN_TRY(qn_api_check_rows("rows", rows, rows.dtype, n_rows, codec->codec->dim, QN_API_ALIGNMENT, stride));
    QN_TRY(qn_api_check_u32("codes", codes, n_rows * qn_aura_words(codec->codec)));
    return qn_api_check_array("scales", scales, QN_DTYPE_F32, n_rows);
}

qn_status qn_cuda_aura_encode(qn_cuda_kernels *kernels, const qn_cuda_aura_codec *codec, qn_cuda_view rows,
                              size_t n_rows, qn_cuda_view codes, qn_cuda_view scales, qn_stream stream)
{
    uint32_t stride;
    qn_launch launch;
    QN_TRY(check_rows(kernels, codec, rows, n_rows, codes, scales, &stride));
    if (!n_rows)
        return QN_OK;
    const qn_aura_encode_args args = { .rows = qn_api_address(rows),
                                       .codes = qn_api_address(codes),
                                       .scales = qn_api_address(scales),
                                       .rotation = gpu_rotation(codec),
                                       .levels = gpu_levels(codec),
                                       .n_rows = (uint32_t)n_rows,
                                       .stride = stride,
                                       .dtype = (uint32_t)rows.dtype };
    QN_TRY(qn_aura_gpu_encode(codec->codec->dim, codec->codec->bits, n_rows, &launch));
    return qn_api_run(kernels, stream, &launch, 1, &args);
}

qn_status qn_cuda_aura_decode(qn_cuda_kernels *kernels, const qn_cuda_aura_codec *codec, qn_cuda_view codes,
                              qn_cuda_view scales, size_t n_rows, bool rotate_back, qn_cuda_view rows, qn_stream stream)
{
    uint32_t stride;
    qn_launch launch;
    QN_TRY(check_rows(kernels, codec, rows, n_rows, codes, scales, &stride));
    if (!n_rows)
        return QN_OK;
    qn_aura_decode_args args = { .codes = qn_api_address(codes),
                                 .scales = qn_api_address(scales),
                                 .rows = qn_api_address(rows),
                                 .levels = gpu_levels(codec),
                                 .n_rows = (uint32_t)n_rows,
                                 .stride = stride,
                                 .dtype = (uint32_t)rows.dtype };
    if (rotate_back)
        args.rotation = gpu_rotation(codec);
    QN_TRY(qn_aura_gpu_decode(codec->codec->dim, codec->codec->bits, n_rows, &launch));
    return qn_api_run(kernels, stream, &launch, 1, &args);
}

/* ---- Caches ---- */

/* A call on a cache: the arguments shared by its kernels, and its launches. */
typedef struct aura_call {
    const qn_cuda_aura_cache *cache;
    qn_aura_gpu gpu;
    size_t n_tokens, n_queries;
    qn_aura_gpu_cache gpu_cache;
    qn_aura_gpu_queries queries;
    qn_aura_rotate_args rotate;
    qn_api_call calls[2];
    size_t n_calls;
} aura_call;

static size_t dim_of(const qn_cuda_aura_cache *cache)
{
    return cache->key_codec.codec->dim;
}

static qn_status check_cache_sizes(const qn_cuda_kernels *kernels, const qn_cuda_aura_cache *cache)
{
    if (!kernels || !cache)
        return qn_fail(QN_ERR_INVALID, "%s: NULL", kernels ? "cache" : "kernels");
    const qn_aura_codec *key = cache->key_codec.codec, *value = cache->value_codec.codec;
    if (!key || !value)
        return qn_fail(QN_ERR_INVALID, "%s: NULL", key ? "value_codec" : "key_codec");
    if (key->dim != value->dim)
        return qn_fail(QN_ERR_INVALID, "value_codec: dim %zu, expected that of key_codec, %zu", value->dim, key->dim);
    if (cache->n_kv_heads == 0 || cache->n_kv_heads > UINT16_MAX)
        return qn_fail(QN_ERR_INVALID, "n_kv_heads: %zu, expected 1 to %d", cache->n_kv_heads, UINT16_MAX);
    if (cache->capacity > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "capacity: %zu, at most %d are allowed", cache->capacity, INT32_MAX);
    return QN_OK;
}

/* Checks the codecs and arrays of a cache whose sizes have been checked. */
static qn_status check_cache(const qn_cuda_aura_cache *cache)
{
    const size_t rows = cache->n_kv_heads * cache->capacity;
    QN_TRY(check_codec("key_codec", "tables of key_codec", &cache->key_codec));
    QN_TRY(check_codec("value_codec", "tables of value_codec", &cache->value_codec));
    if (qn_api_given(cache->tables)) {
        QN_TRY(qn_api_check_tables(cache->tables, 1, cache->capacity));
        QN_TRY(qn_api_check_page_offset("page_key_codes", cache->page_key_codes));
        QN_TRY(qn_api_check_page_offset("page_value_codes", cache->page_value_codes));
        QN_TRY(qn_api_check_page_offset("page_key_scales", cache->page_key_scales));
        return qn_api_check_page_offset("page_value_scales", cache->page_value_scales);
    }
    QN_TRY(qn_api_check_u32("key_codes", cache->key_codes, rows * qn_aura_words(cache->key_codec.codec)));
    QN_TRY(qn_api_check_array("key_scales", cache->key_scales, QN_DTYPE_F32, rows));
    QN_TRY(qn_api_check_u32("value_codes", cache->value_codes, rows * qn_aura_words(cache->value_codec.codec)));
    return qn_api_check_array("value_scales", cache->value_scales, QN_DTYPE_F32, rows);
}

/* The kernels' form of a checked cache. */
static qn_attention_gpu_cache gpu_rows(const qn_cuda_aura_cache *cache)
{
    const bool paged = qn_api_given(cache->tables);
    const size_t rows = paged ? QN_PAGE : cache->capacity, row = rows * sizeof(uint32_t);
    return (qn_attention_gpu_cache){ .keys = paged ? cache->page_key_codes : qn_api_address(cache->key_codes),
                                     .values = paged ? cache->page_value_codes : qn_api_address(cache->value_codes),
                                     .key_scales = paged ? cache->page_key_scales : qn_api_address(cache->key_scales),
                                     .value_scales =
                                         paged ? cache->page_value_scales : qn_api_address(cache->value_scales),
                                     .key_head_stride = row * qn_aura_words(cache->key_codec.codec),
                                     .value_head_stride = row * qn_aura_words(cache->value_codec.codec),
                                     .scale_head_stride = rows * sizeof(float),
                                     .tables = qn_api_address(cache->tables) };
}

static qn_status store_side(const char *name, const qn_cuda_aura_cache *cache, const qn_cuda_aura_codec *codec,
                            qn_cuda_view rows, size_t n_tokens, qn_aura_store_side *side)
{
    *side = (qn_aura_store_side){ .rows = qn_api_address(rows),
                                  .rotation = gpu_rotation(codec),
                                  .levels = gpu_levels(codec),
                                  .dtype = (uint32_t)rows.dtype };
    QN_TRY(qn_api_check_float_type(name, rows));
    return qn_api_check_rows(name, rows, rows.dtype, n_tokens, cache->n_kv_heads * dim_of(cache), QN_API_ALIGNMENT,
                             &side->stride);
}

qn_status qn_cuda_aura_store(qn_cuda_kernels *kernels, const qn_cuda_aura_cache *cache, qn_cuda_view keys,
                             qn_cuda_view values, qn_cuda_view positions, size_t n_tokens, qn_stream stream)
{
    qn_launch launch;
    QN_TRY(check_cache_sizes(kernels, cache));
    QN_TRY(check_cache(cache));
    qn_aura_store_args args = { .positions = qn_api_address(positions),
                                .cache = gpu_rows(cache),
                                .n_tokens = (uint32_t)n_tokens,
                                .n_kv_heads = (uint32_t)cache->n_kv_heads,
                                .capacity = (uint32_t)cache->capacity };
    QN_TRY(store_side("keys", cache, &cache->key_codec, keys, n_tokens, &args.keys));
    QN_TRY(store_side("values", cache, &cache->value_codec, values, n_tokens, &args.values));
    QN_TRY(qn_api_check_u32("positions", positions, n_tokens));
    if (!n_tokens)
        return QN_OK;
    QN_TRY(qn_aura_gpu_store(dim_of(cache), cache->key_codec.codec->bits, cache->value_codec.codec->bits, n_tokens,
                             cache->n_kv_heads, &launch));
    return qn_api_run(kernels, stream, &launch, 1, &args);
}

/* Begins a call with n_tokens * n_heads queries: checks the sizes, not the views. */
static qn_status begin(aura_call *c, const qn_cuda_kernels *kernels, const qn_cuda_aura_cache *cache, size_t n_tokens,
                       size_t n_heads)
{
    *c = (aura_call){ .cache = cache, .n_tokens = n_tokens };
    QN_TRY(check_cache_sizes(kernels, cache));
    const qn_cuda_info *info = qn_api_info(kernels);
    c->gpu = (qn_aura_gpu){ .head_dim = dim_of(cache),
                            .n_heads = n_heads,
                            .n_kv_heads = cache->n_kv_heads,
                            .key_bits = cache->key_codec.codec->bits,
                            .value_bits = cache->value_codec.codec->bits,
                            .n_sms = info->n_sms,
                            .max_shared_bytes = info->max_shared_bytes };
    QN_TRY(qn_aura_gpu_check(&c->gpu));
    if (cache->n_keys > cache->capacity)
        return qn_fail(QN_ERR_INVALID, "n_keys: %zu, expected at most the capacity %zu", cache->n_keys,
                       cache->capacity);
    if (n_tokens > INT32_MAX / n_heads)
        return qn_fail(QN_ERR_INVALID, "%zu tokens of %zu heads: at most %d queries are allowed", n_tokens, n_heads,
                       INT32_MAX);
    c->n_queries = n_tokens * n_heads;
    return QN_OK;
}

static void begin_cache(aura_call *c)
{
    const qn_cuda_aura_cache *cache = c->cache;
    c->gpu_cache = (qn_aura_gpu_cache){ .rows = gpu_rows(cache),
                                        .key_codec = gpu_codec(&cache->key_codec),
                                        .value_codec = gpu_codec(&cache->value_codec),
                                        .n_kv_heads = (uint32_t)cache->n_kv_heads,
                                        .n_keys = (uint32_t)cache->n_keys };
}

/* ---- Queries ---- */

/* A dense rotation of queries is a separate launch. */
static size_t queries_workspace_bytes(const aura_call *c)
{
    return c->cache->key_codec.codec->signs ? 0 : c->n_queries * c->gpu.head_dim * sizeof(float);
}

qn_status qn_cuda_aura_queries_workspace(const qn_cuda_kernels *kernels, const qn_cuda_aura_cache *cache,
                                         size_t n_tokens, size_t n_heads, size_t *bytes)
{
    aura_call c;
    if (!bytes)
        return qn_fail(QN_ERR_INVALID, "bytes: NULL");
    *bytes = 0;
    QN_TRY(begin(&c, kernels, cache, n_tokens, n_heads));
    *bytes = queries_workspace_bytes(&c);
    return QN_OK;
}

/* Adds a launch to the call, with PDL after the first: before its PDL wait it reads nothing that the first launch
 * writes. */
static void add_call(aura_call *c, const qn_launch *launch, const void *args)
{
    c->calls[c->n_calls] = (qn_api_call){ *launch, args };
    c->calls[c->n_calls].launch.pdl = c->n_calls > 0;
    c->n_calls++;
}

static qn_status begin_queries(aura_call *c, const qn_cuda_kernels *kernels, const qn_cuda_aura_cache *cache,
                               const qn_cuda_aura_queries *q, void *workspace, size_t bytes)
{
    qn_launch launch;
    if (!q)
        return qn_fail(QN_ERR_INVALID, "queries: NULL");
    QN_TRY(begin(c, kernels, cache, q->n_tokens, q->n_heads));
    QN_TRY(check_cache(cache));
    begin_cache(c);
    if (!isfinite(q->scale))
        return qn_fail(QN_ERR_INVALID, "scale: %g, expected a finite value", (double)q->scale);
    c->queries = (qn_aura_gpu_queries){ .queries = qn_api_address(q->queries),
                                        .positions = qn_api_address(q->positions),
                                        .window = q->window,
                                        .n_tokens = (uint32_t)q->n_tokens,
                                        .n_heads = (uint32_t)q->n_heads,
                                        .dtype = (uint32_t)q->queries.dtype,
                                        .causal = q->causal,
                                        .scale = q->scale };
    QN_TRY(qn_api_check_float_type("queries", q->queries));
    QN_TRY(qn_api_check_rows("queries", q->queries, q->queries.dtype, q->n_tokens, q->n_heads * c->gpu.head_dim,
                             QN_API_ALIGNMENT, &c->queries.stride));
    QN_TRY(qn_api_check_workspace(queries_workspace_bytes(c), workspace, bytes));
    if (!queries_workspace_bytes(c))
        return QN_OK;
    c->rotate = (qn_aura_rotate_args){ .rows = c->queries.queries,
                                       .out = (uint64_t)(uintptr_t)workspace,
                                       .rotation = gpu_rotation(&cache->key_codec),
                                       .n_heads = c->queries.n_heads,
                                       .stride = c->queries.stride,
                                       .dtype = c->queries.dtype };
    c->queries.queries = c->rotate.out;
    c->queries.stride = (uint32_t)(q->n_heads * c->gpu.head_dim);
    c->queries.dtype = QN_DTYPE_F32;
    QN_TRY(qn_aura_gpu_rotate(c->gpu.head_dim, c->n_queries, &launch));
    add_call(c, &launch, &c->rotate);
    return QN_OK;
}

static qn_status check_mask(const qn_cuda_aura_queries *q)
{
    return q->causal || q->window ? qn_api_check_u32("positions", q->positions, q->n_tokens) : QN_OK;
}

static qn_status check_sinks(qn_cuda_view sinks, size_t n_heads, uint64_t *address)
{
    *address = qn_api_address(sinks);
    uint32_t unused;
    return qn_api_given(sinks) ? qn_api_check_rows("sinks", sinks, QN_DTYPE_F32, 1, n_heads, sizeof(float), &unused)
                               : QN_OK;
}

static qn_status check_out(qn_cuda_view out, size_t n_tokens, size_t row, uint32_t *stride)
{
    QN_TRY(qn_api_check_float_type("out", out));
    return qn_api_check_rows("out", out, out.dtype, n_tokens, row, QN_API_ALIGNMENT, stride);
}

/* Checks an array of f32 for each query, and its size. */
static qn_status check_of_queries(const char *name, qn_cuda_view view, size_t n_queries, size_t of_query)
{
    size_t n;
    if (__builtin_mul_overflow(n_queries, of_query, &n) || n > PTRDIFF_MAX / sizeof(float))
        return qn_fail(QN_ERR_INVALID, "%s: %zu x %zu elements do not fit in memory", name, n_queries, of_query);
    return qn_api_check_array(name, view, QN_DTYPE_F32, n);
}

qn_status qn_cuda_aura_score(qn_cuda_kernels *kernels, const qn_cuda_aura_cache *cache,
                             const qn_cuda_aura_queries *queries, qn_cuda_view scores, void *workspace, size_t bytes,
                             qn_stream stream)
{
    aura_call c;
    qn_launch launch;
    QN_TRY(begin_queries(&c, kernels, cache, queries, workspace, bytes));
    QN_TRY(check_of_queries("scores", scores, c.n_queries, cache->n_keys));
    if (!c.n_queries || !cache->n_keys)
        return QN_OK;
    /* No mask is applied: positions are not read. */
    c.queries.causal = 0;
    c.queries.window = 0;
    const qn_aura_score_args args = { .cache = c.gpu_cache, .queries = c.queries, .scores = qn_api_address(scores) };
    QN_TRY(qn_aura_gpu_score(&c.gpu, c.n_tokens, qn_aura_gpu_splits(&c.gpu, c.n_tokens, cache->n_keys), &launch));
    add_call(&c, &launch, &args);
    return qn_api_run_calls(kernels, stream, c.calls, c.n_calls);
}

/* ---- Values ---- */

static size_t value_workspace_bytes(const aura_call *c)
{
    if (!c->cache->n_keys)
        return 0;
    return c->n_queries * qn_aura_gpu_splits(&c->gpu, c->n_tokens, c->cache->n_keys) * c->gpu.head_dim * sizeof(float);
}

qn_status qn_cuda_aura_value_workspace(const qn_cuda_kernels *kernels, const qn_cuda_aura_cache *cache, size_t n_tokens,
                                       size_t n_heads, size_t *bytes)
{
    aura_call c;
    if (!bytes)
        return qn_fail(QN_ERR_INVALID, "bytes: NULL");
    *bytes = 0;
    QN_TRY(begin(&c, kernels, cache, n_tokens, n_heads));
    *bytes = value_workspace_bytes(&c);
    return QN_OK;
}

/* Adds the second pass; without blocks it writes zeros. */
static qn_status add_pass2(aura_call *c, const qn_aura_flash_pass2_args *args)
{
    qn_launch launch;
    QN_TRY(qn_aura_gpu_flash_pass2(c->gpu.head_dim, c->n_queries, &launch));
    add_call(c, &launch, args);
    return QN_OK;
}

qn_status qn_cuda_aura_value(qn_cuda_kernels *kernels, const qn_cuda_aura_cache *cache, qn_cuda_view weights,
                             size_t n_tokens, size_t n_heads, float skip, qn_cuda_view out, void *workspace,
                             size_t bytes, qn_stream stream)
{
    aura_call c;
    qn_launch launch;
    QN_TRY(begin(&c, kernels, cache, n_tokens, n_heads));
    QN_TRY(check_cache(cache));
    begin_cache(&c);
    QN_TRY(check_of_queries("weights", weights, c.n_queries, cache->n_keys));
    if (!(skip >= 0))
        return qn_fail(QN_ERR_INVALID, "skip: %g, expected at least 0", (double)skip);
    const uint32_t n_splits = cache->n_keys ? qn_aura_gpu_splits(&c.gpu, n_tokens, cache->n_keys) : 0;
    const qn_aura_value_args args = { .cache = c.gpu_cache,
                                      .weights = qn_api_address(weights),
                                      .partials = (uint64_t)(uintptr_t)workspace,
                                      .n_tokens = (uint32_t)n_tokens,
                                      .n_heads = (uint32_t)n_heads,
                                      .skip = skip };
    qn_aura_flash_pass2_args sum = { .partials = args.partials,
                                     .out = qn_api_address(out),
                                     .rotation = gpu_rotation(&cache->value_codec),
                                     .n_heads = (uint32_t)n_heads,
                                     .n_blocks = n_splits,
                                     .dtype = (uint32_t)out.dtype };
    QN_TRY(check_out(out, n_tokens, n_heads * c.gpu.head_dim, &sum.out_stride));
    QN_TRY(qn_api_check_workspace(value_workspace_bytes(&c), workspace, bytes));
    if (!c.n_queries)
        return QN_OK;
    if (n_splits) {
        QN_TRY(qn_aura_gpu_value(&c.gpu, n_tokens, n_splits, &launch));
        add_call(&c, &launch, &args);
    }
    QN_TRY(add_pass2(&c, &sum));
    return qn_api_run_calls(kernels, stream, c.calls, c.n_calls);
}

/* ---- Attention ---- */

qn_status qn_cuda_aura_flash_block(const qn_cuda_kernels *kernels, const qn_cuda_aura_cache *cache, size_t n_tokens,
                                   size_t n_heads, size_t *block)
{
    aura_call c;
    if (!block)
        return qn_fail(QN_ERR_INVALID, "block: NULL");
    *block = 0;
    QN_TRY(begin(&c, kernels, cache, n_tokens, n_heads));
    *block = qn_aura_gpu_flash_block(&c.gpu, n_tokens, cache->n_keys);
    return QN_OK;
}

/* Checks the views of partials, m and l of n_queries queries in n_blocks blocks. */
static qn_status check_partials(size_t n_queries, size_t n_blocks, size_t dim, qn_cuda_view partials, qn_cuda_view m,
                                qn_cuda_view l)
{
    if (n_blocks > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "n_blocks: %zu, at most %d are allowed", n_blocks, INT32_MAX);
    QN_TRY(check_of_queries("partials", partials, n_queries, n_blocks * dim));
    QN_TRY(check_of_queries("m", m, n_queries, n_blocks));
    return check_of_queries("l", l, n_queries, n_blocks);
}

qn_status qn_cuda_aura_flash_pass1(qn_cuda_kernels *kernels, const qn_cuda_aura_cache *cache,
                                   const qn_cuda_aura_queries *queries, size_t block, qn_cuda_view partials,
                                   qn_cuda_view m, qn_cuda_view l, void *workspace, size_t bytes, qn_stream stream)
{
    aura_call c;
    qn_launch launch;
    QN_TRY(begin_queries(&c, kernels, cache, queries, workspace, bytes));
    QN_TRY(check_mask(queries));
    if (!block)
        return qn_fail(QN_ERR_INVALID, "block: 0, expected at least 1");
    const size_t n_blocks = cache->n_keys / block + (cache->n_keys % block != 0);
    QN_TRY(check_partials(c.n_queries, n_blocks, c.gpu.head_dim, partials, m, l));
    if (!c.n_queries || !cache->n_keys)
        return QN_OK;
    block = block < cache->n_keys ? block : cache->n_keys;
    qn_aura_flash_pass1_args args = { .cache = c.gpu_cache,
                                      .queries = c.queries,
                                      .partials = qn_api_address(partials),
                                      .m = qn_api_address(m),
                                      .l = qn_api_address(l),
                                      .block = (uint32_t)block,
                                      .n_blocks = (uint32_t)n_blocks };
    QN_TRY(qn_aura_gpu_flash_pass1(&c.gpu, c.n_tokens, cache->n_keys, block, &args.warps_per_block, &launch));
    add_call(&c, &launch, &args);
    return qn_api_run_calls(kernels, stream, c.calls, c.n_calls);
}

qn_status qn_cuda_aura_flash_pass2(qn_cuda_kernels *kernels, const qn_cuda_aura_codec *value_codec, size_t n_tokens,
                                   size_t n_heads, size_t n_blocks, qn_cuda_view partials, qn_cuda_view m,
                                   qn_cuda_view l, qn_cuda_view sinks, qn_cuda_view out, qn_stream stream)
{
    if (!kernels)
        return qn_fail(QN_ERR_INVALID, "kernels: NULL");
    QN_TRY(check_codec("value_codec", "tables of value_codec", value_codec));
    if (n_heads == 0 || n_heads > UINT16_MAX || n_tokens > INT32_MAX / n_heads)
        return qn_fail(QN_ERR_INVALID, "%zu tokens of %zu heads: expected 1 to %d heads, and at most %d queries",
                       n_tokens, n_heads, UINT16_MAX, INT32_MAX);
    const size_t dim = value_codec->codec->dim;
    aura_call c = { .gpu.head_dim = dim, .n_tokens = n_tokens, .n_queries = n_tokens * n_heads };
    qn_aura_flash_pass2_args args = { .partials = qn_api_address(partials),
                                      .m = qn_api_address(m),
                                      .l = qn_api_address(l),
                                      .out = qn_api_address(out),
                                      .rotation = gpu_rotation(value_codec),
                                      .n_heads = (uint32_t)n_heads,
                                      .n_blocks = (uint32_t)n_blocks,
                                      .dtype = (uint32_t)out.dtype };
    QN_TRY(check_partials(c.n_queries, n_blocks, dim, partials, m, l));
    QN_TRY(check_sinks(sinks, n_heads, &args.sinks));
    QN_TRY(check_out(out, n_tokens, n_heads * dim, &args.out_stride));
    if (!c.n_queries)
        return QN_OK;
    QN_TRY(add_pass2(&c, &args));
    return qn_api_run_calls(kernels, stream, c.calls, c.n_calls);
}

qn_status qn_cuda_aura_attention(qn_cuda_kernels *kernels, const qn_cuda_aura_cache *cache,
                                 const qn_cuda_aura_queries *queries, qn_cuda_view out, void *workspace, size_t bytes,
                                 qn_stream stream)
{
    aura_call c;
    qn_launch launch;
    QN_TRY(begin_queries(&c, kernels, cache, queries, workspace, bytes));
    QN_TRY(check_mask(queries));
    qn_aura_attention_args args = { .cache = c.gpu_cache,
                                    .queries = c.queries,
                                    .out = qn_api_address(out),
                                    .rotation = gpu_rotation(&cache->value_codec),
                                    .dtype = (uint32_t)out.dtype };
    QN_TRY(check_sinks(queries->sinks, queries->n_heads, &args.sinks));
    QN_TRY(check_out(out, c.n_tokens, queries->n_heads * c.gpu.head_dim, &args.out_stride));
    if (!c.n_queries)
        return QN_OK;
    const qn_aura_flash_pass2_args zeros = {
        .out = args.out, .n_heads = (uint32_t)queries->n_heads, .out_stride = args.out_stride, .dtype = args.dtype
    };
    if (cache->n_keys) {
        QN_TRY(qn_aura_gpu_attention(&c.gpu, c.n_tokens, &launch));
        add_call(&c, &launch, &args);
    } else {
        c.n_calls = 0;
        QN_TRY(add_pass2(&c, &zeros));
    }
    return qn_api_run_calls(kernels, stream, c.calls, c.n_calls);
}

qn_status qn_cuda_aura_prepare(qn_cuda_kernels *kernels, const qn_aura_codec *key_codec,
                               const qn_aura_codec *value_codec)
{
    enum { LAUNCHES = 11 };
    const qn_cuda_aura_cache cache = { .key_codec.codec = key_codec,
                                       .value_codec.codec = value_codec,
                                       .n_kv_heads = 1 };
    aura_call c;
    uint32_t warps;
    qn_launch launches[LAUNCHES], *to = launches;
    QN_TRY(begin(&c, kernels, &cache, 1, 1));
    const size_t dim = c.gpu.head_dim;
    const unsigned key_bits = c.gpu.key_bits, value_bits = c.gpu.value_bits;
    QN_TRY(qn_aura_gpu_encode(dim, key_bits, 1, to++));
    QN_TRY(qn_aura_gpu_encode(dim, value_bits, 1, to++));
    QN_TRY(qn_aura_gpu_decode(dim, key_bits, 1, to++));
    QN_TRY(qn_aura_gpu_decode(dim, value_bits, 1, to++));
    QN_TRY(qn_aura_gpu_store(dim, key_bits, value_bits, 1, 1, to++));
    QN_TRY(qn_aura_gpu_rotate(dim, 1, to++));
    QN_TRY(qn_aura_gpu_score(&c.gpu, 1, 1, to++));
    QN_TRY(qn_aura_gpu_value(&c.gpu, 1, 1, to++));
    QN_TRY(qn_aura_gpu_flash_pass1(&c.gpu, 1, 1, 1, &warps, to++));
    QN_TRY(qn_aura_gpu_flash_pass2(dim, 1, to++));
    QN_TRY(qn_aura_gpu_attention(&c.gpu, 1, to++));
    return qn_api_load(kernels, launches, LAUNCHES);
}
