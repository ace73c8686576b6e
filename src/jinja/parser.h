/* The parser's state, shared by parser.c (statements) and parse_expression.c. Nodes are allocated in the template's
 * arena, and live as long as it. One thread parses a template. */
#ifndef QN_JINJA_PARSER_H
#define QN_JINJA_PARSER_H

#include "jinja/ast.h"
#include "jinja/lexer.h"

enum { QN_PARSER_MAX_DEPTH = 150 };

typedef struct qn_parser {
    struct qn_jinja *jinja;
    const qn_template_token *at; /* the current token */
    unsigned depth;              /* nesting of expressions and statements */
    unsigned loops;              /* loops around the current statement, up to the innermost macro */
    qn_node *macro;              /* the innermost macro or call block, or NULL */
} qn_parser;

/* qn_parse_fail - QN_ERR_INVALID with the line and the text of the current token. */
qn_status qn_parse_fail(const qn_parser *p, const char *expected);

qn_status qn_parse_node(qn_parser *p, qn_node_kind kind, qn_node **out);

/* qn_parse_is - whether the current token is this operator or name. */
bool qn_parse_is(const qn_parser *p, const char *token);

/* qn_parse_skip - the same, and if so moves to the next token. */
bool qn_parse_skip(qn_parser *p, const char *token);

/* qn_parse_expect - moves over this operator or name; QN_ERR_INVALID if it is another token. */
qn_status qn_parse_expect(qn_parser *p, const char *token);

/* qn_parse_name - reads a name and interns it. */
qn_status qn_parse_name(qn_parser *p, const char **name);

/* qn_parse_grow - makes room in the arena for one more element of an array of n nodes or arguments. */
qn_status qn_parse_grow(qn_parser *p, void *array, uint32_t n, size_t size);

/* qn_parse_note_text - adds a text or a string constant to the template's list. */
qn_status qn_parse_note_text(qn_parser *p, qn_node *node);

/* qn_parse_expression - parses an expression. with_condition: `a if b else c` is allowed. */
qn_status qn_parse_expression(qn_parser *p, bool with_condition, qn_node **out);

/* qn_parse_tuple - parses an expression, or several separated by commas, which form a tuple. */
qn_status qn_parse_tuple(qn_parser *p, bool with_condition, qn_node **out);

/* qn_parse_target - parses the target of an assignment: a name, an attribute of a name if `with_attribute`, or a
 * tuple of names. */
qn_status qn_parse_target(qn_parser *p, bool with_attribute, qn_node **out);

/* qn_parse_filters - parses `name(args) | ...` after the operator or tag that introduces it. The filters apply to
 * `of`, which may be NULL. */
qn_status qn_parse_filters(qn_parser *p, qn_node *of, qn_node **out);

/* qn_template_parse - parses the source of a template to its body. */
qn_status qn_template_parse(struct qn_jinja *jinja);

/* qn_parse_call - parses the arguments of a call, from the bracket on. */
qn_status qn_parse_call(qn_parser *p, qn_node *call);

#endif
