/* A matmul of few rows computes the activations of the next one, where the plan allows it. A norm's input is then still
 * stored; gate and up are not. */
#include "vulkan/executor/matmuls.h"

#include "vulkan/executor/activations.h"
#include "vulkan/executor/attention.h"

#include <string.h>

static size_t index_of(const qn_vk_recording *r, const qn_op *op)
{
    return (size_t)(op - r->common->plan->ops);
}

static bool is_f16(const qn_op *op, const qn_vk_gemm *gemm)
{
    return qn_vk_is_f16(op->matmul.matrices.at[gemm->group.matrices[0]].weights.type);
}

/* ---- Epilogues ---- */

/* Whether the epilogue of a matmul computes the rotation of activations, if they have one: of a single row, whose
 * blocks are finished by the last of several workgroups. */
static bool may_rotate(const qn_vk_recording *r, int acts)
{
    const qn_plan_acts *a = &r->common->plan->acts[acts];
    return !a->rotation.block || (r->n == 1 && a->rotation.block <= QN_VK_MAX_ROTATED &&
                                  a->rotation.block % QN_QUANT_GROUP == 0 && a->width % a->rotation.block == 0);
}

/* Returns the activations that the epilogue of operation `at` writes; -1 without one. */
static int next_acts(const qn_vk_recording *r, size_t at)
{
    const qn_plan *plan = r->common->plan;
    const qn_vk_op *vk_op = &r->weights->ops[at];
    if (plan->ops[at].kind != QN_OP_MATMUL || r->n > QN_VK_FEW_ROWS || vk_op->n_gemms != 1 ||
        !qn_gpu_may_fuse(plan, at, &vk_op->gemms[0].group) || is_f16(&plan->ops[at], &vk_op->gemms[0]))
        return -1;
    const qn_op_acts *acts = qn_op_acts_of(&plan->ops[at + 1]);
    const bool is_norm = plan->ops[at + 1].kind == QN_OP_NORM;
    const int next = acts->at[0];
    const bool fits = acts->n == 1 && may_rotate(r, next) && !r->workspace->acts[next] &&
                      plan->acts[next].width % QN_VK_BLOCK == 0 &&
                      vk_op->gemms[0].group.n_matrices == (is_norm ? 1 : 2);
    return fits ? next : -1;
}

/* Whether the epilogue of operation `at` computes rope of queries, keys and values: of a decode step of one row. */
static bool has_heads(const qn_vk_recording *r, size_t at)
{
    const qn_op *op = &r->common->plan->ops[at], *next = op + 1;
    if (!r->is_decode || r->n != 1 || op->kind != QN_OP_MATMUL || next->kind != QN_OP_QK_NORM_ROPE_STORE ||
        r->weights->ops[at].n_gemms != 1)
        return false;
    const qn_vk_gemm *gemm = &r->weights->ops[at].gemms[0];
    const int outs[] = { next->qk_norm_rope_store.queries, next->qk_norm_rope_store.keys,
                         next->qk_norm_rope_store.values };
    bool fits = gemm->group.n_matrices == 3 && !is_f16(op, gemm) &&
                next->qk_norm_rope_store.shape.head_dim % QN_VK_HEADS_UNIT == 0;
    for (size_t i = 0; i < 3 && fits; i++) {
        const qn_op_matrix *matrix = &op->matmul.matrices.at[gemm->group.matrices[i]];
        fits = matrix->out == outs[i] && !matrix->accumulate;
    }
    return fits;
}

qn_vk_epilogue qn_vk_epilogue_of(const qn_vk_recording *r, size_t at)
{
    const int next = next_acts(r, at);
    if (next < 0)
        return has_heads(r, at) ? QN_VK_EPILOGUE_HEADS : QN_VK_EPILOGUE_NONE;
    /* A matmul does not write the activations that it reads. */
    if (at >= 2 && r->weights->ops[at].gemms[0].group.acts == next &&
        qn_vk_epilogue_of(r, at - 2) != QN_VK_EPILOGUE_NONE)
        return QN_VK_EPILOGUE_NONE;
    return r->common->plan->ops[at + 1].kind == QN_OP_NORM ? QN_VK_EPILOGUE_NORM : QN_VK_EPILOGUE_SWIGLU;
}

/* ---- Activations that are read ---- */

static uint64_t acts_of(const qn_vk_recording *r, const qn_op *op, const qn_vk_gemm *gemm)
{
    const size_t at = index_of(r, op);
    const qn_op *writer = op - 1;
    const qn_vk_workspace *w = r->workspace;
    const int acts = gemm->group.acts;
    if (!is_f16(op, gemm))
        return at >= 2 && qn_vk_epilogue_of(r, at - 2) != QN_VK_EPILOGUE_NONE ? w->next[acts] : w->codes[acts];
    return qn_vk_is_computed(r->common->plan, writer, acts) ? w->acts[acts] : w->buffers[writer->attention_combine.in];
}

