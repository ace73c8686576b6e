/* Part of matmul_avx512.c: GEMM of packed 1-bit matrices for many tokens, by look-up in tables of sums (tables_avx2.h
 * has the method). An entry is one vector, so that a row adds six of them for 32 weights and 32 tokens. Two groups of a
 * partial sum are added in one pass over the rows, which halves the loads and stores of partial sums; their tables take
 * 32 KB. With AMX Q1_0 has the arithmetic of blocks.h instead, and its tile GEMM from 10 tokens on: these tables serve
 * only activations without factors.
 *
 * docs/internals/cpu-kernels.md counts the operations. */
#ifndef QN_KERNELS_MATMUL_TABLES_AVX512_H
#define QN_KERNELS_MATMUL_TABLES_AVX512_H

#include "kernels/matmul/tables.h"

/* Tables of a group: for each half of a word of 32 bits the sums of bits 0 to 5, 6 to 10 and 11 to 15, of 64, 32 and 32
 * entries. Words of an entry are in the order of read_columns: widening the even ones gives tokens 0 to 7 and 16 to 23,
 * the odd ones 8 to 15 and 24 to 31, and partial sums stay in this order. */
enum {
    ENTRY_BYTES = 2 * TABLE_TOKENS,
    TABLE_BYTES = 256 * ENTRY_BYTES,
    TABLE_FIELDS = 3,      /* of a half of a word */
    MAX_GROUPS = 2,        /* that are added in one pass */
    TABLES_MIN_TOKENS = 28 /* with fewer, single tokens by packed_avx512.h are faster */
};

struct table_scratch {
    _Alignas(64) uint8_t entries[MAX_GROUPS][TABLE_BYTES], entries_lo[MAX_GROUPS][TABLE_BYTES]; /* lo: hi/lo split */
    _Alignas(64) float partial[PARTIAL_LEVELS][TABLE_ROWS][TABLE_TOKENS];
    _Alignas(64) int16_t columns[QN_QUANT_GROUP][TABLE_TOKENS]; /* activation codes, words as in an entry */
    _Alignas(64) float act_scale[MAX_GROUPS][TABLE_TOKENS];
    /* Of a panel: scales, and byte offsets of entries in their tables. */
    _Alignas(64) float scale[MAX_GROUPS][QN_PANEL_ROWS];
    _Alignas(64) uint16_t offsets[MAX_GROUPS][TABLE_FIELDS][QN_PANEL_ROWS][2 /* halves of the word */];
};
_Static_assert(sizeof(struct table_scratch) <= QN_BATCH_SCRATCH, "the batch kernel's scratch does not fit");

/* Computes the sums of n columns, 2 or 3, for all values of as many bits: those whose bit is set, minus the others. */
QN_INLINE void sum_columns(const int16_t (*columns)[TABLE_TOKENS], size_t n, __m512i sum[8])
{
    sum[0] = _mm512_setzero_si512();
    QN_UNROLLED
    for (size_t k = 0; k < n; k++)
        sum[0] = _mm512_sub_epi16(sum[0], load(columns[k]));
    QN_UNROLLED
    for (size_t k = 0; k < n; k++) {
        const __m512i twice = _mm512_slli_epi16(load(columns[k]), 1);
        QN_UNROLLED
        for (size_t i = 0; i < (size_t)1 << k; i++)
            sum[i + ((size_t)1 << k)] = _mm512_add_epi16(sum[i], twice);
    }
}

/* Fills the table of n bits, 5 or 6, from sums of the lower three and of the others. */
QN_INLINE void fill_table(const int16_t (*columns)[TABLE_TOKENS], size_t n, uint8_t *table)
{
    __m512i low[8], high[8];
    sum_columns(columns, 3, low);
    sum_columns(columns + 3, n - 3, high);
    QN_UNROLLED
    for (size_t i = 0; i < (size_t)1 << (n - 3); i++)
        QN_UNROLLED
    for (size_t j = 0; j < 8; j++)
        _mm512_store_si512(table + (8 * i + j) * ENTRY_BYTES, _mm512_add_epi16(low[j], high[i]));
}

static void fill_tables(const int16_t (*columns)[TABLE_TOKENS], uint8_t *entries)
{
    for (size_t half = 0; half < 2; half++, columns += 16, entries += TABLE_BYTES / 2) {
        fill_table(columns, 6, entries);
        fill_table(columns + 6, 5, entries + 64 * ENTRY_BYTES);
        fill_table(columns + 11, 5, entries + 96 * ENTRY_BYTES);
    }
}

