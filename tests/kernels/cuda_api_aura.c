/* AURA of quern/cuda.h on a GPU against the CPU's functions: rows with and without gaps, in all types; caches of
 * several heads; masks, sinks, empty blocks; dense and Walsh-Hadamard rotations; a step of decoding in a CUDA graph. */
#include "cuda_api.h"
#include "cuda_paged_arrays.h"
#include "cuda_aura_problem.h"
#include "cuda_views.h"

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

/* An array of codes or of floats, also one that is 0. */
static qn_cuda_view codes_view(uint64_t array)
{
    return qn_array_view(array, QN_DTYPE_U32);
}

static qn_cuda_view f32_view(uint64_t array)
{
    return qn_array_view(array, QN_DTYPE_F32);
}

static qn_view host_codes(const uint32_t *codes)
{
    return (qn_view){ (void *)(uintptr_t)codes, QN_DTYPE_U32, qn_bytes_of(codes) / sizeof *codes };
}

static qn_view host_floats(const float *x)
{
    return qn_floats_view((void *)(uintptr_t)x, qn_bytes_of(x) / sizeof *x);
}

/* Memory of poison. */
static void *poisoned(size_t bytes)
{
    return memset(qn_new(bytes, 1), 0xff, bytes);
}

/* A codec with its tables on the device. */
static qn_cuda_aura_codec device_codec(const qn_aura_codec *codec)
{
    float *tables = qn_floats(qn_cuda_aura_table_size(codec));
    qn_assert_ok(qn_cuda_aura_tables(codec, host_floats(tables)));
    return (qn_cuda_aura_codec){ codec, f32_view(qn_gpu_copy(tables)) };
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
    float *zeros = qn_floats(dim);
    for (size_t i = 0; i < n_rows; i++) {
        const qn_view to = { codes + i * words, QN_DTYPE_U32, words }, scale = qn_floats_view(scales + i, 1);
        if (!qn_aura_encode(codec, qn_floats_view((void *)(uintptr_t)(x + i * dim), dim), 1, to, scale))
            continue;
        qn_assert_ok(qn_aura_encode(codec, host_floats(zeros), 1, to, scale));
        scales[i] = NAN;
    }
}

static void check_decode(const qn_cuda_aura_codec *codec, uint64_t codes, uint64_t scales, size_t n_rows,
                         qn_dtype dtype, size_t gap)
{
    const size_t dim = codec->codec->dim, nan_row = n_rows > 3 ? 3 : n_rows;
    float *expected = qn_floats(n_rows * dim);
    for (int back = 0; back < 2; back++) {
        const qn_gpu_rows out = qn_gpu_rows_poison(dtype, n_rows, dim, gap, 0);
        qn_assert_ok(qn_cuda_aura_decode(kernels, codec, codes_view(codes), f32_view(scales), n_rows, back,
                                         qn_gpu_rows_view(&out), qn_gpu_stream()));
        float *found = qn_gpu_rows_read(&out, "rows");
        qn_assert_ok(qn_aura_decode(codec->codec, host_codes(qn_gpu_read(codes)), host_floats(qn_gpu_read(scales)),
                                    n_rows, back, host_floats(expected)));
        for (size_t d = 0; d < dim && nan_row < n_rows; d++) {
            qn_expect(isnan(found[nan_row * dim + d]), "rows: element %zu of row %zu is %g, expected NaN", d, nan_row,
                      (double)found[nan_row * dim + d]);
            found[nan_row * dim + d] = expected[nan_row * dim + d] = 0;
        }
        qn_expect_relative(found, expected, n_rows, dim, dtype, FLOAT_BOUND, FLOAT_BOUND,
                           back ? "rows" : "rotated rows");
    }
}

