// Products of many tokens: weights as halves in registers, activations in shared memory as the matrix units read them, sums in
// floats. A block takes 256 rows by up to 128 tokens, because weights of few bits are cheap to bring and activations are not:
// two warp groups of 128 rows multiply, one thread of a third brings activations several steps of 64 columns ahead. Weights
// come straight into registers, one unit of runs ahead, and become halves for the run after the one that is being multiplied.
//
// Where rows and tokens make too few blocks for all multiprocessors, or some more than all can take at the same time, blocks of
// a cluster share the columns of a block of rows: each leaves its sums in its shared memory, and adds up a part of all of them.
//
// Other architectures than sm_90a multiply with the units that all have, with the same tile, layout and order of sums.
#include "kernels/matmul/tiles.cuh"

enum {
    CODE_BYTES = QN_BITS * QN_TILE_SET,
    SCALE_BYTES = QN_BITS == 16 ? 0 : QN_SCALES * (1 + QN_OFFSET) * 2 * QN_TILE_ROWS,
    STAGE_BYTES = QN_TOKENS * 128, /* 64 columns */
    STEP_RUNS = 2,
    UNIT_RUNS = QN_BITS <= 2 ? 8 : 2, /* runs whose weights come together */
    UNIT_SETS = QN_BITS * UNIT_RUNS / 8,
    RUNS_A_SCALE = QN_TILE_RUNS / (QN_BITS == 16 ? 1 : QN_SCALES),
    UNIT_SCALES = QN_BITS == 16 ? 1 : UNIT_RUNS / RUNS_A_SCALE,
    TILES = 2,            /* of a warp */
    SUMS = QN_TOKENS / 2, /* of a lane, of a tile */
    STAGES = QN_PROMPT_STAGES(QN_TOKENS),
    GROUP_RUNS = QN_TOKENS == 128                    ? 1
                 : QN_TOKENS == 64 || UNIT_RUNS == 2 ? 2
                                                     : 4, /* that are multiplied together */
    UNITS_AHEAD = QN_TOKENS == 128 || QN_BITS == 16 ? 1
                  : UNIT_RUNS == 2                  ? 3
                                                    : 2, /* of what is being multiplied */
    MULTIPLIERS = 256                   /* threads */
};

// What a lane holds of the weights of a unit.
struct unit_weights {
    uint4 sets[TILES][UNIT_SETS];
    uint32_t scale[TILES][UNIT_SCALES], offset[TILES][UNIT_SCALES];
};

struct weight_source {
    const uint8_t *codes, *scales; // the area
    uint32_t tile[TILES];          // the last one in place of one beyond it
    uint32_t n_tiles, first_unit, n_units, zero;
};

// Unit number `unit` of the block's columns, of the warp's tiles, in the order of columns.
QN_DEVICE void load_unit(unit_weights &w, const weight_source &s, uint32_t unit, uint32_t lane)
{
    unit += s.first_unit;
    const uint32_t chunk = unit * UNIT_RUNS / QN_TILE_RUNS, run = unit * UNIT_RUNS % QN_TILE_RUNS;
#pragma unroll
    for (int m = 0; m < TILES; m++) {
        const uint64_t tile = (uint64_t)chunk * s.n_tiles + s.tile[m];
        const uint8_t *codes = s.codes + tile * CODE_BYTES + run * QN_BITS / 8 * QN_TILE_SET + 16 * lane;
#pragma unroll
        for (int q = 0; q < UNIT_SETS; q++)
            w.sets[m][q] = __ldg((const uint4 *)(codes + q * QN_TILE_SET));
        if (QN_BITS == 16) {
            w.scale[m][0] = s.zero;
            continue;
        }
        const uint32_t *scales = (const uint32_t *)(s.scales + tile * SCALE_BYTES + run / RUNS_A_SCALE * 32) + lane / 4;
#pragma unroll
        for (int i = 0; i < UNIT_SCALES; i++) {
            w.scale[m][i] = __ldg(scales + 8 * i);
            if (QN_OFFSET)
                w.offset[m][i] = __ldg(scales + 8 * (QN_SCALES + i));
        }
    }
}

