/* Launches of attention on the GPU. */
#include "cuda/kernels/attention/page_rows.h"

/* Warps of a block of decode attention over fp16: from the fewest to the most for heads of 64, 128 and 256, F16_WARPS
 * for other heads and for deterministic launches (warps_of). Warps of a team over codes: a multiple of a head's slices
 * of 64 dimensions. */
enum { F16_WARPS = 4 };
#define FEWEST_F16_WARPS(head_dim) ((head_dim) == 64 || (head_dim) == 128 ? 1 : (head_dim) == 256 ? 2 : F16_WARPS)
#define MOST_F16_WARPS(head_dim) ((head_dim) == 64 || (head_dim) == 128 || (head_dim) == 256 ? 8 : F16_WARPS)
#define CODE_WARPS(head_dim) ((head_dim) == 192 ? 12 : 8)

/* Rows together (page_rows.h): caches with built-in variants, since a draft that first gets to such a position must not
 * wait for a compiler; tiles of query heads. */
#define HAS_PAGE_ROWS(head_dim, key_bits, value_bits)                                                                  \
    (((head_dim) == 128 || (head_dim) == 256) && (key_bits) == (value_bits) && ((key_bits) == 4 || (key_bits) == 8))
#define PAGE_TILES(head_dim) ((head_dim) == 256 ? 3 : 2)

#define QN_VARIANT(name, ...) CHECK_##name(__VA_ARGS__)
#define CHECK_decode(head_dim, warps)                                                                                  \
    _Static_assert((warps) >= FEWEST_F16_WARPS(head_dim) && (warps) <= MOST_F16_WARPS(head_dim),                       \
                   "no launch selects a built-in variant");
#define CHECK_decode_codes(head_dim, key_bits, value_bits, pages, warps, tiles)                                        \
    _Static_assert(                                                                                                    \
        (warps) == CODE_WARPS(head_dim) &&                                                                             \
            ((tiles) == 1 || (HAS_PAGE_ROWS(head_dim, key_bits, value_bits) && (tiles) == PAGE_TILES(head_dim))),      \
        "a launch selects another number of warps or tiles than a built-in variant");
#define CHECK_prefill(head_dim, key_bits, value_bits, pages)
#include "cuda/kernels/variants.h"
#include "cuda/kernels/attention/variants.def"

static const struct size {
    size_t dim;
    bool has_codes;
} sizes[] = { { 16, false }, { 32, false },  { 48, false }, { 64, true },   { 80, true },  { 96, true }, { 112, false },
              { 128, true }, { 160, false }, { 192, true }, { 224, false }, { 256, true }, { 512, true } };

static const struct size *size_of(size_t dim)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].dim == dim)
            return &sizes[i];
    return NULL;
}

static bool is_f16(const qn_attention_gpu *gpu)
{
    return gpu->key_bits == 16;
}

static uint32_t query_tiles(const qn_attention_gpu *gpu)
{
    const size_t group = gpu->n_heads / gpu->n_kv_heads;
    return (uint32_t)((group + QN_ATTENTION_TILE_Q - 1) / QN_ATTENTION_TILE_Q);
}

/* An SM runs QN_ATTENTION_SM_WARPS warps over fp16 at a time. A block has the most warps with which all query tiles run
 * at the same time, one block each: a row of few positions takes a block little longer than its latencies. */
static size_t warps_of(const qn_attention_gpu *gpu, size_t n_rows)
{
    const size_t tiles = n_rows * gpu->n_kv_heads * query_tiles(gpu), all = (size_t)gpu->n_sms * QN_ATTENTION_SM_WARPS;
    size_t warps = MOST_F16_WARPS(gpu->head_dim);
    if (!is_f16(gpu))
        return CODE_WARPS(gpu->head_dim);
    while (warps > FEWEST_F16_WARPS(gpu->head_dim) && tiles * warps > all)
        warps /= 2;
    return gpu->deterministic ? F16_WARPS : warps;
}

