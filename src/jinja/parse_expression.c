/* Parses expressions, with jinja2's precedences. */
#include "jinja/parser.h"

#include "base/status.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static qn_status parse_condition(qn_parser *p, qn_node **out);
static qn_status parse_unary(qn_parser *p, bool with_filters, qn_node **out);

/* ---- Nodes ---- */

static qn_status finish(const qn_parser *p, qn_node *node, uint32_t begin)
{
    node->begin = begin;
    node->end = p->at[-1].end;
    return QN_OK;
}

static qn_status add_item(qn_parser *p, qn_node *node, qn_node *item)
{
    QN_TRY(qn_parse_grow(p, &node->items, node->n_items, sizeof *node->items));
    node->items[node->n_items++] = item;
    return QN_OK;
}

static qn_status make_binary(qn_parser *p, qn_node_kind kind, qn_operator op, qn_node *a, qn_node *b, qn_node **out)
{
    QN_TRY(qn_parse_node(p, kind, out));
    (*out)->op = op;
    (*out)->a = a;
    (*out)->b = b;
    (*out)->line = a->line;
    return finish(p, *out, a->begin);
}

/* ---- Constants ---- */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Reads an escape's `digits` hexadecimal digits. False if there are fewer or they are not a character. */
static bool read_hex(const char *from, const char *end, int digits, uint32_t *code)
{
    *code = 0;
    for (int i = 0; i < digits; i++) {
        const int digit = from + i < end ? hex_digit(from[i]) : -1;
        if (digit < 0)
            return false;
        *code = *code << 4 | (uint32_t)digit;
    }
    return *code <= 0x10FFFF && (*code < 0xD800 || *code > 0xDFFF);
}

/* Decodes an escape after its backslash. Returns the number of bytes read, 0 if it is invalid; *n_to bytes are
 * written. */
static size_t unescape(const char *from, const char *end, char *to, size_t *n_to)
{
    static const char letters[] = "abfnrtv\\'\"\n", bytes[] = "\a\b\f\n\r\t\v\\'\"";
    const char *letter = strchr(letters, *from);
    uint32_t code = 0;
    if (*from && letter) {
        *n_to = *from == '\n' ? 0 : 1;
        if (*n_to)
            to[0] = bytes[letter - letters];
        return 1;
    }
    if (*from >= '0' && *from <= '7') {
        size_t n = 0;
        for (; n < 3 && from + n < end && from[n] >= '0' && from[n] <= '7'; n++)
            code = code << 3 | (uint32_t)(from[n] - '0');
        *n_to = qn_utf8_encode(code, to);
        return n;
    }
    const int digits = *from == 'x' ? 2 : *from == 'u' ? 4 : *from == 'U' ? 8 : 0;
    if (digits) {
        if (!read_hex(from + 1, end, digits, &code))
            return 0;
        *n_to = qn_utf8_encode(code, to);
        return (size_t)digits + 1;
    }
    to[0] = '\\'; /* an unknown escape stays */
    *n_to = 1;
    return *from == 'N' ? 0 : (size_t)-1;
}

static qn_status append_string(qn_parser *p, qn_builder *b)
{
    const char *at = p->jinja->source + p->at->begin + 1, *end = p->jinja->source + p->at->end - 1;
    while (at < end) {
        const char *slash = memchr(at, '\\', (size_t)(end - at));
        const char *stop = slash ? slash : end;
        QN_TRY(qn_builder_bytes(b, at, (size_t)(stop - at), QN_FROM_TEMPLATE));
        if (!slash)
            break;
        char bytes[4];
        size_t n = 0;
        const size_t used = unescape(slash + 1, end, bytes, &n);
        if (!used)
            return qn_parse_fail(p, "a string with valid escapes");
        QN_TRY(qn_builder_bytes(b, bytes, n, QN_FROM_TEMPLATE));
        at = slash + 1 + (used == (size_t)-1 ? 0 : used);
    }
    p->at++;
    return QN_OK;
}

