// GEMM of many tokens: weights dequantised to fp16 in registers (A), activations in shared memory in wgmma's layout
// (B), float accumulators. A block computes 256 rows by up to 128 tokens: weights of few bits are cheap to load,
// activations are not. Two warpgroups of 128 rows each multiply (consumers); one thread of a third (producer) issues
// bulk copies of activations, several steps of 64 columns ahead. Weights are loaded directly to registers,
// UNITS_IN_FLIGHT units ahead, and dequantised while the groups before are being multiplied. Blocks of 192 rows, three
// consumers of 64, are for matrices that fill the SMs better in such blocks.
//
// If rows and tokens give too few blocks for all SMs, or a few more than run concurrently, the blocks of a cluster
// compute one block of rows by split-K: each stores its partials in its shared memory, and reduces a part of them over
// the cluster.
//
// Architectures other than sm_90a use mma.sync, with the same tile, layout and order of additions.
#include "cuda/kernels/cluster.cuh"
#include "cuda/kernels/matmul/tiles.cuh"

enum {
    CODE_BYTES = QN_BITS * QN_FRAGMENT_BYTES,
    SCALE_BYTES = QN_BITS == 16 ? 0 : QN_SCALES * (1 + QN_OFFSET) * 2 * QN_TILE_ROWS,
    STAGE_BYTES = QN_TILE_N * 128, /* 64 columns */
    STEP_GROUPS = 2,
    UNIT_GROUPS = QN_BITS <= 2 ? 8 : 2, /* groups whose weights are loaded together */
    UNIT_FRAGMENTS = QN_BITS * UNIT_GROUPS / 8,
    GROUPS_PER_SCALE = QN_TILE_GROUPS / (QN_BITS == 16 ? 1 : QN_SCALES),
    UNIT_SCALES = QN_BITS == 16 ? 1 : UNIT_GROUPS / GROUPS_PER_SCALE,
    CONSUMERS = QN_TILE_M == 192 ? 3 : 2, /* warpgroups */
    CONSUMER_THREADS = 128 * CONSUMERS,
    WARP_TILES = QN_TILE_M / (64 * CONSUMERS), /* per warp */
    ACCUMULATORS = QN_TILE_N / 2,              /* per lane and tile */
    STAGES = QN_GEMM_STAGES(QN_TILE_N),
    WGMMA_GROUPS = QN_TILE_N == 128 && WARP_TILES > 1    ? 1
                   : QN_TILE_N >= 64 || UNIT_GROUPS == 2 ? 2
                                                         : 4, /* groups per wgmma commit */
    UNITS_IN_FLIGHT = QN_TILE_N == 128 || QN_BITS == 16 ? 1
                      : UNIT_GROUPS == 2                ? 3
                                                        : 2, /* units loaded ahead */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    STORED_TOKENS = QN_TILE_N == 32 ? 8 : 16, /* of a row, at once */
    REDUCED_QUADS = 2 * WARP_TILES            /* whose partials are in flight together */
#else
    STORED_TOKENS = 4,
    REDUCED_QUADS = 1
#endif
};
static_assert(QN_TILE_M == 256 || QN_TILE_M == 192, "");

// A lane's weights of a unit.
struct unit_weights {
    uint4 fragments[WARP_TILES][UNIT_FRAGMENTS];
    uint32_t scale[WARP_TILES][UNIT_SCALES], offset[WARP_TILES][UNIT_SCALES];
};

struct weight_source {
    const uint8_t *codes, *scales; // the tiled matrix
    uint32_t tile[WARP_TILES];     // tiles beyond the matrix are replaced by the last one
    uint32_t n_tiles, first_unit, n_units, runtime_zero;
};

