/* Evaluates expressions: names, attributes, items, slices, calls. */
#include "base/status.h"
#include "jinja/run.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- Errors and limits ---- */

qn_status qn_run_fail(const qn_run *r, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!r->at)
        return qn_fail(QN_ERR_INVALID, "chat template: %s", text);
    const char *source = r->jinja->source + r->at->begin;
    return qn_fail(QN_ERR_INVALID, "chat template, line %u, '%.*s': %s", r->at->line,
                   qn_shown_bytes(source, r->at->end > r->at->begin ? r->at->end - r->at->begin : 0, QN_SHOWN_BYTES),
                   source, text);
}

qn_status qn_run_work(qn_run *r, uint64_t steps)
{
    if (steps > r->steps) {
        r->steps = 0;
        return qn_run_fail(r, "the template takes more steps than are allowed");
    }
    r->steps -= steps;
    return QN_OK;
}

qn_status qn_run_compare(qn_run *r, const qn_value *a, const qn_value *b)
{
    const uint64_t x = qn_value_weight(a), y = qn_value_weight(b);
    return qn_run_work(r, x < y ? x : y);
}

qn_status qn_run_enter(qn_run *r)
{
    if (r->depth == QN_RUN_MAX_DEPTH)
        return qn_run_fail(r, "calls and expressions are nested deeper than %d", QN_RUN_MAX_DEPTH);
    r->depth++;
    return qn_run_work(r, 1);
}

qn_status qn_want_string(const qn_run *r, const qn_value *v, const char *what)
{
    return qn_is_string(v) ? QN_OK : qn_run_fail(r, "%s is %s, expected str", what, qn_value_type_name(v));
}

qn_status qn_want_key(qn_run *r, const qn_value *v)
{
    QN_TRY(qn_run_work(r, qn_value_weight(v)));
    return qn_value_is_hashable(v) ? QN_OK : qn_run_fail(r, "%s cannot be a key of a dict", qn_value_type_name(v));
}

qn_status qn_want_integer(const qn_run *r, const qn_value *v, const char *what, int64_t *out)
{
    if (!qn_is_integer(v))
        return qn_run_fail(r, "%s is %s, expected int", what, qn_value_type_name(v));
    *out = qn_integer_of(v);
    return QN_OK;
}

/* ---- Scopes ---- */

enum { NAMES_PER_STEP = 64 }; /* names compared in one step */

qn_status qn_scope_push(qn_run *r, qn_scope *parent, qn_scope **out)
{
    QN_TRY(qn_arena_alloc(&r->arena, out, 1, sizeof **out));
    (*out)->parent = parent;
    return QN_OK;
}

qn_status qn_scope_set(qn_run *r, qn_scope *scope, const char *name, qn_value value)
{
    QN_TRY(qn_run_work(r, 1 + scope->n / NAMES_PER_STEP));
    for (uint32_t i = 0; i < scope->n; i++)
        if (scope->names[i] == name) {
            scope->values[i] = value;
            return QN_OK;
        }
    if (scope->n == scope->capacity) {
        const uint32_t capacity = scope->capacity ? 2 * scope->capacity : 4;
        const char **names;
        qn_value *values;
        QN_TRY(qn_arena_alloc(&r->arena, &names, capacity, sizeof *names));
        QN_TRY(qn_arena_alloc(&r->arena, &values, capacity, sizeof *values));
        if (scope->n) {
            memcpy(names, scope->names, scope->n * sizeof *names);
            memcpy(values, scope->values, scope->n * sizeof *values);
        }
        scope->names = names;
        scope->values = values;
        scope->capacity = capacity;
    }
    scope->names[scope->n] = name;
    scope->values[scope->n++] = value;
    return QN_OK;
}

static qn_status make_function(qn_run *r, const qn_builtin *builtin, const qn_value *self, qn_value *out)
{
    qn_function *function;
    QN_TRY(qn_arena_alloc(&r->arena, &function, 1, sizeof *function));
    *function = (qn_function){ .builtin = builtin, .self = self ? *self : qn_value_none() };
    *out = (qn_value){ .type = QN_VALUE_FUNCTION, .u.function = function };
    return QN_OK;
}

