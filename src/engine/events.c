/* Events of answers: the parser of the model's chat format, stop strings in content, the budget of reasoning. */
#include "engine/events.h"

#include "base/memory.h"
#include "text/json_scan.h"

#include <stdlib.h>
#include <string.h>

/* ---- How an answer is parsed ---- */

/* The text of the last tokens of a prompt; free() it. */
static qn_status prompt_tail(const qn_tokenizer *tok, const qn_token *prompt, size_t n, char **text, size_t *length)
{
    size_t capacity = 0;
    *text = NULL;
    *length = 0;
    for (size_t i = n < QN_PROMPT_TAIL ? 0 : n - QN_PROMPT_TAIL; i < n; i++) {
        const char *bytes;
        size_t n_bytes;
        if (prompt[i] < 0 || (size_t)prompt[i] >= qn_tokenizer_n_vocab(tok))
            continue;
        qn_status status = qn_tokenizer_piece(tok, prompt[i], &bytes, &n_bytes);
        if (status == QN_OK)
            status = qn_realloc_array(text, &capacity, *length + n_bytes + 1, 1, "prompt");
        if (status != QN_OK) {
            free(*text);
            *text = NULL;
            return status;
        }
        memcpy(*text + *length, bytes, n_bytes);
        *length += n_bytes;
    }
    return QN_OK;
}

static bool ends_with_token(const qn_tokenizer *tok, const qn_token *prompt, size_t n, qn_token token)
{
    const size_t end = n < QN_PROMPT_TAIL ? 0 : n - QN_PROMPT_TAIL;
    const char *bytes;
    size_t n_bytes = 0;
    for (size_t i = n; i-- > end;) {
        if (prompt[i] == token)
            return true;
        if (qn_tokenizer_piece(tok, prompt[i], &bytes, &n_bytes) != QN_OK)
            return false;
        for (size_t b = 0; b < n_bytes; b++)
            if (!qn_json_is_space(bytes[b]))
                return false;
    }
    return false;
}

qn_status qn_prompt_ends_with(const qn_tokenizer *tok, const qn_token *prompt, size_t n,
                              const qn_output_delimiter *delimiter, bool *ends)
{
    char *text;
    size_t length;
    *ends = delimiter->text && delimiter->token >= 0 && ends_with_token(tok, prompt, n, delimiter->token);
    if (!delimiter->text || delimiter->token >= 0)
        return QN_OK;
    QN_TRY(prompt_tail(tok, prompt, n, &text, &length));
    *ends = qn_output_ends_with(delimiter->text, text ? text : "", length);
    free(text);
    return QN_OK;
}

/* Without tools a call is text. */
static qn_status find_form(const qn_model *model, const json_t *tools, qn_output_params *output, qn_output_tools **kept)
{
    (void)qn_model_output(model, output);
    if (tools && !json_is_null(tools) && !json_is_array(tools))
        return qn_fail(QN_ERR_INVALID, "tools: they are not an array");
    if (!json_array_size(tools)) {
        output->form = QN_OUTPUT_PLAIN;
        return QN_OK;
    }
    QN_TRY(qn_model_calls(model, output));
    return qn_output_tools_create(tools, output->form, kept);
}

qn_status qn_answer_output(const qn_model *model, const json_t *tools, const qn_token *prompt, size_t n,
                           qn_output_params *output, qn_output_tools **kept)
{
    *kept = NULL;
    QN_TRY(find_form(model, tools, output, kept));
    output->tools = *kept;
    return qn_prompt_ends_with(model->tokenizer, prompt, n, &output->think_open, &output->starts_in_reasoning);
}

/* ---- Events ---- */

static qn_status emit_content(qn_events *events, const char *text, size_t length)
{
    const qn_output_event content = { .kind = QN_OUTPUT_CONTENT, .text = text, .length = length };
    return length ? events->emit(events->user, &content) : QN_OK;
}

static qn_status feed_content(qn_events *events, const qn_output_event *event)
{
    const char *safe;
    size_t n_safe;
    QN_TRY(qn_stop_feed(events->stop, event->text, event->length, &safe, &n_safe, &events->is_stop_string));
    return emit_content(events, safe, n_safe);
}

/* Content that could be the beginning of a stop string ends where reasoning or a call begins. */
static qn_status flush_content(qn_events *events)
{
    const char *safe;
    size_t n_safe;
    QN_TRY(qn_stop_flush(events->stop, &safe, &n_safe));
    return emit_content(events, safe, n_safe);
}

/* The words up to think_close, which they have. */
static const char *cut_words(const qn_output_params *output, char words[QN_OUTPUT_MAX_WORDS])
{
    const char *close = strstr(output->reasoning_end, output->think_close.text);
    const size_t n = (size_t)(close - output->reasoning_end) + strlen(output->think_close.text);
    memcpy(words, output->reasoning_end, n);
    words[n] = '\0';
    return words;
}

static void on_parsed(const qn_output_event *event, void *user)
{
    qn_events *events = user;
    if (!events->emit || events->is_stop_string || events->status != QN_OK)
        return;
    if (event->kind == QN_OUTPUT_CONTENT) {
        events->status = feed_content(events, event);
        return;
    }
    events->status = flush_content(events);
    if (events->status == QN_OK)
        events->status = events->emit(events->user, event);
}

qn_status qn_events_create(qn_output_params output, const qn_grammar *grammar, const qn_grammar_trigger *trigger,
                           qn_stop *stop, qn_status (*emit)(void *user, const qn_output_event *event), void *user,
                           qn_events *events)
{
    char words[QN_OUTPUT_MAX_WORDS];
    const bool is_cut = grammar && trigger->when == QN_GRAMMAR_AFTER_REASONING && output.think_close.text;
    *events = (qn_events){ .stop = stop, .emit = emit, .user = user };
    if (is_cut && output.reasoning_end)
        output.reasoning_end = cut_words(&output, words);
    output.on_event = on_parsed;
    output.user = events;
    return qn_output_parser_create(&output, &events->parser);
}

void qn_events_free(qn_events *events)
{
    qn_output_parser_free(events->parser);
}

qn_status qn_events_feed(qn_events *events, qn_token token, const char *bytes, size_t length)
{
    const qn_status status = qn_output_feed(events->parser, token, bytes, length);
    events->status = events->status == QN_OK ? status : events->status;
    return events->status;
}

qn_status qn_events_finish(qn_events *events, bool is_cut)
{
    QN_TRY((is_cut ? qn_output_cut : qn_output_finish)(events->parser));
    QN_TRY(events->status);
    return events->emit && !events->is_stop_string ? flush_content(events) : QN_OK;
}

qn_status qn_events_words(qn_events *events, const qn_model *model, qn_token **tokens, size_t *count)
{
    const char *words;
    size_t length;
    *tokens = NULL;
    *count = 0;
    if (!qn_output_reasoning_spent(events->parser, &words, &length))
        return QN_OK;
    return qn_tokenize(model, words, length, true, false, tokens, count);
}
