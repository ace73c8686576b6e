/* The list of a session's rows that are not plain tokens, and the checks and comparison of rows that callers pass. */
#include "engine/rows.h"

#include "base/memory.h"
#include "device/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- Rows of callers ---- */

static const float *embedding_of(const qn_rows *rows, size_t i)
{
    return rows->embeddings ? rows->embeddings[i] : NULL;
}

static bool is_embedding(const qn_rows *rows, size_t i)
{
    return embedding_of(rows, i) || !rows->tokens || rows->tokens[i] < 0;
}

static uint64_t id_of(const qn_rows *rows, size_t i)
{
    return rows->ids ? rows->ids[i] : XXH64(rows->embeddings[i], rows->n_embd * sizeof(float), 0);
}

static bool has_id(const qn_rows *rows, size_t i)
{
    return rows->ids || embedding_of(rows, i);
}

static void read_components(const qn_rows *rows, size_t i, uint32_t components[QN_ROPE_COMPONENTS])
{
    const uint32_t *from = rows->positions + i * rows->n_components;
    for (size_t c = 0; c < QN_ROPE_COMPONENTS; c++)
        components[c] = from[c < rows->n_components ? c : 0];
}

static bool has_one_position(const uint32_t components[QN_ROPE_COMPONENTS])
{
    for (size_t c = 1; c < QN_ROPE_COMPONENTS; c++)
        if (components[c] != components[0])
            return false;
    return true;
}

/* Returns the position that follows a row `distance` rows later. */
static uint32_t position_after(const uint32_t components[QN_ROPE_COMPONENTS], uint32_t distance)
{
    uint32_t greatest = 0;
    for (size_t c = 0; c < QN_ROPE_COMPONENTS; c++)
        greatest = components[c] > greatest ? components[c] : greatest;
    return greatest + distance;
}

static void set_components(uint32_t components[QN_ROPE_COMPONENTS], uint32_t position)
{
    for (size_t c = 0; c < QN_ROPE_COMPONENTS; c++)
        components[c] = position;
}

/* ---- Checks ---- */

static qn_status check_width(const qn_session *session, const qn_rows *rows)
{
    const uint32_t n_embd = session->model->hparams.n_embd;
    if ((rows->embeddings || rows->hidden || rows->normed) && rows->n_embd != n_embd)
        return qn_fail(QN_ERR_INVALID, "rows: n_embd is %zu, the model's is %u", rows->n_embd, (unsigned)n_embd);
    return QN_OK;
}

static qn_status check_embedding(const qn_rows *rows, size_t i)
{
    for (size_t k = 0; k < rows->n_embd; k++)
        if (!isfinite(rows->embeddings[i][k]))
            return qn_fail(QN_ERR_INVALID, "rows: the embedding of row %zu is %g at %zu, expected finite numbers", i,
                           (double)rows->embeddings[i][k], k);
    return QN_OK;
}

static qn_status check_inputs(const qn_session *session, const qn_rows *rows)
{
    if (!rows->tokens && !rows->embeddings && rows->n)
        return qn_fail(QN_ERR_INVALID, "rows: they have neither tokens nor embeddings");
    if (!rows->embeddings)
        return qn_model_check_tokens(session->model, "token", rows->tokens, rows->n);
    for (size_t i = 0; i < rows->n; i++) {
        if (rows->embeddings[i])
            QN_TRY(check_embedding(rows, i));
        else if (!rows->tokens)
            return qn_fail(QN_ERR_INVALID, "rows: row %zu has neither a token nor an embedding", i);
        else
            QN_TRY(qn_model_check_tokens(session->model, "token", &rows->tokens[i], 1));
    }
    return QN_OK;
}

