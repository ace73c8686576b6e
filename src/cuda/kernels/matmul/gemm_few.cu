// GEMM of few tokens by weights of 1 and 2 bits: codes as int8 in registers (A), hi/lo int8 activations in shared
// memory in wgmma's layout (B, QN_ACTS_HILO), int32 accumulators over the columns of a weight scale. hi and lo of a
// token are columns of one B, so that codes are unpacked once for both.
//
// A unit is 256 rows by 256 columns of weights; before SwiGLU, 128 rows each of gate and up. The units, row block by
// row block, are divided evenly into parts, one or two adjacent ones a block: a part has the end of one row block, then
// whole ones, then the beginning of another. Of a row block that several blocks share, the first adds the sums of all in
// the order of the columns. The others store theirs to slots in global memory, whose words are QN_FEW_EMPTY, which no
// sum is, until then and afterwards: a word that is loaded is its own flag. A block waits only after all that others
// may wait for, and all run at the same time: there are no more of them than SMs.
//
// Results of a token do not depend on the number of tokens either. Parts are the same for any number, and sums of a row
// block are added as if every block had two parts: first the partials of parts 2i and 2i + 1, then the sums of the
// pairs. Sums of a unit are integers, and tiles of more tokens only have more columns.
//
// Bit planes, of up to 8 tokens: gemm_few_planes.cuh. Of int8, four warpgroups of 64 rows each multiply (consumers): while
// one adds its products or unpacks codes, others use the tensor cores. One thread of a fifth copies weights, another one
// activations with their scales, both by bulk copies into rings; a third warp computes the factors of tokens.
// Architectures other than sm_90a use mma.sync, with the same division and order of additions.
#include "cuda/kernels/hilo.cuh"
#include "cuda/kernels/matmul/codes_s8.cuh"
#include "cuda/kernels/matmul/tiles.cuh"
#include "cuda/kernels/sigmoid.cuh"

enum {
    CODE_BYTES = QN_BITS * QN_FRAGMENT_BYTES,
    SCALE_BYTES = QN_SCALES * 2 * QN_TILE_ROWS,
    BLOCK_TILES = QN_FEW_TILE_M / QN_TILE_ROWS,
    WEIGHT_STAGE_BYTES = QN_FEW_WEIGHT_STAGE_BYTES(QN_BITS, QN_SCALES),
    UNIT_STEPS = QN_TILE_COLS / QN_ACTS_HILO_COLS,
    HAS_PLANES = QN_PLANES,                     /* activations are bit planes */
    OCTETS = (QN_TILE_N + 7) / 8,
    STEP_BYTES = OCTETS * QN_ACTS_HILO_BYTES,   /* of activations */
    ACTS_SCALE_BYTES = 4 * QN_TILE_N,
    ACTS_STAGES = QN_FEW_ACTS_STAGES(QN_TILE_N),
    ACTS_BYTES = ACTS_STAGES * (STEP_BYTES + ACTS_SCALE_BYTES), /* the scales of all stages follow the stages */
    OUTPUTS_AT = HAS_PLANES ? 0 : ACTS_BYTES, /* of shared memory */
    SPANS = QN_SCALES / UNIT_STEPS, /* of a step; a span is the columns of a weight scale */
    SPAN_GROUPS = QN_TILE_GROUPS / QN_SCALES,
    CONSUMER_THREADS = 512,
    ACCUMULATORS = QN_TILE_N, /* int32, per lane: of hi and lo */
    SUMS = QN_TILE_N / 2,     /* float, per lane */
    LANE_TOKENS = SUMS / 2
};

// Bytes from the beginning of a stage to a lane's data.
struct lane_offsets {
    uint32_t codes, scales, acts_scales;
};

// The thread's index is opaque to the compiler: otherwise it would keep values derived from the index for all units,
// and exceed the register budget.
QN_DEVICE lane_offsets lane_offsets_of_thread()
{
    uint32_t thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    const uint32_t tile = thread / QN_WARP_SIZE, lane = thread % QN_WARP_SIZE;
    return { tile * CODE_BYTES + 16 * lane, BLOCK_TILES * CODE_BYTES + tile * SCALE_BYTES + lane / 4 * 4, lane % 4 * 8 };
}

// ---- The division of the work ----

struct block_work {
    uint32_t n_units, begin, end; // of the token pass; of this block
    uint32_t split;               // where its second part begins; 0: it has one
};

QN_DEVICE uint32_t first_unit(const qn_matmul_few_args &a, uint32_t n_units, uint32_t part)
{
    return n_units * (part < a.n_parts ? part : a.n_parts) / a.n_parts;
}

