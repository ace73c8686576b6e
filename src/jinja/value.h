/* Values of template code, as in Python: strings that record the origin of their bytes, numbers, lists, dicts,
 * callables. They are allocated in an arena and never change, except lists and dicts under construction. A value is
 * valid as long as its arena, which one thread uses; nothing is freed before. Functions that make one fail with the
 * errors of qn_arena_alloc. */
#ifndef QN_JINJA_VALUE_H
#define QN_JINJA_VALUE_H

#include "jinja/arena.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum qn_value_type {
    QN_VALUE_UNDEFINED, /* jinja2's default Undefined: prints nothing, fails in most operations */
    QN_VALUE_NONE,
    QN_VALUE_BOOL,
    QN_VALUE_INT,
    QN_VALUE_FLOAT,
    QN_VALUE_STRING,
    QN_VALUE_LIST,
    QN_VALUE_TUPLE,
    QN_VALUE_DICT,
    QN_VALUE_RANGE,
    QN_VALUE_VIEW,     /* items(), keys() and values() of a dict */
    QN_VALUE_ITERATOR, /* a generator, which can be iterated once */
    QN_VALUE_NAMESPACE,
    QN_VALUE_FUNCTION, /* a global function, or a method with its object */
    QN_VALUE_MACRO,
    QN_VALUE_LOOP,
} qn_value_type;

/* The origin of bytes: variables, or the template's source. */
enum { QN_FROM_DATA, QN_FROM_TEMPLATE };

/* Bytes of UTF-8. marks [length] holds the origin of each byte; NULL if all have the value's origin. */
typedef struct qn_jinja_string {
    const char *data;
    const uint8_t *marks;
    size_t length;
} qn_jinja_string;

typedef struct qn_list qn_list;
typedef struct qn_dict qn_dict;
typedef struct qn_range_value qn_range_value;
typedef struct qn_dict_view qn_dict_view;
typedef struct qn_iterator qn_iterator;
typedef struct qn_function qn_function;
typedef struct qn_macro qn_macro;
typedef struct qn_loop qn_loop;

typedef struct qn_value {
    uint8_t type;   /* qn_value_type */
    uint8_t origin; /* of a string without marks */
    bool safe;      /* a string made by the filter `safe`: strings joined to it are escaped */
    union {
        bool boolean;
        int64_t integer;
        double real;
        const qn_jinja_string *string;
        qn_list *list; /* LIST, TUPLE */
        qn_dict *dict; /* DICT, NAMESPACE */
        const qn_range_value *range;
        const qn_dict_view *view;
        qn_iterator *iterator;
        const qn_function *function;
        const qn_macro *macro;
        qn_loop *loop;
        const char *name; /* UNDEFINED: the undefined name, or NULL */
    } u;
} qn_value;

/* Limit of the nesting of containers: functions that descend into them are recursive. */
enum { QN_VALUE_MAX_DEPTH = 300 };

struct qn_list {
    qn_value *items;
    size_t n, capacity;
    uint32_t depth;  /* nesting of containers, this one included */
    uint64_t weight; /* qn_value_weight */
    bool is_group;   /* a tuple of groupby, whose items have names */
};

typedef struct qn_dict_entry {
    qn_value key, value;
    uint64_t hash;
} qn_dict_entry;

struct qn_dict {
    qn_dict_entry *entries; /* [n] in order of insertion */
    uint32_t *index;        /* [index_size] entry + 1, or 0; NULL in small dicts */
    size_t n, capacity, index_size;
    uint32_t depth;
    uint64_t weight;
};

struct qn_range_value {
    int64_t start, stop, step;
    size_t n;
};

typedef enum qn_view_kind { QN_VIEW_ITEMS, QN_VIEW_KEYS, QN_VIEW_VALUES } qn_view_kind;

struct qn_dict_view {
    const qn_dict *dict;
    qn_view_kind kind;
};

struct qn_iterator {
    const qn_value *items;
    size_t n, at;
};

/* ---- Making values ---- */

static inline qn_value qn_value_undefined(const char *name)
{
    return (qn_value){ .type = QN_VALUE_UNDEFINED, .u.name = name };
}

static inline qn_value qn_value_none(void)
{
    return (qn_value){ .type = QN_VALUE_NONE };
}

static inline qn_value qn_value_bool(bool b)
{
    return (qn_value){ .type = QN_VALUE_BOOL, .u.boolean = b };
}

static inline qn_value qn_value_int(int64_t i)
{
    return (qn_value){ .type = QN_VALUE_INT, .u.integer = i };
}

