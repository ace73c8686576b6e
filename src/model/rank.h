/* The head of models that rank documents: a matrix with a row for each label. */
#ifndef QN_MODEL_RANK_H
#define QN_MODEL_RANK_H

#include "model/layers.h"

enum { QN_RANK_MAX_LABELS = 64, QN_POOLING_TYPE_RANK = 4 };

/* qn_rank_build - finds the head and gives it to the plan (rank_head), if the file has one.
 *
 * llama.cpp converts Qwen3-Reranker so (conversion/qwen.py, src/models/qwen3.cpp): pooling_type is 4 (rank), the rows
 * of cls.output.weight are those of the tokens "yes" and "no" in the output matrix, and classifier.output_labels names
 * them. Without pooling_type 4 the tensor stays unused, and the file is refused for that.
 *
 * QN_ERR_FORMAT, QN_ERR_UNSUPPORTED: the labels are missing, fewer than 2 or more than QN_RANK_MAX_LABELS, or the
 * tensor has another shape. */
qn_status qn_rank_build(qn_build *build);

#endif
