/* The Walsh-Hadamard transform of quern/cuda.h. */
#include "cuda/api/api.h"

#include "base/memory.h"
#include "kernels/hadamard/hadamard.h"
#include "cuda/kernels/hadamard/hadamard.h"

static qn_status check_shape(size_t width, size_t block, qn_hadamard_order order)
{
    if (!block || block & (block - 1) || block > QN_HADAMARD_MAX_BLOCK)
        return qn_fail(QN_ERR_INVALID, "block: %zu, expected a power of two of 1 to %d", block, QN_HADAMARD_MAX_BLOCK);
    if (width % block || width > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "width: %zu, expected a multiple of the block %zu, at most %d", width, block,
                       INT32_MAX);
    if (order != QN_HADAMARD_SIGN_FIRST && order != QN_HADAMARD_SIGN_LAST)
        return qn_fail(QN_ERR_INVALID, "order: %d, expected %d or %d", (int)order, QN_HADAMARD_SIGN_FIRST,
                       QN_HADAMARD_SIGN_LAST);
    return QN_OK;
}

qn_status qn_cuda_hadamard(qn_cuda_kernels *kernels, qn_cuda_view x, qn_cuda_view signs, size_t n_rows, size_t width,
                           size_t block, qn_hadamard_order order, qn_stream stream)
{
    qn_hadamard_gpu plan;
    uint32_t stride;
    size_t n;
    if (!kernels)
        return qn_fail(QN_ERR_INVALID, "kernels: NULL");
    QN_TRY(check_shape(width, block, order));
    if (!qn_mul_size(n_rows, width, &n))
        return qn_fail(QN_ERR_INVALID, "x: %zu x %zu elements do not fit in memory", n_rows, width);
    QN_TRY(qn_api_check_rows("x", x, QN_DTYPE_F32, n ? n_rows : 0, width, QN_API_ALIGNMENT, &stride));
    const bool has_gaps = stride != width && n_rows > 1;
    if (has_gaps && (stride % (QN_API_ALIGNMENT / sizeof(float)) || n_rows > UINT16_MAX))
        return qn_fail(QN_ERR_INVALID,
                       "x: %zu rows that are %u elements apart, expected a multiple of 4, and at most %d rows", n_rows,
                       stride, UINT16_MAX);
    if (qn_api_given(signs))
        QN_TRY(qn_api_check_array("signs", signs, QN_DTYPE_F32, width));
    if (!n)
        return QN_OK;
    const uint64_t s = qn_api_given(signs) ? qn_api_address(signs) : 0;
    QN_TRY(qn_hadamard_gpu_plan(qn_api_address(x), qn_api_address(x), order == QN_HADAMARD_SIGN_FIRST ? s : 0,
                                order == QN_HADAMARD_SIGN_LAST ? s : 0, width, block, has_gaps ? width : n, &plan));
    if (has_gaps)
        QN_TRY(qn_hadamard_gpu_rows(&plan, n_rows, stride));
    const qn_api_call calls[2] = { { plan.tiles, &plan.tiles_args }, { plan.cross, &plan.cross_args } };
    return qn_api_run_calls(kernels, stream, calls, plan.has_cross ? 2 : 1);
}

qn_status qn_cuda_hadamard_prepare(qn_cuda_kernels *kernels)
{
    qn_hadamard_gpu plan;
    QN_TRY(qn_hadamard_gpu_plan(0, 0, 0, 0, 1, 1, 1, &plan));
    const qn_launch launches[2] = { plan.tiles, plan.cross };
    return qn_api_load(kernels, launches, 2);
}