static void check_rows(size_t dim, unsigned bits, bool custom, qn_dtype dtype, size_t n_rows, size_t gap)
{
    static const char *const variants[] = { "aura encode", "aura decode" };
    const qn_aura_ops_shape s = { .dim = dim, .custom_codec = custom };
    qn_random_seed(dim * 100 + bits * 10 + n_rows);
    const qn_cuda_aura_codec codec = device_codec(qn_aura_ops_codec(&s, bits, 7));
    const size_t words = qn_aura_words(codec.codec);
    const qn_gpu_rows rows = qn_gpu_rows_of(special_rows(n_rows, dim, dtype), dtype, n_rows, dim, gap, 0);
    const uint64_t codes = qn_gpu_new(n_rows * words * 4), scales = qn_gpu_floats(n_rows);
    for (size_t i = 0; i < 2; i++) {
        qn_case_begin("api", variants[i], "%zu rows of %zu in %u bits, type %d, gap %zu%s", n_rows, dim, bits,
                      (int)dtype, gap, custom ? ", custom codec" : "");
        if (i) {
            check_decode(&codec, codes, scales, n_rows, dtype, gap);
            continue;
        }
        uint32_t *expected = qn_new(n_rows * words, 4);
        float *expected_scales = qn_floats(n_rows);
        qn_assert_ok(qn_cuda_aura_encode(kernels, &codec, qn_gpu_rows_view(&rows), n_rows, codes_view(codes),
                                         f32_view(scales), qn_gpu_stream()));
        encode_on_cpu(codec.codec, rows.values, n_rows, expected, expected_scales);
        expect_codes("codes", qn_gpu_read(codes), qn_gpu_read(scales), expected, expected_scales, n_rows, codec.codec);
    }
    qn_release();
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
    qn_cuda_aura_codec codec;
    uint64_t codes, scales;
    uint32_t *expected;
    float *expected_scales;
    qn_gpu_rows rows;
};

static struct side side_new(const struct store_shape *s, unsigned bits, qn_dtype dtype)
{
    const size_t rows = s->n_kv_heads * s->capacity;
    const qn_aura_ops_shape shape = { .dim = s->dim, .custom_codec = s->custom };
    struct side side = { .codec = device_codec(qn_aura_ops_codec(&shape, bits, bits)) };
    const size_t code_bytes = rows * qn_aura_words(side.codec.codec) * 4;
    side.codes = qn_gpu_new(code_bytes);
    side.scales = qn_gpu_floats(rows);
    side.expected = poisoned(code_bytes);
    side.expected_scales = poisoned(rows * 4);
    side.rows = qn_gpu_rows_random(dtype, s->n_tokens, s->n_kv_heads * s->dim, s->gap, 0, 2);
    return side;
}

static void side_compare(const struct side *side, const char *name, const uint32_t *codes, const float *scales)
{
    expect_codes(name, codes, scales, side->expected, side->expected_scales,
                 qn_bytes_of(side->expected_scales) / sizeof(float), side->codec.codec);
}

static void store_on_cpu(const struct store_shape *s, const struct side *keys, const struct side *values,
                         const uint32_t *positions)
{
    const size_t row = s->n_kv_heads * s->dim;
    const qn_aura_cache cache = { .key_codec = keys->codec.codec,
                                  .value_codec = values->codec.codec,
                                  .key_codes = host_codes(keys->expected),
                                  .value_codes = host_codes(values->expected),
                                  .key_scales = host_floats(keys->expected_scales),
                                  .value_scales = host_floats(values->expected_scales),
                                  .n_kv_heads = s->n_kv_heads,
                                  .capacity = s->capacity };
    for (size_t t = 0; t < s->n_tokens; t++)
        if (positions[t] < s->capacity)
            qn_assert_ok(qn_aura_store(&cache, qn_floats_view(keys->rows.values + t * row, row),
                                       qn_floats_view(values->rows.values + t * row, row),
                                       (qn_view){ (void *)(uintptr_t)&positions[t], QN_DTYPE_U32, 1 }, 1));
}

static void store(const qn_cuda_aura_cache *cache, const struct side *keys, const struct side *values,
                  qn_cuda_view positions)
{
    qn_assert_ok(qn_cuda_aura_store(kernels, cache, qn_gpu_rows_view(&keys->rows), qn_gpu_rows_view(&values->rows),
                                    positions, positions.count, qn_gpu_stream()));
}

