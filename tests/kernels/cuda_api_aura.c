/* AURA of quern/cuda.h on a GPU against the CPU's functions: rows with and without gaps, in all types; caches of
 * several heads; masks, sinks, empty blocks; dense and Walsh-Hadamard rotations; a step of decoding in a CUDA graph. */
#include "cuda_api.h"
#include "cuda_paged_arrays.h"
#include "cuda_aura_problem.h"
#include "cuda_views.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Keys, values, queries and weights are rounded to fp16: a relative error of up to 2^-11 each, mostly less than half of
 * that. Errors are random and do not add up. */
#define ERROR_BOUND 2e-3
#define WORST_BOUND 8e-3 /* of one query: values may cancel */
/* Second pass, and decoding: float32 sums of up to 512 terms. */
#define FLOAT_BOUND 1e-5
/* Both sides rotate in float32: a value within about 512 * 2^-24 of a boundary may get the code next to the CPU's. With
 * up to 255 boundaries over the width of the distribution, fewer than one value in a thousand is that close to one. */
#define NEIGHBOURS_BOUND 1e-3
/* Of a scale: float32 sums; a code that differs by 1 changes the norm of the decoded row by up to a step of the
 * codebook. */
#define SCALE_BOUND 1e-5
#define NEIGHBOUR_SCALE_BOUND 0.05

static qn_cuda_kernels *kernels;

