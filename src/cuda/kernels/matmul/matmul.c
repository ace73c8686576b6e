/* Launches of the GPU matmul: selection of kernel and variant, split of the work over warps, blocks and clusters,
 * shared memory. */
#include "cuda/kernels/matmul/gemv_warps.h"

#include "cuda/kernels/variants.h"
#include "quant/layout.h"
#include "cuda/kernels/matmul/variants.def"

#include <math.h>
#include <string.h>

/* ---- Variants ---- */

/* Blocks of qn_matmul_gemm. */
static const struct gemm_tile {
    size_t tokens, rows, min_bits, max_bits; /* of the weights that have such a variant */
} gemm_tiles[] = {
    { 32, 256, 4, 16 }, { 64, 256, 1, 16 }, { QN_GEMM_TILE_N, 256, 1, 16 }, { QN_GEMM_TILE_N, 192, 1, 2 }
};
enum { GEMM_TILES = sizeof gemm_tiles / sizeof *gemm_tiles };

/* The GEMV of a tile layout and an activation layout. step_tiles and stages: bytes in flight against shared memory. */
static const struct gemv_variant gemv_variants[] = {
#define QN_PLAIN(name, file)
#define QN_SOURCE(name, file, ...)
#define QN_VARIANT(name, ...) OF_##name(__VA_ARGS__)
#define OF_gemv(...) { __VA_ARGS__ },
#define OF_gemm(...)
#define OF_few(...)
#define OF_quantize_acts(...)
#define OF_hadamard_quantize(...)
#include "cuda/kernels/matmul/variants.def"
};

static const struct gemv_variant *gemv_variant(const qn_tile_layout *tiles, int acts_layout)
{
    for (size_t i = 0; i < sizeof gemv_variants / sizeof *gemv_variants; i++) {
        const struct gemv_variant *v = &gemv_variants[i];
        if ((int)v->acts_layout == acts_layout && v->bits == tiles->bits && v->scales == tiles->n_scales &&
            v->offset == tiles->has_offset)
            return v;
    }
    return NULL;
}