// Run `run` of a unit as operands.
QN_DEVICE void make_run(uint32_t a[TILES][2][4], const unit_weights &w, int run)
{
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int part = 0; part < 2; part++) {
            const int set = QN_BITS == 16 ? 2 * run + part : run * QN_BITS / 8;
            run_scale scale = {};
            scale.scale = w.scale[m][QN_BITS == 16 ? 0 : run / RUNS_A_SCALE];
            if (QN_OFFSET)
                scale.offset = w.offset[m][run / RUNS_A_SCALE];
            halves_of_run<QN_BITS, QN_OFFSET>(a[m][part], w.sets[m][set], run, part, scale);
        }
}

QN_DEVICE void store_sum(const qn_matmul_prompt_args &a, const row_out &out, uint32_t token, float sum)
{
    if (token < a.n_tokens) {
        float *at = out.at + token * out.stride;
        const float value = sum * __ldg(a.token_scale + token);
        *at = out.add ? *at + value : value;
    }
}

QN_DEVICE void store_tile(const qn_matmul_prompt_args &a, uint32_t tile, const float sums[SUMS], uint32_t lane)
{
    const uint32_t g = lane / 4, t = lane % 4, first_token = blockIdx.x * QN_TOKENS + 2 * t;
    if (tile >= a.n_tiles)
        return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const row_out out = find_row(a, tile, g + 8 * h);
        if (!out.at)
            continue;
#pragma unroll
        for (int j = 0; j < QN_TOKENS / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                store_sum(a, out, first_token + 8 * j + e, sums[4 * j + 2 * h + e]);
    }
}

// ---- Sums of a cluster ----

#if __CUDA_ARCH__ >= 900

// A lane's pair of sums for tokens 8j+2t, +1 of a tile's row g+8h is number (2 * tile + h) * QN_TOKENS / 8 + j of the thread's.
QN_DEVICE uint32_t pair_address(uint32_t shared, uint32_t pair, uint32_t thread)
{
    return shared + (pair * MULTIPLIERS + thread) * 8;
}

QN_DEVICE void leave_sums(uint32_t shared, const float sums[TILES][SUMS], uint32_t thread)
{
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int j = 0; j < QN_TOKENS / 8; j++)
                asm volatile(
                    "st.shared.v2.f32 [%0], {%1, %2};" ::"r"(pair_address(shared, (2 * m + h) * (QN_TOKENS / 8) + j, thread)),
                    "f"(sums[m][4 * j + 2 * h]), "f"(sums[m][4 * j + 2 * h + 1])
                    : "memory");
}

// All threads of all blocks of the cluster; what they wrote before is seen after.
QN_DEVICE void meet_cluster()
{
    asm volatile("barrier.cluster.arrive;\n"
                 "barrier.cluster.wait;" ::
                     : "memory");
}

QN_DEVICE float2 load_from(uint32_t shared, uint32_t block)
{
    float2 v;
    asm volatile("{\n"
                 ".reg .u32 there;\n"
                 "mapa.shared::cluster.u32 there, %2, %3;\n"
                 "ld.shared::cluster.v2.f32 {%0, %1}, [there];\n"
                 "}\n"
                 : "=f"(v.x), "=f"(v.y)
                 : "r"(shared), "r"(block)
                 : "memory");
    return v;
}

// This block's part of the pairs, summed over the blocks in their order. All loads of a pair are under way at once.
QN_DEVICE void store_part(const qn_matmul_prompt_args &a, uint32_t shared, uint32_t first_tile, uint32_t thread)
{
    constexpr uint32_t groups = QN_TOKENS / 8, pairs = TILES * 2 * groups;
    const uint32_t n = gridDim.z, g = thread % QN_WARP / 4, t = thread % 4;
    for (uint32_t pair = pairs * blockIdx.z / n; pair < pairs * (blockIdx.z + 1) / n; pair++) {
        const uint32_t row = pair / groups, tile = first_tile + row / 2 * 4,
                       token = blockIdx.x * QN_TOKENS + pair % groups * 8 + 2 * t;
        float2 part[8], sum = make_float2(0, 0);
#pragma unroll
        for (uint32_t block = 0; block < 8; block++)
            if (block < n)
                part[block] = load_from(pair_address(shared, pair, thread), block);
#pragma unroll
        for (uint32_t block = 0; block < 8; block++)
            if (block < n) {
                sum.x += part[block].x;
                sum.y += part[block].y;
            }
        if (tile >= a.n_tiles)
            continue;
        const row_out out = find_row(a, tile, g + 8 * (row % 2));
        if (out.at) {
            store_sum(a, out, token, sum.x);
            store_sum(a, out, token + 1, sum.y);
        }
    }
}

