/* Strings, lists and dicts of templates, and Python's comparisons. */
#include "jinja/value.h"

#include "base/keyed_hash.h"
#include "base/memory.h"
#include "base/status.h"

#include <math.h>
#include <string.h>

/* ---- Strings ---- */

qn_status qn_value_text(qn_arena *arena, const char *data, size_t length, uint8_t origin, qn_value *out)
{
    qn_jinja_string *string;
    QN_TRY(qn_arena_alloc(arena, &string, 1, sizeof *string));
    *string = (qn_jinja_string){ .data = data, .length = length };
    *out = (qn_value){ .type = QN_VALUE_STRING, .origin = origin, .u.string = string };
    return QN_OK;
}

qn_status qn_value_copy_text(qn_arena *arena, const char *data, size_t length, uint8_t origin, qn_value *out)
{
    char *copy;
    QN_TRY(qn_arena_alloc(arena, &copy, length, 1));
    if (length)
        memcpy(copy, data, length);
    return qn_value_text(arena, copy, length, origin, out);
}

qn_status qn_value_part(qn_arena *arena, const qn_value *string, size_t begin, size_t end, qn_value *out)
{
    const qn_jinja_string *s = string->u.string;
    if (begin == 0 && end == s->length) {
        *out = *string;
        return QN_OK;
    }
    qn_jinja_string *part;
    QN_TRY(qn_arena_alloc(arena, &part, 1, sizeof *part));
    *part = (qn_jinja_string){ s->data + begin, s->marks ? s->marks + begin : NULL, end - begin };
    *out = (qn_value){ .type = QN_VALUE_STRING, .origin = string->origin, .safe = string->safe, .u.string = part };
    return QN_OK;
}

/* Makes room for more bytes. A long string grows by a quarter: it is not copied, but its memory counts. */
qn_status qn_builder_reserve(qn_builder *b, size_t more)
{
    enum { LONG = 1 << 20 };
    size_t need, capacity = b->capacity ? b->capacity : 64;
    if (!qn_add_size(b->length, more, &need))
        return qn_fail(QN_ERR_MEMORY, "chat template: a string of %zu and %zu bytes does not fit in memory", b->length,
                       more);
    if (need <= b->capacity)
        return QN_OK;
    if (!qn_add_size(capacity, capacity / (capacity < LONG ? 1 : 4), &capacity))
        return qn_fail(QN_ERR_MEMORY, "chat template: a string of %zu bytes does not fit in memory", need);
    capacity = capacity > need ? capacity : need;
    QN_TRY(qn_arena_grow(b->arena, &b->data, b->capacity, capacity));
    if (b->mixed)
        QN_TRY(qn_arena_grow(b->arena, &b->marks, b->capacity, capacity));
    b->capacity = capacity;
    return QN_OK;
}

static qn_status start_marks(qn_builder *b)
{
    QN_TRY(qn_arena_alloc(b->arena, &b->marks, b->capacity, 1));
    memset(b->marks, b->origin, b->length);
    b->mixed = true;
    return QN_OK;
}

static qn_status append(qn_builder *b, const char *data, const uint8_t *marks, size_t length, uint8_t origin)
{
    if (!length)
        return QN_OK;
    if (!b->length)
        b->origin = marks ? marks[0] : origin;
    QN_TRY(qn_builder_reserve(b, length));
    if (!b->mixed && (marks || origin != b->origin))
        QN_TRY(start_marks(b));
    memcpy(b->data + b->length, data, length);
    if (b->mixed && marks)
        memcpy(b->marks + b->length, marks, length);
    else if (b->mixed)
        memset(b->marks + b->length, origin, length);
    b->length += length;
    return QN_OK;
}

qn_status qn_builder_bytes(qn_builder *b, const char *data, size_t length, uint8_t origin)
{
    return append(b, data, NULL, length, origin);
}

qn_status qn_builder_string(qn_builder *b, const qn_value *string)
{
    const qn_jinja_string *s = string->u.string;
    return append(b, s->data, s->marks, s->length, string->origin);
}

