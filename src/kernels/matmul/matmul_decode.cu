// Products of few tokens: weights stream through shared memory, a few steps ahead of each warp, and the matrix units have time
// to spare. Before the activations are there (the kernel ahead may still be running) the first weights are already on their
// way.
//
// Int8: an operand of the matrix unit is `word & mask`, with no bit shifted down: all codes of a run have the same mask, so
// that its sum is off by a power of two, which goes into the run's scale. With one token the eight columns of the unit are the
// eight runs of a chunk: of a run's operand all columns but one are zeros, so that a tile's chunk is one chain of eight
// products whose columns are the sums of its runs. With several tokens the columns are tokens. Sums begin at the bits of 1.5 *
// 2^23, which makes them floats by one subtraction.
#include "kernels/matmul/tiles.cuh"

#define ROW (QN_FORM == QN_ACTS_ROW)
#define HALVES (QN_FORM == QN_ACTS_HALVES)
#if !HALVES
#include "kernels/matmul/one_row.cuh"
#endif

// Who copies: with int8 each thread what its warp needs, which was measured to be faster than the copy engine (a 27B layer in
// 39 instead of 41 us); halves, whose steps are several times larger, leave it to the engine.
#define BULK (__CUDA_ARCH__ >= 900 && HALVES)

enum {
    GROUP = QN_GROUP, /* tiles of a step */
    CODE_BYTES = QN_BITS * QN_TILE_SET,
    SCALE_BYTES = QN_BITS == 16 ? 0 : QN_SCALES * (1 + QN_OFFSET) * 2 * QN_TILE_ROWS,
    STEP_BYTES = GROUP * (CODE_BYTES + SCALE_BYTES),
    RUNS_A_SCALE = QN_TILE_RUNS / (QN_BITS == 16 ? 1 : QN_SCALES),
    COLUMNS = ROW ? 1 : QN_ACTS_GROUP,
    SUMS = ROW ? 2 : 4 /* a lane's of a tile */
};

// ---- Weights on their way ----

// The steps of a warp, in order: for each of its groups of tiles, each of its chunks. Of the step that is asked for next:
struct weight_stream {
    const uint8_t *codes, *scales;
    uint32_t chunk, n_chunks;
    uint32_t tile, tile_step, n_tiles;
    uint64_t chunk_tiles, back_tiles; // tiles on to the next chunk, and from the last one back to the next group
    uint32_t shared, barriers;        // addresses of QN_STAGES stages
};

// Called by the whole warp.
QN_DEVICE void ask_for_step(weight_stream &s, uint32_t stage)
{
    if (s.tile < s.n_tiles) {
        const uint32_t left = s.n_tiles - s.tile, count = left < GROUP ? left : GROUP;
        const uint32_t to = s.shared + stage * STEP_BYTES;
#if BULK
        if (one_of_warp()) {
            const uint32_t barrier = s.barriers + 8 * stage;
            barrier_expect(barrier, count * (CODE_BYTES + SCALE_BYTES));
            copy_bulk(to, s.codes, count * CODE_BYTES, barrier);
            if (SCALE_BYTES)
                copy_bulk(to + GROUP * CODE_BYTES, s.scales, count * SCALE_BYTES, barrier);
        }
#else
        const uint32_t first = 16 * (threadIdx.x % QN_WARP);
#pragma unroll
        for (uint32_t at = 0; at < GROUP * CODE_BYTES; at += 16 * QN_WARP)
            if (at < count * CODE_BYTES)
                copy_16(to + at + first, s.codes + at + first);
#if QN_BITS != 16 // halves have no scales
#pragma unroll
        for (uint32_t at = 0; at < GROUP * SCALE_BYTES; at += 16 * QN_WARP)
            if (at + first < count * SCALE_BYTES)
                copy_16(to + GROUP * CODE_BYTES + at + first, s.scales + at + first);
#endif
#endif
        const bool last = ++s.chunk == s.n_chunks;
        const uint64_t tiles = last ? s.back_tiles : s.chunk_tiles; // backwards as well, modulo 2^64
        s.codes += tiles * CODE_BYTES;
        s.scales += tiles * SCALE_BYTES;
        if (last) {
            s.chunk = 0;
            s.tile += s.tile_step;
        }
    }
#if !BULK
    qn_copy_async_commit(); // one group a step, also when there is none left: the count stays right
#endif
}

QN_DEVICE void wait_for_step(const weight_stream &s, uint32_t stage, uint32_t phase)
{
#if BULK
    barrier_wait(s.barriers + 8 * stage, phase);
#else
    qn_copy_async_wait<QN_STAGES - 1>();
    __syncwarp();
#endif
}

// ---- One token in int8 ----

#if ROW

