// The loop of gemm_few.cu, which includes this file, for up to 4 tokens on sm_90a: binary wgmma (AND, then popcount). A
// fragment of codes is the A operand as it is stored: nothing is unpacked. B is the activations' bit planes (matmul.h). The
// sum over planes of popcount times the plane's weight is the integer that int8 MMAs compute.
//
// A span, the columns of a weight scale, is multiplied at a time: half of a fragment's columns if codes have one bit, whose
// B has zeros in the other half, or if a fragment of two bits has two scales; then the other half of the codes is masked. A
// lane's accumulators are all planes of one token and two rows. While a span's are added, the next span is multiplied.
#ifndef QN_CUDA_KERNELS_MATMUL_GEMM_FEW_PLANES_CUH
#define QN_CUDA_KERNELS_MATMUL_GEMM_FEW_PLANES_CUH

enum {
    BLOCK_BYTES = QN_PLANES_BLOCK_BYTES(QN_BITS),
    STAGE_BYTES = QN_FEW_PLANES_STAGE_BYTES(QN_BITS, QN_SCALES), /* activations, codes, scales of weights */
    STAGE_CODES = UNIT_STEPS * BLOCK_BYTES,
    STAGE_SCALES = STAGE_CODES + BLOCK_TILES * CODE_BYTES,
    SET_PLANES = QN_PLANES_SET(QN_BITS),
    SPAN_N = 2 * SET_PLANES * QN_TILE_N,
    SPAN_ACC = SPAN_N / 2,
    FRAGMENT_SPANS = QN_SCALES / QN_BITS
};
static_assert(QN_TILE_N == QN_PLANES_TOKENS && (SPAN_N == 64 || SPAN_N == 80), "");

// ---- Producers, a thread each ----

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
    mbarrier_arrive_expect_tx(full, pieces_of(a) * n * (CODE_BYTES + SCALE_BYTES) + UNIT_STEPS * BLOCK_BYTES);
    for (uint32_t piece = 0; n && piece < pieces_of(a); piece++) {
        const uint32_t first = piece * piece_tiles(a);
        const uint64_t tile = (uint64_t)at.k_tile * a.n_tiles + piece * a.up_tile + at.row_block * piece_tiles(a);
        cp_async_bulk(to + STAGE_CODES + first * CODE_BYTES, a.weights + tile * CODE_BYTES, n * CODE_BYTES, full);
        cp_async_bulk(to + STAGE_SCALES + first * SCALE_BYTES, scales + tile * SCALE_BYTES, n * SCALE_BYTES, full);
    }
}

QN_DEVICE void copy_acts(const qn_matmul_few_args &a, const ring &r, const unit_place &at)
{
    cp_async_bulk(r.shared + r.stage * STAGE_BYTES, a.acts + (uint64_t)at.k_tile * UNIT_STEPS * BLOCK_BYTES,
                  UNIT_STEPS * BLOCK_BYTES, r.full + 8 * r.stage);
}

// Weights are not written by the previous kernel: those of the first units are copied before it has ended.
QN_DEVICE void produce_weights(const qn_matmul_few_args &a, const block_work &w, ring r)
{
    unit_place at = { w.begin / a.n_k_tiles, w.begin % a.n_k_tiles };
    for (uint32_t unit = w.begin; unit < w.end; unit++) {
        if (unit == w.begin + EARLY_STAGES)
            qn_pdl_wait();
        qn_mbarrier_wait(r.empty + 8 * r.stage, r.phase ^ 1);
        copy_weights(a, r, at);
        advance(r);
        advance(at, a);
    }
}

QN_DEVICE void produce_acts(const qn_matmul_few_args &a, const block_work &w, ring r)
{
    unit_place at = { w.begin / a.n_k_tiles, w.begin % a.n_k_tiles };
    qn_pdl_wait();
    for (uint32_t unit = w.begin; unit < w.end; unit++) {
        qn_mbarrier_wait(r.empty + 8 * r.stage, r.phase ^ 1);
        copy_acts(a, r, at);
        advance(r);
        advance(at, a);
    }
}

// ---- Consumers ----

#define INTS_4(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define INTS_8(i) INTS_4(i), INTS_4(i + 4)