static qn_status eval_name(qn_run *r, const qn_scope *scope, const char *name, qn_value *out)
{
    enum { NAMES_OF_SCOPE = 8 }; /* names that take as long to compare as moving to the next scope */
    uint64_t compared = 0;
    for (const qn_scope *s = scope; s; s = s->parent) {
        compared += NAMES_OF_SCOPE + s->n;
        for (uint32_t i = 0; i < s->n; i++)
            if (s->names[i] == name) {
                *out = s->values[i];
                return qn_run_work(r, compared / NAMES_PER_STEP);
            }
    }
    QN_TRY(qn_run_work(r, compared / NAMES_PER_STEP));
    const qn_builtin *global = qn_find_global(name, strlen(name));
    if (global)
        return make_function(r, global, NULL, out);
    *out = qn_value_undefined(name);
    return QN_OK;
}

/* ---- Code points ---- */

/* The number of bytes, out of 8, that begin a code point: all but 10xxxxxx. */
static size_t starts_in_word(const char *data)
{
    const uint64_t ones = UINT64_C(0x0101010101010101);
    uint64_t word;
    memcpy(&word, data, sizeof word);
    return sizeof word - ((((word >> 7) & ~(word >> 6) & ones) * ones) >> 56);
}

static bool is_start(char byte)
{
    return ((unsigned char)byte & 0xC0) != 0x80;
}

size_t qn_code_points(const qn_jinja_string *string)
{
    size_t n = 0, at = 0;
    for (; string->length - at >= sizeof(uint64_t); at += sizeof(uint64_t))
        n += starts_in_word(string->data + at);
    for (; at < string->length; at++)
        n += is_start(string->data[at]);
    return n;
}

size_t qn_code_point_at(const qn_jinja_string *string, size_t i)
{
    size_t at = 0;
    for (; string->length - at >= sizeof(uint64_t); at += sizeof(uint64_t)) {
        const size_t n = starts_in_word(string->data + at);
        if (n > i)
            break;
        i -= n;
    }
    for (; at < string->length; at++)
        if (is_start(string->data[at]) && i-- == 0)
            break;
    return at;
}

/* ---- Attributes and items ---- */

qn_status qn_fail_undefined(const qn_run *r, const qn_value *v)
{
    return v->u.name ? qn_run_fail(r, "'%s' is undefined", v->u.name) : qn_run_fail(r, "a value is undefined");
}

static qn_value loop_item(const qn_loop *loop, size_t at)
{
    return at < loop->n ? loop->items[at] : qn_value_undefined("loop item");
}

static bool loop_attribute(const qn_loop *loop, const char *name, size_t length, qn_value *out)
{
    const int64_t at = (int64_t)loop->at, n = (int64_t)loop->n;
    const struct {
        const char *name;
        qn_value value;
    } attributes[] = {
        { "index", qn_value_int(at + 1) },
        { "index0", qn_value_int(at) },
        { "first", qn_value_bool(at == 0) },
        { "last", qn_value_bool(at + 1 == n) },
        { "length", qn_value_int(n) },
        { "revindex", qn_value_int(n - at) },
        { "revindex0", qn_value_int(n - at - 1) },
        { "previtem", loop_item(loop, at ? loop->at - 1 : SIZE_MAX) },
        { "nextitem", loop_item(loop, loop->at + 1) },
        { "depth", qn_value_int((int64_t)loop->depth + 1) },
        { "depth0", qn_value_int(loop->depth) },
    };
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (strlen(attributes[i].name) == length && !memcmp(attributes[i].name, name, length)) {
            *out = attributes[i].value;
            return true;
        }
    return false;
}

/* Makes an undefined value with a copy of its name, for errors. */
static qn_status undefined_named(qn_run *r, const char *name, size_t length, qn_value *out)
{
    char *copy;
    QN_TRY(qn_arena_alloc(&r->arena, &copy, length + 1, 1));
    memcpy(copy, name, length);
    *out = qn_value_undefined(copy);
    return QN_OK;
}