// Loads unit `unit`, counted along the block's columns, of the warp's tiles.
QN_DEVICE void load_unit(unit_weights &w, const weight_source &s, uint32_t unit, uint32_t lane)
{
    unit += s.first_unit;
    const uint32_t k_tile = unit * UNIT_GROUPS / QN_TILE_GROUPS, group = unit * UNIT_GROUPS % QN_TILE_GROUPS;
#pragma unroll
    for (int m = 0; m < WARP_TILES; m++) {
        const uint64_t tile = (uint64_t)k_tile * s.n_tiles + s.tile[m];
        const uint8_t *codes = s.codes + tile * CODE_BYTES + group * QN_BITS / 8 * QN_FRAGMENT_BYTES + 16 * lane;
#pragma unroll
        for (int q = 0; q < UNIT_FRAGMENTS; q++)
            w.fragments[m][q] = __ldg((const uint4 *)(codes + q * QN_FRAGMENT_BYTES));
        if (QN_BITS == 16) {
            w.scale[m][0] = s.runtime_zero;
            continue;
        }
        const uint32_t *scales = (const uint32_t *)(s.scales + tile * SCALE_BYTES + group / GROUPS_PER_SCALE * 32) + lane / 4;
#pragma unroll
        for (int i = 0; i < UNIT_SCALES; i++) {
            w.scale[m][i] = __ldg(scales + 8 * i);
            if (QN_OFFSET)
                w.offset[m][i] = __ldg(scales + 8 * (QN_SCALES + i));
        }
    }
}

// Dequantises group `group` of a unit to A fragments.
QN_DEVICE void dequantize_group(uint32_t a[WARP_TILES][2][4], const unit_weights &w, int group)
{
#pragma unroll
    for (int m = 0; m < WARP_TILES; m++)
#pragma unroll
        for (int k16 = 0; k16 < 2; k16++) {
            const int fragment = QN_BITS == 16 ? 2 * group + k16 : group * QN_BITS / 8;
            group_scale scale = {};
            scale.scale = w.scale[m][QN_BITS == 16 ? 0 : group / GROUPS_PER_SCALE];
            if (QN_OFFSET)
                scale.offset = w.offset[m][group / GROUPS_PER_SCALE];
            dequantize_fragment<QN_BITS, QN_OFFSET>(a[m][k16], w.fragments[m][fragment], group, k16, scale);
        }
}

// Token of element i of a row of accumulators: pairs of tokens, eight apart.
QN_DEVICE uint32_t token_of(uint32_t first_token, int i)
{
    return first_token + i / 2 * 8 + i % 2;
}

// Loads the outputs to which a row's results are added, if they accumulate. The compiler cannot move a load before a
// store: all loads of a row come before its stores.
template <class type, int n>
QN_DEVICE void load_row(const qn_matmul_gemm_args &a, const output_row<type> &out, uint32_t first_token, float (&before)[n])
{
    if (out.at && out.add)
#pragma unroll
        for (int i = 0; i < n; i++)
            before[i] = load_output(out.at + min(token_of(first_token, i), a.n_tokens - 1) * out.stride);
}

template <class type, int n>
QN_DEVICE void store_row(const qn_matmul_gemm_args &a, const output_row<type> &out, uint32_t first_token,
                         const float (&sums)[n], const float (&before)[n])
{
    if (!out.at)
        return;
    float values[n];
#pragma unroll
    for (int i = 0; i < n; i++) { // scales are allocated for all tokens of a block
        values[i] = sums[i] * a.token_scale[token_of(first_token, i)];
        if (out.add)
            values[i] += before[i];
    }
#pragma unroll
    for (int i = 0; i < n; i++)
        if (token_of(first_token, i) < a.n_tokens)
            store_output(out.at + token_of(first_token, i) * out.stride, values[i]);
}

template <class type>
QN_DEVICE void store_tile(const qn_matmul_gemm_args &a, uint32_t tile, const float acc[ACCUMULATORS], uint32_t lane)
{
    constexpr int n = STORED_TOKENS;
    const uint32_t g = lane / 4, t = lane % 4, first_token = blockIdx.x * QN_TILE_N + 2 * t;
    if (tile >= a.n_tiles)
        return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const output_row<type> out = find_output_row<type>(a, tile, g + 8 * h);
#pragma unroll
        for (int first = 0; first < QN_TILE_N / 4; first += n) {
            float sums[n], before[n];
            load_row<type>(a, out, first_token + first * 4, before);
#pragma unroll
            for (int i = 0; i < n; i++)
                sums[i] = acc[(first + i) / 2 * 4 + 2 * h + i % 2];
            store_row<type>(a, out, first_token + first * 4, sums, before);
        }
    }
}

template <class type>
QN_DEVICE void store_tiles(const qn_matmul_gemm_args &a, const uint32_t tile[WARP_TILES],
                           const float acc[WARP_TILES][ACCUMULATORS], uint32_t lane)
{
#pragma unroll
    for (int m = 0; m < WARP_TILES; m++)
        store_tile<type>(a, tile[m], acc[m], lane);
}

