// GEMV: one token in hi/lo int8 by weights of 1 or 2 bits (gemv_acts.cuh), up to 8 tokens in fp16 by weights of more
// bits. Weights stream through shared memory, QN_STAGES steps in flight per warp; the tensor cores are not the limit.
// The first weights are issued before the grid dependency is waited for (PDL): the previous kernel may still be
// running.
#include "cuda/kernels/matmul/gemv_warps.h"
#include "cuda/kernels/matmul/tiles.cuh"

#define HILO_N1 (QN_ACTS_LAYOUT == QN_ACTS_HILO_N1)
#if HILO_N1
#include "cuda/kernels/matmul/gemv_acts.cuh"
#endif

// Weight copies: cp.async by each thread for one token, which was measured to be faster than bulk copies (a 27B layer
// in 39 instead of 41 us); bulk copies for fp16, whose steps are several times larger.
#define BULK_COPY (__CUDA_ARCH__ >= 900 && !HILO_N1)

enum {
    STEP_TILES = QN_STEP_TILES, /* tiles per step */
    CODE_BYTES = QN_BITS * QN_FRAGMENT_BYTES,
    SCALE_BYTES = QN_BITS == 16 ? 0 : QN_SCALES * (1 + QN_OFFSET) * 2 * QN_TILE_ROWS,
    STEP_BYTES = STEP_TILES * (CODE_BYTES + SCALE_BYTES),
    GROUPS_PER_SCALE = QN_TILE_GROUPS / (QN_BITS == 16 ? 1 : QN_SCALES),
    TILE_N = HILO_N1 ? 1 : QN_MMA_N,
    KEPT_TILES = QN_GEMV_KEPT_TILES(QN_BITS),
    ACCUMULATORS = HILO_N1 ? 2 : 4 /* per lane and tile */
};

// ---- The weight pipeline ----

// The next step that a warp issues. Order: for each of its steps of tiles, each of its k-tiles.
struct weight_stream {
    const uint8_t *codes, *scales;
    uint32_t k_tile, n_k_tiles;
    uint32_t tile, tile_step, n_tiles;
    // tiles to the next k-tile, and from the last one back to the next step of tiles
    uint64_t k_stride_tiles, rewind_tiles;
    uint32_t shared, mbarriers;            // shared memory addresses of QN_STAGES stages and mbarriers
};

// What a warp computes of the block's n_tiles tiles: k-tiles k_warp, k_warp + a.n_k_warps, ..., n_k_tiles of them, of
// steps of tiles from m_warp * STEP_TILES on, tile_step apart.
struct warp_split {
    uint32_t k_warp, m_warp, n_k_tiles;
    uint32_t tile_step, n_tiles;
};

QN_DEVICE warp_split warp_split_of(const qn_matmul_gemv_args &a, uint32_t warp, uint32_t n_tiles)
{
    warp_split split;
    split.k_warp = warp % a.n_k_warps;
    split.m_warp = warp / a.n_k_warps;
    split.n_k_tiles = (a.n_k_tiles - 1 - split.k_warp) / a.n_k_warps + 1;
    split.tile_step = blockDim.x / QN_WARP_SIZE / a.n_k_warps * STEP_TILES;
    split.n_tiles = n_tiles;
    return split;
}

// All but the addresses in shared memory. first_tile: of the block.
QN_DEVICE weight_stream weight_stream_of(const qn_matmul_gemv_args &a, const warp_split &split, uint32_t first_tile)
{
    weight_stream s;
    const uint64_t first = (uint64_t)split.k_warp * a.n_tiles + first_tile + split.m_warp * STEP_TILES;
    s.codes = a.weights + first * CODE_BYTES;
    s.scales = a.weights + (uint64_t)a.n_k_tiles * a.n_tiles * CODE_BYTES + first * SCALE_BYTES;
    s.k_stride_tiles = (uint64_t)a.n_k_warps * a.n_tiles;
    s.rewind_tiles = split.tile_step - (split.n_k_tiles - 1) * s.k_stride_tiles;
    s.k_tile = 0;
    s.n_k_tiles = split.n_k_tiles;
    s.tile = split.m_warp * STEP_TILES;
    s.tile_step = split.tile_step;
    s.n_tiles = split.n_tiles;
    return s;
}