/* Teams of a block of decode attention, each with separate work. */
static uint32_t teams_of(const qn_attention_gpu *gpu, size_t warps)
{
    return qn_attention_gpu_teams((uint32_t)gpu->head_dim, gpu->key_bits, gpu->value_bits, (uint32_t)warps,
                                  qn_attention_gpu_shared_limit(gpu->max_shared_bytes));
}

/* Returns the number of blocks of decode attention that an SM runs at a time. */
static size_t blocks_of(const qn_attention_gpu *gpu, size_t warps)
{
    return qn_attention_gpu_blocks((uint32_t)gpu->head_dim, gpu->key_bits, (uint32_t)warps,
                                   qn_attention_gpu_shared_limit(gpu->max_shared_bytes));
}

/* The least number of tiles of a split. Over fp16 a row of up to 256 positions has a single split, which is not
 * written: with shorter splits, writing and combining them would take more time than the additional blocks save in
 * loads. */
static size_t split_tiles(const qn_attention_gpu *gpu)
{
    return is_f16(gpu) ? 256 / QN_ATTENTION_TILE_KV : CODE_WARPS(gpu->head_dim);
}

/* Returns the bytes of dynamic shared memory of qn_attention_decode; 0: the device has too little. */
static uint32_t decode_bytes(const qn_attention_gpu *gpu, size_t warps)
{
    return qn_attention_gpu_shared_bytes((uint32_t)gpu->head_dim, gpu->key_bits, gpu->value_bits, (uint32_t)warps,
                                         teams_of(gpu, warps), gpu->max_shared_bytes);
}

qn_status qn_attention_gpu_check(const qn_attention_gpu *gpu)
{
    const struct size *size = size_of(gpu->head_dim);
    if (!size)
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "attention on the GPU: heads of %zu: expected 16 to 128 by 16, 160, 192, 224, 256, 512",
                       gpu->head_dim);
    if (gpu->n_kv_heads == 0 || gpu->n_heads == 0 || gpu->n_heads % gpu->n_kv_heads || gpu->n_heads > 65535)
        return qn_fail(QN_ERR_INVALID, "attention on the GPU: %zu query heads over %zu key-value heads", gpu->n_heads,
                       gpu->n_kv_heads);
    const bool codes = qn_kv_bits_index(gpu->key_bits) >= 0 && qn_kv_bits_index(gpu->value_bits) >= 0;
    if (!codes && (gpu->key_bits != 16 || gpu->value_bits != 16))
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "attention on the GPU: keys of %u bits and values of %u: expected 2, 3, 4, 6 or 8, or "
                       "16 for both",
                       gpu->key_bits, gpu->value_bits);
    if (codes && !size->has_codes)
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "attention on the GPU: codes for heads of %zu: expected 64, 80, 96, 128, 192, 256, 512",
                       gpu->head_dim);
    if (!codes && gpu->pages)
        return qn_fail(QN_ERR_INVALID, "attention on the GPU: pages need AURA codes, the cache is f16");
    if (decode_bytes(gpu, is_f16(gpu) ? MOST_F16_WARPS(gpu->head_dim) : CODE_WARPS(gpu->head_dim)) == 0) /* fewer need
                                                                                                            no more */
        return qn_fail(
            QN_ERR_UNSUPPORTED,
            "attention on the GPU: heads of %zu with keys of %u bits and values of %u need more shared memory than the "
            "%u bytes of the device",
            gpu->head_dim, gpu->key_bits, gpu->value_bits, gpu->max_shared_bytes);
    return QN_OK;
}

