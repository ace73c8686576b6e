/* Arrays on the device that live as long as the problem of a case. */
#include "cuda_arrays.h"

#include <stdio.h>
#include <stdlib.h>

uint64_t qn_gpu_keep(qn_gpu_arrays *arrays, qn_gpu_guarded g)
{
    if (arrays->n == sizeof arrays->at / sizeof *arrays->at) {
        fprintf(stderr, "a case has more than %zu arrays on the device\n", arrays->n);
        exit(1);
    }
    arrays->at[arrays->n++] = g;
    return g.data;
}

uint64_t qn_gpu_keep_copy(qn_gpu_arrays *arrays, const void *data, size_t bytes)
{
    return qn_gpu_keep(arrays, qn_gpu_from(data, bytes));
}

qn_aura_gpu_rotation qn_gpu_keep_rotation(qn_gpu_arrays *arrays, const qn_aura_codec *codec)
{
    const size_t dim = codec->dim;
    if (codec->signs)
        return (qn_aura_gpu_rotation){ .signs = qn_gpu_keep_copy(arrays, codec->signs, dim * sizeof(float)) };
    return (qn_aura_gpu_rotation){ .forward = qn_gpu_keep_copy(arrays, codec->transpose, dim * dim * sizeof(float)),
                                   .inverse = qn_gpu_keep_copy(arrays, codec->rotation, dim * dim * sizeof(float)) };
}

void qn_gpu_free_arrays(qn_gpu_arrays *arrays)
{
    bool ok = true;
    for (size_t i = 0; i < arrays->n; i++) {
        ok = ok && qn_gpu_guards_intact(&arrays->at[i]);
        qn_gpu_free(&arrays->at[i]);
    }
    qn_expect(ok, "bytes outside an array were written");
    arrays->n = 0;
}
