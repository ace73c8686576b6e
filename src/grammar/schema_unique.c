/* Arrays whose items differ. An automaton cannot remember any item, but it can tell which of some constants have come:
 * to it such an array is an object whose properties, in any order, are the constants and have no values. */
#include "grammar/schema.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_REFERENCES = 32, MAX_RANGE = QN_GRAMMAR_PROPERTIES };

/* Replaces a schema by the one that its $ref names. */
static qn_status resolve(qn_schema_compiler *c, json_t **schema)
{
    const char *reference;
    for (int i = 0; i < MAX_REFERENCES && (reference = json_string_value(json_object_get(*schema, "$ref"))); i++)
        QN_TRY(qn_schema_at_place(c, qn_schema_resolve(c->root, reference, &c->merges, schema)));
    return QN_OK;
}

static bool is_bounded(json_t *schema, json_int_t *low, json_int_t *high)
{
    json_t *min = json_object_get(schema, "minimum"), *max = json_object_get(schema, "maximum");
    *low = json_integer_value(min);
    *high = json_integer_value(max);
    return json_is_integer(min) && json_is_integer(max) && *low <= *high && *low > -INT32_MAX && *high < INT32_MAX &&
           *high - *low < MAX_RANGE;
}

/* Appends the values of a type, if there are few. False: there are not. */
static bool append_type(qn_schema_compiler *c, json_t *values, json_t *schema, const char *type)
{
    json_int_t low, high;
    if (!strcmp(type, "null")) {
        qn_schema_add(values, json_null(), &c->comparisons);
        return true;
    }
    if (!strcmp(type, "boolean")) {
        qn_schema_add(values, json_false(), &c->comparisons);
        qn_schema_add(values, json_true(), &c->comparisons);
        return true;
    }
    if (strcmp(type, "integer") != 0 || !is_bounded(schema, &low, &high))
        return false;
    for (json_int_t i = low; i <= high; i++)
        qn_schema_add(values, json_integer(i), &c->comparisons);
    return true;
}

/* Lists all values of a schema of items. *values: owned by the compiler; NULL if they are too many. */
static qn_status list_values(qn_schema_compiler *c, json_t *items, json_t **values)
{
    json_t *type, *each, *listed, *copy;
    size_t i;
    bool are_few;
    *values = NULL;
    QN_TRY(resolve(c, &items));
    if (!json_is_object(items))
        return QN_OK;
    copy = items;
    if (!json_object_get(items, "enum") && !json_object_get(items, "const")) {
        type = json_object_get(items, "type");
        QN_TRY(qn_schema_own(c, listed = json_array()));
        are_few = json_is_string(type) && append_type(c, listed, items, json_string_value(type));
        if (json_is_array(type)) {
            are_few = json_array_size(type) > 0;
            json_array_foreach(type, i, each) are_few =
                are_few && json_is_string(each) && append_type(c, listed, items, json_string_value(each));
        }
        if (!are_few)
            return QN_OK;
        QN_TRY(qn_schema_own(c, copy = qn_schema_copy(items)));
        if (json_object_set(copy, "enum", listed))
            return qn_schema_no_memory();
    }
    QN_TRY(qn_schema_check_keywords(c, copy));
    return qn_schema_constants(c, copy, QN_IS_ANY | QN_IS_INTEGER, values);
}

/* Sorts values: the strings of a list, then its other scalars, each value once and in its order. *sorted: owned by the
 * compiler; NULL if it has arrays or objects, or too many. */
static qn_status sort_values(qn_schema_compiler *c, json_t *values, json_t **sorted, size_t *n_strings)
{
    json_t *value;
    size_t i;
    *sorted = json_array();
    QN_TRY(qn_schema_own(c, *sorted));
    QN_TRY(qn_schema_charge(c, json_array_size(values)));
    *n_strings = 0;
    for (int pass = 0; pass < 2; pass++)
        json_array_foreach(values, i, value)
        {
            bool is_new = json_is_string(value) == !pass;
            for (size_t k = 0; k < json_array_size(*sorted) && is_new; k++)
                is_new = !qn_schema_is_equal(json_array_get(*sorted, k), value, &c->comparisons);
            if (json_array_size(*sorted) > QN_GRAMMAR_PROPERTIES || json_is_array(value) || json_is_object(value)) {
                *sorted = NULL;
                return QN_OK;
            }
            if (is_new && json_array_append(*sorted, value))
                return qn_schema_no_memory();
            *n_strings += is_new && !pass;
        }
    if (json_array_size(*sorted) > QN_GRAMMAR_PROPERTIES)
        *sorted = NULL;
    return QN_OK;
}

