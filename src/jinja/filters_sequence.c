/* Filters of sequences and dicts. Where jinja2 returns a generator, the result is an iterator, which can be used
 * once. */
#include "base/status.h"
#include "jinja/filters.h"
#include "jinja/strings.h"

#include <string.h>

#define FILTER(name) static qn_status name(qn_run *r, const qn_value *self, const qn_call *call, qn_value *out)
#define UNUSED (void)r, (void)self, (void)call

static bool is_set(const qn_value *argument)
{
    return argument && qn_value_is_true(argument);
}

/* ---- Attributes by name: "a.b.0" ---- */

/* Gets the value that `attribute` names in an item: the item itself without an attribute, an item by number, or a path
 * with dots. */
static qn_status get_attribute(qn_run *r, const qn_value *item, const qn_value *attribute, const qn_value *standard,
                               qn_value *out)
{
    *out = *item;
    if (!attribute || attribute->type == QN_VALUE_NONE)
        return QN_OK;
    if (!qn_is_string(attribute))
        return qn_item_of(r, item, attribute, out);
    const char *at = attribute->u.string->data, *end = at + attribute->u.string->length;
    for (;;) {
        const char *dot = memchr(at, '.', (size_t)(end - at)), *stop = dot ? dot : end;
        const size_t n = (size_t)(stop - at);
        QN_TRY(qn_run_work(r, 2 + n / QN_COPIED_PER_STEP));
        int64_t index = 0;
        bool is_number = n > 0 && n < 10;
        for (size_t i = 0; i < n && is_number; i++) {
            is_number = at[i] >= '0' && at[i] <= '9';
            index = index * 10 + (at[i] - '0');
        }
        qn_value key = qn_value_int(index);
        if (!is_number)
            QN_TRY(qn_value_text(&r->arena, at, n, QN_FROM_TEMPLATE, &key));
        QN_TRY(qn_item_of(r, out, &key, out));
        if (standard && out->type == QN_VALUE_UNDEFINED)
            *out = *standard;
        if (!dot)
            return QN_OK;
        at = dot + 1;
    }
}

/* Finds the value that an item is sorted by. Strings are compared in lower case unless case_sensitive is set. */
static qn_status sort_key(qn_run *r, const qn_value *item, const qn_value *attribute, bool case_sensitive,
                          qn_value *out)
{
    QN_TRY(get_attribute(r, item, attribute, NULL, out));
    return qn_is_string(out) && !case_sensitive ? qn_change_case(r, out, QN_CASE_LOWER, out) : QN_OK;
}

/* ---- Length, first, last, list, join ---- */

qn_status qn_value_count(qn_run *r, const qn_value *value, int64_t *n)
{
    switch (value->type) {
    case QN_VALUE_UNDEFINED: *n = 0; return QN_OK;
    case QN_VALUE_STRING:
        QN_TRY(qn_run_work(r, value->u.string->length / QN_COPIED_PER_STEP));
        *n = (int64_t)qn_code_points(value->u.string);
        return QN_OK;
    case QN_VALUE_LIST:
    case QN_VALUE_TUPLE: *n = (int64_t)value->u.list->n; return QN_OK;
    case QN_VALUE_DICT: *n = (int64_t)value->u.dict->n; return QN_OK;
    case QN_VALUE_VIEW: *n = (int64_t)value->u.view->dict->n; return QN_OK;
    case QN_VALUE_RANGE: *n = (int64_t)value->u.range->n; return QN_OK;
    case QN_VALUE_LOOP: *n = (int64_t)value->u.loop->n; return QN_OK;
    default: return qn_run_fail(r, "%s has no length", qn_value_type_name(value));
    }
}

FILTER(filter_length)
{
    int64_t n = 0;
    UNUSED;
    QN_TRY(qn_value_count(r, self, &n));
    *out = qn_value_int(n);
    return QN_OK;
}

