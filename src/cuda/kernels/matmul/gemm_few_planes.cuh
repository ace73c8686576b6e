// The loop of gemm_few.cu, which includes this file, for up to 8 tokens on sm_90a: binary wgmma (AND, then popcount). A
// fragment of codes is the A operand as it is stored: nothing is unpacked. B is the activations' bit planes (matmul.h). The
// sum over planes of popcount times the plane's weight is the integer that int8 MMAs compute. Planes are multiplied in
// pairs: the lower one once and the upper one twice, into the same accumulators, which halves the additions.
//
// A span, the columns of a weight scale, is multiplied at a time: half of a fragment's columns if codes have one bit, whose
// B has zeros in the other half, or if a fragment of two bits has two scales; then the other half of the codes is masked. A
// lane's accumulators are all planes of a token of each four, and two rows. While a span's are added, the next span is
// multiplied.
#ifndef QN_CUDA_KERNELS_MATMUL_GEMM_FEW_PLANES_CUH
#define QN_CUDA_KERNELS_MATMUL_GEMM_FEW_PLANES_CUH

enum {
    BLOCK_BYTES = QN_PLANES_BLOCK_BYTES(QN_TILE_N),
    STAGE_BYTES = QN_FEW_PLANES_STAGE_BYTES(QN_BITS, QN_SCALES, QN_TILE_N), /* activations, codes, scales of weights */
    STAGE_CODES = UNIT_STEPS * BLOCK_BYTES,
    STAGE_SCALES = STAGE_CODES + BLOCK_TILES * CODE_BYTES,
    PAIR_ACC = 4 * QN_TILE_N,
    FRAGMENT_SPANS = QN_SCALES / QN_BITS
};

static_assert(QN_TILE_N == 4 || QN_TILE_N == 8, "a lane's accumulators are of one or two tokens");

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

// d = popcounts of a AND b, or d += popcounts, of 64 rows, 256 bits, and 8 columns of each token, asynchronous.
QN_DEVICE void wgmma_b1(int (&d)[PAIR_ACC], const uint4 &a, uint64_t b, int accumulate)
{
#if QN_TILE_N == 4
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %21, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k256.s32.b1.b1.and.popc {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
                 "}, {%16, %17, %18, %19}, %20, p;\n"
                 "}\n"
                 : INTS_8(0), INTS_8(8)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(accumulate));
#else
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k256.s32.b1.b1.and.popc {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, {%32, %33, %34, %35}, %36, p;\n"
                 "}\n"
                 : INTS_8(0), INTS_8(8), INTS_8(16), INTS_8(24)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(accumulate));
#endif
}

// The same of 8 columns.
QN_DEVICE void wgmma_b1(int (&d)[4], const uint4 &a, uint64_t b, int accumulate)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %9, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n8k256.s32.b1.b1.and.popc {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p;\n"
                 "}\n"
                 : INTS_4(0)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(accumulate));
}

// A wgmma matrix descriptor without swizzle: 8 columns by 128 bits are 128 bytes, of which the next in K and then the next
// 8 columns follow. Its high word, and the low one of an address.
static constexpr uint64_t DESCRIPTOR_HIGH = 256 / 16;

QN_DEVICE uint32_t planes_descriptor(uint32_t address)
{
    return 128 / 16 << 16 | address >> 4;
}

// Products of a span: of pairs of planes, the lower one once and the upper one twice; of where integers are negative.
struct plane_products {
    int pairs[PAIR_ACC], negative[4];
};

// The codes times the integers of a group of four tokens, of a row: h 0 or 1.
QN_DEVICE int sum_of_planes(const plane_products &p, int group, int h)
{
#define PAIR(i) p.pairs[(4 * group + (i) / 2) * 4 + 2 * h + (i) % 2]
    int sum = PAIR(7);
#pragma unroll
    for (int i = 6; i >= 0; i--)
        sum = 4 * sum + PAIR(i);
    return sum - 65536 * p.negative[2 * h + group];
#undef PAIR
}

// A lane's addresses in the first stage, and the descriptor of its planes.
struct lane_data {
    uint32_t codes, scales, info, planes;
};

// The addresses are opaque to the compiler, which would derive them from the thread's index for each unit.
QN_DEVICE lane_data lane_data_of(const ring &r)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, tile = warp_tile();
    lane_data at = { r.shared + STAGE_CODES + tile * CODE_BYTES + 16 * lane,
                     r.shared + STAGE_SCALES + tile * SCALE_BYTES + lane / 4 * 4,
                     r.shared + QN_PLANES_INFO(QN_TILE_N) + lane % 4 * 16, planes_descriptor(r.shared) };
    asm volatile("" : "+r"(at.codes), "+r"(at.scales), "+r"(at.info), "+r"(at.planes));
    return at;
}

// A lane's weights of a unit, the low word of the descriptor of its planes, and the address of what tokens have.
struct unit_codes {
    uint4 fragments[QN_BITS];
    uint32_t scales[QN_SCALES];
    uint32_t planes, info;
};

