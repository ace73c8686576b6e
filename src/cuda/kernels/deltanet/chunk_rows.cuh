// The rows of an open chunk as kernels of few rows have them in shared memory, and the loads of these and of the state
// to registers, for MMAs whose A operand is 16 rows of the state or of the chunk's keys. For deltanet_open_row.cu and
// deltanet_open_few.cu.
#ifndef QN_CUDA_KERNELS_DELTANET_CHUNK_ROWS_CUH
#define QN_CUDA_KERNELS_DELTANET_CHUNK_ROWS_CUH

#include "cuda/kernels/deltanet/open_chunk.cuh"

enum {
    ROW_THREADS = QN_GDN_ROW_THREADS,
    ROW_WARPS = ROW_THREADS / QN_WARP_SIZE,
    TILE_ROWS = 16,              /* that a warp multiplies at a time */
    KEY_GROUPS = QN_HEAD_K / 32, /* of 32 keys, which four lanes load of a row */
    SEGMENTS = QN_HEAD_K / 8,    /* of 16 bytes, of a row of the chunk */
    PASS_ROWS = ROW_THREADS / SEGMENTS
};

static_assert(QN_HEAD_K == 4 * QN_WARP_SIZE && QN_HEAD_V == QN_HEAD_K, "a lane convolves four channels");
static_assert(QN_HEAD_V == ROW_WARPS * TILE_ROWS, "a warp has a tile of the state");
static_assert(QN_GDN_SCALE_VALUES % TILE_ROWS == 0, "the values of a warp have one scale");

struct chunk_rows {
    __align__(16) uint16_t keys[CHUNK * QN_HEAD_K], values[CHUNK * QN_HEAD_V]; // swizzled
    __align__(16) float scales[GROUPS][CHUNK], decays[CHUNK], norm[QN_HEAD_V];
    float since[CHUNK], total; // sums of log decays
};

QN_DEVICE uint32_t warp_id()
{
    return threadIdx.x / QN_WARP_SIZE;
}

// Of a lane 4 g + t of an MMA.
QN_DEVICE uint32_t lane_g()
{
    return threadIdx.x % QN_WARP_SIZE / 4;
}

QN_DEVICE uint32_t lane_t()
{
    return threadIdx.x % 4;
}

// Scales and decays of the chunk, and weights of the norm. By QN_HEAD_K / 2 threads; i: the thread among them.
QN_DEVICE void load_vectors(chunk_rows &m, const qn_gdn_open_args &a, const open_head &h, uint32_t n, uint32_t i)
{
    const uint32_t array = i / (CHUNK / 4), row = i % (CHUNK / 4) * 4;
    const float *from = array < GROUPS ? scales_of(a, h) + array * CHUNK : decays_of(a, h);
    const uint32_t valid = row < n ? n - row : 0;
    if (array <= GROUPS)
        qn_cp_async_16((array < GROUPS ? m.scales[array] : m.decays) + row, from + row, valid < 4 ? 4 * valid : 16);
    if (i < QN_HEAD_V / 4)
        qn_cp_async_16(m.norm + 4 * i, a.norm + 4 * i);
}

// Where segment `segment` of a row of keys is: eight lanes that read two rows, four segments each, are free of bank
// conflicts.
QN_DEVICE uint32_t key_segment(uint32_t row, uint32_t segment)
{
    return row * QN_HEAD_K + (segment ^ (row & 1) << 2) * 8;
}

// The same of 16 values: a warp that reads eight pairs of four rows is free of bank conflicts.
QN_DEVICE uint32_t value_tile(uint32_t row, uint32_t tile)
{
    return row * QN_HEAD_V + (tile ^ (row & 7)) * TILE_ROWS;
}

// Keys and values of the chunk. Rows from n on become zeros.
QN_DEVICE void load_keys(chunk_rows &m, const qn_gdn_open_args &a, const open_head &h, uint32_t n)
{
    const uint32_t row = threadIdx.x / SEGMENTS, segment = threadIdx.x % SEGMENTS;
    const uint16_t *from = keys_of(a, h) + row * QN_HEAD_K + segment * 8;
    uint16_t *to = m.keys + key_segment(row, segment);
#pragma unroll
    for (uint32_t i = 0; i < CHUNK; i += PASS_ROWS)
        qn_cp_async_16(to + i * QN_HEAD_K, from + i * QN_HEAD_K, row + i < n ? 16 : 0);
}

QN_DEVICE void load_values(chunk_rows &m, const qn_gdn_open_args &a, const open_head &h, uint32_t n)
{
    const uint32_t row = threadIdx.x / SEGMENTS, segment = threadIdx.x % SEGMENTS;
    const uint16_t *from = values_of(a, h) + row * QN_HEAD_V + segment * 8;
    uint16_t *to = m.values + value_tile(row, segment / 2) + segment % 2 * 8;
#pragma unroll
    for (uint32_t i = 0; i < CHUNK; i += PASS_ROWS)
        qn_cp_async_16(to + i * QN_HEAD_V, from + i * QN_HEAD_V, row + i < n ? 16 : 0);
}

// Two rows of a lane: of each group of 32 keys, those from 8 t on.
struct tile_rows {
    uint4 low[KEY_GROUPS], high[KEY_GROUPS];
};

// The state of two adjacent values. It is read once: it should not stay in L2.
QN_DEVICE void load_state(tile_rows &s, const open_head &h)
{
    const uint32_t value = warp_id() * TILE_ROWS + 2 * lane_g();
    const uint4 *from = (const uint4 *)(hi_of(h) + value * QN_HEAD_K) + lane_t();
#pragma unroll
    for (int i = 0; i < KEY_GROUPS; i++) {
        s.low[i] = h.has_state ? __ldcs(from + 4 * i) : make_uint4(0, 0, 0, 0);
        s.high[i] = h.has_state ? __ldcs(from + SEGMENTS + 4 * i) : make_uint4(0, 0, 0, 0);
    }
}

// The keys of 16 rows of the chunk.
QN_DEVICE void read_keys(tile_rows &rows, const chunk_rows &m, uint32_t first)
{
    const uint32_t low = first + lane_g();
    const uint16_t *keys = m.keys + low * QN_HEAD_K + 8 * lane_t();
#pragma unroll
    for (int i = 0; i < KEY_GROUPS; i++) { // as key_segment has them
        const uint32_t at = (low & 1 ? i ^ 1 : i) * 32;
        rows.low[i] = *(const uint4 *)(keys + at);
        rows.high[i] = *(const uint4 *)(keys + 8 * QN_HEAD_K + at);
    }
}

QN_DEVICE float4 add_tap(float4 w, float4 x, float4 sum)
{
    return make_float4(fmaf(w.x, x.x, sum.x), fmaf(w.y, x.y, sum.y), fmaf(w.z, x.z, sum.z), fmaf(w.w, x.w, sum.w));
}

#endif
