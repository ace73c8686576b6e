/* Copying sessions (fork) and writing them to files (save, restore). state_file.h has the layout of the files. */
#include "engine/calls.h"

#include "base/append.h"
#include "base/atomic_file.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/params.h"
#include "cache/saved_layout.h"
#include "engine/rows.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are written without byte swapping");

/* ---- Fork ---- */

static qn_status copy_contents(qn_session *to, const qn_session *from)
{
    to->length = from->length;
    to->pending = from->pending;
    memcpy(to->tokens, from->tokens, from->length * sizeof *from->tokens);
    QN_TRY(qn_session_copy_rows(to, from));
    QN_TRY(qn_memory_copy(to->memory, from->memory));
    for (uint32_t i = 0; i < from->n_checkpoints; i++) {
        qn_checkpoint *checkpoint;
        QN_TRY(qn_session_add_checkpoint(to, &checkpoint));
        checkpoint->length = from->checkpoints[i].length;
        checkpoint->pending = from->checkpoints[i].pending;
        if (checkpoint->memory_checkpoint)
            QN_TRY(qn_checkpoint_copy(checkpoint->memory_checkpoint, from->checkpoints[i].memory_checkpoint));
    }
    return QN_OK;
}

qn_status qn_session_fork(const qn_session *session, qn_session **out)
{
    const qn_session_params params = { .size = sizeof params,
                                       .n_ctx = session->n_ctx,
                                       .n_batch = session->n_batch,
                                       .kv = session->format->name,
                                       .n_checkpoints = session->max_checkpoints };
    qn_session *fork;
    *out = NULL;
    QN_TRY(qn_model_enter(session->model, __func__));
    QN_TRY(qn_session_create(session->model, &params, &fork));
    const qn_status status = copy_contents(fork, session);
    if (status != QN_OK) {
        qn_session_free(fork);
        return status;
    }
    *out = fork;
    return QN_OK;
}

/* ---- Common to save and restore ---- */

/* Returns the bytes of header, tokens, rows and checksum. */
static uint64_t fixed_bytes(uint32_t length, uint32_t n_rows)
{
    return sizeof(struct qn_state_header) + length * sizeof(qn_token) + n_rows * sizeof(qn_session_row) +
           sizeof(uint64_t);
}

static uint64_t file_bytes(const qn_session *session, const qn_extent *extent, uint32_t n_rows)
{
    const qn_saved_layout layout = qn_saved_layout_of(&session->model->plan, session->format);
    return fixed_bytes(extent->length, n_rows) + qn_saved_bytes(&layout, extent);
}

static bool has_head(const qn_session *session)
{
    return session->model->plan.head.draft && session->memory->vtable->serialize_head;
}

static qn_status count_piece(void *context, void *data, size_t bytes)
{
    uint64_t *sum = context;
    (void)data;
    *sum += bytes;
    return QN_OK;
}

/* Finds the bytes of what the draft head keeps. */
static qn_status find_head_bytes(const qn_session *session, uint64_t *bytes)
{
    *bytes = 0;
    return session->memory->vtable->serialize_head(session->memory, count_piece, bytes);
}

static uint64_t header_checksum(const struct qn_state_header *header)
{
    return XXH64(header, offsetof(struct qn_state_header, checksum), 0);
}

/* ---- Saving ---- */

qn_status qn_session_check_target(const char *path)
{
    char magic[sizeof QN_STATE_MAGIC - 1];
    qn_file_info info;
    if (!qn_file_describe(path, &info) || info.kind != QN_FILE_REGULAR || info.size == 0)
        return QN_OK; /* nothing to overwrite; qn_atomic_file_create rejects other types of file */
    const int fd = qn_file_open_read(path);
    if (fd < 0)
        return qn_fail(QN_ERR_IO, "%s: exists, and cannot be read to check whether it is a session file: %s", path,
                       strerror(errno));
    const ssize_t n = read(fd, magic, sizeof magic);
    close(fd);
    if (n == (ssize_t)sizeof magic && memcmp(magic, QN_STATE_MAGIC, sizeof magic) == 0)
        return QN_OK;
    return qn_fail(QN_ERR_INVALID, "%s: exists and is not a session file; it is not overwritten", path);
}

