// Gated DeltaNet over chunks of 64 tokens, the part that does not depend on the state: qn_gdn_prepare of deltanet.h.
// All chunks run in parallel.
//
// 64x64 matrices are processed in blocks of 16x16. Warp w has row block w of A and of the inverse X = (I + A)^-1, and
// of the scores row block 3 - w, which together have five blocks on and below the diagonal. For all value heads these
// blocks of k k^T and q k^T stay on the SM: blocks below the diagonal in registers, blocks on it in shared memory. With
// D_i the inverse of a diagonal block I + A_ii, the blocks of X below the diagonal are
//
//     X_ij = -D_i (A_ij X_jj + ... + A_i,i-1 X_i-1,j)
//
// from the diagonal downwards: X_ij depends on blocks nearer to the diagonal.
#include "cuda/kernels/deltanet/chunk.cuh"
#include "cuda/kernels/deltanet/tf32.cuh"

#define PREPARE_THREADS QN_GDN_PREPARE_THREADS

// x, hidden from the compiler's analysis. Offsets that are computed from it stay inside the loop over value heads:
// hoisted out of it, they spill.
QN_DEVICE uint32_t opaque(uint32_t x)
{
    asm volatile("" : "+r"(x));
    return x;
}

QN_DEVICE uint32_t lane_index()
{
    return threadIdx.x % QN_WARP_SIZE;
}

// ---- Blocks of 16x16 in a warp: float d[2][4], two m16n8 accumulators ----
//
// Lane 4g + t has the rows lane_row(0) and lane_row(1) and the four columns from lane_column(): element (lane_row(i),
// lane_column() + 2n + e) is d[n][2i + e]. To the MMA, row i * 8 + g of the A operand is row lane_row(i) of the block,
// and column g of the B operand for d[n] is row lane_row(n). Then accumulators are operands of the next MMA, A or B, in
// the same lanes.

QN_DEVICE uint32_t lane_row(uint32_t half)
{
    const uint32_t g = lane_index() / 4;
    return g / 2 * 4 + half * 2 + g % 2;
}

QN_DEVICE uint32_t lane_column()
{
    return lane_index() % 4 * 4;
}

// A lane with elements of the diagonal: of row lane_row(i), d[i][2i + lane_parity()].
QN_DEVICE bool has_diagonal()
{
    return lane_index() / 8 == lane_index() % 4;
}

QN_DEVICE uint32_t lane_parity()
{
    return lane_index() / 4 % 2;
}

QN_DEVICE float round_tf32(float x)
{
    return __uint_as_float(to_tf32(x));
}

// d += a b^T; a and b are rounded to tf32.
QN_DEVICE void multiply(float d[2][4], const float a[2][4], const float b[2][4])
{
#pragma unroll
    for (int s = 0; s < 2; s++) {
        const uint32_t rows[4] = { __float_as_uint(a[s][0]), __float_as_uint(a[s][2]), __float_as_uint(a[s][1]),
                                   __float_as_uint(a[s][3]) };
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const uint32_t columns[2] = { __float_as_uint(b[s][2 * n]), __float_as_uint(b[s][2 * n + 1]) };
            mma_m16n8k8_tf32(d[n], rows, columns);
        }
    }
}

// Blocks in shared memory: rows of 16 floats; the four float4 of a row are swizzled, so that accesses to four columns
// by 8 rows, and by a lane's rows and columns, are free of bank conflicts.
#define BLOCK 256

QN_DEVICE float4 &quad_at(float *block, uint32_t row, uint32_t quad)
{
    return *(float4 *)(block + row * 16 + ((quad ^ (row / 2 % 4)) << 2));
}

QN_DEVICE float4 load_float4(const float *x)
{
    return *(const float4 *)x;
}

QN_DEVICE void store_block(float *block, const float d[2][4])
{
#pragma unroll
    for (int i = 0; i < 2; i++)
        quad_at(block, lane_row(i), lane_column() / 4) =
            make_float4(d[0][2 * i], d[0][2 * i + 1], d[1][2 * i], d[1][2 * i + 1]);
}

QN_DEVICE void load_block(float d[2][4], float *block)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float4 x = quad_at(block, lane_row(i), lane_column() / 4);
        d[0][2 * i] = x.x;
        d[0][2 * i + 1] = x.y;
        d[1][2 * i] = x.z;
        d[1][2 * i + 1] = x.w;
    }
}

