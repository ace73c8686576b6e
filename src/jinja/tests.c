/* The tests of `is`. */
#include "base/status.h"
#include "jinja/run.h"

#include <utf8proc.h>

#include "base/utf8.h"

#define TEST(name) static qn_status name(qn_run *r, const qn_value *self, const qn_call *call, qn_value *out)
#define UNUSED (void)r, (void)self, (void)call

static qn_status answer(qn_value *out, bool is_true)
{
    *out = qn_value_bool(is_true);
    return QN_OK;
}

TEST(is_defined)
{
    UNUSED;
    return answer(out, self->type != QN_VALUE_UNDEFINED);
}

TEST(is_undefined)
{
    UNUSED;
    return answer(out, self->type == QN_VALUE_UNDEFINED);
}

TEST(is_none)
{
    UNUSED;
    return answer(out, self->type == QN_VALUE_NONE);
}

TEST(is_true)
{
    UNUSED;
    return answer(out, self->type == QN_VALUE_BOOL && self->u.boolean);
}

TEST(is_false)
{
    UNUSED;
    return answer(out, self->type == QN_VALUE_BOOL && !self->u.boolean);
}

TEST(is_boolean)
{
    UNUSED;
    return answer(out, self->type == QN_VALUE_BOOL);
}

TEST(is_string)
{
    UNUSED;
    return answer(out, qn_is_string(self));
}

TEST(is_mapping)
{
    UNUSED;
    return answer(out, self->type == QN_VALUE_DICT);
}

/* Whether it is a value with a length and items: dicts too, and the undefined value, which is empty. */
TEST(is_sequence)
{
    UNUSED;
    return answer(out, self->type == QN_VALUE_UNDEFINED || self->type == QN_VALUE_STRING ||
                           self->type == QN_VALUE_LIST || self->type == QN_VALUE_TUPLE || self->type == QN_VALUE_DICT ||
                           self->type == QN_VALUE_RANGE);
}

TEST(is_iterable)
{
    UNUSED;
    return answer(out, self->type == QN_VALUE_UNDEFINED ||
                           (self->type >= QN_VALUE_STRING && self->type <= QN_VALUE_ITERATOR) ||
                           self->type == QN_VALUE_LOOP);
}

TEST(is_number)
{
    UNUSED;
    return answer(out, qn_is_number(self));
}

TEST(is_integer)
{
    UNUSED;
    return answer(out, self->type == QN_VALUE_INT);
}

TEST(is_float)
{
    UNUSED;
    return answer(out, self->type == QN_VALUE_FLOAT);
}

TEST(is_callable)
{
    UNUSED;
    return answer(out, self->type == QN_VALUE_FUNCTION || self->type == QN_VALUE_MACRO || self->type == QN_VALUE_LOOP ||
                           self->type == QN_VALUE_UNDEFINED);
}

TEST(is_escaped)
{
    UNUSED;
    return answer(out, qn_is_string(self) && self->safe);
}

/* Divides self by `divisor`. *rest: the remainder. */
static qn_status rest_of(qn_run *r, const qn_value *self, const qn_value *divisor, qn_value *rest)
{
    if (!qn_is_number(self) || !qn_is_number(divisor))
        return qn_run_fail(r, "%s is divided", qn_value_type_name(self));
    return qn_apply_operator(r, QN_OP_MODULO, self, divisor, rest);
}

static qn_status rest_is(qn_run *r, const qn_value *self, const qn_value *divisor, int64_t wanted, qn_value *out)
{
    const qn_value expected = qn_value_int(wanted);
    qn_value rest;
    QN_TRY(rest_of(r, self, divisor, &rest));
    return answer(out, qn_value_equal(&rest, &expected));
}

TEST(is_odd)
{
    UNUSED;
    const qn_value two = qn_value_int(2);
    return rest_is(r, self, &two, 1, out);
}

TEST(is_even)
{
    UNUSED;
    const qn_value two = qn_value_int(2);
    return rest_is(r, self, &two, 0, out);
}

TEST(is_divisible)
{
    return rest_is(r, self, call->bound[0], 0, out);
}

TEST(is_equal)
{
    QN_TRY(qn_run_compare(r, self, call->bound[0]));
    return answer(out, qn_value_equal(self, call->bound[0]));
}

TEST(is_not_equal)
{
    QN_TRY(qn_run_compare(r, self, call->bound[0]));
    return answer(out, !qn_value_equal(self, call->bound[0]));
}

static qn_status order_of(qn_run *r, const qn_value *a, const qn_value *b, int *order)
{
    QN_TRY(qn_run_compare(r, a, b));
    if (!qn_value_order(a, b, order))
        return qn_run_fail(r, "%s and %s have no order", qn_value_type_name(a), qn_value_type_name(b));
    return QN_OK;
}

TEST(is_less)
{
    int order;
    QN_TRY(order_of(r, self, call->bound[0], &order));
    return answer(out, order < 0);
}

TEST(is_less_or_equal)
{
    int order;
    QN_TRY(order_of(r, self, call->bound[0], &order));
    return answer(out, order <= 0);
}