struct save_context {
    qn_atomic_file file;
    XXH64_state_t *hash;
};

static qn_status write_piece(void *context, void *data, size_t bytes)
{
    struct save_context *s = context;
    if (!bytes)
        return QN_OK;
    XXH64_update(s->hash, data, bytes);
    return qn_atomic_file_write(&s->file, data, bytes);
}

static qn_status write_head(struct save_context *s, const qn_session *session, uint64_t bytes)
{
    struct qn_state_head head = { .bytes = bytes };
    QN_TRY(qn_model_head_fingerprint(session->model, &head.fingerprint));
    QN_TRY(write_piece(s, &head, sizeof head));
    return session->memory->vtable->serialize_head(session->memory, write_piece, s);
}

static qn_status save(struct save_context *s, const qn_session *session, const char *path)
{
    const bool with_head = has_head(session);
    uint64_t head_bytes = 0;
    const qn_extent extent = qn_sequence_extent(session->memory->sequence);
    const uint32_t n_rows = (uint32_t)session->n_own_rows;
    if (with_head)
        QN_TRY(find_head_bytes(session, &head_bytes));
    struct qn_state_header header = { .version = with_head ? QN_STATE_VERSION_HEAD
                                                 : n_rows  ? QN_STATE_VERSION_ROWS
                                                           : QN_STATE_VERSION,
                                      .length = session->length,
                                      .capacity = session->n_ctx,
                                      .pending = session->pending,
                                      .file_bytes = file_bytes(session, &extent, n_rows) + head_bytes +
                                                    (with_head ? sizeof(struct qn_state_head) : 0),
                                      .state_position = extent.state_position,
                                      .shortest = extent.shortest,
                                      .has_last_page = extent.has_last_page,
                                      .n_rows = n_rows };
    memcpy(header.magic, QN_STATE_MAGIC, sizeof header.magic);
    snprintf(header.kv, sizeof header.kv, "%s", session->format->name);
    QN_TRY(qn_model_fingerprint(session->model, &header.fingerprint));
    header.checksum = header_checksum(&header);
    QN_TRY(qn_session_check_target(path));
    QN_TRY(qn_atomic_file_create(&s->file, path, QN_FILE_PRIVATE));
    QN_TRY(write_piece(s, &header, sizeof header));
    QN_TRY(write_piece(s, session->tokens, session->length * sizeof *session->tokens));
    QN_TRY(write_piece(s, session->own_rows, n_rows * sizeof *session->own_rows));
    QN_TRY(session->memory->vtable->serialize(session->memory, write_piece, s));
    if (with_head)
        QN_TRY(write_head(s, session, head_bytes));
    const uint64_t checksum = XXH64_digest(s->hash);
    QN_TRY(qn_atomic_file_write(&s->file, &checksum, sizeof checksum));
    return qn_atomic_file_commit(&s->file);
}

qn_status qn_session_save(const qn_session *session, const char *path)
{
    QN_TRY(qn_model_enter(session->model, __func__));
    struct save_context s = { .file = { .fd = -1 }, .hash = XXH64_createState() };
    if (!s.hash)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory for a hash", path);
    XXH64_reset(s.hash, 0);
    const qn_status status = save(&s, session, path);
    qn_atomic_file_free(&s.file);
    XXH64_freeState(s.hash);
    return status;
}

/* ---- Restoring ---- */

struct restore_context {
    const char *path;
    int fd;
    uint64_t size;
    XXH64_state_t *hash;
    struct qn_state_header header;
    bool has_other_format; /* than a session of this model with the same parameters: the contents are not used */
    qn_extent extent;
    qn_session *session;
};

static qn_status read_bytes(const struct restore_context *r, void *data, size_t bytes)
{
    uint8_t *at = data;
    while (bytes > 0) {
        const ssize_t n = read(r->fd, at, bytes < (1u << 30) ? bytes : 1u << 30); /* Linux reads at most 2 GiB at a time
                                                                                   */
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return qn_fail(QN_ERR_IO, "%s: cannot read: %s", r->path, strerror(errno));
        if (n == 0)
            return qn_fail(QN_ERR_FORMAT, "%s: ends while %zu bytes more are expected", r->path, bytes);
        at += n;
        bytes -= (size_t)n;
    }
    return QN_OK;
}