/* clang-format off */
static const struct {
    qn_type type;
    qn_tile_layout tiles;
} tile_layouts[] = {
#define TILES(ID, bits, n_scales, has_offset, code) \
    { QN_TYPE_##ID, { QN_STORED_##ID, bits, n_scales, has_offset, false } },
    QN_TILED_TYPES(TILES)
    { QN_TYPE_F16, { QN_STORED_F16, 16, 1, 0, false } },
    { QN_TYPE_BF16, { QN_STORED_BF16, 16, 1, 0, false } },
};
/* clang-format on */

/* clang-format off */
static const struct {
    qn_type type;
    qn_matmul_stored stored;
} dequantized_types[] = {
#define DEQUANTIZED(ID) { QN_TYPE_##ID, QN_STORED_##ID },
    QN_DEQUANTIZED_TYPES(DEQUANTIZED)
};
/* clang-format on */

/* The zero point of tiles without offset follows from their bits. */
#define ZERO_FITS(ID, bits, n_scales, has_offset, code)                                                                \
    _Static_assert(has_offset || QN_##ID##_ZERO == QN_TILE_ZERO(bits), #ID ": tiles have another zero point");
QN_TILED_TYPES(ZERO_FITS)

qn_tile_layout qn_matmul_gpu_tile_layout(const qn_type_info *type)
{
    for (size_t i = 0; i < sizeof tile_layouts / sizeof tile_layouts[0]; i++)
        if (tile_layouts[i].type == type->type)
            return tile_layouts[i].tiles;
    return (qn_tile_layout){ QN_STORED_F16, 16, 1, 0, true };
}

bool qn_matmul_gpu_stored_layout(const qn_type_info *type, qn_tile_layout *tiles)
{
    *tiles = qn_matmul_gpu_tile_layout(type);
    for (size_t i = 0; tiles->as_f16 && i < sizeof dequantized_types / sizeof dequantized_types[0]; i++)
        if (dequantized_types[i].type == type->type) {
            tiles->stored = dequantized_types[i].stored;
            tiles->as_f16 = false;
        }
    return !tiles->as_f16;
}

/* ---- Sizes ---- */

static size_t k_tiles_of(size_t n_cols)
{
    return n_cols / QN_TILE_COLS + (n_cols % QN_TILE_COLS != 0);
}

static size_t code_bytes(const qn_tile_layout *tiles)
{
    return (size_t)tiles->bits * QN_FRAGMENT_BYTES;
}

static size_t scale_bytes(const qn_tile_layout *tiles)
{
    return tiles->bits == 16 ? 0 : (size_t)tiles->n_scales * (1 + tiles->has_offset) * 2 * QN_TILE_ROWS;
}

size_t qn_matmul_gpu_tile_count(size_t n_rows)
{
    return n_rows / QN_TILE_ROWS + (n_rows % QN_TILE_ROWS != 0);
}

qn_status qn_matmul_gpu_bytes(const qn_tile_layout *tiles, size_t n_tiles, size_t n_cols, size_t *bytes)
{
    const size_t n_k_tiles = k_tiles_of(n_cols);
    /* Kernels count tiles, k-tiles, rows and columns in 32 bits. */
    if (n_tiles == 0 || n_cols == 0 || n_tiles > INT32_MAX / QN_TILE_ROWS || n_k_tiles > INT32_MAX / QN_TILE_COLS ||
        __builtin_mul_overflow(n_tiles, n_k_tiles, bytes) ||
        __builtin_mul_overflow(*bytes, code_bytes(tiles) + scale_bytes(tiles), bytes))
        return qn_fail(QN_ERR_INVALID, "a matrix of %zu row tiles and %zu columns exceeds the kernels' 32-bit counts",
                       n_tiles, n_cols);
    return QN_OK;
}

int qn_matmul_gpu_acts_layout(const qn_tile_layout *tiles, size_t n_tokens)
{
    if (tiles->bits > 2 || n_tokens > QN_FEW_MAX_TOKENS)
        return QN_ACTS_F16;
    return n_tokens > 1 ? QN_ACTS_HILO : QN_ACTS_HILO_N1;
}

qn_status qn_matmul_gpu_acts_bytes(int layout, size_t n_cols, size_t capacity, size_t *bytes)
{
    const size_t n_k_tiles = k_tiles_of(n_cols), n_batches = capacity / QN_MMA_N + (capacity % QN_MMA_N != 0);
    const size_t each = layout == QN_ACTS_HILO_N1 ? (size_t)QN_ACTS_N1_TILE_BYTES
                        : layout == QN_ACTS_F16   ? (size_t)QN_MMA_N * QN_TILE_COLS * 2
                                                  : (size_t)QN_TILE_COLS / QN_ACTS_HILO_COLS * QN_ACTS_HILO_BYTES;
    if (n_cols == 0 || n_k_tiles > INT32_MAX / QN_TILE_COLS ||
        (layout == QN_ACTS_HILO_N1 ? capacity != 1 : capacity == 0) ||
        (layout != QN_ACTS_HILO_N1 && capacity % QN_GEMM_TILE_N) || capacity > INT32_MAX ||
        __builtin_mul_overflow(n_k_tiles, n_batches, bytes) || __builtin_mul_overflow(*bytes, each, bytes))
        return qn_fail(QN_ERR_INVALID, "activations of %zu tokens and %zu columns: not allowed in this layout",
                       capacity, n_cols);
    return QN_OK;
}

/* Returns the number of blocks of QN_ACTS_HILO_COLS columns, each with its scales. */
static size_t hilo_blocks_of(size_t n_cols)
{
    return k_tiles_of(n_cols) * (QN_TILE_COLS / QN_ACTS_HILO_COLS);
}

size_t qn_matmul_gpu_scale_bytes(int layout, size_t n_cols, size_t capacity)
{
    return layout == QN_ACTS_HILO_N1
               ? 0
               : (layout == QN_ACTS_HILO ? 2 * hilo_blocks_of(n_cols) : 1) * capacity * sizeof(float);
}

uint32_t qn_matmul_gpu_planes(const qn_matmul_gpu *gpu, const qn_tile_layout *tiles, size_t n_tokens)
{
    return gpu->wgmma && tiles->bits <= 2 && n_tokens > 1 && n_tokens <= QN_PLANES_MAX_TOKENS ? tiles->bits : 0;
}

/* Returns the tokens of a block of the GEMM of few tokens. */
static size_t few_tokens(const qn_matmul_acts *acts, size_t n_tokens)
{
    size_t tokens = acts->planes ? QN_PLANES_TOKENS : QN_MMA_N;
    while (tokens < n_tokens && tokens < QN_FEW_TILE_N)
        tokens *= 2;
    return tokens;
}

/* Returns the bytes of a block's slot. */
static uint32_t few_slot_bytes(size_t tokens)
{
    return (uint32_t)(QN_FEW_TILE_M * tokens * sizeof(float));
}

/* ---- Packing and quantisation ---- */

qn_status qn_matmul_gpu_pack(const qn_tiled_matrix *matrix, uint64_t rows, size_t row_bytes, size_t n_rows,
                             size_t first_tile, qn_matmul_launch *out)
{
    const size_t n_tiles = qn_matmul_gpu_tile_count(n_rows), n_k_tiles = k_tiles_of(matrix->n_cols);
    size_t bytes;
    QN_TRY(qn_matmul_gpu_bytes(&matrix->tiles, matrix->n_tiles, matrix->n_cols, &bytes));
    if (n_rows == 0 || first_tile > matrix->n_tiles || n_tiles > matrix->n_tiles - first_tile || n_tiles > 65535)
        return qn_fail(QN_ERR_INVALID, "%zu rows from tile %zu on: the matrix has %zu tiles, a launch at most 65535",
                       n_rows, first_tile, matrix->n_tiles);
    *out = (qn_matmul_launch){
        .launch = { .variant.source = &pack_source,
                    .function = "qn_matmul_pack",
                    .grid = { (uint32_t)n_k_tiles, (uint32_t)n_tiles, 1 },
                    .block = { 32, 1, 1 },
                    .args_bytes = sizeof out->args.pack },
        .args.pack = { .rows = rows,
                       .tiles = matrix->address,
                       .row_bytes = row_bytes,
                       .n_rows = (uint32_t)n_rows,
                       .n_cols = (uint32_t)matrix->n_cols,
                       .n_tiles = (uint32_t)matrix->n_tiles,
                       .n_k_tiles = (uint32_t)n_k_tiles,
                       .first_tile = (uint32_t)first_tile,
                       .stored = matrix->tiles.stored,
                       .bits = matrix->tiles.bits,
                       .n_scales = matrix->tiles.n_scales,
                       .has_offset = matrix->tiles.has_offset },
    };
    return QN_OK;
}

qn_status qn_matmul_gpu_quantize(const qn_matmul_acts *acts, int op, uint64_t x, uint64_t x2, uint64_t weight,
                                 float eps, size_t stride, size_t n_tokens, qn_matmul_launch *out)
{
    size_t bytes;
    QN_TRY(qn_matmul_gpu_acts_bytes(acts->layout, acts->n_cols, acts->capacity, &bytes));
    if (n_tokens == 0 || n_tokens > acts->capacity || n_tokens > 65535 || stride > UINT32_MAX)
        return qn_fail(QN_ERR_INVALID, "%zu tokens to be quantised: %zu are allocated, a launch has at most 65535",
                       n_tokens, acts->capacity);
    if (acts->layout == QN_ACTS_HILO && (!acts->workspace || acts->workspace % 256))
        return qn_fail(QN_ERR_INVALID, "hi/lo int8 activations need a workspace at a multiple of 256 bytes");
    if (acts->planes && n_tokens > QN_PLANES_MAX_TOKENS)
        return qn_fail(QN_ERR_INVALID, "%zu tokens as bit planes: expected at most %d", n_tokens, QN_PLANES_MAX_TOKENS);
    const size_t n_k_tiles = k_tiles_of(acts->n_cols);
    /* For low latency a warp quantises the columns of one scale of hi/lo int8. */
    const size_t threads = QN_QUANTIZE_ACTS_THREADS(acts->layout), warps = threads / 32;
    const bool is_hilo = acts->layout == QN_ACTS_HILO_N1 || acts->layout == QN_ACTS_HILO;
    const size_t n_splits = ((is_hilo ? hilo_blocks_of(acts->n_cols) : 1) + warps - 1) / warps;
    *out = (qn_matmul_launch){
        .launch = { .variant = QN_GPU_VARIANT(quantize_acts, acts->layout, op, 0),
                    .function = "qn_matmul_quantize_acts",
                    .grid = { (uint32_t)n_splits, (uint32_t)n_tokens, 1 },
                    .block = { (uint32_t)threads, 1, 1 },
                    .args_bytes = sizeof out->args.acts,
                    .pdl = true },
        .args.acts = { .x = x,
                       .x2 = x2,
                       .weight = weight,
                       .out = acts->address,
                       .scale = acts->scale,
                       .slots = acts->workspace + QN_MATMUL_COUNTERS_BYTES,
                       .slot_bytes = acts->layout == QN_ACTS_HILO && n_tokens <= QN_FEW_MAX_TOKENS
                                         ? acts->prepares_slots * few_slot_bytes(few_tokens(acts, n_tokens))
                                         : 0,
                       .planes = acts->planes,
                       .n_cols = (uint32_t)acts->n_cols,
                       .n_k_tiles = (uint32_t)n_k_tiles,
                       .n_tokens = (uint32_t)n_tokens,
                       .capacity = (uint32_t)acts->capacity,
                       .stride = (uint32_t)stride,
                       .eps = eps,
                       .hadamard.scale = 1 },
    };
    return QN_OK;
}

void qn_matmul_gpu_quantize_16bit(qn_matmul_launch *quantize, bool is_bf16)
{
    const uint32_t *values = quantize->launch.variant.values;
    quantize->launch.variant = QN_GPU_VARIANT(quantize_acts, values[0], values[1], 1);
    quantize->args.acts.is_bf16 = is_bf16;
}

void qn_matmul_gpu_quantize_f16_too(qn_matmul_launch *quantize, const qn_matmul_acts *f16)
{
    quantize->launch.variant = QN_GPU_VARIANT(quantize_acts, QN_ACTS_HILO_F16, quantize->launch.variant.values[1], 0);
    quantize->launch.grid[0] = 1; /* a scale of fp16 needs all of the row */
    quantize->launch.block[0] = QN_QUANTIZE_ACTS_THREADS(QN_ACTS_HILO_F16);
    quantize->args.acts.f16 =
        (qn_matmul_f16_acts){ .out = f16->address, .token_scale = f16->scale, .capacity = (uint32_t)f16->capacity };
}

/* The kernels' form of a rotation of rows of n_cols, in blocks of up to `most` columns. */
static qn_status set_hadamard(const qn_matmul_rotation *rotation, size_t n_cols, size_t most, qn_hilo_hadamard *to)
{
    const size_t block = rotation->block;
    if (block && (block > most || (block & (block - 1)) || n_cols % block || n_cols % 4 || rotation->signs % 16))
        return qn_fail(QN_ERR_INVALID,
                       "activations of %zu columns in Hadamard blocks of %zu: expected a multiple of 4 and of a power "
                       "of two up to %zu, and signs at a multiple of 16 bytes",
                       n_cols, block, most);
    *to = (qn_hilo_hadamard){ .signs = block ? rotation->signs : 0,
                              .block = (uint32_t)block,
                              .scale = block ? (float)(1 / sqrt((double)block)) : 1 };
    return QN_OK;
}

qn_status qn_matmul_gpu_quantize_rotated(qn_matmul_launch *quantize, const qn_matmul_rotation *rotation)
{
    if (quantize->launch.variant.values[0] != QN_ACTS_HILO)
        return qn_fail(QN_ERR_INVALID, "rotated activations in layout %u: expected hi/lo int8 of several tokens",
                       quantize->launch.variant.values[0]);
    return set_hadamard(rotation, quantize->args.acts.n_cols, QN_MATMUL_MAX_HADAMARD, &quantize->args.acts.hadamard);
}

/* ---- GEMV and GEMM ---- */

/* Configuration of a GEMV block. */
struct block {
    size_t k_warps, m_warps, reduce_tiles, shared_bytes;
};

/* Chooses the number of tiles per reduction: enough that reductions are rare, few enough that the partials need little
 * shared memory. */
static size_t choose_reduce_tiles(int layout, size_t step_tiles, size_t m_warps, size_t tiles)
{
    const size_t step = step_tiles * m_warps, wanted = layout == QN_ACTS_HILO_N1 ? 16 : 2;
    const size_t most = (tiles + step - 1) / step * step, reduce_tiles = (wanted + step - 1) / step * step;
    return reduce_tiles < most ? reduce_tiles : most;
}

/* Selects the split of a block's k-tiles and tiles over its warps with the lowest cost: a warp executes its steps
 * serially, and up to twelve warps run a step each in about the time of one. The activations of several tokens, each of
 * which is a line of L1, are worth keeping in registers. False if no split fits the shared memory. */
static bool choose_gemv_block(const struct gemv_variant *variant, int layout, const qn_tile_layout *tiles,
                              size_t n_k_tiles, size_t tiles_per_block, size_t n_tokens, size_t max_shared,
                              struct block *best)
{
    const size_t step_bytes = variant->step_tiles * (code_bytes(tiles) + scale_bytes(tiles));
    const size_t tile_n = layout == QN_ACTS_HILO_N1 ? 1 : QN_MMA_N,
                 n_batches = (tiles_per_block + variant->step_tiles - 1) / variant->step_tiles;
    const size_t most = (size_t)QN_GEMV_WARPS(tiles->bits);
    size_t best_cost = SIZE_MAX;
    for (size_t k_warps = 1; k_warps <= most && k_warps <= n_k_tiles; k_warps++)
        for (size_t m_warps = 1; k_warps * m_warps <= most && m_warps <= n_batches; m_warps++) {
            const size_t warps = k_warps * m_warps;
            const size_t steps = (n_k_tiles + k_warps - 1) / k_warps * ((n_batches + m_warps - 1) / m_warps);
            const bool keeps = n_tokens > 1 && QN_GEMV_KEPT_TILES(tiles->bits) > 1 &&
                               (n_k_tiles + k_warps - 1) / k_warps <= QN_GEMV_KEPT_TILES(tiles->bits);
            const size_t cost = (keeps ? 4 : 5) * steps * (warps > 12 ? warps : 12) * 32 + (most - warps);
            const size_t reduce_tiles = choose_reduce_tiles(layout, variant->step_tiles, m_warps, tiles_per_block);
            const size_t shared = warps * variant->stages * (step_bytes + 8) +
                                  2 * k_warps * reduce_tiles * QN_TILE_ROWS * tile_n * sizeof(float) +
                                  (layout == QN_ACTS_HILO_N1 ? n_k_tiles * QN_GEMV_N1_TILE_BYTES : 0);
            if (cost < best_cost && shared <= max_shared) {
                best_cost = cost;
                *best = (struct block){ k_warps, m_warps, reduce_tiles, shared };
            }
        }
    return best_cost != SIZE_MAX;
}

static qn_status gemv_launch(const qn_matmul_gpu *gpu, const qn_tiled_matrix *matrix, const qn_matmul_acts *acts,
                             size_t n_tokens, qn_matmul_launch *out)
{
    const struct gemv_variant *gemv = gemv_variant(&matrix->tiles, acts->layout);
    const size_t n_k_tiles = k_tiles_of(matrix->n_cols),
                 blocks = matrix->n_tiles < gpu->n_sms ? matrix->n_tiles : gpu->n_sms;
    struct block block;
    if (!gemv)
        return qn_fail(QN_ERR_INVALID, "hi/lo int8 activations of one token for weights of %u bits: expected fp16",
                       matrix->tiles.bits);
    if (!choose_gemv_block(gemv, acts->layout, &matrix->tiles, n_k_tiles, (matrix->n_tiles + blocks - 1) / blocks,
                           n_tokens, gpu->max_shared_bytes, &block))
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "a GEMV of %zu columns needs more shared memory than the %u bytes of this device",
                       matrix->n_cols, gpu->max_shared_bytes);
    *out = (qn_matmul_launch){
        .launch = { .variant = gemv_of(*gemv),
                    .function = "qn_matmul_gemv",
                    .grid = { (uint32_t)blocks, 1, 1 },
                    .block = { (uint32_t)(block.k_warps * block.m_warps * 32), 1, 1 },
                    .shared_bytes = (uint32_t)block.shared_bytes,
                    .args_bytes = sizeof out->args.gemv,
                    .pdl = true },
        .args.gemv = { .weights = matrix->address,
                       .acts = acts->address,
                       .token_scale = acts->scale,
                       .n_tiles = (uint32_t)matrix->n_tiles,
                       .n_k_tiles = (uint32_t)n_k_tiles,
                       .n_tokens = (uint32_t)n_tokens,
                       .capacity = (uint32_t)acts->capacity,
                       .n_k_warps = (uint32_t)block.k_warps,
                       .reduce_tiles = (uint32_t)block.reduce_tiles,
                       .n_outs = (uint32_t)matrix->n_outs,
                       .out_dtype = matrix->out_dtype },
    };
    memcpy(out->args.gemv.outs, matrix->outs, sizeof matrix->outs);
    return QN_OK;
}

/* Configuration of a GEMM: its blocks, how many a cluster has, and clusters without split-K. */
struct config {
    const struct gemm_tile *tile;
    size_t cluster, unsplit, cost;
};

/* Returns the number of thread blocks that run concurrently in clusters of this size. A cluster is confined to a GPC
 * (graphics processing cluster) of about 16 SMs, and GPCs differ: measured with cuOccupancyMaxActiveClusters for the
 * 132 SMs of an H200. */
static size_t concurrent_blocks(const qn_matmul_gpu *gpu, size_t cluster)
{
    static const uint8_t max_active_blocks[QN_GEMM_MAX_CLUSTER] = { 132, 132, 117, 120, 110, 102, 105, 120 };
    return (size_t)gpu->n_sms * max_active_blocks[cluster - 1] / 132 / cluster * cluster;
}

/* Estimates the time of a GEMM in nanoseconds, fitted to 1-bit weights on an H200: per k-tile, and per block for
 * prologue and epilogue, whose stores a cluster shares. */
static size_t gemm_cost(const struct gemm_tile *tile, size_t waves, size_t n_k_tiles, size_t cluster)
{
    const size_t k_tile = (700 + 16 * tile->tokens) * tile->rows / 256;
    return waves * ((n_k_tiles + cluster - 1) / cluster * k_tile + 3000 + (cluster > 1 ? 1000 : 0) +
                    20 * tile->tokens / cluster);
}

/* Returns the bytes of shared memory of a block: mbarriers (barriers in shared memory), then stages or the block's
 * partials. */
static size_t shared_bytes_of(const struct gemm_tile *tile, size_t cluster)
{
    const size_t stages = QN_GEMM_STAGES(tile->tokens) * (size_t)tile->tokens * 128,
                 sums = tile->rows * tile->tokens * sizeof(float);
    return QN_GEMM_BARRIER_BYTES + (cluster > 1 && sums > stages ? sums : stages);
}

static size_t row_blocks_of(const qn_tiled_matrix *matrix, size_t rows)
{
    const size_t tiles = rows / QN_TILE_ROWS;
    return (matrix->n_tiles + tiles - 1) / tiles;
}

/* The division of row blocks over clusters of this size with the lowest cost. Unsplit blocks fill all SMs as often as
 * possible; clusters compute the rest by split-K, in a fraction of a wave's time. */
static struct config choose_division(const qn_matmul_gpu *gpu, const qn_tiled_matrix *matrix, size_t n_tokens,
                                     const struct gemm_tile *tile, size_t cluster)
{
    const size_t row_blocks = row_blocks_of(matrix, tile->rows), n_k_tiles = k_tiles_of(matrix->n_cols),
                 token_blocks = (n_tokens + tile->tokens - 1) / tile->tokens,
                 block_slots = concurrent_blocks(gpu, cluster),
                 full = row_blocks * token_blocks / (block_slots ? block_slots : 1) * block_slots,
                 most = cluster == 1 ? row_blocks : full / (cluster * token_blocks);
    struct config best = { .tile = tile, .cluster = cluster, .unsplit = row_blocks, .cost = SIZE_MAX };
    for (size_t unsplit = cluster == 1 ? most : 0; block_slots && unsplit <= most; unsplit += most ? most : 1) {
        const size_t rest = (row_blocks - unsplit * cluster) * cluster;
        const size_t cost =
            gemm_cost(tile, (unsplit * cluster * token_blocks + block_slots - 1) / block_slots, n_k_tiles, 1) +
            gemm_cost(tile, (rest * token_blocks + block_slots - 1) / block_slots, n_k_tiles, cluster);
        if (cost < best.cost)
            best = (struct config){ tile, cluster, unsplit, cost };
    }
    return best;
}

/* The configuration with the lowest cost that fits the shared memory, and its cost. */
static struct config choose_gemm_config(const qn_matmul_gpu *gpu, const qn_tiled_matrix *matrix, size_t n_tokens)
{
    const size_t most = gpu->clusters ? QN_GEMM_MAX_CLUSTER : 1, n_k_tiles = k_tiles_of(matrix->n_cols);
    struct config best = { .tile = &gemm_tiles[1], .cluster = 1, .cost = SIZE_MAX };
    for (const struct gemm_tile *tile = gemm_tiles; tile < gemm_tiles + GEMM_TILES; tile++)
        for (size_t cluster = 1; cluster <= most && cluster <= n_k_tiles; cluster++) {
            if (matrix->tiles.bits < tile->min_bits || matrix->tiles.bits > tile->max_bits ||
                shared_bytes_of(tile, cluster) > gpu->max_shared_bytes)
                break;
            const struct config found = choose_division(gpu, matrix, n_tokens, tile, cluster);
            if (found.cost < best.cost)
                best = found;
        }
    return best;
}

static qn_status gemm_launch(const qn_matmul_gpu *gpu, const qn_tiled_matrix *matrix, const qn_matmul_acts *acts,
                             size_t n_tokens, qn_matmul_launch *out)
{
    const struct config config = choose_gemm_config(gpu, matrix, n_tokens);
    const size_t tokens = config.tile->tokens, rows = config.tile->rows, row_blocks = row_blocks_of(matrix, rows),
                 clusters = config.unsplit + row_blocks - config.unsplit * config.cluster,
                 shared = shared_bytes_of(config.tile, config.cluster);
    if (shared > gpu->max_shared_bytes || clusters > 65535)
        return qn_fail(QN_ERR_UNSUPPORTED, "a GEMM of %zu row tiles needs %zu bytes of shared memory of %u",
                       matrix->n_tiles, shared, gpu->max_shared_bytes);
    *out = (qn_matmul_launch){
        .launch = { .variant = QN_GPU_VARIANT(gemm, matrix->tiles.bits, matrix->tiles.n_scales,
                                              matrix->tiles.has_offset, tokens, rows),
                    .function = "qn_matmul_gemm",
                    .grid = { (uint32_t)((n_tokens + tokens - 1) / tokens), (uint32_t)clusters,
                              (uint32_t)config.cluster },
                    .block = { (uint32_t)QN_GEMM_THREADS(rows), 1, 1 },
                    .shared_bytes = (uint32_t)shared,
                    .args_bytes = sizeof out->args.gemm,
                    .cluster = (uint32_t)config.cluster,
                    .pdl = true },
        .args.gemm = { .weights = matrix->address,
                       .acts = acts->address,
                       .token_scale = acts->scale,
                       .n_tiles = (uint32_t)matrix->n_tiles,
                       .n_k_tiles = (uint32_t)k_tiles_of(matrix->n_cols),
                       .n_tokens = (uint32_t)n_tokens,
                       .capacity = (uint32_t)acts->capacity,
                       .n_unsplit = (uint32_t)config.unsplit,
                       .n_outs = (uint32_t)matrix->n_outs,
                       .out_dtype = matrix->out_dtype },
    };
    memcpy(out->args.gemm.outs, matrix->outs, sizeof matrix->outs);
    return QN_OK;
}

/* ---- GEMM of few tokens ---- */

/* The workspace: counters of qn_matmul_gemv_norm, slots, then, of the same size, sums of first parts or partials of
 * qn_matmul_gemv_norm. */
enum { NORM_COUNTERS = QN_FEW_MAX_TOKENS / QN_MMA_N * QN_GEMV_NORM_MAX_ROWS / QN_TILE_ROWS / QN_GEMV_NORM_TILES };
_Static_assert(NORM_COUNTERS * sizeof(uint32_t) <= QN_MATMUL_COUNTERS_BYTES, "counters fit");

/* Over all tokens: each block occupies an SM. */
uint32_t qn_matmul_gpu_few_blocks(const qn_matmul_gpu *gpu)
{
    return gpu->n_sms < QN_FEW_MAX_BLOCKS ? gpu->n_sms : QN_FEW_MAX_BLOCKS;
}

size_t qn_matmul_gpu_slot_bytes(const qn_matmul_gpu *gpu)
{
    return (size_t)qn_matmul_gpu_few_blocks(gpu) * few_slot_bytes(QN_FEW_TILE_N);
}

size_t qn_matmul_gpu_workspace_bytes(const qn_matmul_gpu *gpu)
{
    return QN_MATMUL_COUNTERS_BYTES + 2 * qn_matmul_gpu_slot_bytes(gpu);
}

/* The address after the slots. */
static uint64_t after_slots(const qn_matmul_gpu *gpu, uint64_t workspace)
{
    return workspace + QN_MATMUL_COUNTERS_BYTES + qn_matmul_gpu_slot_bytes(gpu);
}

/* Returns the bytes of shared memory of the GEMM of few tokens: the rings of activations and weights, each stage with
 * two mbarriers, and the outputs. */
static size_t few_shared_bytes(const qn_tile_layout *tiles, size_t tokens, bool planes, size_t weight_stages)
{
    if (planes)
        return QN_FEW_PLANES_STAGES_AT(tokens) +
               weight_stages * (QN_FEW_PLANES_STAGE_BYTES((size_t)tiles->bits, tiles->n_scales, tokens) + 16);
    return QN_FEW_ACTS_STAGES(tokens) * (QN_FEW_ACTS_STAGE_BYTES(tokens) + 16) +
           weight_stages * (QN_FEW_WEIGHT_STAGE_BYTES((size_t)tiles->bits, tiles->n_scales) + 16) +
           QN_FEW_OUTPUT_BYTES(tokens);
}

/* The division of the work. Parts are the same for any number of tokens; blocks of two passes have two parts each, if
 * all blocks with one would be too many. */
struct few_division {
    size_t passes, row_blocks, parts, block_parts, blocks;
};

_Static_assert(QN_FEW_MAX_TOKENS <= 2 * QN_FEW_TILE_N, "a block has up to two parts");

static struct few_division divide_few(const qn_matmul_gpu *gpu, const qn_tiled_matrix *matrix, size_t passes,
                                      bool swiglu)
{
    const size_t most = qn_matmul_gpu_few_blocks(gpu), even = most > 1 ? most / 2 * 2 : most;
    struct few_division d = { .passes = passes, .row_blocks = row_blocks_of(matrix, QN_FEW_TILE_M) };
    if (swiglu) /* of whole k-tiles of the next matmul */
        d.row_blocks = (matrix->outs[0].n_rows + QN_TILE_COLS - 1) / QN_TILE_COLS * (QN_TILE_COLS / QN_ACTS_HILO_COLS);
    const size_t units = d.row_blocks * k_tiles_of(matrix->n_cols);
    d.parts = units < even ? units : even;
    d.block_parts = d.parts * passes > most ? 2 : 1;
    d.blocks = (d.parts + d.block_parts - 1) / d.block_parts;
    return d;
}

bool qn_matmul_gpu_can_fuse(const qn_tiled_matrix *matrix, int op, size_t hadamard_block)
{
    const qn_matmul_out *outs = matrix->outs;
    if (matrix->tiles.bits > 2 || matrix->out_dtype || outs[0].n_rows % 4 || hadamard_block > QN_ACTS_HILO_COLS)
        return false;
    if (op == QN_ACTS_OP_RMS_NORM)
        return matrix->n_outs == 1 && outs[0].accumulate;
    return op == QN_ACTS_OP_SWIGLU && matrix->n_outs == 2 && outs[0].n_rows == outs[1].n_rows &&
           outs[1].first_tile == qn_matmul_gpu_tile_count(outs[0].n_rows) && !outs[0].accumulate && !outs[1].accumulate;
}

static qn_status check_next(const qn_tiled_matrix *matrix, const qn_matmul_acts *acts, const qn_matmul_next *next)
{
    const qn_matmul_out *out = &matrix->outs[0];
    if (!qn_matmul_gpu_can_fuse(matrix, next->op, next->rotation.block))
        return qn_fail(
            QN_ERR_INVALID,
            "a matmul of %u bits with %zu outputs, of %u rows, cannot compute activations of operation %d in Hadamard "
            "blocks of %zu",
            matrix->tiles.bits, matrix->n_outs, out->n_rows, next->op, next->rotation.block);
    if (next->op == QN_ACTS_OP_RMS_NORM && (out->stride % 4 || (out->data | next->weight) % 16))
        return qn_fail(QN_ERR_INVALID,
                       "a norm of rows that are %u floats apart: expected rows and weights at multiples of 16 bytes",
                       out->stride);
    if (next->acts->layout != QN_ACTS_HILO || next->acts->n_cols != matrix->outs[0].n_rows ||
        next->acts->capacity < acts->capacity || next->acts->address == acts->address)
        return qn_fail(QN_ERR_INVALID,
                       "activations of %zu columns and %zu tokens: expected hi/lo int8 of %u columns and %zu tokens",
                       next->acts->n_cols, next->acts->capacity, matrix->outs[0].n_rows, acts->capacity);
    return QN_OK;
}

/* The sums of squares of activations in QN_ACTS_HILO. */
static uint64_t sumsq_of(const qn_matmul_acts *acts)
{
    return acts->scale + hilo_blocks_of(acts->n_cols) * acts->capacity * sizeof(float);
}

/* Stages of weights: as many as fit, if that is at least one. */
static size_t weight_stages(const qn_matmul_gpu *gpu, const qn_tile_layout *tiles, size_t tokens, bool planes)
{
    enum { MAX_STAGES = 8, MAX_PLANES_STAGES = 16 };
    size_t stages = planes ? MAX_PLANES_STAGES : MAX_STAGES;
    while (stages > 1 && few_shared_bytes(tiles, tokens, planes, stages) > gpu->max_shared_bytes)
        stages--;
    return stages;
}

/* Fills the launch of a GEMM of few tokens. next: the activations that its epilogue writes; NULL: it writes outputs. */
static qn_status few_launch(const qn_matmul_gpu *gpu, const qn_tiled_matrix *matrix, const qn_matmul_acts *acts,
                            size_t n_tokens, const qn_matmul_next *next, qn_matmul_launch *out)
{
    const size_t tokens = few_tokens(acts, n_tokens), n_k_tiles = k_tiles_of(matrix->n_cols);
    const bool swiglu = next && next->op == QN_ACTS_OP_SWIGLU;
    const struct few_division d = divide_few(gpu, matrix, (n_tokens + tokens - 1) / tokens, swiglu);
    const size_t stages = weight_stages(gpu, &matrix->tiles, tokens, acts->planes);
    const size_t shared = few_shared_bytes(&matrix->tiles, tokens, acts->planes, stages);
    if (matrix->tiles.bits > 2 || n_tokens > QN_FEW_MAX_TOKENS)
        return qn_fail(QN_ERR_INVALID, "hi/lo int8 activations of %zu tokens by weights of %u bits: expected fp16",
                       n_tokens, matrix->tiles.bits);
    if (acts->planes && acts->planes != qn_matmul_gpu_planes(gpu, &matrix->tiles, n_tokens))
        return qn_fail(QN_ERR_INVALID, "%zu tokens as bit planes for weights of %u bits by weights of %u bits",
                       n_tokens, acts->planes, matrix->tiles.bits);
    if (!acts->workspace || acts->workspace % 256 || acts->scale % 16)
        return qn_fail(QN_ERR_INVALID,
                       "hi/lo int8 activations need a workspace at a multiple of 256 bytes, scales at one of 16");
    if (shared > gpu->max_shared_bytes || d.blocks * d.passes > qn_matmul_gpu_few_blocks(gpu) ||
        d.row_blocks * n_k_tiles > UINT32_MAX / (QN_FEW_MAX_BLOCKS + 1))
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "a GEMM of few tokens needs %zu bytes of shared memory of %u, and %zu SMs of %u", shared,
                       gpu->max_shared_bytes, d.passes, gpu->n_sms);
    *out = (qn_matmul_launch){
        .launch = { .variant = QN_GPU_VARIANT(few, matrix->tiles.bits, matrix->tiles.n_scales, (uint32_t)tokens,
                                              acts->planes != 0),
                    .function = "qn_matmul_gemm_few",
                    .grid = { (uint32_t)d.blocks, (uint32_t)d.passes, 1 },
                    .block = { QN_FEW_THREADS, 1, 1 },
                    .shared_bytes = (uint32_t)shared,
                    .args_bytes = sizeof out->args.few,
                    .pdl = true },
        .args.few = { .weights = matrix->address,
                      .acts = acts->address,
                      .acts_scale = acts->scale,
                      .sumsq = acts->rms_norm ? sumsq_of(acts) : 0,
                      .slots = acts->workspace + QN_MATMUL_COUNTERS_BYTES,
                      .first_parts = after_slots(gpu, acts->workspace),
                      .n_tiles = (uint32_t)matrix->n_tiles,
                      .n_k_tiles = (uint32_t)n_k_tiles,
                      .n_tokens = (uint32_t)n_tokens,
                      .capacity = (uint32_t)acts->capacity,
                      .n_row_blocks = (uint32_t)d.row_blocks,
                      .n_parts = (uint32_t)d.parts,
                      .block_parts = (uint32_t)d.block_parts,
                      .up_tile = swiglu ? matrix->outs[1].first_tile : 0,
                      .n_cols = (uint32_t)acts->n_cols,
                      .eps = acts->eps,
                      .weight_stages = (uint32_t)stages,
                      .n_outs = (uint32_t)matrix->n_outs,
                      .out_dtype = matrix->out_dtype },
    };
    memcpy(out->args.few.outs, matrix->outs, sizeof matrix->outs);
    if (!next)
        return QN_OK;
    out->args.few.next = (qn_matmul_few_next){ .acts = next->acts->address,
                                               .scale = next->acts->scale,
                                               .sumsq = sumsq_of(next->acts),
                                               .weight = next->weight,
                                               .capacity = (uint32_t)next->acts->capacity,
                                               .planes = next->acts->planes,
                                               .op = (uint32_t)next->op };
    return set_hadamard(&next->rotation, next->acts->n_cols, QN_ACTS_HILO_COLS, &out->args.few.next.hadamard);
}