/* Parses a string constant. Adjacent strings are joined. */
static qn_status parse_string(qn_parser *p, qn_node **out)
{
    qn_builder b = { .arena = &p->jinja->arena };
    QN_TRY(qn_parse_node(p, QN_NODE_CONST, out));
    const uint32_t begin = p->at->begin;
    while (p->at->kind == QN_TOKEN_STRING)
        QN_TRY(append_string(p, &b));
    QN_TRY(qn_builder_finish(&b, &(*out)->value));
    QN_TRY(qn_parse_note_text(p, *out));
    return finish(p, *out, begin);
}

static qn_status parse_number(qn_parser *p, qn_node **out)
{
    char digits[64];
    size_t n = 0;
    for (uint32_t i = p->at->begin; i < p->at->end; i++) {
        if (p->jinja->source[i] == '_')
            continue;
        if (n + 1 == sizeof digits)
            return qn_parse_fail(p, "a number of fewer digits");
        digits[n++] = p->jinja->source[i];
    }
    digits[n] = 0;
    QN_TRY(qn_parse_node(p, QN_NODE_CONST, out));
    char *end;
    errno = 0;
    if (p->at->kind == QN_TOKEN_FLOAT) {
        (*out)->value = qn_value_float(strtod(digits, &end));
    } else {
        const bool has_base = n > 2 && digits[0] == '0' && strchr("xXoObB", digits[1]);
        const int base = !has_base ? 10 : strchr("xX", digits[1]) ? 16 : strchr("oO", digits[1]) ? 8 : 2;
        (*out)->value = qn_value_int(strtoll(digits + (has_base ? 2 : 0), &end, base));
        if (errno == ERANGE)
            return qn_parse_fail(p, "an integer of at most 64 bits");
    }
    if (*end)
        return qn_parse_fail(p, "a number");
    const uint32_t begin = p->at++->begin;
    return finish(p, *out, begin);
}

/* ---- Primary expressions ---- */

static bool ends_list(const qn_parser *p)
{
    return p->at->kind == QN_TOKEN_PRINT_END || p->at->kind == QN_TOKEN_BLOCK_END || qn_parse_is(p, ")");
}

/* Parses the items of a tuple after the first comma, or all of them in brackets. */
static qn_status parse_items(qn_parser *p, qn_node *node, const char *close)
{
    while (close ? !qn_parse_is(p, close) : !ends_list(p)) {
        if (node->n_items) {
            QN_TRY(qn_parse_expect(p, ","));
            if (close ? qn_parse_is(p, close) : ends_list(p))
                break;
        }
        qn_node *item;
        QN_TRY(qn_parse_expression(p, true, &item));
        QN_TRY(add_item(p, node, item));
    }
    return close ? qn_parse_expect(p, close) : QN_OK;
}

qn_status qn_parse_tuple(qn_parser *p, bool with_condition, qn_node **out)
{
    qn_node *first;
    QN_TRY(qn_parse_expression(p, with_condition, &first));
    *out = first;
    if (!qn_parse_is(p, ","))
        return QN_OK;
    QN_TRY(qn_parse_node(p, QN_NODE_TUPLE, out));
    QN_TRY(add_item(p, *out, first));
    while (qn_parse_skip(p, ",")) {
        if (ends_list(p) || qn_parse_is(p, "=") || qn_parse_is(p, "if"))
            break;
        qn_node *item;
        QN_TRY(qn_parse_expression(p, with_condition, &item));
        QN_TRY(add_item(p, *out, item));
    }
    return finish(p, *out, first->begin);
}

