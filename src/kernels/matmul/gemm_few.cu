// GEMM of few tokens by weights of 1 and 2 bits: codes as unsigned bytes (A), activations as hi/lo int8 (B, QN_ACTS_HILO),
// mma.sync with int32 accumulators over the columns of a weight scale. An A fragment is a mask of the packed codes, for hi and
// lo and for all tokens of a pass. wgmma computes at least 64 rows by as many columns in the time that its A operand takes
// from registers, however few the tokens: mma.sync takes the time of the tokens that are there.
//
// The warps of a block split its tiles (M) and its k-tiles (K). Each warp streams its weights through a ring of its own in
// shared memory. A producer warp copies activations into one ring for each k-warp, which the warps of the same k-tiles
// share. All warps store their sums to shared memory, and reduce them over the k-warps and the blocks of the cluster. Several
// passes over the columns, for more tiles or tokens than a block has registers for, are one stream of weights and activations:
// the next pass's are in flight during the reduction.
#include "kernels/matmul/tiles.cuh"

enum {
    CODE_BYTES = QN_BITS * QN_FRAGMENT_BYTES,
    SCALE_BYTES = QN_SCALES * 2 * QN_TILE_ROWS,
    TILE_STEPS = QN_TILE_COLS / QN_ACTS_HILO_COLS,
    STEP_SPANS = QN_SCALES / TILE_STEPS, /* a span is the columns of a weight scale */
    SPAN_GROUPS = QN_TILE_GROUPS / QN_SCALES,
    FRAGMENT_GROUPS = QN_TILE_GROUPS / QN_BITS, /* groups in a fragment */
    N8_TILES = QN_TILE_N / QN_MMA_N,
    STEP_BYTES = N8_TILES * QN_ACTS_HILO_BYTES, /* of activations */
    ACTS_STEPS = QN_FEW_ACTS_BYTES(QN_TILE_N) / STEP_BYTES,
    ACCUMULATORS = 4 * N8_TILES, /* per lane and tile */
    WARP_TILES = QN_FEW_WARP_TILES(QN_TILE_N, QN_WARPS),
    BATCH_TILES = QN_TILE_N == 8 ? 2 : 1, /* whose MMAs are independent and overlap */
    CONSUMER_THREADS = QN_WARPS * QN_WARP_SIZE
};

// A group's codes times a power of two: at the highest bits of their bytes.
#define CODE_MASK (QN_BITS == 1 ? 0x80808080u : 0xc0c0c0c0u)

// An int32 accumulator that starts at these bits of 12582912.0f, 1.5 * 2^23, is that float plus the sum.
#define ACCUMULATOR_ZERO 0x4b400000

// Whether accumulators start with the corrections, four registers for each of hi and lo and eight tokens, or values are
// corrected, an instruction for each accumulator: for eight tokens instructions take longer than MMAs.
#define CORRECT_ACCUMULATORS (QN_TILE_N == 8)

// Weight copies by the copy engine instead of by the warp's lanes.
#define BULK_WEIGHTS (__CUDA_ARCH__ >= 900)

// ---- The division of the work ----

struct block_work {
    uint32_t first_tile, n_tiles; // of the cluster
    uint32_t m_shift;             // log2 of the warps that divide the tiles
    uint32_t k_stride;            // k-tiles from one to the next of a k-warp
};

struct tile_range {
    uint32_t first, count;
};

QN_DEVICE block_work block_work_of(const qn_matmul_few_args &a)
{
    block_work w;
    w.first_tile = blockIdx.y * a.cluster_tiles + (blockIdx.y < a.extra_tiles ? blockIdx.y : a.extra_tiles);
    w.n_tiles = a.cluster_tiles + (blockIdx.y < a.extra_tiles);
    w.m_shift = QN_FEW_WARP_SHIFT(QN_WARPS) - a.k_shift;
    w.k_stride = gridDim.z << a.k_shift;
    return w;
}

// The first k-tile of a k-warp; they number the k-warps of a cluster.
QN_DEVICE uint32_t first_k_tile(uint32_t k_warp)
{
    return k_warp * gridDim.z + blockIdx.z;
}