static qn_status read_piece(void *context, void *data, size_t bytes)
{
    struct restore_context *r = context;
    if (!bytes)
        return QN_OK;
    QN_TRY(read_bytes(r, data, bytes));
    XXH64_update(r->hash, data, bytes);
    return QN_OK;
}

static qn_status open_file(struct restore_context *r)
{
    qn_file_info info;
    r->fd = qn_file_open_read(r->path);
    if (r->fd < 0)
        return qn_fail(QN_ERR_IO, "%s: %s", r->path, strerror(errno));
    if (!qn_file_describe_fd(r->fd, &info))
        return qn_fail(QN_ERR_IO, "%s: cannot read: %s", r->path, strerror(errno));
    if (info.kind != QN_FILE_REGULAR)
        return qn_fail(QN_ERR_IO, "%s: is not a regular file", r->path);
    r->size = info.size;
    return QN_OK;
}

/* Reads the header and verifies its checksum. */
static qn_status read_header(struct restore_context *r)
{
    struct qn_state_header *h = &r->header;
    if (r->size < fixed_bytes(0, 0))
        return qn_fail(QN_ERR_FORMAT, "%s: %llu bytes are too few for a saved session", r->path,
                       (unsigned long long)r->size);
    QN_TRY(read_piece(r, h, sizeof *h));
    if (memcmp(h->magic, QN_STATE_MAGIC, sizeof h->magic) != 0)
        return qn_fail(QN_ERR_FORMAT, "%s: is not a saved session: it does not begin with '%s'", r->path,
                       QN_STATE_MAGIC);
    if (h->version < QN_STATE_VERSION || h->version > QN_STATE_VERSION_HEAD)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: is a saved session of version %u, expected %d to %d", r->path,
                       (unsigned)h->version, QN_STATE_VERSION, QN_STATE_VERSION_HEAD);
    if (h->checksum != header_checksum(h))
        return qn_fail(QN_ERR_FORMAT, "%s: is damaged: the checksum of its header is wrong", r->path);
    h->kv[sizeof h->kv - 1] = '\0';
    return QN_OK;
}

/* Checks the header, before a session is created. */
static qn_status check_header(struct restore_context *r, const qn_model *model, const qn_session_params *params)
{
    struct qn_state_header *h = &r->header;
    const qn_kv_format *format, *used, *requested;
    uint64_t fingerprint;
    QN_TRY(read_header(r));
    if (qn_kv_format_named(h->kv, &format) != QN_OK)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: its cache format '%s' is not supported", r->path, h->kv);
    QN_TRY(qn_model_fingerprint(model, &fingerprint));
    if (h->fingerprint != fingerprint)
        return qn_fail(QN_ERR_INVALID, "%s: was saved with another model than %s", r->path, qn_gguf_path(model->file));
    QN_TRY(qn_model_kv_format(model, h->kv, &used));
    QN_TRY(qn_model_kv_format(model, params->kv ? params->kv : h->kv, &requested));
    r->has_other_format = used != format;
    if (requested != used)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: its cache format is '%s', expected '%s'", r->path, h->kv,
                       requested->name);
    if (h->file_bytes != r->size)
        return qn_fail(QN_ERR_FORMAT, "%s: is damaged: it has %llu bytes, expected %llu", r->path,
                       (unsigned long long)r->size, (unsigned long long)h->file_bytes);
    if (h->length > h->capacity || h->capacity > QN_MAX_CTX)
        return qn_fail(QN_ERR_FORMAT, "%s: %u tokens in a context of %u, at most %d are possible", r->path,
                       (unsigned)h->length, (unsigned)h->capacity, QN_MAX_CTX);
    if (params->n_ctx && params->n_ctx < h->length)
        return qn_fail(QN_ERR_CONTEXT, "%s: its %u tokens do not fit in a context of %u", r->path, (unsigned)h->length,
                       (unsigned)params->n_ctx);
    if (h->n_rows > h->length ||
        (h->version != QN_STATE_VERSION_HEAD && (h->n_rows != 0) != (h->version == QN_STATE_VERSION_ROWS)))
        return qn_fail(QN_ERR_FORMAT, "%s: %u tokens and a list of %u rows are not possible in version %u", r->path,
                       (unsigned)h->length, (unsigned)h->n_rows, (unsigned)h->version);
    if (r->size < fixed_bytes(h->length, h->n_rows))
        return qn_fail(QN_ERR_FORMAT, "%s: %u tokens do not fit in its %llu bytes", r->path, (unsigned)h->length,
                       (unsigned long long)r->size);
    return QN_OK;
}