QN_DEVICE void init_mbarriers(const weight_stream &s)
{
#if BULK_COPY
    if (elect_one()) {
        for (uint32_t i = 0; i < QN_STAGES; i++)
            qn_mbarrier_init(s.mbarriers + 8 * i, 1);
        fence_mbarrier_init();
    }
    __syncwarp();
#endif
}

// Called by all lanes of the warp.
QN_DEVICE void issue_step(weight_stream &s, uint32_t stage)
{
    if (s.tile < s.n_tiles) {
        const uint32_t left = s.n_tiles - s.tile, count = left < STEP_TILES ? left : STEP_TILES;
        const uint32_t to = s.shared + stage * STEP_BYTES;
#if BULK_COPY
        if (elect_one()) {
            const uint32_t mbarrier = s.mbarriers + 8 * stage;
            mbarrier_arrive_expect_tx(mbarrier, count * (CODE_BYTES + SCALE_BYTES));
            cp_async_bulk(to, s.codes, count * CODE_BYTES, mbarrier);
            if (SCALE_BYTES)
                cp_async_bulk(to + STEP_TILES * CODE_BYTES, s.scales, count * SCALE_BYTES, mbarrier);
        }
#else
        const uint32_t first = 16 * (threadIdx.x % QN_WARP_SIZE);
        copy_weights<STEP_TILES, CODE_BYTES, SCALE_BYTES>(to, s.codes, s.scales, count, first, first);
#endif
        const bool last = ++s.k_tile == s.n_k_tiles;
        const uint64_t tiles = last ? s.rewind_tiles : s.k_stride_tiles; // may be negative, modulo 2^64
        s.codes += tiles * CODE_BYTES;
        s.scales += tiles * SCALE_BYTES;
        if (last) {
            s.k_tile = 0;
            s.tile += s.tile_step;
        }
    }
#if !BULK_COPY
    qn_cp_async_commit(); // one commit group per step, also when nothing is left: keeps wait_group's count right
#endif
}

QN_DEVICE void wait_for_step(const weight_stream &s, uint32_t stage, uint32_t phase)
{
#if BULK_COPY
    qn_mbarrier_wait(s.mbarriers + 8 * stage, phase);
#else
    qn_cp_async_wait<QN_STAGES - 1>();
    __syncwarp();
#endif
}

// ---- One token ----

#if HILO_N1

QN_DEVICE void step_n1(float (*acc)[ACCUMULATORS], uint32_t step, uint32_t count, const acts_n1 &x, uint32_t lane)
{
    const uint32_t codes = step + 16 * lane, scales = step + STEP_TILES * CODE_BYTES + lane / 4 * 4;
#pragma unroll
    for (int m = 0; m < STEP_TILES; m += 2) {
        if (m + 1 < STEP_TILES && m + 1 < count)
            mma_n1<2>(acc + m, codes + m * CODE_BYTES, scales + m * SCALE_BYTES, x, lane);
        else if (m < count)
            mma_n1<1>(acc + m, codes + m * CODE_BYTES, scales + m * SCALE_BYTES, x, lane);
    }
}

// Converts the activations to operands in shared memory: each warp those k-tiles of its k_warp that it reads; with
// several m_warps they share the work. Loads of LOADS k-tiles are in flight. They go to registers: cp.async would
// arrive after all weights that the warp has issued.
QN_DEVICE void convert_acts_n1(uint8_t *shared_acts, const qn_matmul_gemv_args &a, const warp_split &split, uint32_t lane)
{
    enum { LOADS = 4 };
    const uint32_t m_warps = split.tile_step / STEP_TILES;
    for (uint32_t first = split.m_warp; first < split.n_k_tiles; first += LOADS * m_warps) {
        stored_acts x[LOADS] = {};
#pragma unroll
        for (uint32_t i = 0; i < LOADS; i++) {
            const uint32_t c = first + i * m_warps;
            if (c < split.n_k_tiles)
                x[i] = load_stored_acts(a.acts + (uint64_t)(split.k_warp + c * a.n_k_warps) * QN_ACTS_N1_TILE_BYTES, lane);
        }
#pragma unroll
        for (uint32_t i = 0; i < LOADS; i++) {
            const uint32_t c = first + i * m_warps;
            if (c < split.n_k_tiles)
                store_operands(shared_acts + (split.k_warp + c * a.n_k_warps) * QN_GEMV_N1_TILE_BYTES, x[i], lane);
        }
    }
    if (m_warps == 1)
        __syncwarp();
    else
        __syncthreads();
}

