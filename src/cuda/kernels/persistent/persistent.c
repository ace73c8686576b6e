/* Launch of the persistent decode kernel, and the partition of its GEMVs over blocks. */
#include "cuda/kernels/persistent/persistent.h"

#include "cuda/kernels/variants.h"
#include "cuda/kernels/persistent/variants.def"

enum kernel { KERNEL_persistent, KERNEL_persistent_rows };

/* Values of a variant, in the order of variants.def. */
enum { BITS, SCALES, STAGES, GEMV_WARPS, COLUMNS_FIRST, BIT_PLANES, N_VALUES };

/* Values that the kernel of several rows has not are zeros. */
static const struct variant {
    enum kernel kernel;
    uint32_t values[N_VALUES];
} variants[] = {
#define QN_PLAIN(name, file)
#define QN_SOURCE(name, file, ...)
#define QN_VARIANT(name, ...) VARIANT_##name(__VA_ARGS__)
#define VARIANT_persistent(...) { KERNEL_persistent, { __VA_ARGS__ } },
#define VARIANT_persistent_rows(...) { KERNEL_persistent_rows, { __VA_ARGS__ } },
#define VARIANT_persistent_codes(...) /* launch_codes makes these */
#include "cuda/kernels/persistent/variants.def"
};

enum { N_VARIANTS = sizeof variants / sizeof *variants, WARPS = QN_PERSISTENT_THREADS / 32 };

static uint32_t gemv_warps(const struct variant *variant)
{
    return variant->kernel == KERNEL_persistent ? variant->values[GEMV_WARPS] : WARPS - 1;
}

static uint32_t shared_bytes(const struct variant *variant)
{
    const uint32_t bits = variant->values[BITS],
                   tile = bits * QN_FRAGMENT_BYTES + variant->values[SCALES] * 2 * QN_TILE_ROWS;
    const uint32_t ring = variant->values[STAGES] * QN_PERSISTENT_STEP_TILES(bits) * tile;
    return QN_PERSISTENT_CONTROL_BYTES + gemv_warps(variant) * ring +
           (variant->kernel == KERNEL_persistent ? QN_PERSISTENT_SCRATCH_BYTES : QN_PERSISTENT_ROWS_SCRATCH_BYTES);
}

/* Whether the device's tensor cores have binary MMA. Compute capability 10.0 and later emulate it: in nvcc's machine
 * code it is BMMA up to 9.0, and a call of a function from 10.0 on. */
static bool has_binary_mma(const qn_persistent_gpu *gpu)
{
    return gpu->major <= 9;
}

/* Returns the first variant of the kernel for a tile layout and number of rows that fits the device; NULL if there is
 * none. Several rows use int8 MMA, but need the plan of one row too. */
static const struct variant *variant_of(const qn_persistent_gpu *gpu, const qn_tile_layout *tiles, uint32_t n_rows)
{
    const enum kernel kernel = n_rows > 1 ? KERNEL_persistent_rows : KERNEL_persistent;
    if (!gpu->cooperative || tiles->has_offset || n_rows > QN_PERSISTENT_MAX_ROWS)
        return NULL;
    for (const struct variant *v = variants; v < variants + N_VARIANTS; v++)
        if (v->kernel == kernel && v->values[BITS] == tiles->bits && v->values[SCALES] == tiles->n_scales &&
            (!v->values[BIT_PLANES] || has_binary_mma(gpu)) && shared_bytes(v) <= gpu->max_shared_bytes)
            return v;
    return NULL;
}

bool qn_persistent_gpu_supports(const qn_persistent_gpu *gpu, const qn_tile_layout *tiles, uint32_t n_rows)
{
    return variant_of(gpu, tiles, n_rows) != NULL;
}

/* Measured on an H200 within the limits of an RTX 5090, Q1_0, tok/s in phases and in launches: 1.7B (0.2 GB of codes in
 * phases) 1270 and 1398, 8B (0.9 GB) 824 and 698. The small model reads few weights, and launches with PDL overlap.
 * With binary MMA phases take no longer: as a 4090 1398 and 1111, as an H200 1445 and 1496. */
bool qn_persistent_gpu_is_faster(const qn_persistent_gpu *gpu, uint64_t weight_bytes)
{
    enum { ENOUGH = 400 << 20 };
    return has_binary_mma(gpu) || weight_bytes >= ENOUGH;
}

uint32_t qn_persistent_gpu_code_max(const qn_persistent_gpu *gpu, const qn_tile_layout *tiles, uint32_t n_rows)
{
    const struct variant *variant = variant_of(gpu, tiles, n_rows);
    return !variant || !variant->values[BIT_PLANES] ? QN_HILO_MAX : tiles->bits == 1 ? 32767 : 16383;
}

