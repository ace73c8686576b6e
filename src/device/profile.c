/* The lines of a profile: operations of one kind and size have one. */
#include "device/profile.h"

#include "base/append.h"

#include <string.h>

/* The name of a line: a matmul's has its types, columns and rows, which tell the matrices of a layer apart. */
static void name_op(const qn_plan *plan, size_t index, char *name, size_t bytes)
{
    qn_text_buffer text = qn_append_to(name, bytes);
    if (index == plan->n_ops) {
        qn_append(&text, "sampling");
        return;
    }
    const qn_op *op = &plan->ops[index];
    const qn_op_matrices *matrices = qn_op_matrices_of(op);
    qn_append(&text, "%s", qn_op_desc_of(op->kind)->name);
    if (!matrices)
        return;
    size_t n_rows = 0;
    for (size_t m = 0; m < matrices->n; m++) {
        const qn_matrix *weights = &matrices->at[m].weights;
        bool is_named = false;
        for (size_t before = 0; before < m; before++)
            is_named = is_named || matrices->at[before].weights.type == weights->type;
        if (!is_named)
            qn_append(&text, "%s%s", m ? "+" : " ", weights->type->name);
        n_rows += weights->n_rows;
    }
    qn_append(&text, " %zu x %zu", matrices->at[0].weights.n_cols, n_rows);
}

qn_profile_line *qn_profile_find_line(qn_profile *report, const qn_plan *plan, size_t op)
{
    char name[QN_PROFILE_NAME];
    name_op(plan, op, name, sizeof name);
    for (size_t i = 0; i < report->n_lines; i++)
        if (!strcmp(report->lines[i].name, name))
            return &report->lines[i];
    if (report->n_lines == QN_PROFILE_LINES) {
        qn_profile_line *last = &report->lines[QN_PROFILE_LINES - 1];
        strcpy(last->name, "others");
        return last;
    }
    qn_profile_line *line = &report->lines[report->n_lines++];
    *line = (qn_profile_line){ 0 };
    strcpy(line->name, name);
    return line;
}
