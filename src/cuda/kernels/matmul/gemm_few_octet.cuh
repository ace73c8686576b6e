// The loop of gemm_few.cu, which includes this file, for up to 8 tokens on sm_90a. wgmma takes as long for 16 columns as
// for 64; mma.sync needs fewer warps and less memory, and of 4 tokens half of the MMAs. A warp multiplies two tiles of
// weights by the same B operands, which are loaded a few groups ahead. A unit's activations are in the stage of its
// weights: one ring, one mbarrier to wait for.
//
// Blocks of the next launch start and load weights while these run. An SM would then also take two blocks of one launch,
// which take twice as long. So launches that add to their outputs and those that do not, which alternate in a layer,
// have different shapes: of one kind a second block lacks shared memory, of the other, which has two idle warps more, it
// lacks registers; one of each fits (octet_stages of matmul.c).
#ifndef QN_CUDA_KERNELS_MATMUL_GEMM_FEW_OCTET_CUH
#define QN_CUDA_KERNELS_MATMUL_GEMM_FEW_OCTET_CUH

enum {
    STAGE_BYTES = QN_FEW_OCTET_STAGE_BYTES(QN_BITS, QN_SCALES), /* activations, codes, scales of weights */
    STAGE_CODES = UNIT_STEPS * STEP_BYTES,
    STAGE_SCALES = STAGE_CODES + BLOCK_TILES * CODE_BYTES,
    UNIT_SCALE_BYTES = UNIT_STEPS * ACTS_SCALE_BYTES, /* of activations: after all stages */
    LOAD_GROUPS = INTERLEAVED ? 2 : 1,                /* whose B operands one instruction loads */
    LOADS = QN_TILE_GROUPS / LOAD_GROUPS,
    AHEAD = 3 /* loads before their operands are needed */
};

// The ring's stages begin at multiples of 128; then the scales of their activations, then mbarriers.
QN_DEVICE uint32_t acts_scales_at(const ring &r, uint32_t stage)
{
    return r.shared + r.n_stages * STAGE_BYTES + stage * UNIT_SCALE_BYTES;
}

// ---- The producer, a warp ----

struct unit_place {
    uint32_t row_block, k_tile;
};

QN_DEVICE void advance(unit_place &at, const qn_matmul_few_args &a)
{
    if (++at.k_tile == a.n_k_tiles) {
        at.k_tile = 0;
        at.row_block++;
    }
}

// Copies a unit's weights; the mbarrier will expect its activations too.
QN_DEVICE void copy_weights(const qn_matmul_few_args &a, const ring &r, const unit_place &at)
{
    const uint8_t *scales = a.weights + (uint64_t)a.n_k_tiles * a.n_tiles * CODE_BYTES;
    const uint32_t n = piece_count(a, at.row_block), to = r.shared + r.stage * STAGE_BYTES, full = r.full + 8 * r.stage;
    mbarrier_arrive_expect_tx(full, pieces_of(a) * n * (CODE_BYTES + SCALE_BYTES) + UNIT_STEPS * STEP_BYTES + UNIT_SCALE_BYTES);
    for (uint32_t piece = 0; n && piece < pieces_of(a); piece++) {
        const uint32_t first = piece * piece_tiles(a);
        const uint64_t tile = (uint64_t)at.k_tile * a.n_tiles + piece * a.up_tile + at.row_block * piece_tiles(a);
        cp_async_bulk(to + STAGE_CODES + first * CODE_BYTES, a.weights + tile * CODE_BYTES, n * CODE_BYTES, full);
        cp_async_bulk(to + STAGE_SCALES + first * SCALE_BYTES, scales + tile * SCALE_BYTES, n * SCALE_BYTES, full);
    }
}

QN_DEVICE void copy_acts(const qn_matmul_few_args &a, const ring &r, const unit_place &at)
{
    const uint8_t *from = acts_of(a, at.k_tile);
    const uint32_t full = r.full + 8 * r.stage;
#pragma unroll
    for (uint32_t step = 0; step < UNIT_STEPS; step++) {
        cp_async_bulk(r.shared + r.stage * STAGE_BYTES + step * STEP_BYTES, from + step * acts_step_stride(a), STEP_BYTES, full);
        cp_async_bulk(acts_scales_at(r, r.stage) + step * ACTS_SCALE_BYTES, acts_scales_of(a, at.k_tile * UNIT_STEPS + step),
                      ACTS_SCALE_BYTES, full);
    }
}

