/* Reads keys that begin with the architecture's name. */
#ifndef QN_MODEL_KEYS_H
#define QN_MODEL_KEYS_H

#include "gguf/gguf.h"

/* qn_key_u32 - reads the key "{architecture}.{name}", as qn_gguf_get_u32 does. */
qn_status qn_key_u32(const qn_gguf *file, const char *architecture, const char *name, bool required, uint32_t *out);

/* qn_key_layers_u32 - reads the key "{architecture}.{name}", which is an integer for all layers or an array with one
 * for each block. QN_ERR_UNSUPPORTED, with two layers and their values, if layers differ: plans have layers of one
 * shape.
 *
 *   n_layers   layers: elements of ignored blocks after them are not read
 *   n_blocks   elements of the array; n_layers are allowed, too
 *   zeros      0 is ignored: a layer without the thing. QN_ERR_FORMAT if all layers are without
 *   out        not changed if the key is missing and not required */
qn_status qn_key_layers_u32(const qn_gguf *file, const char *architecture, const char *name, bool required,
                            uint32_t n_layers, uint32_t n_blocks, bool zeros, uint32_t *out);

/* qn_key_f32 - reads the key "{architecture}.{name}", as qn_gguf_get_f32 does. */
qn_status qn_key_f32(const qn_gguf *file, const char *architecture, const char *name, bool required, float *out);

/* qn_check_range - returns QN_ERR_FORMAT, naming the value `what`, if the value is outside [low, high]. */
qn_status qn_check_range(const qn_gguf *file, const char *what, uint32_t value, uint32_t low, uint32_t high);

#endif
