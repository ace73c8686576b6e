// Gated DeltaNet over chunks of 64 tokens, the part that does not depend on the state: qn_gdn_prepare of deltanet_cuda.h. All
// chunks run in parallel.
#include "kernels/deltanet/chunk.cuh"
#include "kernels/deltanet/tf32.cuh"

#define MIN_LOG_DECAY -256.0f // e^-256 is 0 in f32

QN_DEVICE uint32_t value_head(const qn_gdn_chunk_args &a, uint32_t k_head, uint32_t i)
{
    return a.tiled ? i * a.k_heads + k_head : k_head * (a.v_heads / a.k_heads) + i;
}

#define PREPARE_THREADS QN_GDN_PREPARE_THREADS
#define ROW 68      // row stride of a 64x64 matrix in floats: fragment accesses to 8 rows are free of bank conflicts
// Quads of 4 columns per thread: of the four 16x16 blocks on the diagonal, 256 in all, and of the six below it, 384.
#define DIAGONAL_QUADS 2
#define LOWER_QUADS 3
#define OWN_QUADS (DIAGONAL_QUADS + LOWER_QUADS)

struct prepare_smem {
    union {
        struct {
            unsigned char k[2 * TILE], q[2 * TILE];
        };
        struct {
            float kk[TOKENS * ROW], qk[TOKENS * ROW]; // valid after the tiles have been read
        };
    };
    float matrix[TOKENS * ROW]; // A, then (I + A)^-1; intermediate products are stored above the diagonal
    // Of this head and the next: gc in units of log 2, as the sum of two floats, and beta. rows[][i] = { gc_hi, gc_lo,
    // beta, e^(gc_i - gc_first) } for access by row, the separate arrays for access by column. columns: e^(gc_first - gc_j).
    // first is the first row of a block of 16; both exponents are at most 0.
    float4 rows[2][TOKENS];
    float gc_hi[2][TOKENS], gc_lo[2][TOKENS], beta[2][TOKENS];
    float columns[2][16 + 32 + 48]; // for rows 16, 32 and 48
    float2 norms[TOKENS];           // 1/norm of k and of q
};

static_assert(sizeof(prepare_smem) == QN_GDN_PREPARE_BYTES, "the launch's shared memory");

// Index in prepare_smem.columns of column 0 for a block of rows, 1 to 3.
QN_DEVICE uint32_t columns_of(uint32_t block)
{
    return 8 * block * (block - 1);
}

// The factors of decays of a lane's two tokens, for the blocks below the diagonal.
QN_DEVICE void store_block_factors(prepare_smem &m, uint32_t to, const float hi[2], const float lo[2])
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, own_block = lane / 8;
#pragma unroll
    for (uint32_t block = 0; block < 4; block++) {
        const float first_hi = __shfl_sync(QN_FULL_MASK, hi[0], block * 8), first_lo = __shfl_sync(QN_FULL_MASK, lo[0], block * 8);
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const float distance = (hi[i] - first_hi) + (lo[i] - first_lo);
            if (block == own_block)
                m.rows[to][2 * lane + i].w = qn_exp2(distance);
            else if (block > own_block)
                m.columns[to][columns_of(block) + 2 * lane + i] = qn_exp2(-distance);
        }
    }
}

// Log decays and beta of two tokens of a lane. Tokens past the end have g = 0 and beta = 0.
struct gates {
    float g[2], beta[2];
};

QN_DEVICE gates load_gates(const qn_gdn_chunk_args &a, uint32_t first, uint32_t n, uint32_t head)
{
    gates x;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t token = threadIdx.x % QN_WARP_SIZE * 2 + i;
        const size_t at = (size_t)(first + token) * a.gate_stride + head;
        x.g[i] = token < n ? a.g[at] : 0.0f;
        x.beta[i] = token < n ? a.beta[at] : 0.0f;
    }
    return x;
}

// Cumulative sums of the log decays of a value head, in double, by one warp.
QN_DEVICE void cumsum_decays(prepare_smem &m, uint32_t to, const gates &x)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE;
    const float g[2] = { fminf(fmaxf(x.g[0], MIN_LOG_DECAY), 0.0f), fminf(fmaxf(x.g[1], MIN_LOG_DECAY), 0.0f) };
    double sum = (double)g[0] + (double)g[1];