/* Tokens go to every third position, from the last one down; two of them to positions beyond the capacity. Then the
 * same store in pages, if the capacity is one of pages. */
static void check_store(const struct store_shape *s)
{
    qn_random_seed(s->dim * 10 + s->n_tokens);
    qn_case_begin("api", "aura store",
                  "%zu tokens, %zu heads of %zu in %u and %u bits, capacity %zu, types %d and %d, gap %zu%s",
                  s->n_tokens, s->n_kv_heads, s->dim, s->key_bits, s->value_bits, s->capacity, (int)s->key_dtype,
                  (int)s->value_dtype, s->gap, s->custom ? ", custom codec" : "");
    const struct side keys = side_new(s, s->key_bits, s->key_dtype),
                      values = side_new(s, s->value_bits, s->value_dtype);
    uint32_t *positions = qn_new(s->n_tokens, sizeof *positions);
    for (size_t t = 0; t < s->n_tokens; t++)
        positions[t] = (uint32_t)(s->capacity - 1 - 3 * t);
    if (s->n_tokens > 3) {
        positions[1] = (uint32_t)s->capacity;
        positions[3] = UINT32_MAX;
    }
    const qn_cuda_view at = codes_view(qn_gpu_copy(positions));
    qn_cuda_aura_cache cache = { .key_codec = keys.codec,
                                 .value_codec = values.codec,
                                 .key_codes = codes_view(keys.codes),
                                 .value_codes = codes_view(values.codes),
                                 .key_scales = f32_view(keys.scales),
                                 .value_scales = f32_view(values.scales),
                                 .n_kv_heads = s->n_kv_heads,
                                 .capacity = s->capacity };
    store(&cache, &keys, &values, at);
    store_on_cpu(s, &keys, &values, positions);
    side_compare(&keys, "keys", qn_gpu_read(keys.codes), qn_gpu_read(keys.scales));
    side_compare(&values, "values", qn_gpu_read(values.codes), qn_gpu_read(values.scales));
    if (s->capacity % QN_PAGE == 0) {
        qn_paged_arrays pages;
        use_pages(&cache, &pages, s->capacity / QN_PAGE);
        store(&cache, &keys, &values, at);
        qn_paged_read(&pages);
        side_compare(&keys, "keys in pages", qn_paged_gather(&pages, KEY_CODES, s->capacity),
                     qn_paged_gather(&pages, KEY_SCALES, s->capacity));
        side_compare(&values, "values in pages", qn_paged_gather(&pages, VALUE_CODES, s->capacity),
                     qn_paged_gather(&pages, VALUE_SCALES, s->capacity));
    }
    qn_release();
}

/* ---- Attention ---- */

struct attention_check {
    qn_aura_ops_problem p;
    qn_cuda_aura_cache cache;
    qn_cuda_aura_queries queries;
    qn_gpu_rows rows; /* of the queries */
    uint64_t workspace;
    size_t workspace_bytes;
    qn_paged_arrays pages; /* if the cache is in pages */
    size_t gap;
};