/* Unpacks the offsets of a group of a panel. p points to its words. */
QN_INLINE void unpack_offsets(const uint8_t *p, uint16_t (*offsets)[QN_PANEL_ROWS][2])
{
    const __m512i five = _mm512_set1_epi16(31 * ENTRY_BYTES), six = _mm512_set1_epi16(63 * ENTRY_BYTES);
    QN_UNROLLED
    for (size_t row = 0; row < QN_PANEL_ROWS; row += 16) {
        const __m512i words = load(p + 4 * row);
        _mm512_store_si512(offsets[0][row], _mm512_and_si512(_mm512_slli_epi16(words, 6), six));
        _mm512_store_si512(offsets[1][row], _mm512_and_si512(words, five));
        _mm512_store_si512(offsets[2][row], _mm512_and_si512(_mm512_srli_epi16(words, 5), five));
    }
}
_Static_assert(ENTRY_BYTES == 1 << 6, "unpack_offsets shifts by as much");

/* Adds a group's entries of one row. */
QN_INLINE __m512i sum_entries(const uint8_t *entries, const uint16_t (*offsets)[QN_PANEL_ROWS][2], size_t row)
{
    __m512i sum = _mm512_setzero_si512();
    QN_UNROLLED
    for (size_t half = 0; half < 2; half++)
        QN_UNROLLED
    for (size_t i = 0; i < TABLE_FIELDS; i++) {
        const size_t before = half * 128 + (i ? 32 + 32 * i : 0); /* entries of the tables before */
        const __m512i entry = load(entries + before * ENTRY_BYTES + offsets[i][row][half]);
        sum = half + i ? _mm512_add_epi16(sum, entry) : entry;
    }
    return sum;
}

/* Widens the even words, or the odd ones. */
QN_INLINE __m512i widen(__m512i sum, bool odd)
{
    return odd ? _mm512_srai_epi32(sum, 16) : _mm512_madd_epi16(sum, _mm512_set1_epi32(1));
}

/* Adds n_groups groups to the partial sums of a panel's rows; `begin`: they are zero. After the last groups, adds the
 * sums of the n_levels levels before it and stores the result there. */
QN_INLINE void add_rows(bool hilo, size_t n_groups, const struct table_scratch *s, bool begin, size_t n_levels,
                        float (*partial)[TABLE_TOKENS])
{
    __m512 act_scale[MAX_GROUPS][2];
    QN_UNROLLED
    for (size_t j = 0; j < n_groups; j++)
        QN_UNROLLED
    for (size_t odd = 0; odd < 2; odd++)
        act_scale[j][odd] = _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_load_ps(s->act_scale[j] + 8 * odd)),
                                               _mm256_load_ps(s->act_scale[j] + 16 + 8 * odd), 1);
    for (size_t row = 0; row < QN_PANEL_ROWS; row++) {
        __m512 sum[2];
        QN_UNROLLED
        for (size_t odd = 0; odd < 2; odd++)
            sum[odd] = begin ? _mm512_setzero_ps() : _mm512_load_ps(partial[row] + 16 * odd);
        QN_UNROLLED
        for (size_t j = 0; j < n_groups; j++) {
            const __m512 scale = _mm512_set1_ps(s->scale[j][row]);
            const __m512i hi = sum_entries(s->entries[j], s->offsets[j], row),
                          lo = hilo ? sum_entries(s->entries_lo[j], s->offsets[j], row) : hi;
            QN_UNROLLED
            for (size_t odd = 0; odd < 2; odd++) {
                const __m512i isum = hilo ? pack_hilo(widen(hi, odd), widen(lo, odd)) : widen(hi, odd);
                sum[odd] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(isum), _mm512_mul_ps(scale, act_scale[j][odd]), sum[odd]);
            }
        }
        float(*level)[TABLE_TOKENS] = partial;
        for (size_t i = 0; i < n_levels; i++) {
            level -= TABLE_ROWS;
            QN_UNROLLED
            for (size_t odd = 0; odd < 2; odd++)
                sum[odd] = _mm512_add_ps(_mm512_load_ps(level[row] + 16 * odd), sum[odd]);
        }
        QN_UNROLLED
        for (size_t odd = 0; odd < 2; odd++)
            _mm512_store_ps(level[row] + 16 * odd, sum[odd]);
    }
}

/* Reads the weights of a group of a panel: offsets and scales. Prefetches those of group `next`. */
static void read_group(const struct table_job *job, size_t row, size_t group, size_t next, size_t index,
                       struct table_scratch *s)
{
    enum {
        BLOCK_GROUPS = QN_Q1_0_WEIGHTS / QN_QUANT_GROUP,
        GROUP_BYTES = 4 * QN_PANEL_ROWS,
        BLOCK_BYTES = BLOCK_GROUPS * GROUP_BYTES + 2 * QN_PANEL_ROWS
    };
    const uint8_t *p = job->weights->packed + (job->row + row) * job->weights->stored.row_bytes;
    const uint8_t *block = p + group / BLOCK_GROUPS * BLOCK_BYTES;
    for (size_t line = 0; line < GROUP_BYTES; line += 64)
        _mm_prefetch((const char *)p + next / BLOCK_GROUPS * BLOCK_BYTES + next % BLOCK_GROUPS * GROUP_BYTES + line,
                     _MM_HINT_T0);
    unpack_offsets(block + group % BLOCK_GROUPS * GROUP_BYTES, s->offsets[index]);
    __m512 scale[PACK_VECTORS];
    load_scales(block + BLOCK_GROUPS * GROUP_BYTES, 0, scale);
    for (size_t g = 0; g < PACK_VECTORS; g++)
        _mm512_store_ps(s->scale[index] + 16 * g, scale[g]);
}

