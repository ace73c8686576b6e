/* The GEMM of tiles.h on Intel AMX, with AVX-512 for the rest. */
#define QN_V16_AVX512
#include "kernels/vec16.h"

#include "kernels/matmul/blocks.h"

/* The compilers have no operands for tile registers: the memory clobber orders the instructions. */
typedef struct tile_state {
    char none;
} tile_state;

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static void tile_begin(tile_state *state)
{
    struct tile_config config = { .palette = 1 };
    (void)state;
    for (int tile = 0; tile < 8; tile++) { /* sums; weights, a row each; activations, a quad of values a row */
        const bool weights = tile == 4, acts = tile > 4;
        config.row_bytes[tile] = weights ? QN_QUANT_GROUP : 64;
        config.rows[tile] = acts ? QN_QUANT_GROUP / 4 : QN_TILE;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
}

static void tile_end(tile_state *state)
{
    (void)state;
    __asm__ volatile("tilerelease" ::: "memory");
}

#define TILE_ZERO(state, tile) __asm__ volatile("tilezero %%tmm" #tile::: "memory")
#define TILE_LOAD_ROWS(tile, from, bytes)                                                                              \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(from), "r"((size_t)(bytes)) : "memory")
#define TILE_LOAD_WEIGHTS(state, tile, from) TILE_LOAD_ROWS(tile, from, QN_QUANT_GROUP)
#define TILE_LOAD_ACTS(state, tile, from) TILE_LOAD_ROWS(tile, from, 64)
#define TILE_STORE(state, tile, to)                                                                                    \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(to), "r"((size_t)64) : "memory")
#define TILE_MULTIPLY(state, c, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")

QN_INLINE v16 v16_of_int32(const int32_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_load_si512(p));
}

struct code_table {
    __m256i order, zero_point;
};

QN_INLINE struct code_table code_table_of(const qn_tile_panel *panel)
{
    return (struct code_table){ .order = _mm256_loadu_si256((const __m256i *)panel->order),
                                .zero_point = _mm256_set1_epi8((char)panel->zero_point) };
}

QN_INLINE void expand_codes(const struct code_table *table, const uint8_t *codes, int8_t *out)
{
    const __m256i ordered = _mm256_permutexvar_epi8(table->order, _mm256_loadu_si256((const __m256i *)codes));
    _mm256_store_si256((__m256i *)(void *)out, _mm256_sub_epi8(ordered, table->zero_point));
}

/* Transposes 4 x 4 blocks of floats of each 128-bit lane, then the blocks. */
static void tile_transpose(const float *in, float *out)
{
    __m512 a[16], b[16];
    QN_UNROLLED
    for (int i = 0; i < 16; i++)
        a[i] = _mm512_loadu_ps(in + 16 * i);
    QN_UNROLLED
    for (int i = 0; i < 16; i += 4) {
        const __m512 l0 = _mm512_unpacklo_ps(a[i], a[i + 1]), h0 = _mm512_unpackhi_ps(a[i], a[i + 1]);
        const __m512 l1 = _mm512_unpacklo_ps(a[i + 2], a[i + 3]), h1 = _mm512_unpackhi_ps(a[i + 2], a[i + 3]);
        b[i] = _mm512_shuffle_ps(l0, l1, 0x44);
        b[i + 1] = _mm512_shuffle_ps(l0, l1, 0xee);
        b[i + 2] = _mm512_shuffle_ps(h0, h1, 0x44);
        b[i + 3] = _mm512_shuffle_ps(h0, h1, 0xee);
    }
    QN_UNROLLED
    for (int i = 0; i < 4; i++) { /* b[4q + i], lane p: rows 4q.. of column 4p + i */
        const __m512 l0 = _mm512_shuffle_f32x4(b[i], b[4 + i], 0x88), h0 = _mm512_shuffle_f32x4(b[i], b[4 + i], 0xdd);
        const __m512 l1 = _mm512_shuffle_f32x4(b[8 + i], b[12 + i], 0x88),
                     h1 = _mm512_shuffle_f32x4(b[8 + i], b[12 + i], 0xdd);
        _mm512_storeu_ps(out + 16 * i, _mm512_shuffle_f32x4(l0, l1, 0x88));
        _mm512_storeu_ps(out + 16 * (i + 4), _mm512_shuffle_f32x4(h0, h1, 0x88));
        _mm512_storeu_ps(out + 16 * (i + 8), _mm512_shuffle_f32x4(l0, l1, 0xdd));
        _mm512_storeu_ps(out + 16 * (i + 12), _mm512_shuffle_f32x4(h0, h1, 0xdd));
    }
}