// The block that has a unit.
QN_DEVICE uint32_t block_of(const qn_matmul_few_args &a, uint32_t n_units, uint32_t unit)
{
    return (((unit + 1) * a.n_parts + n_units - 1) / n_units - 1) / a.block_parts;
}

QN_DEVICE block_work block_work_of(const qn_matmul_few_args &a)
{
    const uint32_t part = blockIdx.x * a.block_parts;
    block_work w;
    w.n_units = a.n_row_blocks * a.n_k_tiles;
    w.begin = first_unit(a, w.n_units, part);
    w.end = first_unit(a, w.n_units, part + a.block_parts);
    w.split = part + 1 < a.n_parts && a.block_parts > 1 ? first_unit(a, w.n_units, part + 1) : 0;
    return w;
}

// What block_work_of returns, in shared memory: registers are lacking.
QN_DEVICE block_work &block_work_shared();

// The units of a part and a row block, a segment, from the unit at which it begins.
QN_DEVICE uint32_t segment_units(const qn_matmul_few_args &a, uint32_t unit)
{
    const block_work &w = block_work_shared();
    const uint32_t row_end = (unit / a.n_k_tiles + 1) * a.n_k_tiles, part_end = unit < w.split ? w.split : w.end;
    return (row_end < part_end ? row_end : part_end) - unit;
}

// The tiles of a row block are one contiguous piece, or before SwiGLU two: of gate, and from up_tile on of up.

QN_DEVICE uint32_t pieces_of(const qn_matmul_few_args &a)
{
    return a.up_tile ? 2 : 1;
}

QN_DEVICE uint32_t piece_tiles(const qn_matmul_few_args &a)
{
    return BLOCK_TILES / pieces_of(a);
}

// The tiles of a row block's piece within the matrix: gate and up have the same number of rows.
QN_DEVICE uint32_t piece_count(const qn_matmul_few_args &a, uint32_t row_block)
{
    const uint32_t first = row_block * piece_tiles(a), end = a.n_tiles / pieces_of(a), left = first < end ? end - first : 0;
    return left < piece_tiles(a) ? left : piece_tiles(a);
}

// ---- Codes ----

// A lane's weights of a unit.
struct unit_weights {
    uint4 fragments[QN_BITS];
    uint32_t scales[QN_SCALES]; // rows g and g+8
};

// A lane's scales of activations, of tokens 8 i + 2 t and the next. scales: shared memory address.
QN_DEVICE void load_acts_scales(float (&acts_scales)[LANE_TOKENS], uint32_t scales, const lane_offsets &lane)
{
#pragma unroll
    for (int octet = 0; octet < OCTETS; octet++) {
        const float2 pair = load_shared_float2(scales + lane.acts_scales + 32 * octet);
        acts_scales[2 * octet] = pair.x;
        acts_scales[2 * octet + 1] = pair.y;
    }
}

// MMA results of the columns of a span, and the factors with which they are added to the sums.
struct span_products {
    int products[SUMS];
    float acts_scales[LANE_TOKENS];
    uint32_t scales;
};

// products = 256 hi + lo.
QN_DEVICE void join_hilo(span_products &span, const int (&acc)[ACCUMULATORS])
{
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        span.products[i] = 256 * acc[i / 4 * 8 + i % 4] + acc[i / 4 * 8 + 4 + i % 4];
}

QN_DEVICE void add_span(float (&sums)[SUMS], const span_products &span)
{
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        sums[i] = fmaf(code_scale(i % 4 < 2 ? qn_f16_low(span.scales) : qn_f16_high(span.scales)),
                       (float)span.products[i] * span.acts_scales[i / 4 * 2 + i % 2], sums[i]);
}

#include "cuda/kernels/matmul/gemm_few_outputs.cuh"

// ---- Row blocks that blocks share ----

// What a thread stores and loads at a time, and how many of them a slot has for each thread.
enum { WORDS = SUMS < 4 ? SUMS : 4, VECTORS = SUMS / WORDS };

struct words {
    uint32_t x[WORDS];
};

QN_DEVICE words load_words(const words *at)
{
    words v;
#if QN_TILE_N == 4
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x[0]), "=r"(v.x[1]) : "l"(at) : "memory");
#else
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x[0]), "=r"(v.x[1]), "=r"(v.x[2]), "=r"(v.x[3])
                 : "l"(at)
                 : "memory");
#endif
    return v;
}