#pragma unroll
    for (uint32_t distance = 1; distance < QN_WARP_SIZE; distance *= 2) {
        const double before = __shfl_up_sync(QN_FULL_MASK, sum, distance);
        sum += lane >= distance ? before : 0.0;
    }
    float hi[2], lo[2];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const double at = (i ? sum : sum - (double)g[1]) * 1.4426950408889634;
        hi[i] = (float)at;
        lo[i] = (float)(at - (double)hi[i]);
        m.rows[to][2 * lane + i] = make_float4(hi[i], lo[i], x.beta[i], 0);
        m.gc_hi[to][2 * lane + i] = hi[i];
        m.gc_lo[to][2 * lane + i] = lo[i];
        m.beta[to][2 * lane + i] = x.beta[i];
    }
    store_block_factors(m, to, hi, lo);
}

// Rows [16 block, 16 block + 16) of m.kk and m.qk up to the diagonal, with k and q divided by their norms and q times scale; and
// 1/norm of these rows of k and q.
QN_DEVICE void compute_kk_qk(const qn_gdn_chunk_args &a, prepare_smem &m, uint32_t block)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, g = lane / 4, t = lane % 4;
    float kk[8][4] = {}, qk[8][4] = {}, k_sum[2] = { 0, 0 }, q_sum[2] = { 0, 0 };
#pragma unroll
    for (int s = 0; s < 8; s++) {
        const uint32_t tile = s / 4 * TILE, segment = s % 4 * 2;
        uint32_t of_k[4], of_q[4];
        const uint32_t at = tile + swizzled_offset(block * 16 + lane % 16, segment + lane / 16);
        qn_ldmatrix_x4(of_k, m.k + at);
        qn_ldmatrix_x4(of_q, m.q + at);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            k_sum[r % 2] += bf16_lo(of_k[r]) * bf16_lo(of_k[r]) + bf16_hi(of_k[r]) * bf16_hi(of_k[r]);
            q_sum[r % 2] += bf16_lo(of_q[r]) * bf16_lo(of_q[r]) + bf16_hi(of_q[r]) * bf16_hi(of_q[r]);
        }
#pragma unroll
        for (int n = 0; n < 4; n++)
            if (n <= block) {
                uint32_t b[4];
                qn_ldmatrix_x4(b, m.k + tile + swizzled_offset(n * 16 + lane % 8 + lane / 16 * 8, segment + lane / 8 % 2));
                qn_mma_m16n8k16_bf16(kk[2 * n], of_k, b);
                qn_mma_m16n8k16_bf16(kk[2 * n + 1], of_k, b + 2);
                qn_mma_m16n8k16_bf16(qk[2 * n], of_q, b);
                qn_mma_m16n8k16_bf16(qk[2 * n + 1], of_q, b + 2);
            }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int distance = 1; distance < 4; distance *= 2) {
            k_sum[i] += __shfl_xor_sync(QN_FULL_MASK, k_sum[i], distance);
            q_sum[i] += __shfl_xor_sync(QN_FULL_MASK, q_sum[i], distance);
        }
        if (t == 0) {
            m.norms[block * 16 + i * 8 + g] = make_float2(a.normalize ? 1.0f / sqrtf(k_sum[i] + 1e-6f) : 1.0f,
                                                          a.normalize ? 1.0f / sqrtf(q_sum[i] + 1e-6f) : 1.0f);
        }
    }
    __syncthreads(); // all warps have read the tiles, which kk and qk overwrite, and have written their norms
#pragma unroll
    for (int n = 0; n < 8; n++)
        if (n / 2 <= block) {
            const float column_norms[2] = { m.norms[n * 8 + 2 * t].x, m.norms[n * 8 + 2 * t + 1].x };
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t row = block * 16 + i * 8 + g, at = row * ROW + n * 8 + 2 * t;
                const float k_norm = m.norms[row].x, q_norm = a.scale * m.norms[row].y;
                *(float2 *)(m.kk + at) = make_float2(kk[n][2 * i] * (k_norm * column_norms[0]),
                                                     kk[n][2 * i + 1] * (k_norm * column_norms[1]));
                *(float2 *)(m.qk + at) = make_float2(qk[n][2 * i] * (q_norm * column_norms[0]),
                                                     qk[n][2 * i + 1] * (q_norm * column_norms[1]));
            }
        }
}

// The quads of 4 columns that a thread processes of the blocks on and below the diagonal: first those on it.
struct quads {
    uint32_t row[OWN_QUADS], column[OWN_QUADS], record_offset[OWN_QUADS]; // byte offset in a record's tile
};

