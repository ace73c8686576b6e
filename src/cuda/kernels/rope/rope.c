/* Launches of rope.cu. */
#include "cuda/kernels/rope/rope.h"

#include "cuda/kernels/variants.h"
#include "cuda/kernels/rope/variants.def"

enum { ANGLES_THREADS = 64 };

static const size_t head_dims[] = { 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512 };

static bool has_head_dim(size_t dim)
{
    for (size_t i = 0; i < sizeof head_dims / sizeof *head_dims; i++)
        if (head_dims[i] == dim)
            return true;
    return false;
}

qn_status qn_rope_gpu_angles(size_t n_rot, size_t n_rows, qn_launch *out)
{
    if (n_rot == 0 || n_rot % 2 || n_rot > 65536 || n_rows == 0 || n_rows > 65535)
        return qn_fail(
            QN_ERR_INVALID,
            "rope angles on the GPU: %zu rows of %zu: expected 1 to 65535 rows of an even number up to 65536", n_rows,
            n_rot);
    *out = (qn_launch){ .variant.source = &angles_source,
                        .function = "qn_rope_angles",
                        .grid = { (uint32_t)((n_rot / 2 + ANGLES_THREADS - 1) / ANGLES_THREADS), (uint32_t)n_rows, 1 },
                        .block = { ANGLES_THREADS, 1, 1 },
                        .args_bytes = sizeof(qn_rope_angles_args) };
    return QN_OK;
}

qn_status qn_rope_gpu_qk_norm_store(size_t head_dim, bool pages, size_t n_rows, size_t n_heads, size_t n_kv_heads,
                                    qn_launch *out)
{
    if (!has_head_dim(head_dim))
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "qk_norm and rope on the GPU: head size %zu: expected 16 to 128 by 16, 160, 192, 224, 256, 512",
                       head_dim);
    if (n_rows == 0 || n_rows > 65535 || n_heads > 65535 || n_kv_heads > 65535)
        return qn_fail(
            QN_ERR_INVALID,
            "qk_norm and rope on the GPU: %zu rows of %zu and %zu heads, expected 1 to 65535 rows, at most 65535 heads",
            n_rows, n_heads, n_kv_heads);
    const size_t heads = n_rows * (n_heads + n_kv_heads), teams = QN_ROPE_GPU_TEAMS(head_dim, pages);
    if (heads == 0 || heads > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "qk_norm and rope on the GPU: %zu heads in one launch", heads);
    *out = (qn_launch){ .variant = QN_GPU_VARIANT(qk_norm_store, head_dim, pages),
                        .function = "qn_rope_qk_norm_store",
                        .grid = { (uint32_t)((heads + teams - 1) / teams), 1, 1 },
                        .block = { (uint32_t)QN_ROPE_GPU_THREADS(head_dim, pages), 1, 1 },
                        .args_bytes = sizeof(qn_rope_qk_norm_store_args) };
    return QN_OK;
}
