/* Splits a template into tokens as jinja2 does with trim_blocks and lstrip_blocks: a newline after a block tag or
 * comment is dropped, as are blanks between the start of a line and such a tag. `-` and `+` in tags strip more, or
 * keep the space. */
#include "jinja/lexer.h"

#include "base/status.h"
#include "base/strings.h"

#include <string.h>

enum { MAX_BRACKETS = 200 };

typedef struct lexer {
    qn_arena *arena;
    const char *source;
    size_t length, at;
    uint32_t line;
    size_t line_at; /* lines are counted up to here */
    bool at_line_start;
    qn_template_token *tokens;
    size_t n, capacity;
} lexer;

/* ---- White space ---- */

static size_t space_of_code_point(const unsigned char *p, size_t n)
{
    if (n >= 2 && p[0] == 0xC2 && (p[1] == 0x85 || p[1] == 0xA0))
        return 2;
    if (n < 3)
        return 0;
    const uint32_t code = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 8 | p[2];
    const bool is_space = code == 0xE19A80                          /* U+1680 */
                          || (code >= 0xE28080 && code <= 0xE2808A) /* U+2000 to U+200A */
                          || code == 0xE280A8 || code == 0xE280A9   /* U+2028, U+2029 */
                          || code == 0xE280AF || code == 0xE2819F   /* U+202F, U+205F */
                          || code == 0xE38080;                      /* U+3000 */
    return is_space ? 3 : 0;
}

size_t qn_space_at(const char *data, size_t length, size_t at)
{
    if (at >= length)
        return 0;
    const unsigned char *p = (const unsigned char *)data + at;
    if (*p < 0x80)
        return *p == ' ' || (*p >= 0x09 && *p <= 0x0D) || (*p >= 0x1C && *p <= 0x1F);
    return space_of_code_point(p, length - at);
}

size_t qn_space_before(const char *data, size_t at)
{
    if (at && (unsigned char)data[at - 1] < 0x80)
        return qn_space_at(data, at, at - 1);
    for (size_t n = 2; n <= 3 && n <= at; n++)
        if (qn_space_at(data, at, at - n) == n)
            return n;
    return 0;
}

static void skip_space(lexer *x)
{
    for (size_t n; (n = qn_space_at(x->source, x->length, x->at)) > 0;)
        x->at += n;
}

/* ---- Tokens ---- */

static uint32_t line_of(lexer *x, size_t at)
{
    for (; x->line_at < at; x->line_at++)
        x->line += x->source[x->line_at] == '\n';
    return x->line;
}

static qn_status fail_at(lexer *x, const char *what)
{
    return qn_fail(QN_ERR_INVALID, "chat template, line %u: %s", line_of(x, x->at), what);
}

static qn_status add(lexer *x, qn_token_kind kind, size_t begin, size_t end)
{
    if (x->n == x->capacity) {
        const size_t capacity = x->capacity ? 2 * x->capacity : 256;
        qn_template_token *tokens;
        QN_TRY(qn_arena_alloc(x->arena, &tokens, capacity, sizeof *tokens));
        if (x->n)
            memcpy(tokens, x->tokens, x->n * sizeof *tokens);
        x->tokens = tokens;
        x->capacity = capacity;
    }
    x->tokens[x->n++] =
        (qn_template_token){ .kind = kind, .begin = (uint32_t)begin, .end = (uint32_t)end, .line = line_of(x, begin) };
    return QN_OK;
}

static bool starts_with(const lexer *x, const char *what)
{
    const size_t n = strlen(what);
    return x->length - x->at >= n && memcmp(x->source + x->at, what, n) == 0;
}

/* ---- Text ---- */

/* The end of the text before a tag with this sign, without the space that the tag strips. */
static size_t strip_before_tag(const lexer *x, size_t begin, size_t end, char sign, bool is_print)
{
    if (sign == '-') {
        for (size_t n; end > begin && (n = qn_space_before(x->source, end)) > 0 && end - n >= begin;)
            end -= n;
        return end;
    }
    if (sign == '+' || is_print)
        return end;
    size_t line = end;
    while (line > begin && x->source[line - 1] != '\n')
        line--;
    if (line == begin && !x->at_line_start)
        return end;
    for (size_t at = line; at < end;) {
        const size_t n = qn_space_at(x->source, end, at);
        if (!n)
            return end;
        at += n;
    }
    return line;
}

static char sign_at(const lexer *x, size_t at)
{
    return at < x->length && (x->source[at] == '-' || x->source[at] == '+') ? x->source[at] : 0;
}