QN_DEVICE quads own_quads()
{
    quads q;
#pragma unroll
    for (uint32_t i = 0; i < OWN_QUADS; i++) {
        const bool diagonal = i < DIAGONAL_QUADS;
        const uint32_t index = (diagonal ? i : i - DIAGONAL_QUADS) * PREPARE_THREADS + threadIdx.x;
        // The blocks below the diagonal in row `block` of blocks begin at quad 32 block (block - 1).
        const uint32_t block = diagonal ? index / 64 : 1 + (index >= 64) + (index >= 192);
        const uint32_t in_block = diagonal ? index % 64 : index - 32 * block * (block - 1), in_row = diagonal ? 4 : 4 * block;
        // On the diagonal 8 lanes read rows r and r + 4, whose banks are different.
        const uint32_t row = diagonal ? in_block / 32 * 8 + in_block % 32 / 8 + in_block / 4 % 2 * 4 : in_block / in_row;
        q.row[i] = block * 16 + row;
        q.column[i] = (diagonal ? block * 16 : 0) + in_block % in_row * 4;
        q.record_offset[i] = swizzled_offset(q.row[i], q.column[i] / 8) + q.column[i] % 8 * 2;
    }
    return q;
}

QN_DEVICE float4 load_float4(const float *x)
{
    return *(const float4 *)x;
}

QN_DEVICE void store_scores(unsigned char *record, uint32_t offset, const float4 &qk, const float4 &e)
{
    uint2 scores;
    scores.x = qn_f32_to_bf16x2(qk.x * e.x, qk.y * e.y);
    scores.y = qn_f32_to_bf16x2(qk.z * e.z, qk.w * e.w);
    *(uint2 *)(record + QN_GDN_RECORD_SCORES + offset) = scores;
}

// Applies gates and beta to kk and qk: A to m.matrix, scores to the record.
QN_DEVICE void apply_gates(prepare_smem &m, const quads &own, uint32_t of, unsigned char *record)
{
#pragma unroll
    for (uint32_t index = 0; index < DIAGONAL_QUADS; index++) {
        const uint32_t i = own.row[index], j = own.column[index];
        const float4 gc_hi = load_float4(m.gc_hi[of] + j), gc_lo = load_float4(m.gc_lo[of] + j);
        const float4 kk = load_float4(m.kk + i * ROW + j), qk = load_float4(m.qk + i * ROW + j), row = m.rows[of][i];
        float4 e;
        e.x = qn_exp2(j <= i ? (row.x - gc_hi.x) + (row.y - gc_lo.x) : -1e30f);
        e.y = qn_exp2(j + 1 <= i ? (row.x - gc_hi.y) + (row.y - gc_lo.y) : -1e30f);
        e.z = qn_exp2(j + 2 <= i ? (row.x - gc_hi.z) + (row.y - gc_lo.z) : -1e30f);
        e.w = qn_exp2(j + 3 <= i ? (row.x - gc_hi.w) + (row.y - gc_lo.w) : -1e30f);
        store_scores(record, own.record_offset[index], qk, e);
        float4 a;
        a.x = j < i ? kk.x * (row.z * e.x) : 0.0f;
        a.y = j + 1 < i ? kk.y * (row.z * e.y) : 0.0f;
        a.z = j + 2 < i ? kk.z * (row.z * e.z) : 0.0f;
        a.w = j + 3 < i ? kk.w * (row.z * e.w) : 0.0f;
        *(float4 *)(m.matrix + i * ROW + j) = a;
    }
#pragma unroll
    for (uint32_t index = DIAGONAL_QUADS; index < OWN_QUADS; index++) {
        const uint32_t i = own.row[index], j = own.column[index];
        const float4 column = load_float4(m.columns[of] + columns_of(i / 16) + j);
        const float4 kk = load_float4(m.kk + i * ROW + j), qk = load_float4(m.qk + i * ROW + j), row = m.rows[of][i];
        const float4 e = make_float4(row.w * column.x, row.w * column.y, row.w * column.z, row.w * column.w);
        store_scores(record, own.record_offset[index], qk, e);
        *(float4 *)(m.matrix + i * ROW + j) =
            make_float4(kk.x * (row.z * e.x), kk.y * (row.z * e.y), kk.z * (row.z * e.z), kk.w * (row.z * e.w));
    }
}

QN_DEVICE float *block_at(prepare_smem &m, uint32_t row, uint32_t column)
{
    return m.matrix + row * 16 * ROW + column * 16;
}