// d = the products of factors of rows and of columns.
QN_DEVICE void outer_product(float d[2][4], const float rows[2], const float4 &columns)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        d[0][2 * i] = rows[i] * columns.x;
        d[0][2 * i + 1] = rows[i] * columns.y;
        d[1][2 * i] = rows[i] * columns.z;
        d[1][2 * i + 1] = rows[i] * columns.w;
    }
}

QN_DEVICE void multiply_elements(float d[2][4], const float x[2][4])
{
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int r = 0; r < 4; r++)
            d[n][r] *= x[n][r];
}

// ---- Shared memory ----

// Gates of a value head, gc in units of log 2, as the sum of two floats. rows[i] = { gc_hi, gc_lo, beta, e^(gc_i -
// gc_first) } for access by row, the separate arrays for access by column. columns: e^(gc_first - gc_j). first is the
// first row of a block; both exponents are at most 0.
struct head_gates {
    float4 rows[TOKENS];
    float gc_hi[TOKENS], gc_lo[TOKENS], beta[TOKENS];
    float columns[16 + 32 + 48]; // for rows 16, 32 and 48
};

struct prepare_smem {
    union {
        struct {
            unsigned char k[KEY_TILES * TILE], q[KEY_TILES * TILE]; // the order of rows is load_tiles's
        };
        // Valid after the tiles have been read. blocks: A_ii, then X_ii, for i = 0 to 3; X_10, X_21; X_20. X are
        // transposed. kk, qk: the blocks of k k^T and q k^T on the diagonal, for which there are no registers.
        struct {
            float blocks[7][BLOCK], kk[4][BLOCK], qk[4][BLOCK];
        };
    };
    head_gates gates[2];                                       // of this head and of the next
    float k_norms[TOKENS], q_norms[TOKENS], k_squared[TOKENS]; // 1/|k|, scale/|q|; the square of the normalized |k|
};

static_assert(sizeof(prepare_smem) == QN_GDN_PREPARE_BYTES(HEAD_K), "the launch's shared memory");

// X of column block c that is `distance` blocks below the diagonal.
QN_DEVICE float *inverse_block(prepare_smem &m, uint32_t distance, uint32_t column)
{
    return m.blocks[(distance == 0 ? 0 : distance == 1 ? 4 : 6) + column];
}

// Index in head_gates.columns of column 0 for a block of rows, 1 to 3.
QN_DEVICE uint32_t columns_of(uint32_t block)
{
    return 8 * block * (block - 1);
}

// ---- Gates ----

// Log decays and beta of two tokens of a lane. Tokens past the end have g = 0 and beta = 0.
struct lane_gates {
    float g[2], beta[2];
};

QN_DEVICE bool has_plain_gates(const qn_gdn_chunk_args &a)
{
    return a.g_dtype == QN_TYPED_F32 && a.beta_dtype == QN_TYPED_F32 && !a.gate_factor && !a.sigmoid_beta;
}

// Log decay and beta of a token, whatever they are computed from. Not inlined, since the code would separate that of
// the other case.
static __device__ __noinline__ float2 compute_gates(const qn_gdn_chunk_args &a, uint32_t token, uint32_t head)
{
    const float g = qn_load_typed(a.g, (size_t)token * a.g_stride + head, a.g_dtype);
    const float beta = qn_load_typed(a.beta, (size_t)token * a.beta_stride + head, a.beta_dtype);
    return make_float2(qn_gdn_log_decay(a, g, head), qn_gdn_beta(a, beta));
}

QN_DEVICE lane_gates load_gates(const qn_gdn_chunk_args &a, uint32_t first, uint32_t n, uint32_t head)
{
    lane_gates x = {};
    const bool plain = has_plain_gates(a);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t token = lane_index() * 2 + i;
        if (plain) {
            x.g[i] = token < n ? ((const float *)a.g)[(size_t)(first + token) * a.g_stride + head] : 0.0f;
            x.beta[i] = token < n ? ((const float *)a.beta)[(size_t)(first + token) * a.beta_stride + head] : 0.0f;
        } else if (token < n) {
            const float2 gates = compute_gates(a, first + token, head);
            x.g[i] = gates.x;
            x.beta[i] = gates.y;
        }
    }
    return x;
}

