/* Offsets and sizes of the recurrent layers' parts of states and open chunks. */
#include "gpu/recurrent_layout.h"

#include "plan/page.h"

qn_gpu_recurrent_layout qn_gpu_recurrent_layout_of(const qn_recurrent_shape *s)
{
    const size_t width = qn_recurrent_width(s), rows = s->n_v_heads * QN_PAGE;
    qn_gpu_recurrent_layout l = { .history = s->n_v_heads * s->head_k * s->head_v * 2 * sizeof(uint16_t) };
    l.state_layer_bytes = l.history + (s->taps - 1) * width * sizeof(float);
    l.open.values = l.open.keys + s->n_k_heads * QN_PAGE * s->head_k * sizeof(uint16_t);
    l.open.scales = l.open.values + rows * s->head_v * sizeof(uint16_t);
    l.open.decays = l.open.scales + rows * QN_GDN_SCALE_GROUPS(s->head_v) * sizeof(float);
    l.open.inputs = l.open.decays + rows * sizeof(float);
    l.open.bytes = l.open.inputs + QN_GDN_INPUT_ROWS(s->taps) * width * sizeof(float);
    return l;
}

size_t qn_gpu_recurrent_index(const qn_plan *plan, int layer)
{
    size_t index = 0;
    for (int i = 0; plan->is_recurrent && i < layer; i++)
        index += plan->is_recurrent[i];
    return index;
}

uint64_t qn_gpu_state_offset(const qn_plan *plan, int layer)
{
    return qn_gpu_recurrent_index(plan, layer) * qn_gpu_recurrent_layout_of(&plan->recurrent).state_layer_bytes;
}

qn_gdn_open_layout qn_gpu_open_layout(const qn_plan *plan, int layer)
{
    qn_gdn_open_layout l = qn_gpu_recurrent_layout_of(&plan->recurrent).open;
    const uint64_t offset = qn_gpu_recurrent_index(plan, layer) * l.bytes;
    l.keys += offset;
    l.values += offset;
    l.scales += offset;
    l.decays += offset;
    l.inputs += offset;
    return l;
}
