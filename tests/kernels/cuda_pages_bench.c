/* Speed of decode attention over caches in pages: the bytes of the cache that a step reads, as a fraction of the read
 * bandwidth. */
#include "cuda_pages.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pool {
    size_t item_bytes;
    qn_gpu_guarded items;
    uint64_t *tables; /* [iterations], on the device */
};

struct timed {
    qn_attention_gpu gpu;
    qn_launch decode_launch;
    qn_attention_decode_args *decode; /* [iterations] */
    qn_gpu_arrays arrays;
};

/* Pages of n_rows sequences for each iteration, in an order that is neither that of memory nor of another sequence. */
static void pool_new(struct timed *t, struct pool *pool, size_t item_bytes, size_t n_iterations,
                     const uint32_t *positions, size_t n_rows)
{
    size_t n_items = 0, used = 0;
    for (size_t i = 0; i < n_rows; i++)
        n_items += positions[i] / QN_ATTENTION_PAGE + 1;
    n_items *= n_iterations;
    uint64_t *entries = qn_xcalloc(n_items, sizeof *entries), *tables = qn_xcalloc(n_rows, sizeof *tables);
    pool->items = qn_gpu_new(n_items * item_bytes);
    qn_gpu_keep(&t->arrays, pool->items);
    qn_gpu_random(&pool->items);
    for (size_t i = 0; i < n_items; i++) {
        const size_t j = qn_random_below(i + 1);
        entries[i] = entries[j];
        entries[j] = pool->items.data + i * item_bytes;
    }
    const uint64_t gpu_entries = qn_gpu_keep_copy(&t->arrays, entries, n_items * sizeof *entries);
    pool->tables = qn_xcalloc(n_iterations, sizeof *pool->tables);
    uint64_t *all = qn_xcalloc(n_iterations * n_rows, sizeof *all);
    for (size_t k = 0; k < n_iterations; k++)
        for (size_t i = 0; i < n_rows; used += positions[i++] / QN_ATTENTION_PAGE + 1)
            all[k * n_rows + i] = gpu_entries + used * sizeof *entries;
    const uint64_t at = qn_gpu_keep_copy(&t->arrays, all, n_iterations * n_rows * sizeof *all);
    for (size_t k = 0; k < n_iterations; k++)
        pool->tables[k] = at + k * n_rows * sizeof *all;
    free(entries);
    free(tables);
    free(all);
}

static void run_iteration(void *context, size_t iteration)
{
    const struct timed *t = context;
    qn_gpu_launch(&t->decode_launch, &t->decode[iteration]);
}

/* Bytes of the cache that attention at these positions reads. */
static double bytes_of(const qn_pages_shape *s, const uint32_t *positions, size_t n_rows)
{
    const double f16 = 4.0 * (double)(s->dim * s->n_kv_heads),
                 codes = (double)s->n_kv_heads * (double)(qn_attention_gpu_row_bytes(s->dim, s->key_bits) +
                                                          qn_attention_gpu_row_bytes(s->dim, s->value_bits) + 8);
    double bytes = 0;
    for (size_t i = 0; i < n_rows; i++) {
        const uint32_t n = positions[i] + 1, page = positions[i] / QN_ATTENTION_PAGE;
        const double in_codes = s->key_bits == 16 || page == 0 ? 0 : (page - 1) * (double)QN_ATTENTION_PAGE;
        bytes += in_codes * codes + (n - in_codes) * f16;
    }
    return bytes;
}

