/* Launches of elementwise.cu. */
#include "cuda/kernels/elementwise/elementwise.h"

#include "cuda/kernels/variants.h"
#include "cuda/kernels/elementwise/variants.def"

qn_status qn_elementwise_gpu_swiglu(size_t n, qn_launch *out)
{
    const size_t blocks = n / QN_ELEMENTWISE_GPU_THREADS + (n % QN_ELEMENTWISE_GPU_THREADS != 0);
    if (blocks == 0 || blocks > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "SwiGLU on the GPU: %zu elements, expected 1 to %zu", n,
                       (size_t)INT32_MAX * QN_ELEMENTWISE_GPU_THREADS);
    *out = (qn_launch){ .variant.source = &elementwise_source,
                        .function = "qn_elementwise_swiglu",
                        .grid = { (uint32_t)blocks, 1, 1 },
                        .block = { QN_ELEMENTWISE_GPU_THREADS, 1, 1 },
                        .args_bytes = sizeof(qn_elementwise_swiglu_args),
                        .pdl = true };
    return QN_OK;
}

qn_status qn_elementwise_gpu_swiglu_views(size_t n, size_t n_rows, qn_launch *out)
{
    enum { PER_BLOCK = 8 * QN_ELEMENTWISE_GPU_THREADS, MAX_BLOCKS = 65535 };
    const size_t blocks = n / PER_BLOCK + (n % PER_BLOCK != 0);
    if (blocks == 0 || blocks > MAX_BLOCKS || n_rows == 0 || n_rows > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "SwiGLU on the GPU: %zu rows of %zu, expected 1 to %d of 1 to %d", n_rows, n,
                       INT32_MAX, MAX_BLOCKS * PER_BLOCK);
    *out = (qn_launch){ .variant.source = &elementwise_source,
                        .function = "qn_elementwise_swiglu_views",
                        .grid = { (uint32_t)n_rows, (uint32_t)blocks, 1 },
                        .block = { QN_ELEMENTWISE_GPU_THREADS, 1, 1 },
                        .args_bytes = sizeof(qn_elementwise_swiglu_views_args),
                        .pdl = true };
    return QN_OK;
}

/* A launch over rows of n floats. */
static qn_status fill_rows(const char *function, size_t args_bytes, size_t n, size_t n_rows, qn_launch *out)
{
    enum { MAX_ROWS = 65535 };
    if (n == 0 || n > INT32_MAX || n_rows == 0 || n_rows > MAX_ROWS)
        return qn_fail(QN_ERR_INVALID, "copying rows on the GPU: %zu rows of %zu, expected 1 to %d of 1 to %d", n_rows,
                       n, MAX_ROWS, INT32_MAX);
    *out = (qn_launch){ .variant.source = &elementwise_source,
                        .function = function,
                        .grid = { (uint32_t)((n + QN_ELEMENTWISE_GPU_THREADS - 1) / QN_ELEMENTWISE_GPU_THREADS),
                                  (uint32_t)n_rows, 1 },
                        .block = { QN_ELEMENTWISE_GPU_THREADS, 1, 1 },
                        .args_bytes = args_bytes,
                        .pdl = true };
    return QN_OK;
}

qn_status qn_elementwise_gpu_gather(size_t n, size_t n_rows, qn_launch *out)
{
    return fill_rows("qn_elementwise_gather", sizeof(qn_elementwise_gather_args), n, n_rows, out);
}

qn_status qn_elementwise_gpu_place(size_t n, size_t n_rows, qn_launch *out)
{
    return fill_rows("qn_elementwise_place", sizeof(qn_elementwise_place_args), n, n_rows, out);
}
