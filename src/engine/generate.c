/* The generation loop: evaluate, sample, pass on tokens and text, until a stop condition holds. */
#include "engine/constraint.h"

#include "base/memory.h"
#include "text/stop.h"
#include "text/utf8_stream.h"

#include <string.h>

/* The state of one call of qn_generate. */
struct generation {
    qn_session *session;
    const qn_generate_params *params;
    qn_constraint constraint;
    qn_session_sampling sampling;
    qn_stop *stop;
    qn_utf8_stream utf8;
    qn_generate_result result;
};

qn_generate_params qn_generate_defaults(void)
{
    return (qn_generate_params){ .sampling = qn_sampling_defaults(), .max_tokens = -1 };
}

static bool emit(const struct generation *g, const char *text, size_t length)
{
    return !length || !g->params->on_text || g->params->on_text(g->params->user, text, length);
}

/* Passes text on: assembles complete UTF-8 characters and holds back a possible beginning of a stop string. Sets *keep_going;
 * if it is false, also the stop reason. */
static qn_status emit_text(struct generation *g, const char *bytes, size_t length, bool *keep_going)
{
    const char *text, *safe;
    size_t n, n_safe;
    bool hit;
    QN_TRY(qn_utf8_stream_feed(&g->utf8, bytes, length, &text, &n));
    QN_TRY(qn_stop_feed(g->stop, text, n, &safe, &n_safe, &hit));
    *keep_going = !hit;
    if (hit)
        g->result.reason = QN_STOP_STRING;
    if (!emit(g, safe, n_safe)) {
        *keep_going = false;
        g->result.reason = QN_STOP_CALLBACK;
    }
    return QN_OK;
}

/* Passes on the text held back, unless generation was stopped by a stop string or a callback. */
static qn_status flush_text(struct generation *g)
{
    const char *text, *safe;
    size_t n, n_safe;
    bool hit;
    if (g->result.reason == QN_STOP_STRING || g->result.reason == QN_STOP_CALLBACK)
        return QN_OK;
    QN_TRY(qn_utf8_stream_flush(&g->utf8, &text, &n));
    QN_TRY(qn_stop_feed(g->stop, text, n, &safe, &n_safe, &hit));
    if (hit)
        g->result.reason = QN_STOP_STRING;
    bool keep_going = emit(g, safe, n_safe);
    QN_TRY(qn_stop_flush(g->stop, &safe, &n_safe));
    if (keep_going)
        keep_going = emit(g, safe, n_safe);
    if (!keep_going)
        g->result.reason = QN_STOP_CALLBACK;
    return QN_OK;
}

/* Passes a sampled token and its text on. Sets *keep_going to false, and the stop reason, if it was the last token. */
static qn_status emit_token(struct generation *g, qn_token token, bool *keep_going)
{
    qn_session *session = g->session;
    const qn_model *model = session->model;
    const bool has_text = model->tokenizer && (g->params->on_text || g->params->n_stop);
    *keep_going = true;
    session->pending = token;
    g->result.n_generated++;
    if (g->params->on_token && !g->params->on_token(g->params->user, token)) {
        g->result.reason = QN_STOP_CALLBACK;
        *keep_going = false;
        return QN_OK;
    }
    if (!g->params->ignore_end && qn_token_is_end(model, token)) {
        g->result.reason = QN_STOP_END;
        *keep_going = false;
        return QN_OK;
    }
    /* The vocabulary may be smaller than n_vocab: ids beyond it have no text. */
    if (has_text && (size_t)token < qn_tokenizer_n_vocab(model->tokenizer) &&
        (g->params->show_special || !qn_token_is_special(model, token))) {
        const char *bytes;
        size_t length;
        QN_TRY(qn_tokenizer_piece(model->tokenizer, token, &bytes, &length));
        QN_TRY(emit_text(g, bytes, length, keep_going));
    }
    return QN_OK;
}