#include "kernels/matmul/gemm_tiles.h"

/* Transposes [8 quads][16 lanes] of a super-block to lanes of 32 codes. */
void qn_tile_put_amx(const qn_tile_panel *panel, size_t row, size_t super, const qn_super_block *block)
{
    const size_t first = super * QN_SUPER_GROUPS * QN_TILE_PANEL_ROWS + row;
    uint8_t *codes = panel->codes + first * QN_QUANT_GROUP;
    for (size_t half = 0; half < 2; half++) {
        __m512i v[4];
        QN_UNROLLED
        for (size_t i = 0; i < 4; i++)
            v[i] = _mm512_load_si512(block->codes + 64 * (4 * half + i));
        const __m512i l0 = _mm512_unpacklo_epi32(v[0], v[1]), h0 = _mm512_unpackhi_epi32(v[0], v[1]);
        const __m512i l1 = _mm512_unpacklo_epi32(v[2], v[3]), h1 = _mm512_unpackhi_epi32(v[2], v[3]);
        const __m512i lanes[4] = { _mm512_unpacklo_epi64(l0, l1), _mm512_unpackhi_epi64(l0, l1),
                                   _mm512_unpacklo_epi64(h0, h1), _mm512_unpackhi_epi64(h0, h1) };
        uint8_t *to = codes + 16 * half;
        enum { LANE_BYTES = QN_TILE_PANEL_ROWS * QN_QUANT_GROUP };
        QN_UNROLLED
        for (size_t i = 0; i < 4; i++) { /* 128-bit lane q has lane 4q + i */
            _mm_store_si128((__m128i *)(void *)(to + i * LANE_BYTES), _mm512_castsi512_si128(lanes[i]));
            _mm_store_si128((__m128i *)(void *)(to + (4 + i) * LANE_BYTES), _mm512_extracti32x4_epi32(lanes[i], 1));
            _mm_store_si128((__m128i *)(void *)(to + (8 + i) * LANE_BYTES), _mm512_extracti32x4_epi32(lanes[i], 2));
            _mm_store_si128((__m128i *)(void *)(to + (12 + i) * LANE_BYTES), _mm512_extracti32x4_epi32(lanes[i], 3));
        }
    }
    for (size_t lane = 0; lane < QN_SUPER_GROUPS; lane++)
        panel->scale[first + lane * QN_TILE_PANEL_ROWS] = block->scale[lane];
    for (size_t lane = 0; panel->offset && lane < QN_SUPER_GROUPS; lane++)
        panel->offset[first + lane * QN_TILE_PANEL_ROWS] = block->offset[lane];
}

/* ---- Blocks of 128 values (blocks.h) ---- */