static qn_status check_token(const struct restore_context *r, qn_token token)
{
    const uint32_t n_vocab = r->session->model->hparams.n_vocab;
    if (token < 0 || (uint32_t)token >= n_vocab)
        return qn_fail(QN_ERR_FORMAT, "%s: id %d is outside the vocabulary, expected 0 to %u", r->path, (int)token,
                       (unsigned)n_vocab - 1);
    return QN_OK;
}

static bool is_possible(const qn_session *session, const struct qn_state_header *h)
{
    const bool is_complete = session->format->key_bits && h->length > QN_PAGE && h->length % QN_PAGE == 0;
    if (!session->is_recurrent)
        return !h->state_position && !h->shortest && !h->has_last_page;
    return h->state_position % QN_PAGE == 0 && h->state_position <= h->length &&
           h->length - h->state_position <= QN_PAGE && h->shortest <= h->length &&
           (h->shortest > h->state_position || h->shortest == h->length) && h->has_last_page <= is_complete;
}

static qn_status find_extent(struct restore_context *r)
{
    const struct qn_state_header *h = &r->header;
    if (!is_possible(r->session, h))
        return qn_fail(
            QN_ERR_FORMAT, "%s: a state at %u, truncation to %u and %u pages are not possible with %u tokens", r->path,
            (unsigned)h->state_position, (unsigned)h->shortest, (unsigned)h->has_last_page, (unsigned)h->length);
    r->extent = (qn_extent){ h->length, h->state_position, h->shortest, h->has_last_page };
    return QN_OK;
}

static qn_status read_rows(struct restore_context *r)
{
    qn_session *session = r->session;
    const size_t n = r->header.n_rows;
    QN_TRY(qn_realloc_array(&session->own_rows, &session->cap_own_rows, n, sizeof *session->own_rows, "session"));
    session->n_own_rows = n;
    return read_piece(r, session->own_rows, n * sizeof *session->own_rows);
}

/* Reads contents of the file that are not used, for the checksum. */
static qn_status skip(struct restore_context *r, uint64_t bytes)
{
    uint8_t piece[4096];
    for (uint64_t n; bytes; bytes -= n) {
        n = bytes < sizeof piece ? bytes : sizeof piece;
        QN_TRY(read_piece(r, piece, (size_t)n));
    }
    return QN_OK;
}

/* Reads what the draft head keeps, `bytes` bytes, or skips it if it is of another head. */
static qn_status read_head(struct restore_context *r, uint64_t bytes)
{
    const qn_session *session = r->session;
    struct qn_state_head head;
    uint64_t own = 0, expected = bytes;
    QN_TRY(read_piece(r, &head, sizeof head));
    if (has_head(session))
        QN_TRY(qn_model_head_fingerprint(session->model, &own));
    const bool is_own = has_head(session) && head.fingerprint == own;
    if (is_own)
        QN_TRY(find_head_bytes(session, &expected));
    if (head.bytes != bytes || bytes != expected)
        return qn_fail(QN_ERR_FORMAT, "%s: the draft head has %llu bytes, of which the file has %llu, expected %llu",
                       r->path, (unsigned long long)head.bytes, (unsigned long long)bytes,
                       (unsigned long long)expected);
    if (!is_own)
        return skip(r, bytes);
    return session->memory->vtable->deserialize_head(session->memory, read_piece, r);
}

/* Reads the KV cache, the recurrent state, and what the draft head keeps: head_bytes. */
static qn_status read_memory(struct restore_context *r, uint64_t head_bytes)
{
    qn_memory *memory = r->session->memory;
    if (r->has_other_format)
        return skip(r, r->size - fixed_bytes(r->header.length, r->header.n_rows));
    QN_TRY(memory->vtable->deserialize(memory, &r->extent, read_piece, r));
    return r->header.version == QN_STATE_VERSION_HEAD ? read_head(r, head_bytes) : QN_OK;
}