static qn_status parse_brackets(qn_parser *p, qn_node **out)
{
    const uint32_t begin = p->at->begin;
    if (qn_parse_skip(p, "[")) {
        QN_TRY(qn_parse_node(p, QN_NODE_LIST, out));
        QN_TRY(parse_items(p, *out, "]"));
        return finish(p, *out, begin);
    }
    QN_TRY(qn_parse_expect(p, "("));
    if (qn_parse_is(p, ")")) {
        QN_TRY(qn_parse_node(p, QN_NODE_TUPLE, out));
    } else {
        QN_TRY(qn_parse_tuple(p, true, out));
    }
    QN_TRY(qn_parse_expect(p, ")"));
    return finish(p, *out, begin);
}

static qn_status parse_dict(qn_parser *p, qn_node **out)
{
    const uint32_t begin = p->at++->begin;
    QN_TRY(qn_parse_node(p, QN_NODE_DICT, out));
    while (!qn_parse_is(p, "}")) {
        qn_node *key, *value;
        if ((*out)->n_items) {
            QN_TRY(qn_parse_expect(p, ","));
            if (qn_parse_is(p, "}"))
                break;
        }
        QN_TRY(qn_parse_expression(p, true, &key));
        QN_TRY(qn_parse_expect(p, ":"));
        QN_TRY(qn_parse_expression(p, true, &value));
        QN_TRY(add_item(p, *out, key));
        QN_TRY(add_item(p, *out, value));
    }
    QN_TRY(qn_parse_expect(p, "}"));
    return finish(p, *out, begin);
}

static void note_name(const qn_parser *p, const char *name)
{
    for (qn_node *macro = p->macro; macro; macro = macro->outer) {
        macro->uses_varargs |= !strcmp(name, "varargs");
        macro->uses_kwargs |= !strcmp(name, "kwargs");
        macro->uses_caller |= !strcmp(name, "caller");
    }
}

static qn_status parse_name(qn_parser *p, qn_node **out)
{
    static const struct {
        const char *name;
        qn_value value;
    } constants[] = {
        { "true", { .type = QN_VALUE_BOOL, .u.boolean = true } },
        { "True", { .type = QN_VALUE_BOOL, .u.boolean = true } },
        { "false", { .type = QN_VALUE_BOOL, .u.boolean = false } },
        { "False", { .type = QN_VALUE_BOOL, .u.boolean = false } },
        { "none", { .type = QN_VALUE_NONE } },
        { "None", { .type = QN_VALUE_NONE } },
    };
    const uint32_t begin = p->at->begin;
    const char *name;
    QN_TRY(qn_parse_node(p, QN_NODE_NAME, out));
    QN_TRY(qn_parse_name(p, &name));
    (*out)->name = name;
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (!strcmp(name, constants[i].name)) {
            (*out)->kind = QN_NODE_CONST;
            (*out)->value = constants[i].value;
        }
    if ((*out)->kind == QN_NODE_NAME)
        note_name(p, name);
    return finish(p, *out, begin);
}

static qn_status parse_primary(qn_parser *p, qn_node **out)
{
    switch (p->at->kind) {
    case QN_TOKEN_NAME: return parse_name(p, out);
    case QN_TOKEN_STRING: return parse_string(p, out);
    case QN_TOKEN_INT:
    case QN_TOKEN_FLOAT: return parse_number(p, out);
    default:
        if (qn_parse_is(p, "(") || qn_parse_is(p, "["))
            return parse_brackets(p, out);
        if (qn_parse_is(p, "{"))
            return parse_dict(p, out);
        return qn_parse_fail(p, "an expression");
    }
}

/* ---- Suffixes of a primary expression ---- */

static qn_status parse_part(qn_parser *p, qn_node **part)
{
    *part = NULL;
    return qn_parse_is(p, ":") || qn_parse_is(p, "]") || qn_parse_is(p, ",") ? QN_OK
                                                                             : qn_parse_expression(p, true, part);
}

