/* One rendering of a template: its state, and the functions that evaluate it. One thread renders; the template itself
 * is constant, and other threads may render it meanwhile. All values are in the run's arena: *out of every function is
 * valid until the rendering ends. */
#ifndef QN_JINJA_RUN_H
#define QN_JINJA_RUN_H

#include "jinja/ast.h"

enum { QN_RUN_MAX_DEPTH = 200, QN_MAX_PARAMETERS = 6 };

/* Names and values of a block. A block sees the names of the blocks around it. */
typedef struct qn_scope {
    struct qn_scope *parent;
    const char **names; /* [n] interned */
    qn_value *values;
    uint32_t n, capacity;
    bool is_captured; /* a macro refers to it: it must not be reused */
} qn_scope;

/* The state of a rendering. */
typedef struct qn_run {
    const struct qn_jinja *jinja;
    qn_arena arena;
    uint64_t steps; /* steps left */
    size_t output;  /* limit of the bytes printed */
    unsigned depth; /* of evaluation */
    int64_t now;
    qn_scope *globals;
    const qn_node *at; /* the innermost expression or statement, for errors */
    unsigned loop_depth;
} qn_run;

/* A macro as a value: its body, and the scope in which it was defined, which it keeps. */
struct qn_macro {
    const qn_node *node;
    qn_scope *scope;
};

/* The variable `loop` of a for statement. */
struct qn_loop {
    const qn_value *items;
    size_t n, at;
    unsigned depth; /* number of loops around it */
    qn_value last;  /* last arguments of changed() */
    bool has_last;
};

/* The arguments of a call. */
typedef struct qn_call {
    const qn_value *values; /* [n] positional */
    size_t n;
    const char *const *names; /* [n_named] */
    const qn_value *named;
    size_t n_named;
    const qn_value *bound[QN_MAX_PARAMETERS]; /* by parameter of the function; NULL: not given */
} qn_call;

/* A filter, a test, a method or a global function. `self` is the value to which it is applied. */
typedef struct qn_builtin {
    const char *name;
    qn_status (*call)(qn_run *r, const qn_value *self, const qn_call *call, qn_value *out);
    const char *parameters[QN_MAX_PARAMETERS];
    uint8_t required; /* number of parameters without a default */
    bool is_variadic; /* arguments are not bound to parameters */
} qn_builtin;

/* A function as a value, or a method with the value that it is a method of. */
struct qn_function {
    const qn_builtin *builtin;
    qn_value self;
};

/* qn_run_fail - QN_ERR_INVALID with the line and the expression. */
qn_status qn_run_fail(const qn_run *r, const char *format, ...) QN_PRINTF(2, 3);

/* Bytes that take one step: to copy or compare; to search one by one; to decode to characters. Work is counted
 * before it is done. */
enum { QN_COPIED_PER_STEP = 64, QN_READ_PER_STEP = 16, QN_DECODED_PER_STEP = 4 };

/* Steps of printing a float; of reading a number. */
enum { QN_FLOAT_STEPS = 16, QN_NUMBER_STEPS = 8 };

/* qn_run_work - counts steps; QN_ERR_INVALID above the limit. */
qn_status qn_run_work(qn_run *r, uint64_t steps);

/* qn_run_compare - counts the steps of comparing two values. */
qn_status qn_run_compare(qn_run *r, const qn_value *a, const qn_value *b);

/* qn_run_enter - counts one step and enters one more level; the caller decrements r->depth when it leaves. */
qn_status qn_run_enter(qn_run *r);

/* qn_fail_undefined - calls qn_run_fail for an operation on an undefined value. */
qn_status qn_fail_undefined(const qn_run *r, const qn_value *v);

/* ---- Scopes ---- */

/* qn_scope_push - makes an empty scope inside `parent`. */
qn_status qn_scope_push(qn_run *r, qn_scope *parent, qn_scope **out);

/* qn_scope_set - sets a name, which is interned, in this scope; others of the same name stay as they are. */
qn_status qn_scope_set(qn_run *r, qn_scope *scope, const char *name, qn_value value);

/* ---- Expressions (eval.c, call.c, operators.c) ---- */

/* qn_eval - evaluates an expression. The next two are its parts for calls (`caller`: of a call block, or NULL) and for
 * tests. */
qn_status qn_eval(qn_run *r, qn_scope *scope, const qn_node *node, qn_value *out);
qn_status qn_eval_call(qn_run *r, qn_scope *scope, const qn_node *node, const qn_value *caller, qn_value *out);
qn_status qn_eval_test(qn_run *r, qn_scope *scope, const qn_node *node, qn_value *out);

/* qn_eval_filter - evaluates a chain of filters. `self` is the input of the first one in a filter block or an
 * assigned block. */
