/* Parses what a model generates back into reasoning, content and tool calls, as a stream.
 *
 * The form is that of the model's chat template; docs/tool-calls.md describes the forms. Delimiters are recognised by their
 * token ids where the vocabulary has tokens for them, else by their text. Text that could become a delimiter or a call is held
 * back until it is decided; what does not parse is content (or reasoning) with its exact bytes, never an error. Events do not
 * depend on how the output was divided into feeds, except that text and arguments come in pieces. */
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
    QN_OUTPUT_XML,    /* Qwen3.5, 3.8, Coder: <tool_call><function=N><parameter=K>V</parameter></function></tool_call> */
    QN_OUTPUT_LLAMA3, /* {"name": N, "parameters": {...}}, which <|python_tag|> may precede */
    QN_OUTPUT_N_FORMS
} qn_output_form;

/* qn_output_form_name - "plain", "json", "xml" or "llama3". */
const char *qn_output_form_name(qn_output_form form);

typedef struct qn_output_delimiter {
    const char *text; /* NULL: the form has none. At most 64 bytes of UTF-8 without quotes, backslashes, space and controls */
    int32_t token;    /* the only way to recognise it, or -1: by its text */
} qn_output_delimiter;

/* What a parser needs of tools. Constant. */
typedef struct qn_output_tools qn_output_tools;

typedef struct qn_output_params {
    qn_output_form form;
    qn_output_delimiter think_open, think_close, call_open, call_close;
    bool starts_in_reasoning; /* the prompt ends inside reasoning */
    bool continues;           /* the prompt ends inside content: what only the beginning of an answer may have does not come */

    /* NULL: none. Their schemas type the values of the XML form; their names tell calls from prose at doubtful places, where
     * without tools there are no calls. */
    const qn_output_tools *tools;

    /* Budget: how many tokens of reasoning may come before it is ended by `reasoning_end`, in the template's words. */
    size_t reasoning_budget;   /* SIZE_MAX: no limit */
    const char *reasoning_end; /* with a budget; copied */

    size_t max_call; /* bytes of a call, beyond which it is broken; bounds the memory */
    void (*on_event)(const qn_output_event *event, void *user);
    void *user;
} qn_output_params;

/* qn_output_params_init - the parameters of a form: its delimiters by their text, "<think>" and "</think>", calls of at most
 * 16 MiB, no budget. on_event must be set. */
void qn_output_params_init(qn_output_params *params, qn_output_form form);

/* qn_output_tools_create - what parsers of a form need of tools; nothing of the JSON is referenced afterwards.
 *
 *   tools   an array of {"type": "function", "function": {"name", "parameters"}} or {"name", "parameters" or "input_schema"}
 *   out     free it with qn_output_tools_free
 *
 * QN_ERR_MEMORY is the only error. qn_output_tools_bytes - memory of the tools; 0 for NULL. */
qn_status qn_output_tools_create(const json_t *tools, qn_output_form form, qn_output_tools **out);
size_t qn_output_tools_bytes(const qn_output_tools *tools);
void qn_output_tools_free(qn_output_tools *tools); /* NULL is allowed */

/* qn_output_markers - the delimiters of all forms and those of results, NULL at the end: what only a chat template may spell as tokens,
 * whatever template a vocabulary comes with. */
extern const char *const qn_output_markers[];

/* qn_output_find_tokens - sets the token ids of the delimiters that are special tokens of a vocabulary. */
void qn_output_find_tokens(qn_output_params *params, const qn_tokenizer *tok);

/* qn_output_form_of - tells the form of a chat template: from what it spells, and by parsing back a call that it prints.
 *
 *   params   initialised by qn_output_params_init for that form; without thinking delimiters if the template has none.
 *            QN_OUTPUT_PLAIN for a template without tools
 *
 * False if the template has tools whose calls are of no form known here; the form is then QN_OUTPUT_PLAIN, and tools must be
 * refused. */
bool qn_output_form_of(const qn_jinja *jinja, qn_output_params *params);

/* Bytes that end reasoning, a terminator included. */
enum { QN_OUTPUT_MAX_WORDS = 128 };

/* qn_output_reasoning_words - what a chat template prints between reasoning and content: of an answer that it renders, else a
 * newline, think_close, two newlines. "" without think_close. */
void qn_output_reasoning_words(const qn_jinja *jinja, const qn_output_params *params, char words[QN_OUTPUT_MAX_WORDS]);

/* qn_output_ends_with - whether a delimiter, and then space, is the end of a text. */
bool qn_output_ends_with(const char *delimiter, const char *prompt, size_t length);

typedef struct qn_output_parser qn_output_parser;

/* qn_output_parser_create - create a parser for one answer.
 *
 *   params   copied; the tools outlive the parser
 *   out      free it with qn_output_parser_free
 *
 * QN_ERR_INVALID for a delimiter that breaks the rules of its struct, and for a form without the delimiters it needs. */
qn_status qn_output_parser_create(const qn_output_params *params, qn_output_parser **out);
void qn_output_parser_free(qn_output_parser *parser);

/* qn_output_feed - parse a token; calls on_event for all that is now decided.
 *
 *   token   its id, or -1 for bytes alone, in which delimiters that have ids are not recognised
 *   bytes   [n] of the token, possibly parts of characters. Invalid UTF-8 becomes U+FFFD
 *
 * QN_ERR_MEMORY is the only error; the parser can then only be freed. Time is linear in the output, memory in the call. */
qn_status qn_output_feed(qn_output_parser *parser, int32_t token, const char *bytes, size_t n);

/* The end of the output; nothing may be fed afterwards.
 *
 * qn_output_finish - of one that the model ended: what was held back is all there is, and comes as text.
 * qn_output_cut - of one that something else ended, such as a limit of tokens: what was held back, as the beginning of a delimiter
 * or of a call, the space before it, or a part of a character, is nothing, since it could have become something else than text.
 *
 * Either ends an open call, as QN_OUTPUT_CUT unless its arguments are complete. */
qn_status qn_output_finish(qn_output_parser *parser);
qn_status qn_output_cut(qn_output_parser *parser);

/* qn_output_in_reasoning - whether what comes next is reasoning. */
bool qn_output_in_reasoning(const qn_output_parser *parser);

/* qn_output_n_calls - the number of calls that began. */
size_t qn_output_n_calls(const qn_output_parser *parser);

/* qn_output_reasoning_spent - whether reasoning must end now because its budget, that of all blocks together, is used up. True
 * once for a block: the caller then feeds the words as tokens of their text, to the model and to the parser, and generation goes
 * on. A block that is opened later ends at once, with the delimiter and what follows it.
 *
 *   words   [*length] what to inject, owned by the parser
 *
 * To be called before each token is sampled. Not true in the middle of a character or of a call that could end the
 * reasoning. */
bool qn_output_reasoning_spent(qn_output_parser *parser, const char **words, size_t *length);

#endif
