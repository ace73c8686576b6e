/* Launches of AURA's codec on the GPU. */
#include "kernels/aura/aura_cuda.h"

#define DEFINES(dim, key, value) "-DQN_HEAD_DIM=" #dim " -DQN_BITS=" #key " -DQN_VALUE_BITS=" #value
#define VALUES_OF(dim, key)                                                                                                    \
    {                                                                                                                          \
        DEFINES(dim, key, 2), DEFINES(dim, key, 3), DEFINES(dim, key, 4), DEFINES(dim, key, 6), DEFINES(dim, key, 8)           \
    }
#define SIZE(dim)                                                                                                              \
    {                                                                                                                          \
        dim,                                                                                                                   \
        {                                                                                                                      \
            VALUES_OF(dim, 2), VALUES_OF(dim, 3), VALUES_OF(dim, 4), VALUES_OF(dim, 6), VALUES_OF(dim, 8)                      \
        }                                                                                                                      \
    }

static const struct size {
    size_t dim;
    const char *defines[QN_KV_CODE_BITS][QN_KV_CODE_BITS];
} sizes[] = { SIZE(64), SIZE(80), SIZE(96), SIZE(128), SIZE(192), SIZE(256), SIZE(512) };

static qn_status fill_launch(size_t head_dim, unsigned key_bits, unsigned value_bits, const char *function, size_t x, size_t y,
                             uint32_t args_bytes, qn_launch *out)
{
    const char *defines = NULL;
    const int k = qn_kv_bits_index(key_bits), v = qn_kv_bits_index(value_bits);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].dim == head_dim && k >= 0 && v >= 0)
            defines = sizes[i].defines[k][v];
    if (!defines)
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "AURA on the GPU: heads of %zu in %u and %u bits: expected 64, 80, 96, 128, 192, 256 or "
                       "512 in 2, 3, 4, 6 or 8",
                       head_dim, key_bits, value_bits);
    if (x == 0 || x > INT32_MAX || y == 0 || y > 65535)
        return qn_fail(QN_ERR_INVALID, "AURA on the GPU: a grid of %zu by %zu", x, y);
    *out = (qn_launch){ .source = "aura/aura.cu",
                        .defines = defines,
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

qn_status qn_aura_gpu_quantize_page(size_t head_dim, unsigned key_bits, unsigned value_bits, size_t n_pages, size_t n_kv_heads,
                                    qn_launch *out)
{
    return fill_launch(head_dim, key_bits, value_bits, "qn_aura_quantize_page", n_pages, n_kv_heads,
                       sizeof(qn_aura_quantize_page_args), out);
}
