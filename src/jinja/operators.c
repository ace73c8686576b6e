/* Python's binary operators. Integers have 64 bits; overflow is an error. */
#include "base/memory.h"
#include "base/status.h"
#include "jinja/search.h"

#include <math.h>

static const char *symbol_of(qn_operator op)
{
    static const char *const symbols[] = { "+", "-", "*", "/", "//", "%", "**" };
    return symbols[op];
}

static qn_status fail_types(const qn_run *r, qn_operator op, const qn_value *a, const qn_value *b)
{
    return qn_run_fail(r, "%s %s %s is not possible", qn_value_type_name(a), symbol_of(op), qn_value_type_name(b));
}

static qn_status fail_overflow(const qn_run *r)
{
    return qn_run_fail(r, "the result has more than 64 bits");
}

/* ---- Numbers ---- */

static bool power_of_integers(int64_t base, int64_t exponent, int64_t *out)
{
    int64_t result = 1;
    while (exponent > 0) {
        if (exponent & 1 && __builtin_mul_overflow(result, base, &result))
            return false;
        exponent >>= 1;
        if (exponent && __builtin_mul_overflow(base, base, &base))
            return false;
    }
    *out = result;
    return true;
}

static int64_t floor_divide(int64_t a, int64_t b)
{
    const int64_t q = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

static qn_status apply_to_integers(const qn_run *r, qn_operator op, int64_t a, int64_t b, qn_value *out)
{
    int64_t result = 0;
    bool fits = true;
    switch (op) {
    case QN_OP_ADD: fits = !__builtin_add_overflow(a, b, &result); break;
    case QN_OP_SUBTRACT: fits = !__builtin_sub_overflow(a, b, &result); break;
    case QN_OP_MULTIPLY: fits = !__builtin_mul_overflow(a, b, &result); break;
    case QN_OP_POWER: fits = power_of_integers(a, b, &result); break;
    default:
        fits = b != -1 || a != INT64_MIN;
        if (fits)
            result = op == QN_OP_MODULO ? a - floor_divide(a, b) * b : floor_divide(a, b);
        break;
    }
    *out = qn_value_int(result);
    return fits ? QN_OK : fail_overflow(r);
}

/* Computes Python's modulo of floats, which has the sign of the divisor. */
static double modulo(double a, double b)
{
    const double m = fmod(a, b);
    return m != 0 ? ((b < 0) != (m < 0) ? m + b : m) : copysign(0.0, b);
}

/* Uses CPython's order of operations, since others round differently. */
static double floor_divide_reals(double a, double b)
{
    const double rest = fmod(a, b), quotient = (a - rest) / b - (rest != 0 && (b < 0) != (rest < 0)),
                 floored = floor(quotient);
    if (quotient == 0)
        return copysign(0.0, a / b);
    return quotient - floored > 0.5 ? floored + 1 : floored;
}

static qn_status apply_to_reals(const qn_run *r, qn_operator op, double a, double b, qn_value *out)
{
    double result = 0;
    switch (op) {
    case QN_OP_ADD: result = a + b; break;
    case QN_OP_SUBTRACT: result = a - b; break;
    case QN_OP_MULTIPLY: result = a * b; break;
    case QN_OP_DIVIDE: result = a / b; break;
    case QN_OP_FLOOR_DIVIDE: result = floor_divide_reals(a, b); break;
    case QN_OP_MODULO: result = modulo(a, b); break;
    default:
        if (a < 0 && b != floor(b))
            return qn_run_fail(r, "the result is a complex number");
        result = pow(a, b);
        if (isinf(result) && !isinf(a) && !isinf(b))
            return fail_overflow(r);
        break;
    }
    *out = qn_value_float(result);
    return QN_OK;
}

static qn_status apply_to_numbers(const qn_run *r, qn_operator op, const qn_value *a, const qn_value *b, qn_value *out)
{
    const bool divides = op == QN_OP_DIVIDE || op == QN_OP_FLOOR_DIVIDE || op == QN_OP_MODULO;
    const double divisor = qn_real_of(b);
    if ((divides && divisor == 0) || (op == QN_OP_POWER && qn_real_of(a) == 0 && divisor < 0))
        return qn_run_fail(r, "division by zero");
    const bool integers =
        qn_is_integer(a) && qn_is_integer(b) && op != QN_OP_DIVIDE && !(op == QN_OP_POWER && divisor < 0);
    return integers ? apply_to_integers(r, op, qn_integer_of(a), qn_integer_of(b), out)
                    : apply_to_reals(r, op, qn_real_of(a), divisor, out);
}

/* ---- Sequences ---- */

/* Joins two strings. A safe string escapes the string joined to it. */
static qn_status add_strings(qn_run *r, const qn_value *a, const qn_value *b, qn_value *out)
{
    qn_builder builder = { .arena = &r->arena };
    qn_value left = *a, right = *b;
    if (a->safe || b->safe) {
        QN_TRY(qn_escape_html(r, a, &left));
        QN_TRY(qn_escape_html(r, b, &right));
    }
    QN_TRY(qn_run_work(r, (left.u.string->length + right.u.string->length) / QN_COPIED_PER_STEP));
    QN_TRY(qn_builder_string(&builder, &left));
    QN_TRY(qn_builder_string(&builder, &right));
    QN_TRY(qn_builder_finish(&builder, out));
    out->safe = a->safe || b->safe;
    return QN_OK;
}

static qn_status add_lists(qn_run *r, const qn_value *a, const qn_value *b, qn_value *out)
{
    const qn_list *const lists[] = { a->u.list, b->u.list };
    QN_TRY(qn_run_work(r, lists[0]->n + lists[1]->n));
    QN_TRY(qn_value_sequence(&r->arena, a->type, lists[0]->n + lists[1]->n, out));
    for (int i = 0; i < 2; i++)
        for (size_t j = 0; j < lists[i]->n; j++)
            QN_TRY(qn_list_append(&r->arena, out->u.list, lists[i]->items[j]));
    return QN_OK;
}

static qn_status repeat(qn_run *r, const qn_value *v, int64_t times, qn_value *out)
{
    const size_t n = qn_is_string(v) ? v->u.string->length : v->u.list->n, count = times > 0 ? (size_t)times : 0;
    size_t total;
    if (!qn_mul_size(n ? n : 1, count, &total))
        return qn_run_fail(r, "a sequence of %zu times %zu is too long", count, n);
    QN_TRY(qn_run_work(r, qn_is_string(v) ? total / QN_COPIED_PER_STEP : total));
    if (qn_is_string(v)) {
        qn_builder builder = { .arena = &r->arena };
        QN_TRY(qn_builder_repeat(&builder, v, count));
        QN_TRY(qn_builder_finish(&builder, out));
        out->safe = v->safe;
        return QN_OK;
    }
    QN_TRY(qn_value_sequence(&r->arena, v->type, n ? total : 0, out));
    for (size_t i = 0; i < count && n; i++)
        for (size_t j = 0; j < n; j++)
            QN_TRY(qn_list_append(&r->arena, out->u.list, v->u.list->items[j]));
    return QN_OK;
}

static bool is_sequence(const qn_value *v)
{
    return qn_is_string(v) || v->type == QN_VALUE_LIST || v->type == QN_VALUE_TUPLE;
}

qn_status qn_apply_operator(qn_run *r, qn_operator op, const qn_value *a, const qn_value *b, qn_value *out)
{
    if (qn_is_number(a) && qn_is_number(b))
        return apply_to_numbers(r, op, a, b, out);
    if (op == QN_OP_ADD && a->type == b->type && is_sequence(a))
        return qn_is_string(a) ? add_strings(r, a, b, out) : add_lists(r, a, b, out);
    if (op == QN_OP_MULTIPLY && is_sequence(a) && qn_is_integer(b))
        return repeat(r, a, qn_integer_of(b), out);
    if (op == QN_OP_MULTIPLY && is_sequence(b) && qn_is_integer(a))
        return repeat(r, b, qn_integer_of(a), out);
    if (op == QN_OP_MODULO && qn_is_string(a))
        return qn_format_percent(r, a, b, out);
    return fail_types(r, op, a, b);
}

/* ---- in ---- */

qn_status qn_contains(qn_run *r, const qn_value *container, const qn_value *item, bool *out)
{
    qn_search search;
    *out = false;
    switch (container->type) {
    case QN_VALUE_STRING:
        QN_TRY(qn_want_string(r, item, "what is searched in a string"));
        QN_TRY(qn_run_work(r, container->u.string->length / QN_READ_PER_STEP));
        QN_TRY(qn_search_init(r, item->u.string, false, &search));
        *out = qn_search_first(&search, container->u.string->data, container->u.string->length) != QN_NOWHERE;
        return QN_OK;
    case QN_VALUE_DICT:
        QN_TRY(qn_want_key(r, item));
        *out = qn_dict_find(container->u.dict, item) != NULL;
        return QN_OK;
    default: {
        const qn_value *items;
        size_t n;
        QN_TRY(qn_items_of(r, container, &items, &n));
        QN_TRY(qn_run_work(r, n));
        for (size_t i = 0; i < n && !*out; i++) {
            QN_TRY(qn_run_compare(r, &items[i], item));
            *out = qn_value_equal(&items[i], item);
        }
        return QN_OK;
    }
    }
}
