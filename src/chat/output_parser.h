/* Parses the output of a model into reasoning, content and tool calls, as a stream.
 *
 * The form is that of the model's chat template; docs/tool-calls.md describes the forms. Delimiters are recognised
 * by their token ids if the vocabulary has tokens for them, else by their text. Text that may become a delimiter or
 * a call is held back until that is decided. Output that does not parse is never an error: it is content or
 * reasoning, with its exact bytes. Events do not depend on how the output was divided into feeds, except that text
 * and arguments come in pieces. */
#ifndef QN_CHAT_OUTPUT_PARSER_H
#define QN_CHAT_OUTPUT_PARSER_H

#include "quern/output.h"
#include "quern/status.h"
#include "jinja/jinja.h"
#include "text/tokenizer.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum qn_output_form {
    QN_OUTPUT_PLAIN,  /* no tool calls */
    QN_OUTPUT_JSON,   /* Hermes, Qwen2.5, Qwen3: <tool_call>{"name": N, "arguments": {...}}</tool_call> */
    QN_OUTPUT_XML,    /* Qwen3.5, 3.8, Coder:
                         <tool_call><function=N><parameter=K>V</parameter></function></tool_call> */
    QN_OUTPUT_LLAMA3, /* {"name": N, "parameters": {...}}, optionally after <|python_tag|> */
    QN_OUTPUT_N_FORMS
} qn_output_form;

/* qn_output_form_name - "plain", "json", "xml" or "llama3". */
const char *qn_output_form_name(qn_output_form form);

typedef struct qn_output_delimiter {
    const char *text; /* NULL: none. At most 64 bytes of UTF-8 without quotes, backslashes, space or controls */
    int32_t token;    /* recognised only by this token; -1: by its text */
} qn_output_delimiter;

/* The names and argument types of tools, as the parser needs them. Immutable. */
typedef struct qn_output_tools qn_output_tools;

typedef struct qn_output_params {
    qn_output_form form;
    qn_output_delimiter think_open, think_close, call_open, call_close;
    bool starts_in_reasoning; /* the prompt ends inside reasoning */
    bool continues;           /* the prompt ends inside content: nothing is expected that only begins an answer */

    /* NULL: none. Their schemas type the values of the form xml. In doubtful places only their names tell calls from
     * text; without tools there are no calls there. */
    const qn_output_tools *tools; /* borrowed */

    /* Number of tokens of reasoning after which `reasoning_end`, the template's own words, ends it. */
    size_t reasoning_budget;   /* SIZE_MAX: no limit */
    const char *reasoning_end; /* required with a budget; copied */

    size_t max_call; /* limit of the bytes of a call, which bounds the memory; a longer call is broken */
    /* Called by qn_output_feed, qn_output_finish and qn_output_cut, on their thread. It must not call the parser; the
     * event and its texts are valid only during the call. */
    void (*on_event)(const qn_output_event *event, void *user);
    void *user;
} qn_output_params;

/* qn_output_params_init - sets the parameters of a form: its delimiters by their text, "<think>" and "</think>",
 * calls of at most 16 MiB, no budget. The caller must set on_event. */
void qn_output_params_init(qn_output_params *params, qn_output_form form);

/* qn_output_tools_create - prepares tools for parsers of a form. The JSON is not kept.
 *
 *   tools   an array of {"type": "function", "function": {"name", "parameters"}} or {"name", "parameters" or
 *           "input_schema"}
 *   out     free it with qn_output_tools_free
 *
 * The only error is QN_ERR_MEMORY. */
qn_status qn_output_tools_create(const json_t *tools, qn_output_form form, qn_output_tools **out);

/* qn_output_tools_bytes - the memory of the tools in bytes; 0 for NULL. */
size_t qn_output_tools_bytes(const qn_output_tools *tools);

/* qn_output_tools_free - frees the tools; NULL is allowed. */
void qn_output_tools_free(qn_output_tools *tools);

