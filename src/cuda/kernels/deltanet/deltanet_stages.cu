// Stages of the chunked delta rule that chunks compute independently of each other: qn_gdn_cumsum, qn_gdn_kkt,
// qn_gdn_tril_inverse, qn_gdn_recompute_w_u and qn_gdn_chunk_output of stages.h. All are bound by memory. A block is a
// warp group (of qn_gdn_tril_inverse two warps), and blocks of the same SM hide each other's latencies.
#include "cuda/kernels/deltanet/stages.cuh"

#define THREADS QN_GDN_STAGE_THREADS

// Waits for the copies to shared memory of all threads, and makes them visible to MMAs.
QN_DEVICE void wait_for_copies()
{
    qn_cp_async_wait<0>();
    fence_async_proxy();
    __syncthreads();
}

// A thread's elements (row, column) of accumulators: rows first_row() + {0, 8}, columns n * 8 + first_key() + {0, 1}.
QN_DEVICE uint32_t first_row()
{
    return first_value(0);
}

// ---- Cumulative sums ----

extern "C" __global__ void __launch_bounds__(THREADS) qn_gdn_cumsum(const __grid_constant__ qn_gdn_stage_args a)
{
    chunk c;
    uint32_t block;
    qn_pdl_wait();
    qn_pdl_trigger();
    const bool any = chunk_of_block(a.rule, (a.rule.v_heads + THREADS - 1) / THREADS, c, block);
    const uint32_t head = block * THREADS + threadIdx.x;
    if (!any || head >= a.rule.v_heads)
        return;
    double sum = 0;
    for (uint32_t i = 0; i < c.n; i++) {
        const size_t token = c.first + i;
        sum += (double)qn_gdn_log_decay(a.rule, qn_load_typed(a.rule.g, token * a.rule.g_stride + head, a.rule.g_dtype), head);
        a.gc[token * a.gc_stride + head] = (float)sum;
    }
}

// ---- k k^T ----

struct kkt_smem {
    unsigned char k[KEY_TILES * TILE];
    chunk_gates gates;
};

static_assert(sizeof(kkt_smem) <= QN_GDN_KKT_BYTES(HEAD_K), "the launch's shared memory");

extern "C" __global__ void __launch_bounds__(THREADS) qn_gdn_kkt(const __grid_constant__ qn_gdn_stage_args a)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    kkt_smem &m = *(kkt_smem *)shared;
    chunk c;
    uint32_t k_head;
    qn_pdl_wait();
    qn_pdl_trigger();
    if (!chunk_of_block(a.rule, a.rule.k_heads, c, k_head))
        return;
    const uint32_t heads = a.rule.v_heads / a.rule.k_heads, step = a.rule.tiled ? a.rule.k_heads : 1;
    load_rows<KEY_TILES, THREADS>(m.k, row_of(a.rule.k, c.first, a.rule.k_stride, k_head * HEAD_K), a.rule.k_stride, c.n, HEAD_K,
                                  threadIdx.x);
    qn_cp_async_commit();
    wait_for_copies();
    float kk[8][4];
    mma_fence();
    mma_abt_shared<false>(kk, m.k, m.k);
#pragma unroll
    for (int tile = 1; tile < KEY_TILES; tile++)
        mma_abt_shared<true>(kk, m.k + tile * TILE, m.k + tile * TILE);
    mma_commit();
    mma_wait<0>(kk);
    uint32_t head = a.rule.tiled ? k_head : k_head * heads;
    for (uint32_t i = 0; i < heads; i++, head += step) {
        if (i > 0)
            __syncthreads(); // the gates of the previous head have been read
        if (threadIdx.x < QN_WARP_SIZE)
            load_chunk_gates(m.gates, a, c, head, true);
        __syncthreads();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t row = first_row() + half * 8;
            const float beta = m.gates.beta[row], gc = m.gates.gc[row];
            float *to = a.a + (size_t)(c.first + row) * a.a_stride + head * TOKENS;
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const uint32_t column = n * 8 + first_key();
                const float2 before = *(const float2 *)(m.gates.gc + column);
                const float x = column < row ? beta * kk[n][2 * half] * qn_exp2(gc - before.x) : 0.0f;
                const float y = column + 1 < row ? beta * kk[n][2 * half + 1] * qn_exp2(gc - before.y) : 0.0f;
                if (row < c.n)
                    *(float2 *)(to + column) = make_float2(x, y);
            }
        }
    }
}

