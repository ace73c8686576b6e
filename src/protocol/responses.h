/* OpenAI's Responses: bodies become chats, what comes of them becomes items of a response. */
#ifndef QN_PROTOCOL_RESPONSES_H
#define QN_PROTOCOL_RESPONSES_H

#include "protocol/openai.h"

extern const qn_protocol qn_responses_create;

typedef enum qn_item { QN_ITEM_NONE, QN_ITEM_REASONING, QN_ITEM_MESSAGE, QN_ITEM_CALL, QN_ITEM_CUSTOM_CALL } qn_item;

/* The raw input of a custom tool, from arguments {"input": "..."} that come in pieces. Zero it before use. */
typedef struct qn_custom_input {
    size_t n_prefix; /* bytes of what precedes the string */
    enum { QN_CUSTOM_PREFIX, QN_CUSTOM_TEXT, QN_CUSTOM_AFTER, QN_CUSTOM_OTHER } state;
    char escape[12]; /* [n_escape] an escape, or two of a pair, that is not complete */
    size_t n_escape;
} qn_custom_input;

typedef struct qn_responses {
    qn_openai base;
    qn_item item; /* the open one, always the last */
    size_t n_items, n_events, n_reasoning;
    qn_bytes text;                 /* of the open item: its text, arguments or input */
    qn_bytes items;                /* the complete ones, values of JSON */
    size_t call;                   /* of the open item */
    json_t *custom;                /* names of the tools that take raw input, or NULL */
    qn_bytes instructions, choice; /* what answers repeat, instructions and tool_choice as JSON; empty: there are none */
    qn_custom_input input;
    /* Of the open message, with log probabilities. */
    qn_bytes logprobs;   /* those of its tokens, values of JSON */
    size_t n_characters; /* of its text */
    size_t first_offset; /* of its first token: characters of the answer before it */
} qn_responses;

/* ---- responses_body.c ---- */

/* qn_responses_conversation - instructions, input, tools and format become base.base.conversation, base.tools, base.format.
 * False: refused. */
bool qn_responses_conversation(qn_responses *x, const json_t *body, qn_reading *reading, qn_refusal *refusal);

/* qn_responses_is_custom - whether a tool of the body takes raw input. */
bool qn_responses_is_custom(const qn_responses *x, const char *name, size_t length);

/* ---- responses_input.c ---- */

/* qn_custom_input_feed - append the input of a piece of arguments to a text. qn_custom_input_is_other - whether arguments
 * that have ended, complete or cut, are not of that form: they are the input then. */
void qn_custom_input_feed(qn_custom_input *input, const char *arguments, size_t length, qn_bytes *text);
bool qn_custom_input_is_other(const qn_custom_input *input, bool is_complete);

/* ---- responses_items.c ---- */

/* qn_responses_output - events of what came. qn_responses_close_item - of the end of the open item, which is complete or was
 * cut. */
void qn_responses_output(qn_responses *x, const qn_output_event *event, qn_bytes *out);
void qn_responses_close_item(qn_responses *x, bool is_complete, qn_bytes *out);

/* qn_responses_open_event - an event up to the members after `type` and `sequence_number`. qn_responses_close_event - its end. */
void qn_responses_open_event(qn_responses *x, const char *name, qn_bytes *out);
void qn_responses_close_event(qn_bytes *out);

/* qn_responses_id - the value of an id: a prefix, that of the exchange, and a number unless it is SIZE_MAX. */
void qn_responses_id(const qn_responses *x, const char *prefix, size_t number, qn_bytes *out);

#endif