/* Doubles the copied part each time: repeating a short text takes the time of copying a long one. */
qn_status qn_builder_repeat(qn_builder *b, const qn_value *string, size_t times)
{
    const size_t n = string->u.string->length, begin = b->length;
    size_t total;
    if (!n || !times)
        return QN_OK;
    if (!qn_mul_size(n, times, &total))
        return qn_fail(QN_ERR_MEMORY, "chat template: a string of %zu bytes %zu times does not fit in memory", n,
                       times);
    QN_TRY(qn_builder_reserve(b, total));
    QN_TRY(qn_builder_string(b, string));
    for (size_t done = n; done < total;) {
        const size_t more = done < total - done ? done : total - done;
        QN_TRY(append(b, b->data + begin, b->mixed ? b->marks + begin : NULL, more, b->origin));
        done += more;
    }
    return QN_OK;
}

qn_status qn_builder_finish(qn_builder *b, qn_value *out)
{
    qn_jinja_string *string;
    QN_TRY(qn_arena_alloc(b->arena, &string, 1, sizeof *string));
    *string = (qn_jinja_string){ b->length ? b->data : "", b->mixed ? b->marks : NULL, b->length };
    *out =
        (qn_value){ .type = QN_VALUE_STRING, .origin = b->length ? b->origin : QN_FROM_TEMPLATE, .u.string = string };
    return QN_OK;
}

/* ---- Lists and iterators ---- */

uint64_t qn_value_weight(const qn_value *v)
{
    switch (v->type) {
    case QN_VALUE_STRING: return v->u.string->length / 64;
    case QN_VALUE_LIST:
    case QN_VALUE_TUPLE: return v->u.list->weight;
    case QN_VALUE_DICT: return v->u.dict->weight;
    case QN_VALUE_VIEW: return v->u.view->dict->weight;
    default: return 0;
    }
}

/* Updates the depth and weight of a container for a new member. */
static qn_status add_member(uint32_t *depth, uint64_t *weight, const qn_value *member)
{
    enum { MOST_SHIFT = 60 };
    const uint64_t most = UINT64_C(1) << MOST_SHIFT, sum = *weight + 1 + qn_value_weight(member);
    *weight = sum < most ? sum : most;
    uint32_t inner = 0;
    if (member->type == QN_VALUE_LIST || member->type == QN_VALUE_TUPLE)
        inner = member->u.list->depth;
    else if (member->type == QN_VALUE_DICT)
        inner = member->u.dict->depth;
    if (inner >= QN_VALUE_MAX_DEPTH)
        return qn_fail(QN_ERR_INVALID, "chat template: lists and dicts are nested deeper than %d", QN_VALUE_MAX_DEPTH);
    if (inner + 1 > *depth)
        *depth = inner + 1;
    return QN_OK;
}

qn_status qn_value_sequence(qn_arena *arena, qn_value_type type, size_t capacity, qn_value *out)
{
    qn_list *list;
    QN_TRY(qn_arena_alloc(arena, &list, 1, sizeof *list));
    QN_TRY(qn_arena_alloc(arena, &list->items, capacity, sizeof *list->items));
    list->capacity = capacity;
    *out = (qn_value){ .type = (uint8_t)type, .u.list = list };
    return QN_OK;
}

qn_status qn_list_append(qn_arena *arena, qn_list *list, qn_value item)
{
    if (list->n == list->capacity) {
        const size_t capacity = list->capacity < 4 ? 8 : list->capacity * 2;
        qn_value *items;
        QN_TRY(qn_arena_alloc(arena, &items, capacity, sizeof *items));
        if (list->n)
            memcpy(items, list->items, list->n * sizeof *items);
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->n++] = item;
    return add_member(&list->depth, &list->weight, &item);
}

qn_status qn_value_iterator(qn_arena *arena, const qn_value *items, size_t n, qn_value *out)
{
    qn_iterator *iterator;
    QN_TRY(qn_arena_alloc(arena, &iterator, 1, sizeof *iterator));
    *iterator = (qn_iterator){ .items = items, .n = n };
    *out = (qn_value){ .type = QN_VALUE_ITERATOR, .u.iterator = iterator };
    return QN_OK;
}

/* ---- Dicts ---- */

enum { LINEAR_ENTRIES = 8 };

/* Returns the hash of a hashable value. Equal values have equal hashes, including 1, 1.0 and True. */
static uint64_t hash_of(const qn_value *v)
{
    uint64_t h = v->type;
    switch (v->type) {
    case QN_VALUE_BOOL:
    case QN_VALUE_INT:
    case QN_VALUE_FLOAT: {
        const double x = qn_real_of(v) + 0.0;
        memcpy(&h, &x, sizeof h);
        return qn_keyed_hash(&h, sizeof h);
    }
    case QN_VALUE_STRING: return qn_keyed_hash(v->u.string->data, v->u.string->length);
    case QN_VALUE_TUPLE:
        for (size_t i = 0; i < v->u.list->n; i++) {
            const uint64_t item = hash_of(&v->u.list->items[i]);
            h = qn_keyed_hash_with(&item, sizeof item, h);
        }
        return h;
    default: return qn_keyed_hash(&h, sizeof h);
    }
}

