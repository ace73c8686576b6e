/* What the GEMMs by tables of sums share (tables_avx2.h, which explains the method, and tables_avx512.h): reading
 * activations as columns, and storing sums. */
#ifndef QN_KERNELS_MATMUL_TABLES_H
#define QN_KERNELS_MATMUL_TABLES_H

#include "kernels/matmul/matmul_simd.h"
#include "kernels/matmul/packed.h"

enum {
    TABLE_TOKENS = 32,
    TABLE_ROWS = QN_BATCH_ROWS,
    PARTIAL_LEVELS = 5 /* partial sums that wait for their counterpart in the tree of a canonical sum, and the current
                        */
};

/* The order in which the tree of a canonical sum adds its sixteen partial sums: that of their numbers with reversed
 * bits. */
static const uint8_t table_order[QN_LANES] = { 0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15 };

/* Returns the number of partial sums that wait for that of step k and are added to it, the last one first. */
QN_INLINE size_t waiting_levels(size_t k)
{
    return (size_t)__builtin_ctz(~(unsigned)k);
}

/* What a call computes: up to TABLE_ROWS rows from `row` on, by up to TABLE_TOKENS tokens. */
struct table_job {
    const qn_packed_matrix *weights;
    const qn_acts *acts;
    size_t row, n_rows, first, n_tokens;
};

/* Transposes bytes in both halves, [16 tokens][16 columns] to [16 columns][16 tokens]. */
QN_INLINE void transpose_bytes(__m256i x[16])
{
    __m256i y[16];
    QN_UNROLLED
    for (int round = 0; round < 4; round++) {
        QN_UNROLLED
        for (int i = 0; i < 8; i++) {
            y[2 * i] = _mm256_unpacklo_epi8(x[i], x[8 + i]);
            y[2 * i + 1] = _mm256_unpackhi_epi8(x[i], x[8 + i]);
        }
        QN_UNROLLED
        for (int i = 0; i < 16; i++)
            x[i] = y[i];
    }
}

/* Reads the codes of a group, job->acts->codes or codes_lo, as columns in the order of the bits of a word. Tokens from
 * n_tokens on are zeros. */
QN_INLINE void read_columns(bool bits, const struct table_job *job, const int8_t *codes, size_t group, size_t n_vectors,
                            int16_t (*columns)[TABLE_TOKENS])
{
    static const int8_t zeros[QN_QUANT_GROUP];
    const size_t token_groups = job->acts->n_super * QN_SUPER_GROUPS, at = job->first * token_groups + group;
    for (size_t v = 0; v < n_vectors; v++) {
        __m256i bytes[16];
        for (size_t i = 0; i < 16; i++) {
            const size_t t = 16 * v + i % 2 * 8 + i / 2;
            bytes[i] = _mm256_loadu_si256(
                (const __m256i *)(const void *)(t < job->n_tokens ? codes + (at + t * token_groups) * QN_QUANT_GROUP
                                                                  : zeros));
        }
        transpose_bytes(bytes);
        for (size_t i = 0; i < 16; i++) {
            _mm256_store_si256((__m256i *)(void *)(columns[bits ? i : 2 * i] + 16 * v),
                               _mm256_cvtepi8_epi16(_mm256_castsi256_si128(bytes[i])));
            _mm256_store_si256((__m256i *)(void *)(columns[bits ? 16 + i : 2 * i + 1] + 16 * v),
                               _mm256_cvtepi8_epi16(_mm256_extracti128_si256(bytes[i], 1)));
        }
    }
}

QN_INLINE void read_act_scales(const struct table_job *job, size_t group, float act_scale[TABLE_TOKENS])
{
    const size_t token_groups = job->acts->n_super * QN_SUPER_GROUPS, at = job->first * token_groups + group;
    for (size_t t = 0; t < TABLE_TOKENS; t++)
        act_scale[t] = t < job->n_tokens ? job->acts->scale[at + t * token_groups] : 0;
}

QN_INLINE void transpose_floats(__m256 x[8])
{
    __m256 y[8];
    QN_UNROLLED
    for (int i = 0; i < 8; i += 2) {
        y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    QN_UNROLLED
    for (int i = 0; i < 8; i += 4)
        QN_UNROLLED
    for (int j = 0; j < 2; j++) {
        x[i + 2 * j] = _mm256_shuffle_ps(y[i + j], y[i + j + 2], 0x44);
        x[i + 2 * j + 1] = _mm256_shuffle_ps(y[i + j], y[i + j + 2], 0xee);
    }
    QN_UNROLLED
    for (int i = 0; i < 4; i++) {
        y[i] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x20);
        y[i + 4] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x31);
    }
    QN_UNROLLED
    for (int i = 0; i < 8; i++)
        x[i] = y[i];
}

/* Stores [n_rows][TABLE_TOKENS] sums to out[token * out_stride + row]. `swapped`: tokens 8 to 15 of a row come after
 * tokens 16 to 23. */
QN_INLINE void store_sums(const float (*sums)[TABLE_TOKENS], size_t n_rows, size_t n_tokens, bool swapped,
                          bool accumulate, float *out, size_t out_stride)
{
    for (size_t row = 0; row < n_rows; row += 8)
        for (size_t t = 0; t < n_tokens; t += 8) {
            const size_t at = swapped && (t == 8 || t == 16) ? 24 - t : t;
            __m256 x[8];
            for (size_t i = 0; i < 8; i++)
                x[i] = _mm256_load_ps(sums[row + i] + at);
            transpose_floats(x);
            for (size_t i = 0; i < 8 && t + i < n_tokens; i++) {
                float *to = out + (t + i) * out_stride + row;
                _mm256_storeu_ps(to, accumulate ? _mm256_add_ps(_mm256_loadu_ps(to), x[i]) : x[i]);
            }
        }
}

#endif
