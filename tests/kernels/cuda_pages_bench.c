/* Speed of decode attention over caches in pages: the bytes of the cache that a step reads, as a fraction of the read
 * bandwidth. */
#include "cuda_pages.h"

#include "gpu/format.h"

/* Pages of n_rows sequences for each iteration, in an order that is neither that of memory nor of another sequence.
 * Returns the tables of iteration 0; those of the next one follow. */
static uint64_t tables_new(size_t item_bytes, size_t n_iterations, const uint32_t *positions, size_t n_rows)
{
    size_t n_items = 0, used = 0;
    for (size_t i = 0; i < n_rows; i++)
        n_items += positions[i] / QN_PAGE + 1;
    n_items *= n_iterations;
    uint64_t *entries = qn_new(n_items, sizeof *entries), *tables = qn_new(n_iterations * n_rows, sizeof *tables);
    const uint64_t items = qn_gpu_random(n_items * item_bytes);
    for (size_t i = 0; i < n_items; i++) {
        const size_t j = qn_random_below(i + 1);
        entries[i] = entries[j];
        entries[j] = items + i * item_bytes;
    }
    const uint64_t gpu_entries = qn_gpu_copy(entries);
    for (size_t k = 0; k < n_iterations; k++)
        for (size_t i = 0; i < n_rows; used += positions[i++] / QN_PAGE + 1)
            tables[k * n_rows + i] = gpu_entries + used * sizeof *entries;
    return qn_gpu_copy(tables);
}

/* Bytes of the cache that attention at these positions reads. */
static double bytes_of(const qn_pages_shape *s, const uint32_t *positions, size_t n_rows)
{
    const double f16 = 4.0 * (double)(s->dim * s->n_kv_heads),
                 codes = (double)s->n_kv_heads *
                         (double)(qn_gpu_row_bytes(s->dim, s->key_bits) + qn_gpu_row_bytes(s->dim, s->value_bits) + 8);
    double bytes = 0;
    for (size_t i = 0; i < n_rows; i++) {
        const uint32_t n = positions[i] + 1, page = positions[i] / QN_PAGE;
        const double in_codes = s->key_bits == 16 || page == 0 ? 0 : (page - 1) * (double)QN_PAGE;
        bytes += in_codes * codes + (n - in_codes) * f16;
    }
    return bytes;
}

/* together: rows of one session. */
static void bench(const qn_pages_shape *s, const char *what, const uint32_t *positions, size_t n_rows, bool together)
{
    const char *shape = qn_text("%zu heads of %zu over %zu, %s", s->n_heads, s->dim, s->n_kv_heads, what);
    if (!qn_bench_selected(shape)) {
        qn_release();
        return;
    }
    const qn_attention_gpu gpu = qn_pages_gpu(s);
    const qn_pages_layout l = qn_pages_layout_of(s);
    const bool codes = s->key_bits != 16;
    const double bytes = bytes_of(s, positions, n_rows);
    const size_t n_iterations = qn_gpu_bench_copies((size_t)bytes);
    uint32_t longest = 0, *sessions = qn_new(n_rows, sizeof *sessions);
    for (size_t i = 0; i < n_rows; i++) {
        sessions[i] = together ? 0 : (uint32_t)i;
        longest = positions[i] > longest ? positions[i] : longest;
    }
    qn_random_seed(1);
    const uint64_t tables = tables_new(l.layer_bytes, n_iterations, positions, n_rows),
                   f16_tables = codes ? tables_new(l.f16_layer_bytes, n_iterations, positions, n_rows) : 0;
    const qn_attention_splits splits = qn_attention_gpu_splits(&gpu, longest + 1);
    qn_attention_decode_args args = qn_decode_args(&gpu, n_rows, &splits);
    args.queries = qn_gpu_floats_of(n_rows * s->n_heads * s->dim, 1);
    args.key_codec = args.value_codec = (qn_attention_gpu_codec){ .codebook = qn_gpu_floats_of(256, 1), .gain = 1 };
    args.mask = (qn_attention_mask){ .positions = qn_gpu_from(positions, n_rows * sizeof *positions),
                                     .sessions = qn_gpu_copy(sessions),
                                     .n_keys = longest + 1,
                                     .causal = 1 };
    args.pdl_prefetch = 1;
    qn_attention_decode_args *turns = qn_new(n_iterations, sizeof *turns);
    for (size_t i = 0; i < n_iterations; i++) {
        const size_t at = i * n_rows * sizeof(uint64_t);
        turns[i] = args;
        turns[i].cache = qn_pages_cache(s, &l, 0, tables + at);
        if (codes)
            turns[i].pages = qn_pages_f16(s, &l, 0, f16_tables + at);
    }
    qn_gpu_timed timed = { .args = turns, .stride = sizeof *turns };
    qn_assert_ok(qn_attention_gpu_decode(&gpu, n_rows, &splits, &timed.launch));
    timed.launch.pdl = true;
    qn_gpu_bench_launches("pages", codes ? qn_text("decode, %u/%u bits", s->key_bits, s->value_bits) : "decode, f16",
                          shape, bytes, "B", qn_gpu_read_rate(), &timed, 1, n_iterations);
    if (together && qn_attention_gpu_has_page_rows(&gpu, n_rows)) {
        qn_assert_ok(qn_attention_gpu_decode_page(&gpu, n_rows, &splits, &timed.launch));
        timed.launch.pdl = true;
        qn_gpu_bench_launches("pages", qn_text("rows of a page, %u/%u bits", s->key_bits, s->value_bits), shape, bytes,
                              "B", qn_gpu_read_rate(), &timed, 1, n_iterations);
    }
    qn_release();
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
    static const struct {
        size_t rows;
        uint32_t depth;
    } drafts[] = { { 4, 1024 }, { 4, 8192 }, { 4, 32768 }, { 8, 32768 }, { 4, 131072 } };
    uint32_t positions[MAX_ROWS];
    for (size_t i = 0; i < QN_LENGTH(shapes); i++) {
        for (size_t k = 0; k < QN_LENGTH(same); k++) {
            for (size_t row = 0; row < same[k].rows; row++)
                positions[row] = same[k].depth - 1;
            bench(&shapes[i], qn_text("%zu x %u keys", same[k].rows, same[k].depth), positions, same[k].rows, false);
        }
        for (size_t k = 0; k < QN_LENGTH(drafts); k++) {
            for (size_t row = 0; row < drafts[k].rows; row++)
                positions[row] = drafts[k].depth - 16 + (uint32_t)row;
            bench(&shapes[i], qn_text("a draft of %zu x %u keys", drafts[k].rows, drafts[k].depth), positions,
                  drafts[k].rows, true);
        }
        for (size_t row = 0; row < 32; row++)
            positions[row] = row == 7 ? 131071 : 128 + (uint32_t)(row * 61 % 400);
        bench(&shapes[i], "131072 keys beside 31 x 128 to 527", positions, 32, false);
        for (size_t row = 0; row < 32; row++)
            positions[row] = row == 7 ? 131071 : 8191;
        bench(&shapes[i], "131072 keys beside 31 x 8192", positions, 32, false);
    }
}
