/* Parses ECMAScript's regular expressions to expressions. */
#include "grammar/automaton.h"

#include "base/append.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/unicode_property.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CLASS = 1 << 13, MAX_COUNT = 100000, LAST_CODE = 0x10ffff };

/* The ranges of the class that is being read; its memory is used for each class. */
typedef struct class_set {
    qn_range *ranges;
    size_t n, capacity;
} class_set;

typedef struct reader {
    qn_exprs *x;
    const char *text;
    size_t n, at;
    const char *what;
    int depth, n_looks; /* groups and look-aheads that are open */
    class_set set;
    bool is_assertion;    /* of the last atom */
    uint32_t end, a_word; /* expressions, or 0: the end of the text; a text that begins with a word's character */
} reader;

static qn_status invalid(const reader *r, const char *problem)
{
    return qn_fail(QN_ERR_INVALID, "%s: %s at byte %zu of '%.*s'", r->what, problem, r->at,
                   (int)(r->n < 100 ? r->n : 100), r->text);
}

static qn_status unsupported(const reader *r, const char *thing)
{
    return qn_fail(QN_ERR_UNSUPPORTED, "%s: %s at byte %zu of '%.*s' is not supported", r->what, thing, r->at,
                   (int)(r->n < 100 ? r->n : 100), r->text);
}

static bool sees(const reader *r, const char *text)
{
    const size_t n = strlen(text);
    return r->n - r->at >= n && !memcmp(r->text + r->at, text, n);
}

static bool take(reader *r, char c)
{
    if (r->at >= r->n || r->text[r->at] != c)
        return false;
    r->at++;
    return true;
}

static qn_status take_code(reader *r, uint32_t *code)
{
    size_t bytes;
    if (r->at >= r->n)
        return invalid(r, "unexpected end");
    if (qn_utf8_next(r->text + r->at, r->n - r->at, &bytes, code) != QN_UTF8_COMPLETE)
        return invalid(r, "no UTF-8");
    r->at += bytes;
    return QN_OK;
}

static qn_status add_range(reader *r, uint32_t lo, uint32_t hi)
{
    class_set *set = &r->set;
    if (set->n == MAX_CLASS)
        return unsupported(r, "a class of so many ranges");
    QN_TRY(qn_realloc_array(&set->ranges, &set->capacity, set->n + 1, sizeof *set->ranges, "class"));
    set->ranges[set->n++] = (qn_range){ lo, hi };
    return QN_OK;
}

/* Adds ascending ranges, or what is not in them. */
static qn_status add_ranges(reader *r, const qn_range *ranges, size_t n, bool are_excluded)
{
    uint32_t next = 0;
    for (size_t i = 0; i < n; i++) {
        if (!are_excluded)
            QN_TRY(add_range(r, ranges[i].lo, ranges[i].hi));
        else if (ranges[i].lo > next)
            QN_TRY(add_range(r, next, ranges[i].lo - 1));
        next = ranges[i].hi + 1;
    }
    return are_excluded && next <= LAST_CODE ? add_range(r, next, LAST_CODE) : QN_OK;
}

