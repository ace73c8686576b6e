// The recurrence over chunks as a separate stage: qn_gdn_state_pass of stages.h. A block has a slice of 64 values of a
// value head: a consumer warp group with the state as MMA accumulators, [values][keys], two producer warps that load
// its inputs, and two writer warps that store its results. The rounded state of a chunk is in shared memory, from where
// it is an MMA operand and is stored as h.
#include "cuda/kernels/deltanet/stages.cuh"

#ifndef QN_GDN_STAGES
#define QN_GDN_STAGES 3
#endif
#define STAGES QN_GDN_STAGES

struct stage {
    unsigned char k[KEY_TILES * TILE], w[KEY_TILES * TILE], u[TILE];
    float gc[256]; // of 64 tokens; tiles begin at multiples of 1024
};

struct state_pass_smem {
    stage stages[STAGES];
    unsigned char state[KEY_TILES][TILE]; // [value][key]
    unsigned char v_new[TILE];            // [token][value]
    float factors[4][TOKENS];             // of each warp: e^(gc_last - gc_j)
    uint64_t stage_empty[3];              // mbarriers: the consumer has read the stage
};

static_assert(sizeof(state_pass_smem) <= QN_GDN_STATE_PASS_BYTES(HEAD_K, STAGES), "the launch's shared memory");
static_assert(2 * WARPGROUP == QN_GDN_STATE_PASS_THREADS, "the launch's threads");

#define PRODUCERS 64 // threads
#define WRITERS 64

// Named barriers.
enum {
    BARRIER_GROUP = 1,           // the threads of the consumer
    BARRIER_STATE_WRITTEN,       // the consumer and the writers: the state is in shared memory
    BARRIER_STATE_READ,          // the writers have read it
    BARRIER_V_NEW_WRITTEN,       // the same of v_new
    BARRIER_V_NEW_READ,
    BARRIER_LOADED               // + stage: the producers and the consumer
};

struct work {
    sequence s;
    uint32_t head, k_head, slice;
    uint32_t first_chunk; // of the sequence, among all
};

QN_DEVICE uint32_t next(uint32_t stage)
{
    return stage + 1 == STAGES ? 0 : stage + 1;
}

// ---- The producer ----

QN_DEVICE void load_chunk(const qn_gdn_stage_args &a, const work &w, const chunk &c, stage &to)
{
    const qn_gdn_chunk_args &r = a.rule;
    load_rows<KEY_TILES, PRODUCERS>(to.w, row_of(a.w, c.first, a.w_stride, w.head * HEAD_K), a.w_stride, c.n, HEAD_K, thread());
    load_rows<1, PRODUCERS>(to.u, row_of(a.u, c.first, a.u_stride, w.head * r.head_v + w.slice * SLICE), a.u_stride, c.n,
                            r.head_v - w.slice * SLICE, thread());
    load_rows<KEY_TILES, PRODUCERS>(to.k, row_of(r.k, c.first, r.k_stride, w.k_head * HEAD_K), r.k_stride, c.n, HEAD_K,
                                    thread());
    if (thread() < c.n)
        qn_cp_async_4(to.gc + thread(), a.gc + (size_t)(c.first + thread()) * a.gc_stride + w.head);
}

QN_DEVICE void produce(const qn_gdn_stage_args &a, const work &w, state_pass_smem &m)
{
    for (uint32_t i = 0, in = 0, ready = 0; i <= w.s.chunks; i++) {
        if (i < w.s.chunks) {
            if (i >= STAGES)
                wait(m.stage_empty[in], i / STAGES - 1);
            load_chunk(a, w, chunk_of(w.s, i), m.stages[in]);
            in = next(in);
        }
        qn_cp_async_commit();
        // With three stages the copies of two chunks are in flight: a chunk is awaited after the next one is issued.
        if (STAGES > 2 ? i > 0 : i < w.s.chunks) {
            qn_cp_async_wait<(STAGES > 2)>();
            fence_async_proxy();
            arrive(BARRIER_LOADED + ready, PRODUCERS + WARPGROUP);
            ready = next(ready);
        }
    }
}

// ---- The writers ----

// Stores the first `columns` columns of n rows of a tile. By the writers.
QN_DEVICE void store_tile(void *to, uint32_t stride, const unsigned char *tile, uint32_t n, uint32_t columns, uint32_t thread)
{
    const uint32_t segment = thread % 8;
#pragma unroll
    for (uint32_t i = 0; i < TOKENS * 8 / WRITERS; i++) {
        const uint32_t row = i * (WRITERS / 8) + thread / 8;
        if (row < n && segment * 8 < columns)
            *(uint4 *)((uint16_t *)to + (size_t)row * stride + segment * 8) =
                *(const uint4 *)(tile + swizzled_offset(row, segment));
    }
}

QN_DEVICE void store_chunk(const qn_gdn_stage_args &a, const work &w, const state_pass_smem &m, const chunk &c, bool last)
{
    const uint32_t head_v = a.rule.head_v, at = w.slice * SLICE, thread = threadIdx.x % WRITERS;
    const size_t state = (size_t)(w.first_chunk + c.number) * a.rule.v_heads + w.head;
    uint16_t *h = (uint16_t *)a.h + (state * head_v + at) * HEAD_K;
    wait(BARRIER_STATE_WRITTEN, WARPGROUP + WRITERS);
#pragma unroll
    for (int tile = 0; tile < KEY_TILES; tile++)
        store_tile(h + tile * 64, HEAD_K, m.state[tile], head_v - at, HEAD_K - tile * 64, thread);
    if (!last)
        arrive(BARRIER_STATE_READ, WARPGROUP + WRITERS);
    wait(BARRIER_V_NEW_WRITTEN, WARPGROUP + WRITERS);
    store_tile((uint16_t *)row_of(a.v_new, c.first, a.v_new_stride, w.head * head_v + at), a.v_new_stride, m.v_new, c.n,
               head_v - at, thread);
    if (!last)
        arrive(BARRIER_V_NEW_READ, WARPGROUP + WRITERS);
}