#endif

// ---- fp16 ----

#if !HILO_N1

// B fragments of both halves of a group, of one token.
QN_DEVICE void load_acts_f16(uint32_t b[4], const uint8_t *acts, uint64_t step_bytes, int group, uint32_t token)
{
    const uint8_t *row = acts + group / 2 * step_bytes + 128 * token + threadIdx.x % 4 * 4;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        b[i] = *(const uint32_t *)(row + ((group % 2 * 4 + i) ^ token) * 16);
}

template <bool x> struct constant {
    static constexpr bool value = x;
};

// The fragments of all groups of a k-tile.
struct acts_f16 {
    uint32_t b[QN_TILE_GROUPS][4];
};

// d = a b + c, fp16 into f32.
QN_DEVICE void mma_onto(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%10, %11, %12, %13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]),
                   "f"(c[3]));
}

// The sum of a group's activations, of the tokens of a lane's accumulators, times minus 1024 and the zero point.
QN_DEVICE void zero_sums(float sums[4], const uint32_t b[4])
{
    const uint32_t zero = 0xe400e400u + QN_TILE_ZERO(8) * 0x00010001u, zeros[4] = { zero, zero, zero, zero };
    const float none[4] = {};
    mma_onto(sums, zeros, b, none);
    qn_mma_m16n8k16_f16(sums, zeros, b + 2);
}

// Adds the product of a group with codes of 8 bits. The codes are operands as the fp16 values 1024 + code, which takes one
// instruction for two; what that adds to the product is in `zeros`, and f32 accumulators have room for it. Scales are
// applied to the product of the group.
QN_DEVICE void add_group_8(float acc[4], const uint4 &fragment, const uint32_t b[4], const float zeros[4], uint32_t scale)
{
    const uint32_t words[4] = { fragment.x, fragment.y, fragment.z, fragment.w };
    float product[4];
    uint32_t a[4];
#pragma unroll
    for (int k = 0; k < 4; k++)
        a[k] = __byte_perm(words[k], 0x64646464u, 0x4240);
    mma_onto(product, a, b, zeros);
#pragma unroll
    for (int k = 0; k < 4; k++)
        a[k] = __byte_perm(words[k], 0x64646464u, 0x4341);
    qn_mma_m16n8k16_f16(product, a, b + 2);
#pragma unroll
    for (int i = 0; i < 4; i++)
        acc[i] = fmaf(i < 2 ? qn_f16_low(scale) : qn_f16_high(scale), product[i], acc[i]);
}

// x: of this step. If `loads`, as soon as a group was used, its fragments of the next step are loaded, from `next`: they
// come from L2, and are there when the weights of that step are. is_full: count is STEP_TILES, which saves the branches.
template <bool is_full, bool loads>
QN_DEVICE void step_f16(float (*acc)[ACCUMULATORS], uint32_t step, uint32_t count, acts_f16 &x, const uint8_t *next,
                        uint64_t step_bytes, uint32_t lane, uint32_t token)
{
    const uint32_t g = lane / 4, codes = step + 16 * lane, scales = step + STEP_TILES * CODE_BYTES + 4 * g;
    uint4 fragments[STEP_TILES];
#pragma unroll
    for (int group = 0; group < QN_TILE_GROUPS; group++) {
        float zeros[4];
        if (QN_BITS == 8)
            zero_sums(zeros, x.b[group]);
#pragma unroll
        for (int m = 0; m < STEP_TILES; m++) {
            if (!is_full && m >= count)
                break;
            group_scale scale = {};
            if (QN_BITS != 16)
                scale.scale = load_shared_4(scales + m * SCALE_BYTES + group / GROUPS_PER_SCALE * 32);
            if (QN_OFFSET)
                scale.offset = load_shared_4(scales + m * SCALE_BYTES + (QN_SCALES + group / GROUPS_PER_SCALE) * 32);
            if (QN_BITS == 8)
                add_group_8(acc[m], load_shared_16(codes + m * CODE_BYTES + group * QN_FRAGMENT_BYTES), x.b[group], zeros,
                            scale.scale);
#pragma unroll
            for (int k16 = 0; k16 < (QN_BITS == 8 ? 0 : 2); k16++) {
                if (QN_BITS == 16 || (k16 == 0 && group % (8 / (QN_BITS == 16 ? 8 : QN_BITS)) == 0))
                    fragments[m] =
                        load_shared_16(codes + m * CODE_BYTES +
                                       (fragment_of_group<QN_BITS>(group) + (QN_BITS == 16 ? k16 : 0)) * QN_FRAGMENT_BYTES);
                uint32_t a[4];
                dequantize_fragment<QN_BITS, QN_OFFSET>(a, fragments[m], group, k16, scale);
                qn_mma_m16n8k16_f16(acc[m], a, x.b[group] + 2 * k16);
            }
        }
        if (loads)
            load_acts_f16(x.b[group], next, step_bytes, group, token);
    }
}

