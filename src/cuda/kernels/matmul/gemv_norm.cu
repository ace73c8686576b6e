// Few rows of fp16 weights by the RMS norm of rows of floats. A block has one k-tile of some tiles, a warp one group of
// 32 columns, whose weights are in registers before the previous kernel ends; the last block of a token and tiles to
// store its partials adds the partials of all k-tiles. Values become fp16 with a power of two as their scale for a
// token and group; the norm's division comes last. Results of a token do not depend on the number of tokens.
#include "cuda/kernels/matmul/tiles.cuh"

enum {
    THREADS = QN_GEMV_NORM_THREADS,
    WARPS = THREADS / QN_WARP_SIZE,
    TILES = QN_GEMV_NORM_TILES,
    LANES = TILES * QN_WARP_SIZE, // of the accumulators of a block, four a lane
    QUARTERS = THREADS / LANES    // of the k-tiles; LANES threads add the partials of each
};
static_assert(WARPS == QN_TILE_GROUPS, "a warp has a group");
static_assert(4 * LANES + QN_MMA_N == QN_GEMV_NORM_PARTIALS, "accumulators, and sums of squares of tokens");

struct shared_memory {
    float4 sums[WARPS][LANES];
    float squares[WARPS][QN_MMA_N];
    float rms[QN_MMA_N]; // 1 / RMS of each token
    uint32_t arrived;
};

QN_DEVICE float4 load_4(const float *x, uint32_t k, uint32_t n)
{
    return k < n ? *(const float4 *)(x + k) : make_float4(0, 0, 0, 0);
}

QN_DEVICE float4 multiply(float4 x, float4 y)
{
    return make_float4(x.x * y.x, x.y * y.y, x.z * y.z, x.w * y.w);
}

QN_DEVICE float4 add(float4 x, float4 y)
{
    return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}

QN_DEVICE float square(float4 x)
{
    return x.x * x.x + x.y * x.y + (x.z * x.z + x.w * x.w);
}

QN_DEVICE uint32_t amax_of(float4 x)
{
    const float4 v = make_float4(fabsf(x.x), fabsf(x.y), fabsf(x.z), fabsf(x.w));
    return max(max(__float_as_uint(v.x), __float_as_uint(v.y)), max(__float_as_uint(v.z), __float_as_uint(v.w)));
}

// A lane's weights of a group: fragments 2r and 2r + 1 of each tile, and of the norm, columns 4t on of both halves.
struct group_weights {
    uint4 fragments[TILES][2];
    float4 norm[2];
};

QN_DEVICE group_weights load_weights(const qn_matmul_gemv_norm_args &a, uint32_t k)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, warp = threadIdx.x / QN_WARP_SIZE;
    group_weights w;
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        const uint32_t tile = blockIdx.y * TILES + i;
        const uint4 *from = (const uint4 *)a.weights +
                            (((uint64_t)blockIdx.x * a.n_tiles + tile) * 2 * QN_TILE_GROUPS + 2 * warp) * QN_WARP_SIZE + lane;
#pragma unroll
        for (int p = 0; p < 2; p++)
            w.fragments[i][p] = tile < a.n_tiles ? __ldg(from + p * QN_WARP_SIZE) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int h = 0; h < 2; h++)
        w.norm[h] = load_4(a.norm, k + 16 * h, a.n_cols);
    return w;
}

// The products of a group by the tokens of an octet, and their sums of squares, to shared memory.
QN_DEVICE void multiply_group(const qn_matmul_gemv_norm_args &a, const group_weights &w, uint32_t octet, uint32_t k,
                              shared_memory &shared)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, warp = threadIdx.x / QN_WARP_SIZE, token = octet * QN_MMA_N + lane / 4;
    const uint32_t n = token < a.n_tokens ? a.n_cols : 0;
    const float *row = a.x + (uint64_t)token * a.stride;
    const float4 x[2] = { load_4(row, k, n), load_4(row, k + 16, n) };
    const float4 v[2] = { multiply(x[0], w.norm[0]), multiply(x[1], w.norm[1]) };
    const float squares = qn_lanes_sum<1, 4>(square(x[0]) + square(x[1]));
    uint32_t amax = max(amax_of(v[0]), amax_of(v[1]));
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2)
        amax = max(amax, __shfl_xor_sync(QN_FULL_MASK, amax, distance));
    // The power of two above amax, limited so that its inverse is a normal float.
    const bool finite = amax < 0x7f800000u;
    const uint32_t exponent = min(amax >> 23, 252u);
    const float scale = finite ? __uint_as_float((exponent + 1) << 23) : QN_NAN,
                inverse = __uint_as_float((253 - exponent) << 23);
    uint32_t b[2][2]; // by p, then h
