// What gemm_few.cu, which includes this file, does with the sums of a row block: stores them, or computes the
// activations of the next matmul from them: adds them to the residual stream and multiplies by the weight of its RMS
// norm, or applies SwiGLU; the Hadamard transform; and quantises. For this the results of a round of tokens go through
// shared memory, from which a warp takes 128 columns of a token. From equal sums, values and their sums of squares have
// the bits of separate launches (quantize_acts.cu).
#ifndef QN_CUDA_KERNELS_MATMUL_GEMM_FEW_OUTPUTS_CUH
#define QN_CUDA_KERNELS_MATMUL_GEMM_FEW_OUTPUTS_CUH

enum {
    WARPS = CONSUMER_THREADS / QN_WARP_SIZE,
    TILE_BLOCKS = QN_FEW_TILE_M / QN_ACTS_HILO_COLS, // of 128 rows
    ROUND_TOKENS = QN_FEW_ROUND_TOKENS(QN_TILE_N),
    ROUNDS = QN_TILE_N / ROUND_TOKENS,
    ROUND_SUMS = SUMS / ROUNDS,
    LOADS_EARLY = HAS_PLANES /* what add_and_normalize loads, before sums of other blocks are waited for */
};

// Shared memory, after the stages of activations of hi/lo int8, or at the beginning.
struct output_memory {
    float factors[QN_TILE_N]; // of tokens: the results are the sums times these
    uint64_t factors_ready;   // mbarrier, sm_90a only
    uint64_t unused;
    block_work work;
    float results[ROUND_TOKENS][QN_FEW_RESULT_STRIDE];
};
static_assert(sizeof(output_memory) == QN_FEW_OUTPUT_BYTES(QN_TILE_N), "");

extern __shared__ __align__(1024) uint8_t shared[];

QN_DEVICE output_memory &outputs()
{
    return *(output_memory *)(shared + OUTPUTS_AT);
}

QN_DEVICE block_work &block_work_shared()
{
    return outputs().work;
}

QN_DEVICE void consumer_barrier()
{
    asm volatile("bar.sync 1, %0;" ::"r"((uint32_t)CONSUMER_THREADS) : "memory");
}

// By a warp: 1 / RMS of the rows of activations, if there was a norm. The sums of squares are loaded by all lanes, and
// added in the order of the columns.
QN_DEVICE void compute_factors(const qn_matmul_few_args &a)
{
    enum { PARTS = QN_WARP_SIZE / QN_TILE_N, LOADS = 8 };
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, token = lane % QN_TILE_N, n = a.sumsq ? UNIT_STEPS * a.n_k_tiles : 0;
    const float *sumsq = a.sumsq + blockIdx.y * QN_TILE_N + token;
    float sum = 0;
#pragma unroll 1
    for (uint32_t first = 0; first < n; first += PARTS * LOADS) {
        float x[LOADS];
#pragma unroll
        for (uint32_t i = 0; i < LOADS; i++) {
            const uint32_t block = first + i * PARTS + lane / QN_TILE_N;
            x[i] = block < n ? sumsq[(uint64_t)block * a.capacity] : 0;
        }
#pragma unroll
        for (uint32_t i = 0; i < LOADS; i++)
#pragma unroll
            for (uint32_t part = 0; part < PARTS; part++)
                sum += __shfl_sync(QN_FULL_MASK, x[i], part * QN_TILE_N + token);
    }
    if (lane < QN_TILE_N)
        outputs().factors[token] = a.sumsq ? 1.0f / sqrtf(sum / (float)a.n_cols + a.eps) : 1.0f;
}

// ---- A lane's sums: element 4 i + 2 h + e is of row g + 8 h of its warp's tile, and of token 8 i + 2 t + e; of bit planes
// element 2 i + h is of row g + 8 h and token 4 i + t ----

QN_DEVICE constexpr int row_half(int i)
{
    return HAS_PLANES ? i % 2 : i % 4 / 2;
}