/* Adds the constants that have not come yet. *entry: the node at which an item begins. Property i of the object is
 * value i; the strings, first, are its keys. */
static qn_status add_items(qn_schema_compiler *c, uint32_t object, json_t *values, size_t n_strings, uint32_t after,
                           uint32_t *entry)
{
    json_t *value;
    size_t i;
    uint32_t node;
    *entry = QN_NODE_NEVER;
    if (n_strings) {
        QN_TRY(qn_schema_node(c, QN_KEY, object, 0, &node));
        QN_TRY(qn_schema_byte(c, '"', node, &node));
        QN_TRY(qn_grammar_add_node(
            c->grammar,
            (qn_node){ .kind = QN_ONCE, .lo = (uint8_t)(n_strings - 1), .hi = 1, .a = object, .next = node }, entry));
    }
    json_array_foreach(values, i, value)
    {
        if (i < n_strings) {
            QN_TRY(qn_schema_spellings(c, object, json_string_value(value), json_string_length(value), (uint32_t)i));
            continue;
        }
        QN_TRY(qn_schema_scalar(c, value, after, &node));
        QN_TRY(qn_grammar_add_node(c->grammar,
                                   (qn_node){ .kind = QN_ONCE, .lo = (uint8_t)i, .a = object, .next = node }, &node));
        QN_TRY(qn_schema_or(c, node, entry));
    }
    qn_schema_sort_spellings(&c->grammar->objects[object]);
    return QN_OK;
}

/* Adds the array as an object whose properties are the values. */
static qn_status add_array(qn_schema_compiler *c, json_t *schema, json_t *items, json_t *values, size_t n_strings,
                           uint32_t *entry)
{
    const size_t n = json_array_size(values);
    uint32_t id, first, between, after, item, node, rule;
    QN_TRY(qn_schema_rule(c, items, QN_FORM_JSON, "items", NULL, &rule));
    QN_TRY(qn_grammar_add_object(c->grammar, &id));
    qn_object_rule *o = &c->grammar->objects[id];
    o->spellings = calloc(2 * n + 1, sizeof *o->spellings);
    o->values = calloc(n + 1, sizeof *o->values);
    o->value_rules = calloc(n + 1, sizeof *o->value_rules);
    if (!o->spellings || !o->values || !o->value_rules)
        return qn_schema_no_memory();
    QN_TRY(qn_schema_count(c, schema, "minItems", 0, &o->min));
    QN_TRY(qn_schema_count(c, schema, "maxItems", QN_UNLIMITED, &o->max));
    QN_TRY(qn_schema_node(c, QN_MEMBER, id, 0, &first));
    c->grammar->nodes[first].lo = 1;
    QN_TRY(qn_schema_node(c, QN_MEMBER, id, 0, &between));
    QN_TRY(qn_schema_any_space(c, between, &after));
    QN_TRY(qn_schema_byte(c, ']', c->end, &o->close_empty));
    QN_TRY(qn_schema_before_close(c, o->close_empty, &o->close));
    QN_TRY(add_items(c, id, values, n_strings, after, &item));
    o->end = '"';
    for (; o->n_properties < n; o->n_properties++) {
        o->values[o->n_properties] = after;
        o->value_rules[o->n_properties] = rule;
    }
    QN_TRY(qn_schema_after_open(c, item, &o->first));
    QN_TRY(qn_schema_after_comma(c, item, &node));
    QN_TRY(qn_schema_byte(c, ',', node, &o->more));
    QN_TRY(qn_schema_any_space(c, first, &node));
    return qn_schema_byte(c, '[', node, entry);
}

qn_status qn_schema_unique(qn_schema_compiler *c, json_t *schema, uint32_t *entry, bool *is_done)
{
    json_t *items = json_object_get(schema, "items"), *values = NULL;
    uint32_t max;
    size_t n_strings;
    *is_done = false;
    QN_TRY(qn_schema_count(c, schema, "maxItems", QN_UNLIMITED, &max));
    if (!json_is_true(json_object_get(schema, "uniqueItems")) || max <= 1 || json_is_false(items))
        return QN_OK;
    if (!json_object_get(schema, "prefixItems"))
        QN_TRY(list_values(c, items, &values));
    if (values)
        QN_TRY(sort_values(c, values, &values, &n_strings));
    if (!values)
        return c->options.strict
                   ? qn_fail(QN_ERR_UNSUPPORTED,
                             "%s/uniqueItems: only items of at most %d constants, none of them an array or "
                             "object, are supported",
                             qn_schema_path(c), QN_GRAMMAR_PROPERTIES)
                   : QN_OK;
    *is_done = json_array_size(values) > 0;
    return *is_done ? add_array(c, schema, items, values, n_strings, entry) : QN_OK;
}
