/* Writing and reading files of log probabilities. */
#include "cli/logits_file.h"

#include "base/file.h"
#include "base/memory.h"
#include "cli/kld.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

static const char magic[8] = "_logits_";

enum {
    HEAD_BYTES = 8 + 3 * 4,
    SCALE_VALUES = 4, /* two floats, in uint16 */
    MAX_CODE = 65535,
    RANGE = 16 /* of logits that codes span, below the largest */
};

static size_t row_values(size_t n_vocab)
{
    return (n_vocab + 1) / 2 * 2 + SCALE_VALUES;
}

/* ---- Writing ---- */

qn_status qn_logits_create(qn_logits_writer *w, const char *path, size_t n_ctx, size_t n_vocab, size_t n_chunks,
                           const qn_token *tokens)
{
    *w = (qn_logits_writer){ .file.fd = -1, .n_vocab = n_vocab, .row_values = row_values(n_vocab) };
    if (n_ctx > INT32_MAX || n_vocab > INT32_MAX || n_chunks > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "%s: %zu pieces of %zu tokens are more than the format can hold", path, n_chunks,
                       n_ctx);
    const int32_t sizes[3] = { (int32_t)n_ctx, (int32_t)n_vocab, (int32_t)n_chunks };
    QN_TRY(qn_alloc(&w->row, w->row_values, sizeof *w->row, "logits"));
    QN_TRY(qn_atomic_file_create(&w->file, path, QN_FILE_SHARED));
    QN_TRY(qn_atomic_file_write(&w->file, magic, sizeof magic));
    QN_TRY(qn_atomic_file_write(&w->file, sizes, sizeof sizes));
    return qn_atomic_file_write(&w->file, tokens, n_chunks * n_ctx * sizeof *tokens);
}

qn_status qn_logits_write(qn_logits_writer *w, const float *logits)
{
    float largest = logits[0], smallest = logits[0];
    for (size_t i = 1; i < w->n_vocab; i++) {
        largest = logits[i] > largest ? logits[i] : largest;
        smallest = logits[i] < smallest ? logits[i] : smallest;
    }
    smallest = fmaxf(smallest, largest - RANGE);
    const float scale = (largest - smallest) / MAX_CODE;
    const float head[2] = { scale, (float)(smallest - qn_log_sum_exp(logits, w->n_vocab)) };
    memcpy(w->row, head, sizeof head);
    for (size_t i = 0; i < w->n_vocab; i++) {
        const float code = scale > 0 ? rintf((logits[i] - smallest) / scale) : 0;
        w->row[SCALE_VALUES + i] = (uint16_t)fminf(fmaxf(code, 0), MAX_CODE);
    }
    return qn_atomic_file_write(&w->file, w->row, w->row_values * sizeof *w->row);
}

qn_status qn_logits_commit(qn_logits_writer *w)
{
    return qn_atomic_file_commit(&w->file);
}

void qn_logits_writer_free(qn_logits_writer *w)
{
    qn_atomic_file_free(&w->file);
    qn_free(w->row);
}

/* ---- Reading ---- */

bool qn_logits_is_file(const char *path)
{
    char found[sizeof magic];
    FILE *file = qn_file_stream(path, "r");
    const bool is = file && fread(found, sizeof found, 1, file) == 1 && memcmp(found, magic, sizeof magic) == 0;
    if (file)
        fclose(file);
    return is;
}

static qn_status read_bytes(qn_logits_reader *r, void *to, size_t bytes)
{
    if (fread(to, 1, bytes, r->file) == bytes)
        return QN_OK;
    if (ferror(r->file))
        return qn_fail(QN_ERR_IO, "%s: %s", r->path, strerror(errno));
    return qn_fail(QN_ERR_FORMAT, "%s: the file ends early", r->path);
}