/* Gets an attribute of a macro: its name, or the names of its parameters. */
static qn_status macro_attribute(qn_run *r, const qn_node *macro, const char *name, size_t length, qn_value *out,
                                 bool *found)
{
    const bool is_name = length == strlen("name") && !memcmp(name, "name", length);
    *found = is_name || (length == strlen("arguments") && !memcmp(name, "arguments", length));
    if (!*found)
        return QN_OK;
    if (is_name)
        return qn_value_text(&r->arena, macro->name, strlen(macro->name), QN_FROM_TEMPLATE, out);
    QN_TRY(qn_run_work(r, macro->n_args));
    QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_TUPLE, macro->n_args, out));
    for (uint32_t i = 0; i < macro->n_args; i++) {
        qn_value item;
        QN_TRY(qn_value_text(&r->arena, macro->args[i].name, strlen(macro->args[i].name), QN_FROM_TEMPLATE, &item));
        QN_TRY(qn_list_append(&r->arena, out->u.list, item));
    }
    return QN_OK;
}

/* Attributes that are not keys: methods, and attributes of loops and macros. */
static qn_status own_attribute(qn_run *r, const qn_value *value, const char *name, size_t length, qn_value *out,
                               bool *found)
{
    *found = true;
    if (value->type == QN_VALUE_LOOP && loop_attribute(value->u.loop, name, length, out))
        return QN_OK;
    if (value->type == QN_VALUE_MACRO)
        return macro_attribute(r, value->u.macro->node, name, length, out, found);
    if (value->type == QN_VALUE_TUPLE && value->u.list->is_group &&
        ((length == strlen("grouper") && !memcmp(name, "grouper", length)) ||
         (length == strlen("list") && !memcmp(name, "list", length)))) {
        *out = value->u.list->items[*name == 'l'];
        return QN_OK;
    }
    if (value->type == QN_VALUE_NAMESPACE) {
        const qn_value *member = qn_dict_find_text(value->u.dict, name, length);
        *found = member != NULL;
        if (member)
            *out = *member;
        return QN_OK;
    }
    const qn_builtin *method = qn_find_method(value, name, length);
    *found = method != NULL;
    return method ? make_function(r, method, value, out) : QN_OK;
}

qn_status qn_attribute_of(qn_run *r, const qn_value *value, const char *name, size_t length, qn_value *out)
{
    bool found;
    if (value->type == QN_VALUE_UNDEFINED)
        return qn_fail_undefined(r, value);
    QN_TRY(qn_run_work(r, length / QN_COPIED_PER_STEP));
    QN_TRY(own_attribute(r, value, name, length, out, &found));
    if (found)
        return QN_OK;
    if (value->type == QN_VALUE_DICT) {
        const qn_value *member = qn_dict_find_text(value->u.dict, name, length);
        if (member) {
            *out = *member;
            return QN_OK;
        }
    }
    return undefined_named(r, name, length, out);
}

static qn_status string_item(qn_run *r, const qn_value *string, size_t i, qn_value *out)
{
    const size_t begin = qn_code_point_at(string->u.string, i);
    const qn_jinja_string rest = { string->u.string->data + begin, NULL, string->u.string->length - begin };
    return qn_value_part(&r->arena, string, begin, begin + qn_code_point_at(&rest, 1), out);
}

/* Gets value[index] of a sequence; false if it has no such item. */
static qn_status sequence_item(qn_run *r, const qn_value *value, int64_t index, qn_value *out, bool *found)
{
    size_t n = 0;
    switch (value->type) {
    case QN_VALUE_STRING:
        QN_TRY(qn_run_work(r, 2 * (value->u.string->length / QN_COPIED_PER_STEP)));
        n = qn_code_points(value->u.string);
        break;
    case QN_VALUE_LIST:
    case QN_VALUE_TUPLE: n = value->u.list->n; break;
    case QN_VALUE_RANGE: n = value->u.range->n; break;
    default: break;
    }
    if (index < 0)
        index += (int64_t)n;
    *found = index >= 0 && (uint64_t)index < n;
    if (!*found)
        return QN_OK;
    if (value->type == QN_VALUE_STRING)
        return string_item(r, value, (size_t)index, out);
    *out = value->type == QN_VALUE_RANGE ? qn_value_int(value->u.range->start + index * value->u.range->step)
                                         : value->u.list->items[index];
    return QN_OK;
}