/* ---- Partition of a GEMV ---- */

/* A GEMV to be divided: for which variant, of which tiles. */
struct division {
    const struct variant *variant;
    const qn_tile_layout *tiles;
    const qn_persistent_gemv *gemv;
};

/* The groups of row tiles of a block, a step each. */
static uint64_t groups_of(const struct division *d, uint32_t block_tiles)
{
    return (block_tiles + QN_PERSISTENT_STEP_TILES(d->tiles->bits) - 1) / QN_PERSISTENT_STEP_TILES(d->tiles->bits);
}

/* The segments of a block: one for each group, and one more where a warp ends within a group. */
static uint64_t segments_of(const struct division *d, uint32_t block_tiles)
{
    return groups_of(d, block_tiles) + gemv_warps(d->variant) - 1;
}

/* The steps of the busiest warp. */
static uint64_t most_steps(const struct division *d, uint32_t slice_k_tiles, uint32_t block_tiles)
{
    return (slice_k_tiles * groups_of(d, block_tiles) + gemv_warps(d->variant) - 1) / gemv_warps(d->variant);
}

/* Returns the bytes of scratch that a block of the GEMV needs in shared memory (gemv_phase of persistent.cu). */
static uint64_t scratch_bytes(const struct division *d, uint32_t slice_k_tiles, uint32_t block_tiles)
{
    const uint64_t acts_f32 = (uint64_t)slice_k_tiles * QN_TILE_COLS * sizeof(float), f16_scratch = WARPS * 64,
                   tile = QN_TILE_ROWS * sizeof(float);
    const uint64_t sums = d->variant->values[COLUMNS_FIRST]
                              ? segments_of(d, block_tiles) * QN_PERSISTENT_STEP_TILES(d->tiles->bits) * tile
                              : (uint64_t)slice_k_tiles * block_tiles * tile;
    const uint64_t k_tile = d->variant->values[BIT_PLANES] ? QN_PERSISTENT_K_TILE_BYTES(d->tiles->n_scales)
                                                           : QN_PERSISTENT_K_TILE_INT8_BYTES(d->tiles->n_scales);
    return slice_k_tiles * k_tile + (d->gemv->n_f16_tiles ? acts_f32 + f16_scratch : 0) +
           (d->gemv->rotation && acts_f32 > sums ? acts_f32 : sums);
}

/* Returns the bytes of scratch of a GEMV of several rows (gemv_shared_of of persistent_rows.cu). */
static uint64_t rows_scratch_bytes(const struct division *d, uint32_t slice_k_tiles, uint32_t block_tiles)
{
    const uint64_t k_tile_bytes = 2 * (QN_ACTS_HILO_BYTES + QN_PERSISTENT_MAX_ROWS * sizeof(float));
    const uint64_t row_bytes = (QN_PERSISTENT_STEP_TILES(d->tiles->bits) * QN_TILE_ROWS + 4) * sizeof(float);
    return slice_k_tiles * k_tile_bytes + (d->gemv->n_f16_tiles ? QN_PERSISTENT_MAX_ROWS * WARPS * 64 : 0) +
           segments_of(d, block_tiles) * QN_PERSISTENT_MAX_ROWS * row_bytes;
}

/* Estimates the cycles of a GEMV of one row: the weights of the block with the most tiles, at the rate of an H200's
 * memory; with columns first not less than the steps of the busiest warp, which take 24 cycles of an SM a bit and tile
 * with bit planes and twice that with int8; its prologue (a round is 2048 columns: four a thread), and the reduction of
 * its partials by later phases. */
static uint64_t cost_of(const struct division *d, uint32_t slice_k_tiles, uint32_t n_slices, uint32_t block_tiles)
{
    const uint64_t rounds = ((uint64_t)slice_k_tiles * QN_TILE_COLS + 2047) / 2048, bits = d->tiles->bits;
    uint64_t weights = (uint64_t)slice_k_tiles * block_tiles * (bits * 30);
    if (d->variant->values[COLUMNS_FIRST]) {
        const uint64_t step = QN_PERSISTENT_STEP_TILES(bits) * bits * (d->variant->values[BIT_PLANES] ? 24 : 48),
                       all = most_steps(d, slice_k_tiles, block_tiles) * gemv_warps(d->variant) * step;
        weights = all > weights ? all : weights;
    }
    return weights + rounds * 600 + (uint64_t)n_slices * 60;
}