/* Checks the head's numbers by the file's size, before anything is allocated. */
static qn_status check_size(const qn_logits_reader *r, uint64_t size)
{
    size_t n_tokens, n_rows, n_values, rows_bytes, tokens_bytes, expected;
    if (!qn_mul_size(r->n_chunks, r->n_ctx, &n_tokens) || !qn_mul_size(n_tokens, sizeof *r->tokens, &tokens_bytes) ||
        !qn_mul_size(r->n_chunks, qn_logits_rows(r->n_ctx), &n_rows) ||
        !qn_mul_size(n_rows, r->row_values, &n_values) || !qn_mul_size(n_values, sizeof *r->row, &rows_bytes) ||
        !qn_add_size(tokens_bytes, rows_bytes, &expected) || !qn_add_size(expected, HEAD_BYTES, &expected))
        return qn_fail(QN_ERR_FORMAT, "%s: %zu pieces of %zu tokens fit in no file", r->path, r->n_chunks, r->n_ctx);
    if (expected != size)
        return qn_fail(QN_ERR_FORMAT, "%s: %" PRIu64 " bytes, expected %zu for %zu pieces of %zu tokens", r->path, size,
                       expected, r->n_chunks, r->n_ctx);
    return QN_OK;
}

static qn_status read_head(qn_logits_reader *r, size_t n_vocab)
{
    char found[sizeof magic];
    int32_t sizes[3];
    qn_file_info info;
    if (!qn_file_describe_fd(fileno(r->file), &info))
        return qn_fail(QN_ERR_IO, "%s: %s", r->path, strerror(errno));
    if (info.kind != QN_FILE_REGULAR)
        return qn_fail(QN_ERR_IO, "%s: not a regular file", r->path);
    QN_TRY(read_bytes(r, found, sizeof found));
    if (memcmp(found, magic, sizeof magic) != 0)
        return qn_fail(QN_ERR_FORMAT, "%s: not a file of log probabilities", r->path);
    QN_TRY(read_bytes(r, sizes, sizeof sizes));
    if (sizes[0] < QN_LOGITS_MIN_CTX || sizes[2] < 1)
        return qn_fail(QN_ERR_FORMAT, "%s: %d pieces of %d tokens, expected at least 1 of %d", r->path, sizes[2],
                       sizes[0], QN_LOGITS_MIN_CTX);
    if (sizes[1] < 1 || (size_t)sizes[1] != n_vocab)
        return qn_fail(QN_ERR_FORMAT, "%s: log probabilities of %d tokens, but the model has %zu", r->path, sizes[1],
                       n_vocab);
    r->n_ctx = (size_t)sizes[0];
    r->n_vocab = n_vocab;
    r->n_chunks = (size_t)sizes[2];
    r->row_values = row_values(n_vocab);
    return check_size(r, info.size);
}

qn_status qn_logits_open(qn_logits_reader *r, const char *path, size_t n_vocab)
{
    *r = (qn_logits_reader){ .path = path, .file = qn_file_stream(path, "r") };
    if (!r->file)
        return qn_fail(QN_ERR_IO, "%s: %s", path, strerror(errno));
    QN_TRY(read_head(r, n_vocab));
    const size_t n_tokens = r->n_chunks * r->n_ctx;
    QN_TRY(qn_alloc(&r->row, r->row_values, sizeof *r->row, "logits"));
    QN_TRY(qn_alloc(&r->tokens, n_tokens, sizeof *r->tokens, "tokens"));
    QN_TRY(read_bytes(r, r->tokens, n_tokens * sizeof *r->tokens));
    for (size_t i = 0; i < n_tokens; i++)
        if (r->tokens[i] < 0 || (size_t)r->tokens[i] >= n_vocab)
            return qn_fail(QN_ERR_FORMAT, "%s: token %zu is %d, expected 0 to %zu", path, i, r->tokens[i], n_vocab - 1);
    return QN_OK;
}

qn_status qn_logits_read(qn_logits_reader *r, float *log_probs)
{
    static const float MOST = 1e-3f; /* of a log probability: 0, and its rounding to floats */
    float head[2];
    QN_TRY(read_bytes(r, r->row, r->row_values * sizeof *r->row));
    memcpy(head, r->row, sizeof head);
    if (!isfinite(head[0]) || !isfinite(head[1]) || head[0] < 0 || head[1] + head[0] * MAX_CODE > MOST)
        return qn_fail(QN_ERR_FORMAT, "%s: row %zu has the scale %g from %g on: these are no log probabilities",
                       r->path, r->n_read, (double)head[0], (double)head[1]);
    for (size_t i = 0; i < r->n_vocab; i++)
        log_probs[i] = (float)((double)head[1] + (double)head[0] * r->row[SCALE_VALUES + i]);
    r->n_read++;
    return QN_OK;
}

void qn_logits_close(qn_logits_reader *r)
{
    if (r->file)
        fclose(r->file);
    qn_free(r->row);
    qn_free(r->tokens);
}