qn_status qn_item_of(qn_run *r, const qn_value *value, const qn_value *key, qn_value *out)
{
    bool found = false;
    if (value->type == QN_VALUE_UNDEFINED)
        return qn_fail_undefined(r, value);
    QN_TRY(qn_run_work(r, qn_value_weight(key)));
    if (value->type == QN_VALUE_DICT && qn_value_is_hashable(key)) {
        const qn_value *member = qn_dict_find(value->u.dict, key);
        if (member) {
            *out = *member;
            return QN_OK;
        }
    }
    if (qn_is_integer(key))
        QN_TRY(sequence_item(r, value, qn_integer_of(key), out, &found));
    if (!found && qn_is_string(key))
        QN_TRY(own_attribute(r, value, key->u.string->data, key->u.string->length, out, &found));
    if (found)
        return QN_OK;
    if (qn_is_string(key))
        return undefined_named(r, key->u.string->data, key->u.string->length, out);
    *out = qn_value_undefined("item");
    return QN_OK;
}

/* ---- Slices ---- */

static qn_status slice_index(qn_run *r, qn_scope *scope, const qn_node *node, int64_t *out, bool *given)
{
    qn_value v = qn_value_none();
    if (node)
        QN_TRY(qn_eval(r, scope, node, &v));
    *given = v.type != QN_VALUE_NONE;
    return *given ? qn_want_integer(r, &v, "an index of a slice", out) : QN_OK;
}

/* Brings the bounds of a slice into a sequence of n items, as Python's slice.indices does. */
static void clamp_slice(int64_t n, int64_t *start, bool has_start, int64_t *stop, bool has_stop, int64_t step)
{
    const int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
    if (!has_start)
        *start = step < 0 ? high : low;
    else if (*start < 0)
        *start = *start + n < low ? low : *start + n;
    else if (*start > high)
        *start = high;
    if (!has_stop)
        *stop = step < 0 ? low : high;
    else if (*stop < 0)
        *stop = *stop + n < low ? low : *stop + n;
    else if (*stop > high)
        *stop = high;
}

static qn_status slice_string(qn_run *r, const qn_value *string, int64_t start, int64_t step, size_t n, qn_value *out)
{
    QN_TRY(qn_run_work(r, 2 * (string->u.string->length / QN_COPIED_PER_STEP)));
    if (step == 1) {
        const size_t begin = qn_code_point_at(string->u.string, (size_t)start);
        const qn_jinja_string rest = { string->u.string->data + begin, NULL, string->u.string->length - begin };
        return qn_value_part(&r->arena, string, begin, begin + qn_code_point_at(&rest, n), out);
    }
    const qn_value *characters;
    size_t n_characters;
    qn_builder b = { .arena = &r->arena };
    QN_TRY(qn_items_of(r, string, &characters, &n_characters));
    for (size_t i = 0; i < n; i++)
        QN_TRY(qn_builder_string(&b, &characters[start + (int64_t)i * step]));
    QN_TRY(qn_builder_finish(&b, out));
    out->safe = string->safe;
    return QN_OK;
}

static qn_status slice_range(qn_run *r, const qn_range_value *of, int64_t start, int64_t stop, int64_t step, size_t n,
                             qn_value *out)
{
    qn_range_value slice = { .n = n }, *range;
    if (__builtin_mul_overflow(of->step, start, &slice.start) || __builtin_mul_overflow(of->step, stop, &slice.stop) ||
        __builtin_mul_overflow(of->step, step, &slice.step) ||
        __builtin_add_overflow(of->start, slice.start, &slice.start) ||
        __builtin_add_overflow(of->start, slice.stop, &slice.stop))
        return qn_run_fail(r, "the result has more than 64 bits");
    QN_TRY(qn_arena_alloc(&r->arena, &range, 1, sizeof *range));
    *range = slice;
    *out = (qn_value){ .type = QN_VALUE_RANGE, .u.range = range };
    return QN_OK;
}

