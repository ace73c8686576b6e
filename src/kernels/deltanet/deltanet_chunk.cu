// Gated DeltaNet over chunks of 64 tokens, on matrix units: what deltanet_cuda.h calls qn_gdn_prepare and qn_gdn_advance.
//
// The state is kept transposed, [values][keys], as the accumulators of a product: rounded to pairs, accumulators are the left
// operand of the next product, in the same registers. So the chain from chunk to chunk never leaves a warp's registers, and
// every right operand is a tile that has been in shared memory for a while: k, q, the inverse, the scores.
//
// With wgmma (sm_90a) four warps share each right operand; elsewhere each warp loads it through ldmatrix. Fragments are the same.
#include "kernels/deltanet/deltanet_cuda.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && !defined(QN_GDN_NO_WGMMA)
#define QN_WGMMA 1
#else
#define QN_WGMMA 0
#endif

#define TOKENS QN_GDN_TOKENS
#define HEAD_K QN_GDN_HEAD_K
#define SLICE QN_GDN_SLICE
#define TILE QN_GDN_TILE_BYTES
#define LEAST_DECAY -256.0f // e^-256 is 0 in float32 already

// ---- Tiles: 64 rows of 128 bytes, pieces of 16 bytes swizzled so that 8 rows of one piece meet all banks ----

QN_DEVICE uint32_t piece_at(uint32_t row, uint32_t piece)
{
    return row * 128 + ((piece ^ (row & 7)) << 4);
}

// Rows of `pieces` pieces, n of them, zeros after that; tiles of 8 pieces follow one another. A thread has the same piece of every
// eighth row, or every sixteenth: its addresses differ by constants.
template <int pieces, int threads>
QN_DEVICE void load_rows(unsigned char *tiles, const uint16_t *from, uint32_t stride, uint32_t n, uint32_t thread)
{
    constexpr uint32_t step = threads / pieces;
    const uint32_t first = thread / pieces, piece = thread % pieces;
    unsigned char *to = tiles + piece / 8 * TILE + piece_at(first, piece % 8);
    const uint16_t *at = from + (size_t)first * stride + piece * 8;
#pragma unroll
    for (uint32_t i = 0; i < TOKENS / step; i++) {
        if (n == TOKENS)
            qn_copy_async_16(to + i * step * 128, at);
        else
            qn_copy_async_16(to + i * step * 128, first + i * step < n ? at : from, first + i * step < n ? 16 : 0);
        at += step * stride;
    }
}

// ---- Products. d and a as m16n8k16 has them, several side by side ----

QN_DEVICE float low(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}

QN_DEVICE float high(uint32_t pair)
{
    return __uint_as_float(pair & 0xffff0000u);
}

QN_DEVICE void pack(uint32_t a[4], const float d0[4], const float d1[4])
{
    a[0] = qn_floats_to_bfloats(d0[0], d0[1]);
    a[1] = qn_floats_to_bfloats(d0[2], d0[3]);
    a[2] = qn_floats_to_bfloats(d1[0], d1[1]);
    a[3] = qn_floats_to_bfloats(d1[2], d1[3]);
}

#if QN_WGMMA

#define FOUR(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define A_OF(a) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])

// Rows (or, transposed, rows of the inner dimension) in groups of 8, 1024 bytes apart; the next 64 columns a tile on.
QN_DEVICE uint64_t operand(const unsigned char *at)
{
    return (uint64_t)(qn_shared_address(at) >> 4) | (uint64_t)(TILE >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

QN_DEVICE void products_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

QN_DEVICE void products_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Until at most the last `left` groups are under way; d is of one that is not, and is not read before.
template <int left> QN_DEVICE void products_wait(float d[8][4])
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            asm volatile("" : "+f"(d[n][e])::"memory");
}

template <int transposed> QN_DEVICE void multiply_64(float (*d)[4], const uint32_t a[4], uint64_t b, int accumulate)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
                 "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, p, 1, 1, %38; }"
                 : FOUR(d, 0), FOUR(d, 1), FOUR(d, 2), FOUR(d, 3), FOUR(d, 4), FOUR(d, 5), FOUR(d, 6), FOUR(d, 7)
                 : A_OF(a), "l"(b), "r"(accumulate), "n"(transposed));
}

// d = a x^T, or d += a x^T, x [64 rows][64].
template <bool accumulate> QN_DEVICE void times_rows(float d[8][4], const uint32_t a[4][4], const unsigned char *x)
{
#pragma unroll
    for (int s = 0; s < 4; s++)
        multiply_64<0>(d, a[s], operand(x) + s * (32 >> 4), accumulate || s > 0);
}

// The same where x is lower triangular by blocks of 16 and the others are zeros. (Narrower products for the blocks that are not
// are no gain: the compiler then waits after each.)
template <bool accumulate> QN_DEVICE void times_lower(float d[8][4], const uint32_t a[4][4], const unsigned char *x)
{
    times_rows<accumulate>(d, a, x);
}