TEST(is_greater)
{
    int order;
    QN_TRY(order_of(r, self, call->bound[0], &order));
    return answer(out, order == 1);
}

TEST(is_greater_or_equal)
{
    int order;
    QN_TRY(order_of(r, self, call->bound[0], &order));
    return answer(out, order == 0 || order == 1);
}

TEST(is_in)
{
    bool contains;
    QN_TRY(qn_contains(r, call->bound[0], self, &contains));
    return answer(out, contains);
}

/* Python's `is`: scalars of one type are the same if they are equal, containers only if they are one object. */
TEST(is_same)
{
    const qn_value *other = call->bound[0];
    QN_TRY(qn_run_compare(r, self, other));
    if (self->type != other->type)
        return answer(out, false);
    return answer(out, self->type <= QN_VALUE_STRING ? qn_value_equal(self, other) : self->u.list == other->u.list);
}

/* Whether a string has cased characters and all are of one case. */
static qn_status case_is(qn_run *r, const qn_value *self, bool upper, qn_value *out)
{
    qn_value text;
    bool any = false, all = true;
    QN_TRY(qn_str(r, self, &text));
    QN_TRY(qn_run_work(r, text.u.string->length / QN_DECODED_PER_STEP));
    for (size_t at = 0, n; at < text.u.string->length; at += n) {
        uint32_t code;
        if (qn_utf8_next(text.u.string->data + at, text.u.string->length - at, &n, &code) != QN_UTF8_COMPLETE)
            continue;
        const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
        any |= category == (upper ? UTF8PROC_CATEGORY_LU : UTF8PROC_CATEGORY_LL);
        all &= category != (upper ? UTF8PROC_CATEGORY_LL : UTF8PROC_CATEGORY_LU) && category != UTF8PROC_CATEGORY_LT;
    }
    return answer(out, any && all);
}

TEST(is_lower)
{
    UNUSED;
    return case_is(r, self, false, out);
}

TEST(is_upper)
{
    UNUSED;
    return case_is(r, self, true, out);
}

TEST(is_filter_name)
{
    UNUSED;
    return answer(out, qn_is_string(self) && qn_find_filter(self->u.string->data, self->u.string->length));
}

TEST(is_test_name)
{
    UNUSED;
    return answer(out, qn_is_string(self) && qn_find_test(self->u.string->data, self->u.string->length));
}

static const qn_builtin tests[] = {
    { .name = "defined", .call = is_defined },
    { .name = "undefined", .call = is_undefined },
    { .name = "none", .call = is_none },
    { .name = "true", .call = is_true },
    { .name = "false", .call = is_false },
    { .name = "boolean", .call = is_boolean },
    { .name = "string", .call = is_string },
    { .name = "mapping", .call = is_mapping },
    { .name = "sequence", .call = is_sequence },
    { .name = "iterable", .call = is_iterable },
    { .name = "number", .call = is_number },
    { .name = "integer", .call = is_integer },
    { .name = "float", .call = is_float },
    { .name = "callable", .call = is_callable },
    { .name = "escaped", .call = is_escaped },
    { .name = "odd", .call = is_odd },
    { .name = "even", .call = is_even },
    { .name = "lower", .call = is_lower },
    { .name = "upper", .call = is_upper },
    { .name = "filter", .call = is_filter_name },
    { .name = "test", .call = is_test_name },
    { .name = "divisibleby", .call = is_divisible, .parameters = { "num" }, .required = 1 },
    { .name = "sameas", .call = is_same, .parameters = { "other" }, .required = 1 },
    { .name = "in", .call = is_in, .parameters = { "seq" }, .required = 1 },
    { .name = "equalto", .call = is_equal, .parameters = { "other" }, .required = 1 },
    { .name = "eq", .call = is_equal, .parameters = { "other" }, .required = 1 },
    { .name = "==", .call = is_equal, .parameters = { "other" }, .required = 1 },
    { .name = "ne", .call = is_not_equal, .parameters = { "other" }, .required = 1 },
    { .name = "!=", .call = is_not_equal, .parameters = { "other" }, .required = 1 },
    { .name = "lt", .call = is_less, .parameters = { "other" }, .required = 1 },
    { .name = "<", .call = is_less, .parameters = { "other" }, .required = 1 },
    { .name = "lessthan", .call = is_less, .parameters = { "other" }, .required = 1 },
    { .name = "le", .call = is_less_or_equal, .parameters = { "other" }, .required = 1 },
    { .name = "<=", .call = is_less_or_equal, .parameters = { "other" }, .required = 1 },
    { .name = "gt", .call = is_greater, .parameters = { "other" }, .required = 1 },
    { .name = ">", .call = is_greater, .parameters = { "other" }, .required = 1 },
    { .name = "greaterthan", .call = is_greater, .parameters = { "other" }, .required = 1 },
    { .name = "ge", .call = is_greater_or_equal, .parameters = { "other" }, .required = 1 },
    { .name = ">=", .call = is_greater_or_equal, .parameters = { "other" }, .required = 1 },
};

const qn_builtin *qn_find_test(const char *name, size_t length)
{
    return qn_find_in(tests, sizeof tests / sizeof *tests, name, length);
}
