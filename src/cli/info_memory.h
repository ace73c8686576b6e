/* Shared by info.c and info_memory.c. */
#ifndef QN_CLI_INFO_MEMORY_H
#define QN_CLI_INFO_MEMORY_H

#include "gguf/gguf.h"
#include "model/model.h"

/* qn_print_memory - print what a model needs, weights, state and the KV cache in every format, and what of it fits on
 * the device that an option, which may be NULL, or the environment choose. */
void qn_print_memory(const qn_gguf *file, const qn_hparams *hparams, const qn_plan *plan, const char *device);

#endif