QN_DEVICE void row_step(float (*sums)[SUMS], uint32_t step, uint32_t count, const row_acts &x, uint32_t lane)
{
    const uint32_t g = lane / 4, t = lane % 4;
    const uint32_t codes = step + 16 * lane, scales = step + GROUP * CODE_BYTES + 2 * t / RUNS_A_SCALE * 32 + 4 * g;
#pragma unroll
    for (int m = 0; m < GROUP; m += 2) {
        if (m + 1 < GROUP && m + 1 < count)
            row_product<2>(sums + m, codes + m * CODE_BYTES, scales + m * SCALE_BYTES, x);
        else if (m < count)
            row_product<1>(sums + m, codes + m * CODE_BYTES, scales + m * SCALE_BYTES, x);
    }
}

#endif

// ---- Several tokens in int8: they are the columns ----

#if QN_FORM == QN_ACTS_COLUMNS

struct column_acts {
    uint4 words[4];                // of runs 2p, 2p+1: the lane's token
    float scales[QN_TILE_RUNS][2]; // of tokens 2t, 2t+1
    float less[4][2];              // of pairs of runs
};

QN_DEVICE void load_column_acts(column_acts &x, const uint8_t *chunk, uint32_t lane)
{
    const uint32_t t = lane % 4;
#pragma unroll
    for (int p = 0; p < 4; p++) {
        x.words[p] = *(const uint4 *)(chunk + p * QN_TILE_SET + 16 * lane);
        const float4 s = *(const float4 *)(chunk + 4 * QN_TILE_SET + 64 * p + 16 * t);
        const float2 less = *(const float2 *)(chunk + 4 * QN_TILE_SET + 256 + 32 * p + 8 * t);
        const int place = QN_BITS == 1 ? 2 * p : 4 * (p % 2); // of run 2p in a byte; a bit counts double, since it is +-1
        const float even = (QN_BITS == 1 ? 2.0f : 1.0f) / (1 << place), odd = even * (QN_BITS == 1 ? 0.5f : 0.25f);
        x.scales[2 * p][0] = s.x * even, x.scales[2 * p][1] = s.y * even;
        x.scales[2 * p + 1][0] = s.z * odd, x.scales[2 * p + 1][1] = s.w * odd;
        x.less[p][0] = less.x, x.less[p][1] = less.y;
    }
}

QN_DEVICE void column_product(float sums[SUMS], uint32_t codes, uint32_t scales, const column_acts &x)
{
    const int first_sum[4] = { 0x4b400000, 0x4b400000, 0x4b400000, 0x4b400000 };
    uint4 sets[QN_BITS];
#pragma unroll
    for (int q = 0; q < QN_BITS; q++)
        sets[q] = load_shared_16(codes + q * QN_TILE_SET);
#pragma unroll
    for (int first = 0; first < QN_TILE_RUNS; first += RUNS_A_SCALE) {
        const uint32_t scale = load_shared_4(scales + first / RUNS_A_SCALE * 32);
        float block[4] = {};
#pragma unroll
        for (int run = first; run < first + RUNS_A_SCALE; run++) {
            uint32_t a[4];
            int c[4];
            mask_words(a, sets, run);
            const uint4 w = x.words[run / 2];
            multiply_u8_s8(c, a, run % 2 ? w.z : w.x, run % 2 ? w.w : w.y, first_sum);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float less = run % 2 == 0 ? x.less[run / 2][i % 2] : 0.0f;
                block[i] =
                    fmaf(__int_as_float(c[i]) - 12582912.0f, x.scales[run][i % 2], run == first ? less : block[i] + less);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            sums[i] = fmaf(qn_half_to_float((uint16_t)(i / 2 ? scale >> 16 : scale)), block[i], sums[i]);
    }
}

#endif

// ---- Halves ----

#if HALVES

// A run's words for the two operands, of token g.
QN_DEVICE void load_half_acts(uint32_t b[4], const uint8_t *acts, uint64_t step_bytes, int run, uint32_t lane)
{
    const uint32_t g = lane / 4, t = lane % 4;
    const uint8_t *row = acts + run / 2 * step_bytes + 128 * g + 4 * t;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        b[i] = *(const uint32_t *)(row + ((run % 2 * 4 + i) ^ g) * 16);
}

QN_DEVICE void half_step(float (*sums)[SUMS], uint32_t step, uint32_t count, const uint8_t *acts, uint64_t step_bytes,
                         uint32_t lane)
{
    const uint32_t g = lane / 4, codes = step + 16 * lane, scales = step + GROUP * CODE_BYTES + 4 * g;
    uint4 sets[GROUP];
#pragma unroll
    for (int run = 0; run < QN_TILE_RUNS; run++) {
        uint32_t b[4];
        load_half_acts(b, acts, step_bytes, run, lane);
#pragma unroll
        for (int m = 0; m < GROUP; m++) {
            if (m >= count)
                break;
            run_scale scale = {};
            if (QN_BITS != 16)
                scale.scale = load_shared_4(scales + m * SCALE_BYTES + run / RUNS_A_SCALE * 32);
            if (QN_OFFSET)
                scale.offset = load_shared_4(scales + m * SCALE_BYTES + (QN_SCALES + run / RUNS_A_SCALE) * 32);
#pragma unroll
            for (int part = 0; part < 2; part++) {
                if (QN_BITS == 16 || (part == 0 && run % (8 / (QN_BITS == 16 ? 8 : QN_BITS)) == 0))
                    sets[m] = load_shared_16(codes + m * CODE_BYTES +
                                             (set_of_run<QN_BITS>(run) + (QN_BITS == 16 ? part : 0)) * QN_TILE_SET);
                uint32_t a[4];
                halves_of_run<QN_BITS, QN_OFFSET>(a, sets[m], run, part, scale);
                qn_mma_m16n8k16_f16(sums[m], a, b + 2 * part);
            }
        }
    }
}

#endif

// ---- Sums of warps ----

// A group's sums from the registers of a warp to its place, [tile][16 rows][COLUMNS].
QN_DEVICE void put_sums(float *to, float (*sums)[SUMS], uint32_t count, uint32_t lane)
{
#if ROW
    put_row_sums<GROUP>(to, sums, count, lane);
#else
    const uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < GROUP; m++)
        if (m < count)
#pragma unroll
            for (int h = 0; h < 2; h++)
                *(float2 *)(to + (m * QN_TILE_ROWS + g + 8 * h) * COLUMNS + 2 * t) =
                    make_float2(sums[m][2 * h], sums[m][2 * h + 1]);
#endif
}

