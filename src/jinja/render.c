/* Executes statements, and calls macros. */
#include "jinja/render.h"

#include "base/status.h"

#include <string.h>

typedef enum jump { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE } jump;

static qn_status render_body(qn_run *r, qn_scope *scope, const qn_body *body, qn_builder *b, jump *flow);

/* ---- Assignment ---- */

static qn_status assign(qn_run *r, qn_scope *scope, const qn_node *target, const qn_value *value)
{
    if (target->kind == QN_NODE_NAME)
        return qn_scope_set(r, scope, target->name, *value);
    r->at = target;
    if (target->kind == QN_NODE_ATTRIBUTE) {
        qn_value of, key;
        QN_TRY(qn_eval(r, scope, target->a, &of));
        r->at = target;
        if (of.type != QN_VALUE_NAMESPACE)
            return qn_run_fail(r, "%s has no attributes to assign, only a namespace has", qn_value_type_name(&of));
        QN_TRY(qn_value_text(&r->arena, target->name, strlen(target->name), QN_FROM_TEMPLATE, &key));
        return qn_dict_set(&r->arena, of.u.dict, key, *value);
    }
    const qn_value *items;
    size_t n;
    if (value->type == QN_VALUE_UNDEFINED)
        return qn_fail_undefined(r, value);
    QN_TRY(qn_items_of(r, value, &items, &n));
    if (n != target->n_items)
        return qn_run_fail(r, "%zu values for %u names", n, target->n_items);
    for (size_t i = 0; i < n; i++)
        QN_TRY(assign(r, scope, target->items[i], &items[i]));
    return QN_OK;
}

/* ---- Blocks with their own scope ---- */

static qn_status set_locals(qn_run *r, qn_scope *scope, const qn_body *body)
{
    for (uint32_t i = 0; i < body->n_locals; i++)
        QN_TRY(qn_scope_set(r, scope, body->locals[i], qn_value_undefined(body->locals[i])));
    return QN_OK;
}

static qn_status push_for(qn_run *r, qn_scope *parent, const qn_body *body, qn_scope **out)
{
    QN_TRY(qn_scope_push(r, parent, out));
    return set_locals(r, *out, body);
}

/* Renders a body to a string. */
static qn_status capture(qn_run *r, qn_scope *scope, const qn_body *body, qn_value *out, jump *flow)
{
    qn_builder b = { .arena = &r->arena };
    QN_TRY(render_body(r, scope, body, &b, flow));
    return qn_builder_finish(&b, out);
}

static qn_status render_set_block(qn_run *r, qn_scope *scope, const qn_node *node, jump *flow)
{
    qn_scope *inner;
    qn_value value;
    QN_TRY(push_for(r, scope, &node->body, &inner));
    QN_TRY(capture(r, inner, &node->body, &value, flow));
    if (node->b)
        QN_TRY(qn_eval_filter(r, scope, node->b, value, &value));
    return assign(r, scope, node->a, &value);
}

/* Appends the result of a filter block or call block, which must be a string: it is printed as it is. */
static qn_status append_block(qn_run *r, const qn_node *node, qn_builder *b, const qn_value *value)
{
    r->at = node->a;
    QN_TRY(qn_want_string(r, value, "what a block prints"));
    return qn_append_str(r, b, value);
}

static qn_status render_filter_block(qn_run *r, qn_scope *scope, const qn_node *node, qn_builder *b, jump *flow)
{
    qn_scope *inner;
    qn_value value;
    QN_TRY(push_for(r, scope, &node->body, &inner));
    QN_TRY(capture(r, inner, &node->body, &value, flow));
    QN_TRY(qn_eval_filter(r, scope, node->a, value, &value));
    return append_block(r, node, b, &value);
}

static qn_status render_with(qn_run *r, qn_scope *scope, const qn_node *node, qn_builder *b, jump *flow)
{
    qn_scope *inner;
    QN_TRY(push_for(r, scope, &node->body, &inner));
    for (uint32_t i = 0; i < node->n_items; i += 2) {
        qn_value value;
        QN_TRY(qn_eval(r, scope, node->items[i + 1], &value));
        QN_TRY(assign(r, inner, node->items[i], &value));
    }
    return render_body(r, inner, &node->body, b, flow);
}

