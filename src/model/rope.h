/* What a file says of rotary position embedding: how much of a head is rotated, the base, and how positions are scaled. */
#ifndef QN_MODEL_ROPE_H
#define QN_MODEL_ROPE_H

#include "model/model.h"

/* qn_rope_read - n_rot, rope_base and rope_scaling of the hyper-parameters, whose head_dim and n_ctx_train are there. Scaling
 * of type none, linear and yarn; QN_ERR_UNSUPPORTED for others. QN_ERR_FORMAT for a value out of range, naming the key. */
qn_status qn_rope_read(const qn_gguf *file, qn_hparams *h);

#endif
