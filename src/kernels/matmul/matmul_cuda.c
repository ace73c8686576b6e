/* The launches of the GPU's matrix products: which variant, how many warps, how much shared memory. */
#include "kernels/matmul/matmul_cuda.h"

#include "base/half.h"

#include <math.h>
#include <string.h>

/* ---- Variants ---- */

/* Tokens of a block of qn_matmul_prompt. */
enum { PROMPT_SIZES = 3 };
static const size_t prompt_tokens[PROMPT_SIZES] = { 32, 64, QN_PROMPT_TOKENS };

/* A way in which codes and scales lie in tiles, and what its kernels are called. `group` and `stages` of the decode kernels are
 * their defines QN_GROUP and QN_STAGES: bytes in flight against shared memory. */
struct variant {
    uint32_t bits, n_scales, has_offset;
    struct gemv {
        const char *defines;
        uint32_t group, stages;
    } gemv[3]; /* by form */
    const char *prompt[PROMPT_SIZES];
};

#define DECODE(form, bits, scales, offset, group, stages)                                                                      \
    {                                                                                                                          \
        "-DQN_FORM=" #form " -DQN_BITS=" #bits " -DQN_SCALES=" #scales " -DQN_OFFSET=" #offset " -DQN_GROUP=" #group           \
        " -DQN_STAGES=" #stages,                                                                                               \
            group, stages                                                                                                      \
    }
#define PROMPT_TILE(bits, scales, offset, tokens)                                                                              \
    "-DQN_BITS=" #bits " -DQN_SCALES=" #scales " -DQN_OFFSET=" #offset " -DQN_TOKENS=" #tokens
#define PROMPT(bits, scales, offset)                                                                                           \
    {                                                                                                                          \
        PROMPT_TILE(bits, scales, offset, 32), PROMPT_TILE(bits, scales, offset, 64), PROMPT_TILE(bits, scales, offset, 128)   \
    }

static const struct variant variants[] = {
    { 1, 2, 0, { DECODE(0, 1, 2, 0, 4, 4), DECODE(1, 1, 2, 0, 2, 3), DECODE(2, 1, 2, 0, 2, 3) }, PROMPT(1, 2, 0) },
    { 2, 4, 0, { DECODE(0, 2, 4, 0, 4, 2), DECODE(1, 2, 4, 0, 2, 2), DECODE(2, 2, 4, 0, 2, 3) }, PROMPT(2, 4, 0) },
    { 2, 2, 0, { DECODE(0, 2, 2, 0, 4, 2), DECODE(1, 2, 2, 0, 2, 2), DECODE(2, 2, 2, 0, 2, 3) }, PROMPT(2, 2, 0) },
    { 4, 8, 1, { { 0 }, { 0 }, DECODE(2, 4, 8, 1, 2, 2) }, PROMPT(4, 8, 1) },
    { 8, 8, 0, { { 0 }, { 0 }, DECODE(2, 8, 8, 0, 2, 2) }, PROMPT(8, 8, 0) },
    { 16, 1, 0, { { 0 }, { 0 }, DECODE(2, 16, 1, 0, 1, 2) }, PROMPT(16, 1, 0) },
};

static const struct variant *variant_of(const qn_matmul_tiles *tiles)
{
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++)
        if (variants[i].bits == tiles->bits && variants[i].n_scales == tiles->n_scales)
            return &variants[i];
    return NULL;
}

/* By form and operation. */
static const char *const acts_defines[3][3] = {
    { "-DQN_FORM=0 -DQN_OP=0", "-DQN_FORM=0 -DQN_OP=1", "-DQN_FORM=0 -DQN_OP=2" },
    { "-DQN_FORM=1 -DQN_OP=0", "-DQN_FORM=1 -DQN_OP=1", "-DQN_FORM=1 -DQN_OP=2" },
    { "-DQN_FORM=2 -DQN_OP=0", "-DQN_FORM=2 -DQN_OP=1", "-DQN_FORM=2 -DQN_OP=2" },
};