// d += a x, x [64 rows][64].
QN_DEVICE void times_columns(float d[8][4], const uint32_t a[4][4], const unsigned char *x)
{
#pragma unroll
    for (int s = 0; s < 4; s++)
        multiply_64<1>(d, a[s], operand(x) + s * (2048 >> 4), 1);
}

#else

QN_DEVICE void products_begin()
{
}

QN_DEVICE void products_commit()
{
}

template <int left> QN_DEVICE void products_wait(float d[8][4])
{
}

// Lanes 0-7, 8-15, 16-23, 24-31 name rows of the matrices (0,0), (0,1), (1,0), (1,1) of a block of 16 rows and 2 pieces.
QN_DEVICE void load_block(uint32_t b[4], const unsigned char *tile, uint32_t row, uint32_t piece)
{
    const uint32_t lane = threadIdx.x % QN_WARP;
    qn_load_matrix_4(b, tile + piece_at(row + lane % 8 + lane / 16 * 8, piece + lane / 8 % 2));
}

template <bool accumulate> QN_DEVICE void clear_unless(float d[8][4])
{
    if (!accumulate)
#pragma unroll
        for (int i = 0; i < 8; i++)
            d[i][0] = d[i][1] = d[i][2] = d[i][3] = 0;
}

template <bool accumulate> QN_DEVICE void times_rows(float d[8][4], const uint32_t a[4][4], const unsigned char *x)
{
    clear_unless<accumulate>(d);
#pragma unroll
    for (int s = 0; s < 4; s++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t b[4];
            load_block(b, x, n * 16, s * 2);
            qn_mma_m16n8k16_bf16(d[2 * n], a[s], b);
            qn_mma_m16n8k16_bf16(d[2 * n + 1], a[s], b + 2);
        }
}

template <bool accumulate> QN_DEVICE void times_lower(float d[8][4], const uint32_t a[4][4], const unsigned char *x)
{
    clear_unless<accumulate>(d);
#pragma unroll
    for (int s = 0; s < 4; s++)
#pragma unroll
        for (int n = s; n < 4; n++) {
            uint32_t b[4];
            load_block(b, x, n * 16, s * 2);
            qn_mma_m16n8k16_bf16(d[2 * n], a[s], b);
            qn_mma_m16n8k16_bf16(d[2 * n + 1], a[s], b + 2);
        }
}

QN_DEVICE void times_columns(float d[8][4], const uint32_t a[4][4], const unsigned char *x)
{
    const uint32_t lane = threadIdx.x % QN_WARP;
#pragma unroll
    for (int s = 0; s < 4; s++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t b[4];
            qn_load_matrix_4_transposed(b, x + piece_at(s * 16 + lane % 16, n * 2 + lane / 16));
            qn_mma_m16n8k16_bf16(d[2 * n], a[s], b);
            qn_mma_m16n8k16_bf16(d[2 * n + 1], a[s], b + 2);
        }
}

#endif

// ---- Sequences ----

struct sequence {
    uint32_t first, n; // tokens
    uint32_t place;    // of its first chunk's records
};

QN_DEVICE sequence sequence_at(const qn_gdn_chunk_args &a, uint32_t index)
{
    sequence s;
    s.first = a.cu_seqlens ? a.cu_seqlens[index] : index * a.tokens;
    s.n = a.cu_seqlens ? a.cu_seqlens[index + 1] - s.first : a.tokens;
    s.place = s.first / TOKENS + index;
    return s;
}

QN_DEVICE uint32_t value_head(const qn_gdn_chunk_args &a, uint32_t k_head, uint32_t i)
{
    return a.tiled ? i * a.k_heads + k_head : k_head * (a.v_heads / a.k_heads) + i;
}

QN_DEVICE uint32_t key_head(const qn_gdn_chunk_args &a, uint32_t head)
{
    return a.tiled ? head % a.k_heads : head / (a.v_heads / a.k_heads);
}

QN_DEVICE float exp2_of(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ---- What does not depend on the state ----

#define PREPARE_THREADS QN_GDN_PREPARE_THREADS
#define ROW 68 // floats between rows of a square: fragments of 8 rows then meet all banks
#define OWN_QUADS 5 // a thread's runs of 4 columns, of 640 in the blocks of a square that are not above the diagonal

struct prepare_memory {
    union {
        struct {
            unsigned char k[2 * TILE], q[2 * TILE];
        };
        struct {
            float kk[TOKENS * ROW], qk[TOKENS * ROW]; // when the tiles have been read
        };
    };
    float square[TOKENS * ROW]; // A, then (I + A)^-1; products on the way lie above the diagonal
    // Of this head and the next: gc in units of log 2, as the sum of two floats, and beta; by rows and by columns.
    float4 rows[2][TOKENS];
    float sum_high[2][TOKENS], sum_low[2][TOKENS], beta[2][TOKENS];
    float2 norms[TOKENS]; // 1/norm of k and of q
    float k_norm[TOKENS];
};

static_assert(sizeof(prepare_memory) == QN_GDN_PREPARE_BYTES, "the launch's shared memory");

// Running sums of the log decays of a value head, in double; a warp's work. What is past the end has no decay and no strength.
QN_DEVICE void sum_decays(const qn_gdn_chunk_args &a, prepare_memory &m, uint32_t to, uint32_t first, uint32_t n, uint32_t head)
{
    const uint32_t lane = threadIdx.x % QN_WARP;
    float g[2], beta[2];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t token = 2 * lane + i;
        const size_t at = (size_t)(first + token) * a.gate_stride + head;
        g[i] = token < n ? fminf(fmaxf(a.g[at], LEAST_DECAY), 0.0f) : 0.0f;
        beta[i] = token < n ? a.beta[at] : 0.0f;
    }
    double sum = (double)g[0] + (double)g[1];
#pragma unroll
    for (uint32_t distance = 1; distance < QN_WARP; distance *= 2) {
        const double before = __shfl_up_sync(QN_ALL_LANES, sum, distance);
        sum += lane >= distance ? before : 0.0;
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const double at = (i ? sum : sum - (double)g[1]) * 1.4426950408889634;
        const float at_high = (float)at, at_low = (float)(at - (double)at_high);
        m.rows[to][2 * lane + i] = make_float4(at_high, at_low, beta[i], 0);
        m.sum_high[to][2 * lane + i] = at_high;
        m.sum_low[to][2 * lane + i] = at_low;
        m.beta[to][2 * lane + i] = beta[i];
    }
}