#endif

// ---- Reduction over the warps ----

// Stores a step's accumulators of a warp to its partials, [tile][16 rows][TILE_N].
QN_DEVICE void store_partials(float *to, float (*acc)[ACCUMULATORS], uint32_t count, uint32_t lane)
{
#if HILO_N1
    reduce_store_n1<STEP_TILES>(to, acc, count, lane);
#else
    const uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < STEP_TILES; m++)
        if (m < count)
#pragma unroll
            for (int h = 0; h < 2; h++)
                *(float2 *)(to + (m * QN_TILE_ROWS + g + 8 * h) * TILE_N + 2 * t) =
                    make_float2(acc[m][2 * h], acc[m][2 * h + 1]);
#endif
}

// Adds the partials of all k-warps for tiles [first, last) of the block, in the order of the warps, and writes the
// outputs.
template <class type>
QN_DEVICE void reduce_partials(const qn_matmul_gemv_args &a, const float *acc, uint32_t first_tile, uint32_t first,
                               uint32_t last)
{
    for (uint32_t i = threadIdx.x; i < (last - first) * QN_TILE_ROWS * TILE_N; i += blockDim.x) {
        // Adjacent threads write adjacent rows: coalesced.
        const uint32_t row = i % QN_TILE_ROWS, token = i / QN_TILE_ROWS % TILE_N, tile = i / (QN_TILE_ROWS * TILE_N);
        const float *from = acc + (tile * QN_TILE_ROWS + row) * TILE_N + token;
        const output_row<type> out = find_output_row<type>(a, first_tile + first + tile, row);
        if (!out.at || token >= a.n_tokens)
            continue;
        type *to = out.at + (token)*out.stride;
        const float before = out.add ? load_output(to) : 0;
        float sum = 0;
#pragma unroll 4
        for (uint32_t w = 0; w < a.n_k_warps; w++)
            sum += from[w * a.reduce_tiles * QN_TILE_ROWS * TILE_N];
#if !HILO_N1
        sum *= a.token_scale[token];
#endif
        store_output(to, before + sum);
    }
}