/* Estimates the cycles of a GEMV of several rows: the steps of the busiest warp, with 15 warps on four issue ports and
 * 120 instructions a bit and tile; the copy of the slice's activations, 32 bytes a cycle; writing and reading the
 * partials of all blocks, 512 bytes a tile and slice, at 3100 bytes a cycle of L2; their reduction by later phases, 60
 * cycles a slice. */
static uint64_t rows_cost_of(const struct division *d, uint32_t slice_k_tiles, uint32_t n_slices, uint32_t block_tiles)
{
    const uint64_t steps = most_steps(d, slice_k_tiles, block_tiles), bits = d->tiles->bits;
    return steps * QN_PERSISTENT_STEP_TILES(bits) * bits * 450 + (uint64_t)slice_k_tiles * 130 +
           (uint64_t)d->gemv->n_tiles * n_slices / 3 + (uint64_t)n_slices * 60;
}

/* Whether a slice can have this number of K tiles. */
static bool is_slice(const qn_persistent_gpu *gpu, const qn_persistent_gemv *p, uint32_t n_rows, uint32_t k_tiles)
{
    const uint32_t slices = (p->n_k_tiles + k_tiles - 1) / k_tiles;
    if (slices > QN_PERSISTENT_MAX_SLICES || slices > gpu->n_sms)
        return false;
    return n_rows > 1 || (k_tiles * QN_TILE_COLS <= QN_PERSISTENT_MAX_SLICE_COLS &&
                          !(p->rotation && k_tiles * QN_TILE_COLS % p->rotation));
}

/* The cost of a partition; UINT64_MAX if its scratch does not fit. */
static uint64_t partition_cost(const struct division *d, uint32_t k_tiles, uint32_t slices, uint32_t block_tiles)
{
    if (d->variant->kernel == KERNEL_persistent_rows)
        return rows_scratch_bytes(d, k_tiles, block_tiles) <= QN_PERSISTENT_ROWS_SCRATCH_BYTES
                   ? rows_cost_of(d, k_tiles, slices, block_tiles)
                   : UINT64_MAX;
    return scratch_bytes(d, k_tiles, block_tiles) <= QN_PERSISTENT_SCRATCH_BYTES
               ? cost_of(d, k_tiles, slices, block_tiles)
               : UINT64_MAX;
}

static qn_status refuse(const qn_persistent_gpu *gpu, const qn_tile_layout *tiles, uint32_t n_rows)
{
    return qn_fail(QN_ERR_UNSUPPORTED,
                   "persistent decode kernel: %u rows, weights of %u bits on a device of compute capability %d with %u "
                   "bytes of shared memory",
                   n_rows, tiles->bits, gpu->major, gpu->max_shared_bytes);
}

qn_status qn_persistent_gpu_partition(const qn_persistent_gpu *gpu, const qn_tile_layout *tiles, uint32_t n_rows,
                                      qn_persistent_gemv *p)
{
    const uint32_t r = p->rotation;
    const struct division d = { variant_of(gpu, tiles, n_rows), tiles, p };
    if (!d.variant)
        return refuse(gpu, tiles, n_rows);
    if (r && (r < 32 || r > 1024 || (r & (r - 1)) || p->n_cols % r))
        return qn_fail(QN_ERR_UNSUPPORTED, "persistent decode kernel: a GEMV of %u columns, rotated in blocks of %u",
                       p->n_cols, r);
    if (p->n_tiles == 0 || p->n_k_tiles == 0 || p->n_cols % 32)
        return qn_fail(QN_ERR_UNSUPPORTED, "persistent decode kernel: a GEMV of %u tiles and %u columns", p->n_tiles,
                       p->n_cols);
    uint64_t best = UINT64_MAX;
    for (uint32_t k_tiles = 1; k_tiles <= p->n_k_tiles; k_tiles++) {
        if (!is_slice(gpu, p, n_rows, k_tiles))
            continue;
        const uint32_t slices = (p->n_k_tiles + k_tiles - 1) / k_tiles;
        uint32_t blocks = gpu->n_sms / slices;
        if (blocks > p->n_tiles)
            blocks = p->n_tiles;
        const uint32_t block_tiles = (p->n_tiles + blocks - 1) / blocks;
        const uint64_t cost = partition_cost(&d, k_tiles, slices, block_tiles);
        if (cost >= best)
            continue;
        best = cost;
        p->slice_k_tiles = k_tiles;
        p->n_slices = slices;
        p->slice_blocks = blocks;
    }
    return best < UINT64_MAX
               ? QN_OK
               : qn_fail(QN_ERR_UNSUPPORTED,
                         "persistent decode kernel: a GEMV of %u tiles and %u columns: its sums do not fit in shared "
                         "memory",
                         p->n_tiles, p->n_cols);
}