static void bench(const qn_pages_shape *s, const char *what, const uint32_t *positions, size_t n_rows)
{
    struct timed t = { .gpu = qn_pages_gpu(s) };
    struct pool pages = { 0 }, f16_pages = { 0 };
    const qn_pages_layout l = qn_pages_layout_of(s);
    const bool codes = s->key_bits != 16;
    const double bytes = bytes_of(s, positions, n_rows);
    const size_t n_iterations = qn_gpu_bench_copies((size_t)bytes), queries = n_rows * s->n_heads;
    uint32_t longest = 0, *sessions = qn_xcalloc(n_rows, sizeof *sessions);
    char text[96], variant[48];
    for (size_t i = 0; i < n_rows; i++) {
        sessions[i] = (uint32_t)i;
        longest = positions[i] > longest ? positions[i] : longest;
    }
    qn_random_seed(1);
    pool_new(&t, &pages, l.layer_bytes, n_iterations, positions, n_rows);
    if (codes)
        pool_new(&t, &f16_pages, l.f16_layer_bytes, n_iterations, positions, n_rows);
    float *x = qn_floats_of(queries * s->dim, 1), codebook[256];
    qn_random_floats(codebook, sizeof codebook / sizeof *codebook, 1);
    const qn_attention_splits splits = qn_attention_gpu_splits(&t.gpu, longest + 1);
    const qn_attention_gpu_codec codec = { .codebook = qn_gpu_keep_copy(&t.arrays, codebook, sizeof codebook),
                                           .gain = 1 };
    const qn_gpu_guarded counters = qn_gpu_new(queries * sizeof(uint32_t));
    qn_assert_ok(qn_cuda_memset(qn_gpu(), qn_gpu_stream(), counters.data, 0, queries * sizeof(uint32_t)));
    const qn_attention_decode_args decode = {
        .queries = qn_gpu_keep_copy(&t.arrays, x, queries * s->dim * sizeof(float)),
        .partials = qn_gpu_keep(&t.arrays, qn_gpu_new(queries * splits.n * s->dim * sizeof(float))),
        .maxima = qn_gpu_keep(&t.arrays, qn_gpu_new(queries * splits.n * 2 * sizeof(float))),
        .counters = qn_gpu_keep(&t.arrays, counters),
        .out = qn_gpu_keep(&t.arrays, qn_gpu_new(queries * s->dim * sizeof(float))),
        .mask = { .positions = qn_gpu_keep_copy(&t.arrays, positions, n_rows * sizeof *positions),
                  .sessions = qn_gpu_keep_copy(&t.arrays, sessions, n_rows * sizeof *sessions),
                  .n_keys = longest + 1,
                  .causal = 1 },
        .key_codec = codec,
        .value_codec = codec,
        .splits = splits,
        .n_rows = (uint32_t)n_rows,
        .n_heads = (uint32_t)s->n_heads,
        .n_kv_heads = (uint32_t)s->n_kv_heads,
        .query_stride = (uint32_t)(s->n_heads * s->dim),
        .out_stride = (uint32_t)(s->n_heads * s->dim),
        .scale = 1 / sqrtf((float)s->dim),
        .pdl_prefetch = 1,
    };
    t.decode = qn_xcalloc(n_iterations, sizeof *t.decode);
    for (size_t i = 0; i < n_iterations; i++) {
        t.decode[i] = decode;
        t.decode[i].cache = qn_pages_cache(s, &l, 0, pages.tables[i]);
        if (codes)
            t.decode[i].pages = qn_pages_f16(s, &l, 0, f16_pages.tables[i]);
    }
    qn_assert_ok(qn_attention_gpu_decode(&t.gpu, n_rows, &splits, &t.decode_launch));
    t.decode_launch.pdl = true;
    snprintf(variant, sizeof variant, codes ? "decode, %u/%u bits" : "decode, f16", s->key_bits, s->value_bits);
    snprintf(text, sizeof text, "%zu heads of %zu over %zu, %s", s->n_heads, s->dim, s->n_kv_heads, what);
    qn_gpu_bench("pages", variant, text, bytes, "B", qn_gpu_read_rate(), run_iteration, &t, n_iterations);
    qn_gpu_free_arrays(&t.arrays);
    free(pages.tables);
    free(f16_pages.tables);
    free(t.decode);
    free(sessions);
    free(x);
}

void qn_bench_cuda_pages(void)
{
    enum { MAX_ROWS = 256 };
    static const qn_pages_shape shapes[] = {
        { 256, 24, 4, 4, 4 }, { 256, 24, 4, 16, 16 }, { 128, 32, 8, 16, 16 }, { 128, 32, 8, 4, 4 }
    };
    static const struct {
        size_t rows;
        uint32_t depth;
    } same[] = { { 1, 128 },   { 1, 8192 },  { 1, 131072 }, { 8, 160 },   { 8, 8192 },  { 32, 128 },
                 { 32, 1024 }, { 32, 8192 }, { 64, 160 },   { 128, 128 }, { 128, 160 }, { 256, 512 } };
    uint32_t positions[MAX_ROWS];
    char what[64];
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (size_t k = 0; k < sizeof same / sizeof *same; k++) {
            for (size_t row = 0; row < same[k].rows; row++)
                positions[row] = same[k].depth - 1;
            snprintf(what, sizeof what, "%zu x %u keys", same[k].rows, same[k].depth);
            bench(&shapes[i], what, positions, same[k].rows);
        }
        for (size_t row = 0; row < 32; row++)
            positions[row] = row == 7 ? 131071 : 128 + (uint32_t)(row * 61 % 400);
        bench(&shapes[i], "131072 keys beside 31 x 128 to 527", positions, 32);
        for (size_t row = 0; row < 32; row++)
            positions[row] = row == 7 ? 131071 : 8191;
        bench(&shapes[i], "131072 keys beside 31 x 8192", positions, 32);
    }
}
