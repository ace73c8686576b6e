/* Expressions of JSON's numbers between two bounds, made digit by digit. */
#include "grammar/automaton.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A bound with more digits than MAX_COMPARED before the point is compared only by the number of digits. */
enum { MAX_COMPARED = 24, MAX_ZEROS = 40 };

/* Bounds of magnitudes: a negative number is between two bounds if its magnitude is between theirs. */
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
    uint32_t digit = 0;
    QN_TRY(digits(x, '0', '9', &digit));
    return qn_expr_repeat(x, digit, min, max, id);
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

/* Makes the digits after the point, from `at` on. So far they equal those of the bounds; `lo` or `hi` is NULL once they
 * differ from that bound's. `any_yet`: a digit was written. */
static qn_status fraction(qn_exprs *x, const limit *lo, const limit *hi, size_t at, bool any_yet, uint32_t *id)
{
    const char *l = lo ? lo->fraction : "", *h = hi ? hi->fraction : "";
    const size_t n_l = strlen(l), n_h = strlen(h);
    uint32_t last = 0, part, digit;
    if (!lo && !hi)
        return free_digits(x, any_yet ? 0 : 1, QN_UNLIMITED, id);
    QN_TRY(qn_expr_add(x, (qn_expr){ .kind = QN_EXPR_ALT }, id));
    /* The number ends here: its further digits are zeros. */
    const bool low_ok = !lo || (at >= n_l && !lo->exclusive), high_ok = !hi || at < n_h || !hi->exclusive;
    if (any_yet && low_ok && high_ok) {
        QN_TRY(empty(x, &part));
        qn_expr_append(x, *id, &last, part);
    }
    if (at >= n_l && at >= n_h) { /* past the digits of both bounds: zeros only; without an upper bound, anything */
        if (hi && (hi->exclusive || (lo && lo->exclusive)))
            return QN_OK;
        uint32_t zero, zeros;
        QN_TRY(digits(x, '0', '0', &zero));
        QN_TRY(qn_expr_repeat(x, zero, any_yet ? 0 : 1, QN_UNLIMITED, &zeros));
        if (hi) {
            qn_expr_append(x, *id, &last, zeros);
            return QN_OK;
        }
        if (!lo->exclusive) {
            QN_TRY(free_digits(x, any_yet ? 0 : 1, QN_UNLIMITED, &part));
        } else {
            /* no more zeros than a double distinguishes from 0; if the number is greater, a double has no such
             * fraction */
            uint32_t more, rest, any_zeros;
            if (strcmp(lo->integer, "0") != 0)
                return QN_OK;
            QN_TRY(digits(x, '1', '9', &digit));
            QN_TRY(free_digits(x, 0, QN_UNLIMITED, &more));
            QN_TRY(pair(x, QN_EXPR_CAT, digit, more, &rest));
            QN_TRY(digits(x, '0', '0', &zero));
            QN_TRY(qn_expr_repeat(x, zero, 0, MAX_ZEROS, &any_zeros));
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

/* Makes the part after the integer part: nothing, or a fraction. */
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

/* Makes integer parts with as many digits as the bounds, from digit `at` on, and their fractions. `n`: total number of
 * digits. */
static qn_status integers(qn_exprs *x, bool integer, const limit *lo, const limit *hi, size_t n, size_t at,
                          uint32_t *id)
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

/* Appends to an ALT all numbers whose integer part has n_min to n_max digits. */
static qn_status append_free(qn_exprs *x, bool integer, uint32_t n_min, uint32_t n_max, uint32_t id, uint32_t *last)
{
    uint32_t first, more, rest, part;
    QN_TRY(digits(x, '1', '9', &first));
    QN_TRY(free_digits(x, n_min - 1, n_max == QN_UNLIMITED ? n_max : n_max - 1, &more));
    QN_TRY(pair(x, QN_EXPR_CAT, first, more, &part));
    QN_TRY(tail(x, integer, NULL, NULL, &rest));
    QN_TRY(pair(x, QN_EXPR_CAT, part, rest, &part));
    qn_expr_append(x, id, last, part);
    return QN_OK;
}

/* Makes magnitudes from lo to hi, without exponents. */
static qn_status magnitudes(qn_exprs *x, bool integer, const limit *lo, const limit *hi, uint32_t *id)
{
    const uint32_t n_lo = lo->present ? (uint32_t)strlen(lo->integer) : 1;
    const uint32_t n_hi = hi->present ? (uint32_t)strlen(hi->integer) : QN_UNLIMITED;
    uint32_t last = 0, part;
    QN_TRY(qn_expr_add(x, (qn_expr){ .kind = QN_EXPR_ALT }, id));
    if (n_lo > n_hi)
        return QN_OK;
    if (n_lo <= MAX_COMPARED) {
        QN_TRY(integers(x, integer, lo->present ? lo : NULL, n_lo == n_hi ? hi : NULL, n_lo, 0, &part));
        qn_expr_append(x, *id, &last, part);
    }
    if (n_hi - n_lo > 1)
        QN_TRY(append_free(x, integer, n_lo + 1, hi->present ? n_hi - 1 : QN_UNLIMITED, *id, &last));
    if (!hi->present || n_hi == n_lo || n_hi > MAX_COMPARED)
        return QN_OK;
    QN_TRY(integers(x, integer, NULL, hi, n_hi, 0, &part));
    qn_expr_append(x, *id, &last, part);
    return QN_OK;
}

/* ---- Exponents ---- */

/* A magnitude with an exponent, as JSON writers print it: a digit from 1 to 9, a fraction, and a power of ten. */
typedef struct scientific {
    char first[2], fraction[QN_BOUND_DIGITS];
    int exponent;
} scientific;

/* The smallest and the greatest double above 0. Numbers beyond are read as 0 or infinity. */
static const scientific least = { "4", "9406564584124654", -324 }, most = { "1", "7976931348623157", 308 };

/* Sets *s to the limit's value. False for 0. */
static bool normalise(const limit *l, scientific *s)
{
    char all[2 * QN_BOUND_DIGITS];
    snprintf(all, sizeof all, "%s%s", l->integer, l->fraction);
    const int zeros = (int)strspn(all, "0");
    if (!all[zeros])
        return false;
    s->exponent = (int)strlen(l->integer) - 1 - zeros;
    snprintf(s->first, sizeof s->first, "%c", all[zeros]);
    snprintf(s->fraction, sizeof s->fraction, "%.*s", QN_BOUND_DIGITS - 1, all + zeros + 1);
    for (size_t k = strlen(s->fraction); k > 0 && s->fraction[k - 1] == '0'; k--)
        s->fraction[k - 1] = 0;
    return true;
}

/* Makes exponents from lo to hi, with a sign, and with up to two leading zeros. */
static qn_status exponents(qn_exprs *x, int lo, int hi, uint32_t *id)
{
    uint32_t last = 0, part, prefix;
    QN_TRY(qn_expr_add(x, (qn_expr){ .kind = QN_EXPR_ALT }, id));
    for (int negative = 0; negative < 2; negative++) {
        char low[16], high[16];
        const char *const sign = negative ? "[eE]-0?" : "[eE]\\+?0?";
        const int from = negative ? (hi < -1 ? -hi : 1) : lo > 0 ? lo : 0, to = negative ? -lo : hi;
        if (from > to)
            continue;
        snprintf(low, sizeof low, "%d", from);
        snprintf(high, sizeof high, "%d", to);
        const limit least_digits = { true, false, low, "" }, most_digits = { true, false, high, "" };
        QN_TRY(magnitudes(x, true, &least_digits, &most_digits, &part));
        QN_TRY(qn_expr_regex(x, sign, strlen(sign), false, "exponent", &prefix));
        QN_TRY(pair(x, QN_EXPR_CAT, prefix, part, &part));
        qn_expr_append(x, *id, &last, part);
    }
    return QN_OK;
}

/* Appends to an ALT the mantissas from lo to hi, with exponents from `from` to `to`. */
static qn_status append_scientific(qn_exprs *x, const limit *lo, const limit *hi, int from, int to, uint32_t id,
                                   uint32_t *last)
{
    uint32_t mantissa, exponent, part;
    if (from > to)
        return QN_OK;
    QN_TRY(integers(x, false, lo, hi, 1, 0, &mantissa));
    QN_TRY(exponents(x, from, to, &exponent));
    QN_TRY(pair(x, QN_EXPR_CAT, mantissa, exponent, &part));
    qn_expr_append(x, id, last, part);
    return QN_OK;
}

/* Makes magnitudes from lo to hi except 0, with exponents. The mantissa is compared where the exponent equals a
 * limit's. */
static qn_status scientifics(qn_exprs *x, const limit *lo, const limit *hi, uint32_t *id)
{
    scientific low = least, high = most;
    uint32_t last = 0;
    QN_TRY(qn_expr_add(x, (qn_expr){ .kind = QN_EXPR_ALT }, id));
    const bool has_low = lo->present && normalise(lo, &low);
    if (hi->present && !normalise(hi, &high))
        return QN_OK;
    const limit one = { true, false, "1", "" };
    const limit l = { true, has_low && lo->exclusive, low.first, low.fraction };
    const limit h = { true, hi->present && hi->exclusive, high.first, high.fraction };
    if (low.exponent == high.exponent)
        return append_scientific(x, &l, &h, low.exponent, low.exponent, *id, &last);
    if (low.exponent > high.exponent)
        return QN_OK;
    QN_TRY(append_scientific(x, &l, NULL, low.exponent, low.exponent, *id, &last));
    QN_TRY(append_scientific(x, &one, NULL, low.exponent + 1, high.exponent - 1, *id, &last));
    return append_scientific(x, &one, &h, high.exponent, high.exponent, *id, &last);
}

static limit limit_of(const qn_bound *bound, const qn_decimal *decimal)
{
    return (limit){ bound->present, decimal->exclusive, decimal->integer, decimal->fraction };
}

/* Appends numbers of one sign whose magnitudes are between the bounds. lo NULL: from 0 on; hi NULL: unlimited. */
static qn_status append_signed(qn_exprs *x, bool integer, bool negative, const qn_bound *lo, const qn_bound *hi,
                               uint32_t id, uint32_t *last)
{
    const limit none = { 0 }, above_zero = { true, true, "0", "" };
    const limit from = lo         ? limit_of(lo, &lo->plain)
                       : negative ? above_zero
                                  : none,
                to = hi ? limit_of(hi, &hi->plain) : none;
    uint32_t part, with_exponent, minus;
    QN_TRY(magnitudes(x, integer, &from, &to, &part));
    if (!integer) {
        const limit l = lo ? limit_of(lo, &lo->scientific) : none, h = hi ? limit_of(hi, &hi->scientific) : none;
        QN_TRY(scientifics(x, &l, &h, &with_exponent));
        QN_TRY(pair(x, QN_EXPR_ALT, part, with_exponent, &part));
    }
    if (negative) {
        QN_TRY(digits(x, '-', '-', &minus));
        QN_TRY(pair(x, QN_EXPR_CAT, minus, part, &part));
    }
    qn_expr_append(x, id, last, part);
    return QN_OK;
}

/* Whether 0 satisfies a bound. */
static bool admits_zero(const qn_bound *b, bool is_min)
{
    const bool is_zero = !strcmp(b->plain.integer, "0") && !*b->plain.fraction;
    return !b->present || (is_zero ? !b->plain.exclusive : b->negative == is_min);
}

qn_status qn_expr_number(qn_exprs *x, bool integer, const qn_bound *min, const qn_bound *max, uint32_t *id)
{
    static const char plain[] = "-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?",
                      plain_integer[] = "-?(0|[1-9][0-9]*)", minus_zero[] = "-0(\\.0+)?";
    uint32_t last = 0, part;
    if (!min->present && !max->present) {
        const char *text = integer ? plain_integer : plain;
        return qn_expr_regex(x, text, strlen(text), false, "number", id);
    }
    QN_TRY(qn_expr_add(x, (qn_expr){ .kind = QN_EXPR_ALT }, id));
    if (!max->present || !max->negative) /* 0 and above */
        QN_TRY(append_signed(x, integer, false, min->present && !min->negative ? min : NULL, max->present ? max : NULL,
                             *id, &last));
    if (!integer && admits_zero(min, true) && admits_zero(max, false)) {
        QN_TRY(qn_expr_regex(x, minus_zero, strlen(minus_zero), false, "number", &part));
        qn_expr_append(x, *id, &last, part);
    }
    if (min->present && !min->negative)
        return QN_OK;
    /* Below 0: magnitudes from that of max to that of min. */
    return append_signed(x, integer, true, max->present && max->negative ? max : NULL, min->present ? min : NULL, *id,
                         &last);
}

/* ---- Multiples ---- */

qn_status qn_dfa_multiples(uint32_t m, const char *what, uint64_t *steps, qn_dfa *out)
{
    enum { OTHER, MINUS, FIRST_DIGIT, N_CLASSES = FIRST_DIGIT + 10 };
    enum { DEAD, START, NEGATIVE, ZERO, FIRST_REST };
    *out = (qn_dfa){ .n_states = FIRST_REST + m, .n_classes = N_CLASSES };
    *steps += (uint64_t)out->n_states * N_CLASSES / 4;
    if (*steps > QN_GRAMMAR_STEPS)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: too large for an automaton", what);
    out->next = calloc((size_t)out->n_states * N_CLASSES, sizeof *out->next);
    out->accept = calloc(out->n_states, 1);
    if (!out->next || !out->accept) {
        qn_dfa_free(out);
        return qn_fail(QN_ERR_MEMORY, "%s: no memory for an automaton", what);
    }
    out->class_of['-'] = MINUS;
    out->next[START * N_CLASSES + MINUS] = NEGATIVE;
    out->accept[ZERO] = out->accept[FIRST_REST] = true;
    for (uint32_t digit = 0; digit < 10; digit++) {
        out->class_of['0' + digit] = (uint8_t)(FIRST_DIGIT + digit);
        out->next[START * N_CLASSES + FIRST_DIGIT + digit] = digit ? FIRST_REST + digit % m : ZERO;
        out->next[NEGATIVE * N_CLASSES + FIRST_DIGIT + digit] = digit ? FIRST_REST + digit % m : ZERO;
        for (uint32_t rest = 0; rest < m; rest++)
            out->next[(size_t)(FIRST_REST + rest) * N_CLASSES + FIRST_DIGIT + digit] =
                FIRST_REST + (10 * rest + digit) % m;
    }
    return QN_OK;
}
