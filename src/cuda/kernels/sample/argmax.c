/* Launch of argmax.cu. */
#include "cuda/kernels/sample/argmax.h"

#include "cuda/kernels/variants.h"
#include "cuda/kernels/sample/variants.def"

qn_status qn_argmax_gpu_rows(size_t n, size_t n_rows, qn_launch *out)
{
    if (n == 0 || n > INT32_MAX || n_rows == 0 || n_rows > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "argmax on the GPU: %zu rows of %zu, expected 1 to %d of each", n_rows, n,
                       INT32_MAX);
    *out = (qn_launch){ .variant.source = &argmax_source,
                        .function = "qn_argmax_rows",
                        .grid = { (uint32_t)n_rows, 1, 1 },
                        .block = { QN_ARGMAX_THREADS, 1, 1 },
                        .args_bytes = sizeof(qn_argmax_rows_args),
                        .pdl = true };
    return QN_OK;
}