// The tiles of m-warp m_warp in a pass over the rows.
QN_DEVICE tile_range tiles_of(const qn_matmul_few_args &a, const block_work &w, uint32_t row_pass, uint32_t m_warp)
{
    const uint32_t begin = row_pass * a.pass_tiles, left = begin < w.n_tiles ? w.n_tiles - begin : 0,
                   n = left < a.pass_tiles ? left : a.pass_tiles, first = n * m_warp >> w.m_shift;
    tile_range range;
    range.first = w.first_tile + begin + first;
    range.count = (n * (m_warp + 1) >> w.m_shift) - first;
    return range;
}

// ---- Rings ----

struct ring_slot {
    uint32_t stage, phase;
};

QN_DEVICE void advance(ring_slot &slot, uint32_t stages)
{
    if (++slot.stage == stages) {
        slot.stage = 0;
        slot.phase ^= 1;
    }
}

// Arrives at an mbarrier of QN_WARP_SIZE arrivals when this thread's cp.async so far have completed.
QN_DEVICE void arrive_after_copies(uint32_t mbarrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(mbarrier) : "memory");
}

// The next weights that a warp issues: for each pass, each of its k-tiles.
struct weight_stream {
    tile_range tiles;
    uint32_t row_pass, token_pass, k, n_k_tiles, first_k_tile;
    uint32_t shared, full, stage_bytes; // shared memory addresses of the ring and of its mbarriers
};

// Issues the weights of a k-tile; by all lanes of the warp.
QN_DEVICE void issue_weights(weight_stream &s, const qn_matmul_few_args &a, const block_work &w, uint32_t m_warp,
                             uint32_t stage)
{
    if (s.row_pass == a.row_passes)
        return;
    const uint64_t tile = (uint64_t)(s.first_k_tile + s.k * w.k_stride) * a.n_tiles + s.tiles.first;
    const uint8_t *codes = a.weights + tile * CODE_BYTES;
    const uint8_t *scales = a.weights + (uint64_t)a.n_k_tiles * a.n_tiles * CODE_BYTES + tile * SCALE_BYTES;
    const uint32_t to = s.shared + stage * s.stage_bytes, to_scales = to + a.warp_tiles * CODE_BYTES, full = s.full + 8 * stage;
#if BULK_WEIGHTS
    if (elect_one()) {
        mbarrier_arrive_expect_tx(full, s.tiles.count * (CODE_BYTES + SCALE_BYTES));
        if (s.tiles.count) {
            cp_async_bulk(to, codes, s.tiles.count * CODE_BYTES, full);
            cp_async_bulk(to_scales, scales, s.tiles.count * SCALE_BYTES, full);
        }
    }
#else
    for (uint32_t at = 16 * (threadIdx.x % QN_WARP_SIZE); at < s.tiles.count * CODE_BYTES; at += 16 * QN_WARP_SIZE)
        cp_async_16(to + at, codes + at);
    for (uint32_t at = 16 * (threadIdx.x % QN_WARP_SIZE); at < s.tiles.count * SCALE_BYTES; at += 16 * QN_WARP_SIZE)
        cp_async_16(to_scales + at, scales + at);
    arrive_after_copies(full);
#endif
    if (++s.k < s.n_k_tiles)
        return;
    s.k = 0;
    if (++s.token_pass < a.token_passes)
        return;
    s.token_pass = 0;
    s.tiles = tiles_of(a, w, ++s.row_pass, m_warp);
}

// The rings of activations, one for each k-warp.
struct acts_rings {
    uint32_t shared, full, empty; // shared memory addresses: stages, mbarriers
};

QN_DEVICE uint32_t acts_stage(const qn_matmul_few_args &a, uint32_t k_warp, uint32_t stage)
{
    return k_warp * a.acts_stages + stage;
}