static inline qn_value qn_value_float(double x)
{
    return (qn_value){ .type = QN_VALUE_FLOAT, .u.real = x };
}

static inline bool qn_is_string(const qn_value *v)
{
    return v->type == QN_VALUE_STRING;
}

/* Integers and booleans, which are integers in Python. */
static inline bool qn_is_integer(const qn_value *v)
{
    return v->type == QN_VALUE_INT || v->type == QN_VALUE_BOOL;
}

static inline bool qn_is_number(const qn_value *v)
{
    return qn_is_integer(v) || v->type == QN_VALUE_FLOAT;
}

static inline int64_t qn_integer_of(const qn_value *v)
{
    return v->type == QN_VALUE_BOOL ? v->u.boolean : v->u.integer;
}

static inline double qn_real_of(const qn_value *v)
{
    return v->type == QN_VALUE_FLOAT ? v->u.real : (double)qn_integer_of(v);
}

/* qn_value_text - a string of bytes, which are not copied. */
qn_status qn_value_text(qn_arena *arena, const char *data, size_t length, uint8_t origin, qn_value *out);

/* qn_value_copy_text - a string of a copy of bytes. */
qn_status qn_value_copy_text(qn_arena *arena, const char *data, size_t length, uint8_t origin, qn_value *out);

/* qn_value_part - bytes [begin, end) of a string, not copied, with their origins. It is `safe` if the string is. */
qn_status qn_value_part(qn_arena *arena, const qn_value *string, size_t begin, size_t end, qn_value *out);

/* qn_value_sequence - an empty list or tuple with space for `capacity` items. */
qn_status qn_value_sequence(qn_arena *arena, qn_value_type type, size_t capacity, qn_value *out);
qn_status qn_list_append(qn_arena *arena, qn_list *list, qn_value item);

/* qn_value_dict - an empty dict or namespace. */
qn_status qn_value_dict(qn_arena *arena, qn_value_type type, qn_value *out);

/* qn_value_iterator - a generator over `n` items, which are not copied. */
qn_status qn_value_iterator(qn_arena *arena, const qn_value *items, size_t n, qn_value *out);

/* qn_dict_find - the value of a key, or NULL. The key must be hashable. */
const qn_value *qn_dict_find(const qn_dict *dict, const qn_value *key);
const qn_value *qn_dict_find_text(const qn_dict *dict, const char *key, size_t length);
qn_status qn_dict_set(qn_arena *arena, qn_dict *dict, qn_value key, qn_value value);

/* qn_value_from_json - copies a JSON value. */
qn_status qn_value_from_json(qn_arena *arena, const json_t *json, qn_value *out);

/* qn_value_of_json - the same, but the strings are not copied, so the JSON must outlive the values.
 *
 *   from_template   strings may form special tokens
 *   n_bytes         increased by the bytes of all strings */
qn_status qn_value_of_json(qn_arena *arena, const json_t *json, bool from_template, size_t *n_bytes, qn_value *out);

/* ---- Comparing ---- */

bool qn_value_is_true(const qn_value *v);
bool qn_value_equal(const qn_value *a, const qn_value *b);

/* qn_value_order - *order is negative, 0 or positive, or 2 if a NaN makes them unordered. False if Python does not
 * order such values. */
bool qn_value_order(const qn_value *a, const qn_value *b, int *order);

bool qn_value_is_hashable(const qn_value *v);

/* qn_value_weight - the number of steps of visiting a value: one for each value in it, at all depths and for each
 * occurrence, and one for 64 bytes of a string. Comparing two values takes at most the weight of the lighter one. */
uint64_t qn_value_weight(const qn_value *v);

/* qn_value_type_name - Python's name of the value's type. */
const char *qn_value_type_name(const qn_value *v);

/* ---- Building strings ---- */

typedef struct qn_builder {
    qn_arena *arena;
    char *data;
    uint8_t *marks;
    size_t length, capacity;
    uint8_t origin;
    bool mixed; /* bytes of both origins: marks is in use */
} qn_builder;

qn_status qn_builder_reserve(qn_builder *b, size_t more);
qn_status qn_builder_bytes(qn_builder *b, const char *data, size_t length, uint8_t origin);
qn_status qn_builder_string(qn_builder *b, const qn_value *string);
qn_status qn_builder_repeat(qn_builder *b, const qn_value *string, size_t times);
qn_status qn_builder_finish(qn_builder *b, qn_value *out);

#endif