static const qn_dict_entry *find_entry(const qn_dict *dict, const qn_value *key, uint64_t hash)
{
    if (!dict->index) {
        for (size_t i = 0; i < dict->n; i++)
            if (dict->entries[i].hash == hash && qn_value_equal(&dict->entries[i].key, key))
                return &dict->entries[i];
        return NULL;
    }
    for (size_t at = hash & (dict->index_size - 1);; at = (at + 1) & (dict->index_size - 1)) {
        const uint32_t entry = dict->index[at];
        if (!entry)
            return NULL;
        if (dict->entries[entry - 1].hash == hash && qn_value_equal(&dict->entries[entry - 1].key, key))
            return &dict->entries[entry - 1];
    }
}

const qn_value *qn_dict_find(const qn_dict *dict, const qn_value *key)
{
    const qn_dict_entry *entry = find_entry(dict, key, hash_of(key));
    return entry ? &entry->value : NULL;
}

const qn_value *qn_dict_find_text(const qn_dict *dict, const char *key, size_t length)
{
    const qn_jinja_string string = { key, NULL, length };
    const qn_value value = { .type = QN_VALUE_STRING, .u.string = &string };
    return qn_dict_find(dict, &value);
}

static void put_in_index(qn_dict *dict, size_t entry)
{
    size_t at = dict->entries[entry].hash & (dict->index_size - 1);
    while (dict->index[at])
        at = (at + 1) & (dict->index_size - 1);
    dict->index[at] = (uint32_t)entry + 1;
}

/* Makes room for another entry. The index has at least twice the number of slots that the dict has entries. */
static qn_status grow_dict(qn_arena *arena, qn_dict *dict)
{
    const size_t capacity = dict->capacity ? dict->capacity * 2 : LINEAR_ENTRIES;
    qn_dict_entry *entries;
    if (capacity > UINT32_MAX / 4)
        return qn_fail(QN_ERR_INVALID, "chat template: a dict has more than %zu keys", dict->n);
    QN_TRY(qn_arena_alloc(arena, &entries, capacity, sizeof *entries));
    if (dict->n)
        memcpy(entries, dict->entries, dict->n * sizeof *entries);
    dict->entries = entries;
    dict->capacity = capacity;
    if (capacity <= LINEAR_ENTRIES)
        return QN_OK;
    QN_TRY(qn_arena_alloc(arena, &dict->index, 2 * capacity, sizeof *dict->index));
    dict->index_size = 2 * capacity;
    for (size_t i = 0; i < dict->n; i++)
        put_in_index(dict, i);
    return QN_OK;
}

qn_status qn_value_dict(qn_arena *arena, qn_value_type type, qn_value *out)
{
    qn_dict *dict;
    QN_TRY(qn_arena_alloc(arena, &dict, 1, sizeof *dict));
    *out = (qn_value){ .type = (uint8_t)type, .u.dict = dict };
    return QN_OK;
}

qn_status qn_dict_set(qn_arena *arena, qn_dict *dict, qn_value key, qn_value value)
{
    const uint64_t hash = hash_of(&key);
    qn_dict_entry *entry = (qn_dict_entry *)find_entry(dict, &key, hash);
    QN_TRY(add_member(&dict->depth, &dict->weight, &key));
    QN_TRY(add_member(&dict->depth, &dict->weight, &value));
    if (entry) {
        entry->value = value;
        return QN_OK;
    }
    if (dict->n == dict->capacity)
        QN_TRY(grow_dict(arena, dict));
    dict->entries[dict->n] = (qn_dict_entry){ key, value, hash };
    if (dict->index)
        put_in_index(dict, dict->n);
    dict->n++;
    return QN_OK;
}

/* ---- JSON ---- */

enum { MAX_JSON_DEPTH = 256 };

/* The source of values, and the total bytes of their strings. */
typedef struct json_source {
    qn_arena *arena;
    uint8_t origin;
    bool borrows;
    size_t n_bytes;
} json_source;