QN_DEVICE uint32_t warp_tile()
{
    return threadIdx.x / QN_WARP_SIZE;
}

QN_DEVICE uint32_t lane_row(int h)
{
    return threadIdx.x % QN_WARP_SIZE / 4 + 8 * h;
}

// The token of sums[i], in the block's tokens.
QN_DEVICE uint32_t lane_token(int i)
{
    return HAS_PLANES ? i / 2 * 4 + threadIdx.x % 4 : i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
}

// The result of sums[i], rounded before anything is added to it.
QN_DEVICE float result_of(const float (&sums)[SUMS], int i)
{
    return __fmul_rn(outputs().factors[lane_token(i)], sums[i]);
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
        for (int i = 0; i < SUMS; i++)
            if (row_half(i) == h)
                store_value(a, out, blockIdx.y * QN_TILE_N + lane_token(i), result_of(sums, i));
    }
}

// ---- The next activations ----

// Stores the results of a round's tokens in shared memory.
QN_DEVICE void share_results(const float (&sums)[SUMS], int round)
{
    consumer_barrier(); // it may be in use for the tokens before
#pragma unroll
    for (int i = 0; i < ROUND_SUMS; i++)
        outputs().results[lane_token(i)][warp_tile() * QN_TILE_ROWS + lane_row(row_half(i))] =
            result_of(sums, round * ROUND_SUMS + i);
    consumer_barrier();
}

// A lane's four results of a token of the round, from `row` of the block on.
QN_DEVICE float4 shared_results(uint32_t token, uint32_t row)
{
    return *(const float4 *)&outputs().results[token][row];
}

QN_DEVICE void transform_and_quantize(const qn_matmul_few_args &a, uint32_t block, uint32_t token, float4 v, bool stored)
{
    const qn_hilo_hadamard &h = a.next.hadamard;
    const uint32_t column = block * QN_ACTS_HILO_COLS + threadIdx.x % QN_WARP_SIZE * 4;
    if (h.block)
        v = warp_hadamard(apply_signs(v, h.signs, column, a.outs[0].n_rows), h.block);
    const uint32_t planes = QN_TILE_N <= QN_MMA_N ? a.next.planes : 0;
    write_hilo(a.next.acts, a.next.scale, a.next.capacity, planes, a.n_tokens, block, token, v, h.scale, stored);
}

// A lane's part of 128 columns of a token of the next activations, of a round by all warps. The residual stream is
// loaded before the results are shared; the weights only of few tokens, as registers are lacking otherwise.
struct norm_columns {
    uint32_t in_round, in_row_block; // the token, the first column
    uint32_t token, block;
    bool stored;      // there is such a token
    float4 *residual; // null if there is none
    float4 x, weight;
};

QN_DEVICE norm_columns load_norm_columns(const qn_matmul_few_args &a, uint32_t row_block, int round, int i)
{
    const uint32_t at = warp_tile() + WARPS * i, lane = threadIdx.x % QN_WARP_SIZE,
                   tile_block = at / ROUND_TOKENS % TILE_BLOCKS;
    const qn_matmul_out &out = a.outs[0];
    norm_columns c = {};
    c.in_round = at % ROUND_TOKENS;
    c.in_row_block = tile_block * QN_ACTS_HILO_COLS + 4 * lane;
    c.token = blockIdx.y * QN_TILE_N + round * ROUND_TOKENS + c.in_round;
    c.stored = c.token < a.n_tokens && at < TILE_BLOCKS * ROUND_TOKENS;
    c.block = row_block * TILE_BLOCKS + tile_block;
    const uint32_t row = row_block * QN_FEW_TILE_M + c.in_row_block;
    if (row < out.n_rows && c.stored) {
        c.residual = (float4 *)((float *)out.data + (uint64_t)c.token * out.stride + row);
        c.x = *c.residual;
        if (LOADS_EARLY)
            c.weight = __ldg((const float4 *)(a.next.weight + row));
    }
    return c;
}

