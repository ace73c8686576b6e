/* Expressions of a chat template: tokens, operators with Jinja's precedence, and the values of a conversation. A content is
 * one opaque byte, so that expressions that read it are detected. */
#include "text/template_probe_internal.h"

#include <string.h>

enum { MAX_DEPTH = 32 };

/* ---- Tokens ---- */

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

void qn_probe_next_token(qn_probe *p)
{
    const char *at = p->token_at, *end = p->token_end;
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\n'))
        at++;
    const char *from = at;
    qn_probe_token token = { QN_PROBE_NOTHING, from, 0 };
    if (at < end && is_letter(*at)) {
        while (at < end && (is_letter(*at) || is_digit(*at)))
            at++;
        token = (qn_probe_token){ QN_PROBE_NAME, from, (size_t)(at - from) };
    } else if (at < end && is_digit(*at)) {
        while (at < end && (is_digit(*at) || is_letter(*at) || *at == '.'))
            at++;
        token = (qn_probe_token){ QN_PROBE_NUMBER, from, (size_t)(at - from) };
    } else if (at < end && (*at == '\'' || *at == '"')) {
        for (at++; at < end && *at != *from; at++)
            at += *at == '\\' && at + 1 < end;
        token = (qn_probe_token){ QN_PROBE_STRING, from + 1, (size_t)(at - from - 1) };
        at += at < end;
    } else if (at < end) {
        at += at + 1 < end && at[1] == '=' && strchr("=!<>", *at) ? 2 : 1;
        token = (qn_probe_token){ QN_PROBE_SIGN, from, (size_t)(at - from) };
    }
    p->token = token;
    p->token_at = at;
}

static bool token_is(const qn_probe_token *token, const char *word)
{
    return token->kind != QN_PROBE_STRING && token->n == strlen(word) && memcmp(token->text, word, token->n) == 0;
}

bool qn_probe_is(const qn_probe *p, const char *word)
{
    return token_is(&p->token, word);
}

static bool take(qn_probe *p, const char *word)
{
    if (!qn_probe_is(p, word))
        return false;
    qn_probe_next_token(p);
    return true;
}

static bool refuse_token(qn_probe *p)
{
    if (p->token.kind == QN_PROBE_NOTHING)
        return qn_probe_refuse(p, "an incomplete expression");
    if (qn_probe_is(p, "|")) {
        qn_probe_next_token(p);
        return qn_probe_refuse(p, "the filter '%.*s'", (int)(p->token.n < 40 ? p->token.n : 40), p->token.text);
    }
    return qn_probe_refuse(p, "the use of '%.*s'", (int)(p->token.n < 40 ? p->token.n : 40), p->token.text);
}

bool qn_probe_expect_end(qn_probe *p)
{
    return p->token.kind == QN_PROBE_NOTHING || refuse_token(p);
}

/* ---- Values ---- */

static bool is_opaque(const qn_probe *p, const qn_probe_value *v)
{
    if (v->kind == QN_PROBE_TEXT)
        for (size_t i = 0; i < v->n; i++) {
            const unsigned char c = (unsigned char)p->strings[v->at + i];
            if (c == QN_PROBE_BOS || (c >= QN_PROBE_CONTENT && c < QN_PROBE_CONTENT + QN_PROBE_MAX_MESSAGES))
                return true;
        }
    return false;
}

bool qn_probe_truth(qn_probe *p, const qn_probe_value *v, bool *truth)
{
    if (is_opaque(p, v))
        return qn_probe_refuse(p, "a condition on a content");
    *truth = v->kind == QN_PROBE_BOOL   ? v->truth
             : v->kind == QN_PROBE_TEXT ? v->n > 0
             : v->kind == QN_PROBE_LIST ? v->at < p->n_messages
                                        : v->kind == QN_PROBE_MESSAGE || v->kind == QN_PROBE_LOOP;
    return true;
}

bool qn_probe_set(qn_probe *p, qn_probe_token name, qn_probe_value v)
{
    size_t i = 0;
    while (i < p->n_variables && (p->variables[i].n != name.n || memcmp(p->variables[i].name, name.text, name.n) != 0))
        i++;
    if (i == QN_PROBE_MAX_VARIABLES)
        return qn_probe_refuse(p, "more than %d names are set", QN_PROBE_MAX_VARIABLES);
    p->variables[i] = (qn_probe_variable){ name.text, name.n, v };
    p->n_variables += i == p->n_variables;
    return true;
}