static qn_status render_block(qn_run *r, qn_scope *scope, const qn_node *node, qn_builder *b, jump *flow)
{
    qn_scope *inner;
    QN_TRY(push_for(r, scope, &node->body, &inner));
    return render_body(r, inner, &node->body, b, flow);
}

/* ---- Loops ---- */

/* Keeps the items that pass the loop's condition, which sees the target. */
static qn_status filter_items(qn_run *r, qn_scope *scope, const qn_node *node, const qn_value **items, size_t *n)
{
    qn_value kept, condition;
    QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_LIST, *n, &kept));
    for (size_t i = 0; i < *n; i++) {
        qn_scope *inner;
        QN_TRY(qn_scope_push(r, scope, &inner));
        QN_TRY(assign(r, inner, node->a, &(*items)[i]));
        QN_TRY(qn_eval(r, inner, node->c, &condition));
        if (qn_value_is_true(&condition))
            QN_TRY(qn_list_append(&r->arena, kept.u.list, (*items)[i]));
    }
    *items = kept.u.list->items;
    *n = kept.u.list->n;
    return QN_OK;
}

/* Renders the iterations of a for statement. *completed: at least one iteration has reached the end of the body. */
static qn_status render_iterations(qn_run *r, qn_scope *scope, const qn_node *node, qn_loop *loop, qn_builder *b,
                                   bool *completed)
{
    const char *loop_name = qn_interned(r->jinja, "loop");
    qn_scope *inner = NULL;
    jump flow = FLOW_NEXT;
    for (; loop->at < loop->n && flow != FLOW_BREAK; loop->at++) {
        QN_TRY(qn_run_work(r, 1));
        if (!inner || inner->is_captured)
            QN_TRY(qn_scope_push(r, scope, &inner));
        inner->n = 0;
        QN_TRY(set_locals(r, inner, &node->body));
        if (loop_name)
            QN_TRY(qn_scope_set(r, inner, loop_name, (qn_value){ .type = QN_VALUE_LOOP, .u.loop = loop }));
        QN_TRY(assign(r, inner, node->a, &loop->items[loop->at]));
        QN_TRY(render_body(r, inner, &node->body, b, &flow));
        *completed |= flow == FLOW_NEXT;
    }
    return QN_OK;
}

static qn_status render_for(qn_run *r, qn_scope *scope, const qn_node *node, qn_builder *b, jump *flow)
{
    qn_value over;
    qn_loop *loop;
    QN_TRY(qn_eval(r, scope, node->b, &over));
    r->at = node->b;
    QN_TRY(qn_arena_alloc(&r->arena, &loop, 1, sizeof *loop));
    QN_TRY(qn_items_of(r, &over, &loop->items, &loop->n));
    if (node->c)
        QN_TRY(filter_items(r, scope, node, &loop->items, &loop->n));
    loop->depth = r->loop_depth++;
    bool completed = false;
    QN_TRY(render_iterations(r, scope, node, loop, b, &completed));
    r->loop_depth--;
    if (completed || !node->otherwise.n)
        return QN_OK;
    qn_scope *inner;
    QN_TRY(push_for(r, scope, &node->otherwise, &inner));
    return render_body(r, inner, &node->otherwise, b, flow);
}

/* ---- Macros ---- */

static qn_status make_macro(qn_run *r, qn_scope *scope, const qn_node *node, qn_value *out)
{
    qn_macro *macro;
    QN_TRY(qn_arena_alloc(&r->arena, &macro, 1, sizeof *macro));
    *macro = (qn_macro){ node, scope };
    for (qn_scope *s = scope; s && !s->is_captured; s = s->parent)
        s->is_captured = true;
    *out = (qn_value){ .type = QN_VALUE_MACRO, .u.macro = macro };
    return QN_OK;
}