// Tiles [first, last) of the block from all warps' places to where they go.
QN_DEVICE void finish_tiles(const qn_matmul_decode_args &a, const float *sums, uint32_t first_tile, uint32_t first,
                            uint32_t last)
{
    const uint32_t group = blockIdx.y * QN_ACTS_GROUP;
    for (uint32_t i = threadIdx.x; i < (last - first) * QN_TILE_ROWS * COLUMNS; i += blockDim.x) {
        // Neighbouring threads take neighbouring rows, which is how they lie in memory.
        const uint32_t row = i % QN_TILE_ROWS, column = i / QN_TILE_ROWS % COLUMNS, tile = i / (QN_TILE_ROWS * COLUMNS);
        const float *from = sums + (tile * QN_TILE_ROWS + row) * COLUMNS + column;
        const row_out out = find_row(a, first_tile + first + tile, row);
        if (!out.at || group + column >= a.n_tokens)
            continue;
        float *to = out.at + (group + column) * out.stride, sum = 0;
        const float before = out.add ? *to : 0;
#pragma unroll 4
        for (uint32_t w = 0; w < a.n_chunk_warps; w++)
            sum += from[w * a.batch * QN_TILE_ROWS * COLUMNS];
#if HALVES
        sum *= a.token_scale[group + column];
#endif
        *to = before + sum;
    }
}

