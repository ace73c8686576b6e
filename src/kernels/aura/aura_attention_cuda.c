/* The launches of attention over a cache of AURA codes. */
#include "kernels/aura/aura_attention_cuda.h"

/* The least that a block takes of a row's keys, in tiles for each of its warps; and what it costs a block of warps to share one
 * block of keys, in tiles. */
enum { LEAST_TILES = 1, TEAM_TILES = 3, MAX_HEADS = 65535 };

#define OF_SIZE(dim) "-DQN_HEAD_DIM=" #dim
#define OF_BITS(dim, bits) "-DQN_HEAD_DIM=" #dim " -DQN_BITS=" #bits
#define OF_BOTH(dim, key, value) "-DQN_HEAD_DIM=" #dim " -DQN_KEY_BITS=" #key " -DQN_VALUE_BITS=" #value
#define VALUES_OF(dim, key)                                                                                                    \
    {                                                                                                                          \
        OF_BOTH(dim, key, 2), OF_BOTH(dim, key, 3), OF_BOTH(dim, key, 4), OF_BOTH(dim, key, 6), OF_BOTH(dim, key, 8)           \
    }
#define SIZE(dim)                                                                                                              \
    {                                                                                                                          \
        dim, OF_SIZE(dim), { OF_BITS(dim, 2), OF_BITS(dim, 3), OF_BITS(dim, 4), OF_BITS(dim, 6), OF_BITS(dim, 8) },            \
        {                                                                                                                      \
            VALUES_OF(dim, 2), VALUES_OF(dim, 3), VALUES_OF(dim, 4), VALUES_OF(dim, 6), VALUES_OF(dim, 8)                      \
        }                                                                                                                      \
    }

static const struct size {
    size_t dim;
    const char *defines, *of_bits[QN_KV_CODE_BITS], *of_both[QN_KV_CODE_BITS][QN_KV_CODE_BITS];
} sizes[] = { SIZE(64), SIZE(80), SIZE(96), SIZE(128), SIZE(192), SIZE(256), SIZE(512) };

static const struct size *size_of(size_t dim)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].dim == dim)
            return &sizes[i];
    return NULL;
}

static qn_status refuse_size(size_t dim)
{
    return qn_fail(QN_ERR_UNSUPPORTED, "AURA on the GPU: heads of %zu: expected 64, 80, 96, 128, 192, 256 or 512", dim);
}

static size_t divided(size_t n, size_t by)
{
    return n / by + (n % by != 0);
}

/* Tables, and beside them what `warps` warps have come to and `results` floats: below the tables where those are far. */
static size_t shared_bytes(const qn_aura_gpu *gpu, size_t tables, size_t warps, size_t results)
{
    const bool far_tables = qn_attention_gpu_has_far_tables(gpu->max_shared_bytes);
    const size_t sums = (warps * QN_ATTENTION_COLUMNS * QN_AURA_SUM_STRIDE(warps, far_tables) + results) * sizeof(float);
    return tables + (far_tables ? QN_ATTENTION_FAR_TABLES : sums);
}

static size_t flash_bytes(const qn_aura_gpu *gpu)
{
    const size_t key = qn_attention_gpu_table_bytes(gpu->key_bits), value = qn_attention_gpu_table_bytes(gpu->value_bits);
    return shared_bytes(gpu, key > value ? key : value, QN_AURA_FLASH_WARPS(gpu->head_dim),
                        QN_ATTENTION_COLUMNS * gpu->head_dim);
}

/* And what is not dynamic: queries as halves, and little more. */
static size_t most_bytes(const qn_aura_gpu *gpu)
{
    return flash_bytes(gpu) + QN_ATTENTION_COLUMNS * gpu->head_dim * sizeof(uint16_t) + 2048;
}

