/* quern: output that fits a JSON schema, a regular expression, one of some texts, or a grammar.
 *
 *     qn_grammar *grammar;
 *     qn_grammar_create(model, QN_GRAMMAR_SCHEMA, schema, strlen(schema), &grammar);
 *     params.grammar = grammar; (of qn_generate or of a request)
 *     ...
 *     qn_grammar_free(grammar);
 *
 * Every answer is then text of the grammar, or, where it ended early, the beginning of one. docs/constrained-output.md
 * says what of schemas is supported, which spellings of JSON an output has, and how tokens are sampled.
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
    QN_GRAMMAR_SCHEMA_STRICT, /* the same; they are QN_ERR_UNSUPPORTED */
    QN_GRAMMAR_JSON,          /* any JSON object; without text */
    QN_GRAMMAR_REGEX,         /* a regular expression of the whole output, ECMAScript's with the u flag */
    QN_GRAMMAR_GBNF           /* a grammar in llama.cpp's syntax, without token literals; from the rule `root` */
} qn_grammar_kind;

/* How JSON under a schema is written. */
typedef enum qn_json_space {
    QN_JSON_SPACE_DEFAULT, /* as Python's json.dumps: one space after a colon and a comma */
    QN_JSON_SPACE_INDENT,  /* as json.dumps with indent=2: a line for each member and item, two spaces a level */
    QN_JSON_SPACE_COMPACT, /* none */
    QN_JSON_SPACE_ANY      /* between two tokens nothing, one space, or a line end and at most 20 spaces or tabs */
} qn_json_space;

typedef enum qn_json_order {
    QN_JSON_ORDER_SCHEMA, /* properties in the order of the schema, then those that it does not name */
    QN_JSON_ORDER_ANY
} qn_json_order;

typedef struct qn_json_style {
    size_t size; /* set by QN_JSON_STYLE_INIT */
    qn_json_space space;
    qn_json_order order;
} qn_json_style;
#define QN_JSON_STYLE_INIT QN_INIT(qn_json_style)

/* qn_grammar_create - compile a grammar, or find it among those that the model has kept.
 *
 *   model    keeps the last compiled grammars, at most 256 and 64 MiB. The grammar can be used with other models, and
 *            may outlive this one
 *   text     [length] of the kind, UTF-8; not kept
 *   out      free it with qn_grammar_free
 *
 * Compilation takes a bounded number of steps: a text that exceeds them is refused in milliseconds. So do masks: an
 * answer under a grammar that is too ambiguous for them, or that no token of the vocabulary can follow, ends with
 * QN_ERR_UNSUPPORTED; the error has the byte of the answer and the rule, of a schema the path.
 *
 * QN_ERR_INVALID       the text is not of the kind, or no output fits it; the error has the place
 * QN_ERR_UNSUPPORTED   a feature that is not supported, or the text is too large
 * QN_ERR_MEMORY        not enough memory */
QN_API qn_status qn_grammar_create(qn_model *model, qn_grammar_kind kind, const char *text, size_t length,
                                   qn_grammar **out);

/* qn_grammar_create_in - the same; kept grammars are those of a scope, as prefixes of qn_request_params.scope are. What
 * one scope has compiled is compiled again for another: the time it takes tells nothing of what others use. NULL: the
 * scope "", which qn_grammar_create and qn_grammar_create_choices have.
 *
 *   style   of JSON and schemas; NULL: the defaults */
QN_API qn_status qn_grammar_create_in(qn_model *model, const char *scope, const qn_json_style *style,
                                      qn_grammar_kind kind, const char *text, size_t length, qn_grammar **out);

/* qn_grammar_create_choices - the same of a list of texts, one of which is the output.
 *
 *   choices   [n_choices] zero-terminated UTF-8, n_choices >= 1 */
QN_API qn_status qn_grammar_create_choices(qn_model *model, const char *const *choices, size_t n_choices,
                                           qn_grammar **out);

/* qn_grammar_create_choices_in - the same, of a scope as in qn_grammar_create_in. */
QN_API qn_status qn_grammar_create_choices_in(qn_model *model, const char *scope, const char *const *choices,
                                              size_t n_choices, qn_grammar **out);

typedef struct qn_call_params {
    size_t size;       /* set by QN_CALL_PARAMS_INIT */
    const char *tools; /* [length] JSON, an array as that of a conversation */
    size_t length;
    const char *name;   /* the only function that may be called; NULL: any */
    bool is_required;   /* the answer is calls: use it with QN_GRAMMAR_AFTER_REASONING. Else it may be text, up to the
                           first call if   one comes: use it with QN_GRAMMAR_AT_CALL */
    bool is_single;     /* at most one call; always so in the form llama3 */
    const char *format; /* [format_length] a JSON schema: the answer is calls, or content that fits it. NULL: none. Not
                           with is_required; use it with QN_GRAMMAR_AFTER_REASONING */
    size_t format_length;
    bool is_format_strict;      /* keywords of it that are not supported are QN_ERR_UNSUPPORTED */
    const char *scope;          /* as in qn_grammar_create_in */
    const qn_json_style *style; /* of arguments and of the format; NULL: the defaults */
} qn_call_params;
#define QN_CALL_PARAMS_INIT QN_INIT(qn_call_params)

/* qn_grammar_create_calls - the same of tool calls in the form of the model's chat template (docs/tool-calls.md).
 *
 * Names are those of the tools, arguments fit their schemas. Keywords that are not supported are an error for tools
 * with `"strict": true`, else ignored. Objects that have properties and do not say whether there are additional ones
 * have none.
 *
 * QN_ERR_UNSUPPORTED also if the template has no calls that can be parsed back */
QN_API qn_status qn_grammar_create_calls(qn_model *model, const qn_call_params *params, qn_grammar **out);

/* qn_grammar_free - drop the caller's reference; requests that use the grammar have their own. NULL is allowed. */
QN_API void qn_grammar_free(qn_grammar *grammar);

#ifdef __cplusplus
}
#endif
#endif