// ---- Split-K reduction over a cluster ----

#if __CUDA_ARCH__ >= 900

enum { ROW_QUADS = QN_TILE_N / 16, QUADS = WARP_TILES * 2 * ROW_QUADS }; // per thread

// Address of a thread's quad of partials. The quad for tokens 16j+2t, 16j+2t+1 and those eight further of row g+8h of a
// tile is number (2 * tile + h) * ROW_QUADS + j.
QN_DEVICE uint32_t partial_address(uint32_t shared, uint32_t quad, uint32_t thread)
{
    return shared + (quad * CONSUMER_THREADS + thread) * 16;
}

QN_DEVICE void store_partials(uint32_t shared, const float acc[WARP_TILES][ACCUMULATORS], uint32_t thread)
{
#pragma unroll
    for (int m = 0; m < WARP_TILES; m++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int j = 0; j < ROW_QUADS; j++)
                asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(
                                 partial_address(shared, (2 * m + h) * ROW_QUADS + j, thread)),
                             "f"(acc[m][8 * j + 2 * h]), "f"(acc[m][8 * j + 2 * h + 1]), "f"(acc[m][8 * j + 4 + 2 * h]),
                             "f"(acc[m][8 * j + 4 + 2 * h + 1])
                             : "memory");
}

// Reduces this block's part of the quads over the blocks, in their order. All loads of REDUCED_QUADS are in flight
// together; those beyond the part are of its last one.
template <class type>
QN_DEVICE void reduce_partials(const qn_matmul_gemm_args &a, uint32_t shared, uint32_t first_tile, uint32_t thread)
{
    const uint32_t n = gridDim.z, g = thread % QN_WARP_SIZE / 4, t = thread % 4, end = QUADS * (blockIdx.z + 1) / n;
#pragma unroll 1
    for (uint32_t first = QUADS * blockIdx.z / n; first < end; first += REDUCED_QUADS) {
        output_row<type> out[REDUCED_QUADS];
        uint32_t token[REDUCED_QUADS];
        float before[REDUCED_QUADS][4];
        float4 partials[REDUCED_QUADS][QN_GEMM_MAX_CLUSTER];
#pragma unroll
        for (uint32_t i = 0; i < REDUCED_QUADS; i++) {
            const uint32_t quad = min(first + i, end - 1), row = quad / ROW_QUADS, tile = first_tile + row / 2 * 4;
            token[i] = blockIdx.x * QN_TILE_N + quad % ROW_QUADS * 16 + 2 * t;
            out[i] = find_output_row<type>(a, tile, g + 8 * (row % 2));
            if (first + i >= end || tile >= a.n_tiles)
                out[i].at = nullptr;
            load_row<type>(a, out[i], token[i], before[i]);
#pragma unroll
            for (uint32_t block = 0; block < QN_GEMM_MAX_CLUSTER; block++)
                if (block < n)
                    partials[i][block] = load_dsmem_float4(partial_address(shared, quad, thread), block);
        }
#pragma unroll
        for (uint32_t i = 0; i < REDUCED_QUADS; i++) {
            float sums[4] = {};
#pragma unroll
            for (uint32_t block = 0; block < QN_GEMM_MAX_CLUSTER; block++)
                if (block < n) {
                    sums[0] += partials[i][block].x;
                    sums[1] += partials[i][block].y;
                    sums[2] += partials[i][block].z;
                    sums[3] += partials[i][block].w;
                }
            store_row<type>(a, out[i], token[i], sums, before[i]);
        }
    }
}

#endif

// Epilogue of the consumer threads: writes the outputs, or the partials and then their reduction.
QN_DEVICE void epilogue(const qn_matmul_gemm_args &a, bool split_k, uint32_t stages, const uint32_t tile[WARP_TILES],
                        const float acc[WARP_TILES][ACCUMULATORS])
{
#if __CUDA_ARCH__ >= 900
    if (split_k) {
        asm volatile("bar.sync 1, %0;" ::"r"((uint32_t)CONSUMER_THREADS)
                     : "memory"); // all consumers have read the stages, whose memory the partials overwrite
        store_partials(stages, acc, threadIdx.x);
        qn_cluster_sync();
        WITH_OUTPUT_TYPE(a.out_dtype, reduce_partials, a, stages, tile[0], threadIdx.x);
        qn_cluster_sync(); // no block exits while its shared memory is read
        return;
    }
#endif
    WITH_OUTPUT_TYPE(a.out_dtype, store_tiles, a, tile, acc, threadIdx.x % QN_WARP_SIZE);
}

