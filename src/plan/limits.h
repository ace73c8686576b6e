/* What the operations of a plan ask of a device at most. model/ builds no plan beyond these limits, and each device
 * supports all plans within them, or says at its creation which it does not. */
#ifndef QN_PLAN_LIMITS_H
#define QN_PLAN_LIMITS_H

#include <stdbool.h>
#include <stddef.h>

enum {
    QN_PLAN_HEAD_UNIT = 16,        /* head_dim of attention is a multiple of it */
    QN_PLAN_DELTA_UNIT = 16,       /* head_k and head_v of recurrent layers are multiples of it, */
    QN_PLAN_DELTA_DIM = 256,       /* up to this one */
    QN_PLAN_CONV_TAPS = 8,         /* of their convolution */
    QN_PLAN_ROTATION_BLOCK = 65536 /* values of a block of a Hadamard transform */
};

/* qn_aura_has_dim - whether AURA codes exist for heads of this size. */
static inline bool qn_aura_has_dim(size_t dim)
{
    return dim == 64 || dim == 80 || dim == 96 || dim == 128 || dim == 192 || dim == 256 || dim == 512;
}

#endif