static bool make_text(qn_probe *p, const char *text, size_t n, qn_probe_value *v)
{
    if (n > sizeof p->strings - p->n_strings)
        return qn_probe_refuse(p, "more than %zu bytes of strings", sizeof p->strings);
    *v = (qn_probe_value){ .kind = QN_PROBE_TEXT, .at = p->n_strings, .n = n };
    memcpy(p->strings + p->n_strings, text, n);
    p->n_strings += n;
    return true;
}

static bool join(qn_probe *p, qn_probe_value *a, const qn_probe_value *b)
{
    if (a->kind != QN_PROBE_TEXT || b->kind != QN_PROBE_TEXT)
        return qn_probe_refuse(p, "it concatenates a value that is not a string");
    const qn_probe_value left = *a;
    qn_probe_value right = { 0 };
    if (!make_text(p, p->strings + left.at, left.n, a) || !make_text(p, p->strings + b->at, b->n, &right))
        return false;
    a->n += right.n; /* make_text placed it directly after a */
    return true;
}

static bool string_literal(qn_probe *p, qn_probe_value *v)
{
    const char *from = p->token.text, *end = from + p->token.n;
    if (!make_text(p, from, p->token.n, v))
        return false;
    char *to = p->strings + v->at;
    for (const char *c = from; c < end; c++) {
        if (*c != '\\') {
            *to++ = *c;
            continue;
        }
        static const char escapes[] = "n\nt\t\\\\''\"\"";
        const char *found = ++c < end ? strchr(escapes, *c) : NULL;
        while (found && (found - escapes) % 2)
            found = strchr(found + 1, *c);
        if (!found || !*found)
            return qn_probe_refuse(p, "an escape in a string other than \\n, \\t, \\\\, \\' and \\\"");
        *to++ = found[1];
    }
    v->n = (size_t)(to - (p->strings + v->at));
    qn_probe_next_token(p);
    return true;
}

/* ---- Names, attributes and tests ---- */

static bool token_in(const qn_probe_token *token, const char *const *words)
{
    while (*words && !token_is(token, *words))
        words++;
    return *words;
}

static bool name(qn_probe *p, qn_probe_value *v)
{
    const qn_probe_token token = p->token;
    /* Variables that a caller of the template may set; quern sets none of them. */
    static const char *const given_as_none[] = { "none", "None", "tools", "documents", NULL };
    static const char *const not_given[] = { "enable_thinking", "custom_tools", "add_vision_id",  "reasoning_effort",
                                             "thinking",        "tool_choice",  "system_message", NULL };
    static const char *const truths[] = { "true", "True", NULL }, *const falsehoods[] = { "false", "False", NULL };
    qn_probe_next_token(p);
    for (size_t i = 0; i < p->n_variables; i++)
        if (p->variables[i].n == token.n && memcmp(p->variables[i].name, token.text, token.n) == 0) {
            *v = p->variables[i].value;
            return true;
        }
    *v = (qn_probe_value){ .kind = QN_PROBE_UNDEFINED };
    if (token_is(&token, "messages"))
        v->kind = QN_PROBE_LIST;
    else if (token_is(&token, "loop") && p->in_loop)
        v->kind = QN_PROBE_LOOP;
    else if (token_is(&token, "add_generation_prompt"))
        *v = (qn_probe_value){ .kind = QN_PROBE_BOOL, .truth = p->add_generation_prompt };
    else if (token_in(&token, truths) || token_in(&token, falsehoods))
        *v = (qn_probe_value){ .kind = QN_PROBE_BOOL, .truth = token_in(&token, truths) };
    else if (token_is(&token, "bos_token"))
        return make_text(p, (const char[]){ QN_PROBE_BOS }, 1, v);
    else if (token_in(&token, given_as_none))
        v->kind = QN_PROBE_NONE;
    else if (!token_in(&token, not_given))
        return qn_probe_refuse(p, "the use of '%.*s'", (int)(token.n < 40 ? token.n : 40), token.text);
    return true;
}

