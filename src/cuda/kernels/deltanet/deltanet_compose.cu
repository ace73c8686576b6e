// Gated DeltaNet over spans: qn_gdn_compose of deltanet.h, the states at the starts of pieces that begin within a head
// from the effects S M + B of the spans before them. Rows of a state are independent of each other: a block computes 16
// rows for all pieces of a head.
//
// MMAs are in tf32 with both operands as the sum of two terms, which is within 2^-21 of f32.
#include "cuda/kernels/deltanet/chunk.cuh"
#include "cuda/kernels/deltanet/tf32.cuh"

#define THREADS QN_GDN_COMPOSE_THREADS
#define ROWS QN_GDN_COMPOSE_ROWS
#define ROW (PADDED_K + 4) // row stride of a state in floats: fragment accesses to 8 rows are free of bank conflicts
#define WARP_COLUMNS (PADDED_K / 4)
#define FRAGMENTS (WARP_COLUMNS / 8)

struct compose_smem {
    // ring buffer; the 16-byte segment s of row r is stored at segment s ^ 2 (r & 3)
    float transitions[2][PADDED_K * PADDED_K];
    float state[2][ROWS * ROW];
};

static_assert(sizeof(compose_smem) == QN_GDN_COMPOSE_BYTES(HEAD_K), "the launch's shared memory");

QN_DEVICE uint32_t transition_offset(uint32_t row, uint32_t column)
{
    return row * PADDED_K + ((column / 4 ^ (row & 3) * 2) * 4 | column % 4);
}

QN_DEVICE void load_transition(float *to, const float *from)
{
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < PADDED_K * PADDED_K / 4; i += THREADS)
        qn_cp_async_16(to + transition_offset(i / (PADDED_K / 4), i % (PADDED_K / 4) * 4), from + i * 4);
    qn_cp_async_commit();
}

struct split {
    uint32_t hi, lo;
};

QN_DEVICE split split_tf32(float x)
{
    split s;
    s.hi = to_tf32(x) & 0xffffe000u;
    s.lo = to_tf32(x - __uint_as_float(s.hi));
    return s;
}

// d += state transition, for WARP_COLUMNS columns from `column` on.
QN_DEVICE void multiply(float d[FRAGMENTS][4], const float *state, const float *transition, uint32_t column)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, g = lane / 4, t = lane % 4;
#pragma unroll 4
    for (uint32_t k = 0; k < PADDED_K; k += 8) {
        uint32_t a_hi[4], a_lo[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const split a = split_tf32(state[(g + i % 2 * 8) * ROW + k + t + i / 2 * 4]);
            a_hi[i] = a.hi;
            a_lo[i] = a.lo;
        }
#pragma unroll
        for (int n = 0; n < FRAGMENTS; n++) {
            uint32_t b_hi[2], b_lo[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const split b = split_tf32(transition[transition_offset(k + t + i * 4, column + n * 8 + g)]);
                b_hi[i] = b.hi;
                b_lo[i] = b.lo;
            }
            mma_m16n8k8_tf32(d[n], a_lo, b_hi);
            mma_m16n8k8_tf32(d[n], a_hi, b_lo);
            mma_m16n8k8_tf32(d[n], a_hi, b_hi);
        }
    }
}

struct rows {
    float *states; // of piece 0
    size_t piece;  // elements from a piece's state to the next
    uint32_t column;
};

// S of a piece from that of the piece before, which is in `before`; to `after` and to device memory.
QN_DEVICE void compose(const rows &r, uint32_t piece, const float *before, const float *transition, float *after)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, g = lane / 4, t = lane % 4;
    float d[FRAGMENTS][4];
#pragma unroll
    for (int n = 0; n < FRAGMENTS; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t at = (g + i * 8) * PADDED_K + r.column + n * 8 + 2 * t;
            const float2 effect = *(const float2 *)(r.states + piece * r.piece + at);
            d[n][2 * i] = effect.x;
            d[n][2 * i + 1] = effect.y;
        }
    multiply(d, before, transition, r.column);
