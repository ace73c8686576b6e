/* Recurrent states between f32 and the two planes of the engine (cuda/kernels/deltanet/state_planes.h), in place: both
 * take the same bytes. */
#ifndef QN_CHECK_CUDA_STATES_H
#define QN_CHECK_CUDA_STATES_H

#include "check.h"

#include "cuda/kernels/deltanet/state_planes.h"

#include <stdlib.h>
#include <string.h>

/* qn_split_states, qn_join_states - n_states states of n elements each, to planes and back. */
static inline void qn_split_states(float *states, size_t n_states, size_t n)
{
    uint16_t *planes = qn_xcalloc(2 * n, sizeof *planes);
    for (size_t s = 0; s < n_states; s++) {
        for (size_t i = 0; i < n; i++)
            qn_gdn_split(states[s * n + i], &planes[i], &planes[n + i]);
        memcpy(states + s * n, planes, n * sizeof *states);
    }
    free(planes);
}

static inline void qn_join_states(float *states, size_t n_states, size_t n)
{
    uint16_t *planes = qn_xcalloc(2 * n, sizeof *planes);
    for (size_t s = 0; s < n_states; s++) {
        memcpy(planes, states + s * n, n * sizeof *states);
        for (size_t i = 0; i < n; i++)
            states[s * n + i] = qn_gdn_join(planes[i], planes[n + i]);
    }
    free(planes);
}

#endif
