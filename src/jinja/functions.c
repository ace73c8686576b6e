/* Global functions, and the methods of dicts, lists, tuples and loops. Methods that would change an object do not
 * exist. */
#include "base/append.h"
#include "base/status.h"
#include "jinja/strings.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define FUNCTION(name) static qn_status name(qn_run *r, const qn_value *self, const qn_call *call, qn_value *out)
#define UNUSED (void)r, (void)self, (void)call

/* ---- Global functions ---- */

FUNCTION(make_range)
{
    enum { MAX_RANGE = 100000 };
    int64_t limits[3] = { 0, 0, 1 };
    UNUSED;
    if (call->n < 1 || call->n > 3 || call->n_named)
        return qn_run_fail(r, "range takes 1 to 3 arguments, found %zu", call->n + call->n_named);
    for (size_t i = 0; i < call->n; i++)
        QN_TRY(qn_want_integer(r, &call->values[i], "an argument of range", &limits[call->n == 1 ? 1 : i]));
    if (limits[2] == 0)
        return qn_run_fail(r, "the step of a range is 0");
    const __int128 distance = limits[2] > 0 ? (__int128)limits[1] - limits[0] : (__int128)limits[0] - limits[1],
                   step = limits[2] > 0 ? limits[2] : -(__int128)limits[2],
                   n = distance > 0 ? (distance - 1) / step + 1 : 0;
    if (n > MAX_RANGE)
        return qn_run_fail(r, "a range of more than %d integers", MAX_RANGE);
    qn_range_value *range;
    QN_TRY(qn_arena_alloc(&r->arena, &range, 1, sizeof *range));
    *range = (qn_range_value){ limits[0], limits[1], limits[2], (size_t)n };
    *out = (qn_value){ .type = QN_VALUE_RANGE, .u.range = range };
    return QN_OK;
}

static qn_status add_pairs(qn_run *r, const qn_value *from, qn_dict *to)
{
    if (from->type == QN_VALUE_DICT) {
        for (size_t i = 0; i < from->u.dict->n; i++) {
            QN_TRY(qn_run_work(r, 1 + qn_value_weight(&from->u.dict->entries[i].key)));
            QN_TRY(qn_dict_set(&r->arena, to, from->u.dict->entries[i].key, from->u.dict->entries[i].value));
        }
        return QN_OK;
    }
    const qn_value *pairs, *pair;
    size_t n, two;
    QN_TRY(qn_items_of(r, from, &pairs, &n));
    for (size_t i = 0; i < n; i++) {
        QN_TRY(qn_run_work(r, 1));
        QN_TRY(qn_items_of(r, &pairs[i], &pair, &two));
        if (two != 2)
            return qn_run_fail(r, "item %zu is no pair of a key and a value", i);
        QN_TRY(qn_want_key(r, &pair[0]));
        QN_TRY(qn_dict_set(&r->arena, to, pair[0], pair[1]));
    }
    return QN_OK;
}

/* Makes the result of dict(...) and namespace(...). */
static qn_status make_dict(qn_run *r, const qn_call *call, qn_value_type type, qn_value *out)
{
    QN_TRY(qn_value_dict(&r->arena, type, out));
    if (call->n > 1)
        return qn_run_fail(r, "at most one positional argument is allowed, found %zu", call->n);
    if (call->n)
        QN_TRY(add_pairs(r, &call->values[0], out->u.dict));
    for (size_t i = 0; i < call->n_named; i++) {
        qn_value key;
        QN_TRY(qn_value_text(&r->arena, call->names[i], strlen(call->names[i]), QN_FROM_TEMPLATE, &key));
        QN_TRY(qn_dict_set(&r->arena, out->u.dict, key, call->named[i]));
    }
    return QN_OK;
}

FUNCTION(dict)
{
    UNUSED;
    return make_dict(r, call, QN_VALUE_DICT, out);
}

FUNCTION(namespace)
{
    UNUSED;
    return make_dict(r, call, QN_VALUE_NAMESPACE, out);
}