// m.kk and m.qk, in rows [16 block, 16 block + 16) up to the diagonal, and 1/norm of those rows.
QN_DEVICE void products_of_rows(const qn_gdn_chunk_args &a, prepare_memory &m, uint32_t block)
{
    const uint32_t lane = threadIdx.x % QN_WARP, g = lane / 4, t = lane % 4;
    float kk[8][4] = {}, qk[8][4] = {}, k_sum[2] = { 0, 0 }, q_sum[2] = { 0, 0 };
#pragma unroll
    for (int s = 0; s < 8; s++) {
        const uint32_t tile = s / 4 * TILE, piece = s % 4 * 2;
        uint32_t of_k[4], of_q[4];
        const uint32_t at = tile + piece_at(block * 16 + lane % 16, piece + lane / 16);
        qn_load_matrix_4(of_k, m.k + at);
        qn_load_matrix_4(of_q, m.q + at);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            k_sum[r % 2] += low(of_k[r]) * low(of_k[r]) + high(of_k[r]) * high(of_k[r]);
            q_sum[r % 2] += low(of_q[r]) * low(of_q[r]) + high(of_q[r]) * high(of_q[r]);
        }
#pragma unroll
        for (int n = 0; n < 4; n++)
            if (n <= block) {
                uint32_t b[4];
                qn_load_matrix_4(b, m.k + tile + piece_at(n * 16 + lane % 8 + lane / 16 * 8, piece + lane / 8 % 2));
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
            k_sum[i] += __shfl_xor_sync(QN_ALL_LANES, k_sum[i], distance);
            q_sum[i] += __shfl_xor_sync(QN_ALL_LANES, q_sum[i], distance);
        }
        if (t == 0) {
            const float k_norm = a.normalize ? 1.0f / sqrtf(k_sum[i] + 1e-6f) : 1.0f;
            m.norms[block * 16 + i * 8 + g] = make_float2(k_norm, a.normalize ? 1.0f / sqrtf(q_sum[i] + 1e-6f) : 1.0f);
            m.k_norm[block * 16 + i * 8 + g] = k_norm;
        }
    }
    __syncthreads(); // the tiles have been read
#pragma unroll
    for (int n = 0; n < 8; n++)
        if (n / 2 <= block)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t at = (block * 16 + i * 8 + g) * ROW + n * 8 + 2 * t;
                *(float2 *)(m.kk + at) = make_float2(kk[n][2 * i], kk[n][2 * i + 1]);
                *(float2 *)(m.qk + at) = make_float2(qk[n][2 * i], qk[n][2 * i + 1]);
            }
}

// A thread's share of a square's lower blocks: runs of 4 columns.
struct quads {
    uint32_t row[OWN_QUADS], column[OWN_QUADS], place[OWN_QUADS]; // in a record's tile
};

QN_DEVICE quads own_quads()
{
    quads q;
#pragma unroll
    for (uint32_t i = 0; i < OWN_QUADS; i++) {
        const uint32_t index = i * PREPARE_THREADS + threadIdx.x;
        const uint32_t block = (index >= 64) + (index >= 192) + (index >= 384), in_row = 4 * (block + 1);
        const uint32_t in_block = index - 32 * block * (block + 1);
        q.row[i] = block * 16 + in_block / in_row;
        q.column[i] = in_block % in_row * 4;
        q.place[i] = piece_at(q.row[i], q.column[i] / 8) + q.column[i] % 8 * 2;
    }
    return q;
}

QN_DEVICE float4 four(const float *x)
{
    return *(const float4 *)x;
}