// Cumulative sums of the log decays of a value head, in double, and the factors from them. By one warp.
QN_DEVICE void cumsum_decays(head_gates &to, const lane_gates &x)
{
    const uint32_t lane = lane_index();
    const float g[2] = { qn_gdn_clamp_decay(x.g[0]), qn_gdn_clamp_decay(x.g[1]) };
    double sum = (double)g[0] + (double)g[1];
#pragma unroll
    for (uint32_t distance = 1; distance < QN_WARP_SIZE; distance *= 2) {
        const double before = __shfl_up_sync(QN_FULL_MASK, sum, distance);
        sum += lane >= distance ? before : 0.0;
    }
    float hi[2], lo[2], row_factors[2];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const double at = (i ? sum : sum - (double)g[1]) * 1.4426950408889634;
        hi[i] = (float)at;
        lo[i] = (float)(at - (double)hi[i]);
    }
#pragma unroll
    for (uint32_t block = 0; block < 4; block++) {
        const float first_hi = __shfl_sync(QN_FULL_MASK, hi[0], block * 8),
                    first_lo = __shfl_sync(QN_FULL_MASK, lo[0], block * 8);
        const float distances[2] = { (hi[0] - first_hi) + (lo[0] - first_lo), (hi[1] - first_hi) + (lo[1] - first_lo) };
        if (block == lane / 8) {
            row_factors[0] = qn_exp2(distances[0]);
            row_factors[1] = qn_exp2(distances[1]);
        } else if (block > lane / 8) {
            *(float2 *)(to.columns + columns_of(block) + 2 * lane) =
                make_float2(qn_exp2(-distances[0]), qn_exp2(-distances[1]));
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
        to.rows[2 * lane + i] = make_float4(hi[i], lo[i], x.beta[i], row_factors[i]);
    *(float2 *)(to.gc_hi + 2 * lane) = make_float2(hi[0], hi[1]);
    *(float2 *)(to.gc_lo + 2 * lane) = make_float2(lo[0], lo[1]);
    *(float2 *)(to.beta + 2 * lane) = make_float2(x.beta[0], x.beta[1]);
}

// d = e^(gc_i - gc_j) in a block on the diagonal; at most 1 above it.
QN_DEVICE void diagonal_decays(float d[2][4], const head_gates &gates, uint32_t block, const float4 rows[2])
{
    const float4 hi = load_float4(gates.gc_hi + block * 16 + lane_column()),
                 lo = load_float4(gates.gc_lo + block * 16 + lane_column());
    const float column_hi[4] = { hi.x, hi.y, hi.z, hi.w }, column_lo[4] = { lo.x, lo.y, lo.z, lo.w };
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const int i = r / 2, j = 2 * n + r % 2;
            d[n][r] = qn_exp2(fminf((rows[i].x - column_hi[j]) + (rows[i].y - column_lo[j]), 0.0f));
        }
}

// ---- The record ----

// What a warp computes of a value head: row block `block` of the inverse and 3 - block of the scores.
struct head_work {
    const head_gates &gates;
    unsigned char *record;
    uint32_t block;
    uint32_t at; // offset of column lane_column() of row lane_row(0) of a tile
};

// Stores elements (lane_row(n), lane_column() + 2i + {0, 1}) = pairs[n][i] of a block of a tile. Column blocks are 32
// bytes apart before the swizzle, and lane_row(1) = lane_row(0) + 2.
QN_DEVICE void store_pairs(const head_work &w, uint32_t tile, uint32_t block, uint32_t column_block, const uint32_t pairs[2][2])
{
#pragma unroll
    for (uint32_t n = 0; n < 2; n++) {
        const uint32_t at = (w.at ^ ((n ^ column_block) * 32)) + block * 16 * 128;
        *(uint2 *)(w.record + at + (tile + n * 256)) = make_uint2(pairs[n][0], pairs[n][1]);
    }
}

