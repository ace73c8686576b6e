/* Launch of elementwise.cu. */
#include "kernels/elementwise/elementwise_cuda.h"

#include "kernels/variants.h"
#include "kernels/elementwise/variants.def"

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
