/* Expressions of JSON's numbers between two bounds, digit by digit. */
#include "text/grammar/automaton.h"

#include <string.h>

/* Numbers are compared by magnitude: a negative number lies between the bounds if its magnitude lies between theirs. */
typedef struct limit {
    bool present, exclusive;
    const char *integer, *fraction;
} limit;

static qn_status digits(qn_exprs *x, char lo, char hi, uint32_t *id)
{
    qn_range range = { (uint32_t)lo, (uint32_t)hi };
    return qn_expr_class(x, &range, 1, false, id);
}

static qn_status free_digits(qn_exprs *x, uint32_t min, uint32_t max, uint32_t *id)
{
    uint32_t digit;
    QN_TRY(digits(x, '0', '9', &digit));
    return qn_expr_add(x, (qn_expr){ .kind = QN_EXPR_REPEAT, .child = digit, .a = min, .b = max }, id);
}

static qn_status pair(qn_exprs *x, qn_expr_kind kind, uint32_t a, uint32_t b, uint32_t *id)
{
    uint32_t last = 0;
    QN_TRY(qn_expr_add(x, (qn_expr){ .kind = kind }, id));
    qn_expr_append(x, *id, &last, a);
    qn_expr_append(x, *id, &last, b);
    return QN_OK;
}

static qn_status empty(qn_exprs *x, uint32_t *id)
{
    return qn_expr_add(x, (qn_expr){ .kind = QN_EXPR_EMPTY }, id);
}

static qn_status nothing(qn_exprs *x, uint32_t *id)
{
    return qn_expr_add(x, (qn_expr){ .kind = QN_EXPR_ALT }, id);
}

/* Digits behind the point, from `at` on, whose bounds have been equal so far. `lo` and `hi` are NULL where the bound is not
 * equal any more. `any_yet`: a digit was written. */
static qn_status fraction(qn_exprs *x, const limit *lo, const limit *hi, size_t at, bool any_yet, uint32_t *id)
{
    const char *l = lo ? lo->fraction : "", *h = hi ? hi->fraction : "";
    const size_t n_l = strlen(l), n_h = strlen(h);
    uint32_t last = 0, part, digit;
    if (!lo && !hi)
        return free_digits(x, any_yet ? 0 : 1, QN_UNLIMITED, id);
    QN_TRY(qn_expr_add(x, (qn_expr){ .kind = QN_EXPR_ALT }, id));
    /* The number ends: it is its prefix with zeros behind. */
    const bool low_ok = !lo || (at >= n_l && !lo->exclusive), high_ok = !hi || at < n_h || !hi->exclusive;
    if (any_yet && low_ok && high_ok) {
        QN_TRY(empty(x, &part));
        qn_expr_append(x, *id, &last, part);
    }
    if (at >= n_l && at >= n_h) { /* behind both: zeros only, or for the lower bound anything */
        if (hi && (hi->exclusive || (lo && lo->exclusive)))
            return QN_OK;
        uint32_t zero, zeros;
        QN_TRY(digits(x, '0', '0', &zero));
        QN_TRY(qn_expr_add(x, (qn_expr){ .kind = QN_EXPR_REPEAT, .child = zero, .a = any_yet ? 0 : 1, .b = QN_UNLIMITED },
                           &zeros));
        if (hi) {
            qn_expr_append(x, *id, &last, zeros);
            return QN_OK;
        }
        if (!lo->exclusive) {
            QN_TRY(free_digits(x, any_yet ? 0 : 1, QN_UNLIMITED, &part));
        } else {
            uint32_t more, rest, any_zeros;
            QN_TRY(digits(x, '1', '9', &digit));
            QN_TRY(free_digits(x, 0, QN_UNLIMITED, &more));
            QN_TRY(pair(x, QN_EXPR_CAT, digit, more, &rest));
            QN_TRY(digits(x, '0', '0', &zero));
            QN_TRY(qn_expr_add(x, (qn_expr){ .kind = QN_EXPR_REPEAT, .child = zero, .b = QN_UNLIMITED }, &any_zeros));
            QN_TRY(pair(x, QN_EXPR_CAT, any_zeros, rest, &part));
        }
        qn_expr_append(x, *id, &last, part);
        return QN_OK;
    }
    const char low = lo ? (at < n_l ? l[at] : '0') : '0', high = hi ? (at < n_h ? h[at] : '0') : '9';
    for (char c = low; c <= high; c++) {
        uint32_t rest;
        char end = c;
        const bool is_low = lo && c == low, is_high = hi && c == high;
        if (!is_low && !is_high)
            end = (char)(hi ? high - 1 : high);
        QN_TRY(digits(x, c, end, &digit));
        QN_TRY(fraction(x, is_low ? lo : NULL, is_high ? hi : NULL, at + 1, true, &rest));
        QN_TRY(pair(x, QN_EXPR_CAT, digit, rest, &part));
        qn_expr_append(x, *id, &last, part);
        c = end;
    }
    return QN_OK;
}