#endif

// Of the threads that multiply: sums go to their places, or to where the cluster adds them up.
QN_DEVICE void finish(const qn_matmul_prompt_args &a, bool shares, uint32_t stages, const uint32_t tile[TILES],
                      const float sums[TILES][SUMS])
{
#if __CUDA_ARCH__ >= 900
    if (shares) {
        asm volatile("bar.sync 1, 256;" ::: "memory"); // all of them have read the stages, which are room for sums
        leave_sums(stages, sums, threadIdx.x);
        meet_cluster();
        store_part(a, stages, tile[0], threadIdx.x);
        meet_cluster(); // nobody's shared memory goes while it is read
        return;
    }
#endif
#pragma unroll
    for (int m = 0; m < TILES; m++)
        store_tile(a, tile[m], sums[m], threadIdx.x % QN_WARP);
}

// Of the others.
QN_DEVICE void finish_beside(bool shares)
{
#if __CUDA_ARCH__ >= 900
    if (shares) {
        meet_cluster();
        meet_cluster();
    }
#endif
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#define FLOATS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define FLOATS_16(i) FLOATS_4(i), FLOATS_4(i + 4), FLOATS_4(i + 8), FLOATS_4(i + 12)

// d += a b of 64 rows, 16 columns and QN_TOKENS tokens, begun and not waited for.
QN_DEVICE void multiply_group(float (&d)[SUMS], const uint32_t a[4], uint64_t b)
{
#if QN_TOKENS == 128
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
                 "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
                 "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
                 "%59, %60, %61, %62, %63"
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
                 : FLOATS_16(0), FLOATS_16(16), FLOATS_16(32), FLOATS_16(48)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#elif QN_TOKENS == 64
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

// Brings every step of activations for `n_chunks` chunks into the next free stage.
QN_DEVICE void bring_acts(const qn_matmul_prompt_args &a, uint32_t first_chunk, uint32_t n_chunks, uint32_t stages,
                          uint32_t full, uint32_t empty)
{
    const uint64_t step_bytes = (uint64_t)a.capacity * 128;
    const uint8_t *from = a.acts + blockIdx.x * (uint64_t)STAGE_BYTES + first_chunk * 4 * step_bytes;
    uint32_t stage = 0, phase = 1;
    for (uint32_t step = 0; step < n_chunks * 4; step++) {
        barrier_wait(empty + 8 * stage, phase);
        barrier_expect(full + 8 * stage, STAGE_BYTES);
        copy_bulk(stages + stage * STAGE_BYTES, from + step * step_bytes, STAGE_BYTES, full + 8 * stage);
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
}

// Stages that a group leaves behind, all at once, when the next one is under way.
enum { LEFT_STAGES = GROUP_RUNS > STEP_RUNS ? GROUP_RUNS / STEP_RUNS : 1 };

struct stage_turn {
    uint32_t stage, phase;
};

QN_DEVICE void step_on(stage_turn &turn)
{
    if (++turn.stage == STAGES) {
        turn.stage = 0;
        turn.phase ^= 1;
    }
}

// The matrix unit is given runs by the group, and while it works on one, the next group becomes halves: the fewer tokens, the
// less work a run is, and the more of them there are in a group.
QN_DEVICE void multiply_rows(const weight_source &source, uint32_t n_chunks, float (&sums)[TILES][SUMS], uint32_t stages,
                             uint32_t full, uint32_t empty)
{
    const uint32_t lane = threadIdx.x % QN_WARP;
    unit_weights units[UNITS_AHEAD + 1];
    uint32_t a[2][GROUP_RUNS][TILES][2][4];
    stage_turn next = {};
    // Rows of 128 bytes, eight of them 1024 apart from the next eight, swizzled: the descriptor's fields in the PTX manual.
    const uint64_t descriptor = 1ull << 62 | 64ull << 32 | 1ull << 16;
#pragma unroll
    for (uint32_t i = 0; i < UNITS_AHEAD; i++)
        load_unit(units[i], source, i < source.n_units ? i : source.n_units - 1, lane);
#pragma unroll
    for (int r = 0; r < GROUP_RUNS; r++)
        make_run(a[0][r], units[0], r);
#pragma unroll 1
    for (uint32_t chunk = 0; chunk < n_chunks; chunk++)
#pragma unroll
        for (int first = 0; first < QN_TILE_RUNS; first += GROUP_RUNS) {
            const int turn = first / GROUP_RUNS % 2, after = first + GROUP_RUNS;
            uint32_t at[GROUP_RUNS];
            if (first % UNIT_RUNS == 0) {
                const uint32_t unit = (chunk * QN_TILE_RUNS + first) / UNIT_RUNS + UNITS_AHEAD;
                load_unit(units[UNITS_AHEAD], source, unit < source.n_units ? unit : source.n_units - 1, lane);
            }
#pragma unroll
            for (int r = 0; r < GROUP_RUNS; r++) {
                if ((first + r) % STEP_RUNS == 0)
                    barrier_wait(full + 8 * next.stage, next.phase);
                at[r] = stages + next.stage * STAGE_BYTES + (first + r) % STEP_RUNS * 64;
                if ((first + r) % STEP_RUNS == STEP_RUNS - 1)
                    step_on(next);
            }
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int r = 0; r < GROUP_RUNS; r++)
#pragma unroll
                for (int part = 0; part < 2; part++)
#pragma unroll
                    for (int m = 0; m < TILES; m++)
                        multiply_group(sums[m], a[turn][r][m][part], descriptor | ((at[r] & 0x3ffff) >> 4) + 2 * part);
            asm volatile("wgmma.commit_group.sync.aligned;\n"
                         "wgmma.wait_group.sync.aligned 1;" ::
                             : "memory");
            if (first % STEP_RUNS == 0) // what was read before the group that is under way is done with
#pragma unroll
                for (uint32_t i = 0; i < LEFT_STAGES; i++) {
                    const uint32_t ago = (GROUP_RUNS == 1 ? 1 : 2 * LEFT_STAGES) - i;
                    const uint32_t left = next.stage >= ago ? next.stage - ago : next.stage + STAGES - ago;
                    if (threadIdx.x % 128 == 0 && chunk + first)
                        barrier_arrive(empty + 8 * left);
                }
            if (after % UNIT_RUNS == 0)
#pragma unroll
                for (int i = 0; i < UNITS_AHEAD; i++)
                    units[i] = units[i + 1];
#pragma unroll
            for (int r = 0; r < GROUP_RUNS; r++)
                make_run(a[!turn][r], units[0], (after + r) % UNIT_RUNS);
        }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

#else

// All threads bring a step; the copies of one step are a group.
QN_DEVICE void bring_step(const qn_matmul_prompt_args &a, uint32_t first_chunk, uint32_t n_chunks, uint32_t stages,
                          uint32_t step)
{
    if (step < n_chunks * 4) {
        const uint8_t *from =
            a.acts + blockIdx.x * (uint64_t)STAGE_BYTES + (first_chunk * 4 + step) * (uint64_t)a.capacity * 128;
        for (uint32_t at = 16 * threadIdx.x; at < STAGE_BYTES; at += 16 * QN_PROMPT_THREADS)
            copy_16(stages + step % STAGES * STAGE_BYTES + at, from + at);
    }
    qn_copy_async_commit();
}

// Sixteen tokens' operands for part `part` of run `run` of a step: two of the unit's columns of eight.
QN_DEVICE void load_tokens(uint32_t b[4], const uint8_t *stage, int token, int run, int part, uint32_t lane)
{
    const uint32_t row = token + lane / 16 * 8 + lane % 8, piece = run % STEP_RUNS * 4 + 2 * part + lane / 8 % 2;
    qn_load_matrix_4(b, stage + row * 128 + ((piece ^ row % 8) * 16));
}

#endif

extern "C" __global__ void __launch_bounds__(QN_PROMPT_THREADS, 1)
    qn_matmul_prompt(const __grid_constant__ qn_matmul_prompt_args a)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t group = threadIdx.x / 128, warp = threadIdx.x / QN_WARP % 4, lane = threadIdx.x % QN_WARP;
    const uint32_t stages = qn_shared_address(shared);
    weight_source source;
    uint32_t tile[TILES];
    const bool shares = gridDim.z > 1 && blockIdx.y >= a.n_whole;
    const uint32_t rows = shares ? a.n_whole * (gridDim.z - 1) + blockIdx.y : blockIdx.y * gridDim.z + blockIdx.z;
#pragma unroll
    for (int m = 0; m < TILES; m++) {
        tile[m] = rows * (QN_PROMPT_ROWS / QN_TILE_ROWS) + group % 2 * 8 + 4 * m + warp;
        source.tile[m] = tile[m] < a.n_tiles ? tile[m] : a.n_tiles - 1;
    }
    source.codes = a.weights;
    source.scales = a.weights + (uint64_t)a.n_chunks * a.n_tiles * CODE_BYTES;
    source.n_tiles = a.n_tiles;
    source.zero = a.n_chunks >> 31;
    const uint32_t first_chunk = shares ? a.n_chunks * blockIdx.z / gridDim.z : 0;
    const uint32_t n_chunks = (shares ? a.n_chunks * (blockIdx.z + 1) / gridDim.z : a.n_chunks) - first_chunk;
    source.first_unit = first_chunk * (QN_TILE_RUNS / UNIT_RUNS);
    source.n_units = n_chunks * (QN_TILE_RUNS / UNIT_RUNS);
    float sums[TILES][SUMS] = {};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    const uint32_t full = stages + STAGES * STAGE_BYTES, empty = full + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < STAGES; i++) {
            barrier_init(full + 8 * i, 1);
            barrier_init(empty + 8 * i, 2);
        }
        barrier_init_done();
    }
    __syncthreads();
    qn_let_next_begin();
    qn_wait_for_previous();
    if (group == 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x % 128 == 0)
            bring_acts(a, first_chunk, n_chunks, stages, full, empty);
        finish_beside(shares);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        multiply_rows(source, n_chunks, sums, stages, full, empty);
        finish(a, shares, stages, tile, sums);
    }