// Gates and strengths: A in m.square, scores in the record.
QN_DEVICE void gate(prepare_memory &m, const quads &own, uint32_t of, float scale, unsigned char *record)
{
#pragma unroll
    for (uint32_t index = 0; index < OWN_QUADS; index++) {
        const uint32_t i = own.row[index], j = own.column[index];
        const float4 sum_high = four(m.sum_high[of] + j), sum_low = four(m.sum_low[of] + j), norm = four(m.k_norm + j);
        const float4 kk = four(m.kk + i * ROW + j), qk = four(m.qk + i * ROW + j), row = m.rows[of][i];
        const float2 norms = m.norms[i];
        const float k_row = row.z * norms.x, q_row = scale * norms.y;
        float4 e;
        e.x = exp2_of(j <= i ? (row.x - sum_high.x) + (row.y - sum_low.x) : -1e30f) * norm.x;
        e.y = exp2_of(j + 1 <= i ? (row.x - sum_high.y) + (row.y - sum_low.y) : -1e30f) * norm.y;
        e.z = exp2_of(j + 2 <= i ? (row.x - sum_high.z) + (row.y - sum_low.z) : -1e30f) * norm.z;
        e.w = exp2_of(j + 3 <= i ? (row.x - sum_high.w) + (row.y - sum_low.w) : -1e30f) * norm.w;
        uint2 scores;
        scores.x = qn_floats_to_bfloats(qk.x * (q_row * e.x), qk.y * (q_row * e.y));
        scores.y = qn_floats_to_bfloats(qk.z * (q_row * e.z), qk.w * (q_row * e.w));
        *(uint2 *)(record + QN_GDN_RECORD_SCORES + own.place[index]) = scores;
        float4 a;
        a.x = j < i ? kk.x * (k_row * e.x) : 0.0f;
        a.y = j + 1 < i ? kk.y * (k_row * e.y) : 0.0f;
        a.z = j + 2 < i ? kk.z * (k_row * e.z) : 0.0f;
        a.w = j + 3 < i ? kk.w * (k_row * e.w) : 0.0f;
        *(float4 *)(m.square + i * ROW + j) = a;
    }
}

QN_DEVICE float *block_at(prepare_memory &m, uint32_t row, uint32_t column)
{
    return m.square + row * 16 * ROW + column * 16;
}

// (I + the diagonal block)^-1 in its place: a lane solves for a column, row by row.
QN_DEVICE void invert_block(float *at)
{
    const uint32_t column = threadIdx.x % 16;
    float d[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float sums[4] = { i == column ? 1.0f : 0.0f, 0, 0, 0 };
#pragma unroll
        for (int j = 0; j < i; j += 4) {
            const float4 a = four(at + i * ROW + j);
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
    if (threadIdx.x % QN_WARP < 16)
#pragma unroll
        for (int i = 0; i < 16; i++)
            at[i * ROW + column] = d[i];
}

QN_DEVICE uint32_t to_tf32(float x)
{
    uint32_t y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

// d += x y, blocks of 16 by 16 in tf32, d as two products of 8 columns. The inner dimension is taken in the order 0 2 4 6 1 3 5 7,
// as pairs lie.
QN_DEVICE void multiply_blocks(float d[2][4], const float *x, const float *y)
{
    const uint32_t lane = threadIdx.x % QN_WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int s = 0; s < 2; s++) {
        const float2 top = *(const float2 *)(x + g * ROW + s * 8 + 2 * t);
        const float2 bottom = *(const float2 *)(x + (g + 8) * ROW + s * 8 + 2 * t);
        const uint32_t a[4] = { to_tf32(top.x), to_tf32(bottom.x), to_tf32(top.y), to_tf32(bottom.y) };
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const float *b = y + (s * 8 + 2 * t) * ROW + n * 8 + g;
            asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                         "{%0, %1, %2, %3};"
                         : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(to_tf32(b[0])), "r"(to_tf32(b[ROW])));
        }
    }
}

QN_DEVICE void store_block(float *to, const float d[2][4], float sign)
{
    const uint32_t lane = threadIdx.x % QN_WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            *(float2 *)(to + (i * 8 + g) * ROW + n * 8 + 2 * t) = make_float2(sign * d[n][2 * i], sign * d[n][2 * i + 1]);
}

// With X and Y the inverses of two diagonal blocks, the block between them becomes -Y A X; one warp's work.
QN_DEVICE void join_pair(prepare_memory &m, uint32_t first)
{
    float d[2][4] = {}, e[2][4] = {};
    multiply_blocks(d, block_at(m, first + 1, first), block_at(m, first, first));
    store_block(block_at(m, first, first + 1), d, 1);
    __syncwarp();
    multiply_blocks(e, block_at(m, first + 1, first + 1), block_at(m, first, first + 1));
    store_block(block_at(m, first + 1, first), e, -1);
}

// The same for blocks of 32, in two steps with a barrier between; a warp has a block of 16 of the result.
QN_DEVICE void join_halves_1(prepare_memory &m, uint32_t row, uint32_t column)
{
    float d[2][4] = {};
    for (uint32_t i = column; i < 2; i++)
        multiply_blocks(d, block_at(m, row, i), block_at(m, i, column));
    store_block(block_at(m, column, row), d, 1);
}

QN_DEVICE void join_halves_2(prepare_memory &m, uint32_t row, uint32_t column)
{
    float d[2][4] = {};
    for (uint32_t i = 2; i <= row; i++)
        multiply_blocks(d, block_at(m, row, i), block_at(m, column, i));
    store_block(block_at(m, row, column), d, -1);
}

