// What gemm_few.cu, which includes this file, does with the sums of a row block: stores them, or computes the activations of
// the next matmul from them: adds them to the residual stream and multiplies by the weight of its RMS norm, or applies SwiGLU,
// and quantises. From equal sums, values and their sums of squares have the bits of separate launches (quantize_acts.cu).
#ifndef QN_KERNELS_MATMUL_GEMM_FEW_OUTPUTS_CUH
#define QN_KERNELS_MATMUL_GEMM_FEW_OUTPUTS_CUH

enum {
    WARPS = CONSUMER_THREADS / QN_WARP_SIZE,
    HALF_WARPS = QN_ACTS_HILO_COLS / QN_TILE_ROWS, /* whose rows are the 128 columns of a scale of the next activations */
    HALF_THREADS = HALF_WARPS * QN_WARP_SIZE
};

// Shared memory, after the stages of activations.
struct output_memory {
    float factors[QN_TILE_N]; // of tokens: the results are the sums times these
    uint64_t factors_ready;   // mbarrier, sm_90a only
    uint32_t arrived, unused; // arrived: of the block
    uint32_t amax[WARPS][QN_TILE_N];
    float sumsq[WARPS][QN_TILE_N];
    float4 up[SUMS / 4][HALF_THREADS];
};
static_assert(sizeof(output_memory) == QN_FEW_OUTPUT_BYTES(QN_TILE_N), "");

extern __shared__ __align__(1024) uint8_t shared[];

QN_DEVICE output_memory &outputs()
{
    return *(output_memory *)(shared + ACTS_BYTES);
}

QN_DEVICE void consumer_barrier()
{
    asm volatile("bar.sync 1, %0;" ::"r"((uint32_t)CONSUMER_THREADS) : "memory");
}

// 1 / RMS of the row of activations, if there was a norm; the sums of squares are added in the order of the columns.
QN_DEVICE void compute_factor(const qn_matmul_few_args &a, uint32_t token)
{
    const float *sumsq = a.sumsq + blockIdx.y * QN_TILE_N + token;
    float sum = 0;
#pragma unroll 8
    for (uint32_t block = 0; a.sumsq && block < UNIT_STEPS * a.n_k_tiles; block++)
        sum += sumsq[(uint64_t)block * a.capacity];
    outputs().factors[token] = CODE_FACTOR * (a.sumsq ? 1.0f / sqrtf(sum / (float)a.n_cols + a.eps) : 1.0f);
}

// ---- A lane's sums: element 4 i + 2 h + e is of row g + 8 h of its warp's tile, and of token 8 i + 2 t + e ----

QN_DEVICE uint32_t warp_tile()
{
    return threadIdx.x / QN_WARP_SIZE;
}

QN_DEVICE uint32_t lane_row(int h)
{
    return threadIdx.x % QN_WARP_SIZE / 4 + 8 * h;
}

// In the block's tokens; in all.
QN_DEVICE uint32_t lane_token(int octet, int e)
{
    return 8 * octet + threadIdx.x % 4 * 2 + e;
}

QN_DEVICE uint32_t token_of(int octet, int e)
{
    return blockIdx.y * QN_TILE_N + lane_token(octet, e);
}

// The result of sums[i], rounded before anything is added to it.
QN_DEVICE float result_of(const float (&sums)[SUMS], int i)
{
    return __fmul_rn(outputs().factors[lane_token(i / 4, i % 2)], sums[i]);
}

template <class type> QN_DEVICE void store_sums(const qn_matmul_few_args &a, uint32_t row_block, const float (&sums)[SUMS])
{
    const uint32_t tile = row_block * BLOCK_TILES + warp_tile();
    if (tile >= a.n_tiles)
        return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const output_row<type> out = find_output_row<type>(a, tile, lane_row(h));
        if (!out.at)
            continue;
#pragma unroll
        for (int octet = 0; octet < QN_TILE_N / 8; octet++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                store_value(a, out, token_of(octet, e), result_of(sums, 4 * octet + 2 * h + e));
    }
}