/* Parses an index or a slice of a node. */
static qn_status parse_index(qn_parser *p, qn_node *of, qn_node **out, bool *is_slice)
{
    qn_node *first;
    QN_TRY(parse_part(p, &first));
    *out = first;
    *is_slice = qn_parse_is(p, ":");
    if (!first && !qn_parse_is(p, ":"))
        return qn_parse_fail(p, "a subscript");
    if (!qn_parse_skip(p, ":"))
        return QN_OK;
    QN_TRY(qn_parse_node(p, QN_NODE_SLICE, out));
    (*out)->a = of;
    (*out)->b = first;
    QN_TRY(parse_part(p, &(*out)->c));
    return qn_parse_skip(p, ":") ? parse_part(p, &(*out)->d) : QN_OK;
}

/* Adds an index to a tuple of indices. No object has an item with a slice in its index: none takes its place. */
static qn_status add_index(qn_parser *p, qn_node *tuple, qn_node *index, bool is_slice)
{
    if (is_slice) {
        QN_TRY(qn_parse_node(p, QN_NODE_CONST, &index));
        index->value.type = QN_VALUE_NONE;
    }
    return add_item(p, tuple, index);
}

/* Parses a[...] from the bracket on: one index, or none or several, which form a tuple. */
static qn_status parse_subscript(qn_parser *p, qn_node *of, qn_node **out)
{
    qn_node *index = NULL;
    bool is_slice = false;
    QN_TRY(qn_parse_expect(p, "["));
    QN_TRY(qn_parse_node(p, QN_NODE_ITEM, out));
    (*out)->a = of;
    if (!qn_parse_is(p, "]"))
        QN_TRY(parse_index(p, of, &index, &is_slice));
    (*out)->b = index;
    if (is_slice && qn_parse_is(p, "]"))
        *out = index;
    if (!index || qn_parse_is(p, ",")) {
        QN_TRY(qn_parse_node(p, QN_NODE_TUPLE, &(*out)->b));
        if (index)
            QN_TRY(add_index(p, (*out)->b, index, is_slice));
        while (qn_parse_skip(p, ",")) {
            QN_TRY(parse_index(p, of, &index, &is_slice));
            QN_TRY(add_index(p, (*out)->b, index, is_slice));
        }
    }
    QN_TRY(qn_parse_expect(p, "]"));
    return finish(p, *out, of->begin);
}

/* Parses .name or .0 after an expression. */
static qn_status parse_attribute(qn_parser *p, qn_node *of, qn_node **out)
{
    QN_TRY(qn_parse_expect(p, "."));
    if (p->at->kind == QN_TOKEN_INT) {
        QN_TRY(qn_parse_node(p, QN_NODE_ITEM, out));
        (*out)->a = of;
        QN_TRY(parse_number(p, &(*out)->b));
        return finish(p, *out, of->begin);
    }
    QN_TRY(qn_parse_node(p, QN_NODE_ATTRIBUTE, out));
    (*out)->a = of;
    QN_TRY(qn_parse_name(p, &(*out)->name));
    return finish(p, *out, of->begin);
}

qn_status qn_parse_call(qn_parser *p, qn_node *call)
{
    QN_TRY(qn_parse_expect(p, "("));
    bool first = true, has_keyword = false, has_stars[3] = { false };
    while (!qn_parse_is(p, ")")) {
        qn_argument argument = { 0 };
        if (!first) {
            QN_TRY(qn_parse_expect(p, ","));
            if (qn_parse_is(p, ")"))
                break;
        }
        first = false;
        if (qn_parse_skip(p, "*"))
            argument.stars = 1;
        else if (qn_parse_skip(p, "**"))
            argument.stars = 2;
        else if (p->at->kind == QN_TOKEN_NAME && p->at[1].kind == QN_TOKEN_OPERATOR &&
                 p->at[1].end - p->at[1].begin == 1 && p->jinja->source[p->at[1].begin] == '=') {
            QN_TRY(qn_parse_name(p, &argument.name));
            p->at++;
        }
        const bool is_positional = !argument.name && !argument.stars;
        if (has_stars[2] || (is_positional && (has_keyword || has_stars[1])) || (argument.stars == 1 && has_stars[1]))
            return qn_parse_fail(p, "arguments in the order a, *b, c=1, **d");
        has_keyword |= argument.name != NULL;
        has_stars[argument.stars] = true;
        QN_TRY(qn_parse_expression(p, true, &argument.value));
        QN_TRY(qn_parse_grow(p, &call->args, call->n_args, sizeof *call->args));
        call->args[call->n_args++] = argument;
    }
    return qn_parse_expect(p, ")");
}