FILTER(filter_first)
{
    UNUSED;
    const qn_value *items;
    size_t n;
    if (self->type == QN_VALUE_ITERATOR) { /* takes one item and leaves the rest */
        qn_iterator *it = self->u.iterator;
        *out = it->at < it->n ? it->items[it->at++] : qn_value_undefined("the first item");
        return QN_OK;
    }
    QN_TRY(qn_items_of(r, self, &items, &n));
    *out = n ? items[0] : qn_value_undefined("the first item");
    return QN_OK;
}

FILTER(filter_last)
{
    UNUSED;
    const qn_value *items;
    size_t n;
    if (self->type == QN_VALUE_ITERATOR)
        return qn_run_fail(r, "a generator has no last item");
    QN_TRY(qn_items_of(r, self, &items, &n));
    *out = n ? items[n - 1] : qn_value_undefined("the last item");
    return QN_OK;
}

static qn_status copy_list(qn_run *r, const qn_value *items, size_t n, bool reverse, qn_value *out)
{
    QN_TRY(qn_run_work(r, n));
    QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_LIST, n, out));
    for (size_t i = 0; i < n; i++)
        QN_TRY(qn_list_append(&r->arena, out->u.list, items[reverse ? n - 1 - i : i]));
    return QN_OK;
}

FILTER(filter_list)
{
    UNUSED;
    const qn_value *items;
    size_t n;
    QN_TRY(qn_items_of(r, self, &items, &n));
    return copy_list(r, items, n, false, out);
}

FILTER(filter_reverse)
{
    UNUSED;
    const qn_value *items;
    size_t n;
    qn_value list;
    QN_TRY(qn_items_of(r, self, &items, &n));
    QN_TRY(copy_list(r, items, n, true, &list));
    if (qn_is_string(self)) {
        qn_builder b = { .arena = &r->arena };
        for (size_t i = 0; i < n; i++)
            QN_TRY(qn_builder_string(&b, &list.u.list->items[i]));
        QN_TRY(qn_builder_finish(&b, out));
        out->safe = self->safe;
        return QN_OK;
    }
    *out = list;
    return self->type == QN_VALUE_ITERATOR ? QN_OK : qn_value_iterator(&r->arena, list.u.list->items, n, out);
}

FILTER(filter_join)
{
    const qn_value *items;
    size_t n;
    qn_value between, item;
    qn_builder b = { .arena = &r->arena };
    QN_TRY(qn_value_text(&r->arena, "", 0, QN_FROM_TEMPLATE, &between));
    if (call->bound[0])
        QN_TRY(qn_str(r, call->bound[0], &between));
    QN_TRY(qn_items_of(r, self, &items, &n));
    for (size_t i = 0; i < n; i++) {
        QN_TRY(qn_run_work(r, 1 + qn_value_weight(&between)));
        if (i)
            QN_TRY(qn_builder_string(&b, &between));
        QN_TRY(get_attribute(r, &items[i], call->bound[1], NULL, &item));
        QN_TRY(qn_append_str(r, &b, &item));
    }
    return qn_builder_finish(&b, out);
}

FILTER(filter_items)
{
    UNUSED;
    const qn_value *pairs;
    size_t n;
    qn_value view;
    if (self->type == QN_VALUE_UNDEFINED)
        return qn_value_iterator(&r->arena, NULL, 0, out);
    if (self->type != QN_VALUE_DICT)
        return qn_run_fail(r, "%s has no pairs of keys and values", qn_value_type_name(self));
    const qn_call none = { 0 };
    QN_TRY(qn_call_builtin(r, qn_find_method(self, "items", 5), self, &none, &view));
    QN_TRY(qn_items_of(r, &view, &pairs, &n));
    return qn_value_iterator(&r->arena, pairs, n, out);
}

/* ---- map, select, reject ---- */

static const qn_value *named_argument(const qn_call *call, const char *name)
{
    for (size_t i = 0; i < call->n_named; i++)
        if (!strcmp(call->names[i], name))
            return &call->named[i];
    return NULL;
}