/* Evaluates the tokens of a file whose cache has another format. */
static qn_status evaluate_again(struct restore_context *r)
{
    qn_session *session = r->session;
    qn_token *tokens;
    if (qn_session_find_embedding(session, 0, r->header.length) < r->header.length)
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "%s: its cache format '%s' is not used with this model, and its embeddings cannot be evaluated "
                       "again",
                       r->path, r->header.kv);
    QN_TRY(qn_alloc(&tokens, r->header.length, sizeof *tokens, "session"));
    memcpy(tokens, session->tokens, r->header.length * sizeof *tokens);
    session->length = 0;
    const qn_status status = qn_session_append(session, tokens, r->header.length);
    session->pending = r->header.pending;
    qn_free(tokens);
    return status;
}

static qn_status read_contents(struct restore_context *r)
{
    qn_session *session = r->session;
    const bool with_head = r->header.version == QN_STATE_VERSION_HEAD;
    uint64_t checksum, expected = r->size;
    if (!r->has_other_format) {
        QN_TRY(find_extent(r));
        expected = file_bytes(session, &r->extent, r->header.n_rows) + (with_head ? sizeof(struct qn_state_head) : 0);
    }
    session->length = r->header.length;
    session->pending = r->header.pending;
    if (with_head ? r->size < expected : r->size != expected)
        return qn_fail(QN_ERR_FORMAT, "%s: %u tokens need %llu bytes, the file has %llu", r->path,
                       (unsigned)session->length, (unsigned long long)expected, (unsigned long long)r->size);
    QN_TRY(read_piece(r, session->tokens, session->length * sizeof *session->tokens));
    QN_TRY(read_rows(r));
    QN_TRY(read_memory(r, r->size - expected));
    QN_TRY(read_bytes(r, &checksum, sizeof checksum));
    if (checksum != XXH64_digest(r->hash))
        return qn_fail(QN_ERR_FORMAT, "%s: is damaged: its checksum is wrong", r->path);
    for (uint32_t i = 0; i < session->length; i++)
        if (session->tokens[i] != QN_NO_TOKEN)
            QN_TRY(check_token(r, session->tokens[i]));
    QN_TRY(qn_session_check_rows(session, r->path));
    if (session->pending != QN_NO_TOKEN)
        QN_TRY(check_token(r, session->pending));
    return r->has_other_format && session->length ? evaluate_again(r) : QN_OK;
}

static void log_other_format(const struct restore_context *r, const qn_session_params *params)
{
    char line[512];
    if (!params->on_log)
        return;
    (void)qn_print(line, sizeof line,
                   "%s: its cache format '%s' is not used with this model: %u tokens are evaluated again", r->path,
                   r->header.kv, (unsigned)r->header.length);
    params->on_log(params->user, line);
}

static qn_status restore(struct restore_context *r, qn_model *model, qn_session_params params)
{
    QN_TRY(open_file(r));
    QN_TRY(check_header(r, model, &params));
    params.n_ctx = params.n_ctx ? params.n_ctx : r->header.capacity;
    params.kv = params.kv ? params.kv : r->header.kv;
    QN_TRY(qn_session_create(model, &params, &r->session));
    if (r->has_other_format)
        log_other_format(r, &params);
    return read_contents(r);
}

qn_status qn_session_restore(qn_model *model, const char *path, const qn_session_params *params, qn_session **out)
{
    struct restore_context r = { .path = path, .fd = -1 };
    qn_session_params own = QN_SESSION_PARAMS_INIT;
    *out = NULL;
    if (params)
        QN_TRY(QN_PARAMS_READ(qn_session_params, params, &own));
    QN_TRY(qn_model_enter(model, __func__));
    if (!model->device)
        return qn_fail(QN_ERR_INVALID, "%s: loaded with vocab_only, cannot be run", qn_gguf_path(model->file));
    r.hash = XXH64_createState();
    if (!r.hash)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory for a hash", path);
    XXH64_reset(r.hash, 0);
    const qn_status status = restore(&r, model, own);
    if (r.fd >= 0)
        close(r.fd);
    XXH64_freeState(r.hash);
    if (status != QN_OK) {
        qn_session_free(r.session);
        return status;
    }
    *out = r.session;
    return QN_OK;
}
