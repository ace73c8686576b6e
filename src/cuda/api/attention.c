/* Attention over an fp16 KV cache and rope of quern/cuda.h: checks of the arguments, then the launches of
 * cuda/kernels/attention/ and cuda/kernels/rope/. */
#include "cuda/api/api.h"

#include "cuda/kernels/attention/attention.h"
#include "cuda/kernels/rope/rope.h"

#include <math.h>

/* ---- Caches ---- */

enum { MAX_TOKENS = 65535, MAX_HEADS = 65535, CAPACITY_STEP = QN_ATTENTION_TILE_KV };

static qn_attention_gpu gpu_of(const qn_cuda_kernels *kernels, size_t head_dim, size_t n_heads, size_t n_kv_heads)
{
    const qn_cuda_info *info = qn_api_info(kernels);
    return (qn_attention_gpu){ .head_dim = head_dim,
                               .n_heads = n_heads,
                               .n_kv_heads = n_kv_heads,
                               .key_bits = 16,
                               .value_bits = 16,
                               .n_sms = info->n_sms,
                               .max_shared_bytes = info->max_shared_bytes };
}

/* Checks a head size. rope supports the head sizes of attention. For the largest, attention needs more shared memory
 * than some devices have. */
static qn_status check_head_dim(size_t head_dim)
{
    qn_launch launch;
    return qn_rope_gpu_qk_norm_store(head_dim, false, 1, 1, 1, &launch);
}

/* Checks the sizes of a cache and of tokens, not the views. */
static qn_status check_sizes(const qn_cuda_kernels *kernels, const qn_cuda_kv_cache *cache,
                             const qn_cuda_kv_tokens *tokens)
{
    if (!kernels || !cache || !tokens)
        return qn_fail(QN_ERR_INVALID, "%s: NULL", !kernels ? "kernels" : cache ? "tokens" : "cache");
    if (cache->n_kv_heads == 0 || cache->n_kv_heads > MAX_HEADS)
        return qn_fail(QN_ERR_INVALID, "n_kv_heads: %zu, expected 1 to %d", cache->n_kv_heads, (int)MAX_HEADS);
    if (cache->n_sequences == 0 || cache->n_sequences > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "n_sequences: %zu, expected 1 to %d", cache->n_sequences, INT32_MAX);
    if (cache->capacity == 0 || cache->capacity % CAPACITY_STEP || cache->capacity > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "capacity: %zu, expected a multiple of %d, at most %d", cache->capacity,
                       (int)CAPACITY_STEP, INT32_MAX / CAPACITY_STEP * CAPACITY_STEP);
    if (tokens->n_tokens > MAX_TOKENS)
        return qn_fail(QN_ERR_INVALID, "n_tokens: %zu, at most %d are allowed", tokens->n_tokens, (int)MAX_TOKENS);
    return check_head_dim(cache->head_dim);
}

/* Fills the kernels' form of a cache in pages. */
static qn_status check_pages(const qn_cuda_kv_cache *cache, qn_attention_gpu_cache *out)
{
    const size_t head = QN_PAGE * cache->head_dim * sizeof(uint16_t);
    QN_TRY(qn_api_check_tables(cache->tables, cache->n_sequences, cache->capacity));
    QN_TRY(qn_api_check_page_offset("page_keys", cache->page_keys));
    QN_TRY(qn_api_check_page_offset("page_values", cache->page_values));
    *out = (qn_attention_gpu_cache){ .keys = cache->page_keys,
                                     .values = cache->page_values,
                                     .key_head_stride = head,
                                     .value_head_stride = head,
                                     .tables = qn_api_address(cache->tables) };
    return QN_OK;
}