// A row block of the scores: d[1] to d[3] below the diagonal, as far as there are such blocks, d[4] on it.
QN_DEVICE void store_scores(prepare_smem &m, const head_work &w, const float d[5][2][4])
{
    const head_gates &gates = w.gates;
    const uint32_t block = 3 - w.block;
    const float4 rows[2] = { gates.rows[block * 16 + lane_row(0)], gates.rows[block * 16 + lane_row(1)] };
    const float row_factors[2] = { rows[0].w, rows[1].w };
#pragma unroll
    for (uint32_t n = 1; n < 5; n++)
        if (n > w.block) {
            const uint32_t column_block = n - w.block - 1;
            float e[2][4];
            if (n == 4) {
                float qk[2][4];
                load_block(qk, m.qk[block]);
                diagonal_decays(e, gates, block, rows);
                multiply_elements(e, qk);
            } else {
                outer_product(e, row_factors,
                              load_float4(gates.columns + columns_of(block) + column_block * 16 + lane_column()));
                multiply_elements(e, d[n]);
            }
            const uint32_t pairs[2][2] = { { pack_pair(e[0][0], e[0][1]), pack_pair(e[1][0], e[1][1]) },
                                           { pack_pair(e[0][2], e[0][3]), pack_pair(e[1][2], e[1][3]) } };
            store_pairs(w, QN_GDN_RECORD_SCORES, block, column_block, pairs);
        }
}

// A block of the inverse with its columns scaled by beta; x is transposed.
QN_DEVICE void store_inverse(const head_work &w, const float x[2][4], uint32_t column_block)
{
    uint32_t pairs[2][2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float beta = w.gates.beta[column_block * 16 + lane_row(i)];
#pragma unroll
        for (int n = 0; n < 2; n++)
            pairs[n][i] = qn_transpose_8x8(pack_pair(beta * x[n][2 * i], beta * x[n][2 * i + 1]));
    }
    store_pairs(w, QN_GDN_RECORD_INVERSE, w.block, column_block, pairs);
}

QN_DEVICE float2 load_float2(const float *x)
{
    return *(const float2 *)x;
}

// The record's factors, two tokens a lane, and its bound: log2 of a bound of |M|. A token multiplies the state by
// e^g (I - beta k k^T), whose norm is e^g max(1, |1 - beta |k|^2|). By one warp.
QN_DEVICE void store_factors(const prepare_smem &m, const head_gates &gates, unsigned char *record)
{
    const uint32_t lane = lane_index(), at = 2 * lane;
    const float2 hi = load_float2(gates.gc_hi + at), lo = load_float2(gates.gc_lo + at), beta = load_float2(gates.beta + at);
    const float2 k_norms = load_float2(m.k_norms + at), q_norms = load_float2(m.q_norms + at);
    const float2 k_squared = load_float2(m.k_squared + at);
    const float last_hi = gates.gc_hi[TOKENS - 1], last_lo = gates.gc_lo[TOKENS - 1];
    const float since[2] = { qn_exp2(hi.x + lo.x), qn_exp2(hi.y + lo.y) };
    const float until[2] = { qn_exp2((last_hi - hi.x) + (last_lo - lo.x)), qn_exp2((last_hi - hi.y) + (last_lo - lo.y)) };
    ((float2 *)(record + QN_GDN_RECORD_K_READ))[lane] = make_float2(-since[0] * k_norms.x, -since[1] * k_norms.y);
    ((float2 *)(record + QN_GDN_RECORD_K_UPDATE))[lane] = make_float2(until[0] * k_norms.x, until[1] * k_norms.y);
    ((float2 *)(record + QN_GDN_RECORD_Q_READ))[lane] = make_float2(since[0] * q_norms.x, since[1] * q_norms.y);
    const float growth =
        qn_warp_sum(log2f(fmaxf(1.0f, fabsf(1.0f - beta.x * k_squared.x)) * fmaxf(1.0f, fabsf(1.0f - beta.y * k_squared.y))));
    if (lane == QN_WARP_SIZE - 1) {
        *(float *)(record + QN_GDN_RECORD_DECAY) = since[1];
        *(float *)(record + QN_GDN_RECORD_BOUND) = last_hi + growth;
    }
}

// ---- k k^T and q k^T ----

// Issues the copies of k or q. Each 16 rows of the tiles are the rows lane_row(0) of the lanes 0, 4, ..., 28, then
// lane_row(1): rows of an MMA operand are adjacent. Columns past the key's are zeros.
QN_DEVICE void load_tiles(unsigned char *tiles, const uint16_t *from, uint32_t stride, uint32_t n)
{
    const uint32_t row = threadIdx.x / 8, segment = threadIdx.x % 8, first = row % 8 / 2 * 4 + row / 8 * 2 + row % 2;
    unsigned char *to = tiles + swizzled_offset(row, segment);
    const uint16_t *at = from + (size_t)first * stride + segment * 8;
#pragma unroll
    for (uint32_t tile = 0; tile < KEY_TILES; tile++)
#pragma unroll
        for (uint32_t i = 0; i < TOKENS / 16; i++) {
            const bool in_key = (tile + 1) * 64 <= HEAD_K || tile * 64 + segment * 8 < HEAD_K;
            const bool in = in_key && (n == TOKENS || first + i * 16 < n);
            qn_cp_async_16(to + tile * TILE + i * 16 * 128, in ? at + (size_t)(i * 16) * stride + tile * 64 : from, in ? 16 : 0);
        }
}