// Copies ACTS_STEPS steps into a stage: by one lane with the copy engine, else by all lanes of the warp.
QN_DEVICE void copy_acts(uint32_t to, const uint8_t *from, uint64_t step_stride, uint32_t full)
{
#if __CUDA_ARCH__ >= 900
    mbarrier_arrive_expect_tx(full, ACTS_STEPS * STEP_BYTES);
#pragma unroll
    for (uint32_t i = 0; i < ACTS_STEPS; i++)
        cp_async_bulk(to + i * STEP_BYTES, from + i * step_stride, STEP_BYTES, full);
#else
#pragma unroll
    for (uint32_t i = 0; i < ACTS_STEPS; i++)
        for (uint32_t at = 16 * (threadIdx.x % QN_WARP_SIZE); at < STEP_BYTES; at += 16 * QN_WARP_SIZE)
            cp_async_16(to + i * STEP_BYTES + at, from + i * step_stride + at);
    arrive_after_copies(full);
#endif
}

// One pass of the producer warp. Lane k has the slot of ring k. All rings are filled at the same pace: a ring that is full
// cannot keep another one from the end of the pass.
QN_DEVICE void produce_pass(const qn_matmul_few_args &a, const acts_rings &rings, ring_slot &slot, uint32_t token_pass)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, k_warps = 1u << a.k_shift, stride = gridDim.z << a.k_shift;
    const uint64_t step_stride = (uint64_t)(a.capacity / QN_MMA_N) * QN_ACTS_HILO_BYTES;
    const uint8_t *acts = a.acts + (uint64_t)token_pass * STEP_BYTES;
    for (uint32_t k = 0; k <= a.k_rounds; k++)
        for (uint32_t step = 0; step < TILE_STEPS; step += ACTS_STEPS) {
            const uint32_t k_tile = first_k_tile(lane) + k * stride;
            const bool wanted = lane < k_warps && k_tile < a.n_k_tiles;
#if __CUDA_ARCH__ >= 900
            if (wanted) {
                const uint32_t stage = acts_stage(a, lane, slot.stage);
                qn_mbarrier_wait(rings.empty + 8 * stage, slot.phase);
                copy_acts(rings.shared + stage * ACTS_STEPS * STEP_BYTES, acts + (k_tile * TILE_STEPS + step) * step_stride,
                          step_stride, rings.full + 8 * stage);
            }
#else
            for (uint32_t ring = 0; ring < k_warps && first_k_tile(ring) + k * stride < a.n_k_tiles; ring++) {
                const uint32_t stage = acts_stage(a, ring, __shfl_sync(QN_FULL_MASK, slot.stage, ring));
                qn_mbarrier_wait(rings.empty + 8 * stage, __shfl_sync(QN_FULL_MASK, slot.phase, ring));
                copy_acts(rings.shared + stage * ACTS_STEPS * STEP_BYTES,
                          acts + ((first_k_tile(ring) + k * stride) * TILE_STEPS + step) * step_stride, step_stride,
                          rings.full + 8 * stage);
            }
#endif
            if (wanted)
                advance(slot, a.acts_stages);
        }
}

// ---- MMA loop ----

// What a span's codes are multiplied by, modulo 2^32, to bring the bits of its groups to those of CODE_MASK: a shift, but by
// the multiplier, which has nothing else to do while the logic unit has the masks.
struct shift_factors {
    uint32_t of[SPAN_GROUPS];
};