#pragma unroll
    for (int h = 0; h < 2; h++) {
        b[0][h] = finite ? qn_f32_to_f16x2(v[h].x * inverse, v[h].z * inverse) : 0;
        b[1][h] = finite ? qn_f32_to_f16x2(v[h].y * inverse, v[h].w * inverse) : 0;
    }
    // Of tokens 2t and 2t + 1, whose accumulators this lane has.
    const float first = __shfl_sync(QN_FULL_MASK, scale, lane % 4 * 8),
                second = __shfl_sync(QN_FULL_MASK, scale, lane % 4 * 8 + 4);
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        float acc[4] = {};
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const uint4 &f = w.fragments[i][p];
            const uint32_t words[4] = { f.x, f.y, f.z, f.w };
            qn_mma_m16n8k16_f16(acc, words, b[p]);
        }
        shared.sums[warp][i * QN_WARP_SIZE + lane] =
            make_float4(acc[0] * first, acc[1] * second, acc[2] * first, acc[3] * second);
    }
    if (lane % 4 == 0)
        shared.squares[warp][lane / 4] = squares;
}

QN_DEVICE float *partials_of(const qn_matmul_gemv_norm_args &a, uint32_t octet, uint32_t k_tile)
{
    return a.partials + (((uint64_t)octet * gridDim.y + blockIdx.y) * a.n_k_tiles + k_tile) * QN_GEMV_NORM_PARTIALS;
}

// Adds the sums of all groups and stores them. Returns true if the sums of all other k-tiles have been stored.
QN_DEVICE bool store_partials(const qn_matmul_gemv_norm_args &a, uint32_t octet, shared_memory &shared)
{
    float *to = partials_of(a, octet, blockIdx.x);
    if (threadIdx.x < LANES) {
        float4 sum = shared.sums[0][threadIdx.x];
#pragma unroll
        for (int i = 1; i < WARPS; i++)
            sum = add(sum, shared.sums[i][threadIdx.x]);
        __stcg((float4 *)to + threadIdx.x, sum);
    } else if (threadIdx.x < LANES + QN_MMA_N) {
        const uint32_t token = threadIdx.x - LANES;
        float sum = 0;
#pragma unroll
        for (int i = 0; i < WARPS; i++)
            sum += shared.squares[i][token];
        __stcg(to + 4 * LANES + token, sum);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t *counter = a.counters + octet * gridDim.y + blockIdx.y;
        shared.arrived = arrive(counter);
        if (shared.arrived == a.n_k_tiles - 1)
            *counter = 0; // for the next launch
    }
    __syncthreads();
    return shared.arrived == a.n_k_tiles - 1;
}

QN_DEVICE void add_k_tiles(const qn_matmul_gemv_norm_args &a, uint32_t octet, shared_memory &shared)
{
    const uint32_t at = threadIdx.x % LANES, quarter = threadIdx.x / LANES;
    float4 sum = make_float4(0, 0, 0, 0);
    float squares = 0;
#pragma unroll 8
    for (uint32_t k_tile = quarter; k_tile < a.n_k_tiles; k_tile += QUARTERS)
        sum = add(sum, __ldcg((const float4 *)partials_of(a, octet, k_tile) + at));
    shared.sums[quarter][at] = sum;
    if (threadIdx.x < 4 * QN_MMA_N) { // a warp, four lanes a token
#pragma unroll 8
        for (uint32_t k_tile = threadIdx.x % 4; k_tile < a.n_k_tiles; k_tile += 4)
            squares += __ldcg(partials_of(a, octet, k_tile) + 4 * LANES + threadIdx.x / 4);
        squares = qn_lanes_sum<1, 4>(squares);
        if (threadIdx.x % 4 == 0)
            shared.rms[threadIdx.x / 4] = 1.0f / sqrtf(squares / (float)a.n_cols + a.eps);
    }
    __syncthreads();
}

QN_DEVICE void store_results(const qn_matmul_gemv_norm_args &a, uint32_t octet, const shared_memory &shared)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, tile = blockIdx.y * TILES + threadIdx.x / QN_WARP_SIZE;
    if (threadIdx.x >= LANES || tile >= a.n_tiles)
        return;
    float4 sum = shared.sums[0][threadIdx.x];
#pragma unroll
    for (int i = 1; i < QUARTERS; i++)
        sum = add(sum, shared.sums[i][threadIdx.x]);
    const float values[4] = { sum.x, sum.y, sum.z, sum.w };
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const output_row<float> out = find_output_row<float>(a, tile, lane / 4 + 8 * h);
        if (!out.at)
            continue;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const uint32_t token = lane % 4 * 2 + e;
            store_value(a, out, octet * QN_MMA_N + token, values[2 * h + e] * shared.rms[token]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    qn_matmul_gemv_norm(const __grid_constant__ qn_matmul_gemv_norm_args a)
{
    __shared__ shared_memory shared;
    const uint32_t k = blockIdx.x * QN_TILE_COLS + threadIdx.x / QN_WARP_SIZE * 32 + threadIdx.x % 4 * 4;
    qn_pdl_trigger();
    const group_weights w = load_weights(a, k);
    qn_pdl_wait();
    for (uint32_t octet = blockIdx.z; octet * QN_MMA_N < a.n_tokens; octet += gridDim.z) {
        multiply_group(a, w, octet, k, shared);
        __syncthreads();
        if (store_partials(a, octet, shared)) {
            add_k_tiles(a, octet, shared);
            store_results(a, octet, shared);
        }
        __syncthreads(); // shared memory has been read
    }
}
