/* The keys general.* of a converted file: names, sizes, and the sampling that generation_config.json recommends. */
#ifndef QN_CONVERT_GENERAL_H
#define QN_CONVERT_GENERAL_H

#include "convert/targets.h"

/* qn_general_write - add the keys of a model in this folder. */
qn_status qn_general_write(const char *folder, const qn_config *config, const qn_targets *targets, qn_gguf_writer *writer);

/* qn_general_name - the model's name from that of its folder: words begin with capitals unless they hold some already, are
 * versions or begin with digits. `out` has `size` bytes. */
void qn_general_name(const char *folder, char *out, size_t size);

/* qn_general_size_label - "1.7B": a number of weights in two digits. */
void qn_general_size_label(uint64_t n_weights, char *out, size_t size);

#endif