qn_status qn_aura_gpu_check(const qn_aura_gpu *gpu)
{
    if (!size_of(gpu->head_dim))
        return refuse_size(gpu->head_dim);
    if (qn_kv_bits_index(gpu->key_bits) < 0 || qn_kv_bits_index(gpu->value_bits) < 0)
        return qn_fail(QN_ERR_UNSUPPORTED, "AURA on the GPU: keys of %u bits and values of %u: expected 2, 3, 4, 6 or 8",
                       gpu->key_bits, gpu->value_bits);
    if (gpu->n_kv_heads == 0 || gpu->n_heads == 0 || gpu->n_heads % gpu->n_kv_heads || gpu->n_heads > MAX_HEADS)
        return qn_fail(QN_ERR_INVALID, "AURA on the GPU: %zu query heads over %zu key-value heads", gpu->n_heads,
                       gpu->n_kv_heads);
    if (most_bytes(gpu) > gpu->max_shared_bytes)
        return qn_fail(QN_ERR_UNSUPPORTED, "AURA on the GPU: heads of %zu take %zu bytes of shared memory, the device has %u",
                       gpu->head_dim, most_bytes(gpu), gpu->max_shared_bytes);
    return QN_OK;
}

/* Thread blocks that take a part of the keys: tiles of queries, for each key-value head. */
static size_t column_tiles(const qn_aura_gpu *gpu, size_t n_tokens)
{
    return gpu->n_kv_heads * divided(n_tokens * (gpu->n_heads / gpu->n_kv_heads), QN_ATTENTION_COLUMNS);
}