QN_DEVICE uint32_t opaque(uint32_t x)
{
    uint32_t y;
    asm("mov.b32 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

QN_DEVICE shift_factors shift_factors_of(uint32_t first_group)
{
    shift_factors f;
#pragma unroll
    for (uint32_t j = 0; j < SPAN_GROUPS; j++)
        f.of[j] = opaque((QN_BITS == 1 ? 0x80u : 0x40u) >> QN_BITS * ((first_group + j) % FRAGMENT_GROUPS));
    return f;
}

// A lane's activations of a span, for all tokens of the pass.
struct span_acts {
    uint32_t b[SPAN_GROUPS][N8_TILES][4]; // B fragments: hi in the first two words, lo in the last two
#if CORRECT_ACCUMULATORS
    int first[N8_TILES][2][4]; // accumulators of hi and lo before the first MMA: zero with the corrections
#else
    int first[4];                  // the same for all: zero
    float correction[N8_TILES][2]; // of tokens 2t, 2t+1
#endif
};

QN_DEVICE const int *first_accumulators(const span_acts &x, int n, int lo)
{
#if CORRECT_ACCUMULATORS
    return x.first[n][lo];
#else
    return x.first;
#endif
}

// corrections: hi and lo of token 2t, of token 2t+1.
QN_DEVICE void set_corrections(span_acts &x, int n, int4 corrections)
{
#if CORRECT_ACCUMULATORS
    const int of[2][2] = { { corrections.x, corrections.z }, { corrections.y, corrections.w } };
#pragma unroll
    for (int k = 0; k < 4; k++) {
        x.first[n][0][k] = of[0][k % 2] + ACCUMULATOR_ZERO;
        x.first[n][1][k] = of[1][k % 2] + ACCUMULATOR_ZERO;
    }
#else
#pragma unroll
    for (int k = 0; k < 4; k++)
        x.first[k] = ACCUMULATOR_ZERO;
    x.correction[n][0] = (float)(256 * corrections.x + corrections.y);
    x.correction[n][1] = (float)(256 * corrections.z + corrections.w);
#endif
}

// The integers of a span from the accumulators of hi and lo of token 2t + odd: 256 hi + lo, without their zeros.
QN_DEVICE float span_value(const span_acts &x, int n, int odd, int hi, int lo)
{
    const float high = fmaf(__int_as_float(hi), 256, -257 * 12582912.0f);
#if CORRECT_ACCUMULATORS
    return high + __int_as_float(lo);
#else
    return high + (__int_as_float(lo) + x.correction[n][odd]);
#endif
}

// acts: of the step; acts_at: the lane's offset for ldmatrix of an even group.
QN_DEVICE void load_acts(span_acts &x, const uint8_t *acts, uint32_t acts_at, uint32_t span)
{
    const uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < N8_TILES; n++) {
        const uint8_t *block = acts + n * QN_ACTS_HILO_BYTES + (STEP_SPANS == 1 ? 0 : span * 1024);
#pragma unroll
        for (int j = 0; j < SPAN_GROUPS; j++)
            qn_ldmatrix_x4(x.b[j][n], block + j / 2 * 1024 + (acts_at ^ j % 2 * 64));
        const uint8_t *corrections = acts + n * QN_ACTS_HILO_BYTES + 2048 + 16 * t;
        int4 sum = *(const int4 *)(corrections + (STEP_SPANS == 1 ? 0 : span * 64));
        if (STEP_SPANS == 1) {
            const int4 second = *(const int4 *)(corrections + 64);
            sum.x += second.x, sum.y += second.y, sum.z += second.z, sum.w += second.w;
        }
        set_corrections(x, n, sum);
    }
}

// A lane's weights of a span of a tile.
struct span_weights {
    uint4 codes;
    uint32_t scales;
};

// codes, scales: the lane's of the first of `tiles` tiles.
template <int tiles> QN_DEVICE void load_weights(span_weights (&w)[tiles], const uint8_t *codes, const uint8_t *scales)
{
#pragma unroll
    for (int i = 0; i < tiles; i++) {
        w[i].codes = *(const uint4 *)(codes + i * CODE_BYTES);
        w[i].scales = *(const uint32_t *)(scales + i * SCALE_BYTES);
    }
}

// sums[i] += scales times the integers of a span, for the first `tiles` tiles.
template <int tiles>
QN_DEVICE void multiply_span(float (*sums)[ACCUMULATORS], const span_weights *w, const shift_factors &factors,
                             const span_acts &x)
{
    int acc[tiles][2][N8_TILES][4];
#pragma unroll
    for (int j = 0; j < SPAN_GROUPS; j++)
#pragma unroll
        for (int i = 0; i < tiles; i++) {
            const uint4 codes = w[i].codes;
            const uint32_t factor = factors.of[j];
            const uint32_t a[4] = { codes.x * factor & CODE_MASK, codes.y * factor & CODE_MASK, codes.z * factor & CODE_MASK,
                                    codes.w * factor & CODE_MASK };
#pragma unroll
            for (int lo = 0; lo < 2; lo++)
#pragma unroll
                for (int n = 0; n < N8_TILES; n++)
                    mma_m16n8k32_u8_s8(acc[i][lo][n], a, x.b[j][n][2 * lo], x.b[j][n][2 * lo + 1],
                                       j ? acc[i][lo][n] : first_accumulators(x, n, lo));
        }
#pragma unroll
    for (int i = 0; i < tiles; i++)
#pragma unroll
        for (int n = 0; n < N8_TILES; n++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                sums[i][4 * n + k] = fmaf(k < 2 ? qn_f16_low(w[i].scales) : qn_f16_high(w[i].scales),
                                          span_value(x, n, k % 2, acc[i][0][n][k], acc[i][1][n][k]), sums[i][4 * n + k]);
}

// sums += weights of `count` tiles times the activations of a step. codes, scales: the lane's of the first tile. Weights of
// tiles after the last are loaded and not used: partials follow the rings.
QN_DEVICE void multiply_step(float (&sums)[WARP_TILES][ACCUMULATORS], const uint8_t *codes, const uint8_t *scales,
                             const uint8_t *acts, uint32_t acts_at, uint32_t step, uint32_t count)
{
#pragma unroll 1
    for (uint32_t span = 0; span < STEP_SPANS; span++) {
        const uint32_t scale = step * STEP_SPANS + span, first_group = scale * SPAN_GROUPS;
        const uint8_t *span_codes = codes + first_group / FRAGMENT_GROUPS * QN_FRAGMENT_BYTES,
                      *span_scales = scales + scale * 2 * QN_TILE_ROWS;
        const shift_factors factors = shift_factors_of(first_group);
        span_weights next[BATCH_TILES];
        span_acts x;
        load_weights(next, span_codes, span_scales);
        load_acts(x, acts, acts_at, span);
#pragma unroll
        for (int m = 0; m < WARP_TILES; m += BATCH_TILES) {
            if (m >= count)
                break;
            span_weights weights[BATCH_TILES];
#pragma unroll
            for (int i = 0; i < BATCH_TILES; i++)
                weights[i] = next[i];
            if (m + BATCH_TILES < WARP_TILES) // in flight during these tiles
                load_weights(next, span_codes + (m + BATCH_TILES) * CODE_BYTES, span_scales + (m + BATCH_TILES) * SCALE_BYTES);
            if (m + BATCH_TILES <= count)
                multiply_span<BATCH_TILES>(sums + m, weights, factors, x);
            else
                multiply_span<1>(sums + m, weights, factors, x);
        }
    }
}

struct consumer {
    uint32_t k_warp, m_warp;
    weight_stream weights;
    ring_slot weight_slot, acts_slot;
};

// One pass over the warp's k-tiles.
QN_DEVICE void consume_pass(float (&sums)[WARP_TILES][ACCUMULATORS], const qn_matmul_few_args &a, const block_work &w,
                            const acts_rings &rings, const uint8_t *shared, consumer &c, uint32_t count)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, token = lane % 8;
    const uint32_t acts_at = token * 128 + (lane / 8 ^ token) * 16; // piece lane / 8 of an even group
    const uint8_t *weights = shared + (c.weights.shared - qn_shared_address(shared));
#pragma unroll 1
    for (uint32_t k = 0; k < c.weights.n_k_tiles; k++) {
        const uint8_t *codes = weights + c.weight_slot.stage * c.weights.stage_bytes + 16 * lane;
        const uint8_t *scales =
            weights + c.weight_slot.stage * c.weights.stage_bytes + a.warp_tiles * CODE_BYTES + lane / 4 * 4;
        qn_mbarrier_wait(c.weights.full + 8 * c.weight_slot.stage, c.weight_slot.phase);
#pragma unroll 1
        for (uint32_t step = 0; step < TILE_STEPS; step++) {
            const uint32_t stage = acts_stage(a, c.k_warp, c.acts_slot.stage);
            if (step % ACTS_STEPS == 0)
                qn_mbarrier_wait(rings.full + 8 * stage, c.acts_slot.phase);
            multiply_step(sums, codes, scales, shared + (stage * ACTS_STEPS + step % ACTS_STEPS) * STEP_BYTES, acts_at, step,
                          count);
            if (step % ACTS_STEPS == ACTS_STEPS - 1) {
                __syncwarp();
                if (lane == 0)
                    qn_mbarrier_arrive(rings.empty + 8 * stage);
                advance(c.acts_slot, a.acts_stages);
            }
        }
        issue_weights(c.weights, a, w, c.m_warp, c.weight_slot.stage); // all lanes have read the stage
        advance(c.weight_slot, a.weight_stages);
    }
}

// ---- Reduction over k-warps and cluster ----

// Address of a lane's partials of tokens 2t, 2t+1 and rows g (first eight) or g+8 (last) of n8-tile 0; that of n8-tile n is
// n * 512 bytes further.
QN_DEVICE uint32_t partials_of(const qn_matmul_few_args &a, uint32_t partials, uint32_t warp, uint32_t tile, uint32_t half)
{
    return partials + ((warp * a.reduce_tiles + tile) * N8_TILES * 2 + half) * 256 + threadIdx.x % QN_WARP_SIZE * 8;
}

QN_DEVICE void store_partials(const qn_matmul_few_args &a, uint32_t partials, uint32_t warp, uint32_t first, uint32_t count,
                              const float (&sums)[WARP_TILES][ACCUMULATORS])
{
#pragma unroll
    for (uint32_t m = 0; m < WARP_TILES; m++)
        if (m >= first && m < first + a.reduce_tiles && m < count)
#pragma unroll
            for (uint32_t half = 0; half < 2; half++)
#pragma unroll
                for (uint32_t n = 0; n < N8_TILES; n++)
                    asm volatile(
                        "st.shared.v2.f32 [%0], {%1, %2};" ::"r"(partials_of(a, partials, warp, m - first, half) + n * 512),
                        "f"(sums[m][4 * n + 2 * half]), "f"(sums[m][4 * n + 2 * half + 1])
                        : "memory");
}

QN_DEVICE float2 load_partials(uint32_t shared, uint32_t block)
{
#if __CUDA_ARCH__ >= 900
    if (gridDim.z > 1)
        return load_dsmem(shared, block);
#endif
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(shared) : "memory");
    return v;
}