// Epilogue of the other threads: takes part in the cluster barriers.
QN_DEVICE void epilogue_producer(bool split_k)
{
#if __CUDA_ARCH__ >= 900
    if (split_k) {
        qn_cluster_sync();
        qn_cluster_sync();
    }
#endif
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#define FLOATS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define FLOATS_16(i) FLOATS_4(i), FLOATS_4(i + 4), FLOATS_4(i + 8), FLOATS_4(i + 12)

// d += a b of 64 rows, 16 columns and QN_TILE_N tokens, asynchronous.
QN_DEVICE void wgmma(float (&d)[ACCUMULATORS], const uint32_t a[4], uint64_t b)
{
#if QN_TILE_N == 128
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
                 "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
                 "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
                 "%59, %60, %61, %62, %63"
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
                 : FLOATS_16(0), FLOATS_16(16), FLOATS_16(32), FLOATS_16(48)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#elif QN_TILE_N == 64
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
                 "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
                 : FLOATS_16(0), FLOATS_16(16)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#else
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
                 "}, {%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
                 : FLOATS_16(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}

// Initialises the mbarriers of all stages; by all threads.
QN_DEVICE void init_barriers(uint32_t full, uint32_t empty)
{
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < STAGES; i++) {
            qn_mbarrier_init(full + 8 * i, 1);
            qn_mbarrier_init(empty + 8 * i, CONSUMERS);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
}

// Producer: copies every step of activations of n_k_tiles k-tiles into the next free stage.
QN_DEVICE void produce_acts(const qn_matmul_gemm_args &a, uint32_t first_chunk, uint32_t n_k_tiles, uint32_t stages,
                            uint32_t full, uint32_t empty)
{
    const uint64_t step_bytes = (uint64_t)a.capacity * 128;
    const uint8_t *from = a.acts + blockIdx.x * (uint64_t)STAGE_BYTES + first_chunk * 4 * step_bytes;
    uint32_t stage = 0, phase = 1;
    for (uint32_t step = 0; step < n_k_tiles * 4; step++) {
        qn_mbarrier_wait(empty + 8 * stage, phase);
        mbarrier_arrive_expect_tx(full + 8 * stage, STAGE_BYTES);
        cp_async_bulk(stages + stage * STAGE_BYTES, from + step * step_bytes, STAGE_BYTES, full + 8 * stage);
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
}

// Stages that a commit group releases together, once the next one is in flight.
enum { RELEASED_STAGES = WGMMA_GROUPS > STEP_GROUPS ? WGMMA_GROUPS / STEP_GROUPS : 1 };

struct pipeline_state {
    uint32_t stage, phase;
};

QN_DEVICE void advance(pipeline_state &slot)
{
    if (++slot.stage == STAGES) {
        slot.stage = 0;
        slot.phase ^= 1;
    }
}

// Consumer main loop. WGMMA_GROUPS groups are issued as one commit group; while the tensor cores compute it, the next
// groups are dequantised. Fewer tokens mean less work per group, and more groups per commit.
QN_DEVICE void mma_mainloop(const weight_source &source, uint32_t n_k_tiles, float (&acc)[WARP_TILES][ACCUMULATORS],
                            uint32_t stages, uint32_t full, uint32_t empty)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE;
    unit_weights units[UNITS_IN_FLIGHT + 1];
    uint32_t a[2][WGMMA_GROUPS][WARP_TILES][2][4];
    pipeline_state next = {};
    // wgmma matrix descriptor (PTX ISA): 128-byte swizzle, rows of 128 bytes, eight rows are 1024 bytes apart from the
    // next eight.
    const uint64_t descriptor = 1ull << 62 | 64ull << 32 | 1ull << 16;
#pragma unroll
    for (uint32_t i = 0; i < UNITS_IN_FLIGHT; i++)
        load_unit(units[i], source, i < source.n_units ? i : source.n_units - 1, lane);
#pragma unroll
    for (int r = 0; r < WGMMA_GROUPS; r++)
        dequantize_group(a[0][r], units[0], r);
    qn_pdl_wait(); // weights are not written by the previous kernel; accumulated outputs may be
#pragma unroll 1
    for (uint32_t k_tile = 0; k_tile < n_k_tiles; k_tile++)
#pragma unroll
        for (int first = 0; first < QN_TILE_GROUPS; first += WGMMA_GROUPS) {
            const int slot = first / WGMMA_GROUPS % 2, after = first + WGMMA_GROUPS;
            uint32_t at[WGMMA_GROUPS];
            if (first % UNIT_GROUPS == 0) {
                const uint32_t unit = (k_tile * QN_TILE_GROUPS + first) / UNIT_GROUPS + UNITS_IN_FLIGHT;
                load_unit(units[UNITS_IN_FLIGHT], source, unit < source.n_units ? unit : source.n_units - 1, lane);
            }
#pragma unroll
            for (int r = 0; r < WGMMA_GROUPS; r++) {
                if ((first + r) % STEP_GROUPS == 0)
                    qn_mbarrier_wait(full + 8 * next.stage, next.phase);
                at[r] = stages + next.stage * STAGE_BYTES + (first + r) % STEP_GROUPS * 64;
                if ((first + r) % STEP_GROUPS == STEP_GROUPS - 1)
                    advance(next);
            }
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int r = 0; r < WGMMA_GROUPS; r++)
#pragma unroll
                for (int k16 = 0; k16 < 2; k16++)
#pragma unroll
                    for (int m = 0; m < WARP_TILES; m++)
                        wgmma(acc[m], a[slot][r][m][k16], descriptor | ((at[r] & 0x3ffff) >> 4) + 2 * k16);
            asm volatile("wgmma.commit_group.sync.aligned;\n"
                         "wgmma.wait_group.sync.aligned 1;" ::
                             : "memory");
            if (first % STEP_GROUPS == 0) // release the stages read before the commit group that is in flight
#pragma unroll
                for (uint32_t i = 0; i < RELEASED_STAGES; i++) {
                    const uint32_t back = (WGMMA_GROUPS == 1 ? 1 : 2 * RELEASED_STAGES) - i;
                    const uint32_t released = next.stage >= back ? next.stage - back : next.stage + STAGES - back;
                    if (threadIdx.x % 128 == 0 && k_tile + first)
                        qn_mbarrier_arrive(empty + 8 * released);
                }
            if (after % UNIT_GROUPS == 0)
#pragma unroll
                for (int i = 0; i < UNITS_IN_FLIGHT; i++)
                    units[i] = units[i + 1];
#pragma unroll
            for (int r = 0; r < WGMMA_GROUPS; r++)
                dequantize_group(a[!slot][r], units[0], (after + r) % UNIT_GROUPS);
        }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

#else

// All threads copy a step; the copies of a step are one commit group.
QN_DEVICE void load_step(const qn_matmul_gemm_args &a, uint32_t first_chunk, uint32_t n_k_tiles, uint32_t stages, uint32_t step)
{
    if (step < n_k_tiles * 4) {
        const uint8_t *from =
            a.acts + blockIdx.x * (uint64_t)STAGE_BYTES + (first_chunk * 4 + step) * (uint64_t)a.capacity * 128;
        for (uint32_t at = 16 * threadIdx.x; at < STAGE_BYTES; at += 16 * QN_GEMM_THREADS(QN_TILE_M))
            cp_async_16(stages + step % STAGES * STAGE_BYTES + at, from + at);
    }
    qn_cp_async_commit();
}

// B fragments of sixteen tokens for half k16 of group `group` of a step: two n8 tiles.
QN_DEVICE void load_b_fragments(uint32_t b[4], const uint8_t *stage, int token, int group, int k16, uint32_t lane)
{
    const uint32_t row = token + lane / 16 * 8 + lane % 8, piece = group % STEP_GROUPS * 4 + 2 * k16 + lane / 8 % 2;
    qn_ldmatrix_x4(b, stage + row * 128 + ((piece ^ row % 8) * 16));
}

// acc += weights of a group times its activations, in `stage`.
QN_DEVICE void mma_group(float (&acc)[WARP_TILES][ACCUMULATORS], const uint32_t (&x)[WARP_TILES][2][4], const uint8_t *stage,
                         int group, uint32_t lane)
{
#pragma unroll
    for (int k16 = 0; k16 < 2; k16++)
#pragma unroll
        for (int token = 0; token < QN_TILE_N; token += 16) {
            uint32_t b[4];
            load_b_fragments(b, stage, token, group, k16, lane);
#pragma unroll
            for (int m = 0; m < WARP_TILES; m++) {
                qn_mma_m16n8k16_f16(acc[m] + token / 2, x[m][k16], b);
                qn_mma_m16n8k16_f16(acc[m] + token / 2 + 4, x[m][k16], b + 2);
            }
        }
}

#endif

extern "C" __global__ void __launch_bounds__(QN_GEMM_THREADS(QN_TILE_M), 1)
    qn_matmul_gemm(const __grid_constant__ qn_matmul_gemm_args a)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t warpgroup = threadIdx.x / 128, warp = threadIdx.x / QN_WARP_SIZE % 4, lane = threadIdx.x % QN_WARP_SIZE;
    const uint32_t stages = qn_shared_address(shared) + QN_GEMM_BARRIER_BYTES;
    weight_source source;
    uint32_t tile[WARP_TILES];
    const bool split_k = gridDim.z > 1 && blockIdx.y >= a.n_unsplit;
    const uint32_t row_block = split_k ? a.n_unsplit * (gridDim.z - 1) + blockIdx.y : blockIdx.y * gridDim.z + blockIdx.z;
#pragma unroll
    for (int m = 0; m < WARP_TILES; m++) {
        tile[m] = row_block * (QN_TILE_M / QN_TILE_ROWS) + warpgroup % CONSUMERS * (4 * WARP_TILES) + 4 * m + warp;
        source.tile[m] = tile[m] < a.n_tiles ? tile[m] : a.n_tiles - 1;
    }
    source.codes = a.weights;
    source.scales = a.weights + (uint64_t)a.n_k_tiles * a.n_tiles * CODE_BYTES;
    source.n_tiles = a.n_tiles;
    source.runtime_zero = a.n_k_tiles >> 31;
    const uint32_t first_chunk = split_k ? a.n_k_tiles * blockIdx.z / gridDim.z : 0;
    const uint32_t n_k_tiles = (split_k ? a.n_k_tiles * (blockIdx.z + 1) / gridDim.z : a.n_k_tiles) - first_chunk;
    source.first_unit = first_chunk * (QN_TILE_GROUPS / UNIT_GROUPS);
    source.n_units = n_k_tiles * (QN_TILE_GROUPS / UNIT_GROUPS);
    float acc[WARP_TILES][ACCUMULATORS] = {};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    const uint32_t full = qn_shared_address(shared), empty = full + 8 * STAGES;
    init_barriers(full, empty);
    qn_pdl_trigger();
    if (warpgroup == CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)(CONSUMERS == 3 ? 32 : 24)));
        if (threadIdx.x % 128 == 0) {
            qn_pdl_wait();
            produce_acts(a, first_chunk, n_k_tiles, stages, full, empty);
        }
        epilogue_producer(split_k);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)(CONSUMERS == 3 ? 160 : 240)));
        mma_mainloop(source, n_k_tiles, acc, stages, full, empty);
        epilogue(a, split_k, stages, tile, acc);
    }
