/* quern info --plan: the operations of a model, from its plan and the table of operations. Opens no device. */
#include "cli/info_plan.h"

#include "cli/cli.h"
#include "gguf/gguf.h"
#include "model/model.h"

#include <inttypes.h>
#include <stdio.h>

static const char *fused_into(const qn_op *op)
{
    switch (qn_op_desc_of(op->kind)->phase) {
    case QN_PHASE_OF_NONE: return "-";
    case QN_PHASE_OF_PROLOGUE: return "prologue";
    case QN_PHASE_OF_GEMV: return "gemv";
    case QN_PHASE_OF_ATTENTION: return "attention";
    case QN_PHASE_OF_DELTA: return "delta";
    }
    return "";
}

static void print_operand(const qn_plan *plan, const qn_op_operand *operand)
{
    const size_t width = operand->is_acts ? plan->acts[operand->index].width : plan->buffers[operand->index].width;
    const char *access = operand->access == QN_READS ? "" : operand->access == QN_WRITES ? ">" : "+";
    printf(" %s%c%d[%zu]", access, operand->is_acts ? 'a' : 'b', operand->index, width);
}

static void print_matrix(const qn_matrix *matrix)
{
    printf(" %s[%zu, %zu]", matrix->type->name, matrix->n_cols, matrix->n_rows);
}

static void print_operands(const qn_plan *plan, const qn_op *op)
{
    const qn_op_matrices *matrices = qn_op_matrices_of(op);
    qn_op_operand operands[QN_OP_OPERANDS];
    const size_t n = qn_op_operands(op, operands);
    for (size_t i = 0, m = 0; i < n; i++) {
        if (!matrices)
            printf(" %s", operands[i].name);
        print_operand(plan, &operands[i]);
        if (matrices && operands[i].is_acts)
            print_matrix(&matrices->at[m++].weights);
        if (i + 1 < n && (!matrices || operands[i + 1].is_acts))
            putchar(',');
    }
}

static void print_weights(const qn_plan *plan, const qn_op *op)
{
    const qn_op_desc *desc = qn_op_desc_of(op->kind);
    const char *separator = ";";
    for (size_t i = 0; i < QN_OP_FIELDS && desc->fields[i].kind; i++) {
        const qn_op_field *field = &desc->fields[i];
        const bool table = field->kind == QN_FIELD_TABLE;
        if (!table && (field->kind != QN_FIELD_VECTOR ||
                       !*(const float *const *)(const void *)((const char *)op + field->offset)))
            continue;
        printf("%s %s", separator, field->name);
        if (table)
            print_matrix(qn_op_table_of(op));
        else
            printf(" f32[%zu]", qn_plan_width(plan, op, field->width));
        separator = ",";
    }
}

static void print_op(const qn_plan *plan, size_t at)
{
    const qn_op *op = &plan->ops[at];
    char layer[16] = "-", size[32];
    if (op->layer >= 0)
        snprintf(layer, sizeof layer, "%d", op->layer);
    printf("%5zu %6s  %-18s %12s  %-10s", at, layer, qn_op_desc_of(op->kind)->name,
           qn_print_size(size, qn_plan_op_bytes(plan, op)), fused_into(op));
    print_operands(plan, op);
    print_weights(plan, op);
    putchar('\n');
}

int qn_print_plan(const char *path)
{
    qn_gguf *file;
    qn_hparams hparams;
    qn_plan plan;
    char size[32];
    if (qn_gguf_open(path, &file))
        return qn_cli_fail();
    const qn_status status = qn_model_build(file, &hparams, &plan);
    if (status == QN_OK) {
        qn_print_size(size, qn_plan_weight_bytes(&plan));
        printf("%zu operations, %zu buffers, %zu activations, %s of weights a token\n", plan.n_ops, plan.n_buffers,
               plan.n_acts, size);
        printf("%5s %6s  %-18s %12s  %-10s operands; weights\n", "", "layer", "operation", "bytes", "fused into");
        for (size_t i = 0; i < plan.n_ops; i++)
            print_op(&plan, i);
        qn_plan_free(&plan);
    }
    qn_gguf_close(file);
    return status == QN_OK ? QN_EXIT_DONE : qn_cli_fail();
}
