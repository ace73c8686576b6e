/* Evaluating a chat template for one conversation: items, statements, errors. Expressions are in template_expression.c. */
#include "text/template_probe.h"

#include "base/memory.h"
#include "text/template_probe_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_TEMPLATE = 1 << 16, MAX_NESTING = 32 };

/* ---- Errors ---- */

/* Copies an excerpt as one line: control characters become spaces, and a truncated UTF-8 character is dropped. */
static void copy_excerpt(char *to, size_t capacity, const char *from, size_t n)
{
    size_t length = n < capacity - 1 ? n : capacity - 1;
    while (length < n && length > 0 && ((unsigned char)from[length] & 0xc0) == 0x80)
        length--;
    for (size_t i = 0; i < length; i++)
        to[i] = (unsigned char)from[i] < 0x20 ? ' ' : from[i];
    to[length] = '\0';
}

bool qn_probe_refuse(qn_probe *p, const char *format, ...)
{
    char written[160], what[sizeof written], where[48];
    va_list args;
    va_start(args, format);
    vsnprintf(written, sizeof written, format, args);
    va_end(args);
    copy_excerpt(what, sizeof what, written, strlen(written));
    unsigned line = 1;
    for (const char *c = p->text; c < p->tag; c++)
        line += *c == '\n';
    copy_excerpt(where, sizeof where, p->tag, (size_t)(p->end - p->tag));
    snprintf(p->problem, sizeof p->problem, "%s (line %u: '%s')", what, line, where);
    return false;
}

/* ---- Items: text, {{ output }}, {% statement %} ---- */

typedef enum item_kind { ITEM_END, ITEM_TEXT, ITEM_OUTPUT, ITEM_STATEMENT, ITEM_COMMENT } item_kind;

typedef struct item {
    item_kind kind;
    const char *from, *to;
} item;

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n';
}

static const char *find_tag(const char *at, const char *end)
{
    for (; at + 1 < end; at++)
        if (at[0] == '{' && (at[1] == '{' || at[1] == '%' || at[1] == '#'))
            return at;
    return end;
}

/* Text up to the next tag. A tag with '-' strips all white space before it; a statement or comment strips its indentation. */
static void read_text(qn_probe *p, item *out)
{
    const char *tag = find_tag(p->at, p->end), *to = tag;
    const char sign = tag + 2 < p->end ? tag[2] : '\0';
    if (tag < p->end && sign == '-') {
        while (to > p->at && is_space(to[-1]))
            to--;
    } else if (tag < p->end && tag[1] != '{' && sign != '+') {
        const char *line = tag;
        while (line > p->at && line[-1] != '\n' && is_space(line[-1]))
            line--;
        if (line > p->at ? line[-1] == '\n' : p->line_begins)
            to = line;
    }
    *out = (item){ ITEM_TEXT, p->at, to };
    p->at = tag;
}

/* The end of a tag's contents, skipping strings and brackets; NULL if there is none. */
static const char *find_tag_end(const char *at, const char *end, char closing)
{
    size_t depth = 0;
    for (; at + 1 < end; at++) {
        if (*at == '\'' || *at == '"') {
            const char quote = *at;
            for (at++; at < end && *at != quote; at++)
                at += *at == '\\' && at + 1 < end;
        } else if (depth == 0 && at[0] == closing && at[1] == '}') {
            return at;
        } else if (*at == '{' || *at == '[' || *at == '(') {
            depth++;
        } else if (*at == '}' || *at == ']' || *at == ')') {
            if (depth-- == 0)
                return NULL;
        }
    }
    return NULL;
}

static bool read_tag(qn_probe *p, item *out)
{
    p->tag = p->at;
    const char opening = p->at[1], closing = opening == '{' ? '}' : opening;
    const char *from = p->at + 2, *to;
    if (from < p->end && (*from == '-' || *from == '+'))
        from++;
    if (opening == '#')
        to = memmem(from, (size_t)(p->end - from), "#}", 2);
    else
        to = find_tag_end(from, p->end, closing);
    if (!to)
        return qn_probe_refuse(p, "a tag that does not end");
    p->at = to + 2;
    const char sign = to > from && (to[-1] == '-' || to[-1] == '+') ? *--to : '\0';
    const char *after = p->at;
    if (sign == '-') {
        while (p->at < p->end && is_space(*p->at))
            p->at++;
    } else if (sign != '+' && opening != '{' && p->at < p->end && *p->at == '\n') {
        p->at++;
    }
    p->line_begins = p->at > after && p->at[-1] == '\n';
    *out = (item){ opening == '#' ? ITEM_COMMENT : opening == '{' ? ITEM_OUTPUT : ITEM_STATEMENT, from, to };
    return true;
}