/* Adds \d, \w, \s or its complement to the set. *is_named: `letter` names one of them. */
static qn_status add_named(reader *r, char letter, bool *is_named)
{
    static const qn_range digits[] = { { '0', '9' } },
                          words[] = { { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' } },
                          spaces[] = { { 9, 13 },          { ' ', ' ' },       { 0xa0, 0xa0 },     { 0x1680, 0x1680 },
                                       { 0x2000, 0x200a }, { 0x2028, 0x2029 }, { 0x202f, 0x202f }, { 0x205f, 0x205f },
                                       { 0x3000, 0x3000 }, { 0xfeff, 0xfeff } };
    static const struct {
        char letter;
        const qn_range *ranges;
        size_t n;
    } named[] = { { 'd', digits, 1 }, { 'w', words, 4 }, { 's', spaces, 10 } };
    *is_named = false;
    for (int i = 0; i < 3; i++)
        if ((letter | 0x20) == named[i].letter) {
            *is_named = true;
            return add_ranges(r, named[i].ranges, named[i].n, letter != named[i].letter);
        }
    return QN_OK;
}

/* Reads what follows \p or \P: the name of a property in braces, or of one letter. */
static qn_status take_property(reader *r, bool is_negated)
{
    char problem[100];
    const char *name = r->text + r->at, *end = name;
    size_t length = 1, n;
    const qn_code_range *codes;
    if (r->at == r->n)
        return invalid(r, "unexpected end");
    if (*name == '{') {
        if (!(end = memchr(name, '}', r->n - r->at)))
            return invalid(r, "a property without its end");
        length = (size_t)(end - ++name);
    }
    QN_TRY(qn_unicode_property(name, length, &codes, &n));
    if (!codes) {
        qn_print(problem, sizeof problem, "the property '%.*s'", (int)(length < 64 ? length : 64), name);
        return unsupported(r, problem);
    }
    r->at = (size_t)(end + 1 - r->text);
    qn_range *ranges = malloc((n + 1) * sizeof *ranges);
    if (!ranges)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory", r->what);
    for (size_t i = 0; i < n; i++)
        ranges[i] = (qn_range){ codes[i].lo, codes[i].hi };
    const qn_status status = add_ranges(r, ranges, n, is_negated);
    free(ranges);
    return status;
}

static qn_status take_hex(reader *r, int digits, uint32_t *code)
{
    *code = 0;
    for (int i = 0; i < digits; i++, r->at++) {
        const char c = r->at < r->n ? r->text[r->at] : 0;
        const int lower = c | 0x20;
        if (c >= '0' && c <= '9')
            *code = *code << 4 | (uint32_t)(c - '0');
        else if (lower >= 'a' && lower <= 'f')
            *code = *code << 4 | (uint32_t)(lower - 'a' + 10);
        else
            return invalid(r, "no hexadecimal digit");
    }
    return QN_OK;
}

static qn_status take_unicode(reader *r, uint32_t *code)
{
    if (!take(r, '{')) {
        QN_TRY(take_hex(r, 4, code));
        if (*code >= 0xd800 && *code < 0xdc00 && sees(r, "\\u")) {
            uint32_t low;
            r->at += 2;
            QN_TRY(take_hex(r, 4, &low));
            *code = 0x10000 + ((*code - 0xd800) << 10) + ((low - 0xdc00) & 0x3ff);
        }
        return QN_OK;
    }
    *code = 0;
    while (!take(r, '}')) {
        uint32_t digit;
        QN_TRY(take_hex(r, 1, &digit));
        *code = *code << 4 | digit;
        if (*code > LAST_CODE)
            return invalid(r, "no code point");
    }
    return QN_OK;
}

/* Reads what follows a backslash: one character, or a named class, which is added to the set. */
static qn_status take_escape(reader *r, uint32_t *code, bool *is_named)
{
    static const char letters[] = "nrtfv0", codes[] = "\n\r\t\f\v";
    if (r->at >= r->n)
        return invalid(r, "unexpected end");
    const char c = r->text[r->at];
    QN_TRY(add_named(r, c, is_named));
    if (*is_named) {
        r->at++;
        return QN_OK;
    }
    if ((c >= '1' && c <= '9') || c == 'k')
        return unsupported(r, "a back reference");
    if (c == 'p' || c == 'P') {
        r->at++;
        *is_named = true;
        return take_property(r, c == 'P');
    }
    const char *letter = strchr(letters, c);
    if (c && letter) {
        *code = (uint8_t)codes[letter - letters];
        r->at++;
        return QN_OK;
    }
    if (c == 'x') {
        r->at++;
        return take_hex(r, 2, code);
    }
    if (c == 'u') {
        r->at++;
        return take_unicode(r, code);
    }
    if (c == 'c') {
        r->at++;
        QN_TRY(take_code(r, code));
        *code &= 31;
        return QN_OK;
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return unsupported(r, "this escape");
    return take_code(r, code);
}

static qn_status take_class(reader *r, uint32_t *id)
{
    r->set.n = 0;
    const bool negated = take(r, '^');
    while (!take(r, ']')) {
        uint32_t lo, hi;
        bool is_named = false;
        QN_TRY(take_code(r, &lo));
        if (lo == '\\') {
            if (take(r, 'b'))
                lo = 8;
            else
                QN_TRY(take_escape(r, &lo, &is_named));
        }
        if (is_named)
            continue;
        hi = lo;
        if (r->at + 1 < r->n && r->text[r->at] == '-' && r->text[r->at + 1] != ']') {
            r->at++;
            QN_TRY(take_code(r, &hi));
            if (hi == '\\')
                QN_TRY(take_escape(r, &hi, &is_named));
            if (is_named || hi < lo)
                return invalid(r, "no range");
        }
        QN_TRY(add_range(r, lo, hi));
    }
    return qn_expr_class(r->x, r->set.ranges, r->set.n, negated, id);
}

static qn_status take_number(reader *r, uint32_t *number)
{
    *number = 0;
    if (r->at >= r->n || r->text[r->at] < '0' || r->text[r->at] > '9')
        return invalid(r, "no number");
    for (; r->at < r->n && r->text[r->at] >= '0' && r->text[r->at] <= '9'; r->at++) {
        *number = *number * 10 + (uint32_t)(r->text[r->at] - '0');
        if (*number > MAX_COUNT)
            return unsupported(r, "a count above 100000");
    }
    return QN_OK;
}

static qn_status take_quantifier(reader *r, uint32_t *id)
{
    qn_expr e = { .kind = QN_EXPR_REPEAT, .child = *id, .b = QN_UNLIMITED };
    if (r->is_assertion && r->at < r->n && strchr("*+?{", r->text[r->at]))
        return unsupported(r, "a quantifier of an assertion");
    if (take(r, '?')) {
        e.b = 1;
    } else if (take(r, '+')) {
        e.a = 1;
    } else if (take(r, '{')) {
        QN_TRY(take_number(r, &e.a));
        e.b = e.a;
        if (take(r, ',')) {
            e.b = QN_UNLIMITED;
            if (r->at < r->n && r->text[r->at] != '}')
                QN_TRY(take_number(r, &e.b));
        }
        if (!take(r, '}') || e.b < e.a)
            return invalid(r, "a malformed quantifier");
    } else if (!take(r, '*')) {
        return QN_OK;
    }
    take(r, '?');
    if (r->at < r->n && strchr("*+?{", r->text[r->at]))
        return invalid(r, "a quantifier of a quantifier");
    return qn_expr_add(r->x, e, id);
}

static qn_status take_alternatives(reader *r, bool search, uint32_t *id);

/* Makes a text of the expression, then any text. */
static qn_status followed_by_any(reader *r, uint32_t expr, uint32_t *id)
{
    uint32_t last = 0, any;
    QN_TRY(qn_expr_add(r->x, (qn_expr){ .kind = QN_EXPR_REST }, &any));
    QN_TRY(qn_expr_add(r->x, (qn_expr){ .kind = QN_EXPR_CAT }, id));
    qn_expr_append(r->x, *id, &last, expr);
    qn_expr_append(r->x, *id, &last, any);
    return QN_OK;
}

static qn_status add_assertion(reader *r, qn_expr_kind kind, bool is_negated, uint32_t child, uint32_t *id)
{
    r->is_assertion = true;
    return qn_expr_add(r->x, (qn_expr){ .kind = (uint8_t)kind, .child = child, .a = is_negated }, id);
}

/* Adds $: no character follows. */
static qn_status add_end(reader *r, uint32_t *id)
{
    if (!r->end)
        QN_TRY(qn_expr_any(r->x, 1, QN_UNLIMITED, &r->end));
    return add_assertion(r, QN_EXPR_LOOK, true, r->end, id);
}

static qn_status add_boundary(reader *r, bool is_negated, uint32_t *id)
{
    bool is_named;
    if (r->n_looks)
        return unsupported(r, "a word boundary in a look-ahead");
    if (!r->a_word) {
        uint32_t letter;
        r->set.n = 0;
        QN_TRY(add_named(r, 'w', &is_named));
        QN_TRY(qn_expr_class(r->x, r->set.ranges, r->set.n, false, &letter));
        QN_TRY(followed_by_any(r, letter, &r->a_word));
    }
    return add_assertion(r, QN_EXPR_BOUNDARY, is_negated, r->a_word, id);
}

static qn_status take_group(reader *r, uint32_t *id)
{
    const bool is_look = sees(r, "?=") || sees(r, "?!"), is_negated = sees(r, "?!");
    if (sees(r, "?<=") || sees(r, "?<!"))
        return unsupported(r, "look-behind");
    if (sees(r, "?:") || is_look)
        r->at += 2;
    else if (sees(r, "?<")) {
        while (r->at < r->n && r->text[r->at] != '>')
            r->at++;
        if (!take(r, '>'))
            return invalid(r, "a name without its end");
    } else if (sees(r, "?"))
        return unsupported(r, "this kind of group");
    if (++r->depth > QN_GRAMMAR_NESTED)
        return unsupported(r, "a group in so many groups");
    r->n_looks += is_look;
    QN_TRY(take_alternatives(r, false, id));
    r->n_looks -= is_look;
    r->depth--;
    if (!take(r, ')'))
        return invalid(r, "a missing ')'");
    r->is_assertion = false;
    if (!is_look)
        return QN_OK;
    uint32_t language;
    QN_TRY(followed_by_any(r, *id, &language));
    return add_assertion(r, QN_EXPR_LOOK, is_negated, language, id);
}

static qn_status take_atom(reader *r, uint32_t *id)
{
    static const qn_range line_ends[] = { { '\n', '\n' }, { '\r', '\r' }, { 0x2028, 0x2029 } };
    uint32_t code;
    bool is_named = false;
    r->set.n = 0;
    r->is_assertion = false;
    if (take(r, '('))
        return take_group(r, id);
    if (take(r, '['))
        return take_class(r, id);
    if (take(r, '.')) {
        QN_TRY(add_ranges(r, line_ends, 3, true));
        return qn_expr_class(r->x, r->set.ranges, r->set.n, false, id);
    }
    if (take(r, '$'))
        return add_end(r, id);
    if (r->text[r->at] == '^' && r->n_looks)
        return unsupported(r, "an anchor in a look-ahead");
    if (take(r, '^'))
        return add_assertion(r, QN_EXPR_BEGIN, false, 0, id);
    if (strchr("*+?{})]", r->text[r->at]))
        return invalid(r, "an unexpected character");
    QN_TRY(take_code(r, &code));
    if (code == '\\') {
        if (take(r, 'b'))
            return add_boundary(r, false, id);
        if (take(r, 'B'))
            return add_boundary(r, true, id);
        QN_TRY(take_escape(r, &code, &is_named));
    }
    if (!is_named)
        QN_TRY(add_range(r, code, code));
    return qn_expr_class(r->x, r->set.ranges, r->set.n, false, id);
}

static qn_status take_alternatives(reader *r, bool search, uint32_t *id)
{
    uint32_t last_alternative = 0;
    QN_TRY(qn_expr_add(r->x, (qn_expr){ .kind = QN_EXPR_ALT }, id));
    do {
        uint32_t cat, last = 0, part;
        bool is_anchored = false;
        QN_TRY(qn_expr_add(r->x, (qn_expr){ .kind = QN_EXPR_CAT }, &cat));
        qn_expr_append(r->x, *id, &last_alternative, cat);
        if (!r->depth)
            is_anchored = take(r, '^');
        if (search && !is_anchored) { /* a search skips any text */
            QN_TRY(qn_expr_any(r->x, 0, QN_UNLIMITED, &part));
            qn_expr_append(r->x, cat, &last, part);
        }
        is_anchored = false;
        while (r->at < r->n && r->text[r->at] != '|' && r->text[r->at] != ')') {
            if (!r->depth && r->text[r->at] == '$' && (r->at + 1 == r->n || r->text[r->at + 1] == '|')) {
                r->at++;
                is_anchored = true;
                break;
            }
            QN_TRY(take_atom(r, &part));
            QN_TRY(take_quantifier(r, &part));
            qn_expr_append(r->x, cat, &last, part);
        }
        if (search && !is_anchored) {
            QN_TRY(qn_expr_add(r->x, (qn_expr){ .kind = QN_EXPR_REST }, &part));
            qn_expr_append(r->x, cat, &last, part);
        }
    } while (take(r, '|'));
    return QN_OK;
}

qn_status qn_expr_regex(qn_exprs *x, const char *regex, size_t length, bool search, const char *what, uint32_t *id)
{
    reader r = { .x = x, .text = regex, .n = length, .what = what };
    const qn_status status = take_alternatives(&r, search, id);
    free(r.set.ranges);
    QN_TRY(status);
    return r.at == r.n ? QN_OK : invalid(&r, "an unexpected ')'");
}