// ---- The next activations ----

// The amax of a warp's rows of each token.
QN_DEVICE void store_amax(const float (&values)[SUMS])
{
#pragma unroll
    for (int i = 0; i < SUMS / 2; i++) { // tokens
        uint32_t amax = max(MAGNITUDE(values[i / 2 * 4 + i % 2]), MAGNITUDE(values[i / 2 * 4 + i % 2 + 2]));
#pragma unroll
        for (int distance = 4; distance < QN_WARP_SIZE; distance *= 2)
            amax = max(amax, __shfl_xor_sync(QN_FULL_MASK, amax, distance));
        if (threadIdx.x % QN_WARP_SIZE < 4)
            outputs().amax[warp_tile()][lane_token(i / 2, i % 2)] = amax;
    }
}

// Transposes a word of four bytes in each of four lanes, 4 apart: byte i of lane k becomes byte k of lane i.
QN_DEVICE uint32_t transpose_bytes(uint32_t word)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE / 4;
    word = __byte_perm(word, __shfl_xor_sync(QN_FULL_MASK, word, 4), lane % 2 ? 0x3715 : 0x6240);
    return __byte_perm(word, __shfl_xor_sync(QN_FULL_MASK, word, 8), lane / 2 % 2 ? 0x3276 : 0x5410);
}

// Quantises the values of HALF_WARPS warps, columns of block `block` of the next activations, by their amax in shared memory.
// n_tokens: 0 for warps that have none to store.
QN_DEVICE void quantize_values(const qn_matmul_few_args &a, uint32_t block, uint32_t n_tokens,
                               const float (&values)[SUMS])
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, first_warp = warp_tile() / HALF_WARPS * HALF_WARPS,
                   in_block = warp_tile() % HALF_WARPS;
    // After the transposition a lane has four rows of one token of each octet.
    const uint32_t j = lane / 4 % 4, row = j / 2 * 8 + lane / 16 * 4;
#pragma unroll
    for (int octet = 0; octet < QN_TILE_N / 8; octet++) {
        hilo_factors f[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            uint32_t amax = 0;
#pragma unroll
            for (int warp = 0; warp < HALF_WARPS; warp++)
                amax = max(amax, outputs().amax[first_warp + warp][lane_token(octet, e)]);
            f[e] = hilo_factors_of(amax);
            if (in_block == 0 && lane < 4 && token_of(octet, e) < n_tokens)
                a.next.scale[(uint64_t)block * a.next.capacity + token_of(octet, e)] = f[e].scale;
        }
        const float inverse[4] = { f[0].inverse, f[1].inverse, f[0].inverse, f[1].inverse };
        const uint2 words = hilo_words(values + 4 * octet, inverse);
        const uint32_t hi = transpose_bytes(words.x), lo = transpose_bytes(words.y), token = token_of(octet, j % 2);
        if (token < n_tokens) {
            uint8_t *to = hilo_at(a.next.acts, a.next.capacity, block, token, in_block) + row;
            *(uint32_t *)to = hi;
            *(uint32_t *)(to + 1024) = lo;
        }
    }
}

// The sums of squares of each token, from those of a lane's rows of it. The order of additions is that of quantize_acts.cu.
QN_DEVICE void store_sumsq(const float (&squares)[SUMS / 2])
{
#pragma unroll
    for (int i = 0; i < SUMS / 2; i++) {
        const float sum = qn_lanes_sum<4, 32>(squares[i]);
        if (threadIdx.x % QN_WARP_SIZE < 4)
            outputs().sumsq[warp_tile()][lane_token(i / 2, i % 2)] = sum;
    }
}

