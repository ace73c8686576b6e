/* Parses statements, and holds the helpers that all of the parser uses. */
#include "jinja/parser.h"

#include "base/status.h"
#include "jinja/frames.h"

#include <string.h>

/* ---- Tokens ---- */

qn_status qn_parse_fail(const qn_parser *p, const char *expected)
{
    const qn_template_token *t = p->at;
    if (t->kind == QN_TOKEN_END)
        return qn_fail(QN_ERR_INVALID, "chat template, line %u: the template ends, expected %s", t->line, expected);
    const char *text = p->jinja->source + t->begin;
    return qn_fail(QN_ERR_INVALID, "chat template, line %u: '%.*s', expected %s", t->line,
                   qn_shown_bytes(text, t->end - t->begin, QN_SHOWN_BYTES), text, expected);
}

bool qn_parse_is(const qn_parser *p, const char *token)
{
    const size_t n = strlen(token);
    return (p->at->kind == QN_TOKEN_NAME || p->at->kind == QN_TOKEN_OPERATOR) && p->at->end - p->at->begin == n &&
           memcmp(p->jinja->source + p->at->begin, token, n) == 0;
}

bool qn_parse_skip(qn_parser *p, const char *token)
{
    const bool is = qn_parse_is(p, token);
    p->at += is;
    return is;
}

qn_status qn_parse_expect(qn_parser *p, const char *token)
{
    return qn_parse_skip(p, token) ? QN_OK : qn_parse_fail(p, token);
}

static qn_status expect_kind(qn_parser *p, qn_token_kind kind, const char *expected)
{
    if (p->at->kind != kind)
        return qn_parse_fail(p, expected);
    p->at++;
    return QN_OK;
}

static qn_status end_tag(qn_parser *p)
{
    return expect_kind(p, QN_TOKEN_BLOCK_END, "the end of the tag");
}

qn_status qn_parse_name(qn_parser *p, const char **name)
{
    if (p->at->kind != QN_TOKEN_NAME)
        return qn_parse_fail(p, "a name");
    QN_TRY(qn_intern(p->jinja, p->jinja->source + p->at->begin, p->at->end - p->at->begin, name));
    p->at++;
    return QN_OK;
}

/* ---- Nodes ---- */

qn_status qn_parse_node(qn_parser *p, qn_node_kind kind, qn_node **out)
{
    QN_TRY(qn_arena_alloc(&p->jinja->arena, out, 1, sizeof **out));
    (*out)->kind = kind;
    (*out)->line = p->at->line;
    (*out)->begin = p->at->begin;
    (*out)->end = p->at->end;
    return QN_OK;
}

/* Grows an array by one element. Its capacity is the smallest power of two that is enough, at least 4. */
qn_status qn_parse_grow(qn_parser *p, void *array, uint32_t n, size_t size)
{
    enum { LEAST = 4 };
    if (n && (n < LEAST || (n & (n - 1))))
        return QN_OK;
    void *grown;
    QN_TRY(qn_arena_alloc(&p->jinja->arena, &grown, n ? 2 * (size_t)n : LEAST, size));
    if (n)
        memcpy(grown, *(void **)array, n * size);
    *(void **)array = grown;
    return QN_OK;
}

qn_status qn_parse_note_text(qn_parser *p, qn_node *node)
{
    struct qn_jinja *jinja = p->jinja;
    QN_TRY(qn_parse_grow(p, &jinja->texts, jinja->n_texts, sizeof *jinja->texts));
    jinja->texts[jinja->n_texts++] = node;
    return QN_OK;
}

static qn_status append(qn_parser *p, qn_body *body, qn_node *node)
{
    QN_TRY(qn_parse_grow(p, &body->nodes, body->n, sizeof *body->nodes));
    body->nodes[body->n++] = node;
    return QN_OK;
}

/* ---- Targets ---- */

static bool is_constant_name(const char *name)
{
    static const char *const names[] = { "true", "false", "none", "True", "False", "None" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i]))
            return true;
    return false;
}

static qn_status parse_target_name(qn_parser *p, bool with_attribute, qn_node **out)
{
    qn_node *of;
    QN_TRY(qn_parse_node(p, QN_NODE_NAME, &of));
    QN_TRY(qn_parse_name(p, &of->name));
    if (is_constant_name(of->name)) {
        p->at--;
        return qn_parse_fail(p, "a name that can be assigned to");
    }
    *out = of;
    if (!with_attribute || !qn_parse_skip(p, "."))
        return QN_OK;
    QN_TRY(qn_parse_node(p, QN_NODE_ATTRIBUTE, out));
    (*out)->a = of;
    return qn_parse_name(p, &(*out)->name);
}