qn_matmul_tiles qn_matmul_gpu_tiles(const qn_type_info *type)
{
    switch (type->type) {
    case QN_TYPE_Q1_0: return (qn_matmul_tiles){ QN_STORED_Q1_0, 1, 2, 0, false };
    case QN_TYPE_Q2_0: return (qn_matmul_tiles){ QN_STORED_Q2_0, 2, 4, 0, false };
    case QN_TYPE_PQ2_0: return (qn_matmul_tiles){ QN_STORED_PQ2_0, 2, 2, 0, false };
    case QN_TYPE_OX2_0: return (qn_matmul_tiles){ QN_STORED_OX2_0, 2, 2, 0, false };
    case QN_TYPE_PTQ1_0: return (qn_matmul_tiles){ QN_STORED_PTQ1_0, 2, 2, 0, false };
    case QN_TYPE_TQ1_0: return (qn_matmul_tiles){ QN_STORED_TQ1_0, 2, 2, 0, false };
    case QN_TYPE_TQ2_0: return (qn_matmul_tiles){ QN_STORED_TQ2_0, 2, 2, 0, false };
    case QN_TYPE_Q4_0: return (qn_matmul_tiles){ QN_STORED_Q4_0, 4, 8, 1, false };
    case QN_TYPE_Q4_1: return (qn_matmul_tiles){ QN_STORED_Q4_1, 4, 8, 1, false };
    case QN_TYPE_Q8_0: return (qn_matmul_tiles){ QN_STORED_Q8_0, 8, 8, 0, false };
    case QN_TYPE_F16: return (qn_matmul_tiles){ QN_STORED_F16, 16, 1, 0, false };
    case QN_TYPE_BF16: return (qn_matmul_tiles){ QN_STORED_BF16, 16, 1, 0, false };
    default: return (qn_matmul_tiles){ QN_STORED_F16, 16, 1, 0, true };
    }
}

void qn_matmul_gpu_halves(const qn_type_info *type, const uint8_t *row, size_t n_cols, float *scratch, uint16_t *halves)
{
    type->decode(row, n_cols / type->block_weights, scratch);
    for (size_t i = 0; i < n_cols; i++) {
        const uint16_t h = qn_f32_to_f16(scratch[i]);
        halves[i] = (h & 0x7fffu) == 0x7c00u ? h - 1 : h; /* beyond the largest half: that one */
    }
}

/* ---- Sizes ---- */

static size_t chunks_of(size_t n_cols)
{
    return n_cols / QN_TILE_COLS + (n_cols % QN_TILE_COLS != 0);
}

static size_t code_bytes(const qn_matmul_tiles *tiles)
{
    return (size_t)tiles->bits * QN_TILE_SET;
}

static size_t scale_bytes(const qn_matmul_tiles *tiles)
{
    return tiles->bits == 16 ? 0 : (size_t)tiles->n_scales * (1 + tiles->has_offset) * 2 * QN_TILE_ROWS;
}

size_t qn_matmul_gpu_tile_count(size_t n_rows)
{
    return n_rows / QN_TILE_ROWS + (n_rows % QN_TILE_ROWS != 0);
}

qn_status qn_matmul_gpu_bytes(const qn_matmul_tiles *tiles, size_t n_tiles, size_t n_cols, size_t *bytes)
{
    const size_t n_chunks = chunks_of(n_cols);
    /* Kernels count tiles, chunks, rows and columns in 32 bits. */
    if (n_tiles == 0 || n_cols == 0 || n_tiles > INT32_MAX / QN_TILE_ROWS || n_chunks > INT32_MAX / QN_TILE_COLS ||
        __builtin_mul_overflow(n_tiles, n_chunks, bytes) ||
        __builtin_mul_overflow(*bytes, code_bytes(tiles) + scale_bytes(tiles), bytes))
        return qn_fail(QN_ERR_INVALID, "a matrix of %zu tiles of rows and %zu columns is beyond what the GPU's kernels count",
                       n_tiles, n_cols);
    return QN_OK;
}

int qn_matmul_gpu_form(const qn_matmul_tiles *tiles, size_t n_tokens, bool fine)
{
    if (tiles->bits > 2 || fine || n_tokens > QN_MATMUL_COLUMN_TOKENS)
        return QN_ACTS_HALVES;
    return n_tokens == 1 ? QN_ACTS_ROW : QN_ACTS_COLUMNS;
}