QN_DEVICE void write_sumsq(const qn_matmul_few_args &a, uint32_t block)
{
    const uint32_t in_half = threadIdx.x % HALF_THREADS, token = blockIdx.y * QN_TILE_N + in_half;
    if (in_half >= QN_TILE_N || token >= a.n_tokens)
        return;
    float sum[HALF_WARPS];
#pragma unroll
    for (int warp = 0; warp < HALF_WARPS; warp++)
        sum[warp] = outputs().sumsq[warp_tile() / HALF_WARPS * HALF_WARPS + warp][in_half];
#pragma unroll
    for (int distance = 1; distance < HALF_WARPS; distance *= 2)
#pragma unroll
        for (int warp = 0; warp < HALF_WARPS; warp += 2 * distance)
            sum[warp] += sum[warp + distance];
    a.next.sumsq[(uint64_t)block * a.next.capacity + token] = sum[0];
}

// Adds the results to the residual stream; the next activations are its values times the weight of the norm, by all warps.
QN_DEVICE void add_and_normalize(const qn_matmul_few_args &a, uint32_t row_block, float (&sums)[SUMS])
{
    const uint32_t tile = row_block * BLOCK_TILES + warp_tile(), block = tile / HALF_WARPS;
    const qn_matmul_out &out = a.outs[0];
    float squares[SUMS / 2] = {};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t row = tile * QN_TILE_ROWS + lane_row(h);
        const bool there = row < out.n_rows;
        const float weight = there ? __ldg(a.next.weight + row) : 0;
#pragma unroll
        for (int i = 0; i < SUMS / 2; i++) { // tokens
            const uint32_t token = token_of(i / 2, i % 2);
            float &value = sums[i / 2 * 4 + 2 * h + i % 2], x = 0;
            if (there && token < a.n_tokens) {
                float *at = (float *)out.data + (uint64_t)token * out.stride + row;
                x = __fadd_rn(*at, result_of(sums, i / 2 * 4 + 2 * h + i % 2));
                *at = x;
            }
            squares[i] = __fadd_rn(squares[i], __fmul_rn(x, x));
            value = x * weight;
        }
    }
    consumer_barrier(); // the shared memory may be in use for the row block before
    store_amax(sums);
    store_sumsq(squares);
    consumer_barrier();
    quantize_values(a, block, a.n_tokens, sums);
    write_sumsq(a, block);
}

// The next activations are silu(gate) * up, of which the upper half of the warps has up; the lower one quantises. The upper
// one does as if: in branches that warps do not take together the compiler cannot keep wgmma asynchronous.
QN_DEVICE void apply_swiglu(const qn_matmul_few_args &a, uint32_t row_block, float (&sums)[SUMS])
{
    const bool is_up = threadIdx.x >= HALF_THREADS;
    const uint32_t row = row_block * QN_ACTS_HILO_COLS + warp_tile() % HALF_WARPS * QN_TILE_ROWS;
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        sums[i] = result_of(sums, i);
    consumer_barrier(); // the shared memory may be in use for the row block before
#pragma unroll
    for (int i = 0; i < SUMS / 4; i++)
        if (is_up)
            outputs().up[i][threadIdx.x % HALF_THREADS] =
                make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
    consumer_barrier();
#pragma unroll
    for (int i = 0; i < SUMS / 4; i++) {
        const float4 v = outputs().up[i][threadIdx.x % HALF_THREADS];
        const float up[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
        for (int k = 0; k < 4; k++)
            sums[4 * i + k] = row + lane_row(k / 2) < a.outs[0].n_rows ? qn_silu(sums[4 * i + k]) * up[k] : 0;
    }
    store_amax(sums);
    consumer_barrier();
    quantize_values(a, row_block, is_up ? 0 : a.n_tokens, sums);
}

// Loads of a norm's weights of this block's rows: they have not been read since the previous step.
QN_DEVICE void prefetch_norm(const qn_matmul_few_args &a, uint32_t first_row_block, uint32_t last_row_block, uint32_t lane)
{
    uint32_t end = (last_row_block + 1) * QN_FEW_TILE_M;
    end = end < a.outs[0].n_rows ? end : a.outs[0].n_rows;
    for (uint32_t row = first_row_block * QN_FEW_TILE_M + 32 * lane; row < end; row += 32 * QN_WARP_SIZE)
        qn_prefetch_line(a.next.weight + row);
}

#endif
