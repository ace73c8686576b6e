/* The table of architectures, and the functions that build their plans. */
#ifndef QN_MODEL_ARCHITECTURES_H
#define QN_MODEL_ARCHITECTURES_H

#include "model/hparams.h"

/* qn_dense_build - builds a plan with attention and SwiGLU in every layer (dense.c). */
qn_status qn_dense_build(qn_build *build);

/* qn_qwen35_build - builds a plan with Gated DeltaNet or gated attention, and SwiGLU, in every layer (qwen35.c). */
qn_status qn_qwen35_build(qn_build *build);

#endif
