/* The parser's state, shared by parser.c (statements) and parse_expression.c. */
#ifndef QN_JINJA_PARSER_H
#define QN_JINJA_PARSER_H

#include "jinja/ast.h"
#include "jinja/lexer.h"

enum { QN_PARSER_MAX_DEPTH = 150 };

typedef struct qn_parser {
    struct qn_jinja *jinja;
    const qn_template_token *at; /* the current token */
    unsigned depth;              /* of expressions and statements within one another */
    unsigned loops;              /* loops around the current statement, within the innermost macro */
    qn_node *macro;              /* the innermost macro or call block, or NULL */
} qn_parser;

/* qn_parse_fail - QN_ERR_INVALID with the line of the current token, and what is there. */
qn_status qn_parse_fail(const qn_parser *p, const char *expected);

qn_status qn_parse_node(qn_parser *p, qn_node_kind kind, qn_node **out);

/* Whether the current token is this operator or name; qn_parse_skip also goes on to the next token then. */
bool qn_parse_is(const qn_parser *p, const char *token);
bool qn_parse_skip(qn_parser *p, const char *token);
qn_status qn_parse_expect(qn_parser *p, const char *token);

/* qn_parse_name - an interned name. */
qn_status qn_parse_name(qn_parser *p, const char **name);

/* Grows an array in the arena by one place: of nodes, of arguments. */
qn_status qn_parse_grow(qn_parser *p, void *array, uint32_t n, size_t size);

/* qn_parse_note_text - add a text or a string constant to those of the template. */
qn_status qn_parse_note_text(qn_parser *p, qn_node *node);

/* qn_parse_expression - with_condition: `a if b else c` is allowed. */
qn_status qn_parse_expression(qn_parser *p, bool with_condition, qn_node **out);

/* qn_parse_tuple - one expression, or several with commas, which are a tuple. */
qn_status qn_parse_tuple(qn_parser *p, bool with_condition, qn_node **out);

/* qn_parse_target - what is assigned to: a name, an attribute of a name if `with_attribute`, or a tuple of names. */
qn_status qn_parse_target(qn_parser *p, bool with_attribute, qn_node **out);

/* qn_parse_filters - `name(args) | ...` after the operator or the tag that begins them; applied to `of`, which may be NULL. */
qn_status qn_parse_filters(qn_parser *p, qn_node *of, qn_node **out);

/* qn_template_parse - the body of a template from its source. */
qn_status qn_template_parse(struct qn_jinja *jinja);

/* qn_parse_call - the arguments of a call, from the bracket on. */
qn_status qn_parse_call(qn_parser *p, qn_node *call);

#endif
