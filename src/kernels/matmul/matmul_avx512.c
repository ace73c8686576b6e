/* The matmul for AVX-512 with VNNI. GEMM: the twelve int32 and twelve float accumulators of a tile stay in registers.
 * GEMV: 1-bit, 2-bit and ternary codes are read as stored, without unpacking to memory, because one token is bound by
 * memory bandwidth. */
#define QN_V16_AVX512
enum { TILE_ROWS = 4, TILE_TOKENS = 3 };
#define OWN_REORDER_CODES
#define OWN_GROUP_AMAX
#define HAS_LUT
#define HAS_TILES

#include "kernels/matmul/gemv_wide_avx512.h"
#include "kernels/matmul/packed_avx512.h"
#include "kernels/matmul/tables_avx512.h"
#include "kernels/matmul/tiles.h"

/* Prefetch distance of the GEMV in bytes, non-temporal, into L1 only: weights are read once and would evict data from
 * the other caches. Measured on Zen 4 with both cores reading from memory: 4096 bytes with the non-temporal hint give
 * 14.1 GB/s a core for Q1_0 and 17.8 for PQ2_0; 8192 bytes with T0 13.7 and 16.2; a stream per row instead of memory
 * order 12.4 and 12.2. */
enum { GEMV_PREFETCH_BYTES = 4096 };

/* Tables for vpermi2b. 64 to 128 bytes of blocks are two loads, of the first 64 and, from SECOND on, of the last 64.
 * Index of byte j: j below 64 (first load), 64 + j - SECOND above (second load). */
#define SECOND(bytes) ((bytes)-64)
#define BYTE_OF(bytes, j) ((j) < 64 ? (j) : (j)-SECOND(bytes) + 64)
enum {
    Q1_0_BYTES_4 = 4 * QN_Q1_0_BYTES,
    Q2_0_BYTES_4 = 4 * QN_Q2_0_BYTES,
    PQ2_0_BYTES_2 = 2 * QN_PQ2_0_BYTES,
    PTQ1_0_BYTES_4 = 4 * QN_PTQ1_0_BYTES
};
#define CODES_Q1_0(i) BYTE_OF(Q1_0_BYTES_4, (i) / 16 * QN_Q1_0_BYTES + QN_Q1_0_CODES + (i) % 16)
/* Even quads of bytes in the lower half and odd quads in the upper. */
#define SPLIT(i) ((i) < 32 ? (i) / 4 * 8 + (i) % 4 : ((i)-32) / 4 * 8 + 4 + (i) % 4)
#define SPLIT_Q2_0(i) BYTE_OF(Q2_0_BYTES_4, SPLIT(i) / 16 * QN_Q2_0_BYTES + QN_Q2_0_CODES + SPLIT(i) % 16)
#define SPLIT_PQ2_0(i) BYTE_OF(PQ2_0_BYTES_2, SPLIT(i) / 32 * QN_PQ2_0_BYTES + QN_PQ2_0_CODES + SPLIT(i) % 32)
#define TRITS_MAIN(i) BYTE_OF(PTQ1_0_BYTES_4, (i) / 16 * QN_PTQ1_0_BYTES + (i) % QN_PTQ1_0_TRIT_BYTES)
#define TRITS_REST(i)                                                                                                  \
    BYTE_OF(PTQ1_0_BYTES_4, (i) / 16 * QN_PTQ1_0_BYTES + QN_PTQ1_0_TRIT_BYTES + ((i) % 16 < 8 ? (i) % 16 : 8 + (i) % 2))
/* Tables for vpmultishiftqb: bit offsets of the fields of a byte in its 64-bit lane, for the first eight of sixteen
 * bytes and for the last eight. */
#define FIELDS_01(i) (8 * ((i) % 8) + (i) / 8 % 2 * 2)
#define FIELDS_23(i) (FIELDS_01(i) + 4)
#define FIELDS_TAIL(i) (8 * ((i) % 8) + (i) % 8 / 2 * 2)

static const _Alignas(64) uint8_t codes_q1_0[64] = { X64(CODES_Q1_0) }, split_q2_0[64] = { X64(SPLIT_Q2_0) },
                                  split_pq2_0[64] = { X64(SPLIT_PQ2_0) }, trits_main[64] = { X64(TRITS_MAIN) },
                                  trits_rest[64] = { X64(TRITS_REST) }, fields_01[64] = { X64(FIELDS_01) },
                                  fields_23[64] = { X64(FIELDS_23) }, fields_tail[64] = { X64(FIELDS_TAIL) };