// The inverse with strengths in its columns.
QN_DEVICE void store_inverse(const prepare_memory &m, const quads &own, uint32_t of, unsigned char *record)
{
#pragma unroll
    for (uint32_t index = 0; index < OWN_QUADS; index++) {
        const float4 x = four(m.square + own.row[index] * ROW + own.column[index]), beta = four(m.beta[of] + own.column[index]);
        uint2 pairs;
        pairs.x = qn_floats_to_bfloats(x.x * beta.x, x.y * beta.y);
        pairs.y = qn_floats_to_bfloats(x.z * beta.z, x.w * beta.w);
        *(uint2 *)(record + QN_GDN_RECORD_INVERSE + own.place[index]) = pairs;
    }
}

QN_DEVICE void store_factors(const prepare_memory &m, uint32_t of, float scale, unsigned char *record)
{
    const uint32_t i = threadIdx.x;
    if (i >= TOKENS)
        return;
    const float *sum_high = m.sum_high[of], *sum_low = m.sum_low[of];
    const float last = (sum_high[TOKENS - 1] - sum_high[i]) + (sum_low[TOKENS - 1] - sum_low[i]);
    const float since = exp2_of(sum_high[i] + sum_low[i]);
    ((float *)(record + QN_GDN_RECORD_RECALL))[i] = -since * m.norms[i].x;
    ((float *)(record + QN_GDN_RECORD_KEEP))[i] = exp2_of(last) * m.norms[i].x;
    ((float *)(record + QN_GDN_RECORD_READ))[i] = scale * since * m.norms[i].y;
    if (i == TOKENS - 1)
        *(float *)(record + QN_GDN_RECORD_DECAY) = since;
}

// A block for a chunk (x), a key head (y) and a sequence (z): all value heads that read the key head.
extern "C" __global__ void __launch_bounds__(PREPARE_THREADS, 4) qn_gdn_prepare(const __grid_constant__ qn_gdn_chunk_args a)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    prepare_memory &m = *(prepare_memory *)shared;
    qn_wait_for_previous();
    qn_let_next_begin();
    const sequence s = sequence_at(a, blockIdx.z);
    const uint32_t begin = blockIdx.x * TOKENS, k_head = blockIdx.y, warp = threadIdx.x / QN_WARP;
    if (begin >= s.n)
        return;
    const uint32_t first = s.first + begin, n = s.n - begin < TOKENS ? s.n - begin : TOKENS, heads = a.v_heads / a.k_heads;
    load_rows<16, PREPARE_THREADS>(m.k, a.k + (size_t)first * a.k_stride + k_head * HEAD_K, a.k_stride, n, threadIdx.x);
    load_rows<16, PREPARE_THREADS>(m.q, a.q + (size_t)first * a.q_stride + k_head * HEAD_K, a.q_stride, n, threadIdx.x);
    qn_copy_async_commit();
    if (warp == 1)
        sum_decays(a, m, 0, first, n, value_head(a, k_head, 0));
    qn_copy_async_wait<0>();
    __syncthreads();
    // Later rows have more to do; blocks that share an SM take turns in which warp has them.
    products_of_rows(a, m, (warp + blockIdx.x) % 4);
    const quads own = own_quads();
    for (uint32_t i = 0; i < heads; i++) {
        const uint32_t of = i % 2;
        unsigned char *record =
            a.records + ((size_t)(s.place + blockIdx.x) * a.v_heads + value_head(a, k_head, i)) * QN_GDN_RECORD;
        __syncthreads(); // products, sums and strengths are there, and the head before is stored
        gate(m, own, of, a.scale, record);
        __syncthreads();
        invert_block(block_at(m, warp, warp));
        __syncthreads();
        if (warp % 2 == 0)
            join_pair(m, warp);
        else if (warp == 1 && i + 1 < heads)
            sum_decays(a, m, 1 - of, first, n, value_head(a, k_head, i + 1));
        __syncthreads();
        join_halves_1(m, 2 + warp / 2, warp % 2);
        __syncthreads();
        join_halves_2(m, 2 + warp / 2, warp % 2);
        store_factors(m, of, a.scale, record);
        __syncthreads();
        store_inverse(m, own, of, record);
    }
}

// ---- From chunk to chunk ----

#ifndef QN_GDN_STAGES
#define QN_GDN_STAGES 3
#endif
#define STAGES QN_GDN_STAGES
#define GROUP 128 // threads that do one thing

struct stage {
    unsigned char k[2 * TILE], q[2 * TILE], v[TILE], record[QN_GDN_RECORD];
};

struct advance_memory {
    stage stages[STAGES];
    uint4 state[4][8][QN_WARP];     // fragments of S, [warp][keys / 16][lane]
    uint4 corrected[4][4][QN_WARP]; // and of v', [warp][tokens / 16][lane]
    unsigned char o[TILE];
};