qn_status qn_matmul_gpu_acts_bytes(int form, size_t n_cols, size_t capacity, size_t *bytes)
{
    const size_t n_chunks = chunks_of(n_cols), groups = capacity / QN_ACTS_GROUP + (capacity % QN_ACTS_GROUP != 0);
    const size_t each = form == QN_ACTS_ROW       ? QN_ACTS_ROW_CHUNK
                        : form == QN_ACTS_COLUMNS ? QN_ACTS_COLUMNS_CHUNK
                                                  : (size_t)QN_ACTS_GROUP * QN_TILE_COLS * 2;
    if (n_cols == 0 || n_chunks > INT32_MAX / QN_TILE_COLS || (form == QN_ACTS_ROW ? capacity != 1 : capacity == 0) ||
        (form == QN_ACTS_HALVES && capacity % QN_PROMPT_TOKENS) || capacity > INT32_MAX ||
        __builtin_mul_overflow(n_chunks, groups, bytes) || __builtin_mul_overflow(*bytes, each, bytes))
        return qn_fail(QN_ERR_INVALID, "activations of %zu tokens and %zu columns: not of this form", capacity, n_cols);
    return QN_OK;
}

/* ---- Launches that prepare ---- */

qn_status qn_matmul_gpu_pack(const qn_matmul_area *area, uint64_t rows, size_t row_bytes, size_t n_rows, size_t first_tile,
                             qn_matmul_launch *out)
{
    const size_t n_tiles = qn_matmul_gpu_tile_count(n_rows), n_chunks = chunks_of(area->n_cols);
    size_t bytes;
    QN_TRY(qn_matmul_gpu_bytes(&area->tiles, area->n_tiles, area->n_cols, &bytes));
    if (n_rows == 0 || first_tile > area->n_tiles || n_tiles > area->n_tiles - first_tile || n_tiles > 65535)
        return qn_fail(QN_ERR_INVALID, "%zu rows from tile %zu on: the area has %zu tiles, and a launch takes 65535", n_rows,
                       first_tile, area->n_tiles);
    *out = (qn_matmul_launch){
        .launch = { .source = "matmul/matmul_pack.cu",
                    .defines = "",
                    .function = "qn_matmul_pack",
                    .grid = { (uint32_t)n_chunks, (uint32_t)n_tiles, 1 },
                    .block = { 32, 1, 1 },
                    .args_bytes = sizeof out->args.pack },
        .args.pack = { .rows = rows,
                       .tiles = area->address,
                       .row_bytes = row_bytes,
                       .n_rows = (uint32_t)n_rows,
                       .n_cols = (uint32_t)area->n_cols,
                       .n_tiles = (uint32_t)area->n_tiles,
                       .n_chunks = (uint32_t)n_chunks,
                       .first_tile = (uint32_t)first_tile,
                       .stored = area->tiles.stored,
                       .bits = area->tiles.bits,
                       .n_scales = area->tiles.n_scales,
                       .has_offset = area->tiles.has_offset },
    };
    return QN_OK;
}

qn_status qn_matmul_gpu_quantize(const qn_matmul_acts *acts, int op, uint64_t x, uint64_t x2, uint64_t weight, float eps,
                                 size_t stride, size_t n_tokens, qn_matmul_launch *out)
{
    size_t bytes;
    QN_TRY(qn_matmul_gpu_acts_bytes(acts->form, acts->n_cols, acts->capacity, &bytes));
    if (n_tokens == 0 || n_tokens > acts->capacity || n_tokens > 65535 || stride > UINT32_MAX)
        return qn_fail(QN_ERR_INVALID, "%zu tokens to be quantised, there is room for %zu, and a launch takes 65535", n_tokens,
                       acts->capacity);
    const size_t n_chunks = chunks_of(acts->n_cols);
    const size_t rows =
        acts->form == QN_ACTS_COLUMNS ? (n_tokens + QN_ACTS_GROUP - 1) / QN_ACTS_GROUP * QN_ACTS_GROUP : n_tokens;
    /* A warp takes a pair of runs where tokens are few, so that none waits long; with many, a row is read once. */
    const size_t parts = rows > 64 ? 1 : (n_chunks * 4 + QN_ACTS_THREADS / 32 - 1) / (QN_ACTS_THREADS / 32);
    *out = (qn_matmul_launch){
        .launch = { .source = "matmul/matmul_acts.cu",
                    .defines = acts_defines[acts->form][op],
                    .function = "qn_matmul_acts",
                    .grid = { (uint32_t)parts, (uint32_t)rows, 1 },
                    .block = { QN_ACTS_THREADS, 1, 1 },
                    .args_bytes = sizeof out->args.acts,
                    .dependent = true },
        .args.acts = { .x = x,
                       .x2 = x2,
                       .weight = weight,
                       .out = acts->address,
                       .token_scale = acts->token_scale,
                       .n_cols = (uint32_t)acts->n_cols,
                       .n_chunks = (uint32_t)n_chunks,
                       .n_tokens = (uint32_t)n_tokens,
                       .capacity = (uint32_t)acts->capacity,
                       .stride = (uint32_t)stride,
                       .eps = eps },
    };
    return QN_OK;
}