static qn_status check_contiguous(const qn_cuda_kv_cache *cache, qn_attention_gpu_cache *out)
{
    const size_t head = cache->capacity * cache->head_dim, sequence = cache->n_kv_heads * head;
    size_t n;
    if (__builtin_mul_overflow(cache->n_sequences, sequence, &n) || n > PTRDIFF_MAX / sizeof(uint16_t))
        return qn_fail(QN_ERR_INVALID, "keys of the cache: %zu x %zu elements do not fit in memory", cache->n_sequences,
                       sequence);
    QN_TRY(qn_api_check_array("keys of the cache", cache->keys, QN_DTYPE_F16, n));
    QN_TRY(qn_api_check_array("values of the cache", cache->values, QN_DTYPE_F16, n));
    *out = (qn_attention_gpu_cache){ .keys = qn_api_address(cache->keys),
                                     .values = qn_api_address(cache->values),
                                     .key_head_stride = head * sizeof(uint16_t),
                                     .value_head_stride = head * sizeof(uint16_t),
                                     .key_session_stride = sequence * sizeof(uint16_t),
                                     .value_session_stride = sequence * sizeof(uint16_t) };
    return QN_OK;
}

/* Fills the kernels' form of a cache and of tokens whose sizes have been checked. */
static qn_status check_cache(const qn_cuda_kv_cache *cache, const qn_cuda_kv_tokens *tokens,
                             qn_attention_gpu_cache *out)
{
    QN_TRY(qn_api_given(cache->tables) ? check_pages(cache, out) : check_contiguous(cache, out));
    QN_TRY(qn_api_check_u32("positions", tokens->positions, tokens->n_tokens));
    return qn_api_given(tokens->sequences) ? qn_api_check_u32("sequences", tokens->sequences, tokens->n_tokens) : QN_OK;
}

static qn_status check_heads(const char *name, qn_cuda_view view, qn_dtype dtype, size_t n_tokens, size_t n_heads,
                             size_t head_dim, uint32_t *stride)
{
    return qn_api_check_rows(name, view, dtype, n_tokens, n_heads * head_dim, QN_API_ALIGNMENT, stride);
}

/* ---- Attention ---- */

/* From this number of tokens on, blocks are distributed over tokens only; below it, over KV splits too, GROUP_TOKENS
 * tokens at a time: the workspace holds the partials of one group. */
enum { PREFILL_TOKENS = 64, GROUP_TOKENS = 256 };

typedef struct attention_call {
    qn_attention_gpu gpu;
    size_t n_tokens, n_group_queries; /* n_group_queries: of up to GROUP_TOKENS tokens */
    bool prefill;
    qn_attention_splits splits; /* without prefill */
} attention_call;

static qn_status begin(attention_call *c, const qn_cuda_kernels *kernels, const qn_cuda_kv_cache *cache,
                       const qn_cuda_kv_tokens *tokens, size_t n_heads)
{
    QN_TRY(check_sizes(kernels, cache, tokens));
    *c = (attention_call){ .gpu = gpu_of(kernels, cache->head_dim, n_heads, cache->n_kv_heads),
                           .n_tokens = tokens->n_tokens };
    QN_TRY(qn_attention_gpu_check(&c->gpu));
    c->n_group_queries = (c->n_tokens < GROUP_TOKENS ? c->n_tokens : GROUP_TOKENS) * n_heads;
    c->prefill = tokens->consecutive && c->n_tokens >= PREFILL_TOKENS && qn_attention_gpu_has_prefill(&c->gpu);
    if (!c->prefill)
        c->splits = qn_attention_gpu_splits(&c->gpu, cache->capacity);
    return QN_OK;
}

/* Returns the bytes of the counters, one for each query, at the start of the workspace. After them come the partial
 * results, then the maximum and the sum of each. */
static size_t counters_bytes(const attention_call *c)
{
    return c->splits.n > 1 ? (c->n_group_queries * sizeof(uint32_t) + 15) / 16 * 16 : 0;
}

static size_t partials_bytes(const attention_call *c)
{
    return c->splits.n > 1 ? c->n_group_queries * c->splits.n * c->gpu.head_dim * sizeof(float) : 0;
}

static size_t workspace_bytes(const attention_call *c)
{
    const size_t maxima = c->splits.n > 1 ? c->n_group_queries * c->splits.n * 2 * sizeof(float) : 0;
    return counters_bytes(c) + partials_bytes(c) + maxima;
}