static qn_status check_positions(const qn_session *session, const qn_rows *rows)
{
    uint32_t components[QN_ROPE_COMPONENTS];
    if (!rows->positions)
        return QN_OK;
    if (!rows->n_components || rows->n_components > QN_ROPE_COMPONENTS)
        return qn_fail(QN_ERR_INVALID, "rows: positions of %u components, expected 1 to %d",
                       (unsigned)rows->n_components, QN_ROPE_COMPONENTS);
    for (size_t i = 0; i < rows->n; i++) {
        read_components(rows, i, components);
        for (size_t c = 0; c < QN_ROPE_COMPONENTS; c++)
            if (components[c] >= QN_MAX_CTX)
                return qn_fail(QN_ERR_INVALID,
                               "rows: component %zu of the position of row %zu is %u, expected below %d", c, i,
                               (unsigned)components[c], QN_MAX_CTX);
        if (!session->model->plan.rope_components && !has_one_position(components))
            return qn_fail(QN_ERR_UNSUPPORTED,
                           "rows: the position of row %zu has different components, but the model's positions have one",
                           i);
    }
    return QN_OK;
}

static qn_status check_logits(const qn_rows *rows)
{
    if (rows->n_logit_rows > rows->n)
        return qn_fail(QN_ERR_INVALID, "rows: logits of %zu rows, there are %zu", rows->n_logit_rows, rows->n);
    if (rows->n_logit_rows && !rows->logits)
        return qn_fail(QN_ERR_INVALID, "logits: NULL, expected a buffer");
    for (size_t i = 0; rows->logit_rows && i < rows->n_logit_rows; i++)
        if (rows->logit_rows[i] >= rows->n || (i && rows->logit_rows[i] <= rows->logit_rows[i - 1]))
            return qn_fail(QN_ERR_INVALID, "rows: logit row %zu is %u, expected ascending rows below %zu", i,
                           (unsigned)rows->logit_rows[i], rows->n);
    return QN_OK;
}

static unsigned features_of(const qn_session *session, const qn_rows *rows)
{
    unsigned features = 0;
    uint32_t components[QN_ROPE_COMPONENTS];
    for (size_t i = 0; i < rows->n; i++) {
        features |= embedding_of(rows, i) ? QN_ROW_EMBEDDING : 0u;
        features |= (rows->hidden && rows->hidden[i]) || (rows->normed && rows->normed[i]) ? QN_ROW_HIDDEN : 0u;
        if (!rows->positions)
            continue;
        read_components(rows, i, components);
        features |= !has_one_position(components) || components[0] != session->length + i ? QN_ROW_POSITION : 0u;
    }
    return features;
}

qn_status qn_rows_check(const qn_session *session, const qn_rows *rows)
{
    QN_TRY(check_width(session, rows));
    QN_TRY(check_inputs(session, rows));
    QN_TRY(check_positions(session, rows));
    QN_TRY(check_logits(rows));
    return qn_device_check_features(session->model->device, features_of(session, rows));
}

qn_status qn_rows_check_prompt(const qn_session *session, const qn_rows *rows)
{
    QN_TRY(check_width(session, rows));
    QN_TRY(check_positions(session, rows));
    for (size_t i = 0; i < rows->n; i++)
        if (is_embedding(rows, i) && !has_id(rows, i))
            return qn_fail(QN_ERR_INVALID, "rows: row %zu has no token, no embedding and no id", i);
    return QN_OK;
}

/* ---- The list ---- */