/* The arguments without the first `skip`. */
static qn_call rest_of(const qn_call *call, size_t skip)
{
    return (qn_call){ .values = call->values + skip,
                      .n = call->n - skip,
                      .names = call->names,
                      .named = call->named,
                      .n_named = call->n_named };
}

static qn_status map_by_filter(qn_run *r, const qn_value *items, size_t n, const qn_call *call, qn_list *to)
{
    if (!call->n || !qn_is_string(&call->values[0]))
        return qn_run_fail(r, "map needs the name of a filter, or an attribute");
    const qn_jinja_string *name = call->values[0].u.string;
    const qn_builtin *filter = qn_find_filter(name->data, name->length);
    const qn_call arguments = rest_of(call, 1);
    if (!filter)
        return qn_run_fail(r, "there is no filter '%.*s'", qn_shown_bytes(name->data, name->length, QN_SHOWN_BYTES),
                           name->data);
    for (size_t i = 0; i < n; i++) {
        qn_value mapped;
        QN_TRY(qn_run_work(r, 1));
        QN_TRY(qn_call_builtin(r, filter, &items[i], &arguments, &mapped));
        QN_TRY(qn_list_append(&r->arena, to, mapped));
    }
    return QN_OK;
}

/* Gets the items of a value; none if it is false, whatever its type. */
static qn_status items_if_true(qn_run *r, const qn_value *self, const qn_value **items, size_t *n)
{
    *items = NULL;
    *n = 0;
    return qn_value_is_true(self) ? qn_items_of(r, self, items, n) : QN_OK;
}

FILTER(filter_map)
{
    const qn_value *items, *attribute = named_argument(call, "attribute"), *standard = named_argument(call, "default");
    size_t n;
    qn_value list;
    QN_TRY(items_if_true(r, self, &items, &n));
    QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_LIST, n, &list));
    if (n && attribute && !call->n) {
        if (call->n_named > 1 + (standard != NULL))
            return qn_run_fail(r, "map has an argument that it does not know");
        for (size_t i = 0; i < n; i++) {
            qn_value item;
            QN_TRY(qn_run_work(r, 1));
            QN_TRY(get_attribute(r, &items[i], attribute, standard, &item));
            QN_TRY(qn_list_append(&r->arena, list.u.list, item));
        }
    } else if (n) {
        QN_TRY(map_by_filter(r, items, n, call, list.u.list));
    }
    return qn_value_iterator(&r->arena, list.u.list->items, list.u.list->n, out);
}

/* Selects the items that pass, or whose attribute (of *attr) passes, the test named by the next argument; without a
 * test, those that are true. */
static qn_status select_items(qn_run *r, const qn_value *self, const qn_call *call, bool by_attribute, bool wanted,
                              qn_value *out)
{
    const qn_value *items;
    size_t n;
    qn_value list;
    const size_t skip = by_attribute;
    QN_TRY(items_if_true(r, self, &items, &n));
    QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_LIST, n, &list));
    if (n && by_attribute && !call->n)
        return qn_run_fail(r, "the name of an attribute is missing");
    const qn_builtin *test = NULL;
    if (n && call->n > skip) {
        QN_TRY(qn_want_string(r, &call->values[skip], "the name of a test"));
        const qn_jinja_string *name = call->values[skip].u.string;
        test = qn_find_test(name->data, name->length);
        if (!test)
            return qn_run_fail(r, "there is no test '%.*s'", qn_shown_bytes(name->data, name->length, QN_SHOWN_BYTES),
                               name->data);
    }
    const qn_call arguments = rest_of(call, test ? skip + 1 : call->n < skip ? call->n : skip);
    for (size_t i = 0; i < n; i++) {
        qn_value value;
        QN_TRY(qn_run_work(r, 1));
        QN_TRY(get_attribute(r, &items[i], by_attribute ? &call->values[0] : NULL, NULL, &value));
        if (test)
            QN_TRY(qn_call_builtin(r, test, &value, &arguments, &value));
        if (qn_value_is_true(&value) == wanted)
            QN_TRY(qn_list_append(&r->arena, list.u.list, items[i]));
    }
    return qn_value_iterator(&r->arena, list.u.list->items, list.u.list->n, out);
}