qn_status qn_cuda_attention_workspace(const qn_cuda_kernels *kernels, const qn_cuda_kv_cache *cache,
                                      const qn_cuda_kv_tokens *tokens, size_t n_heads, size_t *bytes)
{
    attention_call c;
    if (!bytes)
        return qn_fail(QN_ERR_INVALID, "bytes: NULL");
    *bytes = 0;
    QN_TRY(begin(&c, kernels, cache, tokens, n_heads));
    *bytes = workspace_bytes(&c);
    return QN_OK;
}

static qn_status run_prefill(qn_cuda_kernels *kernels, const attention_call *c, const qn_attention_decode_args *like,
                             qn_stream stream)
{
    const qn_attention_prefill_args args = { .queries = like->queries,
                                             .out = like->out,
                                             .positions = like->mask.positions,
                                             .sessions = like->mask.sessions,
                                             .cache = like->cache,
                                             .n_rows = (uint32_t)c->n_tokens,
                                             .n_pieces = 1,
                                             .n_heads = like->n_heads,
                                             .n_kv_heads = like->n_kv_heads,
                                             .query_stride = like->query_stride,
                                             .out_stride = like->out_stride,
                                             .dtype = like->dtype,
                                             .scale = like->scale };
    qn_launch launch;
    QN_TRY(qn_attention_gpu_prefill(&c->gpu, c->n_tokens, 1, &launch));
    return qn_api_run(kernels, stream, &launch, 1, &args);
}

/* Launches attention for the tokens of a group, from `first` on. */
static qn_status run_group(qn_cuda_kernels *kernels, const attention_call *c, size_t first,
                           qn_attention_decode_args args, qn_stream stream)
{
    const size_t n = c->n_tokens - first < GROUP_TOKENS ? c->n_tokens - first : GROUP_TOKENS,
                 type_bytes = args.dtype == QN_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
    qn_launch launch;
    args.n_rows = (uint32_t)n;
    args.queries += first * args.query_stride * type_bytes;
    args.out += first * args.out_stride * type_bytes;
    args.mask.positions += first * sizeof(uint32_t);
    args.mask.sessions += args.mask.sessions ? first * sizeof(uint32_t) : 0;
    QN_TRY(qn_attention_gpu_decode(&c->gpu, n, &c->splits, &launch));
    if (first == 0 && counters_bytes(c)) { /* the launches leave them cleared */
        QN_TRY(qn_api_make_ready(kernels, stream, &launch, 1));
        QN_TRY(qn_api_clear(kernels, stream, args.counters, counters_bytes(c)));
    }
    return qn_api_run(kernels, stream, &launch, 1, &args);
}

static qn_status run_decode(qn_cuda_kernels *kernels, const attention_call *c, const qn_attention_decode_args *args,
                            qn_stream stream)
{
    for (size_t i = 0; i < c->n_tokens; i += GROUP_TOKENS)
        QN_TRY(run_group(kernels, c, i, *args, stream));
    return QN_OK;
}

qn_status qn_cuda_attention(qn_cuda_kernels *kernels, const qn_cuda_kv_cache *cache, const qn_cuda_kv_tokens *tokens,
                            qn_cuda_view queries, size_t n_heads, float scale, qn_cuda_view out, void *workspace,
                            size_t bytes, qn_stream stream)
{
    attention_call c;
    QN_TRY(begin(&c, kernels, cache, tokens, n_heads));
    qn_attention_decode_args decode = { .queries = qn_api_address(queries),
                                        .out = qn_api_address(out),
                                        .counters = (uint64_t)(uintptr_t)workspace,
                                        .mask = { .positions = qn_api_address(tokens->positions),
                                                  .sessions = qn_api_address(tokens->sequences),
                                                  .n_keys = (uint32_t)cache->capacity,
                                                  .causal = 1 },
                                        .splits = c.splits,
                                        .n_heads = (uint32_t)n_heads,
                                        .n_kv_heads = (uint32_t)cache->n_kv_heads,
                                        .dtype = (uint32_t)queries.dtype,
                                        .scale = scale };
    QN_TRY(check_cache(cache, tokens, &decode.cache));
    QN_TRY(qn_api_check_float_type("queries", queries));
    QN_TRY(check_heads("queries", queries, queries.dtype, c.n_tokens, n_heads, cache->head_dim, &decode.query_stride));
    if (!isfinite(scale))
        return qn_fail(QN_ERR_INVALID, "scale: %g, expected a finite value", (double)scale);
    decode.partials = decode.counters + counters_bytes(&c);
    decode.maxima = decode.partials + partials_bytes(&c);
    QN_TRY(check_heads("out", out, queries.dtype, c.n_tokens, n_heads, cache->head_dim, &decode.out_stride));
    QN_TRY(qn_api_check_workspace(workspace_bytes(&c), workspace, bytes));
    if (!c.n_tokens)
        return QN_OK;
    return c.prefill ? run_prefill(kernels, &c, &decode, stream) : run_decode(kernels, &c, &decode, stream);
}