static qn_status check_matmul(const qn_tiled_matrix *matrix, const qn_matmul_acts *acts, size_t n_tokens)
{
    size_t bytes;
    QN_TRY(qn_matmul_gpu_bytes(&matrix->tiles, matrix->n_tiles, matrix->n_cols, &bytes));
    QN_TRY(qn_matmul_gpu_acts_bytes(acts->layout, acts->n_cols, acts->capacity, &bytes));
    if (acts->n_cols != matrix->n_cols || n_tokens == 0 || n_tokens > acts->capacity)
        return qn_fail(QN_ERR_INVALID, "%zu tokens of %zu columns by a matrix of %zu columns, %zu tokens allocated",
                       n_tokens, acts->n_cols, matrix->n_cols, acts->capacity);
    if (matrix->n_outs == 0 || matrix->n_outs > QN_MATMUL_OUTS || matrix->outs[0].first_tile != 0)
        return qn_fail(QN_ERR_INVALID, "a matmul with %zu outputs: expected 1 to %d, from tile 0 on", matrix->n_outs,
                       QN_MATMUL_OUTS);
    if (matrix->address % 128 || acts->address % 1024)
        return qn_fail(QN_ERR_INVALID, "tiles begin at multiples of 128 bytes, activations of 1024");
    return QN_OK;
}