QN_DEVICE void write(const qn_gdn_stage_args &a, const work &w, const state_pass_smem &m)
{
    if (w.s.chunks == 0)
        return;
    arrive(BARRIER_STATE_READ, WARPGROUP + WRITERS);
    arrive(BARRIER_V_NEW_READ, WARPGROUP + WRITERS);
    for (uint32_t i = 0; i < w.s.chunks; i++)
        store_chunk(a, w, m, chunk_of(w.s, i), i + 1 == w.s.chunks);
}

// ---- The consumer ----

// Rounds the state to shared memory.
QN_DEVICE void publish_state(state_pass_smem &m, const float s[8 * KEY_TILES][4])
{
    wait(BARRIER_STATE_READ, WARPGROUP + WRITERS);
#pragma unroll
    for (int tile = 0; tile < KEY_TILES; tile++)
        store_rounded(m.state[tile], s + 8 * tile);
    fence_async_proxy();
    wait(BARRIER_GROUP, WARPGROUP);
    arrive(BARRIER_STATE_WRITTEN, WARPGROUP + WRITERS);
}

// The factors of the chunk's tokens, for this warp; returns the decay of the chunk.
QN_DEVICE float compute_factors(float factors[TOKENS], const float *gc, uint32_t n)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE;
    const float2 x = running_minimum(*(const float2 *)(gc + 2 * lane), n);
    const float last = __shfl_sync(QN_FULL_MASK, x.y, QN_WARP_SIZE - 1);
    *(float2 *)(factors + 2 * lane) = make_float2(qn_exp2(last - x.x), qn_exp2(last - x.y));
    __syncwarp();
    return qn_exp2(last);
}

QN_DEVICE void process_chunk(state_pass_smem &m, float s[8 * KEY_TILES][4], const stage &in, uint32_t n_tokens)
{
    const uint32_t warp = thread() / QN_WARP_SIZE, lane = thread() % QN_WARP_SIZE;
    float x[8][4];
    mma_fence();
    mma_abt_shared<false>(x, m.state[0], in.w);
#pragma unroll
    for (int tile = 1; tile < KEY_TILES; tile++)
        mma_abt_shared<true>(x, m.state[tile], in.w + tile * TILE);
    mma_commit();
    const float decay = compute_factors(m.factors[warp], in.gc, n_tokens);
    uint32_t u[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        qn_ldmatrix_x4_trans(u[i], in.u + swizzled_offset(i * 16 + lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2));
    mma_wait<0>(x);
#pragma unroll
    for (int n = 0; n < 8 * KEY_TILES; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] *= decay;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const int n = 2 * i + r / 2, e = r % 2 * 2;
            const float2 f = *(const float2 *)(m.factors[warp] + n * 8 + first_key());
            x[n][e] = pair_lo(u[i][r]) - x[n][e];
            x[n][e + 1] = pair_hi(u[i][r]) - x[n][e + 1];
            u[i][r] = pack_pair(f.x * x[n][e], f.y * x[n][e + 1]);
        }
    mma_fence();
#pragma unroll
    for (int tile = 0; tile < KEY_TILES; tile++)
        mma_ab(s + 8 * tile, u, in.k + tile * TILE);
    mma_commit();
    wait(BARRIER_V_NEW_READ, WARPGROUP + WRITERS);
    store_transposed(m.v_new, warp, x);
    arrive(BARRIER_V_NEW_WRITTEN, WARPGROUP + WRITERS);
#pragma unroll
    for (int tile = 0; tile < KEY_TILES; tile++)
        mma_wait<0>(s + 8 * tile);
}

QN_DEVICE void consume(const qn_gdn_stage_args &a, const work &w, state_pass_smem &m)
{
    float s[8 * KEY_TILES][4];
    read_state(w.slice, s, qn_gdn_initial_state(a.rule, w.s.index, w.head), a.rule.head_v);
    for (uint32_t i = 0, index = 0; i < w.s.chunks; i++, index = next(index)) {
        publish_state(m, s);
        wait(BARRIER_LOADED + index, PRODUCERS + WARPGROUP);
        process_chunk(m, s, m.stages[index], chunk_of(w.s, i).n);
        arrive(m.stage_empty[index]);
    }
    const qn_gdn_head_state final = qn_gdn_final_state(a.rule, w.s.index, w.head);
    if (final.data)
        write_state(w.slice, s, final, a.rule.head_v);
}

// Grid: slices (x), value heads (y), sequences (z).
extern "C" __global__ void __launch_bounds__(QN_GDN_STATE_PASS_THREADS, 1)
    qn_gdn_state_pass(const __grid_constant__ qn_gdn_stage_args a)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    state_pass_smem &m = *(state_pass_smem *)shared;
    if (threadIdx.x < 3)
        qn_mbarrier_init(qn_shared_address(&m.stage_empty[threadIdx.x]), WARPGROUP);
    qn_pdl_wait();
    qn_pdl_trigger();
    work w;
    w.s = sequence_at(a.rule, blockIdx.z);
    w.head = blockIdx.y;
    w.k_head = key_head(a.rule, w.head);
    w.slice = blockIdx.x;
    w.first_chunk = chunks_before(a.rule, w.s.index);
    __syncthreads();
    if (w.s.skipped)
        return;
    if (group() == 0)
        consume(a, w, m);
    else if (thread() < PRODUCERS)
        produce(a, w, m);
    else
        write(a, w, m);
}