/* ---- Stores ---- */

/* Fills the arguments of the kernel that stores, with the cache and the tokens' places. */
static qn_status begin_store(const qn_cuda_kernels *kernels, const qn_cuda_kv_cache *cache,
                             const qn_cuda_kv_tokens *tokens, qn_cuda_view keys, qn_cuda_view values,
                             qn_rope_qk_norm_store_args *args)
{
    QN_TRY(check_sizes(kernels, cache, tokens));
    *args = (qn_rope_qk_norm_store_args){ .keys = qn_api_address(keys),
                                          .values = qn_api_address(values),
                                          .positions = qn_api_address(tokens->positions),
                                          .sessions = qn_api_address(tokens->sequences),
                                          .n_rows = (uint32_t)tokens->n_tokens,
                                          .n_kv_heads = (uint32_t)cache->n_kv_heads,
                                          .dtype = (uint32_t)keys.dtype,
                                          .capacity = (uint32_t)cache->capacity };
    QN_TRY(check_cache(cache, tokens, &args->cache));
    QN_TRY(qn_api_check_float_type("keys", keys));
    QN_TRY(check_heads("keys", keys, keys.dtype, tokens->n_tokens, cache->n_kv_heads, cache->head_dim,
                       &args->key_row_stride));
    return check_heads("values", values, keys.dtype, tokens->n_tokens, cache->n_kv_heads, cache->head_dim,
                       &args->value_row_stride);
}

static qn_status run_store(qn_cuda_kernels *kernels, size_t head_dim, const qn_rope_qk_norm_store_args *args,
                           qn_stream stream)
{
    qn_launch launch;
    if (!args->n_rows)
        return QN_OK;
    QN_TRY(qn_rope_gpu_qk_norm_store(head_dim, false, args->n_rows, args->n_heads, args->n_kv_heads, &launch));
    return qn_api_run(kernels, stream, &launch, 1, args);
}

qn_status qn_cuda_kv_store(qn_cuda_kernels *kernels, const qn_cuda_kv_cache *cache, const qn_cuda_kv_tokens *tokens,
                           qn_cuda_view keys, qn_cuda_view values, qn_stream stream)
{
    qn_rope_qk_norm_store_args args;
    QN_TRY(begin_store(kernels, cache, tokens, keys, values, &args));
    return run_store(kernels, cache->head_dim, &args, stream);
}

/* ---- Rope ---- */