FILTER(filter_select)
{
    return select_items(r, self, call, false, true, out);
}

FILTER(filter_reject)
{
    return select_items(r, self, call, false, false, out);
}

FILTER(filter_selectattr)
{
    return select_items(r, self, call, true, true, out);
}

FILTER(filter_rejectattr)
{
    return select_items(r, self, call, true, false, out);
}

/* ---- Sorting ---- */

typedef struct sortable {
    qn_value key, item;
} sortable;

static qn_status compare_keys(qn_run *r, const qn_value *a, const qn_value *b, int *order)
{
    *order = 0;
    QN_TRY(qn_run_compare(r, a, b));
    if (!qn_value_order(a, b, order))
        return qn_run_fail(r, "%s and %s have no order", qn_value_type_name(a), qn_value_type_name(b));
    *order = *order == 2 ? 0 : *order;
    return QN_OK;
}

/* Sorts v [n] by a stable merge sort; scratch [n]. */
static qn_status merge_sort(qn_run *r, sortable *v, sortable *scratch, size_t n, bool reverse)
{
    for (size_t width = 1; width < n; width *= 2) {
        QN_TRY(qn_run_work(r, n));
        for (size_t begin = 0; begin < n; begin += 2 * width) {
            const size_t middle = begin + width < n ? begin + width : n, end = middle + width < n ? middle + width : n;
            size_t i = begin, j = middle;
            for (size_t k = begin; k < end; k++) {
                int order = 1;
                if (i < middle && j < end)
                    QN_TRY(compare_keys(r, &v[i].key, &v[j].key, &order));
                const bool left = j == end || (i < middle && (reverse ? order >= 0 : order <= 0));
                scratch[k] = left ? v[i++] : v[j++];
            }
        }
        memcpy(v, scratch, n * sizeof *v);
    }
    return QN_OK;
}

static qn_status sort_items(qn_run *r, sortable *v, size_t n, bool reverse, qn_value *out)
{
    sortable *scratch;
    QN_TRY(qn_arena_alloc(&r->arena, &scratch, n, sizeof *scratch));
    QN_TRY(merge_sort(r, v, scratch, n, reverse));
    QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_LIST, n, out));
    for (size_t i = 0; i < n; i++)
        QN_TRY(qn_list_append(&r->arena, out->u.list, v[i].item));
    return QN_OK;
}

/* Makes a list of keys, one for each attribute of "a,b". Lists with equal items are ordered even if the items have no
 * order, such as None. */
static qn_status keys_of(qn_run *r, const qn_value *item, const qn_value *attribute, bool case_sensitive, qn_value *out)
{
    QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_LIST, 1, out));
    if (!attribute || !qn_is_string(attribute)) {
        qn_value key;
        QN_TRY(sort_key(r, item, attribute, case_sensitive, &key));
        return qn_list_append(&r->arena, out->u.list, key);
    }
    const char *at = attribute->u.string->data, *end = at + attribute->u.string->length;
    for (;;) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        qn_value name, key;
        QN_TRY(qn_value_text(&r->arena, at, (size_t)((comma ? comma : end) - at), QN_FROM_TEMPLATE, &name));
        QN_TRY(sort_key(r, item, &name, case_sensitive, &key));
        QN_TRY(qn_list_append(&r->arena, out->u.list, key));
        if (!comma)
            return QN_OK;
        at = comma + 1;
    }
}

FILTER(filter_sort)
{
    const qn_value *items;
    size_t n;
    sortable *v;
    QN_TRY(qn_items_of(r, self, &items, &n));
    QN_TRY(qn_arena_alloc(&r->arena, &v, n, sizeof *v));
    for (size_t i = 0; i < n; i++) {
        v[i].item = items[i];
        QN_TRY(qn_run_work(r, 2));
        QN_TRY(keys_of(r, &items[i], call->bound[2], is_set(call->bound[1]), &v[i].key));
    }
    return sort_items(r, v, n, is_set(call->bound[0]), out);
}