qn_status qn_matmul_gpu_matmul_fused(const qn_matmul_gpu *gpu, const qn_tiled_matrix *matrix,
                                     const qn_matmul_acts *acts, size_t n_tokens, const qn_matmul_next *next,
                                     qn_matmul_launch *out)
{
    QN_TRY(check_matmul(matrix, acts, n_tokens));
    if (acts->layout != QN_ACTS_HILO)
        return qn_fail(QN_ERR_INVALID, "activations in layout %d: a matmul that computes others reads hi/lo int8",
                       acts->layout);
    QN_TRY(check_next(matrix, acts, next));
    return few_launch(gpu, matrix, acts, n_tokens, next, out);
}

/* Whether these are weights that qn_matmul_gemm reads faster than qn_matmul_gemv, even for one token. */
static bool is_large_f16(const qn_matmul_gpu *gpu, const qn_tiled_matrix *matrix)
{
    return matrix->tiles.bits == 16 && matrix->n_tiles >= 2 * (size_t)gpu->n_sms;
}

qn_status qn_matmul_gpu_matmul(const qn_matmul_gpu *gpu, const qn_tiled_matrix *matrix, const qn_matmul_acts *acts,
                               size_t n_tokens, qn_matmul_launch *out)
{
    QN_TRY(check_matmul(matrix, acts, n_tokens));
    if (acts->layout == QN_ACTS_HILO)
        return few_launch(gpu, matrix, acts, n_tokens, NULL, out);
    /* For weights of 1 and 2 bits only qn_matmul_gemm has fp16 kernels. */
    const bool by_gemm = matrix->tiles.bits <= 2 || is_large_f16(gpu, matrix) || n_tokens > QN_GEMV_F16_MAX_TOKENS;
    if (acts->layout == QN_ACTS_F16 && by_gemm)
        return gemm_launch(gpu, matrix, acts, n_tokens, out);
    return gemv_launch(gpu, matrix, acts, n_tokens, out);
}

