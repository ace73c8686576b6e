/* Launch of the persistent decode kernel, and the partition of its GEMVs over blocks. */
#include "kernels/persistent/persistent_cuda.h"

#include "kernels/variants.h"
#include "kernels/persistent/variants.def"

static const struct persistent_variant variants[] = {
#define QN_PLAIN(name, file)
#define QN_SOURCE(name, file, ...)
#define QN_VARIANT(name, ...) { __VA_ARGS__ },
#include "kernels/persistent/variants.def"
};

static uint32_t shared_bytes(const struct persistent_variant *v)
{
    const uint32_t step = QN_PERSISTENT_STEP_TILES(v->bits) * (v->bits * QN_FRAGMENT_BYTES + v->scales * 2 * QN_TILE_ROWS);
    return QN_PERSISTENT_CONTROL_BYTES + QN_PERSISTENT_SCRATCH_BYTES + QN_PERSISTENT_THREADS / 32 * v->stages * step;
}

/* Binary MMA is native to the tensor cores of compute capability 8.x and 9.x, of which only 9.0 has enough shared
 * memory. Later devices emulate it, which is slower than separate launches with int8 MMA. */
static const struct persistent_variant *variant_of(const qn_persistent_gpu *gpu, const qn_tile_layout *tiles)
{
    if (gpu->major != 9)
        return NULL;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        if (variants[i].bits == tiles->bits && variants[i].scales == tiles->n_scales && !tiles->has_offset &&
            shared_bytes(&variants[i]) <= gpu->max_shared_bytes)
            return &variants[i];
    return NULL;
}

bool qn_persistent_gpu_supports(const qn_persistent_gpu *gpu, const qn_tile_layout *tiles)
{
    return variant_of(gpu, tiles) != NULL;
}

/* Bytes of scratch that a block of the GEMV needs in shared memory (gemv_phase of persistent.cu). */
static uint64_t scratch_bytes(const qn_tile_layout *tiles, const qn_persistent_gemv *p, uint32_t slice_k_tiles,
                              uint32_t block_tiles)
{
    const uint64_t acts_f32 = (uint64_t)slice_k_tiles * QN_TILE_COLS * sizeof(float),
                   f16_scratch = QN_PERSISTENT_THREADS / 32 * 64;
    const uint64_t acc_bytes = (uint64_t)slice_k_tiles * block_tiles * QN_TILE_ROWS * sizeof(float);
    return (uint64_t)slice_k_tiles * QN_PERSISTENT_K_TILE_BYTES(tiles->n_scales) +
           (p->n_f16_tiles ? acts_f32 + f16_scratch : 0) + (p->rotation && acts_f32 > acc_bytes ? acts_f32 : acc_bytes);
}

/* Estimated cycles: the weights of the block with the most tiles, its prologue (a round is 2048 columns: four a
 * thread), and the reduction of its partials by later phases. */
static uint64_t cost_of(const qn_tile_layout *tiles, uint32_t slice_k_tiles, uint32_t n_slices, uint32_t block_tiles)
{
    const uint64_t rounds = ((uint64_t)slice_k_tiles * QN_TILE_COLS + 2047) / 2048;
    return (uint64_t)slice_k_tiles * block_tiles * (tiles->bits * 30) + rounds * 600 + (uint64_t)n_slices * 60;
}

qn_status qn_persistent_gpu_partition(const qn_persistent_gpu *gpu, const qn_tile_layout *tiles, qn_persistent_gemv *p)
{
    const uint32_t r = p->rotation;
    if (r && (r < 32 || r > 1024 || (r & (r - 1)) || p->n_cols % r))
        return qn_fail(QN_ERR_UNSUPPORTED, "persistent decode kernel: a GEMV of %u columns, rotated in blocks of %u", p->n_cols,
                       r);
    if (p->n_tiles == 0 || p->n_k_tiles == 0 || p->n_cols % 32)
        return qn_fail(QN_ERR_UNSUPPORTED, "persistent decode kernel: a GEMV of %u tiles and %u columns", p->n_tiles,
                       p->n_cols);
    uint64_t best = UINT64_MAX;
    for (uint32_t k_tiles = 1; k_tiles * QN_TILE_COLS <= QN_PERSISTENT_MAX_SLICE_COLS; k_tiles++) {
        const uint32_t slices = (p->n_k_tiles + k_tiles - 1) / k_tiles;
        if (k_tiles > p->n_k_tiles || slices > QN_PERSISTENT_MAX_SLICES || slices > gpu->n_sms ||
            (r && k_tiles * QN_TILE_COLS % r))
            continue;
        uint32_t blocks = gpu->n_sms / slices;
        if (blocks > p->n_tiles)
            blocks = p->n_tiles;
        const uint32_t block_tiles = (p->n_tiles + blocks - 1) / blocks;
        const uint64_t cost = cost_of(tiles, k_tiles, slices, block_tiles);
        if (cost >= best || scratch_bytes(tiles, p, k_tiles, block_tiles) > QN_PERSISTENT_SCRATCH_BYTES)
            continue;
        best = cost;
        p->slice_k_tiles = k_tiles;
        p->n_slices = slices;
        p->slice_blocks = blocks;
    }
    return best < UINT64_MAX ? QN_OK
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

qn_status qn_persistent_gpu_launch(const qn_persistent_gpu *gpu, const qn_tile_layout *tiles, qn_launch *out)
{
    const struct persistent_variant *v = variant_of(gpu, tiles);
    if (!v)
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "persistent decode kernel: weights of %u bits on a device with %u bytes of shared memory", tiles->bits,
                       gpu->max_shared_bytes);
    *out = (qn_launch){ .variant = persistent_of(*v),
                        .function = "qn_persistent_decode",
                        .grid = { gpu->n_sms, 1, 1 },
                        .block = { QN_PERSISTENT_THREADS, 1, 1 },
                        .shared_bytes = shared_bytes(v),
                        .args_bytes = sizeof(qn_persistent_args),
                        .pdl = true,
                        .cooperative = true };
    return QN_OK;
}
