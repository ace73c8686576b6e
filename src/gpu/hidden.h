/* Hidden states that rows ask for (QN_ROW_HIDDEN): which rows do, and their norm on the host. */
#ifndef QN_GPU_HIDDEN_H
#define QN_GPU_HIDDEN_H

#include "device/device.h"

/* qn_gpu_logit_norm - returns the plan's LOGIT_NORM: its input are the hidden states. */
const qn_op *qn_gpu_logit_norm(const qn_plan *plan);

/* qn_gpu_hidden_of - returns where a row's hidden state goes: row->hidden, else row->normed; NULL: nowhere. */
float *qn_gpu_hidden_of(const qn_row *row);

/* qn_gpu_has_hidden - returns whether any of n rows has a hidden state. */
bool qn_gpu_has_hidden(const qn_row *rows, size_t n);

/* qn_gpu_finish_hidden - computes row->normed of n rows from the states that were copied to qn_gpu_hidden_of. */
void qn_gpu_finish_hidden(const qn_plan *plan, const qn_row *rows, size_t n);

#endif