// (I + diagonal block)^-1, in place: each lane computes one column by forward substitution.
QN_DEVICE void invert_block(float *at)
{
    const uint32_t column = threadIdx.x % 16;
    float d[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float sums[4] = { i == column ? 1.0f : 0.0f, 0, 0, 0 };
#pragma unroll
        for (int j = 0; j < i; j += 4) {
            const float4 a = load_float4(at + i * ROW + j);
            sums[0] -= a.x * d[j];
            if (j + 1 < i)
                sums[1] -= a.y * d[j + 1];
            if (j + 2 < i)
                sums[2] -= a.z * d[j + 2];
            if (j + 3 < i)
                sums[3] -= a.w * d[j + 3];
        }
        d[i] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
    __syncwarp();
    if (threadIdx.x % QN_WARP_SIZE < 16)
#pragma unroll
        for (int i = 0; i < 16; i++)
            at[i * ROW + column] = d[i];
}

// d += x y for 16x16 blocks in tf32; d is two m16n8 accumulators. The inner dimension is permuted to 0 2 4 6 1 3 5 7, so that
// the two elements of a lane are adjacent in memory.
QN_DEVICE void mma_tf32_16x16(float d[2][4], const float *x, const float *y)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int s = 0; s < 2; s++) {
        const float2 top = *(const float2 *)(x + g * ROW + s * 8 + 2 * t);
        const float2 bottom = *(const float2 *)(x + (g + 8) * ROW + s * 8 + 2 * t);
        const uint32_t a[4] = { to_tf32(top.x), to_tf32(bottom.x), to_tf32(top.y), to_tf32(bottom.y) };
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const float *b = y + (s * 8 + 2 * t) * ROW + n * 8 + g;
            const uint32_t column[2] = { to_tf32(b[0]), to_tf32(b[ROW]) };
            mma_m16n8k8_tf32(d[n], a, column);
        }
    }
}

QN_DEVICE void store_block(float *to, const float d[2][4], float sign)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            *(float2 *)(to + (i * 8 + g) * ROW + n * 8 + 2 * t) = make_float2(sign * d[n][2 * i], sign * d[n][2 * i + 1]);
}

// X and Y are the inverses of two diagonal blocks: the block A below X and left of Y becomes -Y A X. Done by one warp.
QN_DEVICE void merge_16_to_32(prepare_smem &m, uint32_t first)
{
    float d[2][4] = {}, e[2][4] = {};
    mma_tf32_16x16(d, block_at(m, first + 1, first), block_at(m, first, first));
    store_block(block_at(m, first, first + 1), d, 1);
    __syncwarp();
    mma_tf32_16x16(e, block_at(m, first + 1, first + 1), block_at(m, first, first + 1));
    store_block(block_at(m, first + 1, first), e, -1);
}

// The same for blocks of 32, in two steps with a barrier between them: A X, then -Y (A X). A warp computes one 16x16 block of
// the result.
QN_DEVICE void merge_32_to_64_1(prepare_smem &m, uint32_t row, uint32_t column)
{
    float d[2][4] = {};
    for (uint32_t i = column; i < 2; i++)
        mma_tf32_16x16(d, block_at(m, row, i), block_at(m, i, column));
    store_block(block_at(m, column, row), d, 1);
}

QN_DEVICE void merge_32_to_64_2(prepare_smem &m, uint32_t row, uint32_t column)
{
    float d[2][4] = {};
    for (uint32_t i = 2; i <= row; i++)
        mma_tf32_16x16(d, block_at(m, row, i), block_at(m, column, i));
    store_block(block_at(m, row, column), d, -1);
}

// Stores the inverse with its columns scaled by beta.
QN_DEVICE void store_inverse(const prepare_smem &m, const quads &own, uint32_t of, unsigned char *record)
{
#pragma unroll
    for (uint32_t index = 0; index < OWN_QUADS; index++) {
        const float4 x = load_float4(m.matrix + own.row[index] * ROW + own.column[index]), beta = load_float4(m.beta[of] + own.column[index]);
        uint2 pairs;
        pairs.x = qn_f32_to_bf16x2(x.x * beta.x, x.y * beta.y);
        pairs.y = qn_f32_to_bf16x2(x.z * beta.z, x.w * beta.w);
        *(uint2 *)(record + QN_GDN_RECORD_INVERSE + own.record_offset[index]) = pairs;
    }
}