static qn_status parse_call_of(qn_parser *p, qn_node *of, qn_node **out)
{
    QN_TRY(qn_parse_node(p, QN_NODE_CALL, out));
    (*out)->a = of;
    QN_TRY(qn_parse_call(p, *out));
    return finish(p, *out, of->begin);
}

static qn_status parse_postfix(qn_parser *p, qn_node **node)
{
    for (;;) {
        if (qn_parse_is(p, "."))
            QN_TRY(parse_attribute(p, *node, node));
        else if (qn_parse_is(p, "["))
            QN_TRY(parse_subscript(p, *node, node));
        else if (qn_parse_is(p, "("))
            QN_TRY(parse_call_of(p, *node, node));
        else
            return QN_OK;
    }
}

/* Parses the name of a filter or test. In jinja2 it may contain dots. No such filter exists here: its use fails. */
static qn_status parse_dotted_name(qn_parser *p, const char **name)
{
    const uint32_t begin = p->at->begin;
    QN_TRY(qn_parse_name(p, name));
    if (!qn_parse_is(p, "."))
        return QN_OK;
    while (qn_parse_skip(p, "."))
        QN_TRY(qn_parse_name(p, name));
    return qn_intern(p->jinja, p->jinja->source + begin, p->at[-1].end - begin, name);
}

/* Parses one filter, after the bar. */
static qn_status parse_filter(qn_parser *p, qn_node *of, qn_node **out)
{
    const uint32_t begin = of ? of->begin : p->at->begin;
    QN_TRY(qn_parse_node(p, QN_NODE_FILTER, out));
    (*out)->a = of;
    QN_TRY(parse_dotted_name(p, &(*out)->name));
    if (qn_parse_is(p, "("))
        QN_TRY(qn_parse_call(p, *out));
    return finish(p, *out, begin);
}

qn_status qn_parse_filters(qn_parser *p, qn_node *of, qn_node **out)
{
    *out = of;
    do {
        QN_TRY(parse_filter(p, *out, out));
    } while (qn_parse_skip(p, "|"));
    return QN_OK;
}

/* Whether the token begins an argument of a test, which may come without brackets. */
static bool begins_argument(const qn_parser *p)
{
    switch (p->at->kind) {
    case QN_TOKEN_NAME: return !qn_parse_is(p, "else") && !qn_parse_is(p, "or") && !qn_parse_is(p, "and");
    case QN_TOKEN_STRING:
    case QN_TOKEN_INT:
    case QN_TOKEN_FLOAT: return true;
    default: return qn_parse_is(p, "[") || qn_parse_is(p, "{");
    }
}

static qn_status parse_test(qn_parser *p, qn_node *of, qn_node **out)
{
    const bool negated = qn_parse_skip(p, "not");
    qn_node *test;
    QN_TRY(qn_parse_node(p, QN_NODE_TEST, &test));
    test->a = of;
    QN_TRY(parse_dotted_name(p, &test->name));
    if (qn_parse_is(p, "(")) {
        QN_TRY(qn_parse_call(p, test));
    } else if (begins_argument(p)) {
        if (qn_parse_is(p, "is"))
            return qn_parse_fail(p, "no test after a test");
        QN_TRY(qn_parse_grow(p, &test->args, 0, sizeof *test->args));
        QN_TRY(parse_primary(p, &test->args[0].value));
        QN_TRY(parse_postfix(p, &test->args[0].value));
        test->n_args = 1;
    }
    QN_TRY(finish(p, test, of->begin));
    *out = test;
    return negated ? make_binary(p, QN_NODE_NOT, 0, test, NULL, out) : QN_OK;
}

