/* The keys general.* of a converted file: names, sizes, and the sampling that generation_config.json recommends. */
#ifndef QN_CONVERT_GENERAL_H
#define QN_CONVERT_GENERAL_H

#include "convert/targets.h"

/* qn_general_write - adds the keys of the model in a folder. */
qn_status qn_general_write(const char *folder, const qn_config *config, const qn_targets *targets,
                           qn_gguf_writer *writer);

/* qn_general_name - derives the model's name from that of its folder: words are capitalised unless they contain
 * capitals, are versions or begin with digits. `out` has `size` bytes. */
void qn_general_name(const char *folder, char *out, size_t size);

/* qn_general_size_label - prints a number of weights with two digits: "1.7B". */
void qn_general_size_label(uint64_t n_weights, char *out, size_t size);

#endif