// The column block of d[n] of the warp that has row block `block` of A: d[0] to d[block] are k k^T from the diagonal to
// the left, the others row block 3 - block of q k^T from the left to the diagonal.
QN_DEVICE uint32_t column_block_of(uint32_t n, uint32_t block)
{
    return n <= block ? block - n : n - block - 1;
}

// d, and of the warp's rows of q the blocks of q q^T on the diagonal. The row block is a template parameter: MMAs under
// a condition that the compiler cannot prove to be the same in all lanes would each be preceded by WARPSYNC.
template <uint32_t block> QN_DEVICE void compute_products(const prepare_smem &m, float d[5][2][4], float qq[2][4])
{
    const uint32_t lane = lane_index(), of_rows = swizzled_offset(lane % 16, lane / 16);
    const uint32_t of_columns = swizzled_offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int s = 0; s < HEAD_K / 16; s++) {
        const uint32_t tile = s / 4 * TILE, segment = s % 4 * 32;
        uint32_t k[4], q[4];
        qn_ldmatrix_x4(k, m.k + (of_rows ^ segment) + (tile + block * 2048));
        qn_ldmatrix_x4(q, m.q + (of_rows ^ segment) + (tile + (3 - block) * 2048));
        const uint32_t q_columns[4] = { q[0], q[2], q[1], q[3] };
#pragma unroll
        for (int i = 0; i < 2; i++)
            mma_m16n8k16(qq[i], q, q_columns + 2 * i);
#pragma unroll
        for (uint32_t column_block = 0; column_block < 4; column_block++) {
            uint32_t columns[4] = { k[0], k[2], k[1], k[3] };
            if (column_block != block && column_block <= (block > 1 ? block : 3 - block))
                qn_ldmatrix_x4(columns, m.k + (of_columns ^ segment) + (tile + column_block * 2048));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (column_block <= block)
                    mma_m16n8k16(d[(block - column_block) % 5][i], k, columns + 2 * i);
                if (column_block <= 3 - block)
                    mma_m16n8k16(d[(column_block + block + 1) % 5][i], q, columns + 2 * i);
            }
        }
    }
}

// Norms of the warp's rows of k and q, from the diagonals of k k^T and q q^T.
QN_DEVICE void store_norms(const qn_gdn_chunk_args &a, prepare_smem &m, uint32_t block, const float kk[2][4],
                           const float qq[2][4])
{
    if (!has_diagonal())
        return;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float k = lane_parity() ? kk[i][2 * i + 1] : kk[i][2 * i], q = lane_parity() ? qq[i][2 * i + 1] : qq[i][2 * i];
        const float k_norm = a.normalize ? 1.0f / sqrtf(k + 1e-6f) : 1.0f,
                    q_norm = a.normalize ? 1.0f / sqrtf(q + 1e-6f) : 1.0f;
        const uint32_t of_k = block * 16 + lane_row(i), of_q = (3 - block) * 16 + lane_row(i);
        m.k_norms[of_k] = k_norm;
        m.k_squared[of_k] = k * (k_norm * k_norm);
        m.q_norms[of_q] = a.scale * q_norm;
    }
}

// Divides k and q by their norms and multiplies q by scale; clears the blocks on the diagonal above it, and of k k^T on
// it; and rounds the blocks of k k^T that are operands of MMAs.
QN_DEVICE void apply_norms(const prepare_smem &m, uint32_t block, float d[5][2][4])
{
#pragma unroll
    for (uint32_t n = 0; n < 5; n++) {
        const float *norms = n <= block ? m.k_norms + block * 16 : m.q_norms + (3 - block) * 16;
        const float rows[2] = { norms[lane_row(0)], norms[lane_row(1)] };
        float e[2][4];
        outer_product(e, rows, load_float4(m.k_norms + column_block_of(n, block) * 16 + lane_column()));
        multiply_elements(d[n], e);
#pragma unroll
        for (uint32_t r = 0; r < 8; r++) {
            float &x = d[n][r / 4][r % 4];
            const uint32_t row = lane_row(r % 4 / 2), column = lane_column() + r / 4 * 2 + r % 2;
            if (n == 0)
                x = column < row ? x : 0.0f;
            else if (n == 4)
                x = column <= row ? x : 0.0f;
            else
                x = n <= block ? round_tf32(x) : x;
        }
    }
}