FILTER(filter_dictsort)
{
    const qn_value *pairs, *by = call->bound[1];
    size_t n;
    sortable *v;
    qn_value view;
    const bool by_value = by && qn_is_string(by) && qn_text_is(by, "value", 5);
    if (by && !by_value && !(qn_is_string(by) && qn_text_is(by, "key", 3)))
        return qn_run_fail(r, "dictsort sorts by \"key\" or \"value\"");
    QN_TRY(filter_items(r, self, call, &view));
    if (self->type == QN_VALUE_UNDEFINED)
        return qn_fail_undefined(r, self);
    QN_TRY(qn_items_of(r, &view, &pairs, &n));
    QN_TRY(qn_arena_alloc(&r->arena, &v, n, sizeof *v));
    for (size_t i = 0; i < n; i++) {
        v[i].item = pairs[i];
        QN_TRY(qn_run_work(r, 1));
        QN_TRY(sort_key(r, &pairs[i].u.list->items[by_value], NULL, is_set(call->bound[0]), &v[i].key));
    }
    return sort_items(r, v, n, is_set(call->bound[2]), out);
}

static qn_status extreme(qn_run *r, const qn_value *self, const qn_call *call, int sign, qn_value *out)
{
    const qn_value *items;
    size_t n;
    qn_value best, key;
    QN_TRY(qn_items_of(r, self, &items, &n));
    *out = qn_value_undefined("the extreme of an empty sequence");
    for (size_t i = 0; i < n; i++) {
        int order = 1;
        QN_TRY(qn_run_work(r, 1));
        QN_TRY(sort_key(r, &items[i], call->bound[1], is_set(call->bound[0]), &key));
        if (i && (key.type == QN_VALUE_UNDEFINED || best.type == QN_VALUE_UNDEFINED))
            return qn_fail_undefined(r, key.type == QN_VALUE_UNDEFINED ? &key : &best);
        if (i)
            QN_TRY(qn_run_compare(r, &key, &best));
        if (i && !qn_value_order(&key, &best, &order))
            return qn_run_fail(r, "%s and %s have no order", qn_value_type_name(&key), qn_value_type_name(&best));
        if (i && (order == 2 || order * sign <= 0))
            continue;
        best = key;
        *out = items[i];
    }
    return QN_OK;
}

FILTER(filter_min)
{
    return extreme(r, self, call, -1, out);
}

FILTER(filter_max)
{
    return extreme(r, self, call, 1, out);
}

FILTER(filter_unique)
{
    const qn_value *items;
    size_t n;
    qn_value seen, list, key;
    QN_TRY(qn_items_of(r, self, &items, &n));
    QN_TRY(qn_value_dict(&r->arena, QN_VALUE_DICT, &seen));
    QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_LIST, n, &list));
    for (size_t i = 0; i < n; i++) {
        QN_TRY(qn_run_work(r, 1));
        QN_TRY(sort_key(r, &items[i], call->bound[1], is_set(call->bound[0]), &key));
        QN_TRY(qn_want_key(r, &key));
        if (qn_dict_find(seen.u.dict, &key))
            continue;
        QN_TRY(qn_dict_set(&r->arena, seen.u.dict, key, key));
        QN_TRY(qn_list_append(&r->arena, list.u.list, items[i]));
    }
    return qn_value_iterator(&r->arena, list.u.list->items, list.u.list->n, out);
}

FILTER(filter_sum)
{
    const qn_value *items;
    size_t n;
    *out = call->bound[1] ? *call->bound[1] : qn_value_int(0);
    QN_TRY(qn_items_of(r, self, &items, &n));
    for (size_t i = 0; i < n; i++) {
        qn_value item;
        QN_TRY(qn_run_work(r, 1));
        QN_TRY(get_attribute(r, &items[i], call->bound[0], NULL, &item));
        if (item.type == QN_VALUE_UNDEFINED)
            return qn_fail_undefined(r, &item);
        if (qn_is_string(out))
            return qn_run_fail(r, "strings are joined, not summed");
        QN_TRY(qn_apply_operator(r, QN_OP_ADD, out, &item, out));
    }
    return QN_OK;
}