QN_DEVICE void store_words(words *at, const words &v)
{
#if QN_TILE_N == 4
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(at), "r"(v.x[0]), "r"(v.x[1]) : "memory");
#else
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.x[0]), "r"(v.x[1]), "r"(v.x[2]),
                 "r"(v.x[3])
                 : "memory");
#endif
}

// A thread's part of a block's slot in a.slots or a.first_parts.
QN_DEVICE words *slot_in(void *slots, uint32_t block)
{
    return (words *)slots + ((uint64_t)blockIdx.y * gridDim.x + block) * (QN_FEW_TILE_M * QN_TILE_N / WORDS) + threadIdx.x;
}

QN_DEVICE void store_slot(words *slot, const float (&sums)[SUMS])
{
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        words v;
#pragma unroll
        for (int k = 0; k < WORDS; k++)
            v.x[k] = __float_as_uint(sums[WORDS * i + k]);
        store_words(slot + i * CONSUMER_THREADS, v);
    }
}

QN_DEVICE void add_first_part(float (&sums)[SUMS], const words *slot)
{
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const words v = load_words(slot + i * CONSUMER_THREADS);
#pragma unroll
        for (int k = 0; k < WORDS; k++)
            sums[WORDS * i + k] += __uint_as_float(v.x[k]);
    }
}

// Loads of slots before a launch ends with an error: some seconds, longer than kernels of others keep blocks from starting.
enum { MOST_LOADS = 1 << 24 };

// What is waited for at a time, to fit in registers: PIECE of a thread's sums of SLOTS slots, the other one of a pair,
// then pairs.
enum { PIECE = SUMS < 8 ? SUMS : 8, PIECE_VECTORS = PIECE / WORDS, SLOTS = QN_TILE_N <= 8 ? 7 : QN_TILE_N == 16 ? 5 : 3 };

// Waits for a piece of slots [first, n) from `slot` on; the others are zeros. Empties them for the next launch.
QN_DEVICE void take_slots(float (&slots)[SLOTS][PIECE], words *slot, uint32_t first, uint32_t n)
{
    enum { STRIDE = QN_FEW_TILE_M * QN_TILE_N / WORDS };
    words empty;
    bool stored;
    uint32_t loads = 0;
#pragma unroll
    for (int i = 0; i < SLOTS * PIECE; i++)
        slots[i / PIECE][i % PIECE] = 0;
#pragma unroll
    for (int k = 0; k < WORDS; k++)
        empty.x[k] = QN_FEW_EMPTY;
    do {
        stored = true;
        if (loads++ == MOST_LOADS)
            __trap();
#pragma unroll
        for (uint32_t i = 0; i < SLOTS * PIECE_VECTORS; i++) {
            const uint32_t at = i / PIECE_VECTORS, v = i % PIECE_VECTORS;
            if (at < first || at >= n)
                continue;
            const words found = load_words(slot + at * STRIDE + v * CONSUMER_THREADS);
#pragma unroll
            for (int k = 0; k < WORDS; k++) {
                stored = stored && found.x[k] != QN_FEW_EMPTY;
                slots[at][WORDS * v + k] = __uint_as_float(found.x[k]);
            }
        }
    } while (!stored);
#pragma unroll
    for (uint32_t i = 0; i < SLOTS * PIECE_VECTORS; i++)
        if (i / PIECE_VECTORS >= first && i / PIECE_VECTORS < n)
            store_words(slot + i / PIECE_VECTORS * STRIDE + i % PIECE_VECTORS * CONSUMER_THREADS, empty);
}

// Adds the sums of the blocks after this one, up to `last`, as they arrive: of pairs of blocks if these have one part
// each.
QN_DEVICE void add_slots(const qn_matmul_few_args &a, uint32_t last, float (&sums)[SUMS])
{
    const bool paired = a.block_parts == 1;
#pragma unroll
    for (int piece = 0; piece < SUMS / PIECE; piece++) {
        uint32_t first = paired && blockIdx.x % 2 == 0 ? 0 : 1, block = blockIdx.x + 1 - first;
        float *const to = sums + piece * PIECE;
#pragma unroll 1
        for (; block <= last; block += SLOTS - 1, first = 1) {
            float slots[SLOTS][PIECE];
            take_slots(slots, slot_in(a.slots, block) + piece * PIECE_VECTORS * CONSUMER_THREADS, first, last + 1 - block);
#pragma unroll
            for (int i = 0; i < PIECE; i++)
                to[i] = 0.0f + (to[i] + slots[0][i]);
#pragma unroll
            for (uint32_t k = 1; k < SLOTS; k += 2)
#pragma unroll
                for (int i = 0; i < PIECE; i++)
                    to[i] = paired ? to[i] + (slots[k][i] + slots[k + 1][i]) : to[i] + slots[k][i] + slots[k + 1][i];
        }
    }
}

