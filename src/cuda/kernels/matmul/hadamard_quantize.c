/* The launch of hadamard_quantize.cu. */
#include "cuda/kernels/matmul/hadamard_quantize.h"

#include "cuda/kernels/variants.h"
#include "cuda/kernels/matmul/variants.def"

#include <math.h>

bool qn_matmul_gpu_has_hadamard_quantize(size_t block)
{
    return block == 512 || block == 1024 || block == 2048;
}

qn_status qn_matmul_gpu_hadamard_quantize(const qn_matmul_acts *acts, int op, uint64_t x, uint64_t x2, uint64_t weight,
                                          float eps, uint64_t signs, size_t block, qn_launch *launch,
                                          qn_hadamard_quantize_args *args)
{
    if (!qn_matmul_gpu_has_hadamard_quantize(block) || acts->layout != QN_ACTS_HILO_N1 || acts->n_cols == 0 ||
        acts->n_cols % block || acts->n_cols > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "rotated activations on the GPU: a row of %zu in blocks of %zu, in layout %d",
                       acts->n_cols, block, acts->layout);
    if ((x | x2 | weight | signs | acts->address) % 16)
        return qn_fail(QN_ERR_INVALID, "rotated activations on the GPU: an address that is no multiple of 16");
    *launch = (qn_launch){ .variant = QN_GPU_VARIANT(hadamard_quantize, block, op),
                           .function = "qn_hadamard_quantize",
                           .grid = { (uint32_t)(acts->n_cols / block), 1, 1 },
                           .block = { QN_HADAMARD_QUANTIZE_THREADS, 1, 1 },
                           .args_bytes = sizeof *args,
                           .pdl = true };
    *args = (qn_hadamard_quantize_args){ .x = x,
                                         .x2 = x2,
                                         .weight = weight,
                                         .signs = signs,
                                         .out = acts->address,
                                         .n_cols = (uint32_t)acts->n_cols,
                                         .eps = eps,
                                         .scale = (float)(1 / sqrt((double)block)) };
    return QN_OK;
}