/* Divides the items into lists of `linecount` items; fill_with pads the last one. */
FILTER(filter_batch)
{
    const qn_value *items;
    size_t n;
    int64_t count;
    qn_value list;
    QN_TRY(qn_want_integer(r, call->bound[0], "linecount", &count));
    QN_TRY(qn_items_of(r, self, &items, &n));
    QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_LIST, 0, &list));
    if (count < 1 || count > 100000)
        return qn_run_fail(r, "linecount is not 1 to 100000");
    for (size_t at = 0; at < n; at += (size_t)count) {
        qn_value line;
        QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_LIST, 0, &line));
        for (size_t i = at; i < at + (size_t)count; i++) {
            const bool filled = i >= n && call->bound[1] && call->bound[1]->type != QN_VALUE_NONE;
            QN_TRY(qn_run_work(r, 1));
            if (i < n || filled)
                QN_TRY(qn_list_append(&r->arena, line.u.list, i < n ? items[i] : *call->bound[1]));
        }
        QN_TRY(qn_list_append(&r->arena, list.u.list, line));
    }
    return qn_value_iterator(&r->arena, list.u.list->items, list.u.list->n, out);
}

/* Divides the items into `slices` lists of nearly equal length; fill_with pads the shorter ones. */
FILTER(filter_slice)
{
    const qn_value *items, *fill = call->bound[1];
    size_t n, at = 0;
    int64_t slices;
    qn_value list;
    QN_TRY(qn_want_integer(r, call->bound[0], "slices", &slices));
    QN_TRY(qn_items_of(r, self, &items, &n));
    if (slices < 1 || slices > 100000)
        return qn_run_fail(r, "slices is not 1 to 100000");
    QN_TRY(qn_run_work(r, n + 2 * (uint64_t)slices));
    QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_LIST, (size_t)slices, &list));
    const size_t each = n / (size_t)slices, longer = n % (size_t)slices;
    for (size_t i = 0; i < (size_t)slices; i++) {
        qn_value slice;
        QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_LIST, each + 1, &slice));
        for (const size_t end = at + each + (i < longer); at < end; at++)
            QN_TRY(qn_list_append(&r->arena, slice.u.list, items[at]));
        if (fill && fill->type != QN_VALUE_NONE && i >= longer)
            QN_TRY(qn_list_append(&r->arena, slice.u.list, *fill));
        QN_TRY(qn_list_append(&r->arena, list.u.list, slice));
    }
    return qn_value_iterator(&r->arena, list.u.list->items, list.u.list->n, out);
}

/* Makes a pair of the attribute and the `n` items that have it. Its attributes are `grouper` and `list`. */
static qn_status make_group(qn_run *r, const sortable *v, size_t n, const qn_call *call, qn_value *out)
{
    qn_value key, members;
    QN_TRY(get_attribute(r, &v->item, call->bound[0], call->bound[1], &key));
    QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_LIST, n, &members));
    for (size_t i = 0; i < n; i++)
        QN_TRY(qn_list_append(&r->arena, members.u.list, v[i].item));
    QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_TUPLE, 2, out));
    out->u.list->is_group = true;
    QN_TRY(qn_list_append(&r->arena, out->u.list, key));
    return qn_list_append(&r->arena, out->u.list, members);
}