/* ---- Recording ---- */

static void set_out(const qn_vk_recording *r, const qn_op *op, const qn_vk_gemm *gemm, size_t i,
                    qn_vk_matmul_args *args)
{
    const qn_plan *plan = r->common->plan;
    const qn_op_matrix *matrix = &op->matmul.matrices.at[gemm->group.matrices[i]];
    const bool is_logits = matrix->out < 0;
    args->outs[i] = is_logits ? r->workspace->logits.address : r->workspace->buffers[matrix->out];
    args->first_tiles[i] = (uint32_t)gemm->group.first_tiles[i];
    args->n_rows[i] = (uint32_t)matrix->weights.n_rows;
    args->strides[i] = (uint32_t)(is_logits ? plan->n_vocab : plan->buffers[matrix->out].width);
    args->accumulate |= (uint32_t)matrix->accumulate << i;
}

/* Writes qn_vk_rotated of the epilogue of operation `at` among the inputs, and returns its address. */
static uint64_t write_rotated(const qn_vk_recording *r, size_t at, int acts)
{
    const qn_vk_workspace *w = r->workspace;
    const qn_vk_rotated rotated = { .arrived = w->arrived.address,
                                    .y = w->unrotated.address,
                                    .signs = r->weights->signs[acts],
                                    .factor = qn_hadamard_scale(r->common->plan->acts[acts].rotation.block) };
    const size_t to = w->rotated_at + at * sizeof rotated;
    memcpy(w->inputs.host + to, &rotated, sizeof rotated);
    return w->inputs.address + to;
}

static qn_status record_gemm(const qn_vk_recording *r, const qn_op *op, const qn_vk_gemm *gemm, size_t n)
{
    const qn_plan *plan = r->common->plan;
    const qn_op *writer = op - 1;
    const bool is_norm = writer->kind == QN_OP_NORM || writer->kind == QN_OP_LOGIT_NORM;
    qn_vk_matmul_args args = { .codes = gemm->memory.address,
                               .scales = gemm->memory.address + gemm->scales_at,
                               .acts = acts_of(r, op, gemm),
                               .n_cols = (uint32_t)gemm->group.n_cols,
                               .n_tokens = (uint32_t)n,
                               .n_tiles = (uint32_t)gemm->group.n_tiles,
                               .eps = is_norm ? writer->norm.eps : 0 };
    qn_vk_matmul_kind kind = { .epilogue = qn_vk_epilogue_of(r, index_of(r, op)),
                               .is_normed = is_norm,
                               .planes = qn_vk_act_planes(&plan->acts[gemm->group.acts]),
                               .next_planes = 1 };
    for (size_t i = 0; i < QN_VK_MATMUL_OUTS; i++) {
        args.first_tiles[i] = UINT32_MAX;
        if (i < gemm->group.n_matrices)
            set_out(r, op, gemm, i, &args);
    }
    if (kind.epilogue == QN_VK_EPILOGUE_HEADS) {
        args.outs[QN_VK_OUT_HEADS] = qn_vk_write_heads(r, op + 1);
    } else if (kind.epilogue != QN_VK_EPILOGUE_NONE) {
        const int next = qn_op_acts_of(op + 1)->at[0];
        kind.next_planes = qn_vk_act_planes(&plan->acts[next]);
        kind.rotated = (uint32_t)plan->acts[next].rotation.block;
        if (kind.rotated)
            args.outs[QN_VK_OUT_ROTATED] = write_rotated(r, index_of(r, op), next);
        args.outs[QN_VK_OUT_ACTS] = r->workspace->next[next];
        args.outs[QN_VK_OUT_WEIGHT] =
            kind.epilogue == QN_VK_EPILOGUE_NORM ? r->weights->ops[index_of(r, op) + 1].vectors.norm.weight : 0;
    }
    const qn_vk_launch launch = qn_vk_matmul(&gemm->format, &qn_vk_get_info(r->common->vk)->features, &kind, &args);
    return qn_vk_dispatch(r->common->vk, r->commands, &launch, &args);
}

/* Different matrices of an operation have different outputs: their dispatches need no barrier. */
qn_status qn_vk_record_matmul(const qn_vk_recording *r, const qn_op *op, size_t n)
{
    const qn_vk_op *vk_op = &r->weights->ops[index_of(r, op)];
    for (size_t i = 0; i < vk_op->n_gemms; i++)
        QN_TRY(record_gemm(r, op, &vk_op->gemms[i], n));
    return QN_OK;
}