static qn_status parse_target_tuple(qn_parser *p, qn_node *first, qn_node **out);

static qn_status parse_one_target(qn_parser *p, bool with_attribute, qn_node **out)
{
    if (!qn_parse_skip(p, "("))
        return parse_target_name(p, with_attribute, out);
    if (++p->depth > QN_PARSER_MAX_DEPTH)
        return qn_parse_fail(p, "a less nested target");
    QN_TRY(parse_one_target(p, with_attribute, out));
    if (qn_parse_is(p, ","))
        QN_TRY(parse_target_tuple(p, *out, out));
    p->depth--;
    return qn_parse_expect(p, ")");
}

static qn_status parse_target_tuple(qn_parser *p, qn_node *first, qn_node **out)
{
    QN_TRY(qn_parse_node(p, QN_NODE_TUPLE, out));
    qn_node *tuple = *out, *item = first;
    for (;;) {
        QN_TRY(qn_parse_grow(p, &tuple->items, tuple->n_items, sizeof *tuple->items));
        tuple->items[tuple->n_items++] = item;
        if (!qn_parse_skip(p, ",") || qn_parse_is(p, "in") || qn_parse_is(p, "=") || qn_parse_is(p, ")"))
            return QN_OK;
        QN_TRY(parse_one_target(p, false, &item));
    }
}

qn_status qn_parse_target(qn_parser *p, bool with_attribute, qn_node **out)
{
    QN_TRY(parse_one_target(p, with_attribute, out));
    return qn_parse_is(p, ",") ? parse_target_tuple(p, *out, out) : QN_OK;
}

/* ---- Statements ---- */

static qn_status parse_body(qn_parser *p, qn_body *body, const char *const *ends, const char **end);

/* Parses the body after a tag, up to one of its end tags, which is skipped. */
static qn_status parse_until(qn_parser *p, qn_body *body, const char *const *ends, const char **end)
{
    QN_TRY(end_tag(p));
    return parse_body(p, body, ends, end);
}

static qn_status parse_only(qn_parser *p, qn_body *body, const char *end)
{
    const char *found, *const ends[] = { end, NULL };
    QN_TRY(parse_until(p, body, ends, &found));
    return end_tag(p);
}

static qn_status parse_if(qn_parser *p, qn_node **out)
{
    static const char *const ends[] = { "endif", "else", "elif", NULL };
    qn_node *node;
    const char *found;
    QN_TRY(qn_parse_node(p, QN_NODE_IF, &node));
    *out = node;
    for (;;) {
        QN_TRY(qn_parse_tuple(p, false, &node->a));
        node->end = p->at[-1].end;
        QN_TRY(parse_until(p, &node->body, ends, &found));
        if (strcmp(found, "elif") != 0)
            break;
        qn_node *next;
        QN_TRY(qn_parse_node(p, QN_NODE_IF, &next));
        QN_TRY(append(p, &node->otherwise, next));
        node->is_elif = true;
        node = next;
    }
    return strcmp(found, "else") ? end_tag(p) : parse_only(p, &node->otherwise, "endif");
}

static qn_status parse_for(qn_parser *p, qn_node **out)
{
    static const char *const ends[] = { "endfor", "else", NULL };
    const char *found;
    QN_TRY(qn_parse_node(p, QN_NODE_FOR, out));
    qn_node *node = *out;
    QN_TRY(qn_parse_target(p, false, &node->a));
    QN_TRY(qn_parse_expect(p, "in"));
    QN_TRY(qn_parse_tuple(p, false, &node->b));
    if (qn_parse_skip(p, "if"))
        QN_TRY(qn_parse_expression(p, true, &node->c));
    if (qn_parse_is(p, "recursive"))
        return qn_fail(QN_ERR_UNSUPPORTED, "chat template, line %u: recursive loops are not supported", node->line);
    node->end = p->at[-1].end;
    p->loops++;
    QN_TRY(parse_until(p, &node->body, ends, &found));
    p->loops--;
    return strcmp(found, "else") ? end_tag(p) : parse_only(p, &node->otherwise, "endfor");
}

