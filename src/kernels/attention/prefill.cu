// Attention of the rows of a prefill step over a session's cache, on tensor cores. A block processes
// QN_ATTENTION_PREFILL_ROWS queries of a key-value head: the tokens of one page of positions times the query heads of
// the group, so that all of them read the same rows in the same format. A tile is one page of keys and values, stored
// as fp16 in shared memory. Codes are dequantised without their scales; key scales multiply scores, value scales
// multiply weights.
//
// The next tile is in flight while a tile is processed. A warp has sixteen queries.
//
// Method: Dao, FlashAttention-2 (2023).
#define DIM QN_HEAD_DIM
#define ENTRY_SHIFT 6 // one copy of an entry for lanes l, l + 8, ...: first the entries of keys, then those of values
#define TABLES_ALIGNED_64K 0

#include "kernels/attention/attention_cuda.h"
#include "kernels/codes.cuh"
#include "kernels/row.cuh"

#define ROWS QN_ATTENTION_PREFILL_ROWS
#define PAGE QN_ATTENTION_PAGE
#define THREADS (ROWS / 16 * QN_WARP_SIZE)
#define CODES (QN_KEY_BITS != 16)
#define VALUE_ENTRY 32
#define TABLE_ENTRIES (1 << max(index_bits(QN_KEY_BITS), index_bits(QN_VALUE_BITS)))
#define STRIDE (DIM * 2 + 16) // bytes of an fp16 row in shared memory; 16 bytes of padding avoid bank conflicts of ldmatrix
#define LANE_VALUES QN_LANE_VALUES(DIM)
#define LOG2E 1.4426950408889634f
#define LOWEST (-1e30f)

struct shared {
    float factors[ROWS], biases[ROWS];
    float key_scales[2][PAGE], value_scales[2][PAGE]; // of the two buffers
};

// A tile: one page of fp16 rows or of codes.
struct tile {
    const uint8_t *keys, *values;
    const float *key_scales, *value_scales;
    uint32_t n; // valid rows, at most PAGE; the others are filled with zeros
    bool codes;
};

// Copies PAGE fp16 rows to shared memory, with all threads. The caller commits the cp.async group.
QN_DEVICE void copy_f16(uint8_t *to, const uint8_t *from, uint32_t n)
{
    constexpr int segments = DIM * 2 / 16;
    for (int i = threadIdx.x; i < PAGE * segments; i += THREADS) {
        const int row = i / segments, segment = i % segments;
        qn_cp_async_16(to + row * STRIDE + segment * 16, from + (uint64_t)min((uint32_t)row, n - 1) * (DIM * 2) + segment * 16,
                       row < n ? 16 : 0);
    }
}