// Waits for the factors of tokens.
QN_DEVICE void finish_row_block(const qn_matmul_few_args &a, uint32_t row_block, float (&sums)[SUMS], const norm_columns &first)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    qn_mbarrier_wait(qn_shared_address(&outputs().factors_ready), 0);
#endif
    if (a.next.op == QN_ACTS_OP_RMS_NORM)
        add_and_normalize(a, row_block, sums, first);
    else if (a.next.op == QN_ACTS_OP_SWIGLU)
        apply_swiglu(a, row_block, sums);
    else
        WITH_OUTPUT_TYPE(a.out_dtype, store_sums, a, row_block, sums);
}

// The end of a segment, whose last unit is before `end`. Of a row block that blocks share, the first adds the sums: the
// others have its units at the beginning of their work, or end when it does.
QN_DEVICE void finish_segment(const qn_matmul_few_args &a, uint32_t end, float (&sums)[SUMS])
{
    const block_work &w = block_work_shared();
    const uint32_t row_block = (end - 1) / a.n_k_tiles, row_begin = row_block * a.n_k_tiles, row_end = row_begin + a.n_k_tiles;
    if (w.split > row_begin && w.split < end)
        add_first_part(sums, slot_in(a.first_parts, blockIdx.x));
    if (end == w.split && end < row_end) {
        store_slot(slot_in(a.first_parts, blockIdx.x), sums);
    } else if (w.begin > row_begin) {
        store_slot(slot_in(a.slots, blockIdx.x), sums);
    } else {
        norm_columns first = {};
        if (LOADS_EARLY && a.next.op == QN_ACTS_OP_RMS_NORM)
            first = load_norm_columns(a, row_block, 0, 0);
        if (end < row_end)
            add_slots(a, block_of(a, w.n_units, row_end - 1), sums);
        finish_row_block(a, row_block, sums, first);
    }
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        sums[i] = 0;
}

// The activations of the first step of a k-tile; the next step's are step_stride bytes further.
QN_DEVICE const uint8_t *acts_of(const qn_matmul_few_args &a, uint32_t k_tile)
{
    return a.acts +
           ((uint64_t)k_tile * UNIT_STEPS * (a.capacity / QN_MMA_N) + blockIdx.y * OCTETS) * QN_ACTS_HILO_BYTES;
}

// The scales of a step, counted from k-tile 0.
QN_DEVICE const float *acts_scales_of(const qn_matmul_few_args &a, uint32_t step)
{
    return a.acts_scale + (uint64_t)step * a.capacity + blockIdx.y * QN_TILE_N;
}

QN_DEVICE uint64_t acts_step_stride(const qn_matmul_few_args &a)
{
    return (uint64_t)(a.capacity / QN_MMA_N) * QN_ACTS_HILO_BYTES;
}

// The scales of a stage of activations in shared memory. acts: the first stage.
QN_DEVICE uint32_t stage_scales(uint32_t acts, uint32_t stage)
{
    return acts + ACTS_STAGES * STEP_BYTES + stage * ACTS_SCALE_BYTES;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// ---- Rings ----

// Stages of weights that are copied before the previous kernel has ended. Activations are copied after all weights that
// have been issued before them: in the blocks that start last, on the SMs where the previous kernel ended, and for which
// all others wait, these would be a full ring.
enum { EARLY_STAGES = 4 };

struct ring {
    uint32_t shared, full, empty, n_stages, stage_bytes; // shared memory addresses: stages, mbarriers
    uint32_t stage, phase;
};

QN_DEVICE ring ring_at(uint32_t shared, uint32_t mbarriers, uint32_t n_stages, uint32_t stage_bytes)
{
    ring r = { shared, mbarriers, mbarriers + 8 * n_stages, n_stages, stage_bytes, 0, 0 };
    return r;
}

QN_DEVICE void advance(ring &r)
{
    if (++r.stage == r.n_stages) {
        r.stage = 0;
        r.phase ^= 1;
    }
}

QN_DEVICE void init_ring(const ring &r, uint32_t consumers)
{
    for (uint32_t i = 0; i < r.n_stages; i++) {
        qn_mbarrier_init(r.full + 8 * i, 1);
        qn_mbarrier_init(r.empty + 8 * i, consumers);
    }
}

// A stage of arbitrary contents after the last one: consumers load ahead unconditionally, and do not use it.
QN_DEVICE void produce_nothing(const ring &r)
{
    qn_mbarrier_wait(r.empty + 8 * r.stage, r.phase ^ 1);
    qn_mbarrier_arrive(r.full + 8 * r.stage);
}

// One warp loads the inputs of the outputs while weights are multiplied.
QN_DEVICE void prepare_outputs(const qn_matmul_few_args &a, const block_work &w)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE;
    if (a.next.op != QN_ACTS_OP_NONE)
        prefetch_vectors(a, w.begin / a.n_k_tiles, (w.end - 1) / a.n_k_tiles, lane);
    qn_pdl_wait();
    compute_factors(a);
    if (lane < QN_TILE_N)
        qn_mbarrier_arrive(qn_shared_address(&outputs().factors_ready));
}

