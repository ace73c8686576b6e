/* Access to tensors by name, with checks of their shapes, and a final check that no tensor is unused. */
#include "model/weights.h"

#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAME_MAX_BYTES = 96 };

/* Bits of qn_weights.uses. */
enum { LOADED = 1, USED_IN_MATMUL = 2 };

qn_status qn_weights_open_plain(qn_weights *weights, const qn_gguf *file, qn_plan *plan)
{
    *weights = (qn_weights){ .file = file, .plan = plan };
    return qn_alloc(&weights->uses, qn_gguf_n_tensors(file) + 1, 1, "list of tensors");
}

qn_status qn_weights_open(qn_weights *weights, const qn_gguf *file, qn_plan *plan)
{
    QN_TRY(qn_weights_open_plain(weights, file, plan));
    const qn_status status = qn_rotation_read(file, &weights->rotation);
    if (status != QN_OK)
        qn_weights_close(weights);
    return status;
}

void qn_weights_close(qn_weights *weights)
{
    qn_rotation_free(&weights->rotation);
    qn_free(weights->uses);
    *weights = (qn_weights){ 0 };
}

static void tensor_name(char name[NAME_MAX_BYTES], int layer, const char *base)
{
    if (layer < 0)
        snprintf(name, NAME_MAX_BYTES, "%s", base);
    else
        snprintf(name, NAME_MAX_BYTES, "blk.%d.%s", layer, base);
}

static qn_status find(qn_weights *weights, const char *name, size_t n_cols, size_t n_rows, int use,
                      const qn_gguf_tensor **out)
{
    const qn_gguf *file = weights->file;
    const qn_gguf_tensor *t = *out = qn_gguf_find_tensor(file, name);
    if (!t)
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%s' is missing", qn_gguf_path(file), name);
    if (t->dims[0] != n_cols || t->dims[1] != n_rows || t->dims[2] != 1 || t->dims[3] != 1)
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%s' is [%llu, %llu, %llu, %llu], expected [%zu, %zu, 1, 1]",
                       qn_gguf_path(file), name, (unsigned long long)t->dims[0], (unsigned long long)t->dims[1],
                       (unsigned long long)t->dims[2], (unsigned long long)t->dims[3], n_cols, n_rows);
    weights->uses[t - qn_gguf_tensor_at(file, 0)] |= (uint8_t)use;
    return QN_OK;
}

bool qn_weights_has(const qn_weights *weights, int layer, const char *name)
{
    char full[NAME_MAX_BYTES];
    tensor_name(full, layer, name);
    return qn_gguf_find_tensor(weights->file, full) != NULL;
}

/* Names the tensor `suffix` beside the tensor NAME.weight; false if the name is another. */
static bool name_beside(char name[NAME_MAX_BYTES], const char *full, const char *suffix)
{
    static const char weight[] = "weight";
    const size_t length = strlen(full), end = length - (sizeof weight - 1);
    if (length < sizeof weight || strcmp(full + end, weight) != 0 || end + strlen(suffix) >= NAME_MAX_BYTES)
        return false;
    memcpy(name, full, end);
    strcpy(name + end, suffix);
    return true;
}

static qn_status read_tensor_scale(qn_weights *weights, const char *full, float *scale)
{
    char name[NAME_MAX_BYTES];
    const qn_gguf_tensor *t;
    *scale = 1;
    if (name_beside(name, full, "input_scale") && qn_gguf_find_tensor(weights->file, name))
        QN_TRY(find(weights, name, 1, 1, LOADED, &t));
    if (!name_beside(name, full, "scale") || !qn_gguf_find_tensor(weights->file, name))
        return QN_OK;
    QN_TRY(find(weights, name, 1, 1, LOADED, &t));
    if (t->type != QN_TYPE_F32)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: tensor '%s' has type %u, expected f32 (0)", qn_gguf_path(weights->file),
                       name, (unsigned)t->type);
    memcpy(scale, t->data, sizeof *scale);
    if (!(fabsf(*scale) <= QN_NVFP4_MAX_SCALE))
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%s' is %g, expected a finite scale of at most %g",
                       qn_gguf_path(weights->file), name, (double)*scale, (double)QN_NVFP4_MAX_SCALE);
    return QN_OK;
}

