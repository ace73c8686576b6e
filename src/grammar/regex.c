/* Parses ECMAScript's regular expressions to expressions. */
#include "grammar/automaton.h"

#include "base/utf8.h"

#include <string.h>

enum { MAX_CLASS = 512, MAX_COUNT = 100000, LAST_CODE = 0x10ffff };

typedef struct reader {
    qn_exprs *x;
    const char *text;
    size_t n, at;
    const char *what;
    int depth;
} reader;

typedef struct class_set {
    qn_range ranges[MAX_CLASS];
    size_t n;
} class_set;

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

static qn_status add_range(const reader *r, class_set *set, uint32_t lo, uint32_t hi)
{
    if (set->n == MAX_CLASS)
        return unsupported(r, "a class of so many ranges");
    set->ranges[set->n++] = (qn_range){ lo, hi };
    return QN_OK;
}

/* \d, \w, \s and their complements. *is_named: `letter` names one of them; it is added to the set. */
static qn_status add_named(const reader *r, class_set *set, char letter, bool *is_named)
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
    for (int i = 0; i < 3; i++) {
        const qn_range *ranges = named[i].ranges;
        const size_t n = named[i].n;
        uint32_t next = 0;
        if ((letter | 0x20) != named[i].letter)
            continue;
        *is_named = true;
        for (size_t k = 0; k < n; k++) {
            if (letter == named[i].letter)
                QN_TRY(add_range(r, set, ranges[k].lo, ranges[k].hi));
            else if (ranges[k].lo > next)
                QN_TRY(add_range(r, set, next, ranges[k].lo - 1));
            next = ranges[k].hi + 1;
        }
        if (letter != named[i].letter)
            QN_TRY(add_range(r, set, next, LAST_CODE));
    }
    return QN_OK;
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

/* After a backslash: one character, or a named class, which is added to the set. */
static qn_status take_escape(reader *r, class_set *set, uint32_t *code, bool *is_named)
{
    static const char letters[] = "nrtfv0", codes[] = "\n\r\t\f\v";
    if (r->at >= r->n)
        return invalid(r, "unexpected end");
    const char c = r->text[r->at];
    QN_TRY(add_named(r, set, c, is_named));
    if (*is_named) {
        r->at++;
        return QN_OK;
    }
    if ((c >= '1' && c <= '9') || c == 'k')
        return unsupported(r, "a back reference");
    if (c == 'p' || c == 'P')
        return unsupported(r, "\\p");
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
    class_set set;
    set.n = 0;
    const bool negated = take(r, '^');
    while (!take(r, ']')) {
        uint32_t lo, hi;
        bool is_named = false;
        QN_TRY(take_code(r, &lo));
        if (lo == '\\') {
            if (take(r, 'b'))
                lo = 8;
            else
                QN_TRY(take_escape(r, &set, &lo, &is_named));
        }
        if (is_named)
            continue;
        hi = lo;
        if (r->at + 1 < r->n && r->text[r->at] == '-' && r->text[r->at + 1] != ']') {
            r->at++;
            QN_TRY(take_code(r, &hi));
            if (hi == '\\')
                QN_TRY(take_escape(r, &set, &hi, &is_named));
            if (is_named || hi < lo)
                return invalid(r, "no range");
        }
        QN_TRY(add_range(r, &set, lo, hi));
    }
    return qn_expr_class(r->x, set.ranges, set.n, negated, id);
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

static qn_status take_group(reader *r, uint32_t *id)
{
    if (sees(r, "?:"))
        r->at += 2;
    else if (sees(r, "?<") && !sees(r, "?<=") && !sees(r, "?<!")) {
        while (r->at < r->n && r->text[r->at] != '>')
            r->at++;
        if (!take(r, '>'))
            return invalid(r, "a name without its end");
    } else if (sees(r, "?"))
        return unsupported(r, "look-around");
    if (++r->depth > QN_GRAMMAR_NESTED)
        return unsupported(r, "a group in so many groups");
    QN_TRY(take_alternatives(r, false, id));
    r->depth--;
    return take(r, ')') ? QN_OK : invalid(r, "a missing ')'");
}

static qn_status take_atom(reader *r, uint32_t *id)
{
    static const qn_range line_ends[] = { { '\n', '\n' }, { '\r', '\r' }, { 0x2028, 0x2029 } };
    class_set set;
    uint32_t code;
    bool is_named = false;
    set.n = 0;
    if (take(r, '('))
        return take_group(r, id);
    if (take(r, '['))
        return take_class(r, id);
    if (take(r, '.')) {
        memcpy(set.ranges, line_ends, sizeof line_ends);
        return qn_expr_class(r->x, set.ranges, 3, true, id);
    }
    if (strchr("^$", r->text[r->at]))
        return unsupported(r, "an anchor inside");
    if (strchr("*+?{})]", r->text[r->at]))
        return invalid(r, "an unexpected character");
    QN_TRY(take_code(r, &code));
    if (code == '\\') {
        if (sees(r, "b") || sees(r, "B"))
            return unsupported(r, "a word boundary");
        QN_TRY(take_escape(r, &set, &code, &is_named));
    }
    if (!is_named)
        set.ranges[set.n++] = (qn_range){ code, code };
    return qn_expr_class(r->x, set.ranges, set.n, false, id);
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
            QN_TRY(qn_expr_any(r->x, 0, QN_UNLIMITED, &part));
            qn_expr_append(r->x, cat, &last, part);
        }
    } while (take(r, '|'));
    return QN_OK;
}

qn_status qn_expr_regex(qn_exprs *x, const char *regex, size_t length, bool search, const char *what, uint32_t *id)
{
    reader r = { .x = x, .text = regex, .n = length, .what = what };
    QN_TRY(take_alternatives(&r, search, id));
    return r.at == r.n ? QN_OK : invalid(&r, "an unexpected ')'");
}