/* Parts with which they fill the device once. */
static size_t filling(const qn_aura_gpu *gpu, size_t n_tokens)
{
    const size_t tiles = column_tiles(gpu, n_tokens);
    return tiles && gpu->n_sms > tiles ? gpu->n_sms / tiles : 1;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

uint32_t qn_aura_gpu_parts(const qn_aura_gpu *gpu, size_t n_tokens, size_t n_keys)
{
    const size_t most = divided(n_keys, QN_ATTENTION_KEYS * QN_AURA_SCORE_WARPS * LEAST_TILES);
    const size_t parts = smaller(filling(gpu, n_tokens), most);
    return (uint32_t)(parts ? parts : 1);
}

size_t qn_aura_gpu_flash_block(const qn_aura_gpu *gpu, size_t n_tokens, size_t n_keys)
{
    const size_t least = (size_t)QN_ATTENTION_KEYS * QN_AURA_FLASH_WARPS(gpu->head_dim);
    const size_t block = divided(divided(n_keys, filling(gpu, n_tokens)), QN_ATTENTION_KEYS) * QN_ATTENTION_KEYS;
    return block > least ? block : least;
}

static qn_status launch_of(const char *source, const char *defines, const char *function, size_t x, size_t y, size_t warps,
                           size_t shared, uint32_t args_bytes, qn_launch *out)
{
    if (x == 0 || x > INT32_MAX || y == 0 || y > 65535)
        return qn_fail(QN_ERR_INVALID, "AURA on the GPU: a grid of %zu by %zu", x, y);
    *out = (qn_launch){ .source = source,
                        .defines = defines,
                        .function = function,
                        .grid = { (uint32_t)x, (uint32_t)y, 1 },
                        .block = { (uint32_t)warps * 32, 1, 1 },
                        .shared_bytes = (uint32_t)shared,
                        .args_bytes = args_bytes };
    return QN_OK;
}

qn_status qn_aura_gpu_rotate(size_t head_dim, size_t n_rows, qn_launch *out)
{
    const struct size *size = size_of(head_dim);
    if (!size)
        return refuse_size(head_dim);
    return launch_of("aura/pass2.cu", size->defines, "qn_aura_rotate", n_rows, 1, QN_AURA_ROTATE_THREADS / 32, 0,
                     sizeof(qn_aura_rotate_args), out);
}

qn_status qn_aura_gpu_score(const qn_aura_gpu *gpu, size_t n_tokens, uint32_t n_parts, qn_launch *out)
{
    const size_t tables = qn_attention_gpu_table_bytes(gpu->key_bits);
    const bool far_tables = qn_attention_gpu_has_far_tables(gpu->max_shared_bytes);
    return launch_of("aura/score.cu", size_of(gpu->head_dim)->of_bits[qn_kv_bits_index(gpu->key_bits)], "qn_aura_score",
                     column_tiles(gpu, n_tokens), n_parts, QN_AURA_SCORE_WARPS,
                     tables + (far_tables ? QN_ATTENTION_FAR_TABLES : 0), sizeof(qn_aura_score_args), out);
}

qn_status qn_aura_gpu_value(const qn_aura_gpu *gpu, size_t n_tokens, uint32_t n_parts, qn_launch *out)
{
    const size_t warps = QN_AURA_VALUE_WARPS(gpu->head_dim), tables = qn_attention_gpu_table_bytes(gpu->value_bits);
    return launch_of("aura/value.cu", size_of(gpu->head_dim)->of_bits[qn_kv_bits_index(gpu->value_bits)], "qn_aura_value",
                     column_tiles(gpu, n_tokens), n_parts, warps, shared_bytes(gpu, tables, warps, 0),
                     sizeof(qn_aura_value_args), out);
}

static const char *flash_defines(const qn_aura_gpu *gpu)
{
    return size_of(gpu->head_dim)->of_both[qn_kv_bits_index(gpu->key_bits)][qn_kv_bits_index(gpu->value_bits)];
}

/* Warps share a block of keys where it is long, and have one each where there are enough of them: whichever makes the tiles
 * fewer that a warp takes one after the other. */
qn_status qn_aura_gpu_flash_pass1(const qn_aura_gpu *gpu, size_t n_tokens, size_t n_keys, size_t block, uint32_t *team,
                                  qn_launch *out)
{
    if (n_keys == 0 || n_keys > INT32_MAX || block == 0 || block > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "AURA on the GPU: %zu keys in blocks of %zu, expected 1 to %d", n_keys, block,
                       (int)INT32_MAX);
    const size_t warps = QN_AURA_FLASH_WARPS(gpu->head_dim), n_blocks = divided(n_keys, block), parts = filling(gpu, n_tokens);
    const size_t tiles = divided(smaller(block, n_keys), QN_ATTENTION_KEYS);
    const size_t alone = smaller(divided(n_blocks, warps), parts), together = smaller(n_blocks, parts);
    const size_t tiles_alone = divided(n_blocks, alone * warps) * tiles;
    const size_t tiles_together = divided(n_blocks, together) * (divided(tiles, warps) + TEAM_TILES);
    *team = tiles_alone <= tiles_together ? 1 : (uint32_t)warps;
    return launch_of("aura/flash.cu", flash_defines(gpu), "qn_aura_flash_pass1", column_tiles(gpu, n_tokens),
                     *team == 1 ? alone : together, warps, flash_bytes(gpu), sizeof(qn_aura_flash_pass1_args), out);
}

qn_status qn_aura_gpu_flash_pass2(size_t head_dim, size_t n_queries, qn_launch *out)
{
    const struct size *size = size_of(head_dim);
    if (!size)
        return refuse_size(head_dim);
    return launch_of("aura/pass2.cu", size->defines, "qn_aura_flash_pass2", n_queries, 1, QN_AURA_PASS2_THREADS / 32, 0,
                     sizeof(qn_aura_flash_pass2_args), out);
}

qn_status qn_aura_gpu_attention(const qn_aura_gpu *gpu, size_t n_tokens, qn_launch *out)
{
    return launch_of("aura/flash.cu", flash_defines(gpu), "qn_aura_attention", column_tiles(gpu, n_tokens), 1,
                     QN_AURA_FLASH_WARPS(gpu->head_dim), flash_bytes(gpu), sizeof(qn_aura_attention_args), out);
}
