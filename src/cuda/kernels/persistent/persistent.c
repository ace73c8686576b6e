/* Launch of the persistent decode kernel, and the partition of its GEMVs over blocks. */
#include "cuda/kernels/persistent/persistent.h"

#include "cuda/kernels/variants.h"
#include "cuda/kernels/persistent/variants.def"

static const struct {
    uint32_t bits, scales, stages, rows;
} variants[] = {
#define QN_PLAIN(name, file)
#define QN_SOURCE(name, file, ...)
#define QN_VARIANT(name, ...) { __VA_ARGS__ },
#include "cuda/kernels/persistent/variants.def"
};

enum { N_VARIANTS = sizeof variants / sizeof *variants, WARPS = QN_PERSISTENT_THREADS / 32, GEMV_WARPS = WARPS - 1 };

static uint32_t shared_bytes(size_t variant)
{
    const uint32_t bits = variants[variant].bits,
                   tile = bits * QN_FRAGMENT_BYTES + variants[variant].scales * 2 * QN_TILE_ROWS;
    const uint32_t ring = variants[variant].stages * QN_PERSISTENT_STEP_TILES(bits) * tile;
    return QN_PERSISTENT_CONTROL_BYTES + QN_PERSISTENT_SCRATCH_BYTES(variants[variant].rows) + GEMV_WARPS * ring;
}

/* Returns the index of the variant of the kernel for a tile layout and number of rows. Binary MMA is native to the
 * tensor cores of compute capability 8.x and 9.x, of which only 9.0 has enough shared memory. Later devices emulate it,
 * which is slower than separate launches with int8 MMA. Returns N_VARIANTS if there is no variant. */
static size_t variant_of(const qn_persistent_gpu *gpu, const qn_tile_layout *tiles, uint32_t n_rows)
{
    size_t i = 0;
    while (i < N_VARIANTS && (variants[i].rows != n_rows || variants[i].bits != tiles->bits ||
                              variants[i].scales != tiles->n_scales || shared_bytes(i) > gpu->max_shared_bytes))
        i++;
    return gpu->major == 9 && !tiles->has_offset ? i : N_VARIANTS;
}

bool qn_persistent_gpu_supports(const qn_persistent_gpu *gpu, const qn_tile_layout *tiles, uint32_t n_rows)
{
    return variant_of(gpu, tiles, n_rows) < N_VARIANTS;
}

/* ---- Partition of a GEMV ---- */

/* Returns the bytes of scratch that a block of the GEMV needs in shared memory (gemv_shared_of of persistent.cu). */
static uint64_t scratch_bytes(const qn_tile_layout *tiles, const qn_persistent_gemv *p, uint32_t slice_k_tiles,
                              uint32_t block_tiles, uint32_t n_rows)
{
    const uint64_t acts_f32 = (uint64_t)slice_k_tiles * QN_TILE_COLS * sizeof(float), f16_scratch = WARPS * 64;
    const uint64_t acc_bytes = (uint64_t)slice_k_tiles * block_tiles * QN_TILE_ROWS * sizeof(float);
    return n_rows * ((uint64_t)slice_k_tiles * QN_PERSISTENT_K_TILE_BYTES(tiles->n_scales) +
                     (p->n_f16_tiles ? acts_f32 + f16_scratch : 0) +
                     (p->rotation && acts_f32 > acc_bytes ? acts_f32 : acc_bytes));
}

/* Estimates the cycles of a GEMV: the weights of the block with the most tiles, its prologue (a round is 2048 columns:
 * four a thread), and the reduction of its partials by later phases. Of two rows, a block of a cluster prepares one. */
static uint64_t cost_of(const qn_tile_layout *tiles, uint32_t slice_k_tiles, uint32_t n_slices, uint32_t block_tiles,
                        uint32_t n_rows)
{
    const uint64_t rounds = (slice_k_tiles * QN_TILE_COLS + 2047) / 2048, pair = tiles->bits * (n_rows > 1 ? 50 : 30);
    return (uint64_t)slice_k_tiles * block_tiles * pair + rounds * 600 + n_slices * 60;
}

