/* OpenAI's Responses protocol: a body becomes a chat, its output becomes the items of a response. */
#ifndef QN_PROTOCOL_RESPONSES_H
#define QN_PROTOCOL_RESPONSES_H

#include "protocol/openai.h"

extern const qn_protocol qn_responses_create;

typedef enum qn_item { QN_ITEM_NONE, QN_ITEM_REASONING, QN_ITEM_MESSAGE, QN_ITEM_CALL, QN_ITEM_CUSTOM_CALL } qn_item;

/* Extracts the raw input of a custom tool from arguments {"input": "..."} that arrive in pieces. Zero it before use. */
typedef struct qn_custom_input {
    size_t n_prefix; /* bytes read before the string */
    enum { QN_CUSTOM_PREFIX, QN_CUSTOM_TEXT, QN_CUSTOM_AFTER, QN_CUSTOM_OTHER } state;
    char escape[12]; /* [n_escape] an incomplete escape, or surrogate pair of escapes */
    size_t n_escape;
} qn_custom_input;

typedef struct qn_responses {
    qn_text_exchange base;
    qn_item item; /* the open item, which is always the last */
    size_t n_items, n_events, n_reasoning;
    qn_bytes text;                 /* text, arguments or input of the open item */
    qn_bytes items;                /* the complete items, as JSON values */
    size_t call;                   /* number of the call that is the open item */
    json_t *custom;                /* names of the tools that take raw input, or NULL */
    json_t *names;                 /* of tools in namespaces: name for the model to {"namespace", "name"}; or NULL */
    qn_bytes instructions, choice; /* repeated in answers: instructions and tool_choice, as JSON; empty: none */
    qn_custom_input input;
    /* Of the open message, with log probabilities. */
    qn_bytes logprobs;   /* of its tokens, as JSON values */
    size_t n_characters; /* of its text */
    size_t first_offset; /* characters of the answer before its first token */
} qn_responses;

/* ---- responses_body.c ---- */

/* qn_responses_conversation - turn instructions, input, tools and format of a body into base.base.conversation,
 * base.tools and base.format. False: refused. */
bool qn_responses_conversation(qn_responses *x, const json_t *body, qn_reading *reading, qn_refusal *refusal);

/* ---- responses_tools.c ---- */

/* qn_responses_take_tools - turn tools and tool_choice of a body into functions, base.tools and the fields of names.
 * tools: an array that gets the tools. False: refused. */
bool qn_responses_take_tools(qn_responses *x, const json_t *body, qn_reading *reading, json_t *tools,
                             qn_refusal *refusal);

/* qn_responses_tool_name - the name by which the model calls a tool: `name`, or namespace and name, with "__" between
 * them unless the namespace ends with a separator. A new reference; NULL: see qn_reading_refuse. */
json_t *qn_responses_tool_name(const json_t *space, json_t *name, qn_reading *reading);

/* qn_responses_name - the client's {"namespace", "name"} of a tool that the model called; NULL if it has none. */
const json_t *qn_responses_name(const qn_responses *x, const char *name, size_t length);

/* qn_responses_is_custom - whether a tool of the body takes raw input. */
bool qn_responses_is_custom(const qn_responses *x, const char *name, size_t length);

/* ---- responses_input.c ---- */

/* qn_custom_input_feed - append the input in a piece of arguments to a text. */
void qn_custom_input_feed(qn_custom_input *input, const char *arguments, size_t length, qn_bytes *text);

/* qn_custom_input_is_other - whether arguments that have ended, complete or cut, are not of that form. Then they are
 * the input themselves. */
bool qn_custom_input_is_other(const qn_custom_input *input, bool is_complete);

/* ---- responses_items.c ---- */

/* qn_responses_output - write the events of an output event. */
void qn_responses_output(qn_responses *x, const qn_output_event *event, qn_bytes *out);

/* qn_responses_close_item - write the end of the open item, which is complete or was cut. */
void qn_responses_close_item(qn_responses *x, bool is_complete, qn_bytes *out);

/* qn_responses_open_event - write an event up to `sequence_number`. */
void qn_responses_open_event(qn_responses *x, const char *name, qn_bytes *out);

/* qn_responses_close_event - write the end of an event. */
void qn_responses_close_event(qn_bytes *out);

/* qn_responses_id - write an id: a prefix, the exchange's id, and a number unless it is SIZE_MAX. */
void qn_responses_id(const qn_responses *x, const char *prefix, size_t number, qn_bytes *out);

#endif