// ---- The inverse ----

// at = (I + at)^-1, transposed, for a strictly lower triangular block: a lane computes a column by forward
// substitution. Two lanes compute each column.
QN_DEVICE void invert_block(float *at)
{
    const uint32_t column = opaque(lane_index() % 16);
    const float own = (float)column;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; i++)
        x[i] = own == (float)i ? 1.0f : 0.0f;
#pragma unroll
    for (int quad = 0; quad < 4; quad++)
#pragma unroll
        for (int i = 4 * quad + 1; i < 16; i++) {
            const float4 row = quad_at(at, i, quad);
            const float a[4] = { row.x, row.y, row.z, row.w };
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (4 * quad + e < i)
                    x[i] -= a[e] * x[4 * quad + e];
        }
    __syncwarp();
    if (lane_index() < 16)
#pragma unroll
        for (int quad = 0; quad < 4; quad++)
            quad_at(at, column, quad) = make_float4(x[4 * quad], x[4 * quad + 1], x[4 * quad + 2], x[4 * quad + 3]);
    __syncwarp();
}

// The block X_ii of row block i, to shared memory and to the record. Returns in `left` the left factors of the blocks
// X_ij: -D_i with its columns scaled by beta and e^(gc - gc_first), in tf32. Not for row block 0.
QN_DEVICE void compute_diagonal(prepare_smem &m, const head_work &w, float left[2][4])
{
    const float4 rows[2] = { w.gates.rows[w.block * 16 + lane_row(0)], w.gates.rows[w.block * 16 + lane_row(1)] };
    const float factors[2] = { -(rows[0].z * rows[0].w), -(rows[1].z * rows[1].w) };
    float *at = inverse_block(m, 0, w.block), x[2][4], kk[2][4], identity[2][4];
    load_block(kk, m.kk[w.block]);
    diagonal_decays(x, w.gates, w.block, rows);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int r = 0; r < 4; r++)
            x[n][r] = kk[n][r] * (rows[r / 2].z * x[n][r]);
    store_block(at, x);
    __syncwarp();
    invert_block(at);
    load_block(x, at);
    store_inverse(w, x, w.block);
    if (w.block == 0)
        return;
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            x[n][r] = round_tf32(x[n][r] * factors[r / 2]);
            identity[n][r] = has_diagonal() && r / 2 == n && r % 2 == lane_parity() ? 1.0f : 0.0f;
            left[n][r] = 0;
        }
    multiply(left, identity, x); // transposes x
}

// sum += the transposed product of the blocks A_ij and X_jc of column block c = i - n, j = c + distance - 1; kk is the
// block of k k^T. An element of A is beta_i e^(gc_i - gc_first), which is a factor of `left`, times that of k k^T,
// times e^(gc_first - gc_j), by which X is scaled.
QN_DEVICE void add_product(prepare_smem &m, const head_work &w, uint32_t n, uint32_t distance, const float kk[2][4],
                           float sum[2][4])
{
    const uint32_t column = w.block - n, row = column + distance - 1;
    const float4 e = load_float4(w.gates.columns + columns_of(w.block) + row * 16 + lane_column());
    const float factors[4] = { e.x, e.y, e.z, e.w };
    float x[2][4];
    load_block(x, inverse_block(m, distance - 1, column));
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int r = 0; r < 4; r++)
            x[i][r] = round_tf32(x[i][r] * factors[2 * i + r % 2]);
    multiply(sum, x, kk);
}

