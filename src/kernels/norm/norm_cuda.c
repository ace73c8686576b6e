/* Launch of norm.cu. */
#include "kernels/norm/norm_cuda.h"

#include "kernels/variants.h"
#include "kernels/norm/variants.def"

qn_status qn_norm_gpu_rows(size_t n, size_t n_rows, qn_launch *out)
{
    if (n == 0 || n > INT32_MAX || n_rows == 0 || n_rows > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "RMS norm on the GPU: %zu rows of %zu, expected 1 to %d of each", n_rows, n, INT32_MAX);
    *out = (qn_launch){ .variant.source = &norm_source,
                        .function = "qn_norm_rows",
                        .grid = { (uint32_t)n_rows, 1, 1 },
                        .block = { QN_NORM_GPU_THREADS, 1, 1 },
                        .args_bytes = sizeof(qn_norm_rows_args),
                        .pdl = true };
    return QN_OK;
}
