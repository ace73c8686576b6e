/* Copies of hidden states. */
#include "cuda/executor/hidden.h"

#include "gpu/hidden.h"

/* Copies rows of a piece. Rows whose arrays are adjacent, as a scheduler's are, are one copy. */
static qn_status copy_piece(const qn_cuda_rows_step *s, const qn_gpu_piece *piece, int x)
{
    const size_t width = s->common->plan->buffers[x].width, bytes = width * sizeof(float);
    for (size_t i = 0, n; i < piece->n; i += n) {
        float *to = qn_gpu_hidden_of(&piece->rows[i]);
        n = 1;
        if (!to)
            continue;
        while (i + n < piece->n && qn_gpu_hidden_of(&piece->rows[i + n]) == to + n * width)
            n++;
        QN_TRY(qn_cuda_copy_d2h(s->common->cuda, s->common->stream, to,
                                qn_cuda_rows(s->workspace, x) + (piece->row + i) * bytes, n * bytes));
    }
    return QN_OK;
}

qn_status qn_cuda_queue_hidden(const qn_cuda_rows_step *s)
{
    const int x = qn_gpu_logit_norm(s->common->plan)->norm.in;
    for (size_t i = 0; i < s->n_pieces; i++)
        if (s->pieces[i].rows)
            QN_TRY(copy_piece(s, &s->pieces[i], x));
    return QN_OK;
}