/* Whether a slice can have this number of K tiles. */
static bool is_slice(const qn_persistent_gemv *p, uint32_t k_tiles)
{
    const uint32_t slices = (p->n_k_tiles + k_tiles - 1) / k_tiles;
    if (slices > QN_PERSISTENT_MAX_SLICES)
        return false;
    return k_tiles * QN_TILE_COLS <= QN_PERSISTENT_MAX_SLICE_COLS &&
           !(p->rotation && k_tiles * QN_TILE_COLS % p->rotation);
}

qn_status qn_persistent_gpu_partition(const qn_persistent_gpu *gpu, const qn_tile_layout *tiles, uint32_t n_rows,
                                      qn_persistent_gemv *p)
{
    const uint32_t r = p->rotation;
    if (r && (r < 32 || r > 1024 || (r & (r - 1)) || p->n_cols % r))
        return qn_fail(QN_ERR_UNSUPPORTED, "persistent decode kernel: a GEMV of %u columns, rotated in blocks of %u",
                       p->n_cols, r);
    if (p->n_tiles == 0 || p->n_k_tiles == 0 || p->n_cols % 32)
        return qn_fail(QN_ERR_UNSUPPORTED, "persistent decode kernel: a GEMV of %u tiles and %u columns", p->n_tiles,
                       p->n_cols);
    const uint32_t cluster = QN_PERSISTENT_CLUSTER(n_rows);
    uint64_t best = UINT64_MAX;
    for (uint32_t k_tiles = 1; k_tiles <= p->n_k_tiles; k_tiles++) {
        if (!is_slice(p, k_tiles))
            continue;
        const uint32_t slices = (p->n_k_tiles + k_tiles - 1) / k_tiles;
        uint32_t blocks = gpu->n_sms / slices;
        if (blocks > p->n_tiles)
            blocks = p->n_tiles;
        blocks = blocks < cluster ? cluster : blocks / cluster * cluster; /* a block of a cluster may have no tiles */
        if (slices * blocks > gpu->n_sms)
            continue;
        const uint32_t block_tiles = (p->n_tiles + blocks - 1) / blocks;
        const uint64_t cost = cost_of(tiles, k_tiles, slices, block_tiles, n_rows);
        if (cost >= best || scratch_bytes(tiles, p, k_tiles, block_tiles, n_rows) > QN_PERSISTENT_SCRATCH_BYTES(n_rows))
            continue;
        best = cost;
        p->slice_k_tiles = k_tiles;
        p->n_slices = slices;
        p->slice_blocks = blocks;
    }
    return best < UINT64_MAX
               ? QN_OK
               : qn_fail(QN_ERR_UNSUPPORTED,
                         "persistent decode kernel: a GEMV of %u tiles and %u columns: its accumulators do not "
                         "fit in shared memory",
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
    const size_t i = variant_of(gpu, tiles, n_rows);
    if (i == N_VARIANTS)
        return qn_fail(
            QN_ERR_UNSUPPORTED,
            "persistent decode kernel: %u rows, weights of %u bits on a device with %u bytes of shared memory", n_rows,
            tiles->bits, gpu->max_shared_bytes);
    const uint32_t cluster = QN_PERSISTENT_CLUSTER(n_rows), bits = variants[i].bits, scales = variants[i].scales,
                   stages = variants[i].stages;
    *out = (qn_launch){ .variant = QN_GPU_VARIANT(persistent, bits, scales, stages, n_rows),
                        .function = "qn_persistent_decode",
                        .grid = { gpu->n_sms / cluster * cluster, 1, 1 },
                        .block = { QN_PERSISTENT_THREADS, 1, 1 },
                        .shared_bytes = shared_bytes(i),
                        .args_bytes = sizeof(qn_persistent_args),
                        .cluster = cluster,
                        .pdl = true,
                        .cooperative = true };
    return QN_OK;
}