#if QN_PLANES
#include "cuda/kernels/matmul/gemm_few_planes.cuh"
#else

// Weights are not written by the previous kernel: those of the first units are copied before it has ended.
QN_DEVICE void produce_weights(const qn_matmul_few_args &a, const block_work &w, ring r)
{
    const uint8_t *scales = a.weights + (uint64_t)a.n_k_tiles * a.n_tiles * CODE_BYTES;
    uint32_t row_block = w.begin / a.n_k_tiles, k_tile = w.begin % a.n_k_tiles;
    for (uint32_t unit = w.begin; unit < w.end; unit++) {
        if (unit == w.begin + EARLY_STAGES)
            qn_pdl_wait();
        const uint32_t n = piece_count(a, row_block), to = r.shared + r.stage * r.stage_bytes, full = r.full + 8 * r.stage;
        qn_mbarrier_wait(r.empty + 8 * r.stage, r.phase ^ 1);
        mbarrier_arrive_expect_tx(full, pieces_of(a) * n * (CODE_BYTES + SCALE_BYTES));
        for (uint32_t piece = 0; n && piece < pieces_of(a); piece++) {
            const uint32_t at = piece * piece_tiles(a);
            const uint64_t tile = (uint64_t)k_tile * a.n_tiles + piece * a.up_tile + row_block * piece_tiles(a);
            cp_async_bulk(to + at * CODE_BYTES, a.weights + tile * CODE_BYTES, n * CODE_BYTES, full);
            cp_async_bulk(to + BLOCK_TILES * CODE_BYTES + at * SCALE_BYTES, scales + tile * SCALE_BYTES, n * SCALE_BYTES, full);
        }
        advance(r);
        if (++k_tile == a.n_k_tiles) {
            k_tile = 0;
            row_block++;
        }
    }
    produce_nothing(r);
}

QN_DEVICE void produce_acts(const qn_matmul_few_args &a, const block_work &w, ring r)
{
    const uint64_t stride = acts_step_stride(a);
    uint32_t k_tile = w.begin % a.n_k_tiles;
    qn_pdl_wait();
    for (uint32_t unit = w.begin; unit < w.end; unit++) {
        const uint8_t *from = acts_of(a, k_tile);
        for (uint32_t step = 0; step < UNIT_STEPS; step++) {
            qn_mbarrier_wait(r.empty + 8 * r.stage, r.phase ^ 1);
            mbarrier_arrive_expect_tx(r.full + 8 * r.stage, STEP_BYTES + ACTS_SCALE_BYTES);
            cp_async_bulk(r.shared + r.stage * STEP_BYTES, from + step * stride, STEP_BYTES, r.full + 8 * r.stage);
            cp_async_bulk(stage_scales(r.shared, r.stage), acts_scales_of(a, k_tile * UNIT_STEPS + step), ACTS_SCALE_BYTES,
                          r.full + 8 * r.stage);
            advance(r);
        }
        if (++k_tile == a.n_k_tiles)
            k_tile = 0;
    }
    produce_nothing(r);
}

// ---- wgmma ----

#define INTS_4(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define INTS_8(i) INTS_4(i), INTS_4(i + 4)