size_t qn_matmul_gpu_same_tokens(const qn_matmul_gpu *gpu, const qn_tiled_matrix *matrix)
{
    size_t tokens = QN_FEW_MAX_TOKENS;
    if (matrix->tiles.bits <= 2)
        return tokens;
    if (!is_large_f16(gpu, matrix))
        return QN_GEMV_F16_MAX_TOKENS;
    for (size_t i = 0; i < GEMM_TILES; i++) /* the division of rows over blocks depends on the blocks of tokens */
        if (matrix->tiles.bits <= gemm_tiles[i].max_bits && gemm_tiles[i].tokens < tokens)
            tokens = gemm_tiles[i].tokens;
    return tokens;
}

/* ---- GEMV of a norm ---- */

bool qn_matmul_gpu_has_gemv_norm(const qn_matmul_gpu *gpu, const qn_tiled_matrix *matrix)
{
    const size_t groups = (matrix->n_tiles + QN_GEMV_NORM_TILES - 1) / QN_GEMV_NORM_TILES;
    return matrix->tiles.bits == 16 && !matrix->out_dtype && matrix->n_cols % 4 == 0 &&
           matrix->n_tiles <= QN_GEMV_NORM_MAX_ROWS / QN_TILE_ROWS &&
           QN_FEW_MAX_TOKENS / QN_MMA_N * groups * k_tiles_of(matrix->n_cols) * QN_GEMV_NORM_PARTIALS * sizeof(float) <=
               qn_matmul_gpu_slot_bytes(gpu);
}