// Adds the results to the residual stream; the next activations are its values times the weight of the norm.
QN_DEVICE void add_and_normalize(const qn_matmul_few_args &a, uint32_t row_block, const float (&sums)[SUMS],
                                 const norm_columns &first)
{
    enum { PER_WARP = (TILE_BLOCKS * ROUND_TOKENS + WARPS - 1) / WARPS };
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        norm_columns columns[PER_WARP];
        static_assert(!LOADS_EARLY || PER_WARP * ROUNDS == 1, "one is loaded early");
#pragma unroll
        for (int i = 0; i < PER_WARP; i++)
            columns[i] = LOADS_EARLY ? first : load_norm_columns(a, row_block, round, i);
        share_results(sums, round);
#pragma unroll
        for (int i = 0; i < PER_WARP; i++) {
            const norm_columns &c = columns[i];
            const float4 y = shared_results(c.in_round, c.in_row_block);
            float4 x = make_float4(0, 0, 0, 0), w = x;
            if (c.residual) {
                w = LOADS_EARLY ? c.weight
                                : __ldg((const float4 *)(a.next.weight + row_block * QN_FEW_TILE_M + c.in_row_block));
                x = make_float4(__fadd_rn(c.x.x, y.x), __fadd_rn(c.x.y, y.y), __fadd_rn(c.x.z, y.z), __fadd_rn(c.x.w, y.w));
                *c.residual = x;
            }
            transform_and_quantize(a, c.block, c.token, make_float4(x.x * w.x, x.y * w.y, x.z * w.z, x.w * w.w), c.stored);
            const float sum = sum_of_squares_128(x);
            if (threadIdx.x % QN_WARP_SIZE == 0 && c.stored)
                a.next.sumsq[(uint64_t)c.block * a.next.capacity + c.token] = sum;
        }
    }
}

// The next activations are silu(gate) * up; rows of the block: gate, then up. Of up to 8 tokens many warps have none
// and do as if: in branches that warps do not take together the compiler cannot keep wgmma asynchronous.
QN_DEVICE void apply_swiglu(const qn_matmul_few_args &a, uint32_t row_block, const float (&sums)[SUMS])
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, in_round = warp_tile() % ROUND_TOKENS;
    const bool there = row_block * QN_ACTS_HILO_COLS + 4 * lane < a.outs[0].n_rows;
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        const uint32_t token = blockIdx.y * QN_TILE_N + round * ROUND_TOKENS + in_round;
        share_results(sums, round);
        const float4 gate = shared_results(in_round, 4 * lane), up = shared_results(in_round, QN_ACTS_HILO_COLS + 4 * lane);
        const float4 v = make_float4(qn_silu(gate.x) * up.x, qn_silu(gate.y) * up.y, qn_silu(gate.z) * up.z,
                                     qn_silu(gate.w) * up.w);
        transform_and_quantize(a, row_block, token, there ? v : make_float4(0, 0, 0, 0),
                               token < a.n_tokens && warp_tile() < ROUND_TOKENS);
    }
}

// Loads vectors of this block's rows of the next activations: they have not been read since the previous step.
QN_DEVICE void prefetch_vectors(const qn_matmul_few_args &a, uint32_t first_row_block, uint32_t last_row_block, uint32_t lane)
{
    const uint32_t rows = QN_FEW_TILE_M / pieces_of(a), last = (last_row_block + 1) * rows,
                   end = last < a.outs[0].n_rows ? last : a.outs[0].n_rows;
    for (uint32_t row = first_row_block * rows + 32 * lane; row < end; row += 32 * QN_WARP_SIZE) {
        if (a.next.weight)
            qn_prefetch_line(a.next.weight + row);
        if (a.next.hadamard.signs)
            qn_prefetch_line(a.next.hadamard.signs + row);
    }
}

#endif
