/* Conversion of tensors in pieces: threads convert chunks of a piece, which is then written. */
#include "engine/recode.h"

#include "base/cpu.h"
#include "base/memory.h"
#include "base/team.h"

#include <math.h>
#include <stdatomic.h>

/* Weights converted between two writes: the buffer is at most 16 MiB, and reports come several times per second. */
enum { PIECE_WEIGHTS = 1 << 22, CHUNK_WEIGHTS = 4096, COPIED_BYTES = 1 << 24 };

struct qn_recoder {
    qn_gguf_writer *writer;
    qn_team *team;
    uint8_t *piece;
    qn_recode_report report;
    void *user;
};

#define STRING_ARGS(s) ((s).length < 80 ? (int)(s).length : 80), (s).data

qn_status qn_recoder_create(qn_gguf_writer *writer, int n_threads, qn_recode_report report, void *user,
                            qn_recoder **out)
{
    qn_recoder *r;
    *out = NULL;
    QN_TRY(qn_alloc(&r, 1, sizeof *r, "recoder"));
    *r = (qn_recoder){ .writer = writer, .report = report, .user = user };
    qn_status status = qn_team_create(n_threads ? n_threads : qn_cpu_best_threads(), &r->team);
    if (!status)
        status = qn_alloc(&r->piece, PIECE_WEIGHTS, sizeof(float), "piece of a tensor");
    if (status)
        qn_recoder_free(r);
    else
        *out = r;
    return status;
}

void qn_recoder_free(qn_recoder *r)
{
    if (!r)
        return;
    qn_team_free(r->team);
    qn_free(r->piece);
    qn_free(r);
}

qn_status qn_recode_check(const qn_gguf *source, const qn_gguf_tensor *t)
{
    if (t->type != QN_TYPE_NVFP4)
        return QN_OK;
    return qn_fail(QN_ERR_UNSUPPORTED,
                   "%s: tensor '%.*s' is nvfp4, which runs as it is but is not quantised to other types",
                   qn_gguf_tensor_path(source, t), STRING_ARGS(t->name));
}

/* ---- A piece ---- */

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

static qn_status check_result(const qn_gguf *source, const qn_gguf_tensor *t, const qn_type_info *to, bool force,
                              struct work *work)
{
    if (atomic_load(&work->too_large))
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.*s' has a weight that is too large for %s",
                       qn_gguf_tensor_path(source, t), STRING_ARGS(t->name), to->name);
    if (atomic_load(&work->differs) && !force)
        return qn_fail(QN_ERR_INVALID,
                       "%s: tensor '%.*s' (%s) has weights that %s does not hold: the model would not be usable "
                       "(quantize it to q8_0 or q4_0, or to a type for its values; --force writes it all the same)",
                       qn_gguf_tensor_path(source, t), STRING_ARGS(t->name), qn_type_find(t->type)->name, to->name);
    return QN_OK;
}

/* Writes a piece, and reports it. A source that was cut makes the system's write fail, too. */
static qn_status write_piece(qn_recoder *r, const qn_gguf *source, const uint8_t *data, size_t bytes, size_t read)
{
    const qn_status status = qn_gguf_writer_data(r->writer, data, bytes);
    if (status) {
        QN_TRY(qn_gguf_check_unchanged(source));
        return status;
    }
    return r->report(r->user, read);
}

/* ---- Tensors ---- */

qn_status qn_recode_tensor(qn_recoder *r, const qn_gguf *source, const qn_gguf_tensor *t, const qn_type_info *to,
                           bool force, bool *lossy)
{
    const qn_type_info *from = qn_type_find(t->type);
    const uint64_t n_weights = t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3]; /* no overflow: the reader checked */
    bool differs = false;
    for (uint64_t at = 0; at < n_weights; at += PIECE_WEIGHTS) {
        const size_t n = n_weights - at < PIECE_WEIGHTS ? (size_t)(n_weights - at) : PIECE_WEIGHTS;
        const size_t begin = (size_t)(at / from->block_weights) * from->block_bytes;
        struct work work = { .from_type = from,
                             .to_type = to,
                             .from = t->data + begin,
                             .to = from == to ? NULL : r->piece,
                             .compares = from != to && qn_type_is_low_bit(to) && !differs };
        qn_team_divide(r->team, n, CHUNK_WEIGHTS, convert_weights, &work);
        QN_TRY(qn_gguf_check_whole(source));
        if (atomic_load(&work.nonfinite))
            return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.*s': block %zu (%s) contains an infinity or NaN",
                           qn_gguf_tensor_path(source, t), STRING_ARGS(t->name),
                           (size_t)(at / from->block_weights) +
                               from->find_nonfinite(work.from, n / from->block_weights),
                           from->name);
        QN_TRY(check_result(source, t, to, force, &work));
        differs |= atomic_load(&work.differs);
        QN_TRY(write_piece(r, source, from == to ? work.from : r->piece, n / to->block_weights * to->block_bytes,
                           n / from->block_weights * from->block_bytes));
    }
    if (lossy)
        *lossy = differs;
    return QN_OK;
}

qn_status qn_recode_copy(qn_recoder *r, const qn_gguf *source, const qn_gguf_tensor *t)
{
    for (size_t at = 0; at < t->bytes; at += COPIED_BYTES) {
        const size_t n = t->bytes - at < COPIED_BYTES ? t->bytes - at : COPIED_BYTES;
        QN_TRY(write_piece(r, source, t->data + at, n, n));
    }
    return qn_gguf_check_whole(source);
}