// Weights are not written by the previous kernel: those of the first units are copied before it has ended.
QN_DEVICE void produce(const qn_matmul_few_args &a, const block_work &w, const ring &all)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, n_units = w.end - w.begin,
                   n_first = n_units < all.n_stages ? n_units : all.n_stages;
    const unit_place begin = { w.begin / a.n_k_tiles, w.begin % a.n_k_tiles };
    ring r = all;
    unit_place at = begin;
    if (lane == 0)
        for (uint32_t i = 0; i < n_first; i++) {
            copy_weights(a, r, at);
            advance(r);
            advance(at, a);
        }
    if (a.next.op != QN_ACTS_OP_NONE)
        prefetch_vectors(a, begin.row_block, (w.end - 1) / a.n_k_tiles, lane);
    qn_pdl_wait();
    r = all;
    at = begin;
    if (lane == 0)
        for (uint32_t i = 0; i < n_first; i++) {
            copy_acts(a, r, at);
            advance(r);
            advance(at, a);
        }
    if (lane < QN_TILE_N) {
        compute_factor(a, lane);
        qn_mbarrier_arrive(qn_shared_address(&outputs().factors_ready));
    }
    if (lane)
        return;
    for (uint32_t i = n_first; i < n_units; i++) {
        qn_mbarrier_wait(r.empty + 8 * r.stage, r.phase ^ 1);
        copy_weights(a, r, at);
        copy_acts(a, r, at);
        advance(r);
        advance(at, a);
    }
    produce_nothing(r);
}

// ---- Consumers ----

// d = a b.
QN_DEVICE void mma_s8(int d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%10, %10, %10, %10};"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(0));
}

// Shared memory addresses of a lane's data in the first stage.
struct lane_addresses {
    uint32_t operands, codes, scales, acts_scales;
};

// Opaque to the compiler: it would compute them in every unit.
QN_DEVICE lane_addresses lane_addresses_of(const ring &r)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, tile = warp_tile(0), token = INTERLEAVED ? lane % 8 / 2 : lane % 8,
                   lo = INTERLEAVED ? lane % 2 : lane / 16, piece = INTERLEAVED ? lane / 8 : lane / 8 % 2;
    lane_addresses at = { r.shared + lo * 1024 + token * 128 + (piece ^ token) * 16,
                          r.shared + STAGE_CODES + tile * CODE_BYTES + 16 * lane,
                          r.shared + STAGE_SCALES + tile * SCALE_BYTES + lane / 4 * 4,
                          acts_scales_at(r, 0) + lane % 4 * (INTERLEAVED ? 4 : 8) };
    asm volatile("" : "+r"(at.operands), "+r"(at.codes));
    return at;
}

QN_DEVICE void load_weights(unit_weights (&x)[WARP_TILES], uint32_t stage, const lane_addresses &lane)
{
#pragma unroll
    for (int m = 0; m < WARP_TILES; m++) {
#pragma unroll
        for (int i = 0; i < QN_BITS; i++)
            x[m].fragments[i] = load_shared_16(lane.codes + stage * STAGE_BYTES + m * CODE_BYTES + i * QN_FRAGMENT_BYTES);
#pragma unroll
        for (int i = 0; i < QN_SCALES; i++)
            x[m].scales[i] = load_shared_4(lane.scales + stage * STAGE_BYTES + m * SCALE_BYTES + i * 2 * QN_TILE_ROWS);
    }
}

// The B operands of a group, hi and lo, or of two groups of interleaved tokens. lane: the address of the lane's row of
// the first load. A step's rows are 128 bytes at multiples of 128, their pieces permuted by exclusive or.
QN_DEVICE void load_operands(uint32_t b[4], uint32_t lane, int load)
{
    const uint32_t group = load * LOAD_GROUPS, at = (lane ^ group % 4 * 32) + group / 4 * STEP_BYTES;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(at)
                 : "memory");
}

// What is loaded before a unit of a stage is multiplied.
QN_DEVICE void load_ahead(unit_weights (&x)[WARP_TILES], uint32_t (&b)[AHEAD + 1][4], uint32_t stage, const lane_addresses &lane)
{
    load_weights(x, stage, lane);
#pragma unroll
    for (int load = 0; load < AHEAD; load++)
        load_operands(b[load], lane.operands + stage * STAGE_BYTES, load);
}

// All lanes have loaded what they need of the stage.
QN_DEVICE void release_stage(ring &r)
{
    __syncwarp();
    if (threadIdx.x % QN_WARP_SIZE == 0)
        qn_mbarrier_arrive(r.empty + 8 * r.stage);
    advance(r);
}