static qn_status parse_filters_and_tests(qn_parser *p, qn_node **node)
{
    for (;;) {
        if (qn_parse_skip(p, "|"))
            QN_TRY(parse_filter(p, *node, node));
        else if (p->at->kind == QN_TOKEN_NAME && qn_parse_skip(p, "is"))
            QN_TRY(parse_test(p, *node, node));
        else if (qn_parse_is(p, "("))
            QN_TRY(parse_call_of(p, *node, node));
        else
            return QN_OK;
    }
}

/* ---- Operators ---- */

static qn_status parse_signed(qn_parser *p, qn_node_kind kind, qn_node **out)
{
    const uint32_t begin = p->at++->begin;
    QN_TRY(qn_parse_node(p, kind, out));
    QN_TRY(parse_unary(p, false, &(*out)->a));
    return finish(p, *out, begin);
}

static qn_status parse_unary(qn_parser *p, bool with_filters, qn_node **out)
{
    if (++p->depth > QN_PARSER_MAX_DEPTH)
        return qn_parse_fail(p, "a less nested expression");
    if (qn_parse_is(p, "-"))
        QN_TRY(parse_signed(p, QN_NODE_NEGATE, out));
    else if (qn_parse_is(p, "+"))
        QN_TRY(parse_signed(p, QN_NODE_PLUS, out));
    else
        QN_TRY(parse_primary(p, out));
    QN_TRY(parse_postfix(p, out));
    if (with_filters)
        QN_TRY(parse_filters_and_tests(p, out));
    p->depth--;
    return QN_OK;
}

static qn_status parse_power(qn_parser *p, qn_node **out)
{
    QN_TRY(parse_unary(p, true, out));
    while (qn_parse_skip(p, "**")) {
        qn_node *right;
        QN_TRY(parse_unary(p, true, &right));
        QN_TRY(make_binary(p, QN_NODE_BINARY, QN_OP_POWER, *out, right, out));
    }
    return QN_OK;
}

static qn_status parse_product(qn_parser *p, qn_node **out)
{
    static const struct {
        const char *token;
        qn_operator op;
    } ops[] = { { "*", QN_OP_MULTIPLY }, { "/", QN_OP_DIVIDE }, { "//", QN_OP_FLOOR_DIVIDE }, { "%", QN_OP_MODULO } };
    QN_TRY(parse_power(p, out));
    for (size_t i = 0; i < sizeof ops / sizeof *ops;) {
        if (!qn_parse_skip(p, ops[i].token)) {
            i++;
            continue;
        }
        qn_node *right;
        QN_TRY(parse_power(p, &right));
        QN_TRY(make_binary(p, QN_NODE_BINARY, ops[i].op, *out, right, out));
        i = 0;
    }
    return QN_OK;
}

static qn_status parse_concat(qn_parser *p, qn_node **out)
{
    qn_node *first;
    QN_TRY(parse_product(p, &first));
    *out = first;
    if (!qn_parse_is(p, "~"))
        return QN_OK;
    QN_TRY(qn_parse_node(p, QN_NODE_CONCAT, out));
    QN_TRY(add_item(p, *out, first));
    while (qn_parse_skip(p, "~")) {
        qn_node *item;
        QN_TRY(parse_product(p, &item));
        QN_TRY(add_item(p, *out, item));
    }
    return finish(p, *out, first->begin);
}

static qn_status parse_sum(qn_parser *p, qn_node **out)
{
    QN_TRY(parse_concat(p, out));
    while (qn_parse_is(p, "+") || qn_parse_is(p, "-")) {
        const qn_operator op = qn_parse_skip(p, "+") ? QN_OP_ADD : QN_OP_SUBTRACT;
        if (op == QN_OP_SUBTRACT)
            p->at++;
        qn_node *right;
        QN_TRY(parse_concat(p, &right));
        QN_TRY(make_binary(p, QN_NODE_BINARY, op, *out, right, out));
    }
    return QN_OK;
}