static qn_status eval_slice(qn_run *r, qn_scope *scope, const qn_node *node, qn_value *out)
{
    qn_value of;
    int64_t start = 0, stop = 0, step = 1;
    bool has_start, has_stop, has_step;
    QN_TRY(qn_eval(r, scope, node->a, &of));
    QN_TRY(slice_index(r, scope, node->b, &start, &has_start));
    QN_TRY(slice_index(r, scope, node->c, &stop, &has_stop));
    QN_TRY(slice_index(r, scope, node->d, &step, &has_step));
    r->at = node;
    if (of.type == QN_VALUE_UNDEFINED)
        return qn_fail_undefined(r, &of);
    if (has_step && (step == 0 || step == INT64_MIN))
        return qn_run_fail(r, "the step of a slice is %s", step ? "too large" : "0");
    const bool is_list = of.type == QN_VALUE_LIST || of.type == QN_VALUE_TUPLE || of.type == QN_VALUE_RANGE;
    if (!is_list && !qn_is_string(&of))
        return qn_run_fail(r, "%s cannot be sliced", qn_value_type_name(&of));
    const qn_value *items = NULL;
    QN_TRY(qn_run_work(r, qn_is_string(&of) ? of.u.string->length / QN_COPIED_PER_STEP : 0));
    size_t n_items = qn_is_string(&of) ? qn_code_points(of.u.string) : 0;
    if (of.type == QN_VALUE_RANGE)
        n_items = of.u.range->n;
    else if (is_list)
        QN_TRY(qn_items_of(r, &of, &items, &n_items));
    clamp_slice((int64_t)n_items, &start, has_start, &stop, has_stop, step);
    const uint64_t distance = step > 0       ? (stop > start ? (uint64_t)(stop - start) : 0)
                              : start > stop ? (uint64_t)(start - stop)
                                             : 0,
                   stride = step > 0 ? (uint64_t)step : (uint64_t)-step;
    const size_t n = distance ? (size_t)((distance - 1) / stride + 1) : 0;
    if (!is_list)
        return slice_string(r, &of, start, step, n, out);
    if (of.type == QN_VALUE_RANGE)
        return slice_range(r, of.u.range, start, stop, step, n, out);
    QN_TRY(qn_run_work(r, n));
    QN_TRY(qn_value_sequence(&r->arena, of.type == QN_VALUE_TUPLE ? QN_VALUE_TUPLE : QN_VALUE_LIST, n, out));
    for (size_t i = 0; i < n; i++)
        QN_TRY(qn_list_append(&r->arena, out->u.list, items[start + (int64_t)i * step]));
    return QN_OK;
}

/* ---- Iteration ---- */

static qn_status string_items(qn_run *r, const qn_value *string, const qn_value **items, size_t *n)
{
    const qn_jinja_string *s = string->u.string;
    qn_value *characters;
    QN_TRY(qn_run_work(r, s->length / QN_COPIED_PER_STEP));
    *n = qn_code_points(s);
    QN_TRY(qn_run_work(r, *n));
    QN_TRY(qn_arena_alloc(&r->arena, &characters, *n, sizeof *characters));
    size_t at = 0;
    for (size_t i = 0; i < *n; i++) {
        const qn_jinja_string rest = { s->data + at, NULL, s->length - at };
        const size_t bytes = qn_code_point_at(&rest, 1);
        QN_TRY(qn_value_part(&r->arena, string, at, at + bytes, &characters[i]));
        characters[i].safe = false;
        at += bytes;
    }
    *items = characters;
    return QN_OK;
}

static qn_status dict_items(qn_run *r, const qn_dict *dict, qn_view_kind kind, const qn_value **items, size_t *n)
{
    qn_value *members;
    *n = dict->n;
    QN_TRY(qn_run_work(r, kind == QN_VIEW_ITEMS ? 2 * *n : *n));
    QN_TRY(qn_arena_alloc(&r->arena, &members, *n, sizeof *members));
    for (size_t i = 0; i < *n; i++) {
        members[i] = kind == QN_VIEW_VALUES ? dict->entries[i].value : dict->entries[i].key;
        if (kind != QN_VIEW_ITEMS)
            continue;
        QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_TUPLE, 2, &members[i]));
        QN_TRY(qn_list_append(&r->arena, members[i].u.list, dict->entries[i].key));
        QN_TRY(qn_list_append(&r->arena, members[i].u.list, dict->entries[i].value));
    }
    *items = members;
    return QN_OK;
}