FUNCTION(raise_exception)
{
    qn_value text;
    UNUSED;
    (void)out;
    QN_TRY(qn_str(r, call->bound[0], &text));
    return qn_fail(QN_ERR_INVALID, "%.*s", qn_shown_bytes(text.u.string->data, text.u.string->length, 400),
                   text.u.string->data);
}

/* Copies a format for strftime to format [size], without directives that Python prints differently: its time has no
 * zone, which prints nothing, and no microseconds, which print as 0. Text that does not fit is left out. */
static void write_format(const qn_jinja_string *from, char *format, size_t size)
{
    qn_text_buffer to = qn_append_to(format, size);
    for (size_t i = 0; i < from->length; i++) {
        const char next = from->data[i] == '%' && i + 1 < from->length ? from->data[i + 1] : 0;
        if (next == 'f')
            qn_append_bytes(&to, "000000", 6);
        else if (next != 'Z' && next != 'z')
            qn_append_bytes(&to, from->data + i, next ? 2 : 1);
        i += next != 0;
    }
}

FUNCTION(strftime_now)
{
    char format[256], text[1024];
    struct tm tm;
    UNUSED;
    enum { DATE_STEPS = 40 };
    QN_TRY(qn_want_string(r, call->bound[0], "the format of a date"));
    QN_TRY(qn_run_work(r, DATE_STEPS));
    const qn_jinja_string *s = call->bound[0]->u.string;
    const time_t now = (time_t)r->now;
    if (s->length >= sizeof format || !localtime_r(&now, &tm))
        return qn_run_fail(r, "the format of a date has %zu bytes, at most %zu are allowed", s->length,
                           sizeof format - 1);
    write_format(s, format, sizeof format);
    const size_t n = strftime(text, sizeof text, format, &tm);
    return qn_value_copy_text(&r->arena, text, n, s->marks ? QN_FROM_DATA : call->bound[0]->origin, out);
}

/* jinja2's functions that no chat template uses: they exist, and fail when called. */
FUNCTION(unsupported)
{
    UNUSED;
    (void)out;
    return qn_run_fail(r, "lipsum, cycler and joiner are not supported");
}

static const qn_builtin globals[] = {
    { .name = "lipsum", .call = unsupported, .is_variadic = true },
    { .name = "cycler", .call = unsupported, .is_variadic = true },
    { .name = "joiner", .call = unsupported, .is_variadic = true },
    { .name = "range", .call = make_range, .is_variadic = true },
    { .name = "dict", .call = dict, .is_variadic = true },
    { .name = "namespace", .call = namespace, .is_variadic = true },
    { .name = "raise_exception", .call = raise_exception, .parameters = { "message" }, .required = 1 },
    { .name = "strftime_now", .call = strftime_now, .parameters = { "format" }, .required = 1 },
};

const qn_builtin *qn_find_global(const char *name, size_t length)
{
    return qn_find_in(globals, sizeof globals / sizeof *globals, name, length);
}

/* ---- Dicts ---- */

static qn_status make_view(qn_run *r, const qn_value *self, qn_view_kind kind, qn_value *out)
{
    qn_dict_view *view;
    QN_TRY(qn_arena_alloc(&r->arena, &view, 1, sizeof *view));
    *view = (qn_dict_view){ self->u.dict, kind };
    *out = (qn_value){ .type = QN_VALUE_VIEW, .u.view = view };
    return QN_OK;
}

FUNCTION(dict_items)
{
    UNUSED;
    return make_view(r, self, QN_VIEW_ITEMS, out);
}

FUNCTION(dict_keys)
{
    UNUSED;
    return make_view(r, self, QN_VIEW_KEYS, out);
}

FUNCTION(dict_values)
{
    UNUSED;
    return make_view(r, self, QN_VIEW_VALUES, out);
}

FUNCTION(dict_get)
{
    QN_TRY(qn_want_key(r, call->bound[0]));
    const qn_value *value = qn_dict_find(self->u.dict, call->bound[0]);
    *out = value ? *value : call->bound[1] ? *call->bound[1] : qn_value_none();
    return QN_OK;
}

