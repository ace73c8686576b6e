/* A part of the operation "attention". */
#ifndef QN_CHECK_CUDA_ATTENTION_ROWS_H
#define QN_CHECK_CUDA_ATTENTION_ROWS_H

#include <stdbool.h>

/* qn_check_cuda_attention_rows - Checks attention that does qk_norm, rope and kv_store itself. */
void qn_check_cuda_attention_rows(bool bench);

#endif