static void attention_new(struct attention_check *c, const qn_aura_ops_shape *s, size_t gap)
{
    *c = (struct attention_check){ .gap = gap };
    qn_aura_ops_problem *p = &c->p;
    qn_aura_ops_problem_new(p, s);
    qn_assert_ok(qn_cuda_aura_prepare(kernels, p->key_codec, p->value_codec)); /* compiles several sources at a time */
    const qn_attention_gpu_cache *gpu = &p->gpu_cache.rows;
    c->cache = (qn_cuda_aura_cache){ .key_codec = device_codec(p->key_codec),
                                     .value_codec = device_codec(p->value_codec),
                                     .key_codes = codes_view(gpu->keys),
                                     .value_codes = codes_view(gpu->values),
                                     .key_scales = f32_view(gpu->key_scales),
                                     .value_scales = f32_view(gpu->value_scales),
                                     .n_kv_heads = s->n_kv_heads,
                                     .capacity = s->capacity,
                                     .n_keys = s->n_keys };
    c->rows = qn_gpu_rows_random(s->dtype, s->n_tokens, s->n_heads * s->dim, gap, 0, 1);
    p->cpu_queries.queries = qn_floats_view(c->rows.values, p->n_queries * s->dim);
    c->queries = (qn_cuda_aura_queries){ .queries = qn_gpu_rows_view(&c->rows),
                                         .n_tokens = s->n_tokens,
                                         .n_heads = s->n_heads,
                                         .scale = p->cpu_queries.scale,
                                         .causal = s->causal,
                                         .window = s->window,
                                         .positions = codes_view(p->gpu_queries.positions) };
    if (s->sinks)
        c->queries.sinks = f32_view(p->gpu_sinks);
    qn_assert_ok(qn_cuda_aura_queries_workspace(kernels, &c->cache, s->n_tokens, s->n_heads, &c->workspace_bytes));
    c->workspace = qn_gpu_new(c->workspace_bytes); /* exactly what the function returns */
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

static void compare_out(const struct attention_check *c, const char *name, const qn_gpu_rows *out,
                        const float *expected, double bound, double worst)
{
    qn_gpu_rows_expect_relative(out, expected, c->p.s->dim, bound, worst, name);
}

static void check_score(struct attention_check *c)
{
    const size_t n_keys = c->p.s->n_keys;
    float *expected = qn_floats(c->p.n_queries * n_keys);
    const qn_gpu_rows scores = qn_gpu_rows_poison(QN_DTYPE_F32, c->p.n_queries, n_keys, 0, 0);
    begin_case(c, "aura score");
    qn_assert_ok(qn_cuda_aura_score(kernels, &c->cache, &c->queries, qn_gpu_rows_view(&scores), pointer(c->workspace),
                                    c->workspace_bytes, qn_gpu_stream()));
    qn_assert_ok(qn_aura_score(&c->p.cache, &c->p.cpu_queries, host_floats(expected)));
    qn_gpu_rows_expect_relative(&scores, expected, n_keys, ERROR_BOUND, WORST_BOUND, "scores");
}

static void check_value(struct attention_check *c)
{
    const qn_aura_ops_shape *s = c->p.s;
    float *expected = qn_floats(c->p.n_queries * s->dim);
    const uint64_t weights = qn_gpu_copy(c->p.weights);
    size_t bytes = 0;
    qn_assert_ok(qn_cuda_aura_value_workspace(kernels, &c->cache, s->n_tokens, s->n_heads, &bytes));
    const uint64_t workspace = qn_gpu_new(bytes);
    const qn_gpu_rows out = new_out(c);
    begin_case(c, "aura value");
    qn_assert_ok(qn_cuda_aura_value(kernels, &c->cache, f32_view(weights), s->n_tokens, s->n_heads, s->skip,
                                    qn_gpu_rows_view(&out), pointer(workspace), bytes, qn_gpu_stream()));
    qn_assert_ok(
        qn_aura_value(&c->p.cache, host_floats(c->p.weights), s->n_tokens, s->n_heads, s->skip, host_floats(expected)));
    compare_out(c, "values", &out, expected, ERROR_BOUND, WORST_BOUND);
}

/* Results of a first pass in host memory. */
struct pass1 {
    float *partials, *m, *l;
    size_t n, dim;
};

static qn_status pass2_on_cpu(const struct attention_check *c, const struct pass1 *x, float *out)
{
    return qn_aura_flash_pass2(c->p.value_codec, c->p.n_queries, c->p.s->n_heads, c->p.n_blocks,
                               host_floats(x->partials), host_floats(x->m), host_floats(x->l), c->p.cpu_queries.sinks,
                               host_floats(out));
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
    const size_t n = c->p.n_queries * c->p.n_blocks;
    const uint64_t partials = qn_gpu_floats(n * s->dim), m = qn_gpu_floats(n), l = qn_gpu_floats(n);
    const struct pass1 expected = {
        .partials = poisoned(n * s->dim * 4), .m = poisoned(n * 4), .l = qn_floats(n), .n = n, .dim = s->dim
    };
    float *combined = qn_floats(c->p.n_queries * s->dim);
    begin_case(c, "aura pass 1");
    qn_assert_ok(qn_cuda_aura_flash_pass1(kernels, &c->cache, &c->queries, s->block, f32_view(partials), f32_view(m),
                                          f32_view(l), pointer(c->workspace), c->workspace_bytes, qn_gpu_stream()));
    const struct pass1 found = { qn_gpu_read(partials), qn_gpu_read(m), qn_gpu_read(l), n, s->dim };
    qn_assert_ok(qn_aura_flash_pass1(&c->p.cache, &c->p.cpu_queries, s->block, host_floats(expected.partials),
                                     host_floats(expected.m), host_floats(expected.l)));
    expect_empty_blocks(&found, &expected);
    qn_assert_ok(pass2_on_cpu(c, &found, combined));
    qn_expect_relative(combined, attention, c->p.n_queries, s->dim, QN_DTYPE_F32, ERROR_BOUND, WORST_BOUND,
                       "pass 1, combined by the CPU");

    begin_case(c, "aura pass 2");
    const qn_gpu_rows out = new_out(c);
    qn_assert_ok(qn_cuda_aura_flash_pass2(kernels, &c->cache.value_codec, s->n_tokens, s->n_heads, c->p.n_blocks,
                                          f32_view(qn_gpu_copy(expected.partials)), f32_view(qn_gpu_copy(expected.m)),
                                          f32_view(qn_gpu_copy(expected.l)), c->queries.sinks, qn_gpu_rows_view(&out),
                                          qn_gpu_stream()));
    qn_assert_ok(pass2_on_cpu(c, &expected, combined));
    compare_out(c, "pass 2 of the CPU's pass 1", &out, combined, FLOAT_BOUND, FLOAT_BOUND);
}

/* Puts the cache in pages; the last entry of the page table is no page. */
static void attention_use_pages(struct attention_check *c)
{
    const qn_aura_ops_shape *s = c->p.s;
    const size_t n_pages = (s->n_keys + QN_PAGE - 1) / QN_PAGE;
    use_pages(&c->cache, &c->pages, n_pages);
    c->cache.capacity = (n_pages + 1) * QN_PAGE;
    qn_paged_scatter(&c->pages, KEY_CODES, c->p.keys, s->capacity);
    qn_paged_scatter(&c->pages, VALUE_CODES, c->p.values, s->capacity);
    qn_paged_scatter(&c->pages, KEY_SCALES, c->p.key_scales, s->capacity);
    qn_paged_scatter(&c->pages, VALUE_SCALES, c->p.value_scales, s->capacity);
    qn_paged_upload(&c->pages);
}

static void attend(const struct attention_check *c, const qn_gpu_rows *out)
{
    qn_assert_ok(qn_cuda_aura_attention(kernels, &c->cache, &c->queries, qn_gpu_rows_view(out), pointer(c->workspace),
                                        c->workspace_bytes, qn_gpu_stream()));
}

static void check_attention(const qn_aura_ops_shape *s, size_t gap, bool paged)
{
    struct attention_check c;
    qn_random_seed(s->dim * 1000 + s->key_bits * 100 + s->n_keys);
    attention_new(&c, s, gap);
    if (paged)
        attention_use_pages(&c);
    float *expected = qn_floats(c.p.n_queries * s->dim);
    const qn_gpu_rows out = new_out(&c);
    check_score(&c);
    check_value(&c);
    begin_case(&c, "aura attention");
    attend(&c, &out);
    qn_assert_ok(qn_aura_attention(&c.p.cache, &c.p.cpu_queries, host_floats(expected)));
    compare_out(&c, "attention", &out, expected, ERROR_BOUND, WORST_BOUND);
    check_passes(&c, expected);
    qn_gpu_rows_expect_unchanged(&c.rows, "queries");
    qn_release();
}

/* Without keys, results are zeros. */
static void check_no_keys(const qn_aura_ops_shape *s)
{
    struct attention_check c;
    attention_new(&c, s, 8);
    const float *zeros = qn_floats(c.p.n_queries * s->dim);
    c.cache.n_keys = 0;
    for (int value = 0; value < 2; value++) {
        const qn_gpu_rows out = new_out(&c);
        begin_case(&c, value ? "aura value of no keys" : "aura attention over no keys");
        if (value)
            qn_assert_ok(qn_cuda_aura_value(kernels, &c.cache, (qn_cuda_view){ 0 }, s->n_tokens, s->n_heads, 0,
                                            qn_gpu_rows_view(&out), NULL, 0, qn_gpu_stream()));
        else
            attend(&c, &out);
        compare_out(&c, "out", &out, zeros, 0, 0);
    }
    qn_gpu_rows_expect_unchanged(&c.rows, "queries");
    qn_release();
}

/* ---- A step of decoding in a CUDA graph ---- */

enum { STEP_DIM = 128, STEP_HEADS = 6, STEP_KV_HEADS = 2, STEP_CAPACITY = 200, STEP_BLOCK = 64, STEP_BITS = 4 };

/* A step: keys and values are stored, and attended to by two passes and by one. */
struct step {
    qn_aura_codec *codec;
    qn_cuda_aura_cache cache;
    qn_cuda_aura_queries queries;
    qn_gpu_rows q, k, v, out[2];
    uint64_t codes[2], scales[2], position, partials, m, l;
};

static void step_new(struct step *s)
{
    const size_t rows = (size_t)STEP_KV_HEADS * STEP_CAPACITY, blocks = (STEP_CAPACITY + STEP_BLOCK - 1) / STEP_BLOCK;
    *s = (struct step){ .codec = NULL };
    qn_assert_ok(qn_aura_codec_create(&s->codec, STEP_DIM, STEP_BITS, 5));
    qn_codec_keep(s->codec);
    s->q = qn_gpu_rows_random(QN_DTYPE_BF16, 1, (size_t)STEP_HEADS * STEP_DIM, 0, 0, 1);
    s->k = qn_gpu_rows_random(QN_DTYPE_BF16, 1, (size_t)STEP_KV_HEADS * STEP_DIM, 0, 0, 1);
    s->v = qn_gpu_rows_random(QN_DTYPE_BF16, 1, (size_t)STEP_KV_HEADS * STEP_DIM, 0, 0, 1);
    for (int i = 0; i < 2; i++) {
        s->out[i] = qn_gpu_rows_poison(QN_DTYPE_F32, 1, (size_t)STEP_HEADS * STEP_DIM, 0, 0);
        s->codes[i] = qn_gpu_zeros(rows * qn_aura_words(s->codec) * 4);
        s->scales[i] = qn_gpu_zeros(rows * 4);
    }
    s->position = qn_gpu_zeros(sizeof(uint32_t));
    s->partials = qn_gpu_zeros(STEP_HEADS * blocks * STEP_DIM * 4);
    s->m = qn_gpu_zeros(STEP_HEADS * blocks * 4);
    s->l = qn_gpu_zeros(STEP_HEADS * blocks * 4);
    const qn_cuda_aura_codec codec = device_codec(s->codec);
    s->cache = (qn_cuda_aura_cache){ .key_codec = codec,
                                     .value_codec = codec,
                                     .key_codes = codes_view(s->codes[0]),
                                     .value_codes = codes_view(s->codes[1]),
                                     .key_scales = f32_view(s->scales[0]),
                                     .value_scales = f32_view(s->scales[1]),
                                     .n_kv_heads = STEP_KV_HEADS,
                                     .capacity = STEP_CAPACITY,
                                     .n_keys = STEP_CAPACITY };
    s->queries = (qn_cuda_aura_queries){ .queries = qn_gpu_rows_view(&s->q),
                                         .n_tokens = 1,
                                         .n_heads = STEP_HEADS,
                                         .scale = 1 / sqrtf(STEP_DIM),
                                         .causal = true,
                                         .positions = codes_view(s->position) };
}

static qn_status step_queue(struct step *s)
{
    const qn_cuda_view partials = f32_view(s->partials), m = f32_view(s->m), l = f32_view(s->l);
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
static float *step_expected(const struct step *s, uint32_t position)
{
    const uint32_t *codes[2] = { qn_gpu_read(s->codes[0]), qn_gpu_read(s->codes[1]) };
    const float *scales[2] = { qn_gpu_read(s->scales[0]), qn_gpu_read(s->scales[1]) };
    float *expected = qn_floats((size_t)STEP_HEADS * STEP_DIM);
    for (size_t i = 0; i < 2; i++)
        for (size_t h = 0; h < STEP_KV_HEADS; h++)
            qn_expect(scales[i][h * STEP_CAPACITY + position] > 0,
                      "%s of head %zu at position %u: scale %g, expected above 0", i ? "value" : "key", h, position,
                      (double)scales[i][h * STEP_CAPACITY + position]);
    const qn_aura_cache cache = { .key_codec = s->codec,
                                  .value_codec = s->codec,
                                  .key_codes = host_codes(codes[0]),
                                  .value_codes = host_codes(codes[1]),
                                  .key_scales = host_floats(scales[0]),
                                  .value_scales = host_floats(scales[1]),
                                  .n_kv_heads = STEP_KV_HEADS,
                                  .capacity = STEP_CAPACITY,
                                  .n_keys = STEP_CAPACITY };
    const qn_aura_queries queries = { .queries = host_floats(s->q.values),
                                      .n_tokens = 1,
                                      .n_heads = STEP_HEADS,
                                      .scale = s->queries.scale,
                                      .causal = true,
                                      .positions = { &position, QN_DTYPE_U32, 1 } };
    qn_assert_ok(qn_aura_attention(&cache, &queries, host_floats(expected)));
    return expected;
}

static void check_graph(void)
{
    struct step s;
    qn_random_seed(1);
    step_new(&s);
    qn_assert_ok(qn_cuda_aura_prepare(kernels, s.codec, s.codec));
    qn_gpu_capture_begin();
    qn_assert_ok(step_queue(&s));
    qn_cuda_graph *graph = qn_gpu_capture_end();
    for (uint32_t position = 0; position < 70; position++) {
        qn_case_begin("api", "aura graph", "position %u of a captured step, %d heads of %d over %d", position,
                      STEP_HEADS, STEP_DIM, STEP_KV_HEADS);
        qn_gpu_rows_draw(&s.q, 1);
        qn_gpu_rows_draw(&s.k, 1);
        qn_gpu_rows_draw(&s.v, 1);
        qn_gpu_write(s.position, &position, sizeof position);
        qn_gpu_graph_launch(graph);
        const float *expected = step_expected(&s, position);
        for (int i = 0; i < 2; i++)
            qn_gpu_rows_expect_relative(&s.out[i], expected, STEP_DIM, ERROR_BOUND, WORST_BOUND,
                                        i ? "single pass" : "two passes");
    }
    qn_release();
}

void qn_check_api_aura(void)
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
    kernels = qn_api();
    for (size_t i = 0; i < QN_LENGTH(codecs); i++) {
        check_rows(codecs[i].dim, codecs[i].bits, codecs[i].custom, types[i % 3], 37, i % 2 * 8);
        check_rows(codecs[i].dim, codecs[i].bits, codecs[i].custom, types[(i + 1) % 3], 1, 0);
    }
    for (size_t i = 0; i < QN_LENGTH(stores); i++)
        check_store(&stores[i]);
    for (size_t i = 0; i < QN_LENGTH(shapes); i++)
        for (int paged = 0; paged < 2; paged++)
            check_attention(&shapes[i], i % 2 * 24, paged);
    check_no_keys(&shapes[0]);
    check_no_keys(&shapes[2]);
    check_graph();
}
