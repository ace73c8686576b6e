/* Launches of attention over a cache of AURA codes. */
#include "cuda/kernels/aura/aura_attention.h"

#include "plan/limits.h"
#include "cuda/kernels/variants.h"
#include "cuda/kernels/aura/variants.def"

/* MIN_TILES: the smallest split, in tiles per warp. SHARED_BLOCK_TILES: cost of sharing one block of keys among the
 * warps of a thread block, in tiles. */
enum { MIN_TILES = 1, SHARED_BLOCK_TILES = 3, MAX_HEADS = 65535 };

static qn_status fail_head_dim(size_t dim)
{
    return qn_fail(QN_ERR_UNSUPPORTED, "AURA on the GPU: heads of %zu: expected 64, 80, 96, 128, 192, 256 or 512", dim);
}

static size_t ceil_div(size_t n, size_t by)
{
    return n / by + (n % by != 0);
}

static size_t table_bytes(const qn_aura_gpu *gpu, unsigned bits)
{
    return qn_attention_gpu_table_bytes(bits, qn_attention_gpu_has_large_smem(gpu->max_shared_bytes));
}

/* Returns the bytes of dynamic shared memory of the kernels of scores and values: with large shared memory the tables
 * are at a fixed address and `behind` bytes are in the space below them, else after them. */
static size_t shared_bytes(const qn_aura_gpu *gpu, size_t tables, size_t behind)
{
    return tables + (qn_attention_gpu_has_large_smem(gpu->max_shared_bytes) ? QN_ATTENTION_TABLE_BASE : behind);
}

/* Returns the bytes of dynamic shared memory of the flash kernel; 0: the device has too little. */
static uint32_t flash_bytes(const qn_aura_gpu *gpu)
{
    return qn_attention_gpu_shared_bytes((uint32_t)gpu->head_dim, gpu->key_bits, gpu->value_bits,
                                         QN_AURA_FLASH_WARPS(gpu->head_dim), 0, gpu->max_shared_bytes);
}

qn_status qn_aura_gpu_check(const qn_aura_gpu *gpu)
{
    if (!qn_aura_has_dim(gpu->head_dim))
        return fail_head_dim(gpu->head_dim);
    if (qn_kv_bits_index(gpu->key_bits) < 0 || qn_kv_bits_index(gpu->value_bits) < 0)
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "AURA on the GPU: keys of %u bits and values of %u: expected 2, 3, 4, 6 or 8", gpu->key_bits,
                       gpu->value_bits);
    if (gpu->n_kv_heads == 0 || gpu->n_heads == 0 || gpu->n_heads % gpu->n_kv_heads || gpu->n_heads > MAX_HEADS)
        return qn_fail(QN_ERR_INVALID, "AURA on the GPU: %zu query heads over %zu key-value heads", gpu->n_heads,
                       gpu->n_kv_heads);
    if (flash_bytes(gpu) == 0)
        return qn_fail(
            QN_ERR_UNSUPPORTED,
            "AURA on the GPU: heads of %zu with keys of %u bits and values of %u need more shared memory than the %u "
            "bytes of the device",
            gpu->head_dim, gpu->key_bits, gpu->value_bits, gpu->max_shared_bytes);
    return QN_OK;
}

/* Returns the number of thread blocks per split of the keys: the query tiles of all key-value heads. */
static size_t query_tiles(const qn_aura_gpu *gpu, size_t n_tokens)
{
    return gpu->n_kv_heads * ceil_div(n_tokens * (gpu->n_heads / gpu->n_kv_heads), QN_ATTENTION_TILE_Q);
}