static bool attribute(qn_probe *p, qn_probe_value *v, const qn_probe_token *key)
{
    static const char *const not_given[] = { "tool_calls",        "tool_call_id", "name",      "function_call",
                                             "reasoning_content", "thinking",     "reasoning", NULL };
    const qn_probe_value of = *v;
    *v = (qn_probe_value){ .kind = QN_PROBE_UNDEFINED };
    const qn_probe_token word = { QN_PROBE_NAME, key->text, key->n };
    if (of.kind == QN_PROBE_LOOP && token_is(&word, "first")) {
        *v = (qn_probe_value){ .kind = QN_PROBE_BOOL, .truth = p->loop_first };
        return true;
    }
    if (of.kind == QN_PROBE_LOOP && token_is(&word, "last")) {
        *v = (qn_probe_value){ .kind = QN_PROBE_BOOL, .truth = p->loop_last };
        return true;
    }
    if (of.kind == QN_PROBE_MESSAGE) {
        const char content = (char)(QN_PROBE_CONTENT + of.at);
        if (token_is(&word, "role"))
            return make_text(p, p->roles[of.at], strlen(p->roles[of.at]), v);
        if (token_is(&word, "content"))
            return make_text(p, &content, 1, v);
        if (token_in(&word, not_given))
            return true;
    }
    return qn_probe_refuse(p, "the use of '%.*s' of %s", (int)(key->n < 40 ? key->n : 40), key->text,
                           of.kind == QN_PROBE_MESSAGE ? "a message"
                           : of.kind == QN_PROBE_TEXT  ? "a text"
                           : of.kind == QN_PROBE_LIST  ? "the messages"
                           : of.kind == QN_PROBE_LOOP  ? "a loop"
                                                       : "a value without attributes");
}

/* [0], [-1], [1:] of the messages, or ['key']. Other indices and the number of messages are rejected: chatml.c does not try
 * conversations that are long enough for them. */
static bool subscript(qn_probe *p, qn_probe_value *v)
{
    const qn_probe_token key = p->token;
    if (key.kind == QN_PROBE_STRING) {
        qn_probe_next_token(p);
        return (qn_probe_is(p, "]") || refuse_token(p)) && attribute(p, v, &key);
    }
    if (v->kind != QN_PROBE_LIST)
        return refuse_token(p);
    const bool minus = take(p, "-");
    const bool zero = qn_probe_is(p, "0") && !minus, one = qn_probe_is(p, "1");
    if (!zero && !one)
        return refuse_token(p);
    qn_probe_next_token(p);
    if (one && !minus) {
        if (!take(p, ":") || v->at != 0)
            return qn_probe_refuse(p, "the use of a message by its index");
        v->at = 1;
        return true;
    }
    if (v->at >= p->n_messages)
        return qn_probe_refuse(p, "the use of a message that may not exist");
    *v = (qn_probe_value){ .kind = QN_PROBE_MESSAGE, .at = zero ? v->at : p->n_messages - 1 };
    return true;
}

static bool test(qn_probe *p, qn_probe_value *v)
{
    const bool negated = take(p, "not");
    const qn_probe_kind kind = v->kind;
    bool holds;
    if (qn_probe_is(p, "defined"))
        holds = kind != QN_PROBE_UNDEFINED;
    else if (qn_probe_is(p, "undefined"))
        holds = kind == QN_PROBE_UNDEFINED;
    else if (qn_probe_is(p, "none"))
        holds = kind == QN_PROBE_NONE;
    else if (qn_probe_is(p, "string"))
        holds = kind == QN_PROBE_TEXT;
    else if (qn_probe_is(p, "true"))
        holds = kind == QN_PROBE_BOOL && v->truth;
    else if (qn_probe_is(p, "false"))
        holds = kind == QN_PROBE_BOOL && !v->truth;
    else
        return qn_probe_refuse(p, "the test 'is %.*s'", (int)(p->token.n < 40 ? p->token.n : 40), p->token.text);
    *v = (qn_probe_value){ .kind = QN_PROBE_BOOL, .truth = holds != negated };
    qn_probe_next_token(p);
    return true;
}

/* ---- Operators, from the highest precedence ---- */

static bool primary(qn_probe *p, qn_probe_value *v)
{
    if (p->token.kind == QN_PROBE_STRING)
        return string_literal(p, v);
    if (p->token.kind == QN_PROBE_NAME)
        return name(p, v);
    if (!take(p, "("))
        return refuse_token(p);
    return qn_probe_expression(p, v) && (take(p, ")") || refuse_token(p));
}