// ---- (I + a)^-1 ----

#define ROW QN_GDN_INVERSE_ROW

// Columns of the inverse from column `first` on, one a lane, by forward substitution; those before it are zeros in rows
// before `first`. Stores n rows.
template <int first> QN_DEVICE void solve_columns(const float *a, float *to, uint32_t stride, uint32_t n)
{
    const uint32_t column = first + threadIdx.x % QN_WARP_SIZE;
    float x[TOKENS - first];
#pragma unroll
    for (int i = first; i < TOKENS; i++) {
        float sum = column == i ? 1.0f : 0.0f;
#pragma unroll
        for (int quad = first / 4; quad * 4 < i; quad++) {
            const float4 row = *(const float4 *)(a + i * ROW + quad * 4);
            const float elements[4] = { row.x, row.y, row.z, row.w };
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (quad * 4 + e < i)
                    sum = fmaf(-elements[e], x[quad * 4 + e - first], sum);
        }
        x[i - first] = sum;
    }
#pragma unroll
    for (int i = 0; i < TOKENS; i++)
        if (i < n)
            to[(size_t)i * stride + column] = i < first ? 0.0f : x[i < first ? 0 : i - first];
}

extern "C" __global__ void __launch_bounds__(QN_GDN_INVERSE_THREADS)
    qn_gdn_tril_inverse(const __grid_constant__ qn_gdn_stage_args a)
{
    __shared__ __align__(16) float rows[TOKENS * ROW];
    chunk c;
    uint32_t head;
    qn_pdl_wait();
    qn_pdl_trigger();
    if (!chunk_of_block(a.rule, a.rule.v_heads, c, head))
        return;
    const uint32_t quad = threadIdx.x % 16;
    const float *from = a.a + (size_t)c.first * a.a_stride + head * TOKENS + quad * 4;
    for (uint32_t row = threadIdx.x / 16; row < TOKENS; row += QN_GDN_INVERSE_THREADS / 16)
        if (quad * 4 < row)
            qn_cp_async_16(rows + row * ROW + quad * 4, row < c.n ? from + (size_t)row * a.a_stride : from, row < c.n ? 16 : 0);
    qn_cp_async_commit();
    qn_cp_async_wait<0>();
    __syncthreads();
    float *to = a.inverse + (size_t)c.first * a.inverse_stride + head * TOKENS;
    if (threadIdx.x < QN_WARP_SIZE)
        solve_columns<0>(rows, to, a.inverse_stride, c.n);
    else
        solve_columns<32>(rows, to, a.inverse_stride, c.n);
}

// ---- Results of 64 tokens by 64 columns ----

// Rounds accumulators to a tile, which all warps have read, and stores n of its rows. A warp stores the rows that it
// has rounded.
QN_DEVICE void store_result(void *to, uint32_t stride, unsigned char *tile, const float d[8][4], uint32_t n, uint32_t columns)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, segment = lane % 8;
    store_rounded(tile, d);
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t row = threadIdx.x / QN_WARP_SIZE * 16 + i * 4 + lane / 8;
        if (row < n && segment * 8 < columns)
            *(uint4 *)((uint16_t *)to + (size_t)row * stride + segment * 8) =
                *(const uint4 *)(tile + swizzled_offset(row, segment));
    }
}

// ---- w and u ----

struct w_u_smem {
    chunk_gates gates;
    unsigned char unused[1024 - sizeof(chunk_gates)]; // tiles begin at multiples of 1024
    unsigned char tiles[KEY_TILES * TILE];            // then the tiles of the values
};

// A thread's elements of the inverse as an A operand; those above the diagonal are zeros.
QN_DEVICE void load_inverse(const qn_gdn_stage_args &a, const chunk &c, uint32_t head, float2 x[4][4])
{
#pragma unroll
    for (int s = 0; s < 4; s++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const uint32_t row = first_row() + r % 2 * 8, column = s * 16 + r / 2 * 8 + first_key();
            x[s][r] = make_float2(0, 0);
            if (column <= row && row < c.n)
                x[s][r] = *(const float2 *)(a.inverse + (size_t)(c.first + row) * a.inverse_stride + head * TOKENS + column);
            if (column + 1 > row)
                x[s][r].y = 0;
        }
}