#pragma unroll
    for (int n = 0; n < FRAGMENTS; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t row = g + i * 8, column = r.column + n * 8 + 2 * t;
            const float2 x = make_float2(d[n][2 * i], d[n][2 * i + 1]);
            *(float2 *)(r.states + piece * r.piece + row * PADDED_K + column) = x;
            *(float2 *)(after + row * ROW + column) = x;
        }
}

QN_DEVICE void read_rows(float *to, const float *from)
{
    for (uint32_t i = threadIdx.x; i < ROWS * PADDED_K / 4; i += THREADS)
        *(float4 *)(to + i / (PADDED_K / 4) * ROW + i % (PADDED_K / 4) * 4) = *(const float4 *)(from + i * 4);
}

// The first piece from `piece` on whose state is composed; `end` if there is none. By a full warp.
QN_DEVICE uint32_t next_composed(const uint32_t *sources, uint32_t piece, uint32_t end)
{
    for (; piece < end; piece += QN_WARP_SIZE) {
        const uint32_t i = piece + threadIdx.x % QN_WARP_SIZE;
        const uint32_t composed = __ballot_sync(QN_FULL_MASK, i < end && sources[i] == SOURCE_COMPOSED);
        if (composed)
            return piece + __ffs(composed) - 1;
    }
    return end;
}

// The pieces that begin within a head.
QN_DEVICE void compose_head(const qn_gdn_chunk_args &a, compose_smem &m, const pieces &all, const sequence &s, uint32_t head)
{
    const uint32_t n = count_indices(s.chunks), first = first_index(a, s) * a.v_heads + head * n;
    const uint32_t end = s.skipped ? 0 : piece_of(all, first + n - 1) + 1;
    rows r;
    r.states = a.states + (size_t)blockIdx.x * ROWS * PADDED_K;
    r.piece = (size_t)a.head_v * PADDED_K;
    r.column = threadIdx.x / QN_WARP_SIZE * WARP_COLUMNS;
    uint32_t piece = next_composed(a.sources, piece_of(all, first) + 1, end), in_shared = end; // no piece
    if (piece < end)
        load_transition(m.transitions[0], a.transitions + (size_t)(piece - 1) * PADDED_K * PADDED_K);
    for (uint32_t i = 0; piece < end; i ^= 1) {
        const uint32_t following = next_composed(a.sources, piece + 1, end);
        if (in_shared != piece - 1)
            read_rows(m.state[i], r.states + (piece - 1) * r.piece);
        if (following < end) {
            load_transition(m.transitions[i ^ 1], a.transitions + (size_t)(following - 1) * PADDED_K * PADDED_K);
            qn_cp_async_wait<1>();
        } else {
            qn_cp_async_wait<0>();
        }
        __syncthreads();
        compose(r, piece, m.state[i], m.transitions[i], m.state[i ^ 1]);
        __syncthreads(); // the transition has been read, the state is written
        in_shared = piece;
        piece = following;
    }
}

// Grid: 16 values (x); blocks of y take the heads of all sequences in turn.
extern "C" __global__ void __launch_bounds__(THREADS, 1) qn_gdn_compose(const __grid_constant__ qn_gdn_chunk_args a)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    compose_smem &m = *(compose_smem *)shared;
    qn_pdl_wait();
    qn_pdl_trigger();
    bool any = false;
    for (uint32_t piece = threadIdx.x; piece < a.pieces; piece += THREADS)
        any |= a.sources[piece] == SOURCE_COMPOSED;
    if (!__syncthreads_or(any))
        return;
    const pieces all = pieces_of(a);
    for (uint32_t i = blockIdx.y; i < a.v_heads * a.sequences; i += gridDim.y)
        compose_head(a, m, all, sequence_at(a, i / a.v_heads), i % a.v_heads);
}