// d = a b, or d += a b, of 64 rows, 32 columns, and hi and lo of QN_TILE_N tokens, asynchronous.
QN_DEVICE void wgmma(int (&d)[ACCUMULATORS], const uint32_t a[4], uint64_t b, int accumulate)
{
#if QN_TILE_N == 32
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
                 "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, {%32, %33, %34, %35}, %36, p;\n"
                 "}\n"
                 : INTS_8(0), INTS_8(8), INTS_8(16), INTS_8(24)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
#elif QN_TILE_N == 16
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %21, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
                 "}, {%16, %17, %18, %19}, %20, p;\n"
                 "}\n"
                 : INTS_8(0), INTS_8(8)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
#else
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %13, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, p;\n"
        "}\n"
        : INTS_8(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
#endif
}

// Loads a unit's weights from their stage and frees it.
QN_DEVICE void load_weights(unit_weights &x, ring &r, const lane_offsets &lane)
{
    const uint32_t stage = r.shared + r.stage * r.stage_bytes, codes = stage + lane.codes, scales = stage + lane.scales;
    qn_mbarrier_wait(r.full + 8 * r.stage, r.phase);
#pragma unroll
    for (int i = 0; i < QN_BITS; i++)
        x.fragments[i] = load_shared_16(codes + i * QN_FRAGMENT_BYTES);
#pragma unroll
    for (int i = 0; i < QN_SCALES; i++)
        x.scales[i] = load_shared_4(scales + i * 2 * QN_TILE_ROWS);
    __syncwarp();
    if (threadIdx.x % QN_WARP_SIZE == 0)
        qn_mbarrier_arrive(r.empty + 8 * r.stage);
    advance(r);
}

// The compiler is kept from moving either step: it would unpack between two instructions of wgmma, which then wait for
// it.
QN_DEVICE void shift_span(uint32_t (&shifted)[SPAN_GROUPS][4], const unit_weights &x, int span)
{
#pragma unroll
    for (int j = 0; j < SPAN_GROUPS; j++) {
        const int group = span * SPAN_GROUPS + j;
        shift_group(shifted[j], x.fragments[group * QN_BITS / QN_TILE_GROUPS], group);
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("" : "+r"(shifted[j][i]));
    }
}

QN_DEVICE void mask_span(uint32_t (&codes)[SPAN_GROUPS][4], const uint32_t (&shifted)[SPAN_GROUPS][4], uint32_t mask)
{
#pragma unroll
    for (int j = 0; j < SPAN_GROUPS; j++) {
        mask_group(codes[j], shifted[j], mask);
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("" : "+r"(codes[j][i]));
    }
}

// wgmma matrix descriptor (PTX ISA): 128-byte swizzle, rows of 128 bytes, eight rows are 1024 bytes apart from the next
// eight. This is its low word; bytes from the address on are added to it as sixteenths.
QN_DEVICE uint32_t descriptor_of(uint32_t address)
{
    return (1u << 16) + (address >> 4);
}

// Issues the products of a span as a commit group. descriptor: of its activations.
QN_DEVICE void multiply_span(int (&acc)[ACCUMULATORS], const uint32_t (&codes)[SPAN_GROUPS][4], uint32_t descriptor)
{
    const uint64_t activations = (uint64_t)(1u << 30 | 64) << 32 | descriptor;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int j = 0; j < SPAN_GROUPS; j++) // 64-bit additions are one uniform instruction each
        wgmma(acc, codes[j], activations + 32 * j / 16, j > 0);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Whether the codes of the next span are shifted and the products of the one before are added while a span is
// multiplied. What changes operands of wgmma waits for the products. For 32 tokens registers are lacking.
enum { OVERLAPS = QN_TILE_N < QN_FEW_TILE_N };

// The next unit's weights are loaded as soon as the codes of this one are shifted. Spans are added in their order;
// before the first of a segment zeros are.
QN_DEVICE void consume(const qn_matmul_few_args &a, const block_work &w, ring weights, ring acts)
{
    // The compiler cannot prove that it is a constant, nor that all lanes have it, and keeps it in a register that LOP3
    // takes.
    const uint32_t code_mask = __shfl_sync(QN_FULL_MASK, CODE_MASK + (a.n_k_tiles >> 31), 0);
    const uint32_t acts_descriptor = descriptor_of(acts.shared);
    float sums[SUMS] = {};
    int acc[ACCUMULATORS];
    span_products before = {}; // not yet added
    uint32_t shifted[SPAN_GROUPS][4], codes[SPAN_GROUPS][4];
    unit_weights x;
    lane_offsets lane = lane_offsets_of_thread();
    uint32_t left = segment_units(a, w.begin);
    load_weights(x, weights, lane);
    shift_span(shifted, x, 0);
    mask_span(codes, shifted, code_mask);
    qn_mbarrier_wait(acts.full, 0);
#pragma unroll 1
    for (uint32_t unit = w.begin; unit < w.end; unit++) {
        uint32_t scales[QN_SCALES];
#pragma unroll
        for (int span = 0; span < QN_SCALES; span++)
            scales[span] = x.scales[span];
#pragma unroll
        for (int span = 0; span < QN_SCALES; span++) {
            const int next = (span + 1) % QN_SCALES;
            const uint32_t stage = acts.stage;
            multiply_span(acc, codes, acts_descriptor + stage * (STEP_BYTES / 16) + span % SPANS * SPAN_GROUPS * 2);
            if (OVERLAPS) {
                shift_span(shifted, x, next);
                add_span(sums, before);
            } else {
                lane = lane_offsets_of_thread();
            }
            if (span == QN_SCALES - 1 - OVERLAPS)
                load_weights(x, weights, lane); // all of this unit's are shifted, or in `codes`
            load_acts_scales(before.acts_scales, stage_scales(acts.shared, stage), lane);
            before.scales = scales[span];
            if (span % SPANS == SPANS - 1)
                advance(acts);
            // The assembler would move code from before wgmma.wait_group to after it, but not across this loop.
            qn_mbarrier_wait(acts.full + 8 * acts.stage, acts.phase);
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            join_hilo(before, acc);
#pragma unroll
            for (int i = 0; i < SUMS; i++) // The compiler would join them later, from copies of the accumulators.
                asm volatile("" : "+r"(before.products[i]));
            if (!OVERLAPS)
                shift_span(shifted, x, next);
            mask_span(codes, shifted, code_mask);
            if (span % SPANS == SPANS - 1) {
                __syncwarp(); // all lanes have loaded scales
                if (threadIdx.x % QN_WARP_SIZE == 0)
                    qn_mbarrier_arrive(acts.empty + 8 * stage);
            }
            if (!OVERLAPS)
                add_span(sums, before);
        }
        if (--left)
            continue;
        if (OVERLAPS)
            add_span(sums, before);
        before = {};
        finish_segment(a, unit + 1, sums);
        if (unit + 1 < w.end)
            left = segment_units(a, unit + 1);
    }
}

extern "C" __global__ void __launch_bounds__(QN_FEW_THREADS, 1) qn_matmul_gemm_few(const __grid_constant__ qn_matmul_few_args a)
{
    const uint32_t acts_at = qn_shared_address(shared), weights_at = acts_at + ACTS_BYTES + QN_FEW_OUTPUT_BYTES(QN_TILE_N),
                   mbarriers = weights_at + a.weight_stages * WEIGHT_STAGE_BYTES,
                   weights_mbarriers = mbarriers + 16 * ACTS_STAGES;
    const ring acts = ring_at(acts_at, mbarriers, ACTS_STAGES, STEP_BYTES),
               weights = ring_at(weights_at, weights_mbarriers, a.weight_stages, WEIGHT_STAGE_BYTES);
    if (threadIdx.x == 0) {
        block_work_shared() = block_work_of(a);
        init_ring(acts, CONSUMER_THREADS / QN_WARP_SIZE);
        init_ring(weights, CONSUMER_THREADS / QN_WARP_SIZE);
        qn_mbarrier_init(qn_shared_address(&outputs().factors_ready), QN_TILE_N);
        fence_mbarrier_init();
    }
    __syncthreads();
    qn_pdl_trigger();
    const block_work w = block_work_shared();
    if (threadIdx.x >= CONSUMER_THREADS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        if (threadIdx.x == CONSUMER_THREADS)
            produce_weights(a, w, weights);
        else if (threadIdx.x == CONSUMER_THREADS + QN_WARP_SIZE)
            produce_acts(a, w, acts);
        else if (warp_tile() == WARPS + 2)
            prepare_outputs(a, w);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
        qn_pdl_wait(); // outputs and the workspace may be in use by the previous kernel
        consume(a, w, weights, acts);
    }
}

#endif

#else

// All threads copy a step of activations; the copies of a step are one commit group. step: counted from the block's
// first.
QN_DEVICE void load_step(const qn_matmul_few_args &a, const block_work &w, uint32_t shared, uint32_t step)
{
    const uint32_t unit = w.begin + step / UNIT_STEPS;
    if (unit < w.end) {
        const uint8_t *from = acts_of(a, unit % a.n_k_tiles) + step % UNIT_STEPS * acts_step_stride(a);
        for (uint32_t at = 16 * threadIdx.x; at < STEP_BYTES; at += 16 * CONSUMER_THREADS)
            cp_async_16(shared + step % ACTS_STAGES * STEP_BYTES + at, from + at);
        if (16 * threadIdx.x < ACTS_SCALE_BYTES)
            cp_async_16(stage_scales(shared, step % ACTS_STAGES) + 16 * threadIdx.x,
                        acts_scales_of(a, unit % a.n_k_tiles * UNIT_STEPS + step % UNIT_STEPS) + 4 * threadIdx.x);
    }
    qn_cp_async_commit();
}

QN_DEVICE void load_weights(unit_weights &x, const qn_matmul_few_args &a, uint32_t row_block, uint32_t k_tile)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, n = piece_tiles(a), piece = warp_tile() / n;
    // beyond its piece the sums are not used
    const uint32_t wanted = piece * a.up_tile + row_block * n + warp_tile() % n;
    const uint64_t tile = (uint64_t)k_tile * a.n_tiles + (wanted < a.n_tiles ? wanted : a.n_tiles - 1);
    const uint8_t *scales = a.weights + (uint64_t)a.n_k_tiles * a.n_tiles * CODE_BYTES + tile * SCALE_BYTES;
#pragma unroll
    for (int i = 0; i < QN_BITS; i++)
        x.fragments[i] = __ldg((const uint4 *)(a.weights + tile * CODE_BYTES + i * QN_FRAGMENT_BYTES) + lane);
#pragma unroll
    for (int i = 0; i < QN_SCALES; i++)
        x.scales[i] = __ldg((const uint32_t *)(scales + i * 2 * QN_TILE_ROWS) + lane / 4);
}