QN_DEVICE void consume(const qn_matmul_few_args &a, const block_work &w, ring r)
{
    const uint32_t code_mask = __shfl_sync(QN_FULL_MASK, CODE_MASK + (a.n_k_tiles >> 31), 0); // as in wgmma's loop
    const lane_addresses lane = lane_addresses_of(r);
    float sums[SUMS] = {};
    unit_weights x[WARP_TILES];
    uint32_t b[AHEAD + 1][4], left = segment_units(a, w, w.begin);
    qn_mbarrier_wait(r.full, 0);
    load_ahead(x, b, r.stage, lane);
#pragma unroll 1
    for (uint32_t unit = w.begin; unit < w.end; unit++) {
        uint32_t operands = lane.operands + r.stage * STAGE_BYTES;
        span_products span[WARP_TILES];
        uint32_t scales[WARP_TILES][QN_SCALES];
        float acts_scales[UNIT_STEPS][LANE_TOKENS];
        int acc[WARP_TILES][ACCUMULATORS];
#pragma unroll
        for (int i = 0; i < WARP_TILES * QN_SCALES; i++)
            scales[i / QN_SCALES][i % QN_SCALES] = x[i / QN_SCALES].scales[i % QN_SCALES];
#pragma unroll
        for (int step = 0; step < UNIT_STEPS; step++)
            load_acts_scales(acts_scales[step], lane.acts_scales + r.stage * UNIT_SCALE_BYTES + step * ACTS_SCALE_BYTES);
#pragma unroll
        for (int group = 0; group < QN_TILE_GROUPS; group++) {
            uint32_t codes[WARP_TILES][4];
            const int load = group / LOAD_GROUPS;
            if (group == (LOADS - AHEAD) * LOAD_GROUPS) {
                release_stage(r);
                qn_mbarrier_wait(r.full + 8 * r.stage, r.phase);
                operands = lane.operands + r.stage * STAGE_BYTES;
            }
            if (group % LOAD_GROUPS == 0)
                load_operands(b[(load + AHEAD) % (AHEAD + 1)], operands, (load + AHEAD) % LOADS);
#pragma unroll
            for (int m = 0; m < WARP_TILES; m++)
                unpack_group(codes[m], x[m].fragments[group * QN_BITS / QN_TILE_GROUPS], group, code_mask);
            if (group == QN_TILE_GROUPS - 1)
                load_weights(x, r.stage, lane);
#pragma unroll
            for (int m = 0; m < WARP_TILES; m++)
#pragma unroll
                for (int half = 0; half < ACCUMULATORS / 4; half++) { // hi, lo
                    const uint32_t *operand = b[load % (AHEAD + 1)] + 2 * (group % LOAD_GROUPS + half);
                    if (group % SPAN_GROUPS)
                        qn_mma_m16n8k32_s8(acc[m] + 4 * half, codes[m], operand);
                    else
                        mma_s8(acc[m] + 4 * half, codes[m], operand);
                }
            if (group % SPAN_GROUPS < SPAN_GROUPS - 1)
                continue;
#pragma unroll
            for (int m = 0; m < WARP_TILES; m++) {
                join_hilo(span[m], acc[m]);
#pragma unroll
                for (int i = 0; i < LANE_TOKENS; i++)
                    span[m].acts_scales[i] = acts_scales[group * UNIT_STEPS / QN_TILE_GROUPS][i];
                span[m].scales = scales[m][group / SPAN_GROUPS];
                add_span(sums + m * TILE_SUMS, span[m]);
            }
        }
        if (--left)
            continue;
        finish_segment(a, w, unit + 1, sums);
        if (unit + 1 < w.end)
            left = segment_units(a, w, unit + 1);
        load_ahead(x, b, r.stage, lane); // again: now their registers are free meanwhile
    }
}

extern "C" __global__ void __maxnreg__(QN_FEW_OCTET_REGISTERS) qn_matmul_gemm_few(const __grid_constant__ qn_matmul_few_args a)
{
    const block_work w = block_work_of(a);
    const uint32_t stages = qn_shared_address(shared) + QN_FEW_OCTET_STAGES_AT,
                   mbarriers = stages + a.weight_stages * (STAGE_BYTES + UNIT_SCALE_BYTES);
    const ring r = ring_at(stages, mbarriers, a.weight_stages, STAGE_BYTES);
    if (threadIdx.x == 0) {
        init_ring(r, CONSUMER_THREADS / QN_WARP_SIZE);
        qn_mbarrier_init(qn_shared_address(&outputs().factors_ready), QN_TILE_N);
        fence_mbarrier_init();
    }
    __syncthreads();
    qn_pdl_trigger();
    if (threadIdx.x >= CONSUMER_THREADS + QN_WARP_SIZE) {
        qn_pdl_wait();
    } else if (threadIdx.x >= CONSUMER_THREADS) {
        produce(a, w, r);
    } else {
        qn_pdl_wait(); // outputs and the workspace may be in use by the previous kernel
        consume(a, w, r);
    }
}

#endif
