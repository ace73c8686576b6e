/* Part of matmul_avx2.c and matmul_avxvnni.c: GEMM of packed 1-bit and 2-bit matrices (packed.h) for many tokens, by
 * look-up in tables of sums. A few weights of a row are the index of an entry, which has the sum of their activations
 * for TABLE_TOKENS tokens: one addition from L1 replaces 16 * 6 multiply-adds of 1-bit weights, or 16 * 2 of 2-bit
 * weights. A table costs one addition an entry, which TABLE_ROWS rows share (the method of Arlazarov, Dinic, Kronrod
 * and Faradzev, 1970, for products of Boolean matrices).
 *
 * docs/internals/cpu-kernels.md counts the operations. */
#ifndef QN_KERNELS_MATMUL_TABLES_AVX2_H
#define QN_KERNELS_MATMUL_TABLES_AVX2_H

#include "kernels/matmul/tables.h"

/* Tables of a group: for each half of a word of 32 bits the sums of bits 0 to 5, 6 to 10 and 11 to 15, of 64, 32 and 32
 * entries. A row of 1-bit weights has one such word. One of 2-bit weights has two, with the lower and the upper bits of
 * its codes: both are looked up in the same tables. An entry has 32 words of 16 bits: word 2i of 16 is
 * token i, word 2i + 1 is token 8 + i, so that widening even and odd words gives tokens in ascending order. */
enum {
    ENTRY_BYTES = 2 * TABLE_TOKENS,
    TABLE_BYTES = 256 * ENTRY_BYTES,
    MAX_FIELDS = 12,
    TABLES_MIN_TOKENS = 12 /* with fewer, filling tables costs more than they save */
};

/* The tables of a group of codes. */
struct tables {
    _Alignas(64) uint8_t entries[TABLE_BYTES];
    _Alignas(64) int16_t minus[TABLE_TOKENS]; /* 2-bit weights: minus the sum of all columns */
};

struct table_scratch {
    struct tables tables, tables_lo; /* the second: hi/lo split only */
    _Alignas(64) float partial[PARTIAL_LEVELS][TABLE_ROWS][TABLE_TOKENS];
    _Alignas(64) int16_t columns[QN_QUANT_GROUP][TABLE_TOKENS]; /* activation codes, words as in an entry */
    _Alignas(64) float act_scale[TABLE_TOKENS];
    _Alignas(64) float scale[TABLE_ROWS];
    _Alignas(64) uint16_t offsets[MAX_FIELDS * TABLE_ROWS]; /* byte offsets of entries in their tables */
};
_Static_assert(sizeof(struct table_scratch) <= QN_BATCH_SCRATCH, "the batch kernel's scratch does not fit");

/* Entries of 16 tokens take half the bytes. */
QN_INLINE size_t entry_bytes(size_t n_vectors)
{
    return n_vectors * sizeof(__m256i);
}

QN_INLINE __m256i *entry_at(uint8_t *table, size_t n_vectors, size_t i)
{
    return (__m256i *)(void *)table + n_vectors * i;
}

/* Fills the table of n bits. `signs`: a bit is a weight of -1 or 1; entry i has the sum of the columns whose bit is set
 * in i, minus the others. Else without the others. */
QN_INLINE void fill_table(bool signs, const int16_t (*columns)[TABLE_TOKENS], size_t n, size_t n_vectors,
                          uint8_t *table)
{
    __m256i sum[2], step[2];
    QN_UNROLLED
    for (size_t v = 0; v < n_vectors; v++) {
        sum[v] = _mm256_setzero_si256();
        for (size_t k = 0; signs && k < n; k++)
            sum[v] = _mm256_sub_epi16(sum[v], load32(columns[k] + 16 * v));
        _mm256_store_si256(entry_at(table, n_vectors, 0) + v, sum[v]);
    }
    QN_UNROLLED
    for (size_t k = 0; k < n; k++) {
        QN_UNROLLED
        for (size_t v = 0; v < n_vectors; v++)
            step[v] = signs ? _mm256_slli_epi16(load32(columns[k] + 16 * v), 1) : load32(columns[k] + 16 * v);
        for (size_t i = 0; i < (size_t)1 << k; i++)
            QN_UNROLLED
        for (size_t v = 0; v < n_vectors; v++)
            _mm256_store_si256(entry_at(table, n_vectors, i + ((size_t)1 << k)) + v,
                               _mm256_add_epi16(load32(entry_at(table, n_vectors, i) + v), step[v]));
    }
}