qn_status qn_matmul_gpu_gemv_norm(const qn_matmul_gpu *gpu, const qn_tiled_matrix *matrix,
                                  const qn_matmul_norm_rows *rows, uint64_t workspace, size_t n_tokens,
                                  qn_matmul_launch *out)
{
    enum { MOST_OCTETS = 4 }; /* of blocks: with more, weights are read from L2 more often */
    const size_t octets = (n_tokens + QN_MMA_N - 1) / QN_MMA_N, n_k_tiles = k_tiles_of(matrix->n_cols);
    if (!qn_matmul_gpu_has_gemv_norm(gpu, matrix) || n_tokens == 0 || n_tokens > QN_FEW_MAX_TOKENS)
        return qn_fail(QN_ERR_INVALID,
                       "a norm of %zu rows of %zu by %zu tiles of %u bits: expected up to %d rows, and few of fp16",
                       n_tokens, matrix->n_cols, matrix->n_tiles, matrix->tiles.bits, QN_FEW_MAX_TOKENS);
    if ((rows->x | rows->weight) % 16 || rows->stride % 4 || rows->stride > UINT32_MAX || !workspace || workspace % 256)
        return qn_fail(
            QN_ERR_INVALID,
            "a norm of rows that are %zu floats apart: expected rows and weights at multiples of 16 bytes, and a "
            "workspace at one of 256",
            rows->stride);
    *out = (qn_matmul_launch){
        .launch = { .variant.source = &gemv_norm_source,
                    .function = "qn_matmul_gemv_norm",
                    .grid = { (uint32_t)n_k_tiles,
                              (uint32_t)((matrix->n_tiles + QN_GEMV_NORM_TILES - 1) / QN_GEMV_NORM_TILES),
                              (uint32_t)(octets < MOST_OCTETS ? octets : MOST_OCTETS) },
                    .block = { QN_GEMV_NORM_THREADS, 1, 1 },
                    .args_bytes = sizeof out->args.gemv_norm,
                    .pdl = true },
        .args.gemv_norm = { .weights = matrix->address,
                            .x = rows->x,
                            .norm = rows->weight,
                            .counters = workspace,
                            .partials = after_slots(gpu, workspace),
                            .n_tiles = (uint32_t)matrix->n_tiles,
                            .n_k_tiles = (uint32_t)n_k_tiles,
                            .n_tokens = (uint32_t)n_tokens,
                            .n_cols = (uint32_t)matrix->n_cols,
                            .stride = (uint32_t)rows->stride,
                            .eps = rows->eps,
                            .n_outs = (uint32_t)matrix->n_outs },
    };
    memcpy(out->args.gemv_norm.outs, matrix->outs, sizeof matrix->outs);
    return QN_OK;
}