/* Indices of the 16-bit words that hold the scale of lane i: in the first load (Q1_0), in the first loads of both
 * halves (Q2_0), in both loads (PTQ1_0). */
#define SCALE_Q1_0(i) ((QN_Q1_0_SCALE + QN_Q1_0_BYTES * ((i) / 4)) / 2)
#define SCALE_Q2_0(i) ((QN_Q2_0_SCALE + QN_Q2_0_BYTES * ((i) % 8 / 2)) / 2 + (i) / 8 * 32)
#define SCALE_PTQ1_0(i) (BYTE_OF(PTQ1_0_BYTES_4, QN_PTQ1_0_SCALE + QN_PTQ1_0_BYTES * ((i) / 4)) / 2)
static const _Alignas(64) uint16_t scale_ptq1_0[32] = { X16(SCALE_PTQ1_0, 0) };
static const _Alignas(32) uint16_t scale_q1_0[16] = { X16(SCALE_Q1_0, 0) };
static const _Alignas(64) uint16_t scale_q2_0[32] = { X16(SCALE_Q2_0, 0) };

QN_INLINE __m512 f16_to_f32_x16(__m512i words)
{
    return _mm512_cvtph_ps(_mm512_castsi512_si256(words));
}

/* Reads code vectors 0..7 of a super-block in the layout of the type, and the scale of each lane. */
QN_INLINE void read_q1_0(const uint8_t *p, __m512i code[8], __m512 *scale)
{
    const __m512i a = load(p), b = load(p + SECOND(Q1_0_BYTES_4));
    const __m512i bits = _mm512_permutex2var_epi8(a, load(codes_q1_0), b);
    /* Moves bit v of every byte to bit 1, by add, mask, shift or a GF(2) affine transform (row k of its matrix, from
     * the top byte down, gives bit k), whichever has a free execution port. On Zen 4, affine transforms for all eight
     * take as long as the multiply-adds, since they share ports; three by masks is the best balance (18.6 against 19.5
     * cycles per super-block). */
    const __m512i two = _mm512_set1_epi8(2);
    code[0] = _mm512_and_si512(_mm512_add_epi8(bits, bits), two);
    code[1] = _mm512_and_si512(bits, two);
    code[2] = _mm512_and_si512(_mm512_srli_epi16(bits, 1), two);
    for (int v = 3; v < 8; v++)
        code[v] = _mm512_gf2p8affine_epi64_epi8(bits, _mm512_set1_epi64((int64_t)(1ull << v << 48)), 0);
    *scale = f16_to_f32_x16(
        _mm512_permutexvar_epi16(_mm512_castsi256_si512(_mm256_load_si256((const __m256i *)scale_q1_0)), a));
}

QN_INLINE void unpack_fields(__m512i even, __m512i odd, __m512i code[8])
{
    const __m512i three = _mm512_set1_epi8(3);
    for (int j = 0; j < 4; j++) {
        code[j] = _mm512_and_si512(j ? _mm512_srli_epi16(even, 2 * j) : even, three);
        code[4 + j] = _mm512_and_si512(j ? _mm512_srli_epi16(odd, 2 * j) : odd, three);
    }
}

QN_INLINE void read_q2_0(const uint8_t *p, __m512i code[8], __m512 *scale)
{
    const uint8_t *q = p + Q2_0_BYTES_4;
    const __m512i a = load(p), b = load(q);
    const __m512i first = _mm512_permutex2var_epi8(a, load(split_q2_0), load(p + SECOND(Q2_0_BYTES_4)));
    const __m512i second = _mm512_permutex2var_epi8(b, load(split_q2_0), load(q + SECOND(Q2_0_BYTES_4)));
    unpack_fields(_mm512_shuffle_i64x2(first, second, 0x44), _mm512_shuffle_i64x2(first, second, 0xee), code);
    *scale = f16_to_f32_x16(_mm512_permutex2var_epi16(a, load(scale_q2_0), b));
}

