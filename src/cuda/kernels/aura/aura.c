/* Launches of AURA's codec on the GPU. */
#include "cuda/kernels/aura/aura.h"

#include "plan/limits.h"
#include "cuda/kernels/variants.h"
#include "cuda/kernels/aura/variants.def"

static bool has_variant(size_t head_dim, unsigned key_bits, unsigned value_bits)
{
    return qn_aura_has_dim(head_dim) && qn_kv_bits_index(key_bits) >= 0 && qn_kv_bits_index(value_bits) >= 0;
}

static qn_status fill_launch(size_t head_dim, unsigned key_bits, unsigned value_bits, const char *function, size_t x,
                             size_t y, uint32_t args_bytes, qn_launch *out)
{
    if (!has_variant(head_dim, key_bits, value_bits))
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "AURA on the GPU: heads of %zu in %u and %u bits: expected 64, 80, 96, 128, 192, 256 or "
                       "512 in 2, 3, 4, 6 or 8",
                       head_dim, key_bits, value_bits);
    if (x == 0 || x > INT32_MAX || y == 0 || y > 65535)
        return qn_fail(QN_ERR_INVALID, "AURA on the GPU: a grid of %zu by %zu", x, y);
    *out = (qn_launch){ .variant = QN_GPU_VARIANT(codec, head_dim, key_bits, value_bits),
                        .function = function,
                        .grid = { (uint32_t)x, (uint32_t)y, 1 },
                        .block = { QN_AURA_GPU_WARPS * 32, 1, 1 },
                        .args_bytes = args_bytes };
    return QN_OK;
}

static size_t blocks_of(size_t n_rows)
{
    return n_rows / QN_AURA_GPU_WARPS + (n_rows % QN_AURA_GPU_WARPS != 0);
}

qn_status qn_aura_gpu_encode(size_t head_dim, unsigned bits, size_t n_rows, qn_launch *out)
{
    return fill_launch(head_dim, bits, bits, "qn_aura_encode", blocks_of(n_rows), 1, sizeof(qn_aura_encode_args), out);
}

qn_status qn_aura_gpu_decode(size_t head_dim, unsigned bits, size_t n_rows, qn_launch *out)
{
    return fill_launch(head_dim, bits, bits, "qn_aura_decode", blocks_of(n_rows), 1, sizeof(qn_aura_decode_args), out);
}

qn_status qn_aura_gpu_store(size_t head_dim, unsigned key_bits, unsigned value_bits, size_t n_tokens, size_t n_kv_heads,
                            qn_launch *out)
{
    size_t n_rows;
    if (__builtin_mul_overflow(n_tokens, n_kv_heads, &n_rows) || n_rows > UINT32_MAX - QN_AURA_GPU_WARPS)
        return qn_fail(QN_ERR_INVALID, "AURA on the GPU: %zu tokens of %zu heads, expected at most %u rows", n_tokens,
                       n_kv_heads, UINT32_MAX - QN_AURA_GPU_WARPS);
    return fill_launch(head_dim, key_bits, value_bits, "qn_aura_store", blocks_of(n_rows), 2,
                       sizeof(qn_aura_store_args), out);
}

qn_status qn_aura_gpu_quantize_page(size_t head_dim, unsigned key_bits, unsigned value_bits, size_t n_pages,
                                    size_t n_kv_heads, size_t n_layers, qn_launch *out)
{
    if (n_layers == 0 || n_layers > 65535)
        return qn_fail(QN_ERR_INVALID, "AURA on the GPU: pages of %zu layers, expected 1 to 65535", n_layers);
    QN_TRY(fill_launch(head_dim, key_bits, value_bits, "qn_aura_quantize_page", n_pages, n_kv_heads,
                       sizeof(qn_aura_quantize_page_args), out));
    out->grid[2] = (uint32_t)n_layers;
    return QN_OK;
}