static_assert(sizeof(advance_memory) == QN_GDN_ADVANCE_BYTES + STAGES * QN_GDN_STAGE_BYTES, "the launch's shared memory");
static_assert(3 * GROUP == QN_GDN_ADVANCE_THREADS, "the launch's threads");

// Barriers of the hardware, each with groups that arrive and groups that wait.
enum {
    FOR_CHAIN = 1,              // + stage: loaded
    FOR_OUTPUT = FOR_CHAIN + 3, // + stage: the same
    UNUSED = FOR_OUTPUT + 3,    // + stage: read by both
    STATE_THERE = UNUSED + 3,   // fragments of S
    CORRECTED_THERE,            // fragments of v'
    BOTH_READ,
    OUTPUT_THERE // the tile of outputs; that it has been read, STATE_THERE says
};

QN_DEVICE void arrive(uint32_t barrier, uint32_t threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

QN_DEVICE void wait(uint32_t barrier, uint32_t threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// What copies have written becomes visible to wgmma.
QN_DEVICE void show_to_products()
{
#if QN_WGMMA
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

struct walk {
    sequence s;
    uint32_t head, k_head, column; // of the slice's first value among all heads' values
    uint32_t chunks, thread;       // thread of its group
};

QN_DEVICE uint32_t next(uint32_t stage)
{
    return stage + 1 == STAGES ? 0 : stage + 1;
}

// Blocks above the diagonal, which no record brings.
QN_DEVICE void clear_upper(const walk &w, stage &to)
{
#pragma unroll
    for (uint32_t block = 0; block < 3; block++)
        if (w.thread % 8 >= 2 * (block + 1)) {
            const uint32_t at = piece_at(block * 16 + w.thread / 8, w.thread % 8);
            *(uint4 *)(to.record + QN_GDN_RECORD_INVERSE + at) = make_uint4(0, 0, 0, 0);
            *(uint4 *)(to.record + QN_GDN_RECORD_SCORES + at) = make_uint4(0, 0, 0, 0);
        }
}

QN_DEVICE void load(const qn_gdn_chunk_args &a, const walk &w, advance_memory &m)
{
    const uint16_t *k = a.k + (size_t)w.s.first * a.k_stride + w.k_head * HEAD_K;
    const uint16_t *q = a.q + (size_t)w.s.first * a.q_stride + w.k_head * HEAD_K;
    const uint16_t *v = a.v + (size_t)w.s.first * a.v_stride + w.column;
    const unsigned char *record = a.records + ((size_t)w.s.place * a.v_heads + w.head) * QN_GDN_RECORD;
    const uint32_t at = piece_at(w.thread / 8, w.thread % 8);
    for (uint32_t i = 0; i < STAGES; i++)
        clear_upper(w, m.stages[i]);
    for (uint32_t c = 0, in = 0, ready = 0; c <= w.chunks; c++) {
        if (c < w.chunks) {
            const uint32_t left = w.s.n - c * TOKENS, n = left < TOKENS ? left : TOKENS;
            stage &to = m.stages[in];
            if (c >= STAGES)
                wait(UNUSED + in, 3 * GROUP);
            load_rows<16, GROUP>(to.k, k, a.k_stride, n, w.thread);
            load_rows<16, GROUP>(to.q, q, a.q_stride, n, w.thread);
            load_rows<8, GROUP>(to.v, v, a.v_stride, n, w.thread);
#pragma unroll
            for (uint32_t block = 0; block < 4; block++)
                if (w.thread % 8 < 2 * (block + 1)) {
                    const uint32_t in_record = at + block * 2048;
                    qn_copy_async_16(to.record + QN_GDN_RECORD_INVERSE + in_record, record + QN_GDN_RECORD_INVERSE + in_record);
                    qn_copy_async_16(to.record + QN_GDN_RECORD_SCORES + in_record, record + QN_GDN_RECORD_SCORES + in_record);
                }
            if (w.thread < (QN_GDN_RECORD - QN_GDN_RECORD_RECALL) / 16)
                qn_copy_async_16(to.record + QN_GDN_RECORD_RECALL + w.thread * 16, record + QN_GDN_RECORD_RECALL + w.thread * 16);
            k += (size_t)TOKENS * a.k_stride;
            q += (size_t)TOKENS * a.q_stride;
            v += (size_t)TOKENS * a.v_stride;
            record += (size_t)a.v_heads * QN_GDN_RECORD;
            in = next(in);
        }
        qn_copy_async_commit();
        // With three stages a chunk's copies have the time that the next one's take to be asked for.
        if (STAGES > 2 ? c > 0 : c < w.chunks) {
            qn_copy_async_wait<(STAGES > 2)>();
            show_to_products();
            arrive(FOR_CHAIN + ready, 2 * GROUP);
            arrive(FOR_OUTPUT + ready, 2 * GROUP);
            ready = next(ready);
        }
    }
}

// What the chain reads of a chunk besides right operands: v's fragments and factors of tokens.
struct chunk_values {
    uint32_t v[4][4];
    float2 recall[8], keep[8];
    float decay;
};

QN_DEVICE void read_values(chunk_values &now, const stage &in, uint32_t warp)
{
    const uint32_t lane = threadIdx.x % QN_WARP, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 4; i++)
        qn_load_matrix_4_transposed(now.v[i], in.v + piece_at(i * 16 + lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2));
#pragma unroll
    for (int i = 0; i < 8; i++) {
        now.recall[i] = ((const float2 *)(in.record + QN_GDN_RECORD_RECALL))[i * 4 + t];
        now.keep[i] = ((const float2 *)(in.record + QN_GDN_RECORD_KEEP))[i * 4 + t];
    }
    now.decay = *(const float *)(in.record + QN_GDN_RECORD_DECAY);
}

// A chunk, its products of keys with the state being under way in x: hands the state and v' on, and begins the state's update in
// two halves of keys, a group each. What others need is written while products are under way, and the state only when x is there:
// the outputs' products would else slow it down.
QN_DEVICE void advance_chunk(advance_memory &m, const stage &in, chunk_values &now, uint32_t warp, bool first, float s[16][4],
                             float x[8][4], const uint32_t state[8][4])
{
    const uint32_t lane = threadIdx.x % QN_WARP;
    uint32_t kept[4][4];
    float v_new[8][4];
    products_wait<0>(x);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const int n = 2 * i + r / 2, e = r % 2 * 2;
            const float2 f = now.recall[n];
            now.v[i][r] = qn_floats_to_bfloats(fmaf(f.x, x[n][e], low(now.v[i][r])), fmaf(f.y, x[n][e + 1], high(now.v[i][r])));
        }
    products_begin();
    times_lower<false>(v_new, now.v, in.record + QN_GDN_RECORD_INVERSE);
    products_commit();
    if (!first)
        wait(BOTH_READ, 2 * GROUP);
#pragma unroll
    for (int i = 0; i < 8; i++)
        m.state[warp][i][lane] = make_uint4(state[i][0], state[i][1], state[i][2], state[i][3]);
    arrive(STATE_THERE, 2 * GROUP);
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] *= now.decay;
    products_wait<0>(v_new);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const int n = 2 * i + r / 2, e = r % 2 * 2;
            kept[i][r] = qn_floats_to_bfloats(now.keep[n].x * v_new[n][e], now.keep[n].y * v_new[n][e + 1]);
        }
    products_begin();
    times_columns(s, kept, in.k);
    products_commit();
    times_columns(s + 8, kept, in.k + TILE);
    products_commit();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t corrected[4];
        pack(corrected, v_new[2 * i], v_new[2 * i + 1]);
        m.corrected[warp][i][lane] = make_uint4(corrected[0], corrected[1], corrected[2], corrected[3]);
    }
    arrive(CORRECTED_THERE, 2 * GROUP);
}