/* Evaluates tokens and, if next is not NULL, samples the next token. A cancelled evaluation is a stop reason, not an error. A
 * request to cancel during the last batch stops the next evaluation; the token sampled from that batch is then pending. */
static qn_status evaluate(struct generation *g, const qn_token *tokens, size_t n, qn_token *next, bool *keep_going)
{
    const qn_status status =
        next ? qn_session_sample(g->session, tokens, n, &g->sampling, next) : qn_session_append(g->session, tokens, n);
    *keep_going = status == QN_OK;
    if (!*keep_going)
        g->result.reason = QN_STOP_CANCELLED;
    return status == QN_ERR_CANCELLED ? QN_OK : status;
}

static qn_status generate(struct generation *g, const qn_token *tokens, size_t n)
{
    const double start = qn_now();
    const uint32_t before = g->session->length;
    const int64_t limit = g->params->max_tokens;
    bool keep_going;
    g->sampling.answer_begin = before + (uint32_t)n;
    qn_token token;
    QN_TRY(evaluate(g, tokens, n, limit ? &token : NULL, &keep_going));
    g->result.n_prompt = g->session->length - before;
    const double prompt_end = qn_now();
    g->result.prompt_seconds = prompt_end - start;
    if (keep_going && (!limit || atomic_load(&g->session->cancelled))) {
        g->result.reason = limit ? QN_STOP_CANCELLED : QN_STOP_LENGTH;
        keep_going = false;
    }
    while (keep_going) {
        QN_TRY(emit_token(g, token, &keep_going));
        if (!keep_going)
            break;
        if (limit > 0 && g->result.n_generated >= (uint64_t)limit) {
            g->result.reason = QN_STOP_LENGTH;
            break;
        }
        if (g->session->length == g->session->n_ctx) {
            g->result.reason = QN_STOP_CONTEXT;
            break;
        }
        QN_TRY(evaluate(g, &token, 1, &token, &keep_going));
    }
    g->result.generate_seconds = qn_now() - prompt_end;
    return flush_text(g);
}

qn_status qn_generate(qn_session *session, const qn_token *tokens, size_t n, const qn_generate_params *params,
                      qn_generate_result *result)
{
    struct generation g = { .session = session, .params = params };
    if (!n)
        return qn_fail(QN_ERR_INVALID, "prompt: it has no tokens, at least 1 is needed");
    if ((params->on_text || params->n_stop) && !session->model->tokenizer) {
        const qn_tokenizer *tok;
        return qn_model_tokenizer(session->model, &tok);
    }
    g.sampling.constraint = &g.constraint;
    qn_status status = qn_sampler_create(&params->sampling, session->model->hparams.n_vocab, &g.sampling.sampler);
    if (status == QN_OK)
        status = qn_constraint_create(session->model, params->grammar, &params->grammar_trigger, tokens, n, &params->sampling,
                                      &g.constraint);
    if (status == QN_OK)
        status = qn_stop_create(params->stop, params->n_stop, &g.stop);
    if (status == QN_OK)
        status = generate(&g, tokens, n);
    atomic_store(&session->cancelled, false); /* a request that came too late does not apply to the next call */
    if (status == QN_OK && result)
        *result = g.result;
    qn_stop_free(g.stop);
    qn_sampler_free(g.sampling.sampler);
    qn_constraint_free(&g.constraint);
    qn_free(g.sampling.logits);
    qn_free(g.sampling.allowed);
    qn_utf8_stream_free(&g.utf8);
    return status;
}

qn_status qn_generate_text(qn_session *session, const char *prompt, const qn_generate_params *params,
                           qn_generate_result *result)
{
    qn_token *tokens;
    size_t n;
    QN_TRY(qn_tokenize(session->model, prompt, strlen(prompt), true, true, &tokens, &n));
    const qn_status status = qn_generate(session, tokens, n, params, result);
    qn_free_tokens(tokens);
    return status;
}