qn_status qn_cuda_rope_angles(qn_cuda_kernels *kernels, qn_cuda_view positions, qn_cuda_view frequencies,
                              size_t n_tokens, size_t n_rot, double attn_factor, qn_cuda_view cosines,
                              qn_cuda_view sines, qn_stream stream)
{
    const qn_rope_angles_args args = { .positions = qn_api_address(positions),
                                       .frequencies = qn_api_address(frequencies),
                                       .cosines = qn_api_address(cosines),
                                       .sines = qn_api_address(sines),
                                       .attn_factor = attn_factor,
                                       .n_rot = (uint32_t)n_rot };
    qn_launch launch;
    if (!kernels)
        return qn_fail(QN_ERR_INVALID, "kernels: NULL");
    QN_TRY(qn_rope_gpu_angles(n_rot, n_tokens ? n_tokens : 1, &launch));
    if (!isfinite(attn_factor))
        return qn_fail(QN_ERR_INVALID, "attn_factor: %g, expected a finite value", attn_factor);
    QN_TRY(qn_api_check_u32("positions", positions, n_tokens));
    QN_TRY(qn_api_check_array("frequencies", frequencies, QN_DTYPE_F64, n_rot / 2));
    QN_TRY(qn_api_check_array("cosines", cosines, QN_DTYPE_F32, n_tokens * (n_rot / 2)));
    QN_TRY(qn_api_check_array("sines", sines, QN_DTYPE_F32, n_tokens * (n_rot / 2)));
    return n_tokens ? qn_api_run(kernels, stream, &launch, 1, &args) : QN_OK;
}

/* Adds queries with rope to the arguments. */
static qn_status add_queries(const qn_cuda_rope_shape *shape, size_t n_tokens, qn_dtype dtype, qn_cuda_view queries,
                             const char *queries_name, qn_cuda_view out, qn_rope_qk_norm_store_args *args)
{
    const size_t half = shape->n_rot / 2;
    if (shape->n_heads == 0 || shape->n_heads > MAX_HEADS)
        return qn_fail(QN_ERR_INVALID, "n_heads: %zu, expected 1 to %d", shape->n_heads, (int)MAX_HEADS);
    if (shape->n_rot == 0 || shape->n_rot % 2 || shape->n_rot > shape->head_dim)
        return qn_fail(QN_ERR_INVALID, "n_rot: %zu, expected an even number, 2 to head_dim %zu", shape->n_rot,
                       shape->head_dim);
    if (shape->pairing != QN_ROPE_INTERLEAVED && shape->pairing != QN_ROPE_NEOX)
        return qn_fail(QN_ERR_INVALID, "pairing: %d, expected %d or %d", (int)shape->pairing, (int)QN_ROPE_INTERLEAVED,
                       (int)QN_ROPE_NEOX);
    QN_TRY(qn_api_check_array("cosines", shape->cosines, QN_DTYPE_F32, n_tokens * half));
    QN_TRY(qn_api_check_array("sines", shape->sines, QN_DTYPE_F32, n_tokens * half));
    QN_TRY(
        check_heads(queries_name, queries, dtype, n_tokens, shape->n_heads, shape->head_dim, &args->query_row_stride));
    QN_TRY(check_heads("out", out, dtype, n_tokens, shape->n_heads, shape->head_dim, &args->out_row_stride));
    args->queries = qn_api_address(queries);
    args->out = qn_api_address(out);
    args->cosines = qn_api_address(shape->cosines);
    args->sines = qn_api_address(shape->sines);
    args->n_heads = (uint32_t)shape->n_heads;
    args->n_rot = (uint32_t)shape->n_rot;
    args->query_stride = (uint32_t)shape->head_dim;
    args->interleaved = shape->pairing == QN_ROPE_INTERLEAVED;
    return QN_OK;
}

qn_status qn_cuda_rope(qn_cuda_kernels *kernels, const qn_cuda_rope_shape *shape, qn_cuda_view x, size_t n_tokens,
                       qn_stream stream)
{
    qn_rope_qk_norm_store_args args = { .n_rows = (uint32_t)n_tokens, .dtype = (uint32_t)x.dtype };
    if (!kernels || !shape)
        return qn_fail(QN_ERR_INVALID, "%s: NULL", kernels ? "shape" : "kernels");
    QN_TRY(check_head_dim(shape->head_dim));
    if (n_tokens > MAX_TOKENS)
        return qn_fail(QN_ERR_INVALID, "n_tokens: %zu, at most %d are allowed", n_tokens, (int)MAX_TOKENS);
    QN_TRY(qn_api_check_float_type("x", x));
    QN_TRY(add_queries(shape, n_tokens, x.dtype, x, "x", x, &args));
    return run_store(kernels, shape->head_dim, &args, stream);
}

