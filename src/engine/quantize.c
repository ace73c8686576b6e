/* Conversion of a model's file to another type: selects the type of each tensor. recode.c converts tensors, types are
 * implemented in quant/, the atomic write of the file in gguf/. */
#include "quern/quern.h"

#include "base/memory.h"
#include "base/params.h"
#include "base/team.h"
#include "engine/recode.h"

#include <stdio.h>
#include <string.h>

struct quantizer {
    const char *in, *out;
    const qn_type_info *target;
    qn_quantize_params params;
    qn_gguf *source;
    qn_gguf_writer *writer;
    qn_recoder *recoder;
    const qn_type_info **types; /* [n_tensors] the target types */
    size_t done, total;         /* bytes of the source's tensors, for on_progress */
    size_t n_matrices, n_lossy; /* matrices in a type of 1 or 2 bits; of them those that it does not hold */
};

#define STRING_ARGS(s) ((s).length < 80 ? (int)(s).length : 80), (s).data

static void log_line(const struct quantizer *q, const char *line)
{
    if (q->params.on_log)
        q->params.on_log(q->params.user, line);
}

static bool ends_with(qn_string s, const char *end)
{
    const size_t n = strlen(end);
    return s.length >= n && memcmp(s.data + s.length - n, end, n) == 0;
}

/* Whether a tensor computes the gates alpha and beta of a recurrent layer. Models with weights of 1 or 2 bits have them
 * in 16 bits (Bonsai's files, and the demo model's); llama.cpp quantises them to types of more bits, as is done here.
 */
static bool is_gate(const qn_gguf_tensor *t)
{
    return ends_with(t->name, "ssm_alpha.weight") || ends_with(t->name, "ssm_beta.weight");
}

static bool is_plain(uint32_t type)
{
    return type == QN_TYPE_F32 || type == QN_TYPE_F16 || type == QN_TYPE_BF16;
}

static const qn_type_info *type_for(const struct quantizer *q, const qn_gguf_tensor *t)
{
    char line[256];
    if (t->n_dims == 1)
        return qn_type_find(QN_TYPE_F32);
    if (ends_with(t->name, "ssm_conv1d.weight")) {
        snprintf(line, sizeof line, "%.*s: stays f32: the taps of a convolution are not a matrix",
                 STRING_ARGS(t->name));
        log_line(q, line);
        return qn_type_find(QN_TYPE_F32);
    }
    if (is_gate(t) && qn_type_is_low_bit(q->target) && is_plain(t->type)) {
        snprintf(line, sizeof line, "%.*s: stays %s: gates of heads are not trained in %s", STRING_ARGS(t->name),
                 qn_type_find(t->type)->name, q->target->name);
        log_line(q, line);
        return qn_type_find(t->type);
    }
    const qn_type_info *info = qn_type_for_width(q->target, t->dims[0]);
    if (info != q->target) {
        snprintf(line, sizeof line,
                 "%.*s: the row length %llu is not a multiple of the block size %zu (%s): %s instead",
                 STRING_ARGS(t->name), (unsigned long long)t->dims[0], q->target->block_weights, q->target->name,
                 info->name);
        log_line(q, line);
    }
    return info;
}

static qn_status write_keys(struct quantizer *q)
{
    static const char file_type_key[] = "general.file_type", version_key[] = "general.quantization_version";
    for (size_t i = 0; i < qn_gguf_n_kv(q->source); i++) {
        const qn_gguf_kv *kv = qn_gguf_kv_at(q->source, i);
        if (!qn_string_equals(kv->key, file_type_key) && !qn_string_equals(kv->key, version_key) &&
            !qn_gguf_is_split_key(kv->key)) /* the output is one file */
            QN_TRY(qn_gguf_writer_copy(q->writer, kv));
    }
    if (q->target->file_type >= 0)
        QN_TRY(qn_gguf_writer_add_u32(q->writer, file_type_key, (uint32_t)q->target->file_type));
    return qn_gguf_writer_add_u32(q->writer, version_key, 2); /* version of ggml's block layouts, since 2023 */
}