static qn_status set_interned(qn_run *r, qn_scope *scope, const char *name, qn_value value)
{
    const char *interned = qn_interned(r->jinja, name);
    return interned ? qn_scope_set(r, scope, interned, value) : QN_OK;
}

/* Binds positional arguments beyond the parameters. */
static qn_status bind_varargs(qn_run *r, qn_scope *scope, const qn_node *node, const qn_call *call)
{
    qn_value rest;
    if (call->n > node->n_args && !node->uses_varargs)
        return qn_run_fail(r, "'%s' takes %u arguments, found %zu", node->name, node->n_args, call->n);
    if (!node->uses_varargs)
        return QN_OK;
    QN_TRY(qn_value_sequence(&r->arena, QN_VALUE_TUPLE, 0, &rest));
    for (size_t i = node->n_args; i < call->n; i++)
        QN_TRY(qn_list_append(&r->arena, rest.u.list, call->values[i]));
    return set_interned(r, scope, "varargs", rest);
}

static const qn_value *parameter_value(const qn_node *node, const qn_call *call, uint32_t i)
{
    if (i < call->n)
        return &call->values[i];
    for (size_t j = 0; j < call->n_named; j++)
        if (!strcmp(call->names[j], node->args[i].name))
            return &call->named[j];
    return NULL;
}

/* Binds keyword arguments that are not parameters. */
static qn_status bind_kwargs(qn_run *r, qn_scope *scope, const qn_node *node, const qn_call *call)
{
    enum { NAMES_PER_STEP = 8 };
    qn_value rest, caller = qn_value_undefined("caller");
    /* includes the work of parameter_value */
    QN_TRY(qn_run_work(r, (uint64_t)call->n_named * (1 + node->n_args) / NAMES_PER_STEP));
    QN_TRY(qn_value_dict(&r->arena, QN_VALUE_DICT, &rest));
    for (size_t j = 0; j < call->n_named; j++) {
        qn_value key;
        uint32_t i = (uint32_t)(call->n < node->n_args ? call->n : node->n_args);
        while (i < node->n_args && strcmp(node->args[i].name, call->names[j]) != 0)
            i++;
        if (i < node->n_args)
            continue;
        if (node->uses_caller && !strcmp(call->names[j], "caller")) {
            caller = call->named[j];
            continue;
        }
        if (!node->uses_kwargs)
            return qn_run_fail(r, "'%s' has not the argument '%s', or has it twice", node->name, call->names[j]);
        QN_TRY(qn_value_text(&r->arena, call->names[j], strlen(call->names[j]), QN_FROM_TEMPLATE, &key));
        QN_TRY(qn_dict_set(&r->arena, rest.u.dict, key, call->named[j]));
    }
    if (node->uses_kwargs)
        QN_TRY(set_interned(r, scope, "kwargs", rest));
    return node->uses_caller ? set_interned(r, scope, "caller", caller) : QN_OK;
}

qn_status qn_call_macro(qn_run *r, const qn_macro *macro, const qn_call *call, qn_value *out)
{
    const qn_node *node = macro->node, *at = r->at;
    const unsigned loop_depth = r->loop_depth;
    qn_scope *scope;
    jump flow = FLOW_NEXT;
    QN_TRY(qn_run_enter(r));
    QN_TRY(push_for(r, macro->scope, &node->body, &scope));
    QN_TRY(bind_varargs(r, scope, node, call));
    QN_TRY(bind_kwargs(r, scope, node, call));
    for (uint32_t i = 0; i < node->n_args; i++) {
        const qn_value *given = parameter_value(node, call, i);
        qn_value value = qn_value_undefined(node->args[i].name);
        if (given)
            value = *given;
        else if (node->args[i].value)
            QN_TRY(qn_eval(r, scope, node->args[i].value, &value));
        QN_TRY(qn_scope_set(r, scope, node->args[i].name, value));
    }
    r->loop_depth = 0;
    QN_TRY(capture(r, scope, &node->body, out, &flow));
    r->loop_depth = loop_depth;
    r->at = at;
    r->depth--;
    return QN_OK;
}

