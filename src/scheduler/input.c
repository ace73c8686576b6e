/* Inputs shared by the requests of a submission: the prompt as tokens, with the positions whose states are kept, and
 * lists such as stop strings. Each is checked and created once, constant, and reference-counted. */
#include "scheduler/scheduler.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* States are kept at the end of a conversation's first message, which other conversations may share, and at the ends of
 * this number of last messages. */
enum { LAST_MESSAGES = 3 };

static qn_status copy_tokens(const qn_token *from, size_t n, qn_token **to)
{
    size_t capacity = 0;
    if (!n)
        return QN_OK;
    QN_TRY(qn_realloc_array(to, &capacity, n, sizeof **to, "request"));
    memcpy(*to, from, n * sizeof **to);
    return QN_OK;
}

/* ---- The prompt ---- */

static qn_status find_tokens(const qn_scheduler *s, const qn_request_params *p, qn_input_prompt *prompt)
{
    const qn_model *model = s->model;
    if (p->tokens) {
        prompt->n_tokens = p->n_tokens;
        return copy_tokens(p->tokens, p->n_tokens, &prompt->tokens);
    }
    if (p->text)
        return qn_tokenize(model, p->text, strlen(p->text), true, true, &prompt->tokens, &prompt->n_tokens);
    if (p->conversation && p->on_event)
        return qn_conversation_input(model, p->conversation, p->conversation_length, s->params.n_ctx, &prompt->tokens,
                                     &prompt->n_tokens, &prompt->output, &prompt->tools);
    if (p->conversation)
        return qn_conversation_tokens(model, p->conversation, p->conversation_length, -1, &prompt->tokens,
                                      &prompt->n_tokens);
    return qn_chat_tokens(model, p->messages, p->n_messages, true, &prompt->tokens, &prompt->n_tokens);
}

static bool is_parsed(const qn_request_params *p)
{
    return p->on_event || p->reasoning_budget >= 0;
}

/* Sets the parameters for parsing the answer. For a conversation with on_event, they were set with its tokens. */
static qn_status find_output(const qn_scheduler *s, const qn_request_params *p, qn_input_prompt *prompt)
{
    json_t *tools = NULL;
    if (!is_parsed(p) || (p->conversation && p->on_event))
        return QN_OK;
    if (p->tools)
        QN_TRY(qn_load_json("tools", p->tools, p->tools_length, 0, &tools));
    const qn_status status =
        qn_answer_output(s->model, tools, prompt->tokens, prompt->n_tokens, &prompt->output, &prompt->tools);
    json_decref(tools);
    return status;
}

/* Puts the tokens of qn_generate's session before those of the prompt. */
static qn_status continue_session(const qn_session *session, qn_input_prompt *prompt)
{
    const size_t n_before = session->length, n = n_before + prompt->n_tokens;
    qn_token *tokens = NULL;
    size_t capacity = 0;
    if (prompt->n_tokens > session->n_ctx - n_before)
        return qn_fail(QN_ERR_CONTEXT, "context: %zu tokens do not fit after %zu, its capacity is %u", prompt->n_tokens,
                       n_before, (unsigned)session->n_ctx);
    QN_TRY(qn_realloc_array(&tokens, &capacity, n, sizeof *tokens, "request"));
    memcpy(tokens, session->tokens, n_before * sizeof *tokens);
    memcpy(tokens + n_before, prompt->tokens, prompt->n_tokens * sizeof *tokens);
    qn_free_tokens(prompt->tokens);
    prompt->tokens = tokens;
    prompt->n_tokens = n;
    return QN_OK;
}

/* Adds the last multiple of QN_PAGE not above `length`, in ascending order and without duplicates. */
static void keep_before(qn_input_prompt *prompt, size_t length)
{
    const uint32_t position = (uint32_t)(length / QN_PAGE * QN_PAGE);
    if (position && (!prompt->n_keep || prompt->keep[prompt->n_keep - 1] < position))
        prompt->keep[prompt->n_keep++] = position;
}

/* Finds the ends of messages by end tokens, which the text of messages cannot produce. */
static void keep_messages(const qn_scheduler *s, qn_input_prompt *prompt)
{
    size_t n_ends = 0, end = 0;
    for (size_t i = 0; i < prompt->n_tokens; i++)
        n_ends += qn_token_is_end(s->model, prompt->tokens[i]);
    for (size_t i = 0; i < prompt->n_tokens; i++)
        if (qn_token_is_end(s->model, prompt->tokens[i])) {
            if (end == 0 || end + LAST_MESSAGES >= n_ends)
                keep_before(prompt, i + 1);
            end++;
        }
}

static qn_status find_kept_positions(const qn_scheduler *s, const qn_request_params *p, qn_input_prompt *prompt)
{
    const bool has_messages = p->messages || p->conversation;
    QN_TRY(
        qn_alloc(&prompt->keep, (has_messages ? 1 + LAST_MESSAGES : p->n_marks) + 1, sizeof *prompt->keep, "request"));
    for (size_t i = 0; i < p->n_marks; i++)
        keep_before(prompt, p->marks[i]);
    if (has_messages)
        keep_messages(s, prompt);
    keep_before(prompt, prompt->n_tokens);
    return QN_OK;
}

static qn_status fill_prompt(const qn_scheduler *s, const qn_request_params *p, qn_input_prompt *prompt, size_t *n)
{
    const qn_status status = find_tokens(s, p, prompt);
    *n = prompt->n_tokens; /* also of a prompt that is too long */
    if (status != QN_OK)
        return status;
    if (!*n)
        return qn_fail(QN_ERR_INVALID, "prompt: it has no tokens, at least 1 is needed");
    if (s->generation)
        QN_TRY(continue_session(s->generation->session, prompt));
    if (*n > s->params.n_ctx)
        return qn_fail(QN_ERR_CONTEXT, "context: the prompt has %zu tokens, the capacity is %u", *n,
                       (unsigned)s->params.n_ctx);
    QN_TRY(find_output(s, p, prompt));
    return find_kept_positions(s, p, prompt);
}