QN_INLINE void fill_tables(bool bits, const int16_t (*columns)[TABLE_TOKENS], size_t n_vectors, struct tables *tables)
{
    for (size_t half = 0; half < 2; half++, columns += 16) {
        uint8_t *to = tables->entries + half * 128 * entry_bytes(n_vectors);
        fill_table(bits, columns, 6, n_vectors, to);
        fill_table(bits, columns + 6, 5, n_vectors, to + 64 * entry_bytes(n_vectors));
        fill_table(bits, columns + 11, 5, n_vectors, to + 96 * entry_bytes(n_vectors));
    }
    for (size_t v = 0; !bits && v < n_vectors; v++) {
        static const uint8_t last[] = { 63, 95, 127, 191, 223, 255 }; /* sums of all columns of their tables */
        __m256i minus = _mm256_setzero_si256();
        for (size_t i = 0; i < sizeof last; i++)
            minus = _mm256_sub_epi16(minus, load32(entry_at(tables->entries, n_vectors, last[i]) + v));
        _mm256_store_si256((__m256i *)(void *)tables->minus + v, minus);
    }
}

/* Stores the offsets of the entries of 16 words, [3 fields], `stride` apart. */
QN_INLINE void store_offsets(__m256i words, size_t n_vectors, uint16_t *to, size_t stride)
{
    const int shift = n_vectors == 2 ? 6 : 5;
    const __m256i five = _mm256_set1_epi16((int16_t)(31 << shift)), six = _mm256_set1_epi16((int16_t)(63 << shift));
    _mm256_store_si256((__m256i *)(void *)to, _mm256_and_si256(_mm256_slli_epi16(words, shift), six));
    _mm256_store_si256((__m256i *)(void *)(to + stride), _mm256_and_si256(_mm256_srli_epi16(words, 6 - shift), five));
    _mm256_store_si256((__m256i *)(void *)(to + 2 * stride),
                       _mm256_and_si256(_mm256_srli_epi16(words, 11 - shift), five));
}

/* Unpacks the offsets of a group of 1-bit weights of a panel, [2 halves of the word][3 fields][TABLE_ROWS]: of 16
 * offsets, 2i and 2i + 1 belong to rows r + i and r + 16 + i, r as in panel_rows_1bit. p points to the word's bytes. */
QN_INLINE void unpack_offsets_1bit(const uint8_t *p, size_t n_vectors, uint16_t *offsets)
{
    for (size_t word_half = 0; word_half < 2; word_half++, p += 2 * QN_PANEL_ROWS, offsets += 3 * TABLE_ROWS)
        for (size_t half = 0; half < 2; half++) {
            const __m256i low = load32(p + 32 * half), high = load32(p + QN_PANEL_ROWS + 32 * half);
            QN_UNROLLED
            for (size_t pair = 0; pair < 2; pair++) {
                const __m256i words = pair ? _mm256_unpackhi_epi8(low, high) : _mm256_unpacklo_epi8(low, high);
                store_offsets(words, n_vectors, offsets + 32 * half + 16 * pair, TABLE_ROWS);
            }
        }
}

/* Unpacks the offsets of a group of 2-bit weights of a panel, [2 bits of the weights][3 fields][TABLE_ROWS][2 halves].
 * A bit of all 32 weights makes a word: of weight i of the first word of codes at 2i, of the second at 2i + 1. */
QN_INLINE void unpack_offsets_2bit(const uint8_t *p, size_t n_vectors, uint16_t *offsets)
{
    const __m256i low = _mm256_set1_epi32(0x55555555);
    for (size_t row = 0; row < QN_PANEL_ROWS; row += 8, p += 32) {
        const __m256i first = load32(p), second = load32(p + 4 * QN_PANEL_ROWS);
        QN_UNROLLED
        for (size_t bit = 0; bit < 2; bit++) {
            const __m256i even = _mm256_and_si256(bit ? _mm256_srli_epi32(first, 1) : first, low);
            const __m256i odd =
                bit ? _mm256_andnot_si256(low, second) : _mm256_slli_epi32(_mm256_and_si256(second, low), 1);
            const __m256i words = _mm256_or_si256(even, odd);
            store_offsets(words, n_vectors, offsets + bit * 6 * TABLE_ROWS + 2 * row, 2 * TABLE_ROWS);
        }
    }
}