/* Adds groups first and, with n_groups = 2, first + 16 to a level's partial sums of all rows. */
QN_INLINE void add_groups(bool hilo, const struct table_job *job, size_t first, size_t n_groups, size_t next,
                          size_t n_levels, struct table_scratch *s, float (*partial)[TABLE_TOKENS])
{
    const int16_t(*columns)[TABLE_TOKENS] = (const int16_t(*)[TABLE_TOKENS])s->columns;
    for (size_t j = 0; j < n_groups; j++) {
        read_act_scales(job, first + j * QN_LANES, s->act_scale[j]);
        read_columns(true, job, job->acts->codes[QN_ACT_PLAIN], first + j * QN_LANES, 2, s->columns);
        fill_tables(columns, s->entries[j]);
        if (hilo) {
            read_columns(true, job, job->acts->codes_lo[QN_ACT_PLAIN], first + j * QN_LANES, 2, s->columns);
            fill_tables(columns, s->entries_lo[j]);
        }
    }
    for (size_t row = 0; row < job->n_rows; row += QN_PANEL_ROWS) {
        for (size_t j = 0; j < n_groups; j++)
            read_group(job, row, first + j * QN_LANES, next + j * QN_LANES, j, s);
        if (first < QN_LANES)
            add_rows(hilo, n_groups, s, true, n_levels, partial + row);
        else
            add_rows(hilo, n_groups, s, false, n_levels, partial + row);
    }
}

/* Computes a job. The partial sums of a canonical sum are computed one after the other, in the order in which its tree
 * adds them. */
QN_INLINE void table_tile(bool hilo, const struct table_job *job, struct table_scratch *s)
{
    const size_t n_groups = job->weights->stored.n_cols / QN_QUANT_GROUP;
    size_t level = 0;
    for (size_t k = 0; k < QN_LANES; k++, level++) {
        const size_t n_levels = waiting_levels(k), lane = table_order[k];
        float(*partial)[TABLE_TOKENS] = s->partial[level];
        for (size_t group = lane, n; group < n_groups; group += n * QN_LANES) {
            const size_t left = (n_groups - group + QN_LANES - 1) / QN_LANES;
            n = left < MAX_GROUPS ? 1 : MAX_GROUPS;
            const size_t next = left > n ? group + n * QN_LANES : table_order[(k + 1) % QN_LANES];
            if (n == 1)
                add_groups(hilo, job, group, 1, next, left == n ? n_levels : 0, s, partial);
            else
                add_groups(hilo, job, group, 2, next, left == n ? n_levels : 0, s, partial);
        }
        level -= n_levels;
    }
}

QN_INLINE void table_loop(bool hilo, const qn_packed_matrix *weights, size_t row, size_t n_rows, const qn_acts *acts,
                          size_t first, size_t n_tokens, bool accumulate, float *out, size_t out_stride, void *scratch)
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
            table_tile(hilo, &job, s);
            store_sums((const float(*)[TABLE_TOKENS])s->partial[0], job.n_rows, job.n_tokens, true, accumulate,
                       out + (first + t) * out_stride + row, out_stride);
        }
}

/* Tokens that do not fill a table are multiplied singly. */
static void tables_q1_0(const qn_packed_matrix *weights, size_t row, size_t n_rows, const qn_acts *acts, size_t first,
                        size_t n_tokens, bool accumulate, float *out, size_t out_stride, void *scratch)
{
    const size_t left = n_tokens % TABLE_TOKENS, single = left < TABLES_MIN_TOKENS ? left : 0;
    n_tokens -= single;
    if (weights->stored.n_cols < QN_LANES * QN_QUANT_GROUP) {
        packed_q1_0(weights, row, n_rows, acts, first, n_tokens + single, accumulate, out, out_stride);
        return;
    }
    if (acts->hilo)
        table_loop(true, weights, row, n_rows, acts, first, n_tokens, accumulate, out, out_stride, scratch);
    else
        table_loop(false, weights, row, n_rows, acts, first, n_tokens, accumulate, out, out_stride, scratch);
    if (single)
        packed_q1_0(weights, row, n_rows, acts, first + n_tokens, single, accumulate, out, out_stride);
}

#endif