static qn_status range_items(qn_run *r, const qn_range_value *range, const qn_value **items, size_t *n)
{
    qn_value *integers;
    *n = range->n;
    QN_TRY(qn_run_work(r, *n));
    QN_TRY(qn_arena_alloc(&r->arena, &integers, *n, sizeof *integers));
    for (size_t i = 0; i < *n; i++)
        integers[i] = qn_value_int(range->start + (int64_t)i * range->step);
    *items = integers;
    return QN_OK;
}

qn_status qn_items_of(qn_run *r, const qn_value *value, const qn_value **items, size_t *n)
{
    switch (value->type) {
    case QN_VALUE_UNDEFINED:
        *items = NULL;
        *n = 0;
        return QN_OK;
    case QN_VALUE_STRING: return string_items(r, value, items, n);
    case QN_VALUE_LIST:
    case QN_VALUE_TUPLE:
        *items = value->u.list->items;
        *n = value->u.list->n;
        return QN_OK;
    case QN_VALUE_DICT: return dict_items(r, value->u.dict, QN_VIEW_KEYS, items, n);
    case QN_VALUE_VIEW: return dict_items(r, value->u.view->dict, value->u.view->kind, items, n);
    case QN_VALUE_RANGE: return range_items(r, value->u.range, items, n);
    case QN_VALUE_ITERATOR:
        *n = value->u.iterator->n - value->u.iterator->at;
        *items = *n ? value->u.iterator->items + value->u.iterator->at : NULL;
        value->u.iterator->at = value->u.iterator->n;
        return QN_OK;
    default: return qn_run_fail(r, "%s cannot be iterated", qn_value_type_name(value));
    }
}

/* ---- Literals and conditions ---- */

static qn_status eval_sequence(qn_run *r, qn_scope *scope, const qn_node *node, qn_value *out)
{
    QN_TRY(
        qn_value_sequence(&r->arena, node->kind == QN_NODE_LIST ? QN_VALUE_LIST : QN_VALUE_TUPLE, node->n_items, out));
    for (uint32_t i = 0; i < node->n_items; i++) {
        qn_value item;
        QN_TRY(qn_eval(r, scope, node->items[i], &item));
        QN_TRY(qn_list_append(&r->arena, out->u.list, item));
    }
    return QN_OK;
}

static qn_status eval_dict(qn_run *r, qn_scope *scope, const qn_node *node, qn_value *out)
{
    QN_TRY(qn_value_dict(&r->arena, QN_VALUE_DICT, out));
    for (uint32_t i = 0; i < node->n_items; i += 2) {
        qn_value key, value;
        QN_TRY(qn_eval(r, scope, node->items[i], &key));
        QN_TRY(qn_eval(r, scope, node->items[i + 1], &value));
        QN_TRY(qn_want_key(r, &key));
        QN_TRY(qn_dict_set(&r->arena, out->u.dict, key, value));
    }
    return QN_OK;
}

static qn_status eval_concat(qn_run *r, qn_scope *scope, const qn_node *node, qn_value *out)
{
    qn_builder b = { .arena = &r->arena };
    for (uint32_t i = 0; i < node->n_items; i++) {
        qn_value item;
        QN_TRY(qn_eval(r, scope, node->items[i], &item));
        r->at = node;
        QN_TRY(qn_append_str(r, &b, &item));
    }
    return qn_builder_finish(&b, out);
}

static qn_status compare(qn_run *r, qn_operator op, const qn_value *a, const qn_value *b, bool *out)
{
    int order = 0;
    if (op == QN_OP_IN || op == QN_OP_NOT_IN) {
        QN_TRY(qn_contains(r, b, a, out));
        *out = *out != (op == QN_OP_NOT_IN);
        return QN_OK;
    }
    QN_TRY(qn_run_compare(r, a, b));
    if (op == QN_OP_EQUAL || op == QN_OP_NOT_EQUAL) {
        *out = qn_value_equal(a, b) == (op == QN_OP_EQUAL);
        return QN_OK;
    }
    if (a->type == QN_VALUE_UNDEFINED || b->type == QN_VALUE_UNDEFINED)
        return qn_fail_undefined(r, a->type == QN_VALUE_UNDEFINED ? a : b);
    if (!qn_value_order(a, b, &order))
        return qn_run_fail(r, "%s and %s have no order", qn_value_type_name(a), qn_value_type_name(b));
    *out = order != 2 && (op == QN_OP_LESS         ? order < 0
                          : op == QN_OP_LESS_EQUAL ? order <= 0
                          : op == QN_OP_GREATER    ? order > 0
                                                   : order >= 0);
    return QN_OK;
}

