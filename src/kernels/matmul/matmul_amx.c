/* The GEMM of tiles.h on Intel AMX, with AVX-512 for the rest. */
#define QN_V16_AVX512
#include "kernels/vec16.h"

#include "kernels/matmul/tiles.h"

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

/* Two rows of 32 weights of 1 or -1. */
QN_INLINE void expand_bits(const uint8_t *words, int8_t *out)
{
    uint64_t bits;
    memcpy(&bits, words, 8);
    _mm512_store_si512(out, _mm512_mask_blend_epi8((__mmask64)bits, _mm512_set1_epi8(-1), _mm512_set1_epi8(1)));
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

/* With fewer tokens, unpacking the rows costs more than is won. */
enum { MIN_TOKENS = 32 };

void qn_matmul_init_amx(qn_matmul_kernels *kernels)
{
    kernels->gemm_tiles = qn_tile_gemm_amx;
    kernels->put_tile = qn_tile_put_amx;
    kernels->min_tile_tokens = MIN_TOKENS;
}

void qn_tile_gemm_amx(const qn_tile_panel *panel, const qn_acts *acts, size_t first, size_t n_tokens, bool accumulate,
                      float *out, size_t out_stride, void *scratch)
{
    gemm_tiles(panel, acts, first, n_tokens, accumulate, out, out_stride, scratch);
}
