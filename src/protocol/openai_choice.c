/* A choice of an answer: which tokens belong to the text so far, and counts of tokens. */
#include "protocol/openai.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

void qn_choice_init(qn_choice *choice, qn_account *account)
{
    choice->account = choice->text.account = choice->reasoning.account = choice->name.account =
        choice->arguments.account = choice->calls.account = account;
}

void qn_choice_free(qn_choice *choice)
{
    qn_account_give(choice->account, choice->n_promised);
    qn_bytes_free(&choice->text);
    qn_bytes_free(&choice->reasoning);
    qn_bytes_free(&choice->name);
    qn_bytes_free(&choice->arguments);
    qn_bytes_free(&choice->calls);
    qn_utf8_stream_free(&choice->stream);
    free(choice->tokens);
    free(choice->logprobs);
}

static size_t count_characters(const char *text, size_t length)
{
    size_t n = 0;
    for (size_t i = 0; i < length; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

/* ---- Tokens ---- */

/* Reserves memory in the account for one more pending token: for half again as many when it is used up. */
static qn_status promise(qn_choice *choice, bool has_logprobs)
{
    enum { LEAST = 16 };
    const size_t size = sizeof *choice->tokens + (has_logprobs ? sizeof *choice->logprobs : 0);
    const size_t bytes = (choice->n_pending / 2 + LEAST) * size;
    if (choice->n_promised / size > choice->n_pending)
        return QN_OK;
    if (!qn_account_take(choice->account, bytes))
        return qn_fail(QN_ERR_MEMORY, "no memory for tokens");
    choice->n_promised += bytes;
    return QN_OK;
}

/* Counts the characters that a token's bytes complete. */
static qn_status count_token(qn_choice *choice, qn_token token, const qn_model *model)
{
    const char *bytes = "", *text = "";
    size_t n = 0, length = 0;
    if (qn_token_piece(model, token, &bytes, &n) == QN_OK) /* ids beyond the tokeniser's vocabulary have no text */
        QN_TRY(qn_utf8_stream_feed(&choice->stream, bytes, n, &text, &length));
    choice->n_characters += count_characters(text, length);
    return QN_OK;
}

/* Appends a token to the pending ones, with its log probabilities unless NULL. */
static qn_status keep(qn_choice *choice, const qn_choice_token *token, const qn_logprobs *logprobs)
{
    QN_TRY(promise(choice, logprobs != NULL));
    QN_TRY(qn_realloc_array(&choice->tokens, &choice->cap_tokens, choice->n_pending + 1, sizeof *choice->tokens,
                            "tokens"));
    if (logprobs) {
        QN_TRY(qn_realloc_array(&choice->logprobs, &choice->cap_logprobs, choice->n_pending + 1,
                                sizeof *choice->logprobs, "log probabilities"));
        choice->logprobs[choice->n_pending] = *logprobs;
    }
    choice->tokens[choice->n_pending++] = *token;
    return QN_OK;
}

/* Keeps a token of the answer, whose text begins after all characters so far. */
static qn_status keep_output(qn_choice *choice, qn_token token, const qn_logprobs *logprobs, const qn_model *model)
{
    QN_TRY(keep(choice, &(qn_choice_token){ .token = token, .offset = choice->n_characters }, logprobs));
    return qn_token_is_special(model, token) ? QN_OK : count_token(choice, token, model);
}

/* Ends the prompt's text, as its JSON does: the answer begins with another character. */
static qn_status end_prompt(qn_choice *choice)
{
    const char *text;
    size_t length;
    QN_TRY(qn_utf8_stream_flush(&choice->stream, &text, &length));
    choice->n_characters += count_characters(text, length);
    choice->n_sent = choice->n_characters;
    return QN_OK;
}

/* Keeps a token of the prompt. The text of a prompt has the names of special tokens. */
static qn_status keep_prompt(qn_choice *choice, const qn_exchange_event *event, const qn_model *model, bool is_last)
{
    static const qn_logprobs none;
    const qn_choice_token token = { event->token, !event->logprobs, choice->n_characters };
    QN_TRY(keep(choice, &token, event->logprobs ? event->logprobs : &none));
    QN_TRY(count_token(choice, event->token, model));
    choice->n_repeated++;
    return is_last ? end_prompt(choice) : QN_OK;
}

bool qn_choice_take_prompt(qn_choice *choice, const qn_exchange_event *event, const qn_model *model, bool is_last)
{
    return keep_prompt(choice, event, model, is_last) == QN_OK;
}

static bool ends_at(const qn_request_params *params, const qn_model *model, qn_token token)
{
    for (size_t i = 0; i < params->n_stop_tokens; i++)
        if (params->stop_tokens[i] == token)
            return true;
    return !params->ignore_end && qn_token_is_end(model, token);
}

bool qn_choice_take_token(qn_choice *choice, const qn_exchange_event *event, const qn_model *model,
                          const qn_request_params *params, bool keeps)
{
    choice->n_tokens++;
    choice->sum += event->logprobs ? (double)event->logprobs->chosen : 0;
    if (ends_at(params, model, event->token)) {
        keeps = params->n_prompt_logprobs >= 0;
        return !keeps || keep(choice, &(qn_choice_token){ .token = event->token, .offset = choice->n_characters },
                              event->logprobs) == QN_OK;
    }
    choice->n_since++;
    return !keeps || keep_output(choice, event->token, event->logprobs, model) == QN_OK;
}

size_t qn_choice_ready(const qn_choice *choice)
{
    size_t n = choice->n_repeated;
    if (choice->has_reasoning || choice->has_calls)
        return choice->n_pending;
    while (n < choice->n_pending && choice->tokens[n].offset < choice->n_sent)
        n++;
    return n;
}

void qn_choice_drop(qn_choice *choice, size_t n)
{
    if (!n)
        return;
    choice->n_pending -= n;
    choice->n_repeated -= n < choice->n_repeated ? n : choice->n_repeated;
    memmove(choice->tokens, choice->tokens + n, choice->n_pending * sizeof *choice->tokens);
    if (choice->logprobs)
        memmove(choice->logprobs, choice->logprobs + n, choice->n_pending * sizeof *choice->logprobs);
}

/* ---- Texts ---- */

void qn_choice_take_text(qn_choice *choice, const char *text, size_t length)
{
    choice->n_sent += count_characters(text, length);
    choice->has_new_line = choice->has_new_line || memchr(text, '\n', length);
    choice->n_since = 0;
}

/* Counts the tokens since the last event as reasoning or not. Of the tokens between reasoning and the next event, one
 * ends the reasoning; the others are delimiters of a call, or the event's own. */
static void count_reasoning(qn_choice *choice, bool is_reasoning)
{
    if (is_reasoning)
        choice->n_reasoning += choice->n_since;
    else if (choice->is_thinking)
        choice->n_reasoning += choice->n_since > 1;
    choice->is_thinking = is_reasoning;
    choice->has_reasoning = choice->has_reasoning || is_reasoning;
    choice->n_since = 0;
}

void qn_choice_take_output(qn_choice *choice, const qn_output_event *event)
{
    count_reasoning(choice, event->kind == QN_OUTPUT_REASONING);
    choice->has_calls = choice->has_calls || event->kind == QN_OUTPUT_CALL_BEGIN;
    choice->n_calls += event->kind == QN_OUTPUT_CALL_END && event->call_end == QN_OUTPUT_COMPLETE;
    if (event->kind == QN_OUTPUT_CONTENT)
        qn_choice_take_text(choice, event->text, event->length);
}

void qn_choice_end(qn_choice *choice, const qn_request_result *result)
{
    choice->result = *result;
    choice->result.error = NULL;
    if (choice->is_thinking)
        choice->n_reasoning += choice->n_since;
    if (result->is_stop_string && !choice->has_reasoning && !choice->has_calls)
        choice->n_pending = qn_choice_ready(choice);
}

const char *qn_finish_reason(const qn_choice *choice)
{
    if (choice->result.finish != QN_FINISH_STOP)
        return "length";
    return choice->n_calls ? "tool_calls" : "stop";
}
