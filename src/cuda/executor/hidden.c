/* Copies of hidden states, and their norm. */
#include "cuda/executor/hidden.h"

#include <math.h>

static const qn_op *logit_norm_of(const qn_plan *plan)
{
    const qn_op *norm = plan->ops;
    while (norm->kind != QN_OP_LOGIT_NORM)
        norm++;
    return norm;
}

static float *destination_of(const qn_row *row)
{
    return row->hidden ? row->hidden : row->normed;
}

bool qn_cuda_has_hidden(const qn_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (destination_of(&rows[i]))
            return true;
    return false;
}

/* Copies rows of a piece. Rows whose arrays are adjacent, as a scheduler's are, are one copy. */
static qn_status copy_piece(const qn_cuda_rows_step *s, const qn_gpu_piece *piece, int x)
{
    const size_t width = s->common->plan->buffers[x].width, bytes = width * sizeof(float);
    for (size_t i = 0, n; i < piece->n; i += n) {
        float *to = destination_of(&piece->rows[i]);
        n = 1;
        if (!to)
            continue;
        while (i + n < piece->n && destination_of(&piece->rows[i + n]) == to + n * width)
            n++;
        QN_TRY(qn_cuda_copy_d2h(s->common->cuda, s->common->stream, to,
                                qn_cuda_rows(s->workspace, x) + (piece->row + i) * bytes, n * bytes));
    }
    return QN_OK;
}

qn_status qn_cuda_queue_hidden(const qn_cuda_rows_step *s)
{
    const int x = logit_norm_of(s->common->plan)->norm.in;
    for (size_t i = 0; i < s->n_pieces; i++)
        if (s->pieces[i].rows)
            QN_TRY(copy_piece(s, &s->pieces[i], x));
    return QN_OK;
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

void qn_cuda_finish_hidden(const qn_plan *plan, const qn_row *rows, size_t n)
{
    const qn_op *norm = logit_norm_of(plan);
    for (size_t i = 0; i < n; i++)
        if (rows[i].normed)
            rms_norm(rows[i].normed, destination_of(&rows[i]), norm->norm.weight, plan->buffers[norm->norm.in].width,
                     norm->norm.eps);
}