extern "C" __global__ void __launch_bounds__(QN_MATMUL_WARPS *QN_WARP, 1)
    qn_matmul_decode(const __grid_constant__ qn_matmul_decode_args a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t n_warps = blockDim.x / QN_WARP, warp = threadIdx.x / QN_WARP, lane = threadIdx.x % QN_WARP;
    const uint32_t first_tile = (uint32_t)((uint64_t)a.n_tiles * blockIdx.x / gridDim.x);
    const uint32_t n_tiles = (uint32_t)((uint64_t)a.n_tiles * (blockIdx.x + 1) / gridDim.x) - first_tile;
    const uint32_t chunk_warp = warp % a.n_chunk_warps, tile_warp = warp / a.n_chunk_warps;
    const uint32_t n_chunks = (a.n_chunks - 1 - chunk_warp) / a.n_chunk_warps + 1;
    const uint32_t tile_step = n_warps / a.n_chunk_warps * GROUP;

    weight_stream stream;
    const uint64_t first = (uint64_t)chunk_warp * a.n_tiles + first_tile + tile_warp * GROUP;
    stream.codes = a.weights + first * CODE_BYTES;
    stream.scales = a.weights + (uint64_t)a.n_chunks * a.n_tiles * CODE_BYTES + first * SCALE_BYTES;
    stream.chunk_tiles = (uint64_t)a.n_chunk_warps * a.n_tiles;
    stream.back_tiles = tile_step - (n_chunks - 1) * stream.chunk_tiles;
    stream.chunk = 0;
    stream.n_chunks = n_chunks;
    stream.tile = tile_warp * GROUP;
    stream.tile_step = tile_step;
    stream.n_tiles = n_tiles;
    stream.shared = qn_shared_address(shared) + warp * QN_STAGES * STEP_BYTES;

    // Shared memory: stages, [2][chunk warps][batch] tiles of sums, activations of one token, barriers.
    float *sums_here = (float *)(shared + n_warps * QN_STAGES * STEP_BYTES);
    const uint32_t sums_count = a.n_chunk_warps * a.batch * QN_TILE_ROWS * COLUMNS;
    uint8_t *acts_here = (uint8_t *)(sums_here + 2 * sums_count);
    const uint32_t acts_bytes = ROW ? a.n_chunks * QN_ACTS_ROW_CHUNK : 0;
    stream.barriers = qn_shared_address(acts_here + acts_bytes) + warp * QN_STAGES * 8;
#if BULK
    if (one_of_warp()) {
        for (uint32_t i = 0; i < QN_STAGES; i++)
            barrier_init(stream.barriers + 8 * i, 1);
        barrier_init_done();
    }
    __syncwarp();
#endif
#pragma unroll 1
    for (uint32_t i = 0; i < QN_STAGES; i++)
        ask_for_step(stream, i);
    qn_let_next_begin();
    qn_wait_for_previous();

#if ROW
    // Each warp brings the chunks that it needs itself: those of its number.
    for (uint32_t c = tile_warp; c < n_chunks; c += tile_step / GROUP) {
        const uint32_t chunk = chunk_warp + c * a.n_chunk_warps;
        for (uint32_t at = 16 * lane; at < QN_ACTS_ROW_CHUNK; at += 16 * QN_WARP)
            qn_copy_async_16(acts_here + chunk * QN_ACTS_ROW_CHUNK + at, a.acts + chunk * QN_ACTS_ROW_CHUNK + at);
    }
    qn_copy_async_commit();
    qn_copy_async_wait<0>();
    if (n_warps == a.n_chunk_warps)
        __syncwarp();
    else
        __syncthreads();
    row_acts x = {};
    const uint32_t acts_address = qn_shared_address(acts_here) + chunk_warp * QN_ACTS_ROW_CHUNK;
#elif HALVES
    const uint64_t step_bytes = (uint64_t)a.capacity * 128;
    const uint8_t *acts = a.acts + blockIdx.y * 1024 + chunk_warp * 4 * step_bytes;
#else
    const uint8_t *acts = a.acts + ((uint64_t)blockIdx.y * a.n_chunks + chunk_warp) * QN_ACTS_COLUMNS_CHUNK;
    column_acts x;
#endif
    uint32_t stage = 0, phase = 0;
#if !HALVES
    bool loaded = false;
#endif
    float *sums_to = sums_here;
    for (uint32_t first_of_batch = 0; first_of_batch < n_tiles; first_of_batch += a.batch) {
        const uint32_t end = first_of_batch + a.batch < n_tiles ? first_of_batch + a.batch : n_tiles;
        for (uint32_t tile = first_of_batch + tile_warp * GROUP; tile < end; tile += tile_step) {
            const uint32_t count = n_tiles - tile < GROUP ? n_tiles - tile : GROUP;
            float sums[GROUP][SUMS] = {};
            for (uint32_t c = 0; c < n_chunks; c++) {
#if ROW
                if (!loaded)
                    load_row_acts(x, acts_address + c * a.n_chunk_warps * QN_ACTS_ROW_CHUNK, lane);
                loaded = n_chunks == 1; // and stays
#elif !HALVES
                if (!loaded)
                    load_column_acts(x, acts + c * a.n_chunk_warps * QN_ACTS_COLUMNS_CHUNK, lane);
                loaded = n_chunks == 1;
#endif
                wait_for_step(stream, stage, phase);
                const uint32_t step = stream.shared + stage * STEP_BYTES;
#if ROW
                row_step(sums, step, count, x, lane);
#elif HALVES
                half_step(sums, step, count, acts + c * a.n_chunk_warps * 4 * step_bytes, step_bytes, lane);
#else
#pragma unroll
                for (int m = 0; m < GROUP; m++)
                    if (m < count)
                        column_product(sums[m], step + 16 * lane + m * CODE_BYTES,
                                       step + GROUP * CODE_BYTES + m * SCALE_BYTES + lane / 4 * 4, x);
#endif
                __syncwarp();
                ask_for_step(stream, stage);
                if (++stage == QN_STAGES) {
                    stage = 0;
                    phase ^= 1;
                }
            }
            put_sums(sums_to + (chunk_warp * a.batch + tile - first_of_batch) * QN_TILE_ROWS * COLUMNS, sums, count, lane);
        }
        __syncthreads();
        finish_tiles(a, sums_to, first_tile, first_of_batch, end);
        sums_to = sums_to == sums_here ? sums_here + sums_count : sums_here; // the next sums do not wait for these to be read
    }
}
