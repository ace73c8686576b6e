/* Embeddings that the host dequantises, for tables whose type no kernel of a backend reads. */
#ifndef QN_GPU_EMBEDDINGS_H
#define QN_GPU_EMBEDDINGS_H

#include "base/team.h"
#include "kernels/hadamard/hadamard.h"
#include "plan/plan.h"

/* qn_gpu_embed_rows - writes the embeddings of tokens [n] to out [n][width of the table], with the team's threads if
 * there are many. The plan begins with QN_OP_EMBED; tokens are in the vocabulary. */
void qn_gpu_embed_rows(const qn_plan *plan, const qn_hadamard_kernels *hadamard, qn_team *team, const int32_t *tokens,
                       size_t n, float *out);

#endif