// Dequantises PAGE rows of codes to fp16, without their scales: four threads a row.
template <int bits, int offset> QN_DEVICE void dequantize(uint8_t *to, const uint8_t *from, uint32_t table)
{
    using p = lane_fragment<bits, 4>;
    for (int row = threadIdx.x / 4; row < PAGE; row += THREADS / 4) {
        const int t = threadIdx.x % 4;
        uint32_t words[p::words];
        load_lane_fragment<bits, 4>(words, from, row, t);
        uint8_t *row_to = to + row * STRIDE;
#pragma unroll
        for (int i = 0; i < p::codes; i += 4)
            *(uint2 *)(row_to + p::dim_of(i, t) * 2) = make_uint2(dequantize_pair<bits, offset>(table, words, i / 2),
                                                                  dequantize_pair<bits, offset>(table, words, i / 2 + 1));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    qn_attention_prefill(const __grid_constant__ qn_attention_prefill_args a)
{
    extern __shared__ __align__(128) uint8_t dynamic[];
    __shared__ __align__(8) shared s;
    uint8_t *queries = dynamic, *keys = queries + ROWS * STRIDE, *values = keys + 2 * PAGE * STRIDE;
    const uint32_t tables = qn_shared_address(values + 2 * PAGE * STRIDE);
    const int warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE, g = lane / 4, t = lane % 4;
    const uint32_t table = tables + lane % 8 * 4;

    if (CODES && threadIdx.x < TABLE_ENTRIES) {
        const uint32_t key = make_table_entry<QN_KEY_BITS>(threadIdx.x, a.key_codec);
        const uint32_t value = make_table_entry<QN_VALUE_BITS>(threadIdx.x, a.value_codec);
#pragma unroll
        for (int j = 0; j < 16; j++)
            asm volatile("st.shared.u32 [%0], %1;" ::"r"(tables + threadIdx.x * 64 + j * 4), "r"(j < 8 ? key : value)
                         : "memory");
    }
    qn_pdl_wait();
    qn_pdl_trigger();

    // Blocks of the last page run first: they have the most keys.
    const uint32_t group = a.n_heads / a.n_kv_heads, blocks_per_page = (PAGE * group + ROWS - 1) / ROWS, head = blockIdx.y;
    const uint32_t first = a.positions[0], end = first + a.n_rows, last_page = (end - 1) / PAGE;
    const uint32_t index = blockIdx.x / blocks_per_page, page = last_page - index;
    if (index > last_page || page < first / PAGE)
        return;
    const uint32_t begin = max(first, page * PAGE), stop = min(end, (page + 1) * PAGE);
    const uint32_t row0 = blockIdx.x % blocks_per_page * ROWS, n_rows = (stop - begin) * group;
    if (row0 >= n_rows)
        return;
    // Index among the queries, and position, of row r of the block.
    const auto query_of = [&](uint32_t r) {
        return (uint64_t)(begin - first + (row0 + r) / group) * a.n_heads + head * group + (row0 + r) % group;
    };
    const auto position_of = [&](uint32_t r) { return begin + (row0 + r) / group; };

    const uint32_t session = a.sessions ? a.sessions[0] : 0;
    const auto tile_of = [&](uint32_t r) {
        tile x;
        x.n = r == page ? stop - page * PAGE : PAGE;
        x.codes = QN_PAGES && r != 0 && r != page;
        x.key_scales = x.value_scales = 0;
        if (QN_PAGES && !x.codes) {
            const uint64_t at = session * a.pages.session + head * a.pages.head +
                                (uint64_t)(r ? 1 + (r - 1) % a.pages.n_open_pages : 0) * (PAGE * DIM * 2);
            x.keys = a.pages.keys + at;
            x.values = a.pages.values + at;
        } else {
            const uint64_t row = (uint64_t)(QN_PAGES ? r - 1 : r) * PAGE;
            x.keys = a.cache.keys + session * a.cache.key_session_stride + head * a.cache.key_head_stride +
                     row * (ROW_WORDS(QN_KEY_BITS) * 4);
            x.values = a.cache.values + session * a.cache.value_session_stride + head * a.cache.value_head_stride +
                       row * (ROW_WORDS(QN_VALUE_BITS) * 4);
            const uint64_t scales = session * a.cache.scale_session_stride + head * a.cache.scale_head_stride + row * 4;
            x.key_scales = (const float *)(a.cache.key_scales + scales);
            x.value_scales = (const float *)(a.cache.value_scales + scales);
        }
        return x;
    };
    const auto load = [&](uint32_t r) {
        const tile x = tile_of(r);
        uint8_t *k = keys + r % 2 * (PAGE * STRIDE), *v = values + r % 2 * (PAGE * STRIDE);
        if (x.codes) {
            if (CODES) {
                dequantize<CODES ? QN_KEY_BITS : 4, 0>(k, x.keys, table);
                dequantize<CODES ? QN_VALUE_BITS : 4, VALUE_ENTRY>(v, x.values, table);
            }
        } else {
            copy_f16(k, x.keys, x.n);
            copy_f16(v, x.values, x.n);
        }
        qn_cp_async_commit();
        // Value scales multiply weights, which become fp16. Values were fp16 before quantisation, so scale / gain is in
        // fp16's range.
        if (CODES && threadIdx.x < PAGE) {
            s.key_scales[r % 2][threadIdx.x] = x.codes ? x.key_scales[threadIdx.x] / a.key_codec.gain : 1;
            s.value_scales[r % 2][threadIdx.x] =
                x.codes ? fminf(x.value_scales[threadIdx.x] / a.value_codec.gain, 32752.0f) : 1;
        }
    };
    load(0);

    // Each warp stores its queries as fp16, scaled by a power of two to 1 <= amax < 2.
    float mean[LANE_VALUES];
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++)
        mean[i] =
            QN_PAGES && i * QN_WARP_SIZE + lane < DIM
                ? ((const float *)(a.pages.means + session * a.pages.mean_session_stride))[head * DIM + i * QN_WARP_SIZE + lane]
                : 0;
    for (int r = warp * 16; r < warp * 16 + 16; r++) {
        float x[LANE_VALUES], row_max = 0, bias = 0;
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++) {
            const bool has = row0 + r < n_rows && i * QN_WARP_SIZE + lane < DIM;
            x[i] = has ? a.queries[query_of(r) * DIM + i * QN_WARP_SIZE + lane] : 0;
            row_max = fmaxf(row_max, fabsf(x[i]));
            bias += x[i] * mean[i];
        }
        row_max = qn_warp_max(row_max);
        if (QN_PAGES)
            bias = qn_warp_sum(bias);
        const uint32_t exponent = __float_as_uint(row_max) >> 23;
        const bool is_normal = exponent > 0 && exponent < 254;
        const float up = is_normal ? __uint_as_float((254 - exponent) << 23) : 1;
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++)
            if (i * QN_WARP_SIZE + lane < DIM)
                *(uint16_t *)(queries + r * STRIDE + (i * QN_WARP_SIZE + lane) * 2) = qn_f32_to_f16(x[i] * up);
        if (lane == 0) {
            s.factors[r] = a.scale * LOG2E * (is_normal ? __uint_as_float(exponent << 23) : 1);
            s.biases[r] = bias * (a.scale * LOG2E);
        }
    }
    __syncwarp();
    const int rows[2] = { warp * 16 + g, warp * 16 + g + 8 };
    const float factors[2] = { s.factors[rows[0]], s.factors[rows[1]] }, biases[2] = { s.biases[rows[0]], s.biases[rows[1]] };

    float acc[DIM / 8][4], m[2] = { LOWEST, LOWEST }, l[2] = { 0, 0 };