QN_INLINE void read_pq2_0(const uint8_t *p, __m512i code[8], __m512 *scale)
{
    enum { SECOND_LOAD = SECOND(PQ2_0_BYTES_2) };
    const __m512i first = _mm512_permutex2var_epi8(load(p), load(split_pq2_0), load(p + SECOND_LOAD));
    const __m512i second =
        _mm512_permutex2var_epi8(load(p + PQ2_0_BYTES_2), load(split_pq2_0), load(p + PQ2_0_BYTES_2 + SECOND_LOAD));
    uint16_t d[4];
    for (int block = 0; block < 4; block++)
        memcpy(&d[block], p + QN_PQ2_0_BYTES * block + QN_PQ2_0_SCALE, 2);
    unpack_fields(_mm512_shuffle_i64x2(first, second, 0x44), _mm512_shuffle_i64x2(first, second, 0xee), code);
    /* Each of the four scales is broadcast to the four lanes of its block. */
    const __m128i words = _mm_set_epi16(0, 0, 0, 0, (int16_t)d[3], (int16_t)d[2], (int16_t)d[1], (int16_t)d[0]);
    *scale = _mm512_permutexvar_ps(_mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0),
                                   _mm512_castps128_ps512(_mm_cvtph_ps(words)));
}

/* Reads the eight code vectors of a super-block in the layout QN_ACT_TERNARY: vector v holds values 16v to 16v+15 of
 * each block. Digits 0 to 3 of a byte come from one table as 2-bit fields, digit 4 from another. */
QN_INLINE void read_ptq1_0(const uint8_t *p, __m512i code[8], __m512 *scale)
{
    const __m512i a = load(p), b = load(p + SECOND(PTQ1_0_BYTES_4)), three = _mm512_set1_epi8(3);
    const __m512i bytes = _mm512_permutex2var_epi8(a, load(trits_main), b);
    const __m512i rest = _mm512_permutex2var_epi8(a, load(trits_rest), b); /* bytes 16 to 23 of a block, then its last
                                                                              two four times */
    const __m512i fields = look_up_256(trits_0123, bytes), rest_fields = look_up_256(trits_0123, rest);
    for (int n = 0; n < 4; n++)
        code[n] = _mm512_and_si512(n ? _mm512_srli_epi16(fields, 2 * n) : fields, three);
    code[4] = look_up_256(trits_4, bytes);
    const __m512i eight = _mm512_unpacklo_epi64(rest_fields, rest_fields);
    code[5] = _mm512_and_si512(_mm512_multishift_epi64_epi8(load(fields_01), eight), three);
    code[6] = _mm512_and_si512(_mm512_multishift_epi64_epi8(load(fields_23), eight), three);
    code[7] = _mm512_mask_and_epi64(look_up_256(trits_4, rest), 0xaa,
                                    _mm512_multishift_epi64_epi8(load(fields_tail), rest_fields), three);
    *scale = f16_to_f32_x16(_mm512_permutex2var_epi16(a, load(scale_ptq1_0), b));
}

QN_INLINE void read_super(qn_type type, const uint8_t *p, __m512i code[8], __m512 *scale)
{
    switch (type) {
    case QN_TYPE_Q1_0: read_q1_0(p, code, scale); break;
    case QN_TYPE_Q2_0: read_q2_0(p, code, scale); break;
    case QN_TYPE_PQ2_0: read_pq2_0(p, code, scale); break;
    default: read_ptq1_0(p, code, scale); break;
    }
}

/* Returns the integer dot products of one super-block of a row, per group. The zero point is 1 for all types here:
 * minus_sum is minus the sum of each group's activations. */
QN_INLINE __m512i super_dot(qn_type type, const uint8_t *p, const __m512i act[8], __m512i minus_sum, __m512 *scale)
{
    __m512i code[8];
    if (type == QN_TYPE_PTQ1_0) {
        /* Groups 0 to 3 of a block are vectors 0 1, 2 3, 4 5, 6 7, each spread over the block's four lanes. */
        const __m512i none = _mm512_setzero_si512();
        __m512i sum[4];
        read_ptq1_0(p, code, scale);
        for (int group = 0; group < 4; group++)
            sum[group] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(none, code[2 * group], act[2 * group]),
                                             code[2 * group + 1], act[2 * group + 1]);
        return _mm512_add_epi32(sum_fours(sum[0], sum[1], sum[2], sum[3]), minus_sum);
    }
    read_super(type, p, code, scale);
    /* Two independent accumulators hide the latency of dpbusd. */
    __m512i low = minus_sum, high = _mm512_setzero_si512();
    for (int v = 0; v < 4; v++) {
        low = _mm512_dpbusd_epi32(low, code[v], act[v]);
        high = _mm512_dpbusd_epi32(high, code[4 + v], act[4 + v]);
    }
    return _mm512_add_epi32(low, high);
}