/* Splits of the keys with which the grid fills the device once. */
static size_t splits_to_fill(const qn_aura_gpu *gpu, size_t n_tokens)
{
    const size_t tiles = query_tiles(gpu, n_tokens);
    return tiles && gpu->n_sms > tiles ? gpu->n_sms / tiles : 1;
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

uint32_t qn_aura_gpu_splits(const qn_aura_gpu *gpu, size_t n_tokens, size_t n_keys)
{
    const size_t max_splits = ceil_div(n_keys, QN_ATTENTION_TILE_KV * QN_AURA_SCORE_WARPS * MIN_TILES);
    const size_t splits = min_size(splits_to_fill(gpu, n_tokens), max_splits);
    return (uint32_t)(splits ? splits : 1);
}

size_t qn_aura_gpu_flash_block(const qn_aura_gpu *gpu, size_t n_tokens, size_t n_keys)
{
    const size_t least = (size_t)QN_ATTENTION_TILE_KV * QN_AURA_FLASH_WARPS(gpu->head_dim);
    const size_t block =
        ceil_div(ceil_div(n_keys, splits_to_fill(gpu, n_tokens)), QN_ATTENTION_TILE_KV) * QN_ATTENTION_TILE_KV;
    return block > least ? block : least;
}

static qn_status launch_of(qn_gpu_variant variant, const char *function, size_t x, size_t y, size_t warps,
                           size_t shared, uint32_t args_bytes, qn_launch *out)
{
    if (x == 0 || x > INT32_MAX || y == 0 || y > 65535)
        return qn_fail(QN_ERR_INVALID, "AURA on the GPU: a grid of %zu by %zu", x, y);
    *out = (qn_launch){ .variant = variant,
                        .function = function,
                        .grid = { (uint32_t)x, (uint32_t)y, 1 },
                        .block = { (uint32_t)warps * 32, 1, 1 },
                        .shared_bytes = (uint32_t)shared,
                        .args_bytes = args_bytes };
    return QN_OK;
}

qn_status qn_aura_gpu_rotate(size_t head_dim, size_t n_rows, qn_launch *out)
{
    if (!qn_aura_has_dim(head_dim))
        return fail_head_dim(head_dim);
    return launch_of(QN_GPU_VARIANT(pass2, head_dim), "qn_aura_rotate", n_rows, 1, QN_AURA_ROTATE_THREADS / 32, 0,
                     sizeof(qn_aura_rotate_args), out);
}

qn_status qn_aura_gpu_score(const qn_aura_gpu *gpu, size_t n_tokens, uint32_t n_splits, qn_launch *out)
{
    return launch_of(QN_GPU_VARIANT(score, gpu->head_dim, gpu->key_bits), "qn_aura_score", query_tiles(gpu, n_tokens),
                     n_splits, QN_AURA_SCORE_WARPS, shared_bytes(gpu, table_bytes(gpu, gpu->key_bits), 0),
                     sizeof(qn_aura_score_args), out);
}

qn_status qn_aura_gpu_value(const qn_aura_gpu *gpu, size_t n_tokens, uint32_t n_splits, qn_launch *out)
{
    return launch_of(QN_GPU_VARIANT(value, gpu->head_dim, gpu->value_bits), "qn_aura_value", query_tiles(gpu, n_tokens),
                     n_splits, QN_AURA_VALUE_WARPS(gpu->head_dim),
                     shared_bytes(gpu, table_bytes(gpu, gpu->value_bits), QN_AURA_VALUE_REDUCE_BYTES),
                     sizeof(qn_aura_value_args), out);
}

static qn_gpu_variant flash_variant(const qn_aura_gpu *gpu)
{
    return QN_GPU_VARIANT(flash, gpu->head_dim, gpu->key_bits, gpu->value_bits);
}

/* Lets all warps of a thread block share a block of keys, or gives each warp its own: whichever gives a warp fewer
 * tiles in sequence. */
qn_status qn_aura_gpu_flash_pass1(const qn_aura_gpu *gpu, size_t n_tokens, size_t n_keys, size_t block,
                                  uint32_t *warps_per_block, qn_launch *out)
{
    if (n_keys == 0 || n_keys > INT32_MAX || block == 0 || block > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "AURA on the GPU: %zu keys in blocks of %zu, expected 1 to %d", n_keys, block,
                       (int)INT32_MAX);
    const size_t warps = QN_AURA_FLASH_WARPS(gpu->head_dim), n_blocks = ceil_div(n_keys, block),
                 splits = splits_to_fill(gpu, n_tokens);
    const size_t tiles = ceil_div(min_size(block, n_keys), QN_ATTENTION_TILE_KV);
    const size_t grid_separate = min_size(ceil_div(n_blocks, warps), splits), grid_shared = min_size(n_blocks, splits);
    const size_t tiles_separate = ceil_div(n_blocks, grid_separate * warps) * tiles;
    const size_t tiles_shared = ceil_div(n_blocks, grid_shared) * (ceil_div(tiles, warps) + SHARED_BLOCK_TILES);
    *warps_per_block = tiles_separate <= tiles_shared ? 1 : (uint32_t)warps;
    return launch_of(flash_variant(gpu), "qn_aura_flash_pass1", query_tiles(gpu, n_tokens),
                     *warps_per_block == 1 ? grid_separate : grid_shared, warps, flash_bytes(gpu),
                     sizeof(qn_aura_flash_pass1_args), out);
}

qn_status qn_aura_gpu_flash_pass2(size_t head_dim, size_t n_queries, qn_launch *out)
{
    if (!qn_aura_has_dim(head_dim))
        return fail_head_dim(head_dim);
    return launch_of(QN_GPU_VARIANT(pass2, head_dim), "qn_aura_flash_pass2", n_queries, 1, QN_AURA_PASS2_THREADS / 32,
                     0, sizeof(qn_aura_flash_pass2_args), out);
}

qn_status qn_aura_gpu_attention(const qn_aura_gpu *gpu, size_t n_tokens, qn_launch *out)
{
    return launch_of(flash_variant(gpu), "qn_aura_attention", query_tiles(gpu, n_tokens), 1,
                     QN_AURA_FLASH_WARPS(gpu->head_dim), flash_bytes(gpu), sizeof(qn_aura_attention_args), out);
}
