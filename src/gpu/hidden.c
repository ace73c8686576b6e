/* The host's part of hidden states. */
#include "gpu/hidden.h"

#include <math.h>

const qn_op *qn_gpu_logit_norm(const qn_plan *plan)
{
    const qn_op *norm = plan->ops;
    while (norm->kind != QN_OP_LOGIT_NORM)
        norm++;
    return norm;
}

float *qn_gpu_hidden_of(const qn_row *row)
{
    return row->hidden ? row->hidden : row->normed;
}

bool qn_gpu_has_hidden(const qn_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (qn_gpu_hidden_of(&rows[i]))
            return true;
    return false;
}

/* The RMS norm of a row; y may be x. */
static void rms_norm(float *y, const float *x, const float *weight, size_t n, float eps)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    const float scale = (float)(1 / sqrt(sum / (double)n + (double)eps));
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * scale * weight[i];
}

void qn_gpu_finish_hidden(const qn_plan *plan, const qn_row *rows, size_t n)
{
    const qn_op *norm = qn_gpu_logit_norm(plan);
    for (size_t i = 0; i < n; i++)
        if (rows[i].normed)
            rms_norm(rows[i].normed, qn_gpu_hidden_of(&rows[i]), norm->norm.weight, plan->buffers[norm->norm.in].width,
                     norm->norm.eps);
}
