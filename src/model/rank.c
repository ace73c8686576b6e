/* Finds the head that ranks documents. */
#include "model/rank.h"

#include "model/keys.h"

#include <stdio.h>

static const char tensor[] = "cls.output.weight";

static qn_status count_labels(const qn_gguf *file, const char *architecture, size_t *n)
{
    char key[128];
    snprintf(key, sizeof key, "%s.classifier.output_labels", architecture);
    const qn_gguf_kv *labels = qn_gguf_find(file, key);
    if (!labels)
        return qn_fail(QN_ERR_FORMAT, "%s: there is a tensor '%s', but no key '%s'", qn_gguf_path(file), tensor, key);
    if (labels->type != QN_GGUF_ARRAY || labels->element_type != QN_GGUF_STRING)
        return qn_fail(QN_ERR_FORMAT, "%s: key '%s' is not an array of strings", qn_gguf_path(file), key);
    /* Scores are a softmax over the labels: of one label it is always 1. */
    if (labels->count < 2 || labels->count > QN_RANK_MAX_LABELS)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: key '%s' has %llu labels, expected 2 to %d", qn_gguf_path(file), key,
                       (unsigned long long)labels->count, QN_RANK_MAX_LABELS);
    *n = (size_t)labels->count;
    return QN_OK;
}

qn_status qn_rank_build(qn_build *build)
{
    const qn_gguf *file = build->weights->file;
    const char *architecture = build->hparams->architecture;
    qn_matrix *head = &build->plan->rank_head;
    uint32_t pooling = 0;
    size_t n_labels = 0;
    QN_TRY(qn_key_u32(file, architecture, "pooling_type", false, &pooling));
    if (pooling != QN_POOLING_TYPE_RANK || !qn_weights_has(build->weights, -1, tensor))
        return QN_OK;
    QN_TRY(count_labels(file, architecture, &n_labels));
    QN_TRY(qn_weights_table(build->weights, tensor, build->hparams->n_embd, n_labels, head));
    if (head->type->type == QN_TYPE_NVFP4)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: tensor '%s' is of type %s, which is not supported for it",
                       qn_gguf_path(file), tensor, head->type->name);
    return QN_OK;
}