static qn_status check_vector(const char *name, qn_cuda_view view, size_t n, uint64_t *address)
{
    *address = qn_api_address(view);
    return qn_api_given(view) ? qn_api_check_array(name, view, QN_DTYPE_F32, n) : QN_OK;
}

static qn_status add_norm(const qn_cuda_qk_norm *norm, size_t head_dim, qn_rope_qk_norm_store_args *args)
{
    const size_t queries = args->n_heads * head_dim, keys = args->n_kv_heads * head_dim;
    QN_TRY(check_vector("query_bias", norm->query_bias, queries, &args->query_bias));
    QN_TRY(check_vector("key_bias", norm->key_bias, keys, &args->key_bias));
    QN_TRY(check_vector("value_bias", norm->value_bias, keys, &args->value_bias));
    QN_TRY(check_vector("query_weight", norm->query_weight, head_dim, &args->query_weight));
    QN_TRY(check_vector("key_weight", norm->key_weight, head_dim, &args->key_weight));
    if ((args->query_weight || args->key_weight) && !(norm->eps > 0 && isfinite(norm->eps)))
        return qn_fail(QN_ERR_INVALID, "eps: %g, expected a finite value above 0", (double)norm->eps);
    args->eps = norm->eps;
    return QN_OK;
}

qn_status qn_cuda_qk_norm_rope_store(qn_cuda_kernels *kernels, const qn_cuda_kv_cache *cache,
                                     const qn_cuda_kv_tokens *tokens, const qn_cuda_rope_shape *shape,
                                     const qn_cuda_qk_norm *norm, qn_cuda_view queries, qn_cuda_view keys,
                                     qn_cuda_view values, qn_cuda_view out, qn_stream stream)
{
    qn_rope_qk_norm_store_args args;
    QN_TRY(begin_store(kernels, cache, tokens, keys, values, &args));
    if (!shape)
        return qn_fail(QN_ERR_INVALID, "shape: NULL");
    if (shape->head_dim != cache->head_dim)
        return qn_fail(QN_ERR_INVALID, "head_dim: %zu, expected that of the cache, %zu", shape->head_dim,
                       cache->head_dim);
    QN_TRY(add_queries(shape, tokens->n_tokens, keys.dtype, queries, "queries", out, &args));
    QN_TRY(qn_api_check_in_place("out", out, args.out_row_stride, "queries", queries, args.query_row_stride));
    if (norm)
        QN_TRY(add_norm(norm, shape->head_dim, &args));
    return run_store(kernels, shape->head_dim, &args, stream);
}

qn_status qn_cuda_kv_prepare(qn_cuda_kernels *kernels, size_t head_dim)
{
    enum { MAX_LAUNCHES = 7 };
    qn_launch launches[MAX_LAUNCHES];
    size_t n = 0;
    if (!kernels)
        return qn_fail(QN_ERR_INVALID, "kernels: NULL");
    const qn_attention_gpu gpu = gpu_of(kernels, head_dim, 1, 1);
    QN_TRY(qn_attention_gpu_check(&gpu));
    QN_TRY(qn_rope_gpu_angles(2, 1, &launches[n++]));
    QN_TRY(qn_rope_gpu_qk_norm_store(head_dim, false, 1, 1, 1, &launches[n++]));
    const qn_attention_splits splits = qn_attention_gpu_splits(&gpu, 1);
    const size_t rows[] = { gpu.n_sms, 2 * (size_t)gpu.n_sms, 4 * (size_t)gpu.n_sms, 8 * (size_t)gpu.n_sms }; /* 8, 4,
                                                                                                                 2, 1
                                                                                                                 warps
                                                                                                               */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        QN_TRY(qn_attention_gpu_decode(&gpu, rows[i], &splits, &launches[n++]));
    if (qn_attention_gpu_has_prefill(&gpu))
        QN_TRY(qn_attention_gpu_prefill(&gpu, 1, 1, &launches[n++]));
    return qn_api_load(kernels, launches, n);
}
