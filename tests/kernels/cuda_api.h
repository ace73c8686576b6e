/* Checks of quern/cuda.h on a GPU: a file for each section of that header. */
#ifndef QN_CHECK_CUDA_API_H
#define QN_CHECK_CUDA_API_H

#include "cuda.h"
#include "quern/cuda.h"

/* qn_check_api_* - Check the sections AURA; attention with rope; matmul; rows; convolution and Hadamard transform. */
void qn_check_api_aura(qn_cuda_kernels *kernels);
void qn_check_api_attention(qn_cuda_kernels *kernels);
void qn_check_api_matmul(qn_cuda_kernels *kernels);
void qn_check_api_rows(qn_cuda_kernels *kernels);
void qn_check_api_conv(qn_cuda_kernels *kernels);

/* qn_bench_api - Times the functions that are bound by memory. */
void qn_bench_api(qn_cuda_kernels *kernels);

#endif