static qn_status text_from_json(json_source *from, const char *text, size_t length, qn_value *out)
{
    from->n_bytes += length;
    return from->borrows ? qn_value_text(from->arena, text, length, from->origin, out)
                         : qn_value_copy_text(from->arena, text, length, from->origin, out);
}

static qn_status from_json(json_source *from, const json_t *json, unsigned depth, qn_value *out)
{
    if (depth > MAX_JSON_DEPTH)
        return qn_fail(QN_ERR_INVALID, "a value of the conversation is nested deeper than %d", MAX_JSON_DEPTH);
    switch (json_typeof(json)) {
    case JSON_NULL: *out = qn_value_none(); return QN_OK;
    case JSON_TRUE:
    case JSON_FALSE: *out = qn_value_bool(json_is_true(json)); return QN_OK;
    case JSON_INTEGER: *out = qn_value_int(json_integer_value(json)); return QN_OK;
    case JSON_REAL: *out = qn_value_float(json_real_value(json)); return QN_OK;
    case JSON_STRING: return text_from_json(from, json_string_value(json), json_string_length(json), out);
    case JSON_ARRAY: {
        QN_TRY(qn_value_sequence(from->arena, QN_VALUE_LIST, json_array_size(json), out));
        for (size_t i = 0; i < json_array_size(json); i++) {
            qn_value item;
            QN_TRY(from_json(from, json_array_get(json, i), depth + 1, &item));
            QN_TRY(qn_list_append(from->arena, out->u.list, item));
        }
        return QN_OK;
    }
    case JSON_OBJECT: {
        const char *name;
        json_t *member;
        QN_TRY(qn_value_dict(from->arena, QN_VALUE_DICT, out));
        json_object_foreach((json_t *)json, name, member)
        {
            qn_value key, value;
            QN_TRY(text_from_json(from, name, strlen(name), &key));
            QN_TRY(from_json(from, member, depth + 1, &value));
            QN_TRY(qn_dict_set(from->arena, out->u.dict, key, value));
        }
        return QN_OK;
    }
    }
    *out = qn_value_none();
    return QN_OK;
}

qn_status qn_value_from_json(qn_arena *arena, const json_t *json, qn_value *out)
{
    json_source from = { .arena = arena, .origin = QN_FROM_DATA };
    return from_json(&from, json, 0, out);
}

qn_status qn_value_of_json(qn_arena *arena, const json_t *json, bool from_template, size_t *n_bytes, qn_value *out)
{
    json_source from = { .arena = arena, .origin = from_template ? QN_FROM_TEMPLATE : QN_FROM_DATA, .borrows = true };
    const qn_status status = from_json(&from, json, 0, out);
    *n_bytes = from.n_bytes;
    return status;
}

/* ---- Comparing ---- */

bool qn_value_is_true(const qn_value *v)
{
    switch (v->type) {
    case QN_VALUE_UNDEFINED:
    case QN_VALUE_NONE: return false;
    case QN_VALUE_BOOL: return v->u.boolean;
    case QN_VALUE_INT: return v->u.integer != 0;
    case QN_VALUE_FLOAT: return v->u.real != 0;
    case QN_VALUE_STRING: return v->u.string->length > 0;
    case QN_VALUE_LIST:
    case QN_VALUE_TUPLE: return v->u.list->n > 0;
    case QN_VALUE_DICT: return v->u.dict->n > 0;
    case QN_VALUE_RANGE: return v->u.range->n > 0;
    case QN_VALUE_VIEW: return v->u.view->dict->n > 0;
    default: return true;
    }
}

static bool equal_dicts(const qn_dict *a, const qn_dict *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        const qn_value *other = qn_dict_find(b, &a->entries[i].key);
        if (!other || !qn_value_equal(&a->entries[i].value, other))
            return false;
    }
    return true;
}

/* Views of keys and of items compare as sets; a view of values equals only itself. */
static bool equal_views(const qn_dict_view *a, const qn_dict_view *b)
{
    if (a == b || a->kind != b->kind || a->kind == QN_VIEW_VALUES)
        return a == b;
    if (a->kind == QN_VIEW_ITEMS)
        return equal_dicts(a->dict, b->dict);
    bool equal = a->dict->n == b->dict->n;
    for (size_t i = 0; equal && i < a->dict->n; i++)
        equal = qn_dict_find(b->dict, &a->dict->entries[i].key) != NULL;
    return equal;
}