/* Adds the last super-block of a row, if the row does not fill it, for one row and one token: the GEMVs that read
 * stored codes process full super-blocks only. The zero point is 1 for all their types. */
static void add_tail_super(const qn_matrix *weights, size_t row, const qn_acts *acts, size_t token, v16 *partial)
{
    const qn_type_info *type = weights->type;
    const qn_act_layout layout = qn_act_layout_of(type);
    const size_t s = acts->n_super - 1, super = token * acts->n_super + s, per_super = QN_SUPER / type->block_weights;
    const uint8_t *blocks = weights->data + row * weights->row_bytes + s * per_super * type->block_bytes;
    qn_super_block w;
    unpack_simd(type, blocks, weights->n_cols / type->block_weights - s * per_super, &w);
    v16i sum = v16i_set1(0);
    for (size_t v = 0; v < 8 && acts->hilo; v++)
        sum = v16i_dot(sum, v16b_load(w.codes + 64 * v), v16b_load(acts->codes[layout] + super * QN_SUPER + 64 * v));
    sum = v16i_add(v16i_mul(sum, v16i_set1(QN_HILO_BASE)),
                   v16i_mul(v16i_load(acts->sum + super * QN_SUPER_GROUPS), v16i_set1(-1)));
    const int8_t *codes = acts->hilo ? acts->codes_lo[layout] : acts->codes[layout];
    for (size_t v = 0; v < 8; v++)
        sum = v16i_dot(sum, v16b_load(w.codes + 64 * v), v16b_load(codes + super * QN_SUPER + 64 * v));
    *partial = v16_fma(v16i_to_float(sum), v16_mul(v16_load(w.scale), v16_load(acts->scale + super * QN_SUPER_GROUPS)),
                       *partial);
}

/* Multiplies n_rows rows by one token. n_rows is a constant at the calls. A super-block that the row does not fill is
 * unpacked; for PTQ1_0 in the layout of the GEMM. */
QN_INLINE void gemv_rows(qn_type type, qn_act_layout layout, bool hilo, const qn_matrix *weights, size_t row,
                         size_t n_rows, const qn_acts *acts, size_t token, bool accumulate, float *out)
{
    const size_t n_full = weights->n_cols / QN_SUPER, bytes = super_bytes(type);
    const uint8_t *p = weights->data + row * weights->row_bytes, *prefetch = p + GEMV_PREFETCH_BYTES;
    __m512 partial[4];
    for (size_t r = 0; r < n_rows; r++)
        partial[r] = _mm512_setzero_ps();
    for (size_t s = 0; s < n_full; s++, p += bytes) {
        const size_t super = token * acts->n_super + s;
        const __m512 act_scale = _mm512_loadu_ps(acts->scale + super * QN_SUPER_GROUPS);
        const __m512i minus_sum = _mm512_sub_epi32(_mm512_setzero_si512(), load(acts->sum + super * QN_SUPER_GROUPS));
        __m512i act[8], act_lo[8];
        for (int v = 0; v < 8; v++) {
            act[v] = load(acts->codes[layout] + super * QN_SUPER + 64 * v);
            if (hilo)
                act_lo[v] = load(acts->codes_lo[layout] + super * QN_SUPER + 64 * v);
        }
        for (size_t r = 0; r < n_rows; r++) {
            const uint8_t *q = p + r * weights->row_bytes;
            __m512 scale;
            __m512i isum;
            /* Prefetch in memory order, which is row by row and not the order of this loop. One prefetch per line of a
             * super-block's length, and one for its last byte. */
            const char *line = (const char *)prefetch + (s * n_rows + r) * bytes;
            for (size_t i = 0; i + 8 < bytes; i += 64)
                _mm_prefetch(line + i, _MM_HINT_NTA);
            _mm_prefetch(line + bytes - 1, _MM_HINT_NTA);
            if (hilo) {
                isum = super_dot(type, q, act, _mm512_setzero_si512(), &scale);
                isum = _mm512_mullo_epi32(isum, _mm512_set1_epi32(QN_HILO_BASE));
                isum = _mm512_add_epi32(isum, super_dot(type, q, act_lo, minus_sum, &scale));
            } else {
                isum = super_dot(type, q, act, minus_sum, &scale);
            }
            partial[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(isum), _mm512_mul_ps(scale, act_scale), partial[r]);
        }
    }
    for (size_t r = 0; r < n_rows; r++) {
        if (n_full < acts->n_super)
            add_tail_super(weights, row + r, acts, token, &partial[r]);
        const float sum = v16_sum(partial[r]);
        out[row + r] = accumulate ? out[row + r] + sum : sum;
    }
}