static qn_status parse_set(qn_parser *p, qn_node **out)
{
    QN_TRY(qn_parse_node(p, QN_NODE_SET, out));
    qn_node *node = *out;
    QN_TRY(qn_parse_target(p, true, &node->a));
    if (qn_parse_skip(p, "=")) {
        QN_TRY(qn_parse_tuple(p, true, &node->b));
        node->end = p->at[-1].end;
        return end_tag(p);
    }
    node->kind = QN_NODE_SET_BLOCK;
    if (qn_parse_skip(p, "|"))
        QN_TRY(qn_parse_filters(p, NULL, &node->b));
    return parse_only(p, &node->body, "endset");
}

static qn_status parse_parameters(qn_parser *p, qn_node *node)
{
    bool has_default = false;
    QN_TRY(qn_parse_expect(p, "("));
    while (!qn_parse_is(p, ")")) {
        if (node->n_args)
            QN_TRY(qn_parse_expect(p, ","));
        qn_argument parameter = { 0 };
        qn_node *name;
        QN_TRY(parse_target_name(p, false, &name));
        parameter.name = name->name;
        if (qn_parse_skip(p, "="))
            QN_TRY(qn_parse_expression(p, true, &parameter.value));
        else if (has_default)
            return qn_parse_fail(p, "a default value, as the parameter before has one");
        has_default = parameter.value != NULL;
        QN_TRY(qn_parse_grow(p, &node->args, node->n_args, sizeof *node->args));
        node->args[node->n_args++] = parameter;
    }
    return qn_parse_expect(p, ")");
}

/* Parses the body of a macro. break and continue in it cannot refer to loops around the macro. */
static qn_status parse_macro_body(qn_parser *p, qn_node *node, const char *end)
{
    const qn_parser outer = *p;
    node->outer = p->macro;
    p->macro = node;
    p->loops = 0;
    QN_TRY(parse_only(p, &node->body, end));
    p->macro = outer.macro;
    p->loops = outer.loops;
    return QN_OK;
}

static qn_status parse_macro(qn_parser *p, qn_node **out)
{
    qn_node *name;
    QN_TRY(qn_parse_node(p, QN_NODE_MACRO, out));
    QN_TRY(parse_target_name(p, false, &name));
    (*out)->name = name->name;
    QN_TRY(parse_parameters(p, *out));
    return parse_macro_body(p, *out, "endmacro");
}

static qn_status parse_call_block(qn_parser *p, qn_node **out)
{
    QN_TRY(qn_parse_node(p, QN_NODE_CALL_BLOCK, out));
    QN_TRY(qn_intern(p->jinja, "caller", 6, &(*out)->name));
    if (qn_parse_is(p, "("))
        QN_TRY(parse_parameters(p, *out));
    QN_TRY(qn_parse_expression(p, true, &(*out)->a));
    if ((*out)->a->kind != QN_NODE_CALL)
        return qn_parse_fail(p, "a call");
    return parse_macro_body(p, *out, "endcall");
}

static qn_status parse_filter_block(qn_parser *p, qn_node **out)
{
    QN_TRY(qn_parse_node(p, QN_NODE_FILTER_BLOCK, out));
    QN_TRY(qn_parse_filters(p, NULL, &(*out)->a));
    return parse_only(p, &(*out)->body, "endfilter");
}

static qn_status parse_with(qn_parser *p, qn_node **out)
{
    QN_TRY(qn_parse_node(p, QN_NODE_WITH, out));
    qn_node *node = *out;
    while (p->at->kind != QN_TOKEN_BLOCK_END) {
        qn_node *pair[2];
        if (node->n_items)
            QN_TRY(qn_parse_expect(p, ","));
        QN_TRY(parse_one_target(p, false, &pair[0]));
        QN_TRY(qn_parse_expect(p, "="));
        QN_TRY(qn_parse_expression(p, true, &pair[1]));
        for (int i = 0; i < 2; i++) {
            QN_TRY(qn_parse_grow(p, &node->items, node->n_items, sizeof *node->items));
            node->items[node->n_items++] = pair[i];
        }
    }
    return parse_only(p, &node->body, "endwith");
}

static qn_status parse_generation(qn_parser *p, qn_node **out)
{
    QN_TRY(qn_parse_node(p, QN_NODE_BLOCK, out));
    return parse_macro_body(p, *out, "endgeneration");
}

