/* The events of an answer (quern/output.h), for sessions and the scheduler: what the parser finds in the tokens, with
 * stop strings searched for in content alone, and the words that end reasoning when its budget is spent. */
#ifndef QN_ENGINE_EVENTS_H
#define QN_ENGINE_EVENTS_H

#include "engine/internal.h"
#include "text/stop.h"

/* Zero: none. It must not move once it is created. */
typedef struct qn_events {
    qn_output_parser *parser;
    qn_stop *stop; /* the caller's */
    qn_status (*emit)(void *user, const qn_output_event *event);
    void *user;
    bool is_stop_string; /* one was found: nothing is emitted any more */
    qn_status status;    /* of the first failure, after which nothing is parsed */
} qn_events;

/* qn_events_create - begin an answer.
 *
 *   output    how it is parsed; on_event and user are set here. Not referenced afterwards
 *   grammar   of the answer, and where it begins; NULL: none. One that begins behind reasoning does not allow what the
 *             words have behind think_close: it is left out
 *   stop      set up with the stop strings; NULL with `emit` NULL. Outlives the events
 *   emit      receives events, content as far as it has no stop string. NULL: the budget alone is wanted
 *   events    free it with qn_events_free */
qn_status qn_events_create(qn_output_params output, const qn_grammar *grammar, const qn_grammar_trigger *trigger,
                           qn_stop *stop, qn_status (*emit)(void *user, const qn_output_event *event), void *user,
                           qn_events *events);
void qn_events_free(qn_events *events);

/* qn_events_feed - parse a token. `bytes` are its text, none for a control token whose name is not wanted. */
qn_status qn_events_feed(qn_events *events, qn_token token, const char *bytes, size_t length);

/* qn_events_finish - the answer has ended: emit what is held back, which may have a stop string. is_cut: not by the
 * model, with an end or stop token, so that what could have become a delimiter is nothing (qn_output_cut). */
qn_status qn_events_finish(qn_events *events, bool is_cut);

/* qn_events_words - the tokens that end reasoning, if its budget is spent; else none. Once for a block: the caller
 * feeds them, to the model and back to the events.
 *
 *   tokens   [*count] free with qn_free_tokens; NULL with a count of 0 */
qn_status qn_events_words(qn_events *events, const qn_model *model, qn_token **tokens, size_t *count);

/* qn_prompt_ends_with - whether a delimiter, and then space, is the end of a prompt [n]: by its token where it has one,
 * which no message's text becomes, else by its text. A delimiter without a text is not. */
qn_status qn_prompt_ends_with(const qn_tokenizer *tok, const qn_token *prompt, size_t n,
                              const qn_output_delimiter *delimiter, bool *ends);

/* Tokens of a prompt that are looked at. */
enum { QN_PROMPT_TAIL = 64 };

/* qn_answer_output - how the answer to a prompt of the model's chat format is parsed.
 *
 *   tools    JSON; NULL, null and an empty array: a call is content
 *   prompt   [n]
 *   kept     set to what the result refers to of the tools, or NULL, also by an error. Free it with
 *            qn_output_tools_free
 *
 * QN_ERR_INVALID       tools are not an array
 * QN_ERR_UNSUPPORTED   tools with a chat template that has none, or whose calls cannot be parsed back */
qn_status qn_answer_output(const qn_model *model, const json_t *tools, const qn_token *prompt, size_t n,
                           qn_output_params *output, qn_output_tools **kept);

#endif