static void *pointer(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

static qn_cuda_view view(uint64_t address, qn_dtype dtype, size_t count)
{
    return (qn_cuda_view){ pointer(address), dtype, count, 0 };
}

/* A codec with its tables on the device. */
static qn_cuda_aura_codec device_codec(qn_gpu_arrays *arrays, const qn_aura_codec *codec)
{
    const size_t n = qn_cuda_aura_table_size(codec);
    float *tables = qn_xcalloc(n, sizeof *tables);
    qn_assert_ok(qn_cuda_aura_tables(codec, qn_floats_view(tables, n)));
    const uint64_t at = qn_gpu_keep_copy(arrays, tables, n * sizeof *tables);
    free(tables);
    return (qn_cuda_aura_codec){ codec, view(at, QN_DTYPE_F32, n) };
}

/* ---- Codes ---- */

/* Compares codes and scales of rows with those of the CPU; a row that the CPU did not write must be untouched. */
static void expect_codes(const char *name, const uint32_t *codes, const float *scales, const uint32_t *expected,
                         const float *expected_scales, size_t n_rows, const qn_aura_codec *codec)
{
    const size_t words = qn_aura_words(codec), dim = codec->dim;
    size_t neighbours = 0, n_written = 0;
    for (size_t row = 0; row < n_rows; row++) {
        uint8_t found[QN_AURA_MAX_DIM], wanted[QN_AURA_MAX_DIM];
        uint32_t scale_bits;
        size_t apart = 0;
        memcpy(&scale_bits, &expected_scales[row], sizeof scale_bits);
        if (scale_bits == 0xffffffffu) {
            memcpy(&scale_bits, &scales[row], sizeof scale_bits);
            qn_expect(scale_bits == 0xffffffffu && !memcmp(codes + row * words, expected + row * words, words * 4),
                      "%s: row %zu was written, expected no write", name, row);
            continue;
        }
        qn_aura_unpack(found, codes + row * words, dim, codec->bits);
        qn_aura_unpack(wanted, expected + row * words, dim, codec->bits);
        for (size_t d = 0; d < dim; d++) {
            apart += found[d] != wanted[d];
            qn_expect(abs(found[d] - wanted[d]) <= 1, "%s: row %zu: code %zu is %d, expected %d", name, row, d,
                      found[d], wanted[d]);
        }
        const size_t used = dim * codec->bits % 32;
        qn_expect(!used || codes[(row + 1) * words - 1] >> used == 0, "%s: row %zu: bits after the last code are not 0",
                  name, row);
        const double x = (double)scales[row], y = (double)expected_scales[row];
        qn_expect((isnan(x) && isnan(y)) ||
                      fabs(x - y) <= (apart ? NEIGHBOUR_SCALE_BOUND : SCALE_BOUND) * fabs(y) + 1e-12,
                  "%s: scale of row %zu is %g, expected %g", name, row, x, y);
        neighbours += apart;
        n_written++;
    }
    qn_expect((double)neighbours <= NEIGHBOURS_BOUND * (double)(n_written * dim) + 2,
              "%s: %zu of %zu codes differ from the CPU's by 1, expected fewer than %g of them", name, neighbours,
              n_written * dim, NEIGHBOURS_BOUND);
}

/* Normal rows; among the first of them zeros, a tiny row, a large row, and one with a NaN. */
static float *special_rows(size_t n_rows, size_t dim, qn_dtype dtype)
{
    float *x = qn_floats_of(n_rows * dim, 3);
    for (size_t d = 0; d < dim && n_rows > 3; d++) {
        x[d] = 0;
        x[dim + d] *= 1e-12f;
        x[2 * dim + d] *= dtype == QN_DTYPE_F16 ? 1e3f : 1e30f;
    }
    if (n_rows > 3)
        x[3 * dim + 5] = NAN;
    return x;
}

/* The CPU's codes; for a row that it rejects, the codes of zeros and a scale of NaN (not the NaN of poison). */
static void encode_on_cpu(const qn_aura_codec *codec, const float *x, size_t n_rows, uint32_t *codes, float *scales)
{
    const size_t dim = codec->dim, words = qn_aura_words(codec);
    float *zeros = qn_xcalloc(dim, sizeof *zeros);
    for (size_t i = 0; i < n_rows; i++) {
        const qn_view to = { codes + i * words, QN_DTYPE_U32, words }, scale = qn_floats_view(scales + i, 1);
        if (!qn_aura_encode(codec, qn_floats_view((void *)(uintptr_t)(x + i * dim), dim), 1, to, scale))
            continue;
        qn_assert_ok(qn_aura_encode(codec, qn_floats_view(zeros, dim), 1, to, scale));
        scales[i] = NAN;
    }
    free(zeros);
}

static void check_decode(const qn_cuda_aura_codec *codec, const uint32_t *words, const float *scales, size_t n_rows,
                         qn_cuda_view codes, qn_cuda_view gpu_scales, qn_dtype dtype, size_t gap)
{
    const size_t dim = codec->codec->dim, nan_row = n_rows > 3 ? 3 : n_rows;
    float *expected = qn_xcalloc(n_rows * dim, sizeof *expected);
    for (int back = 0; back < 2; back++) {
        qn_gpu_rows out = qn_gpu_rows_poison(dtype, n_rows, dim, gap, 0);
        qn_assert_ok(qn_cuda_aura_decode(kernels, codec, codes, gpu_scales, n_rows, back, qn_gpu_rows_view(&out),
                                         qn_gpu_stream()));
        float *found = qn_gpu_rows_read(&out, "rows");
        qn_assert_ok(qn_aura_decode(
            codec->codec, (qn_view){ (void *)(uintptr_t)words, QN_DTYPE_U32, n_rows * qn_aura_words(codec->codec) },
            qn_floats_view((void *)(uintptr_t)scales, n_rows), n_rows, back, qn_floats_view(expected, n_rows * dim)));
        for (size_t d = 0; d < dim && nan_row < n_rows; d++) {
            qn_expect(isnan(found[nan_row * dim + d]), "rows: element %zu of row %zu is %g, expected NaN", d, nan_row,
                      (double)found[nan_row * dim + d]);
            found[nan_row * dim + d] = expected[nan_row * dim + d] = 0;
        }
        qn_expect_relative(found, expected, n_rows, dim, dtype, FLOAT_BOUND, FLOAT_BOUND,
                           back ? "rows" : "rotated rows");
        free(found);
        qn_gpu_rows_free(&out);
    }
    free(expected);
}

static void check_rows(size_t dim, unsigned bits, bool custom, qn_dtype dtype, size_t n_rows, size_t gap)
{
    const qn_aura_ops_shape s = { .dim = dim, .custom_codec = custom };
    qn_gpu_arrays arrays = { .n = 0 };
    qn_random_seed(dim * 100 + bits * 10 + n_rows);
    qn_case_begin("api", "aura encode", "%zu rows of %zu in %u bits, type %d, gap %zu%s", n_rows, dim, bits, (int)dtype,
                  gap, custom ? ", custom codec" : "");
    qn_aura_codec *codec = qn_aura_ops_codec(&s, bits, 7);
    const qn_cuda_aura_codec on_device = device_codec(&arrays, codec);
    const size_t words = qn_aura_words(codec);
    float *x = special_rows(n_rows, dim, dtype), *scales = qn_xcalloc(n_rows, 4),
          *expected_scales = qn_xcalloc(n_rows, 4);
    uint32_t *codes = qn_xcalloc(n_rows * words, 4), *expected = qn_xcalloc(n_rows * words, 4);
    qn_gpu_rows rows = qn_gpu_rows_of(x, dtype, n_rows, dim, gap, 0);
    const qn_gpu_guarded gpu_codes = qn_gpu_new(n_rows * words * 4), gpu_scales = qn_gpu_new(n_rows * 4);
    qn_gpu_keep(&arrays, gpu_codes);
    qn_gpu_keep(&arrays, gpu_scales);
    const qn_cuda_view to = qn_array_view(&gpu_codes, QN_DTYPE_U32), scale = qn_array_view(&gpu_scales, QN_DTYPE_F32);
    qn_assert_ok(qn_cuda_aura_encode(kernels, &on_device, qn_gpu_rows_view(&rows), n_rows, to, scale, qn_gpu_stream()));
    qn_gpu_read(&gpu_codes, codes);
    qn_gpu_read(&gpu_scales, scales);
    encode_on_cpu(codec, rows.values, n_rows, expected, expected_scales);
    expect_codes("codes", codes, scales, expected, expected_scales, n_rows, codec);
    qn_case_begin("api", "aura decode", "%zu rows of %zu in %u bits, type %d, gap %zu%s", n_rows, dim, bits, (int)dtype,
                  gap, custom ? ", custom codec" : "");
    check_decode(&on_device, codes, scales, n_rows, to, scale, dtype, gap);
    qn_gpu_rows_free(&rows);
    qn_gpu_free_arrays(&arrays);
    qn_aura_codec_delete(codec);
    void *const all[] = { x, scales, expected_scales, codes, expected };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* ---- Store ---- */

struct store_shape {
    size_t dim, n_kv_heads, capacity, n_tokens;
    unsigned key_bits, value_bits;
    qn_dtype key_dtype, value_dtype;
    size_t gap;
    bool custom;
};

/* The arrays of a cache in pages. */
enum { KEY_CODES, VALUE_CODES, KEY_SCALES, VALUE_SCALES };

/* Puts a cache of n_pages pages in place of a contiguous one; all are poison. */
static void use_pages(qn_cuda_aura_cache *cache, qn_paged_arrays *pages, size_t n_pages)
{
    const size_t row_bytes[QN_PAGED_ARRAYS] = { qn_aura_words(cache->key_codec.codec) * 4,
                                                qn_aura_words(cache->value_codec.codec) * 4, 4, 4 };
    qn_paged_new(pages, 1, n_pages, cache->n_kv_heads, row_bytes);
    cache->key_codes = cache->value_codes = cache->key_scales = cache->value_scales = (qn_cuda_view){ 0 };
    cache->tables = qn_paged_tables(pages);
    cache->page_key_codes = pages->offsets[KEY_CODES];
    cache->page_value_codes = pages->offsets[VALUE_CODES];
    cache->page_key_scales = pages->offsets[KEY_SCALES];
    cache->page_value_scales = pages->offsets[VALUE_SCALES];
}

/* Keys or values of a cache, on both sides, without any row. */
struct side {
    qn_aura_codec *codec;
    qn_cuda_aura_codec on_device;
    qn_gpu_guarded gpu_codes, gpu_scales;
    uint32_t *codes, *expected;
    float *scales, *expected_scales;
    qn_gpu_rows rows;
};

static void side_new(struct side *side, qn_gpu_arrays *arrays, const struct store_shape *s, unsigned bits,
                     qn_dtype dtype)
{
    const size_t rows = s->n_kv_heads * s->capacity, row = s->n_kv_heads * s->dim;
    const qn_aura_ops_shape shape = { .dim = s->dim, .custom_codec = s->custom };
    side->codec = qn_aura_ops_codec(&shape, bits, bits);
    side->on_device = device_codec(arrays, side->codec);
    const size_t words = rows * qn_aura_words(side->codec);
    side->gpu_codes = qn_gpu_new(words * 4);
    side->gpu_scales = qn_gpu_new(rows * 4);
    qn_gpu_keep(arrays, side->gpu_codes);
    qn_gpu_keep(arrays, side->gpu_scales);
    side->codes = qn_xcalloc(words, 4);
    side->expected = qn_xcalloc(words, 4);
    side->scales = qn_xcalloc(rows, 4);
    side->expected_scales = qn_xcalloc(rows, 4);
    memset(side->expected, 0xff, words * 4);
    memset(side->expected_scales, 0xff, rows * 4);
    side->rows = qn_gpu_rows_random(dtype, s->n_tokens, row, s->gap, 0, 2);
}

static void side_compare(struct side *side, const char *name, size_t n_rows)
{
    qn_gpu_read(&side->gpu_codes, side->codes);
    qn_gpu_read(&side->gpu_scales, side->scales);
    expect_codes(name, side->codes, side->scales, side->expected, side->expected_scales, n_rows, side->codec);
}

static void side_free(struct side *side)
{
    qn_gpu_rows_free(&side->rows);
    qn_aura_codec_delete(side->codec);
    void *const all[] = { side->codes, side->expected, side->scales, side->expected_scales };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void store_on_cpu(const struct store_shape *s, struct side *keys, struct side *values, const uint32_t *positions)
{
    const size_t rows = s->n_kv_heads * s->capacity, row = s->n_kv_heads * s->dim;
    const qn_aura_cache cache = { .key_codec = keys->codec,
                                  .value_codec = values->codec,
                                  .key_codes = { keys->expected, QN_DTYPE_U32, rows * qn_aura_words(keys->codec) },
                                  .value_codes = { values->expected, QN_DTYPE_U32,
                                                   rows * qn_aura_words(values->codec) },
                                  .key_scales = qn_floats_view(keys->expected_scales, rows),
                                  .value_scales = qn_floats_view(values->expected_scales, rows),
                                  .n_kv_heads = s->n_kv_heads,
                                  .capacity = s->capacity };
    for (size_t t = 0; t < s->n_tokens; t++)
        if (positions[t] < s->capacity)
            qn_assert_ok(qn_aura_store(&cache, qn_floats_view(keys->rows.values + t * row, row),
                                       qn_floats_view(values->rows.values + t * row, row),
                                       (qn_view){ (void *)(uintptr_t)&positions[t], QN_DTYPE_U32, 1 }, 1));
}

/* The same store in pages. */
static void check_store_in_pages(const struct store_shape *s, qn_cuda_aura_cache cache, struct side *keys,
                                 struct side *values, qn_cuda_view positions)
{
    qn_paged_arrays pages;
    struct side *const sides[] = { keys, values };
    use_pages(&cache, &pages, s->capacity / QN_ATTENTION_PAGE);
    qn_assert_ok(qn_cuda_aura_store(kernels, &cache, qn_gpu_rows_view(&keys->rows), qn_gpu_rows_view(&values->rows),
                                    positions, s->n_tokens, qn_gpu_stream()));
    qn_paged_read(&pages);
    for (size_t i = 0; i < 2; i++) {
        qn_paged_gather(&pages, i ? VALUE_CODES : KEY_CODES, sides[i]->codes, s->capacity);
        qn_paged_gather(&pages, i ? VALUE_SCALES : KEY_SCALES, sides[i]->scales, s->capacity);
        expect_codes(i ? "values in pages" : "keys in pages", sides[i]->codes, sides[i]->scales, sides[i]->expected,
                     sides[i]->expected_scales, s->n_kv_heads * s->capacity, sides[i]->codec);
    }
    qn_paged_free(&pages);
}

/* Tokens go to every third position, from the last one down; two of them to positions beyond the capacity. */
static void check_store(const struct store_shape *s)
{
    const size_t rows = s->n_kv_heads * s->capacity;
    qn_gpu_arrays arrays = { .n = 0 };
    struct side keys, values;
    qn_random_seed(s->dim * 10 + s->n_tokens);
    qn_case_begin("api", "aura store",
                  "%zu tokens, %zu heads of %zu in %u and %u bits, capacity %zu, types %d and %d, gap %zu%s",
                  s->n_tokens, s->n_kv_heads, s->dim, s->key_bits, s->value_bits, s->capacity, (int)s->key_dtype,
                  (int)s->value_dtype, s->gap, s->custom ? ", custom codec" : "");
    side_new(&keys, &arrays, s, s->key_bits, s->key_dtype);
    side_new(&values, &arrays, s, s->value_bits, s->value_dtype);
    uint32_t *positions = qn_xcalloc(s->n_tokens, sizeof *positions);
    for (size_t t = 0; t < s->n_tokens; t++)
        positions[t] = (uint32_t)(s->capacity - 1 - 3 * t);
    if (s->n_tokens > 3) {
        positions[1] = (uint32_t)s->capacity;
        positions[3] = UINT32_MAX;
    }
    const qn_cuda_aura_cache cache = { .key_codec = keys.on_device,
                                       .value_codec = values.on_device,
                                       .key_codes = qn_array_view(&keys.gpu_codes, QN_DTYPE_U32),
                                       .value_codes = qn_array_view(&values.gpu_codes, QN_DTYPE_U32),
                                       .key_scales = qn_array_view(&keys.gpu_scales, QN_DTYPE_F32),
                                       .value_scales = qn_array_view(&values.gpu_scales, QN_DTYPE_F32),
                                       .n_kv_heads = s->n_kv_heads,
                                       .capacity = s->capacity };
    const uint64_t at = qn_gpu_keep_copy(&arrays, positions, s->n_tokens * sizeof *positions);
    qn_assert_ok(qn_cuda_aura_store(kernels, &cache, qn_gpu_rows_view(&keys.rows), qn_gpu_rows_view(&values.rows),
                                    view(at, QN_DTYPE_U32, s->n_tokens), s->n_tokens, qn_gpu_stream()));
    store_on_cpu(s, &keys, &values, positions);
    side_compare(&keys, "keys", rows);
    side_compare(&values, "values", rows);
    if (s->capacity % QN_ATTENTION_PAGE == 0)
        check_store_in_pages(s, cache, &keys, &values, view(at, QN_DTYPE_U32, s->n_tokens));
    side_free(&keys);
    side_free(&values);
    free(positions);
    qn_gpu_free_arrays(&arrays);
}

/* ---- Attention ---- */

struct attention_check {
    qn_aura_ops_problem p;
    qn_cuda_aura_cache cache;
    qn_cuda_aura_queries queries;
    qn_gpu_rows rows; /* of the queries */
    qn_gpu_guarded workspace;
    qn_paged_arrays pages; /* if the cache is in pages */
    size_t gap;
};

/* A workspace of exactly the number of bytes that the query function returns. */
static qn_gpu_guarded workspace_of(qn_gpu_arrays *arrays, qn_status status, size_t bytes)
{
    qn_assert_ok(status);
    const qn_gpu_guarded g = qn_gpu_new(bytes);
    qn_gpu_keep(arrays, g);
    return g;
}

static void attention_new(struct attention_check *c, const qn_aura_ops_shape *s, size_t gap)
{
    qn_aura_ops_problem *p = &c->p;
    size_t bytes = 0;
    qn_aura_ops_problem_new(p, s);
    qn_assert_ok(qn_cuda_aura_prepare(kernels, p->key_codec, p->value_codec)); /* compiles several sources at a time */
    c->gap = gap;
    c->pages = (qn_paged_arrays){ 0 };
    const size_t rows = s->n_kv_heads * s->capacity, row = s->n_heads * s->dim;
    const qn_attention_gpu_cache *gpu = &p->gpu_cache.rows;
    c->cache =
        (qn_cuda_aura_cache){ .key_codec = device_codec(&p->arrays, p->key_codec),
                              .value_codec = device_codec(&p->arrays, p->value_codec),
                              .key_codes = view(gpu->keys, QN_DTYPE_U32, rows * qn_aura_words(p->key_codec)),
                              .value_codes = view(gpu->values, QN_DTYPE_U32, rows * qn_aura_words(p->value_codec)),
                              .key_scales = view(gpu->key_scales, QN_DTYPE_F32, rows),
                              .value_scales = view(gpu->value_scales, QN_DTYPE_F32, rows),
                              .n_kv_heads = s->n_kv_heads,
                              .capacity = s->capacity,
                              .n_keys = s->n_keys };
    c->rows = qn_gpu_rows_random(s->dtype, s->n_tokens, row, gap, 0, 1);
    p->cpu_queries.queries = qn_floats_view(c->rows.values, s->n_tokens * row);
    c->queries = (qn_cuda_aura_queries){ .queries = qn_gpu_rows_view(&c->rows),
                                         .n_tokens = s->n_tokens,
                                         .n_heads = s->n_heads,
                                         .scale = p->cpu_queries.scale,
                                         .causal = s->causal,
                                         .window = s->window,
                                         .positions = view(p->gpu_queries.positions, QN_DTYPE_U32, s->n_tokens) };
    if (s->sinks)
        c->queries.sinks = view(p->gpu_sinks, QN_DTYPE_F32, s->n_heads);
    const qn_status status = qn_cuda_aura_queries_workspace(kernels, &c->cache, s->n_tokens, s->n_heads, &bytes);
    c->workspace = workspace_of(&p->arrays, status, bytes);
}

static void attention_free(struct attention_check *c)
{
    qn_gpu_rows_expect_unchanged(&c->rows, "queries");
    qn_gpu_rows_free(&c->rows);
    qn_paged_free(&c->pages);
    qn_aura_ops_problem_free(&c->p);
}

static void begin_case(const struct attention_check *c, const char *variant)
{
    const qn_aura_ops_shape *s = c->p.s;
    qn_case_begin(
        "api", variant,
        "heads %zu of %zu over %zu, %zu tokens, %zu of %zu keys in %u and %u bits, blocks of %zu, types %d and %d, gap "
        "%zu%s%s%s%s, window %zu",
        s->n_heads, s->dim, s->n_kv_heads, s->n_tokens, s->n_keys, s->capacity, s->key_bits, s->value_bits, s->block,
        (int)s->dtype, (int)s->out_dtype, c->gap, s->causal ? ", causal" : "", s->sinks ? ", sinks" : "",
        s->custom_codec ? ", custom codec" : "", c->pages.items ? ", pages" : "", s->window);
}

static qn_gpu_rows new_out(const struct attention_check *c)
{
    const qn_aura_ops_shape *s = c->p.s;
    return qn_gpu_rows_poison(s->out_dtype, s->n_tokens, s->n_heads * s->dim, c->gap, 0);
}

/* Reads and compares an output, and frees it. */
static void compare_out(const struct attention_check *c, const char *name, qn_gpu_rows *out, const float *expected,
                        double bound, double worst)
{
    qn_gpu_rows_expect_relative(out, expected, c->p.s->dim, bound, worst, name);
    qn_gpu_rows_free(out);
}

static void check_score(struct attention_check *c)
{
    const size_t n_keys = c->p.s->n_keys, n = c->p.n_queries * n_keys;
    float *expected = qn_xcalloc(n, 4);
    qn_gpu_rows scores = qn_gpu_rows_poison(QN_DTYPE_F32, c->p.n_queries, n_keys, 0, 0);
    begin_case(c, "aura score");
    qn_assert_ok(qn_cuda_aura_score(kernels, &c->cache, &c->queries, qn_gpu_rows_view(&scores),
                                    pointer(c->workspace.data), c->workspace.bytes, qn_gpu_stream()));
    qn_assert_ok(qn_aura_score(&c->p.cache, &c->p.cpu_queries, qn_floats_view(expected, n)));
    qn_gpu_rows_expect_relative(&scores, expected, n_keys, ERROR_BOUND, WORST_BOUND, "scores");
    qn_gpu_rows_free(&scores);
    free(expected);
}

static void check_value(struct attention_check *c)
{
    const qn_aura_ops_shape *s = c->p.s;
    const size_t n = c->p.n_queries * s->dim, n_weights = c->p.n_queries * s->n_keys;
    float *expected = qn_xcalloc(n, 4);
    const uint64_t weights = qn_gpu_keep_copy(&c->p.arrays, c->p.weights, n_weights * 4);
    size_t bytes = 0;
    const qn_status status = qn_cuda_aura_value_workspace(kernels, &c->cache, s->n_tokens, s->n_heads, &bytes);
    const qn_gpu_guarded workspace = workspace_of(&c->p.arrays, status, bytes);
    qn_gpu_rows out = new_out(c);
    begin_case(c, "aura value");
    qn_assert_ok(qn_cuda_aura_value(kernels, &c->cache, view(weights, QN_DTYPE_F32, n_weights), s->n_tokens, s->n_heads,
                                    s->skip, qn_gpu_rows_view(&out), pointer(workspace.data), bytes, qn_gpu_stream()));
    qn_assert_ok(qn_aura_value(&c->p.cache, qn_floats_view(c->p.weights, n_weights), s->n_tokens, s->n_heads, s->skip,
                               qn_floats_view(expected, n)));
    compare_out(c, "values", &out, expected, ERROR_BOUND, WORST_BOUND);
    free(expected);
}

/* Results of a first pass in host memory: poison at first. */
struct pass1 {
    float *partials, *m, *l;
    size_t n, dim;
};

static struct pass1 pass1_new(const struct attention_check *c)
{
    struct pass1 x = { .n = c->p.n_queries * c->p.n_blocks, .dim = c->p.s->dim };
    x.partials = qn_xcalloc(x.n * x.dim, 4);
    x.m = qn_xcalloc(x.n, 4);
    x.l = qn_xcalloc(x.n, 4);
    memset(x.partials, 0xff, x.n * x.dim * 4);
    memset(x.m, 0xff, x.n * 4);
    return x;
}

static void pass1_free(struct pass1 *x)
{
    free(x->partials);
    free(x->m);
    free(x->l);
}

static qn_status pass2_on_cpu(const struct attention_check *c, const struct pass1 *x, float *out)
{
    return qn_aura_flash_pass2(c->p.value_codec, c->p.n_queries, c->p.s->n_heads, c->p.n_blocks,
                               qn_floats_view(x->partials, x->n * x->dim), qn_floats_view(x->m, x->n),
                               qn_floats_view(x->l, x->n), c->p.cpu_queries.sinks,
                               qn_floats_view(out, c->p.n_queries * x->dim));
}

/* Where no key of a block is visible, l is 0 and the rest is untouched. */
static void expect_empty_blocks(const struct pass1 *found, const struct pass1 *expected)
{
    for (size_t i = 0; i < found->n; i++) {
        bool untouched = true;
        qn_expect((found->l[i] == 0) == (expected->l[i] == 0), "l: element %zu is %g, expected %g", i,
                  (double)found->l[i], (double)expected->l[i]);
        for (size_t d = 0; d < found->dim; d++)
            untouched = untouched && isnan(found->partials[i * found->dim + d]);
        qn_expect(expected->l[i] != 0 || (untouched && isnan(found->m[i])),
                  "partials and m of block %zu of all queries: written, expected no write, for no key is visible", i);
    }
}

/* The GPU's first pass is combined by the CPU, and the CPU's by the GPU. attention: the expected result of both. */
static void check_passes(struct attention_check *c, const float *attention)
{
    const qn_aura_ops_shape *s = c->p.s;
    const size_t n_out = c->p.n_queries * s->dim;
    struct pass1 found = pass1_new(c), expected = pass1_new(c);
    float *combined = qn_xcalloc(n_out, 4);
    const qn_gpu_guarded partials = qn_gpu_new(found.n * s->dim * 4), m = qn_gpu_new(found.n * 4),
                         l = qn_gpu_new(found.n * 4);
    qn_gpu_keep(&c->p.arrays, partials);
    qn_gpu_keep(&c->p.arrays, m);
    qn_gpu_keep(&c->p.arrays, l);
    begin_case(c, "aura pass 1");
    qn_assert_ok(qn_cuda_aura_flash_pass1(kernels, &c->cache, &c->queries, s->block,
                                          qn_array_view(&partials, QN_DTYPE_F32), qn_array_view(&m, QN_DTYPE_F32),
                                          qn_array_view(&l, QN_DTYPE_F32), pointer(c->workspace.data),
                                          c->workspace.bytes, qn_gpu_stream()));
    qn_gpu_read(&partials, found.partials);
    qn_gpu_read(&m, found.m);
    qn_gpu_read(&l, found.l);
    qn_assert_ok(qn_aura_flash_pass1(&c->p.cache, &c->p.cpu_queries, s->block,
                                     qn_floats_view(expected.partials, expected.n * s->dim),
                                     qn_floats_view(expected.m, expected.n), qn_floats_view(expected.l, expected.n)));
    expect_empty_blocks(&found, &expected);
    qn_assert_ok(pass2_on_cpu(c, &found, combined));
    qn_expect_relative(combined, attention, c->p.n_queries, s->dim, QN_DTYPE_F32, ERROR_BOUND, WORST_BOUND,
                       "pass 1, combined by the CPU");

    begin_case(c, "aura pass 2");
    qn_gpu_rows out = new_out(c);
    const uint64_t at = qn_gpu_keep_copy(&c->p.arrays, expected.partials, expected.n * s->dim * 4),
                   at_m = qn_gpu_keep_copy(&c->p.arrays, expected.m, expected.n * 4),
                   at_l = qn_gpu_keep_copy(&c->p.arrays, expected.l, expected.n * 4);
    qn_assert_ok(qn_cuda_aura_flash_pass2(kernels, &c->cache.value_codec, s->n_tokens, s->n_heads, c->p.n_blocks,
                                          view(at, QN_DTYPE_F32, expected.n * s->dim),
                                          view(at_m, QN_DTYPE_F32, expected.n), view(at_l, QN_DTYPE_F32, expected.n),
                                          c->queries.sinks, qn_gpu_rows_view(&out), qn_gpu_stream()));
    qn_assert_ok(pass2_on_cpu(c, &expected, combined));
    compare_out(c, "pass 2 of the CPU's pass 1", &out, combined, FLOAT_BOUND, FLOAT_BOUND);
    pass1_free(&found);
    pass1_free(&expected);
    free(combined);
}

/* Puts the cache in pages; the last entry of the page table is no page. */
static void attention_use_pages(struct attention_check *c)
{
    const qn_aura_ops_shape *s = c->p.s;
    const size_t n_pages = (s->n_keys + QN_ATTENTION_PAGE - 1) / QN_ATTENTION_PAGE;
    use_pages(&c->cache, &c->pages, n_pages);
    c->cache.capacity = (n_pages + 1) * QN_ATTENTION_PAGE;
    qn_paged_scatter(&c->pages, KEY_CODES, c->p.keys, s->capacity);
    qn_paged_scatter(&c->pages, VALUE_CODES, c->p.values, s->capacity);
    qn_paged_scatter(&c->pages, KEY_SCALES, c->p.key_scales, s->capacity);
    qn_paged_scatter(&c->pages, VALUE_SCALES, c->p.value_scales, s->capacity);
    qn_paged_upload(&c->pages);
}

static void check_attention(const qn_aura_ops_shape *s, size_t gap, bool paged)
{
    struct attention_check c;
    qn_random_seed(s->dim * 1000 + s->key_bits * 100 + s->n_keys);
    attention_new(&c, s, gap);
    if (paged)
        attention_use_pages(&c);
    const size_t n = c.p.n_queries * s->dim;
    float *expected = qn_xcalloc(n, 4);
    qn_gpu_rows out = new_out(&c);
    check_score(&c);
    check_value(&c);
    begin_case(&c, "aura attention");
    qn_assert_ok(qn_cuda_aura_attention(kernels, &c.cache, &c.queries, qn_gpu_rows_view(&out),
                                        pointer(c.workspace.data), c.workspace.bytes, qn_gpu_stream()));
    qn_assert_ok(qn_aura_attention(&c.p.cache, &c.p.cpu_queries, qn_floats_view(expected, n)));
    compare_out(&c, "attention", &out, expected, ERROR_BOUND, WORST_BOUND);
    check_passes(&c, expected);
    attention_free(&c);
    free(expected);
}

/* Without keys, results are zeros. */
static void check_no_keys(const qn_aura_ops_shape *s)
{
    struct attention_check c;
    attention_new(&c, s, 8);
    const size_t n = c.p.n_queries * s->dim;
    float *zeros = qn_xcalloc(n, 4);
    c.cache.n_keys = 0;
    for (int value = 0; value < 2; value++) {
        qn_gpu_rows out = new_out(&c);
        begin_case(&c, value ? "aura value of no keys" : "aura attention over no keys");
        qn_assert_ok(value ? qn_cuda_aura_value(kernels, &c.cache, (qn_cuda_view){ 0 }, s->n_tokens, s->n_heads, 0,
                                                qn_gpu_rows_view(&out), NULL, 0, qn_gpu_stream())
                           : qn_cuda_aura_attention(kernels, &c.cache, &c.queries, qn_gpu_rows_view(&out),
                                                    pointer(c.workspace.data), c.workspace.bytes, qn_gpu_stream()));
        compare_out(&c, "out", &out, zeros, 0, 0);
    }
    attention_free(&c);
    free(zeros);
}

/* ---- A step of decoding in a CUDA graph ---- */

enum { STEP_DIM = 128, STEP_HEADS = 6, STEP_KV_HEADS = 2, STEP_CAPACITY = 200, STEP_BLOCK = 64, STEP_BITS = 4 };

/* A step: keys and values are stored, and attended to by two passes and by one. */
struct step {
    qn_gpu_arrays arrays;
    qn_aura_codec *codec;
    qn_cuda_aura_cache cache;
    qn_cuda_aura_queries queries;
    qn_gpu_rows q, k, v, out[2];
    qn_gpu_guarded codes[2], scales[2], position, partials, m, l;
};

static qn_gpu_guarded zeros_of(qn_gpu_arrays *arrays, size_t bytes)
{
    void *zeros = qn_xcalloc(bytes, 1);
    const qn_gpu_guarded g = qn_gpu_from(zeros, bytes);
    qn_gpu_keep(arrays, g);
    free(zeros);
    return g;
}

static void step_new(struct step *s)
{
    const size_t rows = (size_t)STEP_KV_HEADS * STEP_CAPACITY, blocks = (STEP_CAPACITY + STEP_BLOCK - 1) / STEP_BLOCK;
    *s = (struct step){ .arrays = { .n = 0 } };
    qn_assert_ok(qn_aura_codec_create(&s->codec, STEP_DIM, STEP_BITS, 5));
    s->q = qn_gpu_rows_random(QN_DTYPE_BF16, 1, (size_t)STEP_HEADS * STEP_DIM, 0, 0, 1);
    s->k = qn_gpu_rows_random(QN_DTYPE_BF16, 1, (size_t)STEP_KV_HEADS * STEP_DIM, 0, 0, 1);
    s->v = qn_gpu_rows_random(QN_DTYPE_BF16, 1, (size_t)STEP_KV_HEADS * STEP_DIM, 0, 0, 1);
    for (int i = 0; i < 2; i++) {
        s->out[i] = qn_gpu_rows_poison(QN_DTYPE_F32, 1, (size_t)STEP_HEADS * STEP_DIM, 0, 0);
        s->codes[i] = zeros_of(&s->arrays, rows * qn_aura_words(s->codec) * 4);
        s->scales[i] = zeros_of(&s->arrays, rows * 4);
    }
    s->position = zeros_of(&s->arrays, sizeof(uint32_t));
    s->partials = zeros_of(&s->arrays, STEP_HEADS * blocks * STEP_DIM * 4);
    s->m = zeros_of(&s->arrays, STEP_HEADS * blocks * 4);
    s->l = zeros_of(&s->arrays, STEP_HEADS * blocks * 4);
    const qn_cuda_aura_codec codec = device_codec(&s->arrays, s->codec);
    s->cache = (qn_cuda_aura_cache){ .key_codec = codec,
                                     .value_codec = codec,
                                     .key_codes = qn_array_view(&s->codes[0], QN_DTYPE_U32),
                                     .value_codes = qn_array_view(&s->codes[1], QN_DTYPE_U32),
                                     .key_scales = qn_array_view(&s->scales[0], QN_DTYPE_F32),
                                     .value_scales = qn_array_view(&s->scales[1], QN_DTYPE_F32),
                                     .n_kv_heads = STEP_KV_HEADS,
                                     .capacity = STEP_CAPACITY,
                                     .n_keys = STEP_CAPACITY };
    s->queries = (qn_cuda_aura_queries){ .queries = qn_gpu_rows_view(&s->q),
                                         .n_tokens = 1,
                                         .n_heads = STEP_HEADS,
                                         .scale = 1 / sqrtf(STEP_DIM),
                                         .causal = true,
                                         .positions = qn_array_view(&s->position, QN_DTYPE_U32) };
}

static void step_free(struct step *s)
{
    qn_gpu_rows *const rows[] = { &s->q, &s->k, &s->v, &s->out[0], &s->out[1] };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        qn_gpu_rows_free(rows[i]);
    qn_gpu_free_arrays(&s->arrays);
    qn_aura_codec_free(s->codec);
}

static qn_status step_queue(struct step *s)
{
    const qn_cuda_view partials = qn_array_view(&s->partials, QN_DTYPE_F32), m = qn_array_view(&s->m, QN_DTYPE_F32),
                       l = qn_array_view(&s->l, QN_DTYPE_F32);
    const size_t blocks = (STEP_CAPACITY + STEP_BLOCK - 1) / STEP_BLOCK;
    QN_TRY(qn_cuda_aura_store(kernels, &s->cache, qn_gpu_rows_view(&s->k), qn_gpu_rows_view(&s->v),
                              s->queries.positions, 1, qn_gpu_stream()));
    QN_TRY(qn_cuda_aura_flash_pass1(kernels, &s->cache, &s->queries, STEP_BLOCK, partials, m, l, NULL, 0,
                                    qn_gpu_stream()));
    QN_TRY(qn_cuda_aura_flash_pass2(kernels, &s->cache.value_codec, 1, STEP_HEADS, blocks, partials, m, l,
                                    s->queries.sinks, qn_gpu_rows_view(&s->out[0]), qn_gpu_stream()));
    return qn_cuda_aura_attention(kernels, &s->cache, &s->queries, qn_gpu_rows_view(&s->out[1]), NULL, 0,
                                  qn_gpu_stream());
}

/* The CPU's attention over the codes that the GPU stored. */
static void step_expected(struct step *s, uint32_t position, float *expected)
{
    const size_t rows = (size_t)STEP_KV_HEADS * STEP_CAPACITY, words = rows * qn_aura_words(s->codec);
    uint32_t *codes = qn_xcalloc(2 * words, 4);
    float *scales = qn_xcalloc(2 * rows, 4);
    for (size_t i = 0; i < 2; i++) {
        qn_gpu_read(&s->codes[i], codes + i * words);
        qn_gpu_read(&s->scales[i], scales + i * rows);
        for (size_t h = 0; h < STEP_KV_HEADS; h++)
            qn_expect(scales[i * rows + h * STEP_CAPACITY + position] > 0,
                      "%s of head %zu at position %u: scale %g, expected above 0", i ? "value" : "key", h, position,
                      (double)scales[i * rows + h * STEP_CAPACITY + position]);
    }
    const qn_aura_cache cache = { .key_codec = s->codec,
                                  .value_codec = s->codec,
                                  .key_codes = { codes, QN_DTYPE_U32, words },
                                  .value_codes = { codes + words, QN_DTYPE_U32, words },
                                  .key_scales = qn_floats_view(scales, rows),
                                  .value_scales = qn_floats_view(scales + rows, rows),
                                  .n_kv_heads = STEP_KV_HEADS,
                                  .capacity = STEP_CAPACITY,
                                  .n_keys = STEP_CAPACITY };
    const qn_aura_queries queries = { .queries = qn_floats_view(s->q.values, (size_t)STEP_HEADS * STEP_DIM),
                                      .n_tokens = 1,
                                      .n_heads = STEP_HEADS,
                                      .scale = s->queries.scale,
                                      .causal = true,
                                      .positions = { &position, QN_DTYPE_U32, 1 } };
    qn_assert_ok(qn_aura_attention(&cache, &queries, qn_floats_view(expected, (size_t)STEP_HEADS * STEP_DIM)));
    free(codes);
    free(scales);
}

static void check_graph(void)
{
    struct step s;
    qn_cuda_graph *graph = NULL;
    float expected[STEP_HEADS * STEP_DIM];
    qn_random_seed(1);
    step_new(&s);
    qn_assert_ok(qn_cuda_aura_prepare(kernels, s.codec, s.codec));
    qn_assert_ok(qn_cuda_capture_begin(qn_gpu(), qn_gpu_stream()));
    qn_assert_ok(step_queue(&s));
    qn_assert_ok(qn_cuda_capture_end(qn_gpu(), qn_gpu_stream(), &graph));
    for (uint32_t position = 0; position < 70; position++) {
        qn_case_begin("api", "aura graph", "position %u of a captured step, %d heads of %d over %d", position,
                      STEP_HEADS, STEP_DIM, STEP_KV_HEADS);
        qn_gpu_rows *const rows[] = { &s.q, &s.k, &s.v };
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            qn_random_floats(rows[i]->values, rows[i]->n, 1);
            qn_gpu_rows_reset(rows[i]);
        }
        qn_assert_ok(qn_cuda_upload(qn_gpu(), s.position.data, &position, sizeof position, NULL, NULL));
        qn_assert_ok(qn_cuda_graph_launch(qn_gpu(), graph, qn_gpu_stream()));
        step_expected(&s, position, expected);
        for (int i = 0; i < 2; i++)
            qn_gpu_rows_expect_relative(&s.out[i], expected, STEP_DIM, ERROR_BOUND, WORST_BOUND,
                                        i ? "single pass" : "two passes");
    }
    qn_cuda_graph_free(qn_gpu(), graph);
    step_free(&s);
}

void qn_check_api_aura(qn_cuda_kernels *handle)
{
    static const qn_dtype types[] = { QN_DTYPE_F32, QN_DTYPE_F16, QN_DTYPE_BF16 };
    static const struct {
        size_t dim;
        unsigned bits;
        bool custom;
    } codecs[] = { { 64, 3, false }, { 80, 6, false },  { 96, 2, false }, { 128, 4, false },
                   { 128, 4, true }, { 256, 4, false }, { 512, 8, false } };
    static const struct store_shape stores[] = {
        { 128, 2, 100, 20, 4, 4, QN_DTYPE_F16, QN_DTYPE_BF16, 8, false },
        { 80, 3, 37, 9, 3, 6, QN_DTYPE_F32, QN_DTYPE_F16, 80, false },
        { 96, 5, 50, 1, 2, 8, QN_DTYPE_BF16, QN_DTYPE_F32, 0, false },
        { 256, 1, 300, 90, 8, 2, QN_DTYPE_F32, QN_DTYPE_F32, 16, false },
        { 64, 3, 64, 13, 6, 3, QN_DTYPE_BF16, QN_DTYPE_BF16, 0, true },
        { 128, 2, 320, 90, 4, 3, QN_DTYPE_F32, QN_DTYPE_F16, 16, false },
    };
    static const qn_aura_ops_shape shapes[] = {
        { 128, 6, 2, 301, 303, 3, 4, 4, true, true, false, 0, 64, { 300, 20, 150 }, QN_DTYPE_BF16, QN_DTYPE_BF16, 0 },
        { 128,
          8,
          1,
          500,
          512,
          5,
          4,
          3,
          true,
          false,
          false,
          40,
          100,
          { 499, 20, 2000, 250, 0 },
          QN_DTYPE_F16,
          QN_DTYPE_F32,
          1e-3f },
        { 80, 6, 3, 97, 101, 2, 3, 6, true, true, false, 0, 16, { 96, 5 }, QN_DTYPE_F32, QN_DTYPE_F16, 0 },
        { 96, 4, 4, 33, 33, 4, 2, 2, false, false, false, 0, 1000, { 0 }, QN_DTYPE_BF16, QN_DTYPE_F32, 0 },
        { 64, 20, 2, 260, 260, 1, 8, 8, false, true, true, 100, 7, { 259 }, QN_DTYPE_F16, QN_DTYPE_BF16, 2e-3f },
        { 256, 24, 4, 6001, 6016, 1, 4, 4, true, false, false, 0, 1024, { 6000 }, QN_DTYPE_F32, QN_DTYPE_F32, 0 },
        { 128, 4, 4, 1, 3, 1, 4, 4, true, false, true, 0, 64, { 0 }, QN_DTYPE_F32, QN_DTYPE_F16, 0 },
    };
    kernels = handle;
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++) {
        check_rows(codecs[i].dim, codecs[i].bits, codecs[i].custom, types[i % 3], 37, i % 2 * 8);
        check_rows(codecs[i].dim, codecs[i].bits, codecs[i].custom, types[(i + 1) % 3], 1, 0);
    }
    for (size_t i = 0; i < sizeof stores / sizeof *stores; i++)
        check_store(&stores[i]);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int paged = 0; paged < 2; paged++)
            check_attention(&shapes[i], i % 2 * 24, paged);
    check_no_keys(&shapes[0]);
    check_no_keys(&shapes[2]);
    check_graph();
}