/* Skips what is stripped after the closing delimiter of a tag or a comment. */
static void strip_after_tag(lexer *x, char sign, bool is_print)
{
    if (sign == '-')
        skip_space(x);
    else if (sign != '+' && !is_print && x->at < x->length && x->source[x->at] == '\n')
        x->at++;
    x->at_line_start = x->source[x->at - 1] == '\n';
}

static qn_status add_text(lexer *x, size_t begin, size_t end)
{
    return begin < end ? add(x, QN_TOKEN_TEXT, begin, end) : QN_OK;
}

static qn_status lex_comment(lexer *x)
{
    x->at += 2 + (sign_at(x, x->at + 2) != 0);
    const char *close = qn_memmem(x->source + x->at, x->length - x->at, "#}", 2);
    if (!close)
        return fail_at(x, "a comment has no end");
    const size_t end = (size_t)(close - x->source);
    const char sign = end > x->at ? sign_at(x, end - 1) : 0;
    x->at = end + 2;
    strip_after_tag(x, sign, false);
    return QN_OK;
}

/* The length of `{% name %}` at the current position, and the sign before its end. 0: it is another tag. */
static size_t match_simple_tag(const lexer *x, const char *name, char *sign)
{
    size_t at = x->at + 2;
    at += sign_at(x, at) != 0;
    for (size_t n; (n = qn_space_at(x->source, x->length, at)) > 0;)
        at += n;
    const size_t n_name = strlen(name);
    if (x->length - at < n_name || memcmp(x->source + at, name, n_name) != 0)
        return 0;
    at += n_name;
    for (size_t n; (n = qn_space_at(x->source, x->length, at)) > 0;)
        at += n;
    *sign = sign_at(x, at);
    at += *sign != 0;
    return x->length - at >= 2 && memcmp(x->source + at, "%}", 2) == 0 ? at + 2 - x->at : 0;
}

/* Reads the text between {% raw %} and {% endraw %}. Unlike other tags, {% raw %} keeps the newline after it. */
static qn_status lex_raw(lexer *x, size_t tag_length, char sign)
{
    x->at += tag_length;
    if (sign == '-')
        skip_space(x);
    x->at_line_start = x->source[x->at - 1] == '\n';
    const size_t begin = x->at;
    for (;; x->at++) {
        const char *open = qn_memmem(x->source + x->at, x->length - x->at, "{%", 2);
        if (!open) {
            x->at = begin;
            return fail_at(x, "a raw block has no end");
        }
        x->at = (size_t)(open - x->source);
        char end_sign;
        const size_t n = match_simple_tag(x, "endraw", &end_sign);
        if (!n)
            continue;
        QN_TRY(add_text(x, begin, strip_before_tag(x, begin, x->at, sign_at(x, x->at + 2), false)));
        x->at += n;
        strip_after_tag(x, end_sign, false);
        return QN_OK;
    }
}

/* ---- Tags ---- */

static bool is_name_byte(unsigned char c)
{
    return c == '_' || c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_digit(const lexer *x, size_t at)
{
    return at < x->length && x->source[at] >= '0' && x->source[at] <= '9';
}

static void skip_digits(lexer *x)
{
    while (is_digit(x, x->at) || (x->at < x->length && x->source[x->at] == '_' && is_digit(x, x->at + 1)))
        x->at++;
}

static bool exponent_follows(const lexer *x)
{
    if (x->at >= x->length || (x->source[x->at] != 'e' && x->source[x->at] != 'E'))
        return false;
    return is_digit(x, x->at + 1) || (sign_at(x, x->at + 1) && is_digit(x, x->at + 2));
}

static qn_status lex_number(lexer *x)
{
    const size_t begin = x->at;
    if (x->source[begin] == '0' && begin + 1 < x->length && strchr("xXoObB", x->source[begin + 1])) {
        x->at += 2;
        while (x->at < x->length && is_name_byte((unsigned char)x->source[x->at]))
            x->at++;
        return add(x, QN_TOKEN_INT, begin, x->at);
    }
    qn_token_kind kind = QN_TOKEN_INT;
    const bool after_dot = begin > 0 && x->source[begin - 1] == '.'; /* x.0.name contains no float */
    skip_digits(x);
    if (!after_dot && x->at < x->length && x->source[x->at] == '.' && is_digit(x, x->at + 1)) {
        kind = QN_TOKEN_FLOAT;
        x->at++;
        skip_digits(x);
    }
    if (!after_dot && exponent_follows(x)) {
        kind = QN_TOKEN_FLOAT;
        x->at += 2;
        skip_digits(x);
    }
    if (kind == QN_TOKEN_INT && x->source[begin] == '0' && strspn(x->source + begin, "0_") < x->at - begin) {
        x->at = begin;
        return fail_at(x, "an integer begins with 0");
    }
    return add(x, kind, begin, x->at);
}

static qn_status lex_string(lexer *x)
{
    const size_t begin = x->at;
    const char quote = x->source[x->at++];
    while (x->at < x->length && x->source[x->at] != quote)
        x->at += x->source[x->at] == '\\' ? 2 : 1;
    if (x->at >= x->length) {
        x->at = begin;
        return fail_at(x, "a string has no end");
    }
    x->at++;
    return add(x, QN_TOKEN_STRING, begin, x->at);
}

static qn_status lex_operator(lexer *x, char *brackets, size_t *n_brackets)
{
    static const char *const operators[] = { "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                             "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";" };
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        if (!starts_with(x, operators[i]))
            continue;
        const char c = *operators[i];
        if (c == '(' || c == '[' || c == '{') {
            if (*n_brackets == MAX_BRACKETS)
                return fail_at(x, "brackets are nested too deep");
            brackets[(*n_brackets)++] = c == '(' ? ')' : c == '[' ? ']' : '}';
        } else if (c == ')' || c == ']' || c == '}') {
            if (!*n_brackets || brackets[--*n_brackets] != c)
                return fail_at(x, "a bracket closes that was not opened");
        }
        const size_t begin = x->at;
        x->at += strlen(operators[i]);
        return add(x, QN_TOKEN_OPERATOR, begin, x->at);
    }
    return fail_at(x, "an unexpected character in a tag");
}