/* Groups items by an attribute, in its order. */
FILTER(filter_groupby)
{
    const qn_value *items, *standard = call->bound[1] && call->bound[1]->type != QN_VALUE_NONE ? call->bound[1] : NULL;
    size_t n;
    sortable *v, *scratch;
    QN_TRY(qn_items_of(r, self, &items, &n));
    QN_TRY(qn_arena_alloc(&r->arena, &v, n, sizeof *v));
    QN_TRY(qn_arena_alloc(&r->arena, &scratch, n, sizeof *scratch));
    for (size_t i = 0; i < n; i++) {
        qn_value *key = &v[i].key;
        v[i].item = items[i];
        QN_TRY(qn_run_work(r, 4));
        QN_TRY(get_attribute(r, &items[i], call->bound[0], standard, key));
        if (key->type == QN_VALUE_UNDEFINED && n > 1)
            return qn_fail_undefined(r, key);
        if (qn_is_string(key) && !is_set(call->bound[2]))
            QN_TRY(qn_change_case(r, key, QN_CASE_LOWER, key));
    }
    QN_TRY(merge_sort(r, v, scratch, n, false));
    QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_LIST, 4, out));
    for (size_t i = 0, end; i < n; i = end) {
        qn_value group;
        for (end = i + 1; end < n; end++) {
            QN_TRY(qn_run_compare(r, &v[i].key, &v[end].key));
            if (!qn_value_equal(&v[i].key, &v[end].key))
                break;
        }
        QN_TRY(make_group(r, v + i, end - i, call, &group));
        QN_TRY(qn_list_append(&r->arena, out->u.list, group));
    }
    return QN_OK;
}

FILTER(filter_attr)
{
    QN_TRY(qn_want_string(r, call->bound[0], "the name of an attribute"));
    if (self->type == QN_VALUE_UNDEFINED)
        return qn_fail_undefined(r, self);
    const qn_jinja_string *name = call->bound[0]->u.string;
    if (self->type == QN_VALUE_DICT && !qn_find_method(self, name->data, name->length)) {
        *out = qn_value_undefined("attribute"); /* a dict's keys are not attributes */
        return QN_OK;
    }
    return qn_attribute_of(r, self, name->data, name->length, out);
}

static const qn_builtin filters[] = {
    { .name = "length", .call = filter_length },
    { .name = "count", .call = filter_length },
    { .name = "first", .call = filter_first },
    { .name = "last", .call = filter_last },
    { .name = "list", .call = filter_list },
    { .name = "reverse", .call = filter_reverse },
    { .name = "join", .call = filter_join, .parameters = { "d", "attribute" } },
    { .name = "items", .call = filter_items },
    { .name = "map", .call = filter_map, .is_variadic = true },
    { .name = "select", .call = filter_select, .is_variadic = true },
    { .name = "reject", .call = filter_reject, .is_variadic = true },
    { .name = "selectattr", .call = filter_selectattr, .is_variadic = true },
    { .name = "rejectattr", .call = filter_rejectattr, .is_variadic = true },
    { .name = "sort", .call = filter_sort, .parameters = { "reverse", "case_sensitive", "attribute" } },
    { .name = "dictsort", .call = filter_dictsort, .parameters = { "case_sensitive", "by", "reverse" } },
    { .name = "min", .call = filter_min, .parameters = { "case_sensitive", "attribute" } },
    { .name = "max", .call = filter_max, .parameters = { "case_sensitive", "attribute" } },
    { .name = "unique", .call = filter_unique, .parameters = { "case_sensitive", "attribute" } },
    { .name = "sum", .call = filter_sum, .parameters = { "attribute", "start" } },
    { .name = "batch", .call = filter_batch, .parameters = { "linecount", "fill_with" }, .required = 1 },
    { .name = "slice", .call = filter_slice, .parameters = { "slices", "fill_with" }, .required = 1 },
    { .name = "groupby",
      .call = filter_groupby,
      .parameters = { "attribute", "default", "case_sensitive" },
      .required = 1 },
    { .name = "attr", .call = filter_attr, .parameters = { "name" }, .required = 1 },
};

const qn_builtin *qn_find_sequence_filter(const char *name, size_t length)
{
    return qn_find_in(filters, sizeof filters / sizeof *filters, name, length);
}
