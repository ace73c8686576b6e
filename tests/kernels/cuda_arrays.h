/* Arrays on the device that live as long as the problem of a case. */
#ifndef QN_CHECK_CUDA_ARRAYS_H
#define QN_CHECK_CUDA_ARRAYS_H

#include "cuda.h"
#include "kernels/aura/aura.h"
#include "cuda/kernels/aura/aura.h"

typedef struct qn_gpu_arrays {
    qn_gpu_guarded at[40];
    size_t n;
} qn_gpu_arrays;

/* qn_gpu_keep - Adds an array and returns its address. Ends the program if there is no space for it. */
uint64_t qn_gpu_keep(qn_gpu_arrays *arrays, qn_gpu_guarded g);

/* qn_gpu_keep_copy - Adds a copy of `data` and returns its address. */
uint64_t qn_gpu_keep_copy(qn_gpu_arrays *arrays, const void *data, size_t bytes);

/* qn_gpu_keep_rotation - Adds the codec's rotation: signs of a Hadamard transform, or dense matrices. */
qn_aura_gpu_rotation qn_gpu_keep_rotation(qn_gpu_arrays *arrays, const qn_aura_codec *codec);

/* qn_gpu_free_arrays - Frees all arrays; the case fails if bytes around one were written. */
void qn_gpu_free_arrays(qn_gpu_arrays *arrays);

#endif
