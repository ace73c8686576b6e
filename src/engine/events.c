/* Events of answers: the parser of the model's chat format, stop strings in content, the budget of reasoning. */
#include "engine/events.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

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

/* Emits content held back as a possible beginning of a stop string, because reasoning or a call begins. */
static qn_status flush_content(qn_events *events)
{
    const char *safe;
    size_t n_safe;
    QN_TRY(qn_stop_flush(events->stop, &safe, &n_safe));
    return emit_content(events, safe, n_safe);
}

/* The words up to and including think_close, which they always contain. */
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
    const qn_tokenizer *tok;
    QN_TRY(qn_model_tokenizer(model, &tok));
    return qn_tokenizer_encode_rest(tok, words, length, true, tokens, count);
}