/* Returns the number of listed rows before `index`. */
static size_t count_before(const qn_session *session, uint32_t index)
{
    size_t low = 0, high = session->n_own_rows;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (session->own_rows[middle].index < index)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void qn_session_components(const qn_session *session, uint32_t index, uint32_t components[QN_ROPE_COMPONENTS])
{
    const size_t n = count_before(session, index);
    if (n < session->n_own_rows && session->own_rows[n].index == index)
        memcpy(components, session->own_rows[n].components, sizeof session->own_rows[n].components);
    else if (n)
        set_components(components,
                       position_after(session->own_rows[n - 1].components, index - session->own_rows[n - 1].index));
    else
        set_components(components, index);
}

static qn_status add_row(qn_session *session, const qn_session_row *row)
{
    QN_TRY(qn_realloc_array(&session->own_rows, &session->cap_own_rows, session->n_own_rows + 1,
                            sizeof *session->own_rows, "session"));
    session->own_rows[session->n_own_rows++] = *row;
    return QN_OK;
}

qn_status qn_session_list_rows(qn_session *session, const qn_rows *rows, size_t first, size_t n)
{
    for (size_t i = 0; (rows->embeddings || rows->positions) && i < n; i++) {
        qn_session_row row = { .index = session->length + (uint32_t)i };
        uint32_t next[QN_ROPE_COMPONENTS];
        const bool has_embedding = embedding_of(rows, first + i) != NULL;
        qn_session_components(session, row.index, next);
        if (rows->positions)
            read_components(rows, first + i, row.components);
        else
            memcpy(row.components, next, sizeof next);
        if (has_embedding)
            row.id = id_of(rows, first + i);
        if (has_embedding || memcmp(row.components, next, sizeof next) != 0)
            QN_TRY(add_row(session, &row));
    }
    return QN_OK;
}

void qn_session_unlist_rows(qn_session *session, uint32_t length)
{
    session->n_own_rows = count_before(session, length);
}

uint32_t qn_session_find_embedding(const qn_session *session, uint32_t begin, uint32_t end)
{
    for (size_t i = count_before(session, begin); i < session->n_own_rows; i++) {
        const uint32_t index = session->own_rows[i].index;
        if (index >= end)
            break;
        if (session->tokens[index] == QN_NO_TOKEN)
            return index;
    }
    return end;
}

qn_status qn_session_copy_rows(qn_session *to, const qn_session *from)
{
    for (size_t i = 0; i < from->n_own_rows; i++)
        QN_TRY(add_row(to, &from->own_rows[i]));
    return QN_OK;
}

/* ---- Comparison ---- */

/* Returns the id of a row that is an embedding. */
static uint64_t session_id(const qn_session *session, uint32_t index)
{
    return session->own_rows[count_before(session, index)].id;
}

size_t qn_session_shared_rows(const qn_session *session, const qn_rows *rows, size_t most)
{
    uint32_t own[QN_ROPE_COMPONENTS], prompt[QN_ROPE_COMPONENTS] = { 0 };
    for (size_t i = 0; i < most; i++) {
        const uint32_t index = (uint32_t)i;
        const bool is_own_embedding = session->tokens[i] == QN_NO_TOKEN;
        qn_session_components(session, index, own);
        if (rows->positions)
            read_components(rows, i, prompt);
        else if (i)
            set_components(prompt, position_after(prompt, 1));
        if (memcmp(own, prompt, sizeof own) != 0 || is_own_embedding != is_embedding(rows, i))
            return i;
        if (is_own_embedding ? !has_id(rows, i) || session_id(session, index) != id_of(rows, i)
                             : session->tokens[i] != rows->tokens[i])
            return i;
    }
    return most;
}

/* ---- Lists of files ---- */

qn_status qn_session_check_rows(const qn_session *session, const char *path)
{
    unsigned features = 0;
    uint32_t n_embeddings = 0;
    for (size_t i = 0; i < session->n_own_rows; i++) {
        const qn_session_row *row = &session->own_rows[i];
        bool is_valid = row->index < session->length && (!i || row->index > row[-1].index) && !row->zero;
        for (size_t c = 0; c < QN_ROPE_COMPONENTS; c++) {
            is_valid = is_valid && row->components[c] < 2 * (uint32_t)QN_MAX_CTX;
            features |= row->components[c] != row->index ? QN_ROW_POSITION : 0u;
        }
        is_valid = is_valid && (session->model->plan.rope_components || has_one_position(row->components));
        if (!is_valid)
            return qn_fail(QN_ERR_FORMAT, "%s: row %zu of its list of rows, with index %u, is not possible", path, i,
                           (unsigned)row->index);
        n_embeddings += session->tokens[row->index] == QN_NO_TOKEN;
    }
    for (uint32_t i = 0; i < session->length; i++)
        if (session->tokens[i] == QN_NO_TOKEN && !n_embeddings--)
            return qn_fail(QN_ERR_FORMAT, "%s: id -1 of row %u is outside the vocabulary, and not that of an embedding",
                           path, (unsigned)i);
    return qn_device_check_features(session->model->device, features);
}