/* ---- Products ---- */

/* How a decode kernel's block is made up. */
struct block {
    size_t chunk_warps, tile_warps, batch, shared_bytes;
};

/* Tiles whose sums meet at once: enough that the meetings are rare, few enough that their place is small. */
static size_t batch_of(int form, size_t group, size_t tile_warps, size_t tiles)
{
    const size_t step = group * tile_warps, wanted = form == QN_ACTS_ROW ? 16 : 2;
    const size_t most = (tiles + step - 1) / step * step, batch = (wanted + step - 1) / step * step;
    return batch < most ? batch : most;
}

/* The split of a block's chunks and tiles over its warps that ends first: a warp does its steps one after another, and takes
 * about as long over one as twelve warps take to share it. False when no split's shared memory is there. */
static bool choose_block(const struct gemv *variant, int form, const qn_matmul_tiles *tiles, size_t n_chunks,
                         size_t block_tiles, size_t max_shared, struct block *best)
{
    const size_t step_bytes = variant->group * (code_bytes(tiles) + scale_bytes(tiles));
    const size_t columns = form == QN_ACTS_ROW ? 1 : QN_ACTS_GROUP,
                 groups = (block_tiles + variant->group - 1) / variant->group;
    size_t best_cost = SIZE_MAX;
    for (size_t chunk_warps = 1; chunk_warps <= QN_MATMUL_WARPS && chunk_warps <= n_chunks; chunk_warps++)
        for (size_t tile_warps = 1; chunk_warps * tile_warps <= QN_MATMUL_WARPS && tile_warps <= groups; tile_warps++) {
            const size_t warps = chunk_warps * tile_warps;
            const size_t steps = (n_chunks + chunk_warps - 1) / chunk_warps * ((groups + tile_warps - 1) / tile_warps);
            const size_t cost = steps * (warps > 12 ? warps : 12) * 32 + (QN_MATMUL_WARPS - warps);
            const size_t batch = batch_of(form, variant->group, tile_warps, block_tiles);
            const size_t shared = warps * variant->stages * (step_bytes + 8) +
                                  2 * chunk_warps * batch * QN_TILE_ROWS * columns * sizeof(float) +
                                  (form == QN_ACTS_ROW ? n_chunks * QN_ACTS_ROW_CHUNK : 0);
            if (cost < best_cost && shared <= max_shared) {
                best_cost = cost;
                *best = (struct block){ chunk_warps, tile_warps, batch, shared };
            }
        }
    return best_cost != SIZE_MAX;
}