// Reduces tiles [first, first + a.reduce_tiles) of every m-warp, eight rows at a time, and writes the outputs. The blocks of
// a cluster take turns.
template <class type>
QN_DEVICE void reduce_partials(const qn_matmul_few_args &a, const block_work &w, uint32_t partials, uint32_t warp,
                               uint32_t row_pass, uint32_t first_token, uint32_t first)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, g = lane / 4, t = lane % 4;
    for (uint32_t i = blockIdx.z + gridDim.z * warp; i < 2 * a.reduce_tiles << w.m_shift; i += gridDim.z * QN_WARPS) {
        const uint32_t half = i % 2, m_warp = i / 2 & ((1u << w.m_shift) - 1), tile = i / 2 >> w.m_shift;
        const tile_range range = tiles_of(a, w, row_pass, m_warp);
        if (first + tile >= range.count)
            continue;
        const output_row<type> out = find_output_row<type>(a, range.first + first + tile, g + 8 * half);
        float2 sum[N8_TILES] = {};
        for (uint32_t block = 0; block < gridDim.z; block++)
            for (uint32_t k_warp = 0; k_warp < 1u << a.k_shift; k_warp++) {
                const uint32_t from = partials_of(a, partials, m_warp << a.k_shift | k_warp, tile, half);
#pragma unroll
                for (uint32_t n = 0; n < N8_TILES; n++) {
                    const float2 k = load_partials(from + n * 512, block);
                    sum[n].x += k.x;
                    sum[n].y += k.y;
                }
            }
        if (!out.at)
            continue;
#pragma unroll
        for (uint32_t n = 0; n < N8_TILES; n++) {
            store_element(a, out, first_token + 8 * n + 2 * t, sum[n].x);
            store_element(a, out, first_token + 8 * n + 2 * t + 1, sum[n].y);
        }
    }
}