/* Adds a group's entries of one row: sums of 16 * n_vectors tokens. */
QN_INLINE void sum_entries(bool bits, const struct tables *tables, const uint16_t *offsets, size_t n_vectors,
                           __m256i sum[2])
{
    const size_t n_fields = bits ? 6 : MAX_FIELDS;
    QN_UNROLLED
    for (size_t field = 0; field < n_fields; field++) {
        /* Of 2-bit weights the upper bits first. Entries of the tables before: 64, 32 and 32 for each half word. */
        const size_t half = field / 3 % 2, i = field % 3, bit = 1 - field / 6;
        const size_t before = half * 128 + (i ? 32 + 32 * i : 0);
        const size_t at = bits ? field * TABLE_ROWS : (bit * 3 + i) * 2 * TABLE_ROWS + half;
        const uint8_t *entry = tables->entries + offsets[at];
        __asm__("" : "+r"(entry)); /* one addition: loads with an index register are two operations on Intel's cores */
        entry += before * entry_bytes(n_vectors);
        QN_UNROLLED
        for (size_t v = 0; v < n_vectors; v++) {
            const __m256i words = load32(entry + 32 * v);
            sum[v] = field ? _mm256_add_epi16(sum[v], words) : words;
            if (!bits && field == 5) /* twice the upper bits, minus one for each weight */
                sum[v] = _mm256_add_epi16(_mm256_slli_epi16(sum[v], 1), load32(tables->minus + 16 * v));
            /* In this order: gcc would add all of a vector's entries first, and keep their addresses in memory. */
            __asm__ volatile("" : "+x"(sum[v]));
        }
    }
}

/* Widens the sums of the even tokens, or of the odd ones, times a factor. */
QN_INLINE __m256i widen(__m256i sum, bool odd, int factor)
{
    return _mm256_madd_epi16(sum, _mm256_set1_epi32(odd ? factor << 16 : factor));
}

/* Adds a group of one row to its partial sums of 16 * n_vectors tokens; `begin`: they are zero. */
QN_INLINE void add_row(bool bits, bool hilo, const struct table_scratch *s, const uint16_t *offsets, size_t n_vectors,
                       const __m256 *act_scale, float scale, __m256i even, bool begin, float *partial)
{
    const __m256 row_scale = _mm256_set1_ps(scale);
    __m256i sum[2], sum_lo[2];
    sum_entries(bits, &s->tables, offsets, n_vectors, sum);
    if (hilo)
        sum_entries(bits, &s->tables_lo, offsets, n_vectors, sum_lo);
    QN_UNROLLED
    for (size_t v = 0; v < n_vectors; v++) {
        __m256i tokens[2];
        if (hilo) {
            tokens[0] = _mm256_add_epi32(widen(sum[v], false, QN_HILO_BASE), widen(sum_lo[v], false, 1));
            tokens[1] = _mm256_add_epi32(widen(sum[v], true, QN_HILO_BASE), widen(sum_lo[v], true, 1));
        } else {
            tokens[0] = _mm256_madd_epi16(sum[v], even);
            tokens[1] = _mm256_srai_epi32(sum[v], 16);
        }
        QN_UNROLLED
        for (size_t i = 0; i < 2; i++) {
            float *to = partial + 16 * v + 8 * i;
            const __m256 before = begin ? _mm256_setzero_ps() : _mm256_load_ps(to);
            _mm256_store_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(tokens[i]),
                                                _mm256_mul_ps(row_scale, act_scale[2 * v + i]), before));
        }
    }
}

