/* Reads keys that begin with the architecture's name. */
#ifndef QN_MODEL_KEYS_H
#define QN_MODEL_KEYS_H

#include "gguf/gguf.h"

/* qn_key_u32 - reads the key "{architecture}.{name}", as qn_gguf_get_u32 does. */
qn_status qn_key_u32(const qn_gguf *file, const char *architecture, const char *name, bool required, uint32_t *out);

/* qn_key_f32 - reads the key "{architecture}.{name}", as qn_gguf_get_f32 does. */
qn_status qn_key_f32(const qn_gguf *file, const char *architecture, const char *name, bool required, float *out);

/* qn_check_range - returns QN_ERR_FORMAT, naming the value `what`, if the value is outside [low, high]. */
qn_status qn_check_range(const qn_gguf *file, const char *what, uint32_t value, uint32_t low, uint32_t high);

#endif