static qn_status find_matrix(qn_weights *weights, const char *full, size_t n_cols, size_t n_rows, int use,
                             qn_matrix *out)
{
    const qn_gguf_tensor *t;
    QN_TRY(find(weights, full, n_cols, n_rows, use, &t));
    const qn_type_info *type = qn_type_find(t->type);
    size_t row_bytes;
    if (!type || !qn_row_bytes(type, n_cols, &row_bytes))
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: tensor '%s' has type %u, for which there is no matmul",
                       qn_gguf_path(weights->file), full, (unsigned)t->type);
    *out = (qn_matrix){ .type = type, .data = t->data, .n_rows = n_rows, .n_cols = n_cols, .row_bytes = row_bytes };
    if (type->type != QN_TYPE_NVFP4)
        return QN_OK;
    float scale;
    QN_TRY(read_tensor_scale(weights, full, &scale));
    return qn_plan_add_scaled(weights->plan, t, scale, out);
}

qn_status qn_weights_matrix(qn_weights *weights, int layer, const char *name, size_t n_cols, size_t n_rows,
                            qn_weight *out)
{
    char full[NAME_MAX_BYTES];
    tensor_name(full, layer, name);
    *out = (qn_weight){ .rotated = weights->rotation.block && qn_rotation_applies(&weights->rotation, full) };
    return find_matrix(weights, full, n_cols, n_rows, LOADED | USED_IN_MATMUL, &out->matrix);
}

qn_status qn_weights_table(qn_weights *weights, const char *name, size_t n_cols, size_t n_rows, qn_matrix *out)
{
    return find_matrix(weights, name, n_cols, n_rows, LOADED, out);
}

qn_status qn_weights_floats(qn_weights *weights, int layer, const char *name, size_t n_cols, size_t n_rows,
                            const float **out)
{
    char full[NAME_MAX_BYTES];
    const qn_gguf_tensor *t;
    tensor_name(full, layer, name);
    QN_TRY(find(weights, full, n_cols, n_rows, LOADED, &t));
    if (t->type != QN_TYPE_F32)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: tensor '%s' has type %u, expected f32 (0)", qn_gguf_path(weights->file),
                       full, (unsigned)t->type);
    *out = (const float *)(const void *)t->data;
    return QN_OK;
}

qn_status qn_weights_vector(qn_weights *weights, int layer, const char *name, size_t n, bool optional,
                            const float **out)
{
    *out = NULL;
    if (optional && !qn_weights_has(weights, layer, name))
        return QN_OK;
    return qn_weights_floats(weights, layer, name, n, 1, out);
}

uint32_t qn_weights_block(qn_string name)
{
    uint64_t block = 0;
    size_t i = 4;
    if (name.length < 6 || memcmp(name.data, "blk.", 4) != 0)
        return UINT32_MAX;
    for (; i < name.length && name.data[i] >= '0' && name.data[i] <= '9' && block < UINT32_MAX; i++)
        block = block * 10 + (uint64_t)(name.data[i] - '0');
    return i > 4 && i < name.length && name.data[i] == '.' && block < UINT32_MAX ? (uint32_t)block : UINT32_MAX;
}

/* Checks that all tensors were used. An unused tensor (a bias, a block after block_count) means that the model has a
 * feature that is not implemented. A rotated tensor that is not used in a matmul would be read in the wrong basis. */
qn_status qn_weights_check_all_used(const qn_weights *weights, const char *architecture, uint32_t first_ignored,
                                    uint32_t end_ignored)
{
    for (size_t i = 0; i < qn_gguf_n_tensors(weights->file); i++) {
        const qn_gguf_tensor *t = qn_gguf_tensor_at(weights->file, i);
        const uint32_t block = qn_weights_block(t->name);
        const int length = (int)(t->name.length < NAME_MAX_BYTES ? t->name.length : NAME_MAX_BYTES - 1);
        char name[NAME_MAX_BYTES];
        snprintf(name, sizeof name, "%.*s", length, t->name.data);
        if (block >= first_ignored && block < end_ignored)
            continue;
        if (!weights->uses[i])
            return qn_fail(QN_ERR_UNSUPPORTED, "%s: tensor '%s' is not used by a '%s' model of %u blocks",
                           qn_gguf_path(weights->file), name, architecture, (unsigned)first_ignored);
        if (!(weights->uses[i] & USED_IN_MATMUL) && weights->rotation.block &&
            qn_rotation_applies(&weights->rotation, name))
            return qn_fail(QN_ERR_UNSUPPORTED,
                           "%s: tensor '%s' is listed in prism.hadamard.weight_names, but is not used in a "
                           "matmul by a '%s' model",
                           qn_gguf_path(weights->file), name, architecture);
    }
    return QN_OK;
}