qn_attention_splits qn_attention_gpu_splits(const qn_attention_gpu *gpu, size_t max_keys)
{
    const size_t tiles = split_tiles(gpu), min_keys = tiles * QN_ATTENTION_TILE_KV,
                 to_fill = gpu->n_sms / (gpu->n_kv_heads * query_tiles(gpu)),
                 needed = (max_keys + min_keys - 1) / min_keys, pages = gpu->pages ? 1 : 0;
    size_t splits = to_fill > pages ? to_fill - pages : 1;
    splits = splits < needed ? splits : needed;
    return (qn_attention_splits){ .n = (uint32_t)((splits ? splits : 1) + pages), .tiles = (uint32_t)tiles };
}

qn_status qn_attention_gpu_decode(const qn_attention_gpu *gpu, size_t n_rows, const qn_attention_splits *splits,
                                  qn_launch *out)
{
    const size_t tiles = gpu->n_kv_heads * query_tiles(gpu);
    if (n_rows == 0 || n_rows > 65535 || splits->n < (gpu->pages ? 2u : 1u) || splits->tiles != split_tiles(gpu))
        return qn_fail(QN_ERR_INVALID, "attention on the GPU: %zu rows in %u splits of %u tiles", n_rows, splits->n,
                       splits->tiles);
    const size_t warps = warps_of(gpu, n_rows), n = n_rows * tiles * splits->n, blocks_per_sm = blocks_of(gpu, warps),
                 blocks = n < gpu->n_sms * blocks_per_sm ? n : gpu->n_sms * blocks_per_sm;
    *out = (qn_launch){ .variant = is_f16(gpu) ? QN_GPU_VARIANT(decode, gpu->head_dim, warps)
                                               : QN_GPU_VARIANT(decode_codes, gpu->head_dim, gpu->key_bits,
                                                                gpu->value_bits, gpu->pages, warps, 1),
                        .function = "qn_attention_decode",
                        .grid = { (uint32_t)blocks, 1, 1 },
                        .block = { teams_of(gpu, warps) * (uint32_t)warps * 32, 1, 1 },
                        .shared_bytes = decode_bytes(gpu, warps),
                        .args_bytes = sizeof(qn_attention_decode_args) };
    return QN_OK;
}

bool qn_attention_gpu_has_page_rows(const qn_attention_gpu *gpu, size_t n_rows)
{
    return gpu->pages && !gpu->deterministic && n_rows > 2 &&
           HAS_PAGE_ROWS(gpu->head_dim, gpu->key_bits, gpu->value_bits) && gpu->max_shared_bytes >= 227 << 10;
}

size_t qn_attention_gpu_page_rows_from(const qn_attention_gpu *gpu)
{
    /* Between measured positions, with four rows on an H200: docs/lab/2026-11-gpu.md, Drafts over codes. */
    return gpu->head_dim == 256 ? 12288 : 3072;
}

qn_status qn_attention_gpu_decode_page(const qn_attention_gpu *gpu, size_t n_rows, const qn_attention_splits *splits,
                                       qn_launch *out)
{
    const size_t warps = warps_of(gpu, n_rows), columns = n_rows * (gpu->n_heads / gpu->n_kv_heads),
                 together = PAGE_TILES(gpu->head_dim) * QN_ATTENTION_TILE_Q,
                 pieces = (columns + together - 1) / together * gpu->n_kv_heads * splits->n;
    if (!qn_attention_gpu_has_page_rows(gpu, n_rows))
        return qn_fail(QN_ERR_INVALID,
                       "attention on the GPU: %zu rows of a page together, heads of %zu, keys of %u bits and values of "
                       "%u: expected qn_attention_gpu_has_page_rows",
                       n_rows, gpu->head_dim, gpu->key_bits, gpu->value_bits);
    QN_TRY(qn_attention_gpu_decode(gpu, n_rows, splits, out));
    out->variant = QN_GPU_VARIANT(decode_codes, gpu->head_dim, gpu->key_bits, gpu->value_bits, gpu->pages, warps,
                                  PAGE_TILES(gpu->head_dim));
    out->grid[0] = (uint32_t)(pieces < gpu->n_sms ? pieces : gpu->n_sms);
    out->block[0] = (uint32_t)warps * 32;
    out->shared_bytes = qn_attention_gpu_shared_bytes((uint32_t)gpu->head_dim, gpu->key_bits, gpu->value_bits,
                                                      (uint32_t)warps, 1, gpu->max_shared_bytes);
    return QN_OK;
}