// The block that is `distance` blocks below the diagonal in a row block of the inverse, to the record, and to shared
// memory if other warps need it; then what the other warps' blocks that are one nearer to the diagonal contribute to
// those further to the left. sums[n] is the transposed sum for column block - n.
template <uint32_t distance>
QN_DEVICE void compute_block(prepare_smem &m, const head_work &w, const float d[5][2][4], const float left[2][4],
                             float sums[4][2][4])
{
    if (distance > w.block)
        return;
    const uint32_t column = w.block - distance;
    float x[2][4] = {}, sum[2][4];
    add_product(m, w, distance, distance, d[1], sums[distance]);
#pragma unroll
    for (int r = 0; r < 8; r++)
        sum[r / 4][r % 4] = round_tf32(sums[distance][r / 4][r % 4]);
    multiply(x, sum, left);
    if (w.block < 3)
        store_block(inverse_block(m, distance, column), x);
    store_inverse(w, x, column);
#pragma unroll
    for (uint32_t n = distance + 1; n < 4; n++)
        if (n <= w.block)
            add_product(m, w, n, distance, d[n - distance + 1], sums[n]);
}

// ---- The kernel ----

// Grid: key heads of chunks; the key heads of a chunk are consecutive, because they are adjacent in memory. A block
// processes all value heads of its key head.
extern "C" __global__ void __launch_bounds__(PREPARE_THREADS, 4) qn_gdn_prepare(const __grid_constant__ qn_gdn_chunk_args a)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    prepare_smem &m = *(prepare_smem *)shared;
    qn_pdl_wait();
    qn_pdl_trigger();
    const uint32_t index = blockIdx.x / a.k_heads, k_head = blockIdx.x % a.k_heads, warp = threadIdx.x / QN_WARP_SIZE;
    const sequence s = sequence_of(a, index);
    const uint32_t chunk = index - first_index(a, s);
    if (chunk >= s.chunks)
        return;
    const uint32_t begin = chunk * TOKENS;
    const uint32_t first = s.first + begin, n = s.n - begin < TOKENS ? s.n - begin : TOKENS, heads = a.v_heads / a.k_heads;
    // Row blocks differ in latency. The warps that get them alternate between thread blocks, which balances the warps
    // of an SM.
    const uint32_t block = (warp + blockIdx.x) % 4;
    load_tiles(m.k, (const uint16_t *)a.k + (size_t)first * a.k_stride + k_head * HEAD_K, a.k_stride, n);
    load_tiles(m.q, (const uint16_t *)a.q + (size_t)first * a.q_stride + k_head * HEAD_K, a.q_stride, n);
    qn_cp_async_commit();
    uint32_t head = a.tiled ? k_head : k_head * heads;
    unsigned char *record = record_of(a, s, chunk, head);
    const uint32_t step = a.tiled ? a.k_heads : 1;
    if (block == 0)
        cumsum_decays(m.gates[0], load_gates(a, first, n, head));
    qn_cp_async_wait<0>();
    __syncthreads();
    float d[5][2][4] = {}, qq[2][4] = {};
    switch (block) {
    case 0: compute_products<0>(m, d, qq); break;
    case 1: compute_products<1>(m, d, qq); break;
    case 2: compute_products<2>(m, d, qq); break;
    default: compute_products<3>(m, d, qq);
    }
    store_norms(a, m, block, d[0], qq);
    __syncthreads(); // norms are written; all warps have read the tiles, which blocks of the inverse overwrite
    apply_norms(m, block, d);
    store_block(m.kk[block], d[0]);
    store_block(m.qk[3 - block], d[4]);
    const uint32_t at = swizzled_offset(lane_row(0), lane_column() / 8) + lane_column() % 8 * 2;
    for (uint32_t i = 0; i < heads; i++, head += step, record += step * QN_GDN_RECORD) {
        const head_work w = { m.gates[i % 2], record, block, opaque(at) };
        const bool computes_next = block == 0 && i + 1 < heads;
        lane_gates next_gates;
        if (computes_next)
            next_gates = load_gates(a, first, n, head + step);
        float left[2][4], sums[4][2][4] = {};
        compute_diagonal(m, w, left);
        __syncthreads(); // the blocks on the diagonal are written; all warps have read the previous head's gates
        if (computes_next)
            cumsum_decays(m.gates[1 - i % 2], next_gates);
        compute_block<1>(m, w, d, left, sums);
        if (block == 0)
            store_factors(m, w.gates, w.record);
        __syncthreads();
        compute_block<2>(m, w, d, left, sums);
        __syncthreads(); // X_20 and the next head's gates are written; the other blocks have been read
        compute_block<3>(m, w, d, left, sums);
        store_scores(m, w, d);
    }
}