#else
    unit_weights weights;
    qn_pdl_trigger();
    qn_pdl_wait();
    for (uint32_t i = 0; i < STAGES - 1; i++)
        load_step(a, first_chunk, n_k_tiles, stages, i);
#pragma unroll 1
    for (uint32_t k_tile = 0; k_tile < n_k_tiles; k_tile++)
#pragma unroll
        for (int group = 0; group < QN_TILE_GROUPS; group++) {
            const uint32_t step = (k_tile * QN_TILE_GROUPS + group) / STEP_GROUPS;
            if (group % STEP_GROUPS == 0) {
                qn_cp_async_wait<STAGES - 2>();
                __syncthreads(); // the step has arrived, and the stage before it is free
                load_step(a, first_chunk, n_k_tiles, stages, step + STAGES - 1);
            }
            if (warpgroup == CONSUMERS)
                continue;
            uint32_t x[WARP_TILES][2][4];
            if (group % UNIT_GROUPS == 0)
                load_unit(weights, source, (k_tile * QN_TILE_GROUPS + group) / UNIT_GROUPS, lane);
            dequantize_group(x, weights, group % UNIT_GROUPS);
            mma_group(acc, x, shared + QN_GEMM_BARRIER_BYTES + step % STAGES * STAGE_BYTES, group, lane);
        }
    if (warpgroup != CONSUMERS)
        epilogue(a, split_k, stages, tile, acc);
    else
        epilogue_producer(split_k);
#endif
}