#pragma unroll
    for (int i = 0; i < DIM / 8; i++)
        acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0;

    for (uint32_t r = 0; r <= page; r++) {
        qn_cp_async_wait<0>();
        __syncthreads(); // the current tile has arrived, and all warps have read the previous one
        if (r < page)
            load(r + 1);
        const uint8_t *k = keys + r % 2 * (PAGE * STRIDE), *v = values + r % 2 * (PAGE * STRIDE);

        float x[PAGE / 8][4];
#pragma unroll
        for (int i = 0; i < PAGE / 8; i++)
            x[i][0] = x[i][1] = x[i][2] = x[i][3] = 0;
#pragma unroll
        for (int i = 0; i < DIM / 16; i++) {
            uint32_t q[4];
            qn_ldmatrix_x4(q, queries + (warp * 16 + lane % 16) * STRIDE + (2 * i + lane / 16) * 16);
#pragma unroll
            for (int j = 0; j < PAGE / 16; j++) {
                uint32_t b[4];
                qn_ldmatrix_x4(b, k + (j * 16 + lane / 16 * 8 + lane % 8) * STRIDE + (2 * i + lane / 8 % 2) * 16);
                qn_mma_m16n8k16_f16(x[2 * j], q, b);
                qn_mma_m16n8k16_f16(x[2 * j + 1], q, b + 2);
            }
        }

        const bool is_codes = QN_PAGES && r != 0 && r != page;
        float row_max[2] = { m[0], m[1] };
#pragma unroll
        for (int i = 0; i < PAGE / 8; i++) {
            const float2 scales = CODES ? *(const float2 *)&s.key_scales[r % 2][i * 8 + 2 * t] : make_float2(1, 1);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                x[i][j] = fmaf(x[i][j], factors[j / 2] * (j % 2 ? scales.y : scales.x), is_codes ? biases[j / 2] : 0);
                if (r == page && page * PAGE + i * 8 + 2 * t + j % 2 > position_of(rows[j / 2]))
                    x[i][j] = -QN_INFINITY;
                row_max[j / 2] = fmaxf(row_max[j / 2], x[i][j]);
            }
        }
        float rescale[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            row_max[i] = fmaxf(row_max[i], __shfl_xor_sync(QN_FULL_MASK, row_max[i], 1));
            row_max[i] = fmaxf(row_max[i], __shfl_xor_sync(QN_FULL_MASK, row_max[i], 2));
            rescale[i] = qn_exp2(m[i] - row_max[i]);
            m[i] = row_max[i];
            l[i] *= rescale[i];
        }
        if (__any_sync(QN_FULL_MASK, rescale[0] != 1 || rescale[1] != 1)) {
#pragma unroll
            for (int i = 0; i < DIM / 8; i++) {
                acc[i][0] *= rescale[0];
                acc[i][1] *= rescale[0];
                acc[i][2] *= rescale[1];
                acc[i][3] *= rescale[1];
            }
        }
