/* quern: output that matches a JSON schema, a regular expression, one of a list of strings, or a grammar.
 *
 *     qn_grammar *grammar;
 *     qn_grammar_create(model, QN_GRAMMAR_SCHEMA, schema, strlen(schema), &grammar);
 *     request.grammar = grammar; (a qn_request_params)
 *     ...
 *     qn_grammar_free(grammar);
 *
 * Every answer is then a text of the grammar, or a prefix of one if it ended early. docs/constrained-output.md
 * describes the supported parts of JSON schemas, the JSON spellings of an output, and how tokens are sampled.
 *
 * Threads: all functions may be called from any thread; a grammar may be used by any number of answers at the same
 * time.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUERN_GRAMMAR_H
#define QUERN_GRAMMAR_H

#include "quern/quern.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum qn_grammar_kind {
    QN_GRAMMAR_SCHEMA,        /* a JSON schema; keywords that are not supported are ignored */
    QN_GRAMMAR_SCHEMA_STRICT, /* a JSON schema; keywords that are not supported are QN_ERR_UNSUPPORTED */
    QN_GRAMMAR_JSON,          /* any JSON object; `text` is not used */
    QN_GRAMMAR_REGEX,         /* an ECMAScript regular expression with the u flag, matched against the whole output */
    QN_GRAMMAR_GBNF           /* a grammar in llama.cpp's syntax, without token literals; its start rule is `root` */
} qn_grammar_kind;

/* White space in JSON output. */
typedef enum qn_json_space {
    QN_JSON_SPACE_DEFAULT, /* as Python's json.dumps: one space after each colon and comma */
    QN_JSON_SPACE_INDENT,  /* as json.dumps with indent=2: one line for each member and item, two spaces per level */
    QN_JSON_SPACE_COMPACT, /* no white space */
    QN_JSON_SPACE_ANY /* between two JSON tokens: nothing, one space, or a line end and at most 20 spaces or tabs */
} qn_json_space;

typedef enum qn_json_order {
    QN_JSON_ORDER_SCHEMA, /* properties in the order of the schema, then additional properties */
    QN_JSON_ORDER_ANY
} qn_json_order;

typedef struct qn_json_style {
    size_t size; /* set by QN_JSON_STYLE_INIT */
    qn_json_space space;
    qn_json_order order;
    bool closed; /* objects whose schema has properties but does not mention additional ones allow no others, unless
                    `required` or `minProperties` needs them. As most servers read schemas; JSON Schema allows any */
} qn_json_style;
#define QN_JSON_STYLE_INIT QN_INIT(qn_json_style)

/* qn_grammar_create - Compiles a grammar, or returns it from the model's cache.
 *
 *   model    caches the last compiled grammars, at most 256 and 64 MiB. The grammar can be used with other models, and
 *            may outlive this one
 *   kind     the language of `text`
 *   text     [length] UTF-8; not kept
 *   out      free it with qn_grammar_free
 *
 * Compilation takes a bounded number of steps: a text that exceeds them is refused within milliseconds. Masks are
 * bounded too: an answer ends with QN_ERR_UNSUPPORTED if its grammar is too ambiguous for that bound, or if no token of
 * the vocabulary is allowed. The error gives the byte of the answer and the rule, or the path in a schema.
 *
 * QN_ERR_INVALID       the text is not valid for its kind, or no output matches it; the error gives the position
 * QN_ERR_UNSUPPORTED   a feature is not supported, or the text is too large
 * QN_ERR_MEMORY        not enough memory */
QN_API qn_status qn_grammar_create(qn_model *model, qn_grammar_kind kind, const char *text, size_t length,
                                   qn_grammar **out);

/* qn_grammar_create_in - Does what qn_grammar_create does, with a scope and a JSON style. Errors are the same.
 *
 *   scope   cached grammars are shared within a scope only, as prefixes are (qn_request_params.scope): compilation time
 *           does not reveal which grammars other scopes use. NULL: the scope "", which qn_grammar_create and
 *           qn_grammar_create_choices use
 *   style   of JSON and schemas; NULL: the defaults */
QN_API qn_status qn_grammar_create_in(qn_model *model, const char *scope, const qn_json_style *style,
                                      qn_grammar_kind kind, const char *text, size_t length, qn_grammar **out);

/* qn_grammar_create_choices - Compiles a grammar whose output is one of a list of strings. Errors are those of
 * qn_grammar_create.
 *
 *   choices   [n_choices] zero-terminated UTF-8, n_choices >= 1
 *   out       free it with qn_grammar_free */
QN_API qn_status qn_grammar_create_choices(qn_model *model, const char *const *choices, size_t n_choices,
                                           qn_grammar **out);

/* qn_grammar_create_choices_in - Does what qn_grammar_create_choices does, with a scope as for qn_grammar_create_in. */
QN_API qn_status qn_grammar_create_choices_in(qn_model *model, const char *scope, const char *const *choices,
                                              size_t n_choices, qn_grammar **out);

typedef struct qn_call_params {
    size_t size;       /* set by QN_CALL_PARAMS_INIT */
    const char *tools; /* [length] JSON, an array as in a conversation */
    size_t length;
    const char *name;   /* the only function that may be called; NULL: any */
    bool is_required;   /* true: the answer consists of calls; use QN_GRAMMAR_AFTER_REASONING. false: it may be text, or
                           text before a first call; use QN_GRAMMAR_AT_CALL */
    bool is_single;     /* at most one call; always so in the form llama3 */
    const char *format; /* [format_length] a JSON schema: the answer consists of calls, or of content that matches the
                           schema. NULL: none. Not with is_required; use QN_GRAMMAR_AFTER_REASONING */
    size_t format_length;
    bool is_format_strict;      /* keywords of `format` that are not supported are QN_ERR_UNSUPPORTED */
    const char *scope;          /* as in qn_grammar_create_in */
    const qn_json_style *style; /* of arguments and of `format`; NULL: the defaults */
} qn_call_params;
#define QN_CALL_PARAMS_INIT QN_INIT(qn_call_params)

/* qn_grammar_create_calls - Compiles a grammar of tool calls in the format of the model's chat template
 * (docs/tool-calls.md).
 *
 *   out   free it with qn_grammar_free
 *
 * Names are those of the tools, and arguments match their schemas. Unsupported keywords are an error for tools with
 * `"strict": true`, else ignored. An object with properties and without additionalProperties allows no additional ones.
 *
 * Errors are those of qn_grammar_create, and QN_ERR_UNSUPPORTED if calls of the template cannot be parsed back. */
QN_API qn_status qn_grammar_create_calls(qn_model *model, const qn_call_params *params, qn_grammar **out);

/* qn_grammar_prepare - Sorts the model's vocabulary into the tables that all constrained answers of the model share.
 * The first constrained request does so otherwise and waits: a tenth of a second for 250,000 tokens. QN_ERR_UNSUPPORTED
 * if the model's tokeniser is, QN_ERR_MEMORY. */
QN_API qn_status qn_grammar_prepare(qn_model *model);

/* qn_grammar_free - Drops the caller's reference; requests that use the grammar hold their own. NULL is allowed. */
QN_API void qn_grammar_free(qn_grammar *grammar);

#ifdef __cplusplus
}
#endif
#endif