FUNCTION(dict_copy)
{
    UNUSED;
    QN_TRY(qn_value_dict(&r->arena, QN_VALUE_DICT, out));
    return add_pairs(r, self, out->u.dict);
}

static const qn_builtin dict_methods[] = {
    { .name = "items", .call = dict_items },
    { .name = "keys", .call = dict_keys },
    { .name = "values", .call = dict_values },
    { .name = "get", .call = dict_get, .parameters = { "key", "default" }, .required = 1 },
    { .name = "copy", .call = dict_copy },
};

/* ---- Lists, tuples and ranges ---- */

FUNCTION(list_index)
{
    const qn_value *items;
    size_t n;
    QN_TRY(qn_items_of(r, self, &items, &n));
    QN_TRY(qn_run_work(r, n));
    for (size_t i = 0; i < n; i++) {
        QN_TRY(qn_run_compare(r, &items[i], call->bound[0]));
        if (qn_value_equal(&items[i], call->bound[0])) {
            *out = qn_value_int((int64_t)i);
            return QN_OK;
        }
    }
    return qn_run_fail(r, "the list has no such item");
}

FUNCTION(list_count)
{
    const qn_value *items;
    size_t n_items;
    int64_t n = 0;
    QN_TRY(qn_items_of(r, self, &items, &n_items));
    QN_TRY(qn_run_work(r, n_items));
    for (size_t i = 0; i < n_items; i++) {
        QN_TRY(qn_run_compare(r, &items[i], call->bound[0]));
        n += qn_value_equal(&items[i], call->bound[0]);
    }
    *out = qn_value_int(n);
    return QN_OK;
}

FUNCTION(list_copy)
{
    UNUSED;
    *out = *self;
    return QN_OK;
}

static const qn_builtin list_methods[] = {
    { .name = "index", .call = list_index, .parameters = { "value" }, .required = 1 },
    { .name = "count", .call = list_count, .parameters = { "value" }, .required = 1 },
    { .name = "copy", .call = list_copy }, /* lists only: must be the last entry */
};

/* ---- Loops ---- */

FUNCTION(loop_cycle)
{
    if (!call->n)
        return qn_run_fail(r, "no items to cycle through");
    *out = call->values[self->u.loop->at % call->n];
    return QN_OK;
}

FUNCTION(loop_changed)
{
    qn_loop *loop = self->u.loop;
    qn_value now;
    QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_TUPLE, call->n, &now));
    for (size_t i = 0; i < call->n; i++)
        QN_TRY(qn_list_append(&r->arena, now.u.list, call->values[i]));
    if (loop->has_last)
        QN_TRY(qn_run_compare(r, &loop->last, &now));
    *out = qn_value_bool(!loop->has_last || !qn_value_equal(&loop->last, &now));
    loop->last = now;
    loop->has_last = true;
    return QN_OK;
}

static const qn_builtin loop_methods[] = {
    { .name = "cycle", .call = loop_cycle, .is_variadic = true },
    { .name = "changed", .call = loop_changed, .is_variadic = true },
};

#define COUNT(table) (sizeof(table) / sizeof *(table))

const qn_builtin *qn_find_method(const qn_value *self, const char *name, size_t length)
{
    switch (self->type) {
    case QN_VALUE_STRING: return qn_find_string_method(name, length);
    case QN_VALUE_DICT: return qn_find_in(dict_methods, COUNT(dict_methods), name, length);
    case QN_VALUE_LIST: return qn_find_in(list_methods, COUNT(list_methods), name, length);
    case QN_VALUE_RANGE:
    case QN_VALUE_TUPLE: return qn_find_in(list_methods, COUNT(list_methods) - 1, name, length);
    case QN_VALUE_LOOP: return qn_find_in(loop_methods, COUNT(loop_methods), name, length);
    default: return NULL;
    }
}
