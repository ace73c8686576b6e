/* Finding tensors by name and insisting on their shapes. */
#include "model/weights.h"

#include <stdio.h>

enum { NAME_MAX_BYTES = 96 };

static void tensor_name(char name[NAME_MAX_BYTES], int layer, const char *base)
{
    if (layer < 0)
        snprintf(name, NAME_MAX_BYTES, "%s", base);
    else
        snprintf(name, NAME_MAX_BYTES, "blk.%d.%s", layer, base);
}

static qn_status find(const qn_gguf *file, const char *name, size_t n_cols, size_t n_rows, const qn_gguf_tensor **out)
{
    const qn_gguf_tensor *t = *out = qn_gguf_find_tensor(file, name);
    if (!t)
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%s' is missing", qn_gguf_path(file), name);
    if (t->dims[0] != n_cols || t->dims[1] != n_rows || t->dims[2] != 1 || t->dims[3] != 1)
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%s' is [%llu, %llu, %llu, %llu], expected [%zu, %zu, 1, 1]",
                       qn_gguf_path(file), name, (unsigned long long)t->dims[0], (unsigned long long)t->dims[1],
                       (unsigned long long)t->dims[2], (unsigned long long)t->dims[3], n_cols, n_rows);
    return QN_OK;
}

bool qn_weights_has(const qn_gguf *file, int layer, const char *name)
{
    char full[NAME_MAX_BYTES];
    tensor_name(full, layer, name);
    return qn_gguf_find_tensor(file, full) != NULL;
}

qn_status qn_weights_matrix(const qn_gguf *file, int layer, const char *name, size_t n_cols, size_t n_rows, qn_matrix *out)
{
    char full[NAME_MAX_BYTES];
    const qn_gguf_tensor *t;
    tensor_name(full, layer, name);
    QN_TRY(find(file, full, n_cols, n_rows, &t));
    const qn_type_info *type = qn_type_find(t->type);
    size_t row_bytes;
    if (!type || !qn_row_bytes(type, n_cols, &row_bytes))
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: tensor '%s' has type %u, which no matrix product takes", qn_gguf_path(file),
                       full, (unsigned)t->type);
    *out = (qn_matrix){ .type = type, .data = t->data, .n_rows = n_rows, .n_cols = n_cols, .row_bytes = row_bytes };
    return QN_OK;
}

qn_status qn_weights_vector(const qn_gguf *file, int layer, const char *name, size_t n, bool optional, const float **out)
{
    char full[NAME_MAX_BYTES];
    const qn_gguf_tensor *t;
    *out = NULL;
    if (optional && !qn_weights_has(file, layer, name))
        return QN_OK;
    tensor_name(full, layer, name);
    QN_TRY(find(file, full, n, 1, &t));
    if (t->type != QN_TYPE_F32)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: tensor '%s' has type %u, expected f32 (0)", qn_gguf_path(file), full,
                       (unsigned)t->type);
    *out = (const float *)(const void *)t->data;
    return QN_OK;
}