static bool equal_lists(const qn_list *a, const qn_list *b)
{
    if (a == b)
        return true;
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!qn_value_equal(&a->items[i], &b->items[i]))
            return false;
    return true;
}

/* Compares an integer and a float exactly: an integer above 2^53 is not rounded. */
static int order_mixed(int64_t i, double x)
{
    if (isnan(x))
        return 2;
    if (x >= 9223372036854775808.0)
        return -1;
    if (x < -9223372036854775808.0)
        return 1;
    const int64_t floor_x = (int64_t)floor(x);
    return i < floor_x ? -1 : i > floor_x ? 1 : x > floor(x) ? -1 : 0;
}

static int order_numbers(const qn_value *a, const qn_value *b)
{
    if (qn_is_integer(a) && qn_is_integer(b)) {
        const int64_t x = qn_integer_of(a), y = qn_integer_of(b);
        return x < y ? -1 : x > y;
    }
    if (qn_is_integer(a))
        return order_mixed(qn_integer_of(a), b->u.real);
    if (qn_is_integer(b)) {
        const int order = order_mixed(qn_integer_of(b), a->u.real);
        return order == 2 ? 2 : -order;
    }
    const double x = a->u.real, y = b->u.real;
    return isnan(x) || isnan(y) ? 2 : x < y ? -1 : x > y;
}

bool qn_value_equal(const qn_value *a, const qn_value *b)
{
    if (qn_is_number(a) && qn_is_number(b))
        return order_numbers(a, b) == 0;
    if (a->type != b->type)
        return false;
    switch (a->type) {
    case QN_VALUE_UNDEFINED:
    case QN_VALUE_NONE: return true;
    case QN_VALUE_STRING:
        return a->u.string->length == b->u.string->length &&
               memcmp(a->u.string->data, b->u.string->data, a->u.string->length) == 0;
    case QN_VALUE_LIST:
    case QN_VALUE_TUPLE: return equal_lists(a->u.list, b->u.list);
    case QN_VALUE_DICT: return a->u.dict == b->u.dict || equal_dicts(a->u.dict, b->u.dict);
    case QN_VALUE_VIEW: return equal_views(a->u.view, b->u.view);
    case QN_VALUE_RANGE:
        return a->u.range->n == b->u.range->n &&
               (a->u.range->n == 0 || (a->u.range->start == b->u.range->start &&
                                       (a->u.range->n == 1 || a->u.range->step == b->u.range->step)));
    default: return a->u.list == b->u.list;
    }
}

static int order_bytes(const qn_jinja_string *a, const qn_jinja_string *b)
{
    const size_t n = a->length < b->length ? a->length : b->length;
    const int order = n ? memcmp(a->data, b->data, n) : 0; /* byte order of UTF-8 is the order of code points */
    return order ? (order > 0) - (order < 0) : a->length < b->length ? -1 : a->length > b->length;
}

static bool order_lists(const qn_list *a, const qn_list *b, int *order)
{
    for (size_t i = 0; i < a->n && i < b->n; i++)
        if (!qn_value_equal(&a->items[i], &b->items[i]))
            return qn_value_order(&a->items[i], &b->items[i], order);
    *order = a->n < b->n ? -1 : a->n > b->n;
    return true;
}

bool qn_value_order(const qn_value *a, const qn_value *b, int *order)
{
    if (qn_is_number(a) && qn_is_number(b)) {
        *order = order_numbers(a, b);
        return true;
    }
    if (a->type != b->type)
        return false;
    if (qn_is_string(a)) {
        *order = order_bytes(a->u.string, b->u.string);
        return true;
    }
    return (a->type == QN_VALUE_LIST || a->type == QN_VALUE_TUPLE) && order_lists(a->u.list, b->u.list, order);
}

bool qn_value_is_hashable(const qn_value *v)
{
    if (v->type == QN_VALUE_TUPLE) {
        for (size_t i = 0; i < v->u.list->n; i++)
            if (!qn_value_is_hashable(&v->u.list->items[i]))
                return false;
        return true;
    }
    return v->type != QN_VALUE_LIST && v->type != QN_VALUE_DICT && v->type != QN_VALUE_VIEW;
}

const char *qn_value_type_name(const qn_value *v)
{
    static const char *const names[] = { "Undefined", "NoneType", "bool",  "int",   "float", "str",
                                         "list",      "tuple",    "dict",  "range", "view",  "generator",
                                         "namespace", "function", "macro", "loop" };
    return names[v->type];
}
