/* Reads the keys of rotary position embedding: rotated dimensions, base and scaling. */
#ifndef QN_MODEL_ROPE_H
#define QN_MODEL_ROPE_H

#include "model/model.h"

/* qn_rope_read - sets n_rot, rope_base and rope_scaling. architecture, head_dim and n_ctx_train must be set.
 *
 * QN_ERR_UNSUPPORTED: a scaling type other than none, linear and yarn. QN_ERR_FORMAT: a value is out of range; the text
 * names the key. */
qn_status qn_rope_read(const qn_gguf *file, qn_hparams *h);

/* qn_rope_read_sections - sets has_rope_sections and rope_sections, interleaved, from rope.dimension_sections if the
 * file has that key. architecture must be set. QN_ERR_FORMAT: the key is not an array of three or four numbers of
 * pairs. */
qn_status qn_rope_read_sections(const qn_gguf *file, qn_hparams *h);

#endif
