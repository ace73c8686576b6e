/* The launch of arg-max on the GPU. */
#include "kernels/sample/sample_cuda.h"

qn_status qn_sample_gpu_argmax(size_t n, size_t n_rows, qn_launch *out)
{
    if (n == 0 || n > INT32_MAX || n_rows == 0 || n_rows > 65535)
        return qn_fail(QN_ERR_INVALID, "arg-max of %zu rows of %zu: expected 1 to 65535 rows of 1 to %d", n_rows, n, INT32_MAX);
    *out = (qn_launch){ .source = "sample/sample.cu",
                        .defines = "",
                        .function = "qn_sample_argmax",
                        .grid = { (uint32_t)((n + QN_ARGMAX_PIECE - 1) / QN_ARGMAX_PIECE), (uint32_t)n_rows, 1 },
                        .block = { QN_ARGMAX_THREADS, 1, 1 },
                        .args_bytes = sizeof(qn_sample_argmax_args) };
    return QN_OK;
}