static qn_status decode_launch(const qn_matmul_gpu *gpu, const qn_matmul_area *area, const qn_matmul_acts *acts,
                               size_t n_tokens, qn_matmul_launch *out)
{
    const struct variant *variant = variant_of(&area->tiles);
    const struct gemv *gemv = variant ? &variant->gemv[acts->form] : NULL;
    const size_t n_chunks = chunks_of(area->n_cols), blocks = area->n_tiles < gpu->n_sms ? area->n_tiles : gpu->n_sms;
    struct block block;
    if (!gemv || !gemv->defines)
        return qn_fail(QN_ERR_INVALID, "int8 activations for weights of %u bits: expected halves", area->tiles.bits);
    if (!choose_block(gemv, acts->form, &area->tiles, n_chunks, (area->n_tiles + blocks - 1) / blocks, gpu->max_shared_bytes,
                      &block))
        return qn_fail(QN_ERR_UNSUPPORTED, "products of %zu columns need more shared memory than the %u bytes of this device",
                       area->n_cols, gpu->max_shared_bytes);
    *out = (qn_matmul_launch){
        .launch = { .source = "matmul/matmul_decode.cu",
                    .defines = gemv->defines,
                    .function = "qn_matmul_decode",
                    .grid = { (uint32_t)blocks, (uint32_t)((n_tokens + QN_ACTS_GROUP - 1) / QN_ACTS_GROUP), 1 },
                    .block = { (uint32_t)(block.chunk_warps * block.tile_warps * 32), 1, 1 },
                    .shared_bytes = (uint32_t)block.shared_bytes,
                    .args_bytes = sizeof out->args.gemv,
                    .dependent = true },
        .args.gemv = { .weights = area->address,
                       .acts = acts->address,
                       .token_scale = acts->token_scale,
                       .n_tiles = (uint32_t)area->n_tiles,
                       .n_chunks = (uint32_t)n_chunks,
                       .n_tokens = (uint32_t)n_tokens,
                       .capacity = (uint32_t)acts->capacity,
                       .n_chunk_warps = (uint32_t)block.chunk_warps,
                       .batch = (uint32_t)block.batch,
                       .n_outs = (uint32_t)area->n_outs },
    };
    memcpy(out->args.gemv.outs, area->outs, sizeof area->outs);
    return QN_OK;
}

/* How a product of many tokens is laid out over blocks: tokens of each, blocks of a cluster, and clusters whose blocks take
 * rows of their own; those of the others share one block of rows. */
struct layout {
    size_t size, cluster, whole;
};

/* Blocks of such clusters that run at the same time. Clusters lie within a part of the device that has some 16 multiprocessors,
 * not all the same number: these are what the driver gives for the 132 of an H200 (cuOccupancyMaxActiveClusters). */
static size_t at_once(const qn_matmul_gpu *gpu, size_t cluster)
{
    static const uint8_t of_132[QN_PROMPT_CLUSTER] = { 132, 132, 117, 120, 110, 102, 105, 120 };
    return (size_t)gpu->n_sms * of_132[cluster - 1] / 132 / cluster * cluster;
}

/* In nanoseconds, near enough to what an H200 takes for weights of one bit: a chunk of columns, and what begins and ends a
 * block, of which the stores are shared out in a cluster. */
static size_t cost_of(size_t waves, size_t n_chunks, size_t tokens, size_t cluster)
{
    return waves *
           ((n_chunks + cluster - 1) / cluster * (700 + 16 * tokens) + 3000 + (cluster > 1 ? 1000 : 0) + 60 * tokens / cluster);
}

/* Stages, and two barriers each; or the sums of a block. */
static size_t shared_bytes_of(size_t tokens, size_t cluster)
{
    const size_t stages = QN_PROMPT_STAGES(tokens) * (tokens * 128 + 16), sums = QN_PROMPT_ROWS * tokens * sizeof(float);
    return cluster > 1 && sums > stages ? sums : stages;
}

/* The one that ends first, of those that there is shared memory for. Whole blocks fill all multiprocessors as often as there
 * are enough of them, and clusters share the columns of the rest, so that it takes a part of the time. */
static struct layout choose_layout(const qn_matmul_gpu *gpu, size_t row_blocks, size_t n_chunks, size_t n_tokens)
{
    struct layout best = { .cluster = 1, .whole = row_blocks };
    size_t best_cost = SIZE_MAX;
    for (size_t size = 0; size < PROMPT_SIZES; size++)
        for (size_t cluster = 1; cluster <= (gpu->clusters ? QN_PROMPT_CLUSTER : 1) && cluster <= n_chunks; cluster++) {
            const size_t tokens = prompt_tokens[size], token_blocks = (n_tokens + tokens - 1) / tokens;
            if (shared_bytes_of(tokens, cluster) > gpu->max_shared_bytes)
                break;
            const size_t room = at_once(gpu, cluster), full = row_blocks * token_blocks / (room ? room : 1) * room;
            const size_t most = cluster == 1 ? row_blocks : full / (cluster * token_blocks);
            for (size_t whole = cluster == 1 ? most : 0; room && whole <= most; whole += most ? most : 1) {
                const size_t rest = (row_blocks - whole * cluster) * cluster;
                const size_t cost = cost_of((whole * cluster * token_blocks + room - 1) / room, n_chunks, tokens, 1) +
                                    cost_of((rest * token_blocks + room - 1) / room, n_chunks, tokens, cluster);
                if (cost < best_cost) {
                    best = (struct layout){ size, cluster, whole };
                    best_cost = cost;
                }
            }
        }
    return best;
}

