/* Limits of a plan's operations. model/ builds no plan beyond them. Each device supports all plans within them, or
 * opening it for an unsupported plan fails and names the reason. */
#ifndef QN_PLAN_LIMITS_H
#define QN_PLAN_LIMITS_H

#include <stdbool.h>
#include <stddef.h>

enum {
    QN_PLAN_HEAD_UNIT = 16,        /* attention's head_dim is a multiple of it */
    QN_PLAN_DELTA_UNIT = 16,       /* head_k and head_v of recurrent layers are multiples of it */
    QN_PLAN_DELTA_DIM = 256,       /* largest head_k and head_v */
    QN_PLAN_CONV_TAPS = 8,         /* largest number of taps of the causal convolution */
    QN_PLAN_ROTATION_BLOCK = 65536 /* largest block of a Hadamard transform, in values */
};

/* qn_aura_has_dim - returns whether AURA codes exist for heads of this size. */
static inline bool qn_aura_has_dim(size_t dim)
{
    return dim == 64 || dim == 80 || dim == 96 || dim == 128 || dim == 192 || dim == 256 || dim == 512;
}

#endif
