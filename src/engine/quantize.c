/* Conversion of a model's file to another type: selects the type of each tensor and converts the tensors in chunks on a
 * thread team. Types are implemented in quant/, the atomic write of the file in gguf/. */
#include "quern/quern.h"

#include "base/cpu.h"
#include "base/memory.h"
#include "base/params.h"
#include "base/team.h"
#include "gguf/gguf.h"
#include "quant/quant.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* Weights converted between two writes: the buffer is at most 16 MiB, and on_progress is called several times per
 * second. */
enum { PIECE_WEIGHTS = 1 << 22, CHUNK_WEIGHTS = 4096 };

struct quantizer {
    const char *in, *out;
    const qn_type_info *target;
    qn_quantize_params params;
    qn_gguf *source;
    qn_gguf_writer *writer;
    qn_team *team;
    const qn_type_info **types; /* [n_tensors] the target types */
    uint8_t *piece;
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
        if (t->type == QN_TYPE_NVFP4)
            return qn_fail(QN_ERR_UNSUPPORTED,
                           "%s: tensor '%.*s' is nvfp4, which runs as it is but is not quantised to other types",
                           qn_gguf_tensor_path(q->source, t), STRING_ARGS(t->name));
        q->types[i] = type_for(q, t);
        if (!qn_row_bytes(q->types[i], tensor_weights(t), &bytes))
            return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.*s': its size as %s overflows",
                           qn_gguf_tensor_path(q->source, t), STRING_ARGS(t->name), q->types[i]->name);
        QN_TRY(qn_gguf_writer_add_tensor(q->writer, t->name, (uint32_t)q->types[i]->type, t->n_dims, t->dims, bytes));
        q->total += t->bytes;
    }
    return qn_gguf_writer_begin_data(q->writer);
}

/* A chunk of a tensor, for the team: converted to `to`, or only scanned for infinities and NaN if `to` is NULL. */
struct work {
    const qn_type_info *from_type, *to_type;
    const uint8_t *from;
    uint8_t *to;
    bool compares; /* what is written with what was read */
    atomic_bool nonfinite, too_large, differs;
};

/* Returns true if a type of 1 or 2 bits represents the weights. Their scale may be rounded to fp16, which changes all
 * weights of a group by the same factor. */
static bool holds(const qn_type_info *type, const float *weights, const uint8_t *blocks, size_t n)
{
    const float rounding = 1.0f / 1024;
    float back[CHUNK_WEIGHTS];
    type->to_float(blocks, n / type->block_weights, back);
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(back[i] - weights[i]) <= rounding * fabsf(weights[i])))
            return false;
    return true;
}

static void convert_weights(void *context, size_t begin, size_t end, int thread)
{
    struct work *w = context;
    (void)thread;
    const qn_type_info *a = w->from_type, *b = w->to_type;
    for (size_t i = begin; i < end; i += CHUNK_WEIGHTS) {
        float weights[CHUNK_WEIGHTS];
        const size_t n = end - i < CHUNK_WEIGHTS ? end - i : CHUNK_WEIGHTS;
        const uint8_t *blocks = w->from + i / a->block_weights * a->block_bytes;
        if (a->find_nonfinite(blocks, n / a->block_weights) < n / a->block_weights) {
            atomic_store(&w->nonfinite, true);
            return;
        }
        if (!w->to)
            continue;
        uint8_t *to = w->to + i / b->block_weights * b->block_bytes;
        a->to_float(blocks, n / a->block_weights, weights);
        b->from_float(weights, n / b->block_weights, to);
        if (!qn_type_reaches(b, weights, n))
            atomic_store(&w->too_large, true);
        if (w->compares && !atomic_load(&w->differs) && !holds(b, weights, to, n))
            atomic_store(&w->differs, true);
    }
}

static qn_status report(struct quantizer *q)
{
    if (q->params.on_progress && !q->params.on_progress(q->params.user, q->done, q->total))
        return qn_fail(QN_ERR_CANCELLED, "%s: cancelled, nothing was written", q->out);
    return QN_OK;
}

static qn_status check_result(const struct quantizer *q, const qn_gguf_tensor *t, const qn_type_info *to,
                              struct work *work)
{
    if (atomic_load(&work->too_large))
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.*s' has a weight that is too large for %s",
                       qn_gguf_tensor_path(q->source, t), STRING_ARGS(t->name), to->name);
    if (atomic_load(&work->differs) && !q->params.force)
        return qn_fail(QN_ERR_INVALID,
                       "%s: tensor '%.*s' (%s) has weights that %s does not hold: the model would not be usable "
                       "(quantize it to q8_0 or q4_0, or to a type for its values; --force writes it all the same)",
                       qn_gguf_tensor_path(q->source, t), STRING_ARGS(t->name), qn_type_find(t->type)->name, to->name);
    return QN_OK;
}

static qn_status write_tensor(struct quantizer *q, const qn_gguf_tensor *t, const qn_type_info *to)
{
    const qn_type_info *from = qn_type_find(t->type);
    const uint64_t n_weights = tensor_weights(t);
    const bool compares = from != to && qn_type_is_low_bit(to);
    bool lossy = false;
    for (uint64_t at = 0; at < n_weights; at += PIECE_WEIGHTS) {
        const size_t n = n_weights - at < PIECE_WEIGHTS ? (size_t)(n_weights - at) : PIECE_WEIGHTS;
        const size_t begin = (size_t)(at / from->block_weights) * from->block_bytes;
        const size_t from_bytes = n / from->block_weights * from->block_bytes,
                     to_bytes = n / to->block_weights * to->block_bytes;
        QN_TRY(report(q));
        struct work work = { .from_type = from,
                             .to_type = to,
                             .from = t->data + begin,
                             .to = from == to ? NULL : q->piece,
                             .compares = compares && !lossy };
        qn_team_divide(q->team, n, CHUNK_WEIGHTS, convert_weights, &work);
        QN_TRY(qn_gguf_check_whole(q->source));
        if (atomic_load(&work.nonfinite))
            return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.*s': block %zu (%s) contains an infinity or NaN",
                           qn_gguf_tensor_path(q->source, t), STRING_ARGS(t->name),
                           (size_t)(at / from->block_weights) +
                               from->find_nonfinite(work.from, n / from->block_weights),
                           from->name);
        QN_TRY(check_result(q, t, to, &work));
        lossy |= atomic_load(&work.differs);
        const qn_status status = qn_gguf_writer_data(q->writer, from == to ? work.from : q->piece, to_bytes);
        if (status) {
            QN_TRY(qn_gguf_check_unchanged(q->source)); /* a source that was cut makes the system's write fail too */
            return status;
        }
        q->done += from_bytes;
    }
    q->n_matrices += compares;
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
    QN_TRY(qn_team_create(q->params.n_threads ? q->params.n_threads : qn_cpu_best_threads(), &q->team));
    QN_TRY(qn_alloc(&q->types, n_tensors, sizeof *q->types, "types of tensors"));
    QN_TRY(qn_alloc(&q->piece, PIECE_WEIGHTS, sizeof(float), "piece of a tensor"));
    if (qn_gguf_q2_layout(q->source))
        log_line(q, qn_gguf_q2_layout(q->source));
    QN_TRY(write_header(q));
    for (size_t i = 0; i < n_tensors; i++)
        QN_TRY(write_tensor(q, qn_gguf_tensor_at(q->source, i), q->types[i]));
    QN_TRY(report(q));
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
    qn_team_free(q.team);
    qn_free(q.types);
    qn_free(q.piece);
    qn_gguf_close(q.source);
    return status;
}
