/* Launches of norm.cu, norm_pair.cu and norm_views.cu. */
#include "cuda/kernels/norm/norm.h"

#include "cuda/kernels/variants.h"
#include "cuda/kernels/norm/variants.def"

static qn_status check_rows(size_t n, size_t n_rows)
{
    if (n == 0 || n > INT32_MAX || n_rows == 0 || n_rows > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "norm on the GPU: %zu rows of %zu, expected 1 to %d of each", n_rows, n,
                       INT32_MAX);
    return QN_OK;
}

qn_status qn_norm_gpu_rows(size_t n, size_t n_rows, qn_launch *out)
{
    QN_TRY(check_rows(n, n_rows));
    *out = (qn_launch){ .variant.source = &norm_source,
                        .function = "qn_norm_rows",
                        .grid = { (uint32_t)n_rows, 1, 1 },
                        .block = { QN_NORM_GPU_THREADS, 1, 1 },
                        .args_bytes = sizeof(qn_norm_rows_args),
                        .pdl = true };
    return QN_OK;
}

qn_status qn_norm_gpu_pair(size_t n, size_t n_rows, qn_launch *out)
{
    QN_TRY(check_rows(n, n_rows));
    *out = (qn_launch){ .variant.source = &norm_pair_source,
                        .function = "qn_norm_pair",
                        .grid = { (uint32_t)n_rows, 1, 1 },
                        .block = { QN_NORM_PAIR_THREADS, 1, 1 },
                        .args_bytes = sizeof(qn_norm_pair_args) };
    return QN_OK;
}

qn_status qn_norm_gpu_keep(size_t n, size_t n_rows, qn_launch *out)
{
    QN_TRY(check_rows(n, n_rows));
    *out = (qn_launch){ .variant.source = &norm_pair_source,
                        .function = "qn_norm_keep",
                        .grid = { (uint32_t)n_rows, 1, 1 },
                        .block = { QN_NORM_PAIR_THREADS, 1, 1 },
                        .args_bytes = sizeof(qn_norm_keep_args) };
    return QN_OK;
}

qn_status qn_norm_gpu_views(size_t n, size_t n_rows, qn_launch *out)
{
    enum { WARPS = QN_NORM_GPU_THREADS / 32 };
    const bool by_warps = n <= QN_NORM_WARP_MAX;
    QN_TRY(check_rows(n, n_rows));
    *out = (qn_launch){ .variant.source = &norm_views_source,
                        .function = by_warps ? "qn_norm_views_by_warps" : "qn_norm_views_by_blocks",
                        .grid = { (uint32_t)(by_warps ? (n_rows + WARPS - 1) / WARPS : n_rows), 1, 1 },
                        .block = { QN_NORM_GPU_THREADS, 1, 1 },
                        .args_bytes = sizeof(qn_norm_views_args),
                        .pdl = true };
    return QN_OK;
}