QN_INLINE void gemv_format(qn_type type, qn_act_layout layout, bool hilo, const qn_matrix *weights, size_t row_begin,
                           size_t row_end, const qn_acts *acts, size_t token, bool accumulate, float *out)
{
    size_t row = row_begin;
    if (layout == QN_ACT_PLAIN) {
        for (; row < row_end; row += 4)
            gemv_wide_rows(type, hilo, weights, row, row_end - row < 4 ? row_end - row : 4, acts, token, accumulate,
                           out);
        return;
    }
    for (; row + 4 <= row_end; row += 4)
        gemv_rows(type, layout, hilo, weights, row, 4, acts, token, accumulate, out);
    for (; row < row_end; row++)
        gemv_rows(type, layout, hilo, weights, row, 1, acts, token, accumulate, out);
}

/* Reorders a super-block of activation codes for a layout. Quarter q of every vector of a layout gathers its bytes from
 * quarter q of the codes (128 bytes), with the same 16 indices for all quarters; the indices of the next vector are a
 * constant step further. */
static void reorder_codes(qn_act_layout layout, const int8_t *codes, int8_t *out)
{
    __m512i quarter[4][2];
    uint8_t first[16];
    if (layout == QN_ACT_PLAIN) {
        memcpy(out, codes, QN_SUPER);
        return;
    }
    for (size_t i = 0; i < 16; i++) {
        const size_t lane = i / 4 * QN_QUANT_GROUP, byte = i % 4;
        first[i] = (uint8_t)(layout == QN_ACT_TERNARY ? i
                             : layout == QN_ACT_1BIT  ? lane + 8 * byte
                             : layout == QN_ACT_2BIT  ? lane + 4 * byte
                                                      : lane + byte);
    }
    for (int q = 0; q < 4; q++) {
        quarter[q][0] = load(codes + 128 * q);
        quarter[q][1] = load(codes + 128 * q + 64);
    }
    const __m512i index = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)first));
    for (int v = 0; v < 8; v++) {
        const int step = layout == QN_ACT_TERNARY ? 16 * v
                         : layout == QN_ACT_1BIT  ? v
                         : layout == QN_ACT_2BIT  ? v / 4 * 16 + v % 4
                                                  : 4 * v;
        const __m512i from = _mm512_add_epi8(index, _mm512_set1_epi8((char)step));
        __m512i to = _mm512_permutex2var_epi8(quarter[0][0], from, quarter[0][1]);
        for (int q = 1; q < 4; q++)
            to = _mm512_mask_blend_epi32((__mmask16)(0xf << 4 * q), to,
                                         _mm512_permutex2var_epi8(quarter[q][0], from, quarter[q][1]));
        _mm512_storeu_si512(out + 64 * v, to);
    }
}

/* Bits of magnitudes are ordered as these are, and those of infinities and NaNs are the largest. Each round of the
 * reduction joins two vectors. */