static qn_status eval_comparison(qn_run *r, qn_scope *scope, const qn_node *node, qn_value *out)
{
    qn_value left, right;
    bool is_true = true;
    QN_TRY(qn_eval(r, scope, node->a, &left));
    for (uint32_t i = 0; i < node->n_items && is_true; i++) {
        QN_TRY(qn_eval(r, scope, node->items[i], &right));
        r->at = node;
        QN_TRY(compare(r, (qn_operator)node->ops[i], &left, &right, &is_true));
        left = right;
    }
    *out = qn_value_bool(is_true);
    return QN_OK;
}

static qn_status eval_condition(qn_run *r, qn_scope *scope, const qn_node *node, qn_value *out)
{
    qn_value condition;
    QN_TRY(qn_eval(r, scope, node->b, &condition));
    if (qn_value_is_true(&condition))
        return qn_eval(r, scope, node->a, out);
    *out = qn_value_undefined("the value of an if without else");
    return node->c ? qn_eval(r, scope, node->c, out) : QN_OK;
}

static qn_status eval_signed(qn_run *r, qn_scope *scope, const qn_node *node, qn_value *out)
{
    static const qn_value zero = { .type = QN_VALUE_INT };
    qn_value v;
    QN_TRY(qn_eval(r, scope, node->a, &v));
    r->at = node;
    if (!qn_is_number(&v))
        return v.type == QN_VALUE_UNDEFINED ? qn_fail_undefined(r, &v)
                                            : qn_run_fail(r, "%s has no sign", qn_value_type_name(&v));
    if (v.type == QN_VALUE_FLOAT) {
        *out = qn_value_float(node->kind == QN_NODE_NEGATE ? -v.u.real : v.u.real);
        return QN_OK;
    }
    return qn_apply_operator(r, node->kind == QN_NODE_NEGATE ? QN_OP_SUBTRACT : QN_OP_ADD, &zero, &v, out);
}

static qn_status eval_two(qn_run *r, qn_scope *scope, const qn_node *node, qn_value *out)
{
    qn_value a, b;
    QN_TRY(qn_eval(r, scope, node->a, &a));
    if (node->kind == QN_NODE_AND || node->kind == QN_NODE_OR) {
        *out = a;
        return qn_value_is_true(&a) == (node->kind == QN_NODE_AND) ? qn_eval(r, scope, node->b, out) : QN_OK;
    }
    QN_TRY(qn_eval(r, scope, node->b, &b));
    r->at = node;
    if (node->kind == QN_NODE_ITEM)
        return qn_item_of(r, &a, &b, out);
    const bool is_format = node->op == QN_OP_MODULO && qn_is_string(&a);
    if (a.type == QN_VALUE_UNDEFINED || (b.type == QN_VALUE_UNDEFINED && !is_format))
        return qn_fail_undefined(r, a.type == QN_VALUE_UNDEFINED ? &a : &b);
    return qn_apply_operator(r, node->op, &a, &b, out);
}

static bool is_sum(const qn_node *node)
{
    return node->kind == QN_NODE_BINARY && node->op == QN_OP_ADD;
}

/* Appends strings to a string, up to the first other value. *n_added: how many. */
static qn_status add_texts(qn_run *r, const qn_value *values, size_t n, size_t *n_added, qn_value *sum)
{
    qn_builder b = { .arena = &r->arena };
    size_t length = sum->u.string->length, i = 0;
    while (i < n && qn_is_string(&values[i]) && !values[i].safe)
        length += values[i++].u.string->length;
    QN_TRY(qn_run_work(r, length / QN_COPIED_PER_STEP));
    QN_TRY(qn_builder_reserve(&b, length));
    QN_TRY(qn_builder_string(&b, sum));
    for (size_t k = 0; k < i; k++)
        QN_TRY(qn_builder_string(&b, &values[k]));
    *n_added = i;
    return qn_builder_finish(&b, sum);
}