// Barrier of the consumers of the cluster; with more than one block the producers take part.
QN_DEVICE void reduction_barrier()
{
#if __CUDA_ARCH__ >= 900
    if (gridDim.z > 1) {
        cluster_sync();
        return;
    }
#endif
    asm volatile("bar.sync 1, %0;" ::"r"((uint32_t)CONSUMER_THREADS) : "memory");
}

extern "C" __global__ void __launch_bounds__((QN_WARPS + 1) * QN_WARP_SIZE, 1)
    qn_matmul_gemm_few(const __grid_constant__ qn_matmul_few_args a)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE, k_warps = 1u << a.k_shift;
    const block_work work = block_work_of(a);

    // Shared memory: activations [k_warps][acts_stages]; weights [warps][weight_stages]; partials; mbarriers.
    const uint32_t stage_bytes = a.warp_tiles * (CODE_BYTES + SCALE_BYTES);
    acts_rings rings;
    rings.shared = qn_shared_address(shared);
    const uint32_t weights = rings.shared + k_warps * a.acts_stages * ACTS_STEPS * STEP_BYTES;
    const uint32_t partials = weights + QN_WARPS * a.weight_stages * stage_bytes;
    const uint32_t mbarriers = partials + QN_WARPS * a.reduce_tiles * N8_TILES * 512;
    rings.full = mbarriers + QN_WARPS * a.weight_stages * 8;
    rings.empty = rings.full + k_warps * a.acts_stages * 8;

    consumer c = {};
    qn_pdl_trigger();
    if (warp < QN_WARPS) {
        c.k_warp = warp & (k_warps - 1);
        c.m_warp = warp >> a.k_shift;
        c.weights.tiles = tiles_of(a, work, 0, c.m_warp);
        c.weights.first_k_tile = first_k_tile(c.k_warp);
        c.weights.n_k_tiles = a.k_rounds + (c.weights.first_k_tile < a.k_rest);
        c.weights.stage_bytes = stage_bytes;
        c.weights.shared = weights + warp * a.weight_stages * stage_bytes;
        c.weights.full = mbarriers + warp * a.weight_stages * 8;
        if (lane < a.weight_stages)
            qn_mbarrier_init(c.weights.full + 8 * lane, BULK_WEIGHTS ? 1 : QN_WARP_SIZE);
    } else {
        for (uint32_t i = lane; i < k_warps * a.acts_stages; i += QN_WARP_SIZE) {
            qn_mbarrier_init(rings.full + 8 * i, __CUDA_ARCH__ >= 900 ? 1 : QN_WARP_SIZE);
            qn_mbarrier_init(rings.empty + 8 * i, 1u << work.m_shift);
        }
    }
