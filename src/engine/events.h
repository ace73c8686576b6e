/* The events of an answer (quern/output.h), for sessions and the scheduler: parses the tokens, searches stop strings in
 * content only, and supplies the words that end reasoning when its budget is spent. The events of an answer are used by
 * one thread at a time. */
#ifndef QN_ENGINE_EVENTS_H
#define QN_ENGINE_EVENTS_H

#include "engine/internal.h"
#include "text/stop.h"

/* Zero: no events. Must not move after qn_events_create. */
typedef struct qn_events {
    qn_output_parser *parser;
    qn_stop *stop; /* the caller's, outlives the events */
    qn_status (*emit)(void *user, const qn_output_event *event);
    void *user;
    bool is_stop_string; /* one was found: nothing is emitted any more */
    qn_status status;    /* of the first failure, after which nothing is parsed */
} qn_events;

/* qn_events_create - Begins an answer.
 *
 *   output    parameters of the parser; on_event and user are set here. Not referenced afterwards
 *   grammar   grammar of the answer, with its trigger; NULL: none. A grammar that begins after reasoning would reject
 *             the text that follows think_close in the words, so that text is left out
 *   stop      set up with the stop strings; NULL with `emit` NULL. Outlives the events
 *   emit      receives events, with content up to a stop string. NULL: only the reasoning budget is used
 *   events    free it with qn_events_free */
qn_status qn_events_create(qn_output_params output, const qn_grammar *grammar, const qn_grammar_trigger *trigger,
                           qn_stop *stop, qn_status (*emit)(void *user, const qn_output_event *event), void *user,
                           qn_events *events);
void qn_events_free(qn_events *events);

/* qn_events_feed - Parses a token. `bytes` is its text, empty for a control token whose name is not shown. */
qn_status qn_events_feed(qn_events *events, qn_token token, const char *bytes, size_t length);

/* qn_events_finish - Ends the answer: emits the text held back, which may contain a stop string.
 *
 *   is_cut   the answer did not end with an end or stop token: a partial delimiter at its end is dropped
 *            (qn_output_cut) */
qn_status qn_events_finish(qn_events *events, bool is_cut);

/* qn_events_words - Returns the tokens that end reasoning if its budget is spent, else none. Returns them once for each
 * block of reasoning: the caller feeds them to the model and to the events.
 *
 *   tokens   [*count] free with qn_free_tokens; NULL with a count of 0 */
qn_status qn_events_words(qn_events *events, const qn_model *model, qn_token **tokens, size_t *count);

/* qn_prompt_ends_with - Sets *ends to true if a prompt [n] ends with a delimiter, optionally followed by white space. A
 * delimiter with a token of its own is found by that token, which text of messages cannot produce; others by their
 * text. False for a delimiter without text. */
qn_status qn_prompt_ends_with(const qn_tokenizer *tok, const qn_token *prompt, size_t n,
                              const qn_output_delimiter *delimiter, bool *ends);

/* Number of last tokens of a prompt that are searched. */
enum { QN_PROMPT_TAIL = 64 };

/* qn_answer_output - Sets the parameters for parsing the answer to a prompt in the model's chat format.
 *
 *   tools    JSON; NULL, null or an empty array: the text of a call is content
 *   prompt   [n]
 *   kept     set to the tools that `output` refers to, or NULL, also on an error. Free it with qn_output_tools_free
 *
 * QN_ERR_INVALID       tools are not an array
 * QN_ERR_UNSUPPORTED   there are tools and the chat template does not support tools, or its calls cannot be parsed
 *                      back */
qn_status qn_answer_output(const qn_model *model, const json_t *tools, const qn_token *prompt, size_t n,
                           qn_output_params *output, qn_output_tools **kept);

#endif
