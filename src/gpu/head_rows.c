/* Positions of the hidden states that are kept for a draft head. */
#include "gpu/head_rows.h"

size_t qn_gpu_head_width(const qn_plan *plan)
{
    return plan->head.draft && !plan->head.block ? plan->buffers[plan->ops[plan->head.pairs].pair.hidden].width : 0;
}

static uint64_t row_address(const qn_gpu_head_rows *rows, size_t width, size_t index)
{
    return rows->address + index * width * sizeof(float);
}

/* Returns the half with the row at a position; 2: neither has it. */
static size_t find_half(const qn_gpu_head_rows *rows, uint32_t position)
{
    size_t half = 0;
    while (half < 2 && position - rows->halves[half].begin >= rows->halves[half].n)
        half++;
    return half;
}

/* The address of the kept row before `position`; 0: there is none. *half: as find_half. */
static uint64_t row_before(const qn_gpu_head_rows *rows, size_t width, uint32_t position, size_t *half)
{
    *half = position ? find_half(rows, position - 1) : 2;
    return *half < 2 ? row_address(rows, width, *half * QN_GPU_HEAD_KEPT + (position - 1 - rows->halves[*half].begin))
                     : 0;
}

void qn_gpu_head_rows_step(qn_gpu_head_rows *rows, size_t width, uint32_t position, uint32_t n, uint64_t *from,
                           uint64_t *to)
{
    const uint32_t n_kept = n < QN_GPU_HEAD_KEPT ? n : QN_GPU_HEAD_KEPT;
    size_t half;
    from[0] = row_before(rows, width, position, &half);
    const uint32_t before = half < 2 ? position - rows->halves[half].begin : 0;
    const bool appends = half < 2 && before + n <= QN_GPU_HEAD_KEPT;
    const uint32_t first = appends ? before : 0;
    half = appends ? half : half == 0;
    for (uint32_t i = 0; i < n; i++) {
        from[i] = i ? QN_GPU_ROW_BEFORE : from[0];
        to[i] = i + n_kept < n ? 0 : row_address(rows, width, half * QN_GPU_HEAD_KEPT + first + (i + n_kept - n));
    }
    rows->halves[half].begin = position + n - n_kept - first;
    rows->halves[half].n = first + n_kept;
    /* The other half's rows at these positions were refused. */
    if (rows->halves[!half].begin + rows->halves[!half].n > position)
        rows->halves[!half].n = rows->halves[!half].begin < position ? position - rows->halves[!half].begin : 0;
}

void qn_gpu_head_rows_draft(qn_gpu_head_rows *rows, size_t width, uint32_t position, uint32_t length, uint64_t *from,
                            uint64_t *to)
{
    size_t half;
    *to = row_address(rows, width, 2 * QN_GPU_HEAD_KEPT);
    *from = position > length && rows->draft_end == position ? *to : row_before(rows, width, position, &half);
    rows->draft_end = position + 1;
}