/* Evaluates a + b + c + ...: strings are joined all at once, since the sum of two would copy everything before it. */
static qn_status eval_sum(qn_run *r, qn_scope *scope, const qn_node *node, qn_value *out)
{
    size_t n = 1;
    const qn_node *first = node, **sums;
    qn_value *values;
    for (; is_sum(first); first = first->a)
        n++;
    QN_TRY(qn_arena_alloc(&r->arena, &values, n, sizeof *values));
    QN_TRY(qn_arena_alloc(&r->arena, &sums, n, sizeof *sums));
    for (size_t i = n; --i > 0; node = node->a)
        sums[i] = node;
    QN_TRY(qn_eval(r, scope, first, &values[0]));
    for (size_t i = 1; i < n; i++) {
        QN_TRY(qn_eval(r, scope, sums[i]->b, &values[i]));
        r->at = sums[i];
        if (values[0].type == QN_VALUE_UNDEFINED || values[i].type == QN_VALUE_UNDEFINED)
            return qn_fail_undefined(r, values[0].type == QN_VALUE_UNDEFINED ? &values[0] : &values[i]);
    }
    *out = values[0];
    for (size_t i = 1, added; i < n; i += added) {
        if (qn_is_string(out) && !out->safe && qn_is_string(&values[i]) && !values[i].safe) {
            QN_TRY(add_texts(r, values + i, n - i, &added, out));
            continue;
        }
        const qn_value left = *out;
        added = 1;
        QN_TRY(qn_apply_operator(r, QN_OP_ADD, &left, &values[i], out));
    }
    return QN_OK;
}

static qn_status eval_one(qn_run *r, qn_scope *scope, const qn_node *node, qn_value *out)
{
    qn_value a;
    QN_TRY(qn_eval(r, scope, node->a, &a));
    r->at = node;
    if (node->kind == QN_NODE_ATTRIBUTE)
        return qn_attribute_of(r, &a, node->name, strlen(node->name), out);
    *out = qn_value_bool(!qn_value_is_true(&a));
    return QN_OK;
}

static qn_status eval_node(qn_run *r, qn_scope *scope, const qn_node *node, qn_value *out)
{
    switch (node->kind) {
    case QN_NODE_CONST: *out = node->value; return QN_OK;
    case QN_NODE_NAME: return eval_name(r, scope, node->name, out);
    case QN_NODE_ATTRIBUTE:
    case QN_NODE_NOT: return eval_one(r, scope, node, out);
    case QN_NODE_BINARY:
        return is_sum(node) && is_sum(node->a) ? eval_sum(r, scope, node, out) : eval_two(r, scope, node, out);
    case QN_NODE_ITEM:
    case QN_NODE_AND:
    case QN_NODE_OR: return eval_two(r, scope, node, out);
    case QN_NODE_SLICE: return eval_slice(r, scope, node, out);
    case QN_NODE_CALL: return qn_eval_call(r, scope, node, NULL, out);
    case QN_NODE_FILTER: return qn_eval_filter(r, scope, node, qn_value_none(), out);
    case QN_NODE_TEST: return qn_eval_test(r, scope, node, out);
    case QN_NODE_NEGATE:
    case QN_NODE_PLUS: return eval_signed(r, scope, node, out);
    case QN_NODE_COMPARE: return eval_comparison(r, scope, node, out);
    case QN_NODE_CONCAT: return eval_concat(r, scope, node, out);
    case QN_NODE_IF_ELSE: return eval_condition(r, scope, node, out);
    case QN_NODE_LIST:
    case QN_NODE_TUPLE: return eval_sequence(r, scope, node, out);
    case QN_NODE_DICT: return eval_dict(r, scope, node, out);
    default: return qn_run_fail(r, "not an expression");
    }
}

qn_status qn_eval(qn_run *r, qn_scope *scope, const qn_node *node, qn_value *out)
{
    QN_TRY(qn_run_enter(r));
    r->at = node;
    QN_TRY(eval_node(r, scope, node, out));
    r->depth--;
    return QN_OK;
}