static uint64_t tensor_weights(const qn_gguf_tensor *t)
{
    return t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3]; /* no overflow: checked by the reader */
}

static qn_status write_header(struct quantizer *q)
{
    QN_TRY(write_keys(q));
    for (size_t i = 0; i < qn_gguf_n_tensors(q->source); i++) {
        const qn_gguf_tensor *t = qn_gguf_tensor_at(q->source, i);
        size_t bytes;
        QN_TRY(qn_recode_check(q->source, t));
        q->types[i] = type_for(q, t);
        if (!qn_row_bytes(q->types[i], tensor_weights(t), &bytes))
            return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.*s': its size as %s overflows",
                           qn_gguf_tensor_path(q->source, t), STRING_ARGS(t->name), q->types[i]->name);
        QN_TRY(qn_gguf_writer_add_tensor(q->writer, t->name, (uint32_t)q->types[i]->type, t->n_dims, t->dims, bytes));
        q->total += t->bytes;
    }
    return qn_gguf_writer_begin_data(q->writer);
}

static qn_status report(void *user, uint64_t bytes)
{
    struct quantizer *q = user;
    q->done += (size_t)bytes;
    if (q->params.on_progress && !q->params.on_progress(q->params.user, q->done, q->total))
        return qn_fail(QN_ERR_CANCELLED, "%s: cancelled, nothing was written", q->out);
    return QN_OK;
}

static qn_status write_tensor(struct quantizer *q, const qn_gguf_tensor *t, const qn_type_info *to)
{
    bool lossy;
    QN_TRY(qn_recode_tensor(q->recoder, q->source, t, to, q->params.force, &lossy));
    q->n_matrices += qn_type_find(t->type) != to && qn_type_is_low_bit(to);
    q->n_lossy += lossy;
    return QN_OK;
}

static void log_lossy(const struct quantizer *q)
{
    char line[256];
    if (!q->n_lossy)
        return;
    snprintf(line, sizeof line,
             "warning: %zu of %zu matrices have weights that %s does not hold: the model will not be usable",
             q->n_lossy, q->n_matrices, q->target->name);
    log_line(q, line);
}

static qn_status rewrite(struct quantizer *q)
{
    const size_t n_tensors = qn_gguf_n_tensors(q->source);
    QN_TRY(qn_gguf_writer_create(q->out, &q->writer));
    QN_TRY(qn_recoder_create(q->writer, q->params.n_threads, report, q, &q->recoder));
    QN_TRY(qn_alloc(&q->types, n_tensors, sizeof *q->types, "types of tensors"));
    if (qn_gguf_q2_layout(q->source))
        log_line(q, qn_gguf_q2_layout(q->source));
    QN_TRY(write_header(q));
    QN_TRY(report(q, 0));
    for (size_t i = 0; i < n_tensors; i++)
        QN_TRY(write_tensor(q, qn_gguf_tensor_at(q->source, i), q->types[i]));
    log_lossy(q);
    QN_TRY(qn_gguf_check_unchanged(q->source));
    return qn_gguf_writer_finish(q->writer);
}

qn_status qn_quantize_file(const char *in, const char *out, const char *type, const qn_quantize_params *params)
{
    struct quantizer q = { .in = in, .out = out, .params = QN_QUANTIZE_PARAMS_INIT };
    if (params)
        QN_TRY(QN_PARAMS_READ(qn_quantize_params, params, &q.params));
    if (q.params.n_threads < 0 || q.params.n_threads > QN_TEAM_MAX)
        return qn_fail(QN_ERR_INVALID, "n_threads is %d, expected 0 to %d", q.params.n_threads, QN_TEAM_MAX);
    QN_TRY(qn_type_find_writable(type, false, &q.target));
    QN_TRY(qn_gguf_open(in, &q.source));
    const qn_status status = rewrite(&q);
    qn_gguf_writer_free(q.writer);
    qn_recoder_free(q.recoder);
    qn_free(q.types);
    qn_gguf_close(q.source);
    return status;
}