#else
    unit_weights weights;
    qn_let_next_begin();
    qn_wait_for_previous();
    for (uint32_t i = 0; i < STAGES - 1; i++)
        bring_step(a, first_chunk, n_chunks, stages, i);
#pragma unroll 1
    for (uint32_t chunk = 0; chunk < n_chunks; chunk++)
#pragma unroll
        for (int run = 0; run < QN_TILE_RUNS; run++) {
            const uint32_t step = (chunk * QN_TILE_RUNS + run) / STEP_RUNS;
            if (run % STEP_RUNS == 0) {
                qn_copy_async_wait<STAGES - 2>();
                __syncthreads(); // the step is there, and the stage before it is free
                bring_step(a, first_chunk, n_chunks, stages, step + STAGES - 1);
            }
            if (group == 2)
                continue;
            uint32_t x[TILES][2][4];
            if (run % UNIT_RUNS == 0)
                load_unit(weights, source, (chunk * QN_TILE_RUNS + run) / UNIT_RUNS, lane);
            make_run(x, weights, run % UNIT_RUNS);
            const uint8_t *stage = shared + step % STAGES * STAGE_BYTES;
#pragma unroll
            for (int part = 0; part < 2; part++)
#pragma unroll
                for (int token = 0; token < QN_TOKENS; token += 16) {
                    uint32_t b[4];
                    load_tokens(b, stage, token, run, part, lane);
#pragma unroll
                    for (int m = 0; m < TILES; m++) {
                        qn_mma_m16n8k16_f16(sums[m] + token / 2, x[m][part], b);
                        qn_mma_m16n8k16_f16(sums[m] + token / 2 + 4, x[m][part], b + 2);
                    }
                }
        }
    if (group != 2)
        finish(a, shares, stages, tile, sums);
    else
        finish_beside(shares);
#endif
}