// d = popcounts of a AND b, of 64 rows, 256 bits, SPAN_N columns, asynchronous.
QN_DEVICE void wgmma_b1(int (&d)[SPAN_ACC], const uint4 &a, uint64_t b)
{
#if QN_BITS == 1
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k256.s32.b1.b1.and.popc {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
                 "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, {%32, %33, %34, %35}, %36, p;\n"
                 "}\n"
                 : INTS_8(0), INTS_8(8), INTS_8(16), INTS_8(24)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(0));
#else
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %45, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n80k256.s32.b1.b1.and.popc {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
                 "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39"
                 "}, {%40, %41, %42, %43}, %44, p;\n"
                 "}\n"
                 : INTS_8(0), INTS_8(8), INTS_8(16), INTS_8(24), INTS_8(32)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(0));
#endif
}

// A wgmma matrix descriptor without swizzle: 8 columns by 128 bits are 128 bytes, of which the next in K and then the next
// 8 columns follow.
QN_DEVICE uint64_t planes_descriptor(uint32_t address)
{
    return (uint64_t)(256 / 16) << 32 | (uint64_t)(128 / 16) << 16 | address >> 4;
}

// 2 a + b, by IADD3 or by IMAD: different units, of half the rate each.
template <bool add> QN_DEVICE int twice_plus(int a, int b)
{
    int c;
    if (add)
        asm("{\n.reg .s32 t;\nadd.s32 t, %1, %1;\nadd.s32 %0, t, %2;\n}\n" : "=r"(c) : "r"(a), "r"(b));
    else
        asm("mad.lo.s32 %0, %1, 2, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}

// `sum` and then the planes of hi or lo, from set plane `first` on, of a row: h 0 or 1.
template <int h> QN_DEVICE int sum_of_planes(int sum, const int (&acc)[SPAN_ACC], int first)
{
#define PLANE(p) acc[((first + (p)) / 2) * 4 + 2 * h + (first + (p)) % 2]
    if (QN_BITS == 1)
        sum = twice_plus<h>(sum, -PLANE(7));
    else
        sum = twice_plus<h>(sum, PLANE(8) - PLANE(7) - 2 * PLANE(9));
#pragma unroll
    for (int p = 6; p >= 0; p--)
        sum = twice_plus<h>(sum, PLANE(p));
    return sum;
#undef PLANE
}

// sum: of the span's activations, which codes are multiplied by too.
template <int h> QN_DEVICE void add_row(float &total, const int (&acc)[SPAN_ACC], int sum, float acts_scale, float scale)
{
    const int dot = sum_of_planes<h>(sum_of_planes<h>(0, acc, SET_PLANES), acc, 0);
    total = fmaf(scale, (float)(QN_BITS == 1 ? twice_plus<h>(dot, -sum) : dot - sum) * acts_scale, total);
}

// A lane's weights of a unit, and its stage.
struct unit_codes {
    uint4 fragments[QN_BITS];
    uint32_t scales[QN_SCALES];
    uint32_t stage;
};

QN_DEVICE void load_unit(unit_codes &x, const ring &r)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, tile = warp_tile(), stage = r.shared + r.stage * STAGE_BYTES;
    x.stage = r.stage;
    qn_mbarrier_wait(r.full + 8 * r.stage, r.phase);
#pragma unroll
    for (int i = 0; i < QN_BITS; i++)
        x.fragments[i] = load_shared_16(stage + STAGE_CODES + tile * CODE_BYTES + 16 * lane + i * QN_FRAGMENT_BYTES);
#pragma unroll
    for (int i = 0; i < QN_SCALES; i++)
        x.scales[i] = load_shared_4(stage + STAGE_SCALES + tile * SCALE_BYTES + lane / 4 * 4 + i * 2 * QN_TILE_ROWS);
}

QN_DEVICE void free_unit(const unit_codes &x, const ring &r)
{
    __syncwarp();
    if (threadIdx.x % QN_WARP_SIZE == 0)
        qn_mbarrier_arrive(r.empty + 8 * x.stage);
}

// stages: the address of the first.
QN_DEVICE void issue_span(int (&acc)[SPAN_ACC], const unit_codes &x, uint32_t stages, int span)
{
    uint4 codes = x.fragments[span / FRAGMENT_SPANS];
    if (QN_BITS == 2 && FRAGMENT_SPANS == 2) {
        const uint32_t mask = span % 2 ? 0xf0f0f0f0u : 0x0f0f0f0fu;
        codes = make_uint4(codes.x & mask, codes.y & mask, codes.z & mask, codes.w & mask);
    }
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    wgmma_b1(acc, codes, planes_descriptor(stages + x.stage * STAGE_BYTES + span / SPANS * BLOCK_BYTES));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// info: of the lane's token in the first block of columns.
QN_DEVICE void add_planes(float (&sums)[SUMS], int (&acc)[SPAN_ACC], uint32_t info, const unit_codes &x, int span)
{
    const uint4 of_token = load_shared_16(info + x.stage * STAGE_BYTES + span / SPANS * BLOCK_BYTES);
    const int sum = SPANS == 1 ? (int)(of_token.y + of_token.z) : (int)(span % 2 ? of_token.z : of_token.y);
#pragma unroll
    for (int i = 0; i < SPAN_ACC; i++)
        asm volatile("" : "+r"(acc[i]));
    add_row<0>(sums[0], acc, sum, __uint_as_float(of_token.x), qn_f16_low(x.scales[span]));
    add_row<1>(sums[1], acc, sum, __uint_as_float(of_token.x), qn_f16_high(x.scales[span]));
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        asm volatile("" : "+f"(sums[i])); // before the next span is waited for
}

// Multiplies the next unit. A span is added while the next one is multiplied; the last one's products are complete when
// this ends: otherwise the compiler would wait for each product.
QN_DEVICE void consume_unit(float (&sums)[SUMS], ring &r)
{
    const uint32_t info = r.shared + QN_PLANES_INFO(QN_BITS) + threadIdx.x % 4 * 16;
    int acc[2][SPAN_ACC];
    unit_codes x;
    load_unit(x, r);
    issue_span(acc[0], x, r.shared, 0);
#pragma unroll
    for (int span = 1; span < QN_SCALES; span++) {
        issue_span(acc[span % 2], x, r.shared, span);
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        add_planes(sums, acc[(span - 1) % 2], info, x, span - 1);
    }
    // The assembler would move additions to after wgmma.wait_group, but not across this loop. With two bits it lacks the
    // registers to add and multiply at the same time.
    if (QN_BITS == 1)
        qn_mbarrier_wait(r.full + 8 * r.stage, r.phase);
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    add_planes(sums, acc[(QN_SCALES - 1) % 2], info, x, QN_SCALES - 1);
    free_unit(x, r);
    advance(r);
}

QN_DEVICE void consume(const qn_matmul_few_args &a, const block_work &w, ring r)
{
    float sums[SUMS] = {};
#pragma unroll 1
    for (uint32_t unit = w.begin; unit < w.end;) {
        const uint32_t end = unit + segment_units(a, unit);
#pragma unroll 1
        for (; unit < end; unit++)
            consume_unit(sums, r);
        finish_segment(a, end, sums);
    }
}

extern "C" __global__ void __launch_bounds__(QN_FEW_THREADS, 1) qn_matmul_gemm_few(const __grid_constant__ qn_matmul_few_args a)
{
    const uint32_t stages = qn_shared_address(shared) + QN_FEW_PLANES_STAGES_AT;
    const ring r = ring_at(stages, stages + a.weight_stages * STAGE_BYTES, a.weight_stages, STAGE_BYTES);
    if (threadIdx.x == 0) {
        block_work_shared() = block_work_of(a);
        init_ring(r, WARPS);
        qn_mbarrier_init(qn_shared_address(&outputs().factors_ready), QN_TILE_N);
        fence_mbarrier_init();
    }
    __syncthreads();
    qn_pdl_trigger();
    const block_work w = block_work_shared();
    if (threadIdx.x >= CONSUMER_THREADS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        if (threadIdx.x == CONSUMER_THREADS)
            produce_weights(a, w, r);
        else if (threadIdx.x == CONSUMER_THREADS + 2 * QN_WARP_SIZE)
            produce_acts(a, w, r);
        else if (warp_tile() == WARPS + 1)
            prepare_outputs(a, w);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
        qn_pdl_wait(); // outputs and the workspace may be in use by the previous kernel
        consume(a, w, r);
    }
}

#endif