// The chain: v' and the state, chunk after chunk. Products are asynchronous: the next chunk's products with the first half of the
// state begin while the second is being brought up to date.
QN_DEVICE void advance(const qn_gdn_chunk_args &a, const walk &w, advance_memory &m)
{
    const uint32_t warp = w.thread / QN_WARP, lane = w.thread % QN_WARP, g = lane / 4, t = lane % 4;
    const size_t row = (size_t)(w.column + warp * 16 + g) * HEAD_K + 2 * t;
    const size_t all = (size_t)blockIdx.z * a.v_heads * a.head_v * HEAD_K;
    const float *initial = a.memory    ? (a.positions[blockIdx.z] ? qn_gdn_state_of(a, blockIdx.z) : nullptr)
                           : a.initial ? a.initial + all
                                       : nullptr;
    float *final = a.memory ? qn_gdn_state_of(a, blockIdx.z) : a.final ? a.final + all : nullptr;
    float s[16][4], x[8][4];
    uint32_t state[8][4], here = 0;
    chunk_values now;
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float2 y = initial ? *(const float2 *)(initial + row + i * 8 * HEAD_K + n * 8) : make_float2(0, 0);
            s[n][2 * i] = y.x;
            s[n][2 * i + 1] = y.y;
        }
    if (w.chunks) {
        wait(FOR_CHAIN, 2 * GROUP);
        read_values(now, m.stages[0], warp);
#pragma unroll
        for (int i = 0; i < 8; i++)
            pack(state[i], s[2 * i], s[2 * i + 1]);
        products_begin();
        times_rows<false>(x, state, m.stages[0].k);
        times_rows<true>(x, state + 4, m.stages[0].k + TILE);
        products_commit();
        for (uint32_t c = 0; c + 1 < w.chunks; c++) {
            advance_chunk(m, m.stages[here], now, warp, c == 0, s, x, state);
            const uint32_t unused = UNUSED + here;
            if (STAGES == 1) {
                products_wait<0>(s + 8);
                arrive(unused, 3 * GROUP);
            }
            here = next(here);
            const stage &in = m.stages[here];
            wait(FOR_CHAIN + here, 2 * GROUP);
            read_values(now, in, warp);
            products_wait<1>(s);
#pragma unroll
            for (int i = 0; i < 4; i++)
                pack(state[i], s[2 * i], s[2 * i + 1]);
            products_begin();
            times_rows<false>(x, state, in.k);
            products_commit();
            products_wait<1>(s + 8);
            if (STAGES > 1 && c + STAGES < w.chunks)
                arrive(unused, 3 * GROUP);
#pragma unroll
            for (int i = 4; i < 8; i++)
                pack(state[i], s[2 * i], s[2 * i + 1]);
            products_begin();
            times_rows<true>(x, state + 4, in.k + TILE);
            products_commit();
        }
        advance_chunk(m, m.stages[here], now, warp, w.chunks == 1, s, x, state);
        products_wait<0>(s);
        products_wait<0>(s + 8);
    }
    if (final)