bool qn_attention_gpu_prepares_rows(const qn_attention_gpu *gpu, size_t n_rows, size_t n_rot, bool interleaved)
{
    const size_t apart = n_rot / 2; /* a lane has dimensions that are multiples of 32 apart */
    return is_f16(gpu) && warps_of(gpu, n_rows) > 1 && gpu->head_dim <= QN_ATTENTION_NEW_ROWS_DIM && n_rot > 0 &&
           n_rot % 2 == 0 && n_rot <= gpu->head_dim && (interleaved || (apart >= 32 && (apart & (apart - 1)) == 0));
}

enum { STATIC_BYTES = 2304 }; /* more than the static shared memory of the prefill kernel */

/* Returns the bytes of dynamic shared memory of the prefill kernel: queries, two buffers each of keys and values, and
 * look-up tables; overwritten by the results as floats. */
static size_t prefill_bytes(const qn_attention_gpu *gpu)
{
    const size_t row = gpu->head_dim * 2 + 16, f16 = (QN_ATTENTION_PREFILL_ROWS + 4 * QN_PAGE) * row;
    const size_t results = QN_ATTENTION_PREFILL_ROWS * (gpu->head_dim + 4) * sizeof(float);
    size_t tables = 0;
    if (!is_f16(gpu)) {
        const size_t key = qn_attention_gpu_table_bytes(gpu->key_bits, true),
                     value = qn_attention_gpu_table_bytes(gpu->value_bits, true);
        tables = (key > value ? key : value) / 4; /* entries of 64 bytes */
    }
    return f16 + tables > results ? f16 + tables : results;
}

bool qn_attention_gpu_has_prefill(const qn_attention_gpu *gpu)
{
    return gpu->head_dim <= 256 && (is_f16(gpu) || gpu->pages) &&
           prefill_bytes(gpu) + STATIC_BYTES <= gpu->max_shared_bytes;
}

qn_status qn_attention_gpu_prefill(const qn_attention_gpu *gpu, size_t n_rows, size_t n_pieces, qn_launch *out)
{
    const size_t group = gpu->n_heads / gpu->n_kv_heads, rows = QN_ATTENTION_PREFILL_ROWS;
    if (!qn_attention_gpu_has_prefill(gpu))
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "prefill attention on the GPU: heads of %zu are not supported for this cache", gpu->head_dim);
    /* A piece of n rows has rows of at most (n + 126) / 64 pages. */
    const size_t blocks = (QN_PAGE * group + rows - 1) / rows,
                 pages = n_rows <= INT32_MAX && n_pieces <= INT32_MAX
                             ? (n_rows + n_pieces * (2 * QN_PAGE - 2)) / QN_PAGE
                             : SIZE_MAX;
    if (n_rows == 0 || n_pieces == 0 || pages > INT32_MAX / blocks)
        return qn_fail(QN_ERR_INVALID, "prefill attention on the GPU: %zu rows in %zu pieces", n_rows, n_pieces);
    *out = (qn_launch){ .variant = QN_GPU_VARIANT(prefill, gpu->head_dim, gpu->key_bits, gpu->value_bits, gpu->pages),
                        .function = "qn_attention_prefill",
                        .grid = { (uint32_t)(pages * blocks), (uint32_t)gpu->n_kv_heads, 1 },
                        .block = { QN_ATTENTION_PREFILL_ROWS / 16 * 32, 1, 1 },
                        .shared_bytes = (uint32_t)prefill_bytes(gpu),
                        .args_bytes = sizeof(qn_attention_prefill_args) };
    return QN_OK;
}