qn_status qn_input_prompt_create(const qn_scheduler *s, const qn_request_params *p, qn_input_prompt **out, size_t *n)
{
    QN_TRY(qn_alloc(out, 1, sizeof **out, "request"));
    atomic_init(&(*out)->n_users, 1);
    const qn_status status = fill_prompt(s, p, *out, n);
    if (status != QN_OK) {
        qn_input_prompt_free(*out);
        *out = NULL;
    }
    return status;
}

bool qn_input_prompt_is_of(const qn_request_params *a, const qn_request_params *b)
{
    return a->tokens == b->tokens && a->n_tokens == b->n_tokens && a->text == b->text && a->messages == b->messages &&
           a->n_messages == b->n_messages && a->conversation == b->conversation &&
           a->conversation_length == b->conversation_length && a->marks == b->marks && a->n_marks == b->n_marks &&
           a->tools == b->tools && a->tools_length == b->tools_length && !a->on_event == !b->on_event &&
           is_parsed(a) == is_parsed(b);
}

qn_input_prompt *qn_input_prompt_share(qn_input_prompt *prompt)
{
    atomic_fetch_add(&prompt->n_users, 1);
    return prompt;
}

size_t qn_input_prompt_bytes(const qn_input_prompt *p)
{
    return sizeof *p + p->n_tokens * sizeof *p->tokens + (p->n_keep + 1) * sizeof *p->keep +
           qn_output_tools_bytes(p->tools);
}

void qn_input_prompt_free(qn_input_prompt *prompt)
{
    if (!prompt || atomic_fetch_sub(&prompt->n_users, 1) != 1)
        return;
    qn_free_tokens(prompt->tokens);
    qn_free(prompt->keep);
    qn_output_tools_free(prompt->tools);
    qn_free(prompt);
}

/* ---- Lists ---- */

static qn_status copy_bias(const qn_scheduler *s, const qn_request_params *p, qn_input_lists *lists)
{
    const size_t n_vocab = s->model->hparams.n_vocab;
    for (size_t i = 0; i < p->n_bias; i++) {
        const qn_logit_bias *bias = &p->bias[i];
        if (bias->token < 0 || (size_t)bias->token >= n_vocab)
            return qn_fail(QN_ERR_INVALID, "bias %zu: id %d is outside the vocabulary, expected 0 to %zu", i,
                           (int)bias->token, n_vocab - 1);
        if (!(bias->value < INFINITY))
            return qn_fail(QN_ERR_INVALID, "bias %zu: %g, expected a finite value or -inf", i, (double)bias->value);
    }
    lists->n_bias = p->n_bias;
    return qn_held_biases(s->model, p->min_tokens, p->ignore_end, p->stop_tokens, p->n_stop_tokens, p->bias, p->n_bias,
                          &lists->bias, &lists->n_held);
}

static qn_status fill_lists(const qn_scheduler *s, const qn_request_params *p, qn_input_lists *lists)
{
    const char *scope = p->scope ? p->scope : "";
    QN_TRY(qn_stop_strings_create(p->stop, p->n_stop, &lists->stop));
    QN_TRY(qn_model_check_tokens(s->model, "stop token", p->stop_tokens, p->n_stop_tokens));
    QN_TRY(copy_bias(s, p, lists));
    QN_TRY(copy_tokens(p->stop_tokens, p->n_stop_tokens, &lists->stop_tokens));
    lists->n_stop_tokens = p->n_stop_tokens;
    QN_TRY(qn_alloc(&lists->scope, strlen(scope) + 1, 1, "request"));
    memcpy(lists->scope, scope, strlen(scope));
    return QN_OK;
}

qn_status qn_input_lists_create(const qn_scheduler *s, const qn_request_params *p, qn_input_lists **out)
{
    QN_TRY(qn_alloc(out, 1, sizeof **out, "request"));
    atomic_init(&(*out)->n_users, 1);
    const qn_status status = fill_lists(s, p, *out);
    if (status != QN_OK) {
        qn_input_lists_free(*out);
        *out = NULL;
    }
    return status;
}

bool qn_input_lists_are_of(const qn_request_params *a, const qn_request_params *b)
{
    return a->bias == b->bias && a->n_bias == b->n_bias && a->stop == b->stop && a->n_stop == b->n_stop &&
           a->stop_tokens == b->stop_tokens && a->n_stop_tokens == b->n_stop_tokens && a->scope == b->scope &&
           (a->min_tokens > 0) == (b->min_tokens > 0) && (a->min_tokens <= 0 || a->ignore_end == b->ignore_end);
}

qn_input_lists *qn_input_lists_share(qn_input_lists *lists)
{
    atomic_fetch_add(&lists->n_users, 1);
    return lists;
}

size_t qn_input_lists_bytes(const qn_input_lists *l)
{
    return sizeof *l + qn_stop_strings_bytes(l->stop) + (l->n_bias + l->n_held) * sizeof *l->bias +
           l->n_stop_tokens * sizeof *l->stop_tokens + strlen(l->scope) + 1;
}

void qn_input_lists_free(qn_input_lists *lists)
{
    if (!lists || atomic_fetch_sub(&lists->n_users, 1) != 1)
        return;
    qn_stop_strings_free(lists->stop);
    qn_free(lists->bias);
    free(lists->stop_tokens);
    qn_free(lists->scope);
    qn_free(lists);
}
