/* Places the vectors of a plan one after the other. */
#include "gpu/vectors.h"

#include "base/memory.h"

#include <string.h>

enum { ALIGN = 256 };

static void place(qn_gpu_vectors *v, const void *data, size_t count, size_t size, uint64_t *address)
{
    *address = 0;
    if (!data)
        return;
    if (v->host)
        memcpy(v->host + v->used, data, count * size);
    *address = v->address + v->used;
    v->used += qn_round_up(count * size, ALIGN);
}

void qn_gpu_place_op_vectors(qn_gpu_vectors *v, const qn_plan *plan, const qn_op *op, qn_op_addresses *addresses)
{
    const qn_op_desc *desc = qn_op_desc_of(op->kind);
    size_t n = 0;
    for (size_t i = 0; i < QN_OP_FIELDS && desc->fields[i].kind; i++) {
        const qn_op_field *field = &desc->fields[i];
        const void *at = (const char *)op + field->offset;
        const qn_plan_rotation *rotation = at;
        if (field->kind == QN_FIELD_VECTOR)
            place(v, *(const float *const *)at, qn_plan_width(plan, op, field->width), sizeof(float),
                  &addresses->at[n++]);
        else if (field->kind == QN_FIELD_ROTATION)
            place(v, rotation->signs, rotation->block ? qn_plan_width(plan, op, field->width) : 0, sizeof(float),
                  &addresses->at[n++]);
    }
}

void qn_gpu_place_plan_vectors(qn_gpu_vectors *v, const qn_plan *plan, uint64_t *signs, uint64_t *frequencies)
{
    for (size_t i = 0; i < plan->n_acts; i++)
        place(v, plan->acts[i].rotation.block ? plan->acts[i].rotation.signs : NULL, plan->acts[i].width, sizeof(float),
              &signs[i]);
    place(v, plan->frequencies, plan->heads.n_rot / 2, sizeof(double), frequencies);
}

void qn_gpu_place_drafter_rope(qn_gpu_vectors *v, const qn_plan *plan, uint64_t *frequencies)
{
    place(v, plan->head.rope.frequencies, plan->head.heads.n_rot / 2, sizeof(double), frequencies);
}
