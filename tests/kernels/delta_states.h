/* Conversion of recurrent states between f32 and the engine's two planes (gpu/state_planes.h), in
 * place: both forms have the same size. */
#ifndef QN_CHECK_DELTA_STATES_H
#define QN_CHECK_DELTA_STATES_H

#include "check.h"

#include "gpu/state_planes.h"

/* qn_split_states - Converts n_states states of n elements each to planes. */
static inline void qn_split_states(float *states, size_t n_states, size_t n)
{
    const size_t mark = qn_mark();
    uint16_t *planes = qn_new(2 * n, sizeof *planes);
    for (size_t s = 0; s < n_states; s++) {
        for (size_t i = 0; i < n; i++)
            qn_gdn_split(states[s * n + i], &planes[i], &planes[n + i]);
        memcpy(states + s * n, planes, n * sizeof *states);
    }
    qn_release_to(mark);
}

/* qn_join_states - Converts n_states states of n elements each from planes to f32. */
static inline void qn_join_states(float *states, size_t n_states, size_t n)
{
    const size_t mark = qn_mark();
    uint16_t *planes = qn_new(2 * n, sizeof *planes);
    for (size_t s = 0; s < n_states; s++) {
        memcpy(planes, states + s * n, n * sizeof *states);
        for (size_t i = 0; i < n; i++)
            states[s * n + i] = qn_gdn_join(planes[i], planes[n + i]);
    }
    qn_release_to(mark);
}

#endif