// The inverse with its columns multiplied by beta, and those by e^gc.
QN_DEVICE void scale_inverse(const chunk_gates &gates, const float2 x[4][4], uint32_t for_u[4][4], uint32_t for_w[4][4])
{
#pragma unroll
    for (int s = 0; s < 4; s++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t column = s * 16 + half * 8 + first_key();
            const float2 beta = *(const float2 *)(gates.beta + column), gc = *(const float2 *)(gates.gc + column);
            const float2 decays = make_float2(qn_exp2(gc.x), qn_exp2(gc.y));
#pragma unroll
            for (int r = 2 * half; r < 2 * half + 2; r++) {
                const float2 y = make_float2(x[s][r].x * beta.x, x[s][r].y * beta.y);
                for_u[s][r] = pack_pair(y.x, y.y);
                for_w[s][r] = pack_pair(y.x * decays.x, y.y * decays.y);
            }
        }
}

// Multiplies a tile from the left and stores the result, by way of the same tile.
QN_DEVICE void multiply_tile(const uint32_t left[4][4], unsigned char *tile, void *to, uint32_t stride, uint32_t n,
                             uint32_t columns)
{
    float d[8][4] = {};
    mma_fence();
    mma_ab(d, left, tile);
    mma_commit();
    mma_wait<0>(d);
    __syncthreads(); // all warps have read the tile
    store_result(to, stride, tile, d, n, columns);
}

extern "C" __global__ void __launch_bounds__(THREADS) qn_gdn_recompute_w_u(const __grid_constant__ qn_gdn_stage_args a)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    w_u_smem &m = *(w_u_smem *)shared;
    unsigned char *values = m.tiles + KEY_TILES * TILE;
    chunk c;
    uint32_t head;
    qn_pdl_wait();
    qn_pdl_trigger();
    if (!chunk_of_block(a.rule, a.rule.v_heads, c, head))
        return;
    const uint32_t head_v = a.rule.head_v;
    const uint16_t *v = row_of(a.rule.v, c.first, a.rule.v_stride, head * head_v);
    load_rows<KEY_TILES, THREADS>(m.tiles, row_of(a.rule.k, c.first, a.rule.k_stride, key_head(a.rule, head) * HEAD_K),
                                  a.rule.k_stride, c.n, HEAD_K, threadIdx.x);
    for (uint32_t at = 0; at < head_v; at += SLICE)
        load_rows<1, THREADS>(values + at / SLICE * TILE, v + at, a.rule.v_stride, c.n, head_v - at, threadIdx.x);
    qn_cp_async_commit();
    float2 inverse[4][4];
    load_inverse(a, c, head, inverse);
    if (threadIdx.x < QN_WARP_SIZE)
        load_chunk_gates(m.gates, a, c, head, true);
    wait_for_copies();
    uint32_t for_u[4][4], for_w[4][4];
    scale_inverse(m.gates, inverse, for_u, for_w);
    for (uint32_t at = 0; at < head_v; at += SLICE)
        multiply_tile(for_u, values + at / SLICE * TILE, (uint16_t *)row_of(a.u, c.first, a.u_stride, head * head_v + at),
                      a.u_stride, c.n, head_v - at);
#pragma unroll
    for (uint32_t tile = 0; tile < KEY_TILES; tile++)
        multiply_tile(for_w, m.tiles + tile * TILE, (uint16_t *)row_of(a.w, c.first, a.w_stride, head * HEAD_K + tile * 64),
                      a.w_stride, c.n, HEAD_K - tile * 64);
}

// ---- Outputs ----

struct output_stage {
    unsigned char h[KEY_TILES * TILE], v[TILE]; // v: v_new, then o
};

struct output_smem {
    unsigned char q[KEY_TILES * TILE], k[KEY_TILES * TILE];
    output_stage stages[2];
    chunk_gates gates;
};

static_assert(sizeof(output_smem) <= QN_GDN_OUTPUT_BYTES(HEAD_K), "the launch's shared memory");

// Issues the copies of a slice of the state and of v_new.
QN_DEVICE void load_slice(const qn_gdn_stage_args &a, const chunk &c, const uint16_t *h, uint32_t head, uint32_t at,
                          output_stage &to)
{
    const uint32_t head_v = a.rule.head_v, rows = head_v - at < SLICE ? head_v - at : SLICE;
    load_rows<KEY_TILES, THREADS>(to.h, h + (size_t)at * HEAD_K, HEAD_K, rows, HEAD_K, threadIdx.x);
    load_rows<1, THREADS>(to.v, row_of(a.v_new, c.first, a.v_new_stride, head * head_v + at), a.v_new_stride, c.n, head_v - at,
                          threadIdx.x);
}