static qn_status prompt_launch(const qn_matmul_gpu *gpu, const qn_matmul_area *area, const qn_matmul_acts *acts,
                               size_t n_tokens, qn_matmul_launch *out)
{
    const size_t rows = area->n_tiles * QN_TILE_ROWS, row_blocks = (rows + QN_PROMPT_ROWS - 1) / QN_PROMPT_ROWS;
    const size_t n_chunks = chunks_of(area->n_cols);
    const struct layout layout = choose_layout(gpu, row_blocks, n_chunks, n_tokens);
    const size_t tokens = prompt_tokens[layout.size], clusters = layout.whole + row_blocks - layout.whole * layout.cluster;
    const size_t shared = shared_bytes_of(tokens, layout.cluster);
    if (shared > gpu->max_shared_bytes || clusters > 65535)
        return qn_fail(QN_ERR_UNSUPPORTED, "a product of %zu rows, with %zu bytes of shared memory of %u", rows, shared,
                       gpu->max_shared_bytes);
    *out = (qn_matmul_launch){
        .launch = { .source = "matmul/matmul_prompt.cu",
                    .defines = variant_of(&area->tiles)->prompt[layout.size],
                    .function = "qn_matmul_prompt",
                    .grid = { (uint32_t)((n_tokens + tokens - 1) / tokens), (uint32_t)clusters, (uint32_t)layout.cluster },
                    .block = { QN_PROMPT_THREADS, 1, 1 },
                    .shared_bytes = (uint32_t)shared,
                    .args_bytes = sizeof out->args.prompt,
                    .cluster = (uint32_t)layout.cluster,
                    .dependent = true },
        .args.prompt = { .weights = area->address,
                         .acts = acts->address,
                         .token_scale = acts->token_scale,
                         .n_tiles = (uint32_t)area->n_tiles,
                         .n_chunks = (uint32_t)n_chunks,
                         .n_tokens = (uint32_t)n_tokens,
                         .capacity = (uint32_t)acts->capacity,
                         .n_whole = (uint32_t)layout.whole,
                         .n_outs = (uint32_t)area->n_outs },
    };
    memcpy(out->args.prompt.outs, area->outs, sizeof area->outs);
    return QN_OK;
}

qn_status qn_matmul_gpu_product(const qn_matmul_gpu *gpu, const qn_matmul_area *area, const qn_matmul_acts *acts,
                                size_t n_tokens, qn_matmul_launch *out)
{
    size_t bytes;
    QN_TRY(qn_matmul_gpu_bytes(&area->tiles, area->n_tiles, area->n_cols, &bytes));
    QN_TRY(qn_matmul_gpu_acts_bytes(acts->form, acts->n_cols, acts->capacity, &bytes));
    if (acts->n_cols != area->n_cols || n_tokens == 0 || n_tokens > acts->capacity)
        return qn_fail(QN_ERR_INVALID, "%zu tokens of %zu columns by a matrix of %zu columns, with room for %zu tokens",
                       n_tokens, acts->n_cols, area->n_cols, acts->capacity);
    if (area->n_outs == 0 || area->n_outs > QN_MATMUL_OUTS || area->outs[0].first_tile != 0)
        return qn_fail(QN_ERR_INVALID, "a product with %zu results: expected 1 to %d, from tile 0 on", area->n_outs,
                       QN_MATMUL_OUTS);
    if (area->address % 128 || acts->address % 1024)
        return qn_fail(QN_ERR_INVALID, "tiles begin at multiples of 128 bytes, activations of 1024");
    /* A large matrix of 16 bits a weight is read faster by qn_matmul_prompt for a single token, too. */
    const bool is_large = area->tiles.bits == 16 && area->n_tiles >= 2 * (size_t)gpu->n_sms;
    if (acts->form == QN_ACTS_HALVES && (is_large || n_tokens > QN_MATMUL_HALF_TOKENS))
        return prompt_launch(gpu, area, acts, n_tokens, out);
    return decode_launch(gpu, area, acts, n_tokens, out);
}
