/* The generation loop: evaluate, sample, pass on tokens and text, until a stop condition holds. */
#include "engine/calls.h"
#include "engine/draft.h"
#include "engine/events.h"

#include "base/memory.h"
#include "text/utf8_stream.h"

#include <string.h>

/* The state of one call of qn_generate. */
struct generation {
    qn_session *session;
    const qn_generate_params *params;
    qn_constraint constraint;
    qn_session_sampling sampling;
    qn_drafter drafter;
    qn_token sampled[1 + QN_DRAFT_TOKENS]; /* those of the last step, of which next_sampled is the next one */
    size_t next_sampled;
    qn_logit_bias *held; /* for the first tokens */
    qn_stop_strings *stop_strings;
    qn_stop *stop;
    qn_utf8_stream utf8;
    qn_output_tools *tools; /* of `events`, or NULL */
    qn_events events;       /* with on_event or a budget of reasoning */
    qn_token *words;        /* [n_words] that end reasoning, of which next_word is the next one */
    size_t n_words, next_word;
    qn_generate_result result;
};

qn_generate_params qn_generate_defaults(void)
{
    return (qn_generate_params){ .sampling = qn_sampling_defaults(), .max_tokens = -1, .reasoning_budget = -1 };
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

/* A qn_events.emit. */
static qn_status emit_event(void *user, const qn_output_event *event)
{
    struct generation *g = user;
    if (g->result.reason != QN_STOP_CALLBACK && !g->params->on_event(g->params->user, event))
        g->result.reason = QN_STOP_CALLBACK;
    return QN_OK;
}

static qn_status emit_events(struct generation *g, qn_token token, const char *bytes, size_t length, bool *keep_going)
{
    QN_TRY(qn_events_feed(&g->events, token, bytes, length));
    if (g->events.is_stop_string && g->result.reason != QN_STOP_CALLBACK)
        g->result.reason = QN_STOP_STRING;
    *keep_going = g->result.reason != QN_STOP_CALLBACK && !g->events.is_stop_string;
    return QN_OK;
}

/* Passes on what is held back, unless generation was stopped by a stop string or a callback. */
static qn_status flush_events(struct generation *g)
{
    QN_TRY(qn_events_finish(&g->events, g->result.reason != QN_STOP_END));
    if (g->events.is_stop_string && g->result.reason != QN_STOP_CALLBACK)
        g->result.reason = QN_STOP_STRING;
    return QN_OK;
}

static qn_status flush_text(struct generation *g)
{
    const char *text, *safe;
    size_t n, n_safe;
    bool hit;
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

/* The text of a token; none if it is not to be shown, or beyond the vocabulary, which may be smaller than n_vocab. */
static qn_status find_text(const struct generation *g, qn_token token, const char **bytes, size_t *length)
{
    const qn_tokenizer *tok = g->session->model->tokenizer;
    *bytes = "";
    *length = 0;
    if (!tok || (size_t)token >= qn_tokenizer_n_vocab(tok) || (!g->params->show_special && qn_tokenizer_is_special(tok, token)))
        return QN_OK;
    return qn_tokenizer_piece(tok, token, bytes, length);
}

static bool ends_at(const struct generation *g, qn_token token)
{
    for (size_t i = 0; i < g->params->n_stop_tokens; i++)
        if (g->params->stop_tokens[i] == token)
            return true;
    return !g->params->ignore_end && qn_token_is_end(g->session->model, token);
}

/* Passes a token, its text and its events on. Sets *keep_going to false, and the stop reason, if it was the last token. */
static qn_status emit_token(struct generation *g, qn_token token, bool *keep_going)
{
    const char *bytes;
    size_t length;
    *keep_going = true;
    g->session->pending = token;
    g->result.n_generated++;
    qn_stop_hold(g->stop, (int64_t)g->result.n_generated <= g->params->min_tokens);
    if (g->params->on_token && !g->params->on_token(g->params->user, token)) {
        g->result.reason = QN_STOP_CALLBACK;
        *keep_going = false;
        return QN_OK;
    }
    if (ends_at(g, token)) {
        g->result.reason = QN_STOP_END;
        *keep_going = false;
        return QN_OK;
    }
    QN_TRY(find_text(g, token, &bytes, &length));
    if (g->events.parser)
        QN_TRY(emit_events(g, token, bytes, length, keep_going));
    if (*keep_going && !g->params->on_event)
        QN_TRY(emit_text(g, bytes, length, keep_going));
    return QN_OK;
}

/* What can be drafted behind the token that is sampled next. */
static size_t most_drafted(const struct generation *g)
{
    const int64_t limit = g->params->max_tokens;
    return limit < 0 ? SIZE_MAX : (size_t)limit - g->result.n_generated - 1;
}

/* Samples the next tokens, and takes the first. */
static qn_status sample(struct generation *g, const qn_token *tokens, size_t n, qn_token *next)
{
    const int64_t left = g->params->min_tokens - (int64_t)g->result.n_generated;
    g->sampling.n_holding = left > 0 ? (size_t)left : 0;
    g->sampling.most_drafted = most_drafted(g);
    g->sampling.n_sampled = g->next_sampled = 0;
    QN_TRY(qn_session_sample(g->session, tokens, n, &g->sampling));
    *next = g->sampled[0];
    g->next_sampled = 1;
    return QN_OK;
}

/* Evaluates tokens and, if next is not NULL, samples the next token. A cancelled evaluation is a stop reason, not an error. A
 * request to cancel during the last batch stops the next evaluation; the token sampled from that batch is then pending. */
static qn_status evaluate(struct generation *g, const qn_token *tokens, size_t n, qn_token *next, bool *keep_going)
{
    const qn_status status = next ? sample(g, tokens, n, next) : qn_session_append(g->session, tokens, n);
    *keep_going = status == QN_OK;
    if (!*keep_going)
        g->result.reason = QN_STOP_CANCELLED;
    return status == QN_ERR_CANCELLED ? QN_OK : status;
}

/* Sampled tokens that are evaluated and were not passed on. */
static size_t n_waiting(const struct generation *g)
{
    return g->sampling.n_sampled - g->next_sampled;
}

/* Evaluates tokens, unless they are, and sets *next to the token that follows: of the words that end reasoning, or sampled. */
static qn_status advance(struct generation *g, const qn_token *tokens, size_t n, qn_token *next, bool *keep_going)
{
    if (n_waiting(g)) {
        g->result.n_jumped++;
        *next = g->sampled[g->next_sampled++];
        return QN_OK;
    }
    if (g->params->reasoning_budget >= 0 && g->next_word == g->n_words) {
        qn_free_tokens(g->words);
        g->next_word = 0;
        QN_TRY(qn_events_words(&g->events, g->session->model, &g->words, &g->n_words));
    }
    const bool is_word = g->next_word < g->n_words;
    QN_TRY(evaluate(g, tokens, n, is_word ? NULL : next, keep_going));
    if (is_word)
        *next = g->words[g->next_word++];
    return QN_OK;
}

static qn_status generate(struct generation *g, const qn_token *tokens, size_t n)
{
    const double start = qn_now();
    const uint32_t before = g->session->length;
    const int64_t limit = g->params->max_tokens;
    bool keep_going;
    g->sampling.answer_begin = before + (uint32_t)n;
    qn_token token;
    QN_TRY(limit ? advance(g, tokens, n, &token, &keep_going) : evaluate(g, tokens, n, NULL, &keep_going));
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
        if (g->session->length - n_waiting(g) == g->session->n_ctx) {
            g->result.reason = QN_STOP_CONTEXT;
            break;
        }
        QN_TRY(advance(g, &token, 1, &token, &keep_going));
    }
    g->result.generate_seconds = qn_now() - prompt_end;
    if (g->result.reason == QN_STOP_STRING || g->result.reason == QN_STOP_CALLBACK)
        return QN_OK;
    return g->params->on_event ? flush_events(g) : flush_text(g);
}

/* ---- Beginning ---- */

static qn_status check_params(const qn_model *model, const qn_generate_params *params, size_t n)
{
    const qn_tokenizer *tok;
    if (!n)
        return qn_fail(QN_ERR_INVALID, "prompt: it has no tokens, at least 1 is needed");
    if (params->on_event && params->on_text)
        return qn_fail(QN_ERR_INVALID, "on_event: it is given with on_text, expected one of them");
    if (params->tools && !params->on_event)
        return qn_fail(QN_ERR_INVALID, "tools: they are given without on_event");
    if (params->max_tokens >= 0 && params->min_tokens > params->max_tokens)
        return qn_fail(QN_ERR_INVALID, "min_tokens: %lld, expected at most max_tokens, %lld", (long long)params->min_tokens,
                       (long long)params->max_tokens);
    QN_TRY(qn_model_check_tokens(model, "stop token", params->stop_tokens, params->n_stop_tokens));
    if (params->on_text || params->on_event || params->n_stop || params->reasoning_budget >= 0)
        return qn_model_tokenizer(model, &tok);
    return QN_OK;
}

/* The last tokens of the session and of what is appended to it. */
static size_t prompt_tail(const qn_session *session, const qn_token *tokens, size_t n, qn_token tail[QN_PROMPT_TAIL])
{
    const size_t own = n < QN_PROMPT_TAIL ? n : QN_PROMPT_TAIL;
    const size_t held = session->length < QN_PROMPT_TAIL - own ? session->length : QN_PROMPT_TAIL - own;
    memcpy(tail, session->tokens + session->length - held, held * sizeof *tail);
    memcpy(tail + held, tokens + n - own, own * sizeof *tail);
    return held + own;
}

static qn_status create_events(struct generation *g, const qn_token *tail, size_t n_tail)
{
    const qn_generate_params *params = g->params;
    qn_output_params output;
    json_t *tools = NULL;
    if (!params->on_event && params->reasoning_budget < 0)
        return QN_OK;
    if (params->tools)
        QN_TRY(qn_load_json("tools", params->tools, params->tools_length, 0, &tools));
    qn_status status = qn_answer_output(g->session->model, tools, tail, n_tail, &output, &g->tools);
    output.reasoning_budget = params->reasoning_budget < 0 ? SIZE_MAX : (size_t)params->reasoning_budget;
    if (status == QN_OK)
        status = qn_events_create(output, params->grammar, &params->grammar_trigger, g->stop,
                                  params->on_event ? emit_event : NULL, g, &g->events);
    json_decref(tools);
    return status;
}

static qn_status begin(struct generation *g, const qn_token *tokens, size_t n)
{
    const qn_generate_params *params = g->params;
    qn_model *model = g->session->model;
    qn_token tail[QN_PROMPT_TAIL];
    const size_t n_tail = prompt_tail(g->session, tokens, n, tail);
    g->sampling.constraint = &g->constraint;
    QN_TRY(qn_sampler_create(&params->sampling, model->hparams.n_vocab, &g->sampling.sampler));
    QN_TRY(qn_constraint_create(model, params->grammar, &params->grammar_trigger, params->ignore_end, tail, n_tail,
                                &params->sampling, &g->constraint));
    g->drafter = qn_drafter_create(model->device, params->jump_forward, &params->sampling, params->reasoning_budget >= 0,
                                   &g->constraint);
    g->sampling.drafter = &g->drafter;
    g->sampling.sampled = g->sampled;
    QN_TRY(qn_held_biases(model, params->min_tokens, params->ignore_end, params->stop_tokens, params->n_stop_tokens, NULL, 0,
                          &g->held, &g->sampling.n_held));
    g->sampling.held = g->held;
    QN_TRY(qn_stop_strings_create(params->stop, params->n_stop, &g->stop_strings));
    QN_TRY(qn_stop_create(g->stop_strings, &g->stop));
    return create_events(g, tail, n_tail);
}

qn_status qn_generate(qn_session *session, const qn_token *tokens, size_t n, const qn_generate_params *params,
                      qn_generate_result *result)
{
    struct generation g = { .session = session, .params = params };
    QN_TRY(check_params(session->model, params, n));
    QN_TRY(qn_session_enter(session, __func__));
    qn_status status = begin(&g, tokens, n);
    if (status == QN_OK)
        status = generate(&g, tokens, n);
    qn_session_drop_sampled(session, n_waiting(&g));
    atomic_store(&session->cancelled, false); /* a request that came too late does not apply to the next call */
    if (status == QN_OK && result)
        *result = g.result;
    qn_events_free(&g.events);
    qn_output_tools_free(g.tools);
    qn_free_tokens(g.words);
    qn_stop_free(g.stop);
    qn_stop_strings_free(g.stop_strings);
    qn_sampler_free(g.sampling.sampler);
    qn_constraint_free(&g.constraint);
    qn_free(g.held);
    qn_free(g.sampling.logits);
    qn_free(g.sampling.allowed);
    qn_free(g.sampling.masks);
    qn_utf8_stream_free(&g.utf8);
    qn_session_leave(session);
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