uint32_t qn_persistent_gpu_splits(const qn_persistent_gpu *gpu, size_t head_dim, size_t n_heads, size_t n_kv_heads,
                                  size_t n_rot)
{
    uint32_t splits = QN_PERSISTENT_MAX_SPLITS;
    if ((head_dim != 64 && head_dim != 128 && head_dim != 256) || n_rot % 8 || n_rot > head_dim || n_kv_heads == 0 ||
        n_heads % n_kv_heads || n_heads / n_kv_heads > QN_PERSISTENT_MAX_GROUP)
        return 0;
    while (splits && splits * n_kv_heads > gpu->n_sms)
        splits /= 2;
    return splits;
}

qn_status qn_persistent_gpu_launch(const qn_persistent_gpu *gpu, const qn_tile_layout *tiles, uint32_t n_rows,
                                   qn_launch *out)
{
    const struct variant *variant = variant_of(gpu, tiles, n_rows);
    if (!variant)
        return refuse(gpu, tiles, n_rows);
    const uint32_t *v = variant->values;
    *out = (qn_launch){ .variant = n_rows > 1 ? QN_GPU_VARIANT(persistent_rows, v[BITS], v[SCALES], v[STAGES])
                                              : QN_GPU_VARIANT(persistent, v[BITS], v[SCALES], v[STAGES], v[GEMV_WARPS],
                                                               v[COLUMNS_FIRST], v[BIT_PLANES]),
                        .function = n_rows > 1 ? "qn_persistent_decode_rows" : "qn_persistent_decode",
                        .grid = { gpu->n_sms, 1, 1 },
                        .block = { QN_PERSISTENT_THREADS, 1, 1 },
                        .shared_bytes = shared_bytes(variant),
                        .args_bytes = sizeof(qn_persistent_args),
                        .pdl = true,
                        .cooperative = true };
    return QN_OK;
}

/* ---- Attention over AURA codes ---- */

enum { CODES_STAGES = 4 }; /* of the weight ring: the look-up tables take the space of others */

/* Returns the bytes of shared memory of the variant with attention over codes. */
static uint32_t codes_shared_bytes(const struct variant *variant, unsigned key_bits, unsigned value_bits)
{
    const uint32_t tables = qn_attention_gpu_table_bytes(key_bits, false) +
                            (value_bits == key_bits ? 0 : qn_attention_gpu_table_bytes(value_bits, false));
    struct variant with_codes = *variant;
    with_codes.values[STAGES] = CODES_STAGES;
    return shared_bytes(&with_codes) + tables + QN_PERSISTENT_PARKED_BYTES;
}

bool qn_persistent_gpu_supports_codes(const qn_persistent_gpu *gpu, const qn_tile_layout *tiles, size_t head_dim,
                                      unsigned key_bits, unsigned value_bits)
{
    /* Rows of codes of a slice of 64 dimensions begin at words, and registers hold those of a group's tiles. */
    const bool fits = head_dim == 64 || head_dim == 128 || (head_dim == 256 && key_bits <= 4 && value_bits <= 4);
    const struct variant *variant = variant_of(gpu, tiles, 1);
    return fits && variant && gemv_warps(variant) == WARPS - 1 && variant->values[BIT_PLANES] &&
           !variant->values[COLUMNS_FIRST] &&
           codes_shared_bytes(variant, key_bits, value_bits) <= gpu->max_shared_bytes;
}

qn_status qn_persistent_gpu_launch_codes(const qn_persistent_gpu *gpu, const qn_tile_layout *tiles, size_t head_dim,
                                         unsigned key_bits, unsigned value_bits, qn_launch *out)
{
    if (!qn_persistent_gpu_supports_codes(gpu, tiles, head_dim, key_bits, value_bits))
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "persistent decode kernel: codes of %u and %u bits for heads of %zu, weights of %u bits",
                       key_bits, value_bits, head_dim, tiles->bits);
    const struct variant *variant = variant_of(gpu, tiles, 1);
    const uint32_t *v = variant->values;
    QN_TRY(qn_persistent_gpu_launch(gpu, tiles, 1, out));
    out->variant =
        QN_GPU_VARIANT(persistent_codes, v[BITS], v[SCALES], CODES_STAGES, (uint32_t)head_dim, key_bits, value_bits);
    out->shared_bytes = codes_shared_bytes(variant, key_bits, value_bits);
    return QN_OK;
}