// log2 of a bound of |M|. A token multiplies the state by e^g (I - beta k k^T), whose norm is e^g max(1, |1 - beta |k|^2|).
QN_DEVICE float state_bound(const prepare_smem &m, uint32_t of)
{
    float growth = 0;
#pragma unroll
    for (uint32_t i = threadIdx.x % QN_WARP_SIZE; i < TOKENS; i += QN_WARP_SIZE) {
        const float k_squared = m.kk[i * ROW + i];
        growth += log2f(fmaxf(1.0f, fabsf(1.0f - m.beta[of][i] * k_squared)));
    }
    return m.gc_hi[of][TOKENS - 1] + qn_warp_sum(growth);
}

QN_DEVICE void store_factors(const prepare_smem &m, uint32_t of, float scale, unsigned char *record)
{
    const uint32_t i = threadIdx.x;
    if (i >= TOKENS)
        return;
    if (i < QN_WARP_SIZE) {
        const float bound = state_bound(m, of);
        if (i == 0)
            *(float *)(record + QN_GDN_RECORD_BOUND) = bound;
    }
    const float *gc_hi = m.gc_hi[of], *gc_lo = m.gc_lo[of];
    const float last = (gc_hi[TOKENS - 1] - gc_hi[i]) + (gc_lo[TOKENS - 1] - gc_lo[i]);
    const float since = qn_exp2(gc_hi[i] + gc_lo[i]);
    ((float *)(record + QN_GDN_RECORD_K_READ))[i] = -since * m.norms[i].x;
    ((float *)(record + QN_GDN_RECORD_K_UPDATE))[i] = qn_exp2(last) * m.norms[i].x;
    ((float *)(record + QN_GDN_RECORD_Q_READ))[i] = scale * since * m.norms[i].y;
    if (i == TOKENS - 1)
        *(float *)(record + QN_GDN_RECORD_DECAY) = since;
}

// Grid: chunks (x), key heads (y). A block processes all value heads of its key head.
extern "C" __global__ void __launch_bounds__(PREPARE_THREADS, 4) qn_gdn_prepare(const __grid_constant__ qn_gdn_chunk_args a)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    prepare_smem &m = *(prepare_smem *)shared;
    qn_pdl_wait();
    qn_pdl_trigger();
    const sequence s = sequence_of(a, blockIdx.x, TOKENS);
    const uint32_t chunk = blockIdx.x - first_index(s, TOKENS), k_head = blockIdx.y, warp = threadIdx.x / QN_WARP_SIZE;
    if (chunk >= s.chunks)
        return;
    const uint32_t begin = chunk * TOKENS;
    const uint32_t first = s.first + begin, n = s.n - begin < TOKENS ? s.n - begin : TOKENS, heads = a.v_heads / a.k_heads;
    load_rows<16, PREPARE_THREADS>(m.k, a.k + (size_t)first * a.k_stride + k_head * HEAD_K, a.k_stride, n, threadIdx.x);
    load_rows<16, PREPARE_THREADS>(m.q, a.q + (size_t)first * a.q_stride + k_head * HEAD_K, a.q_stride, n, threadIdx.x);
    qn_cp_async_commit();
    if (warp == 1)
        cumsum_decays(m, 0, load_gates(a, first, n, value_head(a, k_head, 0)));
    qn_cp_async_wait<0>();
    __syncthreads();
    // Later rows are more work. The warp that gets them alternates between thread blocks, which balances the warps of an SM.
    compute_kk_qk(a, m, (warp + blockIdx.x) % 4);
    const quads own = own_quads();
    for (uint32_t i = 0; i < heads; i++) {
        const uint32_t of = i % 2;
        const bool computes_next = warp == 1 && i + 1 < heads;
        gates next_gates;
        if (computes_next)
            next_gates = load_gates(a, first, n, value_head(a, k_head, i + 1));
        unsigned char *record = record_of(a, s, chunk, value_head(a, k_head, i));
        __syncthreads(); // kk, qk, gc and beta are written; the previous head's inverse has been stored
        apply_gates(m, own, of, record);
        __syncthreads();
        invert_block(block_at(m, warp, warp));
        __syncthreads();
        if (warp % 2 == 0)
            merge_16_to_32(m, warp);
        else if (computes_next)
            cumsum_decays(m, 1 - of, next_gates);
        __syncthreads();
        merge_32_to_64_1(m, 2 + warp / 2, warp % 2);
        __syncthreads();
        merge_32_to_64_2(m, 2 + warp / 2, warp % 2);
        store_factors(m, of, a.scale, record);
        __syncthreads();
        store_inverse(m, own, of, record);
    }
}
