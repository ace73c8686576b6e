/* Layouts of activation codes: where a value of a super-block lies, and which layout a weight type reads. */
#include "kernels/matmul/matmul.h"

size_t qn_act_index(qn_act_layout layout, size_t i)
{
    const size_t lane = i / QN_QUANT_GROUP, k = i % QN_QUANT_GROUP;
    switch (layout) {
    case QN_ACT_1BIT: return k % 8 * 64 + lane * 4 + k / 8;
    case QN_ACT_2BIT: return (k / 16 * 4 + k % 4) * 64 + lane * 4 + k % 16 / 4;
    case QN_ACT_PLAIN: return i;
    case QN_ACT_TERNARY: return i % 128 / 16 * 64 + i / 128 * 16 + i % 16;
    default: return k / 4 * 64 + lane * 4 + k % 4;
    }
}

qn_act_layout qn_act_layout_of(const qn_type_info *type)
{
    switch (type->type) {
    case QN_TYPE_F32:
    case QN_TYPE_F16:
    case QN_TYPE_BF16: return QN_ACT_F32;
    case QN_TYPE_Q1_0: return QN_ACT_1BIT;
    case QN_TYPE_Q2_0:
    case QN_TYPE_PQ2_0:
    case QN_TYPE_OX2_0: return QN_ACT_2BIT;
    default: return QN_ACT_INTERLEAVED;
    }
}