static bool next_item(qn_probe *p, item *out)
{
    *out = (item){ ITEM_END, p->at, p->at };
    if (p->at == p->end)
        return true;
    if (find_tag(p->at, p->at + 2 < p->end ? p->at + 2 : p->end) == p->at)
        return read_tag(p, out);
    read_text(p, out);
    return true;
}

/* ---- Statements ---- */

static bool put(qn_probe *p, const char *text, size_t n)
{
    if (n > sizeof p->out - p->n_out)
        return qn_probe_refuse(p, "more than %zu bytes of output", sizeof p->out);
    memcpy(p->out + p->n_out, text, n);
    p->n_out += n;
    return true;
}

static bool output(qn_probe *p)
{
    qn_probe_value v;
    if (!qn_probe_expression(p, &v) || !qn_probe_expect_end(p))
        return false;
    if (v.kind != QN_PROBE_TEXT)
        return qn_probe_refuse(p, "it prints a value that is not a string");
    return put(p, p->strings + v.at, v.n);
}

static bool condition(qn_probe *p, bool *truth)
{
    qn_probe_value v;
    return qn_probe_expression(p, &v) && qn_probe_expect_end(p) && qn_probe_truth(p, &v, truth);
}

static bool follow(qn_probe *p, bool live);

/* Whether follow() stopped at this statement. */
static bool stopped_at(const qn_probe *p, const char *word)
{
    return p->stop.n == strlen(word) && memcmp(p->stop.text, word, p->stop.n) == 0;
}

static bool follow_if(qn_probe *p, bool live)
{
    bool open = live, chosen = false; /* open: no branch has been executed yet */
    if (live && !condition(p, &chosen))
        return false;
    for (bool last = false;;) {
        open &= !chosen;
        if (!follow(p, live && chosen))
            return false;
        if (stopped_at(p, "endif"))
            return true;
        if (last || (!stopped_at(p, "elif") && !stopped_at(p, "else")))
            return qn_probe_refuse(p, "a statement that does not end an 'if'");
        last = stopped_at(p, "else");
        chosen = open;
        if (!last && open && !condition(p, &chosen))
            return false;
    }
}

/* Loops over messages only. Variables set in the body are restored after each iteration, as in Jinja. */
static bool follow_for(qn_probe *p, bool live)
{
    qn_probe_token name = { 0 };
    qn_probe_value list = { .kind = QN_PROBE_LIST, .at = p->n_messages };
    if (live) {
        if (p->in_loop)
            return qn_probe_refuse(p, "a nested loop");
        name = p->token;
        qn_probe_next_token(p);
        if (name.kind != QN_PROBE_NAME || !qn_probe_is(p, "in"))
            return qn_probe_refuse(p, "a loop over more than one name");
        qn_probe_next_token(p);
        if (!qn_probe_expression(p, &list) || !qn_probe_expect_end(p))
            return false;
        if (list.kind != QN_PROBE_LIST)
            return qn_probe_refuse(p, "a loop over something other than the messages");
    }
    const bool any = list.at < p->n_messages;
    const char *body = p->at;
    const bool line_begins = p->line_begins, in_loop = p->in_loop, loop_first = p->loop_first, loop_last = p->loop_last;
    qn_probe_variable outside[QN_PROBE_MAX_VARIABLES];
    const size_t n_outside = p->n_variables;
    memcpy(outside, p->variables, sizeof outside);
    for (size_t i = list.at; i < p->n_messages || (i == list.at && !any); i++) {
        p->at = body;
        p->line_begins = line_begins;
        if (any) {
            p->in_loop = true;
            p->loop_first = i == list.at;
            p->loop_last = i + 1 == p->n_messages;
        }
        if (any && !qn_probe_set(p, name, (qn_probe_value){ .kind = QN_PROBE_MESSAGE, .at = i }))
            return false;
        if (!follow(p, any))
            return false;
        if (!any && stopped_at(p, "else") && !live && !follow(p, false))
            return false;
        if (!stopped_at(p, "endfor"))
            return qn_probe_refuse(p, "a statement that does not end a 'for'");
        memcpy(p->variables, outside, sizeof outside);
        p->n_variables = n_outside;
    }
    p->in_loop = in_loop;
    p->loop_first = loop_first;
    p->loop_last = loop_last;
    return true;
}