static void find_group_amax(const float *values, size_t n, float amax[QN_SUPER_GROUPS])
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff),
                  order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
    __m512i most[QN_SUPER_GROUPS];
    QN_UNROLLED
    for (size_t lane = 0; lane < QN_SUPER_GROUPS; lane++) {
        v16 a, b;
        load_group(values, lane * QN_QUANT_GROUP, n, &a, &b);
        most[lane] = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a), magnitude),
                                      _mm512_and_si512(_mm512_castps_si512(b), magnitude));
    }
    QN_UNROLLED
    for (int i = 0; i < 8; i++)
        most[i] = _mm512_max_epi32(_mm512_shuffle_i32x4(most[i], most[i + 8], 0x44),
                                   _mm512_shuffle_i32x4(most[i], most[i + 8], 0xee));
    QN_UNROLLED
    for (int i = 0; i < 4; i++)
        most[i] = _mm512_max_epi32(_mm512_shuffle_i32x4(most[i], most[i + 4], 0x88),
                                   _mm512_shuffle_i32x4(most[i], most[i + 4], 0xdd));
    for (int i = 0; i < 2; i++)
        most[i] =
            _mm512_max_epi32(_mm512_unpacklo_epi64(most[i], most[i + 2]), _mm512_unpackhi_epi64(most[i], most[i + 2]));
    const __m512 w = _mm512_castsi512_ps(most[0]), z = _mm512_castsi512_ps(most[1]);
    const __m512i last = _mm512_max_epi32(_mm512_castps_si512(_mm512_shuffle_ps(w, z, 0x88)),
                                          _mm512_castps_si512(_mm512_shuffle_ps(w, z, 0xdd)));
    _mm512_storeu_si512(amax, _mm512_permutexvar_epi32(order, last));
}

/* Writes the codes of a group of a token to a tile. */
QN_INLINE void fill_tile(const int8_t *codes, int8_t (*quads)[QN_TILE][4], size_t token)
{
    for (size_t quad = 0; quad < QN_QUANT_GROUP / 4; quad++)
        memcpy(quads[quad][token], codes + 4 * quad, 4);
}

static void fill_tiles(qn_acts *acts, size_t row, size_t super, const int8_t *codes, const int8_t *codes_lo)
{
    const size_t group0 = (row * acts->n_super + super) * QN_SUPER_GROUPS, token = row % QN_TILE,
                 lane_tiles = qn_act_lane_tiles(acts);
    for (size_t lane = 0, at = qn_act_tile_at(acts, row, super, 0); lane < QN_SUPER_GROUPS; lane++, at += lane_tiles) {
        qn_act_tile *tile = &acts->tiles[at];
        fill_tile(codes + lane * QN_QUANT_GROUP, tile->codes, token);
        tile->scale[token] = acts->scale[group0 + lane];
        tile->sum[token] = (float)acts->sum[group0 + lane];
        if (acts->tiles_lo)
            fill_tile(codes_lo + lane * QN_QUANT_GROUP, acts->tiles_lo[at].codes, token);
    }
}

/* Writes the digits of 64 values, of which each 32 have a factor. */
static void fill_digits(const int8_t *codes, const int32_t factor[2], int8_t *hi, int8_t *lo)
{
    const v16 base = v16_set1(QN_BLOCK_BASE), inverse_base = v16_set1(1.0f / QN_BLOCK_BASE);
    QN_UNROLLED
    for (int i = 0; i < 4; i++) {
        const __m512i code = _mm512_cvtepi8_epi32(_mm_load_si128((const __m128i *)(const void *)(codes + 16 * i)));
        const v16 x = v16_mul(_mm512_cvtepi32_ps(code), v16_set1((float)factor[i / 2]));
        const v16 digit = v16_rint(v16_mul(x, inverse_base));
        v16i_store_i8(hi + 16 * i, v16_to_int(digit));
        v16i_store_i8(lo + 16 * i, v16_to_int(_mm512_fnmadd_ps(digit, base, x)));
    }
}

static void fill_block_tiles(qn_acts *acts, size_t row, size_t super, const int8_t *codes, const int8_t *codes_lo)
{
    enum { BLOCKS = QN_SUPER / QN_BLOCK };
    const size_t block0 = (row * acts->n_super + super) * BLOCKS, token = row % QN_TILE;
    for (size_t block = 0; block < BLOCKS; block++) {
        const size_t tile_at = qn_act_block_at(acts, row, super * BLOCKS + block);
        qn_act_block_tile *tile = &acts->block_tiles[tile_at];
        const int32_t *factor = acts->factor + (block0 + block) * QN_BLOCK_GROUPS;
        const bool has_hi = qn_block_has_hi(factor);
        for (size_t half = 0; half < 2; half++) {
            const size_t at = block * QN_BLOCK + half * QN_BLOCK_K;
            int8_t *first = tile->codes[half][token], *second = acts->block_tiles_hi[tile_at].codes[half][token];
            if (has_hi) {
                fill_digits(codes + at, factor + 2 * half, second, first);
                continue;
            }
            _mm512_store_si512(first, load(codes + at));
            if (acts->hilo)
                _mm512_store_si512(second, load(codes_lo + at));
            else if (tile->has_hi[token])
                _mm512_store_si512(second, _mm512_setzero_si512());
        }
        tile->scale[token] = acts->block_scale[block0 + block];
        tile->has_hi[token] = has_hi;
    }
}

