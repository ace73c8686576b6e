/* Calls: evaluates arguments and binds them to parameters. */
#include "base/status.h"
#include "jinja/run.h"

#include <string.h>

const qn_builtin *qn_find_in(const qn_builtin *table, size_t n, const char *name, size_t length)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(table[i].name) == length && !memcmp(table[i].name, name, length))
            return &table[i];
    return NULL;
}

static qn_status bind(const qn_run *r, const qn_builtin *f, const qn_call *call, qn_call *bound)
{
    size_t n_parameters = 0;
    while (n_parameters < QN_MAX_PARAMETERS && f->parameters[n_parameters])
        n_parameters++;
    if (call->n > n_parameters)
        return qn_run_fail(r, "'%s' takes at most %zu arguments, found %zu", f->name, n_parameters, call->n);
    for (size_t i = 0; i < call->n; i++)
        bound->bound[i] = &call->values[i];
    for (size_t i = 0; i < call->n_named; i++) {
        size_t at = 0;
        while (at < n_parameters && strcmp(f->parameters[at], call->names[i]) != 0)
            at++;
        if (at == n_parameters || bound->bound[at])
            return qn_run_fail(r, "'%s' %s the argument '%s'", f->name, at == n_parameters ? "has not" : "has twice",
                               call->names[i]);
        bound->bound[at] = &call->named[i];
    }
    for (size_t i = 0; i < f->required; i++)
        if (!bound->bound[i])
            return qn_run_fail(r, "'%s' needs the argument '%s'", f->name, f->parameters[i]);
    return QN_OK;
}

qn_status qn_call_builtin(qn_run *r, const qn_builtin *builtin, const qn_value *self, const qn_call *call,
                          qn_value *out)
{
    qn_call bound = *call;
    if (!builtin->is_variadic)
        QN_TRY(bind(r, builtin, call, &bound));
    return builtin->call(r, self, &bound, out);
}

qn_status qn_call_value(qn_run *r, const qn_value *callee, const qn_call *call, qn_value *out)
{
    switch (callee->type) {
    case QN_VALUE_FUNCTION:
        return qn_call_builtin(r, callee->u.function->builtin, &callee->u.function->self, call, out);
    case QN_VALUE_MACRO: return qn_call_macro(r, callee->u.macro, call, out);
    case QN_VALUE_UNDEFINED: return qn_fail_undefined(r, callee);
    default: return qn_run_fail(r, "%s cannot be called", qn_value_type_name(callee));
    }
}

typedef struct arguments {
    qn_value values, named; /* lists */
    const char **names;
    size_t n_names, names_capacity;
} arguments;

static qn_status add_named(qn_run *r, arguments *a, const char *name, qn_value value)
{
    enum { NAMES_PER_STEP = 8 };
    QN_TRY(qn_run_work(r, a->n_names * (1 + strlen(name) / QN_COPIED_PER_STEP) / NAMES_PER_STEP));
    for (size_t i = 0; i < a->n_names; i++)
        if (!strcmp(a->names[i], name))
            return qn_run_fail(r, "the argument '%s' is given twice", name);
    if (a->n_names == a->names_capacity) {
        const size_t capacity = a->names_capacity ? 2 * a->names_capacity : 4;
        const char **names;
        QN_TRY(qn_arena_alloc(&r->arena, &names, capacity, sizeof *names));
        if (a->n_names)
            memcpy(names, a->names, a->n_names * sizeof *names);
        a->names = names;
        a->names_capacity = capacity;
    }
    a->names[a->n_names++] = name;
    return qn_list_append(&r->arena, a->named.u.list, value);
}

/* Adds the arguments of *value and **value. */
static qn_status add_unpacked(qn_run *r, arguments *a, const qn_value *value, uint8_t stars)
{
    if (stars == 1) {
        const qn_value *items;
        size_t n;
        QN_TRY(qn_items_of(r, value, &items, &n));
        QN_TRY(qn_run_work(r, n));
        for (size_t i = 0; i < n; i++)
            QN_TRY(qn_list_append(&r->arena, a->values.u.list, items[i]));
        return QN_OK;
    }
    if (value->type != QN_VALUE_DICT)
        return qn_run_fail(r, "the argument after ** is %s, expected dict", qn_value_type_name(value));
    for (size_t i = 0; i < value->u.dict->n; i++) {
        const qn_value *key = &value->u.dict->entries[i].key;
        char *name;
        QN_TRY(qn_want_string(r, key, "a key of the argument after **"));
        QN_TRY(qn_run_work(r, 1 + qn_value_weight(key)));
        QN_TRY(qn_arena_alloc(&r->arena, &name, key->u.string->length + 1, 1));
        memcpy(name, key->u.string->data, key->u.string->length);
        QN_TRY(add_named(r, a, name, value->u.dict->entries[i].value));
    }
    return QN_OK;
}

/* Evaluates the arguments of a call. caller: of a call block; NULL otherwise. */
static qn_status eval_arguments(qn_run *r, qn_scope *scope, const qn_node *node, const qn_value *caller, qn_call *call)
{
    arguments a = { 0 };
    QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_LIST, node->n_args, &a.values));
    QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_LIST, 0, &a.named));
    for (uint32_t i = 0; i < node->n_args; i++) {
        const qn_argument *argument = &node->args[i];
        qn_value value;
        QN_TRY(qn_eval(r, scope, argument->value, &value));
        r->at = node;
        if (argument->stars)
            QN_TRY(add_unpacked(r, &a, &value, argument->stars));
        else if (argument->name)
            QN_TRY(add_named(r, &a, argument->name, value));
        else
            QN_TRY(qn_list_append(&r->arena, a.values.u.list, value));
    }
    if (caller)
        QN_TRY(add_named(r, &a, "caller", *caller));
    *call = (qn_call){ .values = a.values.u.list->items,
                       .n = a.values.u.list->n,
                       .names = a.names,
                       .named = a.named.u.list->items,
                       .n_named = a.n_names };
    return QN_OK;
}

qn_status qn_eval_call(qn_run *r, qn_scope *scope, const qn_node *node, const qn_value *caller, qn_value *out)
{
    qn_value callee;
    qn_call call;
    QN_TRY(qn_eval(r, scope, node->a, &callee));
    QN_TRY(eval_arguments(r, scope, node, caller, &call));
    r->at = node;
    return qn_call_value(r, &callee, &call, out);
}

qn_status qn_eval_filter(qn_run *r, qn_scope *scope, const qn_node *node, qn_value self, qn_value *out)
{
    qn_call call;
    if (node->a)
        QN_TRY(node->a->kind == QN_NODE_FILTER ? qn_eval_filter(r, scope, node->a, self, &self)
                                               : qn_eval(r, scope, node->a, &self));
    const qn_builtin *filter = qn_find_filter(node->name, strlen(node->name));
    QN_TRY(eval_arguments(r, scope, node, NULL, &call));
    r->at = node;
    if (!filter)
        return qn_run_fail(r, "there is no filter '%s'", node->name);
    return qn_call_builtin(r, filter, &self, &call, out);
}

qn_status qn_eval_test(qn_run *r, qn_scope *scope, const qn_node *node, qn_value *out)
{
    qn_value self;
    qn_call call;
    QN_TRY(qn_eval(r, scope, node->a, &self));
    QN_TRY(eval_arguments(r, scope, node, NULL, &call));
    r->at = node;
    const qn_builtin *test = qn_find_test(node->name, strlen(node->name));
    if (!test)
        return qn_run_fail(r, "there is no test '%s'", node->name);
    return qn_call_builtin(r, test, &self, &call, out);
}