qn_status qn_eval_filter(qn_run *r, qn_scope *scope, const qn_node *node, qn_value self, qn_value *out);
qn_status qn_apply_operator(qn_run *r, qn_operator op, const qn_value *a, const qn_value *b, qn_value *out);
qn_status qn_contains(qn_run *r, const qn_value *container, const qn_value *item, bool *out);

/* qn_call_value - calls a function or macro. */
qn_status qn_call_value(qn_run *r, const qn_value *callee, const qn_call *call, qn_value *out);

/* qn_call_builtin - binds the arguments to the parameters of a builtin and calls it. */
qn_status qn_call_builtin(qn_run *r, const qn_builtin *builtin, const qn_value *self, const qn_call *call,
                          qn_value *out);
qn_status qn_call_macro(qn_run *r, const qn_macro *macro, const qn_call *call, qn_value *out); /* render.c */

/* qn_attribute_of - value.name; undefined if it does not exist. */
qn_status qn_attribute_of(qn_run *r, const qn_value *value, const char *name, size_t length, qn_value *out);

/* qn_item_of - value[key]; undefined if it does not exist. */
qn_status qn_item_of(qn_run *r, const qn_value *value, const qn_value *key, qn_value *out);

/* qn_items_of - the items of an iteration over a value. A generator is used up. */
qn_status qn_items_of(qn_run *r, const qn_value *value, const qn_value **items, size_t *n);

/* ---- Functions by name (filters.c, tests.c, functions.c): NULL if there is none ---- */

const qn_builtin *qn_find_filter(const char *name, size_t length);
const qn_builtin *qn_find_test(const char *name, size_t length);
const qn_builtin *qn_find_method(const qn_value *self, const char *name, size_t length);
const qn_builtin *qn_find_global(const char *name, size_t length);
const qn_builtin *qn_find_in(const qn_builtin *table, size_t n, const char *name, size_t length);

/* ---- Python's texts (python_text.c, python_json.c) ---- */

/* qn_str - str(value). */
qn_status qn_str(qn_run *r, const qn_value *value, qn_value *out);

/* qn_repr - repr(value). */
qn_status qn_repr(qn_run *r, const qn_value *value, qn_value *out);

/* qn_ascii - repr(value) with everything but ASCII escaped. */
qn_status qn_ascii(qn_run *r, const qn_value *value, qn_value *out);

/* qn_append_str - appends str(value). */
qn_status qn_append_str(qn_run *r, qn_builder *b, const qn_value *value);

/* qn_float_text - writes repr(x), at most QN_FLOAT_TEXT bytes with the terminator. Returns the length. */
enum { QN_FLOAT_TEXT = 40 };
size_t qn_float_text(double x, char *text);

/* qn_escape_html - replaces &, <, >, ' and " in a string, unless it is safe. */
qn_status qn_escape_html(qn_run *r, const qn_value *string, qn_value *out);

/* qn_format_percent - format % values. */
qn_status qn_format_percent(qn_run *r, const qn_value *format, const qn_value *values, qn_value *out);

/* qn_format_braces - format.format(...). */
qn_status qn_format_braces(qn_run *r, const qn_value *format, const qn_call *call, qn_value *out);

/* The arguments of json.dumps that tojson takes; pointers are the caller's. */
typedef struct qn_json_style {
    const qn_value *indent; /* NULL or none: print on one line */
    const char *item_separator, *key_separator;
    size_t n_item_separator, n_key_separator;
    bool ascii, sort_keys;
} qn_json_style;

/* qn_to_json - json.dumps(value). */
qn_status qn_to_json(qn_run *r, const qn_value *value, const qn_json_style *style, qn_value *out);

/* qn_from_json - json.loads(text). */
qn_status qn_from_json(qn_run *r, const qn_value *text, qn_value *out);

/* ---- Helpers ---- */

static inline bool qn_text_is(const qn_value *v, const char *text, size_t length)
{
    return v->u.string->length == length && __builtin_memcmp(v->u.string->data, text, length) == 0;
}

/* qn_want_string - checks that an argument is a string; the error names its type. */
qn_status qn_want_string(const qn_run *r, const qn_value *v, const char *what);

/* qn_want_integer - the value of an integer argument; the error names its type. */
qn_status qn_want_integer(const qn_run *r, const qn_value *v, const char *what, int64_t *out);

/* qn_want_key - checks that a value can be a key of a dict; counts the steps of looking it up. */
qn_status qn_want_key(qn_run *r, const qn_value *v);

/* qn_code_points - the number of code points of a string. */
size_t qn_code_points(const qn_jinja_string *string);

/* qn_code_point_at - the byte at which code point i begins. */
size_t qn_code_point_at(const qn_jinja_string *string, size_t i);

#endif