static bool postfix(qn_probe *p, qn_probe_value *v)
{
    if (!primary(p, v))
        return false;
    for (;;) {
        if (take(p, ".")) {
            const qn_probe_token key = p->token;
            if (key.kind != QN_PROBE_NAME)
                return refuse_token(p);
            qn_probe_next_token(p);
            if (!attribute(p, v, &key))
                return false;
        } else if (take(p, "[")) {
            if (!subscript(p, v) || !(take(p, "]") || refuse_token(p)))
                return false;
        } else {
            break;
        }
    }
    while (take(p, "is"))
        if (!test(p, v))
            return false;
    return true;
}

static bool sum(qn_probe *p, qn_probe_value *v)
{
    if (!postfix(p, v))
        return false;
    while (take(p, "+") || take(p, "~")) {
        qn_probe_value right = { 0 };
        if (!postfix(p, &right) || !join(p, v, &right))
            return false;
    }
    return true;
}

static bool comparison(qn_probe *p, qn_probe_value *v)
{
    if (!sum(p, v))
        return false;
    const bool equal = qn_probe_is(p, "==");
    if (!equal && !qn_probe_is(p, "!="))
        return true;
    qn_probe_next_token(p);
    qn_probe_value right = { 0 };
    if (!sum(p, &right))
        return false;
    if (is_opaque(p, v) || is_opaque(p, &right))
        return qn_probe_refuse(p, "it compares a content");
    if (v->kind > QN_PROBE_TEXT || right.kind > QN_PROBE_TEXT)
        return qn_probe_refuse(p, "it compares messages");
    bool same = v->kind == right.kind;
    if (same && v->kind == QN_PROBE_BOOL)
        same = v->truth == right.truth;
    if (same && v->kind == QN_PROBE_TEXT)
        same = v->n == right.n && memcmp(p->strings + v->at, p->strings + right.at, v->n) == 0;
    *v = (qn_probe_value){ .kind = QN_PROBE_BOOL, .truth = same == equal };
    return true;
}

static bool negation(qn_probe *p, qn_probe_value *v)
{
    bool negated = false, any = false, truth = false;
    while (take(p, "not")) {
        negated = !negated;
        any = true;
    }
    if (!comparison(p, v))
        return false;
    if (!any)
        return true;
    if (!qn_probe_truth(p, v, &truth))
        return false;
    *v = (qn_probe_value){ .kind = QN_PROBE_BOOL, .truth = truth != negated };
    return true;
}

/* Skips the right operand of an 'and' or 'or' whose result is known from the left. */
static void skip_operand(qn_probe *p, bool of_and)
{
    for (size_t depth = 0; p->token.kind != QN_PROBE_NOTHING; qn_probe_next_token(p)) {
        if (depth == 0 && (qn_probe_is(p, "or") || qn_probe_is(p, "if") || qn_probe_is(p, "else") || qn_probe_is(p, ",") ||
                           (of_and && qn_probe_is(p, "and"))))
            return;
        if (qn_probe_is(p, "(") || qn_probe_is(p, "[") || qn_probe_is(p, "{"))
            depth++;
        else if ((qn_probe_is(p, ")") || qn_probe_is(p, "]") || qn_probe_is(p, "}")) && depth-- == 0)
            return;
    }
}

static bool conjunction(qn_probe *p, qn_probe_value *v)
{
    if (!negation(p, v))
        return false;
    while (take(p, "and")) {
        bool truth = false;
        if (!qn_probe_truth(p, v, &truth))
            return false;
        if (!truth)
            skip_operand(p, true);
        else if (!negation(p, v))
            return false;
    }
    return true;
}

bool qn_probe_expression(qn_probe *p, qn_probe_value *v)
{
    if (++p->nesting > MAX_DEPTH)
        return qn_probe_refuse(p, "more than %d nested brackets", MAX_DEPTH);
    if (!conjunction(p, v))
        return false;
    while (take(p, "or")) {
        bool truth = false;
        if (!qn_probe_truth(p, v, &truth))
            return false;
        if (truth)
            skip_operand(p, false);
        else if (!conjunction(p, v))
            return false;
    }
    p->nesting--;
    return true;
}
