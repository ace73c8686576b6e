/* Ranking of documents: prompts about a query and a document, evaluated and scored by the model's head. */
#include "base/memory.h"
#include "engine/internal.h"
#include "engine/pooling.h"

enum { PARTS = QN_RANKING_PARTS, SPANS = 2 * PARTS - 1 };

qn_status qn_model_check_ranking(const qn_model *model)
{
    if (!model->device)
        return qn_fail(QN_ERR_INVALID, "%s: loaded with vocab_only, cannot be run", qn_gguf_path(model->file));
    QN_TRY(qn_ranking_check(&model->ranking));
    return qn_model_check_embeddings(model);
}

static qn_status encode(const qn_ranking *r, const qn_tokenizer *tok, qn_string query, qn_string document,
                        size_t length, qn_token **tokens, size_t *count)
{
    const qn_string given[PARTS] = { r->query_first ? query : document, r->query_first ? document : query, { 0 } };
    qn_text_span spans[SPANS];
    char *text;
    size_t at = 0;
    QN_TRY(qn_alloc(&text, length + 1, 1, "a prompt"));
    for (size_t i = 0, begin = 0; i < PARTS; begin = r->ends[i++]) {
        memcpy(text + at, r->text + begin, r->ends[i] - begin);
        at += r->ends[i] - begin;
        spans[2 * i] = (qn_text_span){ at, true };
        if (i + 1 == PARTS)
            break;
        memcpy(text + at, given[i].data, given[i].length);
        at += given[i].length;
        spans[2 * i + 1] = (qn_text_span){ at, false };
    }
    const qn_spanned_text spanned = {
        .text = text, .length = at, .spans = spans, .n_spans = SPANS, .structural = r->structural
    };
    const qn_status status = qn_tokenizer_encode_spans(tok, &spanned, SIZE_MAX, tokens, count);
    qn_free(text);
    return status;
}

qn_status qn_ranking_tokens(const qn_model *model, const char *query, size_t query_length, const char *document,
                            size_t document_length, qn_token **tokens, size_t *count)
{
    const qn_ranking *r = &model->ranking;
    size_t length;
    *tokens = NULL;
    *count = 0;
    QN_TRY(qn_ranking_check(r));
    if (!qn_add_size(query_length, document_length, &length) || !qn_add_size(length, r->ends[PARTS - 1] + 1, &length))
        return qn_fail(QN_ERR_INVALID, "a query of %zu bytes and a document of %zu are too long", query_length,
                       document_length);
    return encode(r, model->tokenizer, (qn_string){ query, query_length }, (qn_string){ document, document_length },
                  length - 1, tokens, count);
}

qn_status qn_rank(qn_session *session, const qn_token *tokens, size_t n, float *score)
{
    float *state;
    QN_TRY(qn_model_check_ranking(session->model));
    QN_TRY(qn_alloc(&state, session->model->hparams.n_embd, sizeof *state, "a hidden state"));
    const qn_status status = qn_session_pool(session, tokens, n, QN_POOLING_LAST, state);
    if (status == QN_OK)
        *score = qn_ranking_score(&session->model->ranking, state);
    qn_free(state);
    return status;
}
