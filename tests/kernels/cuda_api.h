/* Checks of quern/cuda.h on a GPU: a file for each section of that header. */
#ifndef QN_CHECK_CUDA_API_H
#define QN_CHECK_CUDA_API_H

#include "cuda.h"
#include "quern/cuda.h"

/* qn_check_api_* - Check the sections AURA; attention with rope; matmul; rows; convolution and Hadamard transform. */
void qn_check_api_aura(void);
void qn_check_api_attention(void);
void qn_check_api_matmul(void);
void qn_check_api_rows(void);
void qn_check_api_conv(void);

/* qn_bench_api - Times the functions that are bound by memory. */
void qn_bench_api(void);

#endif