static void block_tiles_begin(tile_state *state, size_t n_tokens)
{
    struct tile_config config = { .palette = 1 };
    (void)state;
    for (int tile = 0; tile < 8; tile++) { /* sums, activations; weights */
        config.row_bytes[tile] = QN_BLOCK_K;
        config.rows[tile] = tile < 6 ? (uint8_t)n_tokens : QN_TILE;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
}

/* Constants in the addresses leave registers for the pointers of the loop. */
#define BLOCK_LOAD(state, tile, from, at)                                                                              \
    __asm__ volatile("tileloadd %c2(%0,%1,1), %%tmm" #tile ::"r"(from), "r"((size_t)QN_BLOCK_K), "i"(at) : "memory")
#define BLOCK_STORE(state, tile, to)                                                                                   \
    __asm__ volatile("tilestored %%tmm" #tile ", %c2(%0,%1,1)" ::"r"(to), "r"((size_t)64), "i"((tile)*1024) : "memory")
#define BLOCK_MULTIPLY(state, c, a, b) TILE_MULTIPLY(state, c, a, b)
/* The unit sleeps after about 500 ns without a product (gemm_tiles.h). */
#define BLOCK_KEEP_AWAKE(state, sums)                                                                                  \
    do {                                                                                                               \
        TILE_ZERO(state, 3);                                                                                           \
        TILE_MULTIPLY(state, 3, 4, 6);                                                                                 \
        TILE_STORE(state, 3, sums);                                                                                    \
    } while (0)

/* Bit offsets for vpmultishiftqb: byte i takes the bits from i % 4 * step + from on of its 32-bit word. */
QN_INLINE __m512i offsets_of(int from, int step)
{
    const uint64_t four = (uint64_t)(from | (from + step) << 8 | (from + 2 * step) << 16) | (uint64_t)(from + 3 * step)
                                                                                                << 24;
    return _mm512_set1_epi64((int64_t)(four | (four + 0x20202020) << 32));
}

/* A nibble is an index into a table of the four weights of each. */
QN_INLINE void expand_1bit(const uint8_t *words, size_t stride, int8_t (*codes)[QN_TILE][4])
{
    _Alignas(64) static const int8_t signs[16][4] = {
        { -1, -1, -1, -1 }, { 1, -1, -1, -1 }, { -1, 1, -1, -1 }, { 1, 1, -1, -1 }, { -1, -1, 1, -1 }, { 1, -1, 1, -1 },
        { -1, 1, 1, -1 },   { 1, 1, 1, -1 },   { -1, -1, -1, 1 }, { 1, -1, -1, 1 }, { -1, 1, -1, 1 },  { 1, 1, -1, 1 },
        { -1, -1, 1, 1 },   { 1, -1, 1, 1 },   { -1, 1, 1, 1 },   { 1, 1, 1, 1 }
    };
    const __m512i weights = _mm512_load_si512(signs);
    for (size_t word = 0; word < 4; word++) {
        const __m512i bits = _mm512_loadu_si512(words + 4 * word * stride);
        QN_UNROLLED
        for (unsigned q = 0; q < 8; q++) /* vpermd reads the lower four bits of an index */
            _mm512_store_si512(codes[8 * word + q], _mm512_permutexvar_epi32(_mm512_srli_epi32(bits, 4 * q), weights));
    }
}

/* vpermb reads the lower six bits of an index, whose lower two are the code. */
QN_INLINE void expand_2bit(const uint8_t *words, size_t stride, int8_t (*codes)[QN_TILE][4])
{
    const __m512i weights = _mm512_set1_epi32(0x020100ff);
    for (size_t word = 0; word < 8; word++) {
        const __m512i fields = _mm512_loadu_si512(words + 4 * word * stride);
        QN_UNROLLED
        for (int q = 0; q < 4; q++) {
            const __m512i fours = _mm512_multishift_epi64_epi8(offsets_of(8 * q, 2), fields);
            _mm512_store_si512(codes[4 * word + (size_t)q], _mm512_permutexvar_epi8(fours, weights));
        }
    }
}

/* Stores digit - 1 of each byte; digit = (x >= 86) + (x >= 171). */
QN_INLINE void store_digits(int8_t (*quad)[4], __m512i x)
{
    const __mmask64 middle = _mm512_cmpge_epu8_mask(x, _mm512_set1_epi8(86)),
                    upper = _mm512_cmpge_epu8_mask(x, _mm512_set1_epi8((char)171));
    const __m512i none = _mm512_setzero_si512(), lower = _mm512_mask_blend_epi8(middle, _mm512_set1_epi8(-1), none);
    _mm512_store_si512(quad, _mm512_mask_mov_epi8(lower, upper, _mm512_set1_epi8(1)));
}

QN_INLINE __m512i next_digit(__m512i x)
{
    return _mm512_add_epi8(x, _mm512_add_epi8(x, x));
}

QN_INLINE void expand_ternary(const uint8_t *words, size_t stride, int8_t (*codes)[QN_TILE][4])
{
    for (size_t word = 0; word < 6; word++) {
        __m512i x = _mm512_loadu_si512(words + 4 * word * stride);
        for (size_t n = 0; n < 5; n++, x = next_digit(x))
            store_digits(codes[word < 4 ? 4 * n + word : 20 + 2 * n + word - 4], x);
    }
    __m512i x = _mm512_loadu_si512(words + 24 * stride);
    for (size_t n = 0; n < 4; n += 2) { /* two bytes of codes: a quad is of two digits */
        const __m512i next = next_digit(x);
        store_digits(codes[30 + n / 2], _mm512_mask_blend_epi16(0xaaaaaaaa, x, _mm512_slli_epi32(next, 16)));
        x = next_digit(next);
    }
}

/* Words of 16 rows as in a packed panel, and their scales. */
typedef struct block_words {
    const uint8_t *words;
    size_t stride; /* rows from a word to the next */
    const uint16_t *scales;
} block_words;

/* Where the words of 16 stored rows are put together. */
struct gathered_words {
    _Alignas(64) uint8_t words[QN_BLOCK / 4 / 4][QN_TILE][4];
    uint16_t scales[QN_TILE];
};

static block_words gather_words(const qn_block_panel *panel, size_t tile, size_t block, struct gathered_words *to)
{
    const qn_type_info *type = panel->type;
    const size_t first = tile * QN_TILE, left = first < panel->n_rows ? panel->n_rows - first : 0,
                 n_rows = left < QN_TILE ? left : QN_TILE, n_words = (type->block_bytes - type->codes_at) / 4;
    memset(to, 0, sizeof *to);
    for (size_t row = 0; row < n_rows; row++) {
        const uint8_t *from = panel->stored + (first + row) * panel->row_bytes + block * type->block_bytes;
        memcpy(&to->scales[row], from, sizeof *to->scales);
        for (size_t word = 0; word < n_words; word++)
            memcpy(to->words[word][row], from + type->codes_at + 4 * word, 4);
    }
    return (block_words){ to->words[0][0], QN_TILE, to->scales };
}

static block_words packed_words(const qn_block_panel *panel, size_t tile, size_t block)
{
    const size_t row = panel->packed_row + tile * QN_TILE,
                 code_bytes = panel->type->block_bytes - panel->type->codes_at;
    const uint8_t *from = panel->packed + block * panel->type->block_bytes * QN_PANEL_ROWS;
    return (block_words){ from + 4 * row, QN_PANEL_ROWS,
                          (const uint16_t *)(const void *)(from + code_bytes * QN_PANEL_ROWS + 2 * row) };
}

/* Rows [16 * tile, 16 * tile + 16) of a panel of this type. */
QN_INLINE void expand_block(qn_type type, const qn_block_panel *panel, size_t tile, size_t block,
                            int8_t (*codes)[QN_TILE][4], float *scale)
{
    struct gathered_words gathered;
    const block_words from =
        panel->packed ? packed_words(panel, tile, block) : gather_words(panel, tile, block, &gathered);
    switch (type) {
    case QN_TYPE_Q1_0: expand_1bit(from.words, from.stride, codes); break;
    case QN_TYPE_PQ2_0: expand_2bit(from.words, from.stride, codes); break;
    default: /* PTQ1_0: the scale is in the upper half of the last word */
        expand_ternary(from.words, from.stride, codes);
        const __m512i last = _mm512_loadu_si512(from.words + (panel->type->block_bytes - 4) * from.stride);
        _mm512_store_ps(scale, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(last, 16))));
        return;
    }
    _mm512_store_ps(scale, v16_load_f16(from.scales));
}

#include "kernels/matmul/gemm_blocks.h"

void qn_block_gemm_amx(const qn_block_panel *panels, size_t n_panels, const qn_acts *acts, size_t first,
                       size_t n_tokens, bool accumulate, float *out, size_t out_stride, void *scratch)
{
    gemm_blocks(panels, n_panels, acts, first, n_tokens, accumulate, out, out_stride, scratch);
}

/* With fewer tokens, unpacking the rows costs more than is won. Single tokens of PTQ1_0 take twice as long as others.
 */
enum { MIN_TOKENS = 32, MIN_BLOCK_TOKENS = 10, MIN_TERNARY_TOKENS = 4 };

void qn_matmul_init_amx(qn_matmul_kernels *kernels)
{
    kernels->gemm_tiles = qn_tile_gemm_amx;
    kernels->put_tile = qn_tile_put_amx;
    kernels->min_tile_tokens = MIN_TOKENS;
    kernels->block_scales = true;
    kernels->gemm_blocks = qn_block_gemm_amx;
    kernels->min_block_tokens = MIN_BLOCK_TOKENS;
    kernels->min_ternary_tokens = MIN_TERNARY_TOKENS;
}

void qn_tile_gemm_amx(const qn_tile_panel *panel, const qn_acts *acts, size_t first, size_t n_tokens, bool accumulate,
                      float *out, size_t out_stride, void *scratch)
{
    gemm_tiles(panel, acts, first, n_tokens, accumulate, out, out_stride, scratch);
}