// The gated and masked scores, A operand.
QN_DEVICE void compute_scores(const output_smem &m, uint32_t scores[4][4])
{
    float d[8][4];
    mma_fence();
    mma_abt_shared<false>(d, m.q, m.k);
#pragma unroll
    for (int tile = 1; tile < KEY_TILES; tile++)
        mma_abt_shared<true>(d, m.q + tile * TILE, m.k + tile * TILE);
    mma_commit();
    mma_wait<0>(d);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t row = first_row() + e / 2 * 8, column = n * 8 + first_key() + e % 2;
            d[n][e] = column <= row ? d[n][e] * qn_exp2(m.gates.gc[row] - m.gates.gc[column]) : 0.0f;
        }
#pragma unroll
    for (int i = 0; i < 4; i++)
        pack_fragment(scores[i], d[2 * i], d[2 * i + 1]);
}

// o of a slice.
QN_DEVICE void compute_slice(const output_smem &m, const output_stage &stage, const uint32_t scores[4][4], float scale,
                             float d[8][4])
{
    mma_fence();
    mma_abt_shared<false>(d, m.q, stage.h);
#pragma unroll
    for (int tile = 1; tile < KEY_TILES; tile++)
        mma_abt_shared<true>(d, m.q + tile * TILE, stage.h + tile * TILE);
    mma_commit();
    mma_wait<0>(d);
    const float decays[2] = { qn_exp2(m.gates.gc[first_row()]), qn_exp2(m.gates.gc[first_row() + 8]) };
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            d[n][e] *= decays[e / 2];
    mma_fence();
    mma_ab(d, scores, stage.v);
    mma_commit();
    mma_wait<0>(d);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            d[n][e] *= scale;
}

extern "C" __global__ void __launch_bounds__(THREADS) qn_gdn_chunk_output(const __grid_constant__ qn_gdn_stage_args a)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    output_smem &m = *(output_smem *)shared;
    chunk c;
    uint32_t head;
    qn_pdl_wait();
    qn_pdl_trigger();
    if (!chunk_of_block(a.rule, a.rule.v_heads, c, head))
        return;
    const uint32_t k_head = key_head(a.rule, head), head_v = a.rule.head_v;
    const size_t state = (size_t)(chunks_before(a.rule, c.s.index) + c.number) * a.rule.v_heads + head;
    const uint16_t *h = (const uint16_t *)a.h + state * head_v * HEAD_K;
    load_rows<KEY_TILES, THREADS>(m.q, row_of(a.rule.q, c.first, a.rule.q_stride, k_head * HEAD_K), a.rule.q_stride, c.n, HEAD_K,
                                  threadIdx.x);
    load_rows<KEY_TILES, THREADS>(m.k, row_of(a.rule.k, c.first, a.rule.k_stride, k_head * HEAD_K), a.rule.k_stride, c.n, HEAD_K,
                                  threadIdx.x);
    qn_cp_async_commit();
    load_slice(a, c, h, head, 0, m.stages[0]);
    qn_cp_async_commit();
    if (threadIdx.x < QN_WARP_SIZE)
        load_chunk_gates(m.gates, a, c, head, false);
    qn_cp_async_wait<1>();
    fence_async_proxy();
    __syncthreads();
    uint32_t scores[4][4];
    compute_scores(m, scores);
    for (uint32_t at = 0, i = 0; at < head_v; at += SLICE, i ^= 1) {
        wait_for_copies(); // and all warps have stored the slice before the previous one
        if (at + SLICE < head_v)
            load_slice(a, c, h, head, at + SLICE, m.stages[i ^ 1]);
        qn_cp_async_commit();
        float d[8][4];
        compute_slice(m, m.stages[i], scores, a.rule.scale, d);
        __syncthreads(); // all warps have read v_new
        store_result((uint16_t *)a.rule.o + (size_t)c.first * a.rule.o_stride + head * head_v + at, a.rule.o_stride,
                     m.stages[i].v, d, c.n, head_v - at);
    }
}