extern "C" __global__ void __launch_bounds__(QN_GEMV_WARPS(QN_BITS) *QN_WARP_SIZE, 1)
    qn_matmul_gemv(const __grid_constant__ qn_matmul_gemv_args a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    // The shuffle tells the compiler that all lanes have the same warp: what depends on it is in uniform registers.
    const uint32_t n_warps = blockDim.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE,
                   warp = __shfl_sync(QN_FULL_MASK, threadIdx.x / QN_WARP_SIZE, 0);
    const uint32_t first_tile = (uint32_t)((uint64_t)a.n_tiles * blockIdx.x / gridDim.x);
    const uint32_t n_tiles = (uint32_t)((uint64_t)a.n_tiles * (blockIdx.x + 1) / gridDim.x) - first_tile;
    const warp_split split = warp_split_of(a, warp, n_tiles);
    const uint32_t k_warp = split.k_warp, n_k_tiles = split.n_k_tiles;

    // Shared memory: stages; partials [2][n_k_warps][reduce_tiles]; activations of one token; mbarriers.
    float *partials = (float *)(shared + n_warps * QN_STAGES * STEP_BYTES);
    const uint32_t n_partials = a.n_k_warps * a.reduce_tiles * QN_TILE_ROWS * TILE_N;
    uint8_t *shared_acts = (uint8_t *)(partials + 2 * n_partials);
    const uint32_t acts_bytes = HILO_N1 ? a.n_k_tiles * QN_GEMV_N1_TILE_BYTES : 0;
    weight_stream stream = weight_stream_of(a, split, first_tile);
    stream.shared = qn_shared_address(shared) + warp * QN_STAGES * STEP_BYTES;
    stream.mbarriers = qn_shared_address(shared_acts + acts_bytes) + warp * QN_STAGES * 8;
    init_mbarriers(stream);
#pragma unroll 1
    for (uint32_t i = 0; i < QN_STAGES; i++)
        issue_step(stream, i);
    qn_pdl_trigger();
    qn_pdl_wait();

#if HILO_N1
    convert_acts_n1(shared_acts, a, split, lane);
    acts_n1 x = {};
    bool loaded = false;
    const uint32_t acts_address = qn_shared_address(shared_acts) + k_warp * QN_GEMV_N1_TILE_BYTES;
#else
    const uint64_t step_bytes = (uint64_t)a.capacity * 128;
    const uint8_t *acts = a.acts + k_warp * 4 * step_bytes;
    const uint32_t token = lane / 4 < a.n_tokens ? lane / 4 : 0; // columns without a token read what others read
    const bool keeps = KEPT_TILES > 1 && n_k_tiles <= KEPT_TILES;
    acts_f16 x[KEPT_TILES];
#pragma unroll
    for (int c = 0; c < KEPT_TILES; c++)
#pragma unroll
        for (int group = 0; group < QN_TILE_GROUPS; group++)
            if (c == 0 || (keeps && c < n_k_tiles))
                load_acts_f16(x[c].b[group], acts + c * a.n_k_warps * 4 * step_bytes, step_bytes, group, token);
#endif
    uint32_t stage = 0, phase = 0;
    const auto next_stage = [&]() {
        __syncwarp();
        issue_step(stream, stage);
        if (++stage == QN_STAGES) {
            stage = 0;
            phase ^= 1;
        }
    };
    float *batch_partials = partials;
    for (uint32_t first_reduced = 0; first_reduced < n_tiles; first_reduced += a.reduce_tiles) {
        const uint32_t end = first_reduced + a.reduce_tiles < n_tiles ? first_reduced + a.reduce_tiles : n_tiles;
        for (uint32_t tile = first_reduced + split.m_warp * STEP_TILES; tile < end; tile += split.tile_step) {
            const uint32_t count = n_tiles - tile < STEP_TILES ? n_tiles - tile : STEP_TILES;
            float acc[STEP_TILES][ACCUMULATORS] = {};
#if HILO_N1
            for (uint32_t c = 0; c < n_k_tiles; c++) {
                if (!loaded)
                    load_acts_n1(x, acts_address + c * a.n_k_warps * QN_GEMV_N1_TILE_BYTES, lane);
                loaded = n_k_tiles == 1; // stays loaded
                wait_for_step(stream, stage, phase);
                step_n1(acc, stream.shared + stage * STEP_BYTES, count, x, lane);
                next_stage();
            }
#else
            const auto step = [&](auto loads, acts_f16 &of_step, uint32_t next) {
                const uint8_t *next_acts = acts + next * a.n_k_warps * 4 * step_bytes;
                const uint32_t from = stream.shared + stage * STEP_BYTES;
                wait_for_step(stream, stage, phase);
                if (count == STEP_TILES)
                    step_f16<true, decltype(loads)::value>(acc, from, count, of_step, next_acts, step_bytes, lane, token);
                else
                    step_f16<false, decltype(loads)::value>(acc, from, count, of_step, next_acts, step_bytes, lane, token);
                next_stage();
            };
#pragma unroll
            for (int c = 0; keeps && c < KEPT_TILES; c++)
                if (c < n_k_tiles)
                    step(constant<false>(), x[c], 0);
            for (uint32_t c = 0; !keeps && c < n_k_tiles; c++)
                step(constant<true>(), x[0], c + 1 < n_k_tiles ? c + 1 : 0);
#endif
            store_partials(batch_partials + (k_warp * a.reduce_tiles + tile - first_reduced) * QN_TILE_ROWS * TILE_N, acc,
                           count, lane);
        }
        __syncthreads();
        WITH_OUTPUT_TYPE(a.out_dtype, reduce_partials, a, batch_partials, first_tile, first_reduced, end);
        // Double buffer: the next partials are stored while these are read.
        batch_partials = batch_partials == partials ? partials + n_partials : partials;
    }
}