/* Lexes a tag, with its delimiters. */
static qn_status lex_tag(lexer *x, bool is_print)
{
    const char *close = is_print ? "}}" : "%}";
    char brackets[MAX_BRACKETS];
    size_t n_brackets = 0;
    QN_TRY(add(x, is_print ? QN_TOKEN_PRINT_BEGIN : QN_TOKEN_BLOCK_BEGIN, x->at, x->at + 2));
    x->at += 2 + (sign_at(x, x->at + 2) != 0);
    for (;;) {
        skip_space(x);
        if (x->at >= x->length)
            return fail_at(x, "a tag has no end");
        const char c = x->source[x->at], sign = c == '-' || (c == '+' && !is_print) ? c : 0;
        const size_t end = x->at + (sign != 0);
        if (!n_brackets && x->length - end >= 2 && memcmp(x->source + end, close, 2) == 0) {
            QN_TRY(add(x, is_print ? QN_TOKEN_PRINT_END : QN_TOKEN_BLOCK_END, x->at, end + 2));
            x->at = end + 2;
            strip_after_tag(x, sign, is_print);
            return QN_OK;
        }
        if (c >= '0' && c <= '9') {
            QN_TRY(lex_number(x));
        } else if (is_name_byte((unsigned char)c)) {
            const size_t begin = x->at;
            while (x->at < x->length && is_name_byte((unsigned char)x->source[x->at]))
                x->at++;
            QN_TRY(add(x, QN_TOKEN_NAME, begin, x->at));
        } else if (c == '"' || c == '\'') {
            QN_TRY(lex_string(x));
        } else {
            QN_TRY(lex_operator(x, brackets, &n_brackets));
        }
    }
}

qn_status qn_template_lex(qn_arena *arena, const char *source, size_t length, qn_template_token **tokens)
{
    lexer x = { .arena = arena, .source = source, .length = length, .line = 1, .at_line_start = true };
    while (x.at < length) {
        const size_t begin = x.at;
        const char *open = source + begin;
        while ((open = memchr(open, '{', (size_t)(source + length - open))) &&
               (open + 1 >= source + length || !strchr("{%#", open[1]) || !open[1]))
            open++;
        if (!open) {
            QN_TRY(add_text(&x, begin, length));
            break;
        }
        x.at = (size_t)(open - source);
        const bool is_print = open[1] == '{';
        QN_TRY(add_text(&x, begin, strip_before_tag(&x, begin, x.at, sign_at(&x, x.at + 2), is_print)));
        char sign;
        const size_t raw = open[1] == '%' ? match_simple_tag(&x, "raw", &sign) : 0;
        if (raw && sign != '+')
            QN_TRY(lex_raw(&x, raw, sign));
        else
            QN_TRY(open[1] == '#' ? lex_comment(&x) : lex_tag(&x, is_print));
    }
    QN_TRY(add(&x, QN_TOKEN_END, length, length));
    *tokens = x.tokens;
    return QN_OK;
}