/* Adds a group of all rows to partial sums. */
QN_INLINE void add_rows(bool bits, bool hilo, const struct table_scratch *s, size_t n_rows, size_t n_vectors,
                        bool begin, float (*partial)[TABLE_TOKENS])
{
    __m256 act_scale[4];
    __m256i even = _mm256_set1_epi32(1);
    __asm__("" : "+x"(even)); /* in a register: gcc would load it for each use, and loads are what limits this loop */
    QN_UNROLLED
    for (size_t i = 0; i < 2 * n_vectors; i++)
        act_scale[i] = _mm256_load_ps(s->act_scale + 8 * i);
    for (size_t row = 0; !bits && row < n_rows; row++)
        add_row(false, hilo, s, s->offsets + 2 * row, n_vectors, act_scale, s->scale[row], even, begin, partial[row]);
    for (size_t at = 0; bits && at < n_rows; at += 16) {
        const size_t row = at / QN_PANEL_ROWS * QN_PANEL_ROWS + at / 32 % 2 * 8 + at / 16 % 2 * 32;
        for (size_t i = 0; i < 8; i++) {
            const uint16_t *offsets = s->offsets + at + 2 * i;
            const size_t r = row + i;
            add_row(true, hilo, s, offsets, n_vectors, act_scale, s->scale[r], even, begin, partial[r]);
            add_row(true, hilo, s, offsets + 1, n_vectors, act_scale, s->scale[r + 16], even, begin, partial[r + 16]);
        }
    }
}

/* Reads the weights of a group: offsets and scales. Prefetches those of group `next`. */
QN_INLINE void read_group(bool bits, size_t block_groups, const struct table_job *job, size_t group, size_t next,
                          size_t n_vectors, struct table_scratch *s)
{
    const size_t group_bytes = (size_t)(bits ? 4 : 8) * QN_PANEL_ROWS,
                 block_bytes = block_groups * group_bytes + 2 * QN_PANEL_ROWS,
                 at = group / block_groups * block_bytes + group % block_groups * group_bytes,
                 next_at = next / block_groups * block_bytes + next % block_groups * group_bytes,
                 scale_at = group / block_groups * block_bytes + block_groups * group_bytes;
    for (size_t row = 0; row < job->n_rows; row += QN_PANEL_ROWS) {
        const uint8_t *p = job->weights->packed + (job->row + row) * job->weights->stored.row_bytes;
        for (size_t line = 0; line < group_bytes; line += 64)
            _mm_prefetch((const char *)p + next_at + line, _MM_HINT_T0);
        if (bits)
            unpack_offsets_1bit(p + at, n_vectors, s->offsets + row);
        else
            unpack_offsets_2bit(p + at, n_vectors, s->offsets + 2 * row);
        load_scales(p + scale_at, 0, s->scale + row);
    }
}

/* Adds the sums of 16 * n_vectors tokens of n levels to those of the level before them, the last ones first. */
QN_INLINE void add_n_levels(float (*to)[TABLE_TOKENS], size_t n, size_t n_rows, size_t n_vectors)
{
    for (size_t row = 0; row < n_rows; row++)
        QN_UNROLLED
    for (size_t i = 0; i < 16 * n_vectors; i += 8) {
        __m256 sum = _mm256_load_ps(to[n * TABLE_ROWS + row] + i);
        QN_UNROLLED
        for (size_t level = n; level; level--)
            sum = _mm256_add_ps(_mm256_load_ps(to[(level - 1) * TABLE_ROWS + row] + i), sum);
        _mm256_store_ps(to[row] + i, sum);
    }
}

QN_INLINE void add_levels(float (*to)[TABLE_TOKENS], size_t n, size_t n_rows, size_t n_vectors)
{
    switch (n) {
    case 1: add_n_levels(to, 1, n_rows, n_vectors); break;
    case 2: add_n_levels(to, 2, n_rows, n_vectors); break;
    case 3: add_n_levels(to, 3, n_rows, n_vectors); break;
    case 4: add_n_levels(to, 4, n_rows, n_vectors); break;
    }
}
_Static_assert(PARTIAL_LEVELS == 5, "add_levels has all cases");

/* Computes a job. The partial sums of a canonical sum are computed one after the other, in the order in which its tree
 * adds them. */