static qn_status render_macro(qn_run *r, qn_scope *scope, const qn_node *node)
{
    qn_value macro;
    QN_TRY(make_macro(r, scope, node, &macro));
    return qn_scope_set(r, scope, node->name, macro);
}

static qn_status render_call_block(qn_run *r, qn_scope *scope, const qn_node *node, qn_builder *b)
{
    qn_value caller, value;
    QN_TRY(make_macro(r, scope, node, &caller));
    QN_TRY(qn_eval_call(r, scope, node->a, &caller, &value));
    return append_block(r, node, b, &value);
}

/* ---- Statements ---- */

static qn_status render_print(qn_run *r, qn_scope *scope, const qn_node *node, qn_builder *b)
{
    qn_value value;
    QN_TRY(qn_eval(r, scope, node->a, &value));
    r->at = node;
    QN_TRY(qn_append_str(r, b, &value));
    return b->length <= r->output ? QN_OK
                                  : qn_run_fail(r, "the output is longer than the %zu bytes allowed", r->output);
}

static qn_status render_if(qn_run *r, qn_scope *scope, const qn_node *node, qn_builder *b, jump *flow)
{
    qn_value condition;
    QN_TRY(qn_eval(r, scope, node->a, &condition));
    return render_body(r, scope, qn_value_is_true(&condition) ? &node->body : &node->otherwise, b, flow);
}

static qn_status render_set(qn_run *r, qn_scope *scope, const qn_node *node)
{
    qn_value value;
    QN_TRY(qn_eval(r, scope, node->b, &value));
    return assign(r, scope, node->a, &value);
}

static qn_status render_node(qn_run *r, qn_scope *scope, const qn_node *node, qn_builder *b, jump *flow)
{
    switch (node->kind) {
    case QN_NODE_TEXT:
        QN_TRY(qn_run_work(r, node->value.u.string->length / QN_COPIED_PER_STEP));
        return qn_builder_string(b, &node->value);
    case QN_NODE_PRINT: return render_print(r, scope, node, b);
    case QN_NODE_IF: return render_if(r, scope, node, b, flow);
    case QN_NODE_FOR: return render_for(r, scope, node, b, flow);
    case QN_NODE_SET: return render_set(r, scope, node);
    case QN_NODE_SET_BLOCK: return render_set_block(r, scope, node, flow);
    case QN_NODE_MACRO: return render_macro(r, scope, node);
    case QN_NODE_CALL_BLOCK: return render_call_block(r, scope, node, b);
    case QN_NODE_FILTER_BLOCK: return render_filter_block(r, scope, node, b, flow);
    case QN_NODE_WITH: return render_with(r, scope, node, b, flow);
    case QN_NODE_BLOCK: return render_block(r, scope, node, b, flow);
    case QN_NODE_BREAK: *flow = FLOW_BREAK; return QN_OK;
    case QN_NODE_CONTINUE: *flow = FLOW_CONTINUE; return QN_OK;
    default: return qn_run_fail(r, "not a statement");
    }
}

/* Stops at a break or continue, and reports it in *flow. */
static qn_status render_body(qn_run *r, qn_scope *scope, const qn_body *body, qn_builder *b, jump *flow)
{
    *flow = FLOW_NEXT;
    for (uint32_t i = 0; i < body->n && *flow == FLOW_NEXT; i++) {
        QN_TRY(qn_run_enter(r));
        r->at = body->nodes[i];
        QN_TRY(render_node(r, scope, body->nodes[i], b, flow));
        r->depth--;
    }
    return QN_OK;
}

qn_status qn_render_template(qn_run *r, qn_value *out)
{
    qn_builder b = { .arena = &r->arena };
    jump flow;
    qn_scope *scope;
    QN_TRY(push_for(r, r->globals, &r->jinja->body, &scope));
    QN_TRY(render_body(r, scope, &r->jinja->body, &b, &flow));
    return qn_builder_finish(&b, out);
}