#if __CUDA_ARCH__ >= 900
    fence_mbarrier_init();
#endif
    __syncwarp();
    // Weights are not written by the previous kernel.
    if (warp < QN_WARPS)
        for (uint32_t stage = 0; stage < a.weight_stages; stage++)
            issue_weights(c.weights, a, work, c.m_warp, stage);
    __syncthreads();
    qn_pdl_wait();

    ring_slot produced = { 0, 1 };
    for (uint32_t row_pass = 0; row_pass < a.row_passes; row_pass++)
        for (uint32_t token_pass = 0; token_pass < a.token_passes; token_pass++) {
            if (warp == QN_WARPS) {
                produce_pass(a, rings, produced, token_pass);
                for (uint32_t first = 0; gridDim.z > 1 && first < a.warp_tiles; first += a.reduce_tiles) {
                    reduction_barrier();
                    reduction_barrier();
                }
                continue;
            }
            const uint32_t count = tiles_of(a, work, row_pass, c.m_warp).count;
            float sums[WARP_TILES][ACCUMULATORS] = {};
            consume_pass(sums, a, work, rings, shared, c, count);
            for (uint32_t first = 0; first < a.warp_tiles; first += a.reduce_tiles) {
                store_partials(a, partials, warp, first, count, sums);
                reduction_barrier();
                WITH_OUTPUT_TYPE(a.out_dtype, reduce_partials, a, work, partials, warp, row_pass, token_pass * QN_TILE_N,
                                 first);
                reduction_barrier(); // the partials are free, and no block exits while they are read
            }
        }
}