#pragma unroll
        for (int n = 0; n < 16; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                *(float2 *)(final + row + i * 8 * HEAD_K + n * 8) = make_float2(s[n][2 * i], s[n][2 * i + 1]);
}

// A warp's 16 values of all tokens to o's tile, [token][value].
QN_DEVICE void store_transposed(unsigned char *tile, uint32_t warp, const float d[8][4])
{
    const uint32_t lane = threadIdx.x % QN_WARP;
#if __CUDA_ARCH__ >= 900
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
        uint32_t x[4];
        pack(x, d[n], d[n + 1]);
        const unsigned char *at = tile + piece_at(n * 8 + lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(qn_shared_address(at)),
                     "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                     : "memory");
    }
#else
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            *(uint16_t *)(tile + piece_at(n * 8 + lane % 4 * 2 + e % 2, warp * 2 + e / 2) + lane / 4 * 2) =
                qn_float_to_bfloat(d[n][e]);
#endif
}

// Outputs, a step behind the chain.
QN_DEVICE void output(const qn_gdn_chunk_args &a, const walk &w, advance_memory &m)
{
    const uint32_t warp = w.thread / QN_WARP, lane = w.thread % QN_WARP, t = lane % 4;
    uint16_t *o = a.o + (size_t)(w.s.first + w.thread / 8) * a.o_stride + w.column + w.thread % 8 * 8;
    uint32_t here = 0;
    for (uint32_t c = 0; c < w.chunks; c++) {
        const stage &in = m.stages[here];
        uint32_t state[8][4], corrected[4][4];
        float d[8][4];
        float2 f[8];
        wait(STATE_THERE, 2 * GROUP);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint4 x = m.state[warp][i][lane];
            state[i][0] = x.x, state[i][1] = x.y, state[i][2] = x.z, state[i][3] = x.w;
        }
        wait(FOR_OUTPUT + here, 2 * GROUP);
        products_begin();
        times_rows<false>(d, state, in.q);
        times_rows<true>(d, state + 4, in.q + TILE);
        products_commit();
#pragma unroll
        for (int i = 0; i < 8; i++)
            f[i] = ((const float2 *)(in.record + QN_GDN_RECORD_READ))[i * 4 + t];
        products_wait<0>(d);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                d[n][e] *= e % 2 ? f[n].y : f[n].x;
        wait(CORRECTED_THERE, 2 * GROUP);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint4 x = m.corrected[warp][i][lane];
            corrected[i][0] = x.x, corrected[i][1] = x.y, corrected[i][2] = x.z, corrected[i][3] = x.w;
        }
        if (c + 1 < w.chunks)
            arrive(BOTH_READ, 2 * GROUP);
        products_begin();
        times_lower<true>(d, corrected, in.record + QN_GDN_RECORD_SCORES);
        products_commit();
        products_wait<0>(d);
        if (c + STAGES < w.chunks)
            arrive(UNUSED + here, 3 * GROUP);
        here = next(here);
        store_transposed(m.o, warp, d);
        wait(OUTPUT_THERE, GROUP);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t token = i * 16 + w.thread / 8;
            if (c * TOKENS + token < w.s.n)
                *(uint4 *)(o + (size_t)i * 16 * a.o_stride) = *(const uint4 *)(m.o + piece_at(token, w.thread % 8));
        }
        o += (size_t)TOKENS * a.o_stride;
    }
}

// Registers of a group's threads: the chain needs more than its share, the loads fewer.
template <int n> QN_DEVICE void take_registers()
{
#if QN_WGMMA
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
#endif
}

template <int n> QN_DEVICE void leave_registers()
{
#if QN_WGMMA
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
#endif
}

// A block for a slice of 64 values (x), a value head (y) and a sequence (z).
extern "C" __global__ void __launch_bounds__(3 * GROUP, 1) qn_gdn_advance(const __grid_constant__ qn_gdn_chunk_args a)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    advance_memory &m = *(advance_memory *)shared;
    walk w;
    __syncthreads();
    qn_wait_for_previous();
    w.s = sequence_at(a, blockIdx.z);
    w.head = blockIdx.y;
    w.k_head = key_head(a, w.head);
    w.column = w.head * a.head_v + blockIdx.x * SLICE;
    w.chunks = (w.s.n + TOKENS - 1) / TOKENS;
    w.thread = threadIdx.x % GROUP;
    if (threadIdx.x < GROUP) {
        take_registers<240>();
        advance(a, w, m);
    } else if (threadIdx.x < 2 * GROUP) {
        output(a, w, m);
    } else {
        leave_registers<56>();
        load(a, w, m);
    }
}