/* qn_output_markers - the delimiters of all forms and of tool results, ending with NULL. Only a chat template may
 * produce them as tokens, whatever template a vocabulary comes with. */
extern const char *const qn_output_markers[];

/* qn_output_find_tokens - sets the token ids of the delimiters that are special tokens of a vocabulary. */
void qn_output_find_tokens(qn_output_params *params, const qn_tokenizer *tok);

/* qn_output_form_of - determines the form of a chat template, from the texts in it, and by rendering a call and parsing
 * it.
 *
 *   params   set as by qn_output_params_init for the form, without thinking delimiters if the template has none
 *
 * A template without tools has QN_OUTPUT_PLAIN. Returns false, with QN_OUTPUT_PLAIN, if the template has tools but
 * its calls have no known form: tools must be refused. */
bool qn_output_form_of(const qn_jinja *jinja, qn_output_params *params);

/* Limit of the bytes that end reasoning, with the terminator. */
enum { QN_OUTPUT_MAX_WORDS = 128 };

/* qn_output_reasoning_words - finds the text between reasoning and content in an answer that the template renders;
 * if it renders none, a newline, think_close and two newlines; "" without think_close. */
void qn_output_reasoning_words(const qn_jinja *jinja, const qn_output_params *params, char words[QN_OUTPUT_MAX_WORDS]);

/* qn_output_ends_with - whether a text ends with a delimiter, optionally followed by space. */
bool qn_output_ends_with(const char *delimiter, const char *prompt, size_t length);

typedef struct qn_output_parser qn_output_parser;

/* qn_output_parser_create - creates a parser for one answer.
 *
 *   params   copied; the tools must outlive the parser
 *   out      free it with qn_output_parser_free
 *
 * QN_ERR_INVALID for a delimiter that breaks the rules of its struct, and for a form without a delimiter that it
 * needs. */
qn_status qn_output_parser_create(const qn_output_params *params, qn_output_parser **out);
void qn_output_parser_free(qn_output_parser *parser);

/* qn_output_feed - parses a token; calls on_event for everything that it decides.
 *
 *   token   its id, or -1 for bytes without a token, in which delimiters that have ids are not recognised
 *   bytes   [n] of the token; they may end inside a character. Invalid UTF-8 becomes U+FFFD
 *
 * The only error is QN_ERR_MEMORY; after it the parser can only be freed. The time is linear in the output, the
 * memory in the length of a call. */
qn_status qn_output_feed(qn_output_parser *parser, int32_t token, const char *bytes, size_t n);

/* qn_output_finish - ends an output that the model ended. Held text is emitted. An open call ends as QN_OUTPUT_CUT,
 * unless its arguments are complete. Nothing may be fed afterwards. */
qn_status qn_output_finish(qn_output_parser *parser);

/* qn_output_cut - ends an output that was cut off, for example by a limit of tokens. Held text is dropped (the
 * beginning of a delimiter or call, the space before it, part of a character), since it could have become something
 * else. Calls end as in qn_output_finish. Nothing may be fed afterwards. */
qn_status qn_output_cut(qn_output_parser *parser);

/* qn_output_in_reasoning - whether the next text is reasoning. */
bool qn_output_in_reasoning(const qn_output_parser *parser);

/* qn_output_n_calls - the number of calls begun so far. */
size_t qn_output_n_calls(const qn_output_parser *parser);

/* qn_output_reasoning_spent - whether reasoning must end now because its budget, shared by all blocks, is used up.
 * Returns true once for a block: the caller then feeds the words, as the tokens of their text, to the model and to the
 * parser, and generation continues. A block that is opened later ends at once, with the delimiter and the words after
 * it.
 *
 *   words   [*length] the text to inject, owned by the parser
 *
 * Call it before each token is sampled. It is false inside a character and inside a call that may end the reasoning. */
bool qn_output_reasoning_spent(qn_output_parser *parser, const char **words, size_t *length);

#endif