QN_DEVICE void load_unit(unit_codes &x, const lane_data &at, const ring &r)
{
    const uint32_t stage = r.stage * STAGE_BYTES;
    qn_mbarrier_wait(r.full + 8 * r.stage, r.phase);
    x.planes = at.planes + stage / 16;
    x.info = at.info + stage;
#pragma unroll
    for (int i = 0; i < QN_BITS; i++)
        x.fragments[i] = load_shared_16(at.codes + stage + i * QN_FRAGMENT_BYTES);
#pragma unroll
    for (int i = 0; i < QN_SCALES; i++)
        x.scales[i] = load_shared_4(at.scales + stage + i * 2 * QN_TILE_ROWS);
}

QN_DEVICE void issue_span(plane_products &p, const unit_codes &x, int span)
{
    const uint64_t planes = DESCRIPTOR_HIGH << 32 | (x.planes + span / SPANS * (BLOCK_BYTES / 16));
    uint4 codes = x.fragments[span / FRAGMENT_SPANS];
    if (QN_BITS == 2 && FRAGMENT_SPANS == 2) {
        const uint32_t mask = span % 2 ? 0xf0f0f0f0u : 0x0f0f0f0fu;
        codes = make_uint4(codes.x & mask, codes.y & mask, codes.z & mask, codes.w & mask);
    }
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    wgmma_b1(p.pairs, codes, planes, 0);
    wgmma_b1(p.pairs, codes, planes + QN_PLANES_UPPER(QN_TILE_N) / 16, 1);
    wgmma_b1(p.pairs, codes, planes + QN_PLANES_UPPER(QN_TILE_N) / 16, 1);
    wgmma_b1(p.negative, codes, planes + QN_PLANES_NEGATIVE(QN_TILE_N) / 16, 0);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

QN_DEVICE void add_planes(float (&sums)[SUMS], plane_products &p, const unit_codes &x, int span)
{
#pragma unroll
    for (int i = 0; i < PAIR_ACC; i++)
        asm volatile("" : "+r"(p.pairs[i]));
#pragma unroll
    for (int i = 0; i < 4; i++)
        asm volatile("" : "+r"(p.negative[i]));
#pragma unroll
    for (int group = 0; group < QN_TILE_N / QN_PLANES_TOKENS; group++) {
        const uint4 of_token = load_shared_16(x.info + span / SPANS * BLOCK_BYTES + 64 * group);
        const int sum = SPANS == 1 ? (int)of_token.w : (int)(span % 2 ? of_token.z : of_token.y);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int dot = (QN_BITS == 1 ? 2 : 1) * sum_of_planes(p, group, h) - sum; // codes begin at -1
            const float scale = h ? qn_f16_high(x.scales[span]) : qn_f16_low(x.scales[span]);
            float &to = sums[2 * group + h];
            to = fmaf(scale, (float)dot * __uint_as_float(of_token.x), to);
        }
    }
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        asm volatile("" : "+f"(sums[i])); // before the next span is waited for
}

// Multiplies the next unit. A span is added while the next one is multiplied; the last one's products are complete when
// this ends: otherwise the compiler would wait for each product.
QN_DEVICE void consume_unit(float (&sums)[SUMS], const lane_data &at, ring &r)
{
    plane_products products[2];
    unit_codes x;
    load_unit(x, at, r);
    issue_span(products[0], x, 0);
#pragma unroll
    for (int span = 1; span < QN_SCALES; span++) {
        issue_span(products[span % 2], x, span);
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        add_planes(sums, products[(span - 1) % 2], x, span - 1);
    }
    // The assembler would move additions to after wgmma.wait_group, but not across this loop.
    qn_mbarrier_wait(r.full + 8 * r.stage, r.phase);
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    add_planes(sums, products[(QN_SCALES - 1) % 2], x, QN_SCALES - 1);
    __syncwarp();
    if (threadIdx.x % QN_WARP_SIZE == 0)
        qn_mbarrier_arrive(r.empty + 8 * r.stage);
    advance(r);
}

QN_DEVICE void consume(const qn_matmul_few_args &a, const block_work &w, ring r)
{
    const lane_data at = lane_data_of(r);
    float sums[SUMS] = {};
#pragma unroll 1
    for (uint32_t unit = w.begin; unit < w.end;) {
        const uint32_t end = unit + segment_units(a, unit);
#pragma unroll 1
        for (; unit < end; unit++)
            consume_unit(sums, at, r);
        finish_segment(a, end, sums);
    }
}

extern "C" __global__ void __launch_bounds__(QN_FEW_THREADS, 1) qn_matmul_gemm_few(const __grid_constant__ qn_matmul_few_args a)
{
    const uint32_t stages = qn_shared_address(shared) + QN_FEW_PLANES_STAGES_AT(QN_TILE_N);
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