static bool follow_set(qn_probe *p)
{
    const qn_probe_token name = p->token;
    qn_probe_value v;
    qn_probe_next_token(p);
    if (name.kind != QN_PROBE_NAME || !qn_probe_is(p, "="))
        return qn_probe_refuse(p, "it sets something other than one name");
    qn_probe_next_token(p);
    return qn_probe_expression(p, &v) && qn_probe_expect_end(p) && qn_probe_set(p, name, v);
}

static bool follow_statement(qn_probe *p, bool live, bool *stops)
{
    const qn_probe_token word = p->token;
    p->stop = word;
    *stops = stopped_at(p, "elif") || stopped_at(p, "else") || stopped_at(p, "endif") || stopped_at(p, "endfor");
    qn_probe_next_token(p);
    if (*stops)
        return stopped_at(p, "elif") || qn_probe_expect_end(p);
    if (stopped_at(p, "if"))
        return follow_if(p, live);
    if (stopped_at(p, "for"))
        return follow_for(p, live);
    if (stopped_at(p, "raw")) /* its body would not be parsed as tags */
        return qn_probe_refuse(p, "the statement 'raw'");
    if (!live)
        return true;
    if (stopped_at(p, "set"))
        return follow_set(p);
    return qn_probe_refuse(p, "the statement '%.*s'", (int)(word.n < 40 ? word.n : 40), word.text);
}

/* Evaluates items up to a statement that belongs to an enclosing statement, or up to the end. p->stop is that statement's
 * keyword, empty at the end; p->token is the token after it. If not live, items are skipped without evaluation. */
static bool follow(qn_probe *p, bool live)
{
    if (++p->nesting > MAX_NESTING)
        return qn_probe_refuse(p, "more than %d nested statements", MAX_NESTING);
    for (bool stops = false; !stops;) {
        item it;
        if (!next_item(p, &it))
            return false;
        p->token_at = it.from;
        p->token_end = it.to;
        if (it.kind == ITEM_OUTPUT || it.kind == ITEM_STATEMENT)
            qn_probe_next_token(p);
        if (it.kind == ITEM_END) {
            p->stop = (qn_probe_token){ 0 };
            stops = true;
        } else if (it.kind == ITEM_STATEMENT) {
            if (!follow_statement(p, live, &stops))
                return false;
        } else if (live && it.kind == ITEM_TEXT) {
            if (!put(p, it.from, (size_t)(it.to - it.from)))
                return false;
        } else if (live && it.kind == ITEM_OUTPUT) {
            if (!output(p))
                return false;
        }
    }
    p->nesting--;
    return true;
}

/* ---- The probe ---- */

qn_status qn_probe_create(qn_string text, qn_probe **out)
{
    *out = NULL;
    qn_probe *p;
    QN_TRY(qn_alloc(&p, 1, sizeof *p, "chat template"));
    const size_t n = text.length <= MAX_TEMPLATE ? text.length : 0;
    const qn_status status = qn_alloc(&p->text, n + 1, 1, "chat template");
    if (status != QN_OK) {
        qn_free(p);
        return status;
    }
    /* As Jinja: CR and CRLF become LF, and one newline at the end is removed. */
    char *to = p->text;
    for (size_t i = 0; i < n; i++) {
        const char c = text.data[i];
        if (c != '\r')
            *to++ = c;
        else if (i + 1 == n || text.data[i + 1] != '\n')
            *to++ = '\n';
        p->has_controls |= ((unsigned char)c < 0x20 && !strchr("\t\n\r", c)) || c == 0;
    }
    if (to > p->text && to[-1] == '\n')
        to--;
    p->end = to;
    p->too_long = text.length > MAX_TEMPLATE;
    *out = p;
    return QN_OK;
}

void qn_probe_free(qn_probe *p)
{
    if (!p)
        return;
    qn_free(p->text);
    qn_free(p);
}

bool qn_probe_print(qn_probe *p, const char *const *roles, size_t n, bool add_generation_prompt, qn_string *text)
{
    p->at = p->tag = p->text;
    p->line_begins = true;
    p->roles = roles;
    p->n_messages = n;
    p->add_generation_prompt = add_generation_prompt;
    p->in_loop = false;
    p->n_variables = p->n_strings = p->n_out = p->nesting = 0;
    if (p->too_long)
        return qn_probe_refuse(p, "it has more than %d bytes", MAX_TEMPLATE);
    if (p->has_controls)
        return qn_probe_refuse(p, "it has control characters");
    if (!follow(p, true))
        return false;
    if (p->stop.n)
        return qn_probe_refuse(p, "a statement '%.*s' without a beginning", (int)p->stop.n, p->stop.text);
    *text = (qn_string){ p->out, p->n_out };
    return true;
}

const char *qn_probe_problem(const qn_probe *p)
{
    return p->problem;
}