// acc = codes of a span times its activations, in `stage`.
QN_DEVICE void multiply_span(int (&acc)[ACCUMULATORS], const unit_weights &w, const uint8_t *stage, int span)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, token = lane % 8;
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; i++)
        acc[i] = 0;
#pragma unroll
    for (int j = 0; j < SPAN_GROUPS; j++) {
        const int group = span * SPAN_GROUPS + j;
        uint32_t x[4];
        unpack_group(x, w.fragments[group * QN_BITS / QN_TILE_GROUPS], group, CODE_MASK);
#pragma unroll
        for (int octet = 0; octet < QN_TILE_N / 8; octet++) {
            // Lanes 0 to 15 have the addresses of hi, 16 to 31 of lo.
            const uint32_t piece = group % 4 * 2 + lane / 8 % 2;
            uint32_t b[4];
            qn_ldmatrix_x4(b, stage + octet * QN_ACTS_HILO_BYTES + lane / 16 * 1024 + token * 128 + (piece ^ token) * 16);
            qn_mma_m16n8k32_s8(acc + 8 * octet, x, b);
            qn_mma_m16n8k32_s8(acc + 8 * octet + 4, x, b + 2);
        }
    }
}

extern "C" __global__ void __launch_bounds__(QN_FEW_THREADS, 1) qn_matmul_gemm_few(const __grid_constant__ qn_matmul_few_args a)
{
    if (threadIdx.x == 0)
        block_work_shared() = block_work_of(a);
    __syncthreads();
    if (threadIdx.x >= CONSUMER_THREADS)
        return;
    const block_work w = block_work_shared();
    const uint32_t to = qn_shared_address(shared);
    float sums[SUMS] = {};
    uint32_t step = 0;
    qn_pdl_trigger();
    qn_pdl_wait();
    if (warp_tile() == 0)
        compute_factors(a); // a segment ends after a barrier
    for (uint32_t i = 0; i < ACTS_STAGES - 1; i++)
        load_step(a, w, to, i);
    for (uint32_t unit = w.begin; unit < w.end;) {
#pragma unroll 1
        for (uint32_t left = segment_units(a, unit); left; left--, unit++) {
            unit_weights x;
            load_weights(x, a, unit / a.n_k_tiles, unit % a.n_k_tiles);
#pragma unroll
            for (int half = 0; half < UNIT_STEPS; half++, step++) {
                qn_cp_async_wait<ACTS_STAGES - 2>();
                consumer_barrier(); // the step has arrived, and the stage before it is free
                load_step(a, w, to, step + ACTS_STAGES - 1);
                span_products products;
                load_acts_scales(products.acts_scales, stage_scales(to, step % ACTS_STAGES), lane_offsets_of_thread());
#pragma unroll
                for (int span = half * SPANS; span < (half + 1) * SPANS; span++) {
                    int acc[ACCUMULATORS];
                    multiply_span(acc, x, shared + step % ACTS_STAGES * STEP_BYTES, span);
                    join_hilo(products, acc);
                    products.scales = x.scales[span];
                    add_span(sums, products);
                }
            }
        }
        finish_segment(a, unit, sums);
    }
}

#endif