static qn_status parse_print(qn_parser *p, qn_node **out)
{
    QN_TRY(qn_parse_node(p, QN_NODE_PRINT, out));
    QN_TRY(qn_parse_tuple(p, true, &(*out)->a));
    return end_tag(p);
}

static qn_status parse_jump(qn_parser *p, qn_node_kind kind, qn_node **out)
{
    p->at--;
    if (!p->loops)
        return qn_parse_fail(p, "a loop around it");
    QN_TRY(qn_parse_node(p, kind, out));
    p->at++;
    return end_tag(p);
}

static qn_status parse_break(qn_parser *p, qn_node **out)
{
    return parse_jump(p, QN_NODE_BREAK, out);
}

static qn_status parse_continue(qn_parser *p, qn_node **out)
{
    return parse_jump(p, QN_NODE_CONTINUE, out);
}

/* Parses a statement, after the beginning of its tag. */
static qn_status parse_statement(qn_parser *p, qn_node **out)
{
    static const struct {
        const char *name;
        qn_status (*parse)(qn_parser *p, qn_node **out);
    } statements[] = { { "if", parse_if },
                       { "for", parse_for },
                       { "set", parse_set },
                       { "macro", parse_macro },
                       { "call", parse_call_block },
                       { "filter", parse_filter_block },
                       { "with", parse_with },
                       { "generation", parse_generation },
                       { "print", parse_print },
                       { "break", parse_break },
                       { "continue", parse_continue } };
    static const char *const unsupported[] = { "block", "extends",    "include", "import",
                                               "from",  "autoescape", "do",      "trans" };
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        if (qn_parse_is(p, statements[i].name)) {
            p->at++;
            return statements[i].parse(p, out);
        }
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++)
        if (qn_parse_is(p, unsupported[i]))
            return qn_fail(QN_ERR_UNSUPPORTED, "chat template, line %u: the tag '%s' is not supported", p->at->line,
                           unsupported[i]);
    return qn_parse_fail(p, "a tag");
}

static qn_status parse_print_tag(qn_parser *p, qn_node **out)
{
    p->at++;
    QN_TRY(qn_parse_node(p, QN_NODE_PRINT, out));
    QN_TRY(qn_parse_tuple(p, true, &(*out)->a));
    (*out)->end = p->at[-1].end;
    return expect_kind(p, QN_TOKEN_PRINT_END, "the end of the tag");
}

static qn_status parse_text(qn_parser *p, qn_node **out)
{
    QN_TRY(qn_parse_node(p, QN_NODE_TEXT, out));
    QN_TRY(qn_value_text(&p->jinja->arena, p->jinja->source + p->at->begin, p->at->end - p->at->begin, QN_FROM_TEMPLATE,
                         &(*out)->value));
    p->at++;
    return qn_parse_note_text(p, *out);
}

/* Parses statements up to a tag whose name is in `ends`, which is skipped; NULL: to the end of the template. */
static qn_status parse_body(qn_parser *p, qn_body *body, const char *const *ends, const char **end)
{
    if (++p->depth > QN_PARSER_MAX_DEPTH)
        return qn_parse_fail(p, "less nested blocks");
    while (p->at->kind != QN_TOKEN_END) {
        qn_node *node;
        if (p->at->kind == QN_TOKEN_TEXT) {
            QN_TRY(parse_text(p, &node));
        } else if (p->at->kind == QN_TOKEN_PRINT_BEGIN) {
            QN_TRY(parse_print_tag(p, &node));
        } else {
            p->at++;
            for (const char *const *e = ends; e && *e; e++)
                if (qn_parse_skip(p, *e)) {
                    p->depth--;
                    *end = *e;
                    return QN_OK;
                }
            QN_TRY(parse_statement(p, &node));
        }
        QN_TRY(append(p, body, node));
    }
    p->depth--;
    return ends ? qn_parse_fail(p, *ends) : QN_OK;
}

qn_status qn_template_parse(struct qn_jinja *jinja)
{
    qn_template_token *tokens;
    QN_TRY(qn_template_lex(&jinja->arena, jinja->source, jinja->length, &tokens));
    qn_parser p = { .jinja = jinja, .at = tokens };
    QN_TRY(parse_body(&p, &jinja->body, NULL, NULL));
    return qn_find_locals(jinja);
}