/* What follows the integer part: nothing or a fraction. */
static qn_status tail(qn_exprs *x, bool integer, const limit *lo, const limit *hi, uint32_t *id)
{
    const bool low_ok = !lo || (!*lo->fraction && !lo->exclusive), high_ok = !hi || *hi->fraction || !hi->exclusive;
    uint32_t none, point, part;
    QN_TRY(low_ok && high_ok ? empty(x, &none) : nothing(x, &none));
    *id = none;
    if (integer)
        return QN_OK;
    QN_TRY(digits(x, '.', '.', &point));
    QN_TRY(fraction(x, lo, hi, 0, false, &part));
    QN_TRY(pair(x, QN_EXPR_CAT, point, part, &part));
    return pair(x, QN_EXPR_ALT, none, part, id);
}

/* Integer parts of as many digits as the bounds have, from digit `at` on, and what follows. `n`: digits in all. */
static qn_status integers(qn_exprs *x, bool integer, const limit *lo, const limit *hi, size_t n, size_t at, uint32_t *id)
{
    if (at == n)
        return tail(x, integer, lo, hi, id);
    uint32_t last = 0, digit, rest, part;
    if (!lo && !hi) {
        QN_TRY(free_digits(x, (uint32_t)(n - at), (uint32_t)(n - at), &digit));
        QN_TRY(tail(x, integer, NULL, NULL, &rest));
        return pair(x, QN_EXPR_CAT, digit, rest, id);
    }
    const char first = !at && n > 1 ? '1' : '0', low = lo ? lo->integer[at] : first, high = hi ? hi->integer[at] : '9';
    QN_TRY(qn_expr_add(x, (qn_expr){ .kind = QN_EXPR_ALT }, id));
    for (char c = low; c <= high; c++) {
        const bool is_low = lo && c == low, is_high = hi && c == high;
        const char end = is_low || is_high ? c : (char)(hi ? high - 1 : high);
        QN_TRY(digits(x, c, end, &digit));
        QN_TRY(integers(x, integer, is_low ? lo : NULL, is_high ? hi : NULL, n, at + 1, &rest));
        QN_TRY(pair(x, QN_EXPR_CAT, digit, rest, &part));
        qn_expr_append(x, *id, &last, part);
        c = end;
    }
    return QN_OK;
}

/* Magnitudes from lo to hi. */
static qn_status magnitudes(qn_exprs *x, bool integer, const limit *lo, const limit *hi, uint32_t *id)
{
    const size_t n_lo = lo->present ? strlen(lo->integer) : 1, n_hi = hi->present ? strlen(hi->integer) : n_lo;
    uint32_t last = 0, part;
    QN_TRY(qn_expr_add(x, (qn_expr){ .kind = QN_EXPR_ALT }, id));
    for (size_t n = n_lo; n <= n_hi; n++) {
        uint32_t first, rest, more;
        const limit *l = lo->present && n == n_lo ? lo : NULL, *h = hi->present && n == n_hi ? hi : NULL;
        if (l || h || n == 1) {
            QN_TRY(integers(x, integer, l, h, n, 0, &part));
        } else {
            QN_TRY(digits(x, '1', '9', &first));
            QN_TRY(integers(x, integer, NULL, NULL, n, 1, &rest));
            QN_TRY(pair(x, QN_EXPR_CAT, first, rest, &part));
        }
        qn_expr_append(x, *id, &last, part);
        if (n < n_hi || hi->present)
            continue;
        QN_TRY(digits(x, '1', '9', &first));
        QN_TRY(free_digits(x, (uint32_t)n, QN_UNLIMITED, &more));
        QN_TRY(pair(x, QN_EXPR_CAT, first, more, &part));
        QN_TRY(tail(x, integer, NULL, NULL, &rest));
        QN_TRY(pair(x, QN_EXPR_CAT, part, rest, &part));
        qn_expr_append(x, *id, &last, part);
    }
    return QN_OK;
}

static bool is_zero(const qn_bound *b)
{
    return !strcmp(b->integer, "0") && !*b->fraction;
}

qn_status qn_expr_number(qn_exprs *x, bool integer, const qn_bound *min, const qn_bound *max, uint32_t *id)
{
    static const char plain[] = "-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?", plain_integer[] = "-?(0|[1-9][0-9]*)";
    const limit none = { 0 }, zero = { true, false, "0", "" };
    uint32_t last = 0, part, minus;
    if (!min->present && !max->present) {
        const char *text = integer ? plain_integer : plain;
        return qn_expr_regex(x, text, strlen(text), false, "number", id);
    }
    const limit low = { min->present, min->exclusive, min->integer, min->fraction },
                high = { max->present, max->exclusive, max->integer, max->fraction };
    QN_TRY(qn_expr_add(x, (qn_expr){ .kind = QN_EXPR_ALT }, id));
    if (!max->present || !max->negative || (is_zero(max) && !max->exclusive)) { /* 0 and above */
        const bool above = min->present && !min->negative;
        const limit top = max->negative ? zero : high;
        QN_TRY(
            magnitudes(x, integer, above || (min->present && is_zero(min)) ? &low : &none, max->present ? &top : &none, &part));
        qn_expr_append(x, *id, &last, part);
    }
    if (!min->present || min->negative) { /* below 0: magnitudes from that of max to that of min */
        const limit bottom = { true, true, "0", "" };
        const bool below = max->present && (max->negative || is_zero(max));
        QN_TRY(magnitudes(x, integer, below ? &high : &bottom, min->present ? &low : &none, &part));
        QN_TRY(digits(x, '-', '-', &minus));
        QN_TRY(pair(x, QN_EXPR_CAT, minus, part, &part));
        qn_expr_append(x, *id, &last, part);
    }
    return QN_OK;
}