static bool skip_comparison(qn_parser *p, qn_operator *op)
{
    static const struct {
        const char *token;
        qn_operator op;
    } ops[] = { { "==", QN_OP_EQUAL },  { "!=", QN_OP_NOT_EQUAL },     { "<", QN_OP_LESS }, { "<=", QN_OP_LESS_EQUAL },
                { ">", QN_OP_GREATER }, { ">=", QN_OP_GREATER_EQUAL }, { "in", QN_OP_IN } };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (qn_parse_skip(p, ops[i].token)) {
            *op = ops[i].op;
            return true;
        }
    const qn_template_token *next = p->at + 1;
    if (!qn_parse_is(p, "not") || next->kind != QN_TOKEN_NAME || next->end - next->begin != 2 ||
        memcmp(p->jinja->source + next->begin, "in", 2) != 0)
        return false;
    p->at += 2;
    *op = QN_OP_NOT_IN;
    return true;
}

static qn_status parse_comparison(qn_parser *p, qn_node **out)
{
    qn_node *first, *item;
    qn_operator op;
    QN_TRY(parse_sum(p, &first));
    *out = first;
    while (skip_comparison(p, &op)) {
        if (*out == first) {
            QN_TRY(qn_parse_node(p, QN_NODE_COMPARE, out));
            (*out)->a = first;
        }
        QN_TRY(parse_sum(p, &item));
        QN_TRY(qn_parse_grow(p, &(*out)->ops, (*out)->n_items, 1));
        (*out)->ops[(*out)->n_items] = (uint8_t)op;
        QN_TRY(add_item(p, *out, item));
        QN_TRY(finish(p, *out, first->begin));
    }
    return QN_OK;
}

static qn_status parse_not(qn_parser *p, qn_node **out)
{
    if (!qn_parse_is(p, "not"))
        return parse_comparison(p, out);
    if (++p->depth > QN_PARSER_MAX_DEPTH)
        return qn_parse_fail(p, "a less nested expression");
    const uint32_t begin = p->at++->begin;
    QN_TRY(qn_parse_node(p, QN_NODE_NOT, out));
    QN_TRY(parse_not(p, &(*out)->a));
    p->depth--;
    return finish(p, *out, begin);
}

static qn_status parse_and(qn_parser *p, qn_node **out)
{
    QN_TRY(parse_not(p, out));
    while (qn_parse_skip(p, "and")) {
        qn_node *right;
        QN_TRY(parse_not(p, &right));
        QN_TRY(make_binary(p, QN_NODE_AND, 0, *out, right, out));
    }
    return QN_OK;
}

static qn_status parse_or(qn_parser *p, qn_node **out)
{
    QN_TRY(parse_and(p, out));
    while (qn_parse_skip(p, "or")) {
        qn_node *right;
        QN_TRY(parse_and(p, &right));
        QN_TRY(make_binary(p, QN_NODE_OR, 0, *out, right, out));
    }
    return QN_OK;
}

static qn_status parse_condition(qn_parser *p, qn_node **out)
{
    QN_TRY(parse_or(p, out));
    while (qn_parse_skip(p, "if")) {
        qn_node *condition, *otherwise = NULL;
        QN_TRY(parse_or(p, &condition));
        if (qn_parse_skip(p, "else"))
            QN_TRY(parse_condition(p, &otherwise));
        QN_TRY(make_binary(p, QN_NODE_IF_ELSE, 0, *out, condition, out));
        (*out)->c = otherwise;
    }
    return QN_OK;
}

qn_status qn_parse_expression(qn_parser *p, bool with_condition, qn_node **out)
{
    if (++p->depth > QN_PARSER_MAX_DEPTH)
        return qn_parse_fail(p, "a less nested expression");
    QN_TRY(with_condition ? parse_condition(p, out) : parse_or(p, out));
    p->depth--;
    return QN_OK;
}