/* Unpacks for GEMM tiles with the GEMV's readers. */
QN_INLINE void unpack_format(qn_type type, qn_act_layout layout, const uint8_t *blocks, qn_super_block *out)
{
    __m512i code[8];
    __m512 scale;
    if (type == QN_TYPE_OX2_0) { /* the GEMV reads it in another order */
        unpack_2bit(type, blocks, QN_SUPER / QN_OX2_0_WEIGHTS, out);
        return;
    }
    if (layout == QN_ACT_PLAIN) {
        unpack_wide_super(type, blocks, out);
        return;
    }
    read_super(type, blocks, code, &scale);
    if (type == QN_TYPE_PTQ1_0)
        interleave_pieces(code, code);
    for (int v = 0; v < 8; v++)
        _mm512_store_si512(out->codes + 64 * v, code[v]);
    _mm512_storeu_ps(out->scale, scale);
}

#define FORMATS(X)                                                                                                     \
    X(q1_0, Q1_0, QN_ACT_1BIT, HILO,                                                                                   \
      { QN_PACKING_WORDS, QN_ACT_LUT, packed_q1_0, SIZE_MAX, true, tables_q1_0, TABLES_MIN_TOKENS })                   \
    X(q2_0, Q2_0, QN_ACT_2BIT, HILO, { QN_PACKING_WORDS, QN_ACT_2BIT, packed_q2_0, SIZE_MAX, true, NULL, 0 })          \
    X(pq2_0, PQ2_0, QN_ACT_2BIT, HILO, { QN_PACKING_WORDS, QN_ACT_2BIT, packed_pq2_0, SIZE_MAX, true, NULL, 0 })       \
    X(ptq1_0, PTQ1_0, QN_ACT_TERNARY, HILO, { QN_PACKING_WORDS, QN_ACT_PLAIN, packed_ptq1_0, 4, false, NULL, 0 })      \
    X(ox2_0, OX2_0, QN_ACT_PLAIN, HILO, { 0 })                                                                         \
    X(tq1_0, TQ1_0, QN_ACT_PLAIN, HILO, { 0 })                                                                         \
    X(tq2_0, TQ2_0, QN_ACT_PLAIN, HILO, { 0 })                                                                         \
    X(q4_0, Q4_0, QN_ACT_PLAIN, HILO, { 0 })                                                                           \
    X(q4_1, Q4_1, QN_ACT_PLAIN, HILO, { 0 })                                                                           \
    X(q5_0, Q5_0, QN_ACT_PLAIN, HILO, { 0 })                                                                           \
    X(q5_1, Q5_1, QN_ACT_PLAIN, HILO, { 0 })                                                                           \
    X(q8_0, Q8_0, QN_ACT_PLAIN, HILO, { 0 })                                                                           \
    X(q4_k, Q4_K, QN_ACT_PLAIN, HILO, { 0 })                                                                           \
    X(q5_k, Q5_K, QN_ACT_PLAIN, HILO, { 0 })                                                                           \
    X(q6_k, Q6_K, QN_ACT_PLAIN, NO_HILO, { 0 })                                                                        \
    X(q2_k, Q2_K, QN_ACT_PLAIN, NO_HILO, { 0 })                                                                        \
    X(q3_k, Q3_K, QN_ACT_PLAIN, NO_HILO, { 0 })                                                                        \
    X(iq4_nl, IQ4_NL, QN_ACT_PLAIN, HILO, { 0 })                                                                       \
    X(iq4_xs, IQ4_XS, QN_ACT_PLAIN, HILO, { 0 })                                                                       \
    X(mxfp4, MXFP4, QN_ACT_PLAIN, HILO, { 0 })                                                                         \
    X(nvfp4_l, NVFP4_L, QN_ACT_PLAIN, HILO, { 0 })

FORMAT_TABLE(FORMATS)

void qn_matmul_init_avx512(qn_matmul_kernels *kernels)
{
    matmul_fill(kernels, formats, N_FORMATS);
}