QN_INLINE void table_tile(bool bits, bool hilo, size_t block_groups, const struct table_job *job, size_t n_vectors,
                          struct table_scratch *s)
{
    const int16_t(*columns)[TABLE_TOKENS] = (const int16_t(*)[TABLE_TOKENS])s->columns;
    const size_t n_groups = job->weights->stored.n_cols / QN_QUANT_GROUP;
    size_t level = 0;
    for (size_t k = 0; k < QN_LANES; k++, level++) {
        float(*partial)[TABLE_TOKENS] = s->partial[level];
        if (table_order[k] >= n_groups)
            memset(partial, 0, job->n_rows * sizeof *partial);
        for (size_t group = table_order[k]; group < n_groups; group += QN_LANES) {
            const size_t after = group + QN_LANES, then = table_order[(k + 1) % QN_LANES];
            read_group(bits, block_groups, job, group,
                       after < n_groups  ? after
                       : then < n_groups ? then
                                         : 0,
                       n_vectors, s);
            read_act_scales(job, group, s->act_scale);
            read_columns(bits, job, job->acts->codes[QN_ACT_PLAIN], group, n_vectors, s->columns);
            fill_tables(bits, columns, n_vectors, &s->tables);
            if (hilo) {
                read_columns(bits, job, job->acts->codes_lo[QN_ACT_PLAIN], group, n_vectors, s->columns);
                fill_tables(bits, columns, n_vectors, &s->tables_lo);
            }
            if (group < QN_LANES)
                add_rows(bits, hilo, s, job->n_rows, n_vectors, true, partial);
            else
                add_rows(bits, hilo, s, job->n_rows, n_vectors, false, partial);
        }
        const size_t n_pairs = waiting_levels(k);
        level -= n_pairs;
        add_levels(s->partial[level], n_pairs, job->n_rows, n_vectors);
    }
}

QN_INLINE void table_loop(bool bits, bool hilo, size_t block_groups, const qn_packed_matrix *weights, size_t row,
                          size_t n_rows, const qn_acts *acts, size_t first, size_t n_tokens, bool accumulate,
                          float *out, size_t out_stride, void *scratch)
{
    struct table_scratch *s = scratch;
    /* Blocks of nearly the same size: a small one would need the same tables. */
    const size_t n_blocks = (n_rows + TABLE_ROWS - 1) / TABLE_ROWS,
                 block_rows = (n_rows / QN_PANEL_ROWS + n_blocks - 1) / n_blocks * QN_PANEL_ROWS;
    for (size_t end = row + n_rows; row < end; row += block_rows)
        for (size_t t = 0; t < n_tokens; t += TABLE_TOKENS) {
            const struct table_job job = { .weights = weights,
                                           .acts = acts,
                                           .row = row,
                                           .n_rows = end - row < block_rows ? end - row : block_rows,
                                           .first = first + t,
                                           .n_tokens = n_tokens - t < TABLE_TOKENS ? n_tokens - t : TABLE_TOKENS };
            if (job.n_tokens > TABLE_TOKENS / 2)
                table_tile(bits, hilo, block_groups, &job, 2, s);
            else
                table_tile(bits, hilo, block_groups, &job, 1, s);
            store_sums((const float(*)[TABLE_TOKENS])s->partial[0], job.n_rows, job.n_tokens, false, accumulate,
                       out + (first + t) * out_stride + row, out_stride);
        }
}

#define TABLES(name, bits, block_groups)                                                                               \
    static void name(const qn_packed_matrix *weights, size_t row, size_t n_rows, const qn_acts *acts, size_t first,    \
                     size_t n_tokens, bool accumulate, float *out, size_t out_stride, void *scratch)                   \
    {                                                                                                                  \
        if (acts->hilo)                                                                                                \
            table_loop(bits, true, block_groups, weights, row, n_rows, acts, first, n_tokens, accumulate, out,         \
                       out_stride, scratch);                                                                           \
        else                                                                                                           \
            table_loop(bits, false, block_groups, weights, row, n_rows, acts, first, n_tokens, accumulate, out,        \
                       out_stride, scratch);                                                                           \
    }

TABLES(tables_q1_0, true, QN_Q1_0_WEIGHTS / QN_QUANT_GROUP)
/* With dpbusd, 2-bit weights are multiplied faster than they are looked up. */
#ifdef QN_V16_AVXVNNI
#define TABLES_2BIT(kernel) NULL, 0
#else
#define TABLES_2BIT(kernel) kernel, TABLES_MIN_TOKENS
TABLES(tables_q2_0, false, QN_Q2_0_WEIGHTS / QN_QUANT_GROUP)
TABLES(tables_pq2_0, false, QN_PQ2_0_WEIGHTS / QN_QUANT_GROUP)
#endif

#endif