#pragma unroll
        for (int i = 0; i < PAGE / 8; i++) {
            const float2 scales = CODES ? *(const float2 *)&s.value_scales[r % 2][i * 8 + 2 * t] : make_float2(1, 1);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                x[i][j] = qn_exp2(x[i][j] - m[j / 2]);
                l[j / 2] += x[i][j];
                x[i][j] *= j % 2 ? scales.y : scales.x;
            }
        }
#pragma unroll
        for (int i = 0; i < PAGE / 16; i++) {
            const uint32_t p[4] = { qn_f32_to_f16x2(x[2 * i][0], x[2 * i][1]), qn_f32_to_f16x2(x[2 * i][2], x[2 * i][3]),
                                    qn_f32_to_f16x2(x[2 * i + 1][0], x[2 * i + 1][1]),
                                    qn_f32_to_f16x2(x[2 * i + 1][2], x[2 * i + 1][3]) };
#pragma unroll
            for (int j = 0; j < DIM / 16; j++) {
                uint32_t b[4];
                qn_ldmatrix_x4_trans(b, v + (i * 16 + lane / 8 % 2 * 8 + lane % 8) * STRIDE + (2 * j + lane / 16) * 16);
                qn_mma_m16n8k16_f16(acc[2 * j], p, b);
                qn_mma_m16n8k16_f16(acc[2 * j + 1], p, b + 2);
            }
        }
    }

    // ---- Results, through rows of floats in shared memory ----

    constexpr int row_floats = DIM + 4;
    float *results = (float *)dynamic;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        l[i] += __shfl_xor_sync(QN_FULL_MASK, l[i], 1);
        l[i] += __shfl_xor_sync(QN_FULL_MASK, l[i], 2);
        const float norm = 1 / l[i]; // l > 0: every query attends to its own position
#pragma unroll
        for (int j = 0; j < DIM / 8; j++)
            *(float2 *)(results + rows[i] * row_floats + j * 8 + 2 * t) =
                make_float2(acc[j][2 * i] * norm, acc[j][2 * i + 1] * norm);
    }
    __syncwarp();
    for (int r = warp * 16; r < warp * 16 + 16 && row0 + r < n_rows; r++) {
        const uint64_t query = query_of(r);
        float x[LANE_VALUES];
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++)
            x[i] = i * QN_WARP_SIZE + lane < DIM ? results[r * row_floats + i * QN_WARP_SIZE + lane] : 0;
        qn_row_rotate_inverse<DIM>(x, a.rotation, lane);
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++) {
            const int dim = i * QN_WARP_SIZE + lane;
            if (dim < DIM) {
                if (a.gates)
                    x[i] /= 1 + __expf(-a.gates[(query * 2 + 1) * DIM + dim]);
                a.out[query * DIM + dim] = x[i];
            }
        }
    }
}
