/* Values of a schema by type: numbers, arrays and objects. schema_string.c has strings. */
#include "grammar/schema.h"

#include "base/append.h"
#include "base/keyed_hash.h"
#include "base/memory.h"
#include "base/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

qn_status qn_schema_count(const qn_schema_compiler *c, json_t *schema, const char *key, uint32_t otherwise,
                          uint32_t *count)
{
    json_t *value = json_object_get(schema, key);
    *count = otherwise;
    if (!value)
        return QN_OK;
    const double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= 0) || number != floor(number))
        return qn_fail(QN_ERR_INVALID, "%s/%s: not a count", qn_schema_path(c), key);
    const bool is_huge = number > INT32_MAX;
    if (is_huge && !strncmp(key, "min", 3))
        return qn_fail(QN_ERR_UNSUPPORTED, "%s/%s: %g is above %d", qn_schema_path(c), key, number, INT32_MAX);
    *count = is_huge ? QN_UNLIMITED : (uint32_t)number;
    return QN_OK;
}

/* ---- Numbers ---- */

/* Sets a decimal to the shortest digits that give a magnitude. */
static void set_decimal(double number, qn_decimal *decimal)
{
    char text[40], digits[40];
    int precision = 0;
    do
        snprintf(text, sizeof text, "%.*e", precision, number);
    while (strtod(text, NULL) != number && ++precision < 17);
    const int exponent = atoi(strchr(text, 'e') + 1), n = 1 + precision;
    snprintf(digits, sizeof digits, "%c%.*s", text[0], precision, precision ? text + 2 : "");
    memset(decimal->integer, 0, sizeof decimal->integer);
    memset(decimal->fraction, 0, sizeof decimal->fraction);
    if (exponent < 0) {
        decimal->integer[0] = '0';
        memset(decimal->fraction, '0', (size_t)(-exponent - 1));
        memcpy(decimal->fraction - exponent - 1, digits, (size_t)n);
    } else {
        memset(decimal->integer, '0', (size_t)exponent + 1);
        memcpy(decimal->integer, digits, (size_t)(n <= exponent ? n : exponent + 1));
        if (n > exponent + 1)
            memcpy(decimal->fraction, digits + exponent + 1, (size_t)(n - exponent - 1));
    }
    for (size_t k = strlen(decimal->fraction); k > 0 && decimal->fraction[k - 1] == '0'; k--)
        decimal->fraction[k - 1] = 0;
}

/* Keeps 40 digits of a fraction, rounded away from the numbers that the bound refuses: up if it is the lower bound. */
static void shorten(qn_decimal *decimal, bool up)
{
    enum { MOST = 40 };
    if (strlen(decimal->fraction) <= MOST)
        return;
    memset(decimal->fraction + MOST, 0, sizeof decimal->fraction - MOST);
    for (size_t k = MOST; k-- > 0 && up;) {
        up = decimal->fraction[k] == '9';
        decimal->fraction[k] = up ? '0' : (char)(decimal->fraction[k] + 1);
    }
    for (size_t k = MOST; k-- > 0 && decimal->fraction[k] == '0';)
        decimal->fraction[k] = 0;
}

/* Sets a bound of numbers. A number with a fraction or an exponent is read to a double, so many decimals equal a bound.
 * With an exclusive bound, the numbers allowed begin at the shortest digits of the next double. 0 is exact. */
static void set_bound(json_t *value, bool exclusive, bool is_min, bool integer, qn_bound *bound)
{
    const double number = json_number_value(value), infinite = is_min ? HUGE_VAL : -HUGE_VAL;
    const __int128 exact = json_integer_value(value);
    const bool is_exact = json_is_real(value) || (__int128)number == exact;
    const bool is_beyond = !is_exact && ((__int128)number > exact) == is_min;
    double beyond = (is_exact ? exclusive : !is_beyond) ? nextafter(number, infinite) : number;
    beyond = number == 0 || isinf(beyond) ? number : beyond;
    *bound = (qn_bound){ .present = true, .negative = number < 0 };
    set_decimal(fabs(beyond), &bound->scientific);
    bound->scientific.exclusive = exclusive && is_exact && beyond == number;
    if (!integer && fabs(number) < 0x1p53) {
        bound->plain = bound->scientific;
        shorten(&bound->plain, is_min != bound->negative);
        return;
    }
    /* Integers are exact, and so are their bounds. */
    bound->plain.exclusive = exclusive;
    if (json_is_integer(value))
        snprintf(bound->plain.integer, sizeof bound->plain.integer, "%llu",
                 (unsigned long long)(exact < 0 ? -exact : exact));
    else if (fabs(number) >= 0x1p53)
        snprintf(bound->plain.integer, sizeof bound->plain.integer, "%.0f", fabs(number));
    else
        set_decimal(fabs(number), &bound->plain);
}

/* Reads the stricter of the inclusive and the exclusive bound; the latter may be draft 4's boolean. */
static void get_bound(json_t *schema, bool is_min, bool integer, qn_bound *bound)
{
    const char *key = is_min ? "minimum" : "maximum", *exclusive_key = is_min ? "exclusiveMinimum" : "exclusiveMaximum";
    json_t *value = json_object_get(schema, key), *exclusive = json_object_get(schema, exclusive_key);
    *bound = (qn_bound){ 0 };
    if (json_is_number(exclusive)) {
        const double x = json_number_value(exclusive), y = json_number_value(value);
        if (!value || (is_min ? x >= y : x <= y)) {
            set_bound(exclusive, true, is_min, integer, bound);
            return;
        }
    }
    if (value)
        set_bound(value, json_is_true(exclusive), is_min, integer, bound);
}

/* Reads the divisor of multipleOf; 1 without one. A divisor that is no integer is unsupported: whether a double is a
 * multiple of it depends on how the reader rounds. */
static qn_status get_divisor(const qn_schema_compiler *c, json_t *schema, uint32_t *divisor)
{
    json_t *value = json_object_get(schema, "multipleOf");
    const double number = json_number_value(value);
    *divisor = 1;
    if (!value)
        return QN_OK;
    if (!json_is_number(value) || !(number > 0))
        return qn_fail(QN_ERR_INVALID, "%s/multipleOf: not a number above 0", qn_schema_path(c));
    if (number == floor(number) && number <= QN_MULTIPLE) {
        *divisor = (uint32_t)number;
        return QN_OK;
    }
    return qn_fail(QN_ERR_UNSUPPORTED, "%s/multipleOf: %g is not supported, expected an integer of at most %d",
                   qn_schema_path(c), number, QN_MULTIPLE);
}

/* Adds the DFA of numbers to the grammar. *is_none: there are none. */
static qn_status add_number(qn_schema_compiler *c, const qn_bound bounds[2], bool integer, uint32_t divisor,
                            uint32_t *id, bool *is_none)
{
    uint32_t expr;
    qn_dfa multiples, dfa;
    *is_none = false;
    QN_TRY(qn_expr_number(&c->exprs, integer, &bounds[0], &bounds[1], &expr));
    QN_TRY(qn_schema_dfa(c, expr, id));
    if (divisor == 1)
        return QN_OK;
    QN_TRY(qn_dfa_multiples(divisor, qn_schema_path(c), &c->grammar->steps, &multiples));
    const qn_status status =
        qn_dfa_meet(&c->grammar->dfas[*id], &multiples, false, qn_schema_path(c), &c->grammar->steps, &dfa);
    qn_dfa_free(&multiples);
    *is_none = status == QN_ERR_INVALID;
    return status == QN_OK ? qn_grammar_add_dfa(c->grammar, &dfa, id) : *is_none ? QN_OK : status;
}

/* Numbers with the same bounds share a DFA. Multiples are written as integers. */
qn_status qn_schema_number(qn_schema_compiler *c, json_t *schema, bool integer, uint32_t *entry)
{
    qn_bound bounds[2];
    uint32_t dfa, divisor;
    bool is_none;
    const qn_status status = get_divisor(c, schema, &divisor);
    if (!qn_schema_may_ignore(c, status))
        QN_TRY(status);
    integer |= status == QN_OK && json_object_get(schema, "multipleOf");
    get_bound(schema, true, integer, &bounds[0]);
    get_bound(schema, false, integer, &bounds[1]);
    const qn_hash128 of_bounds = qn_keyed_hash128(bounds, sizeof bounds);
    const uint64_t parts[] = { of_bounds.low, of_bounds.high, integer, divisor };
    const qn_hash128 hash = qn_keyed_hash128(parts, sizeof parts);
    const size_t slot = hash.low % QN_SCHEMA_NUMBERS;
    *entry = QN_NODE_NEVER;
    if (!c->numbers[slot].dfa || c->numbers[slot].low != hash.low || c->numbers[slot].high != hash.high) {
        QN_TRY(add_number(c, bounds, integer, divisor, &dfa, &is_none));
        if (is_none)
            return QN_OK;
        c->numbers[slot].low = hash.low;
        c->numbers[slot].high = hash.high;
        c->numbers[slot].dfa = dfa + 1;
    }
    return qn_schema_node(c, QN_DFA, c->numbers[slot].dfa - 1, c->end, entry);
}

/* ---- Arrays ---- */

/* Adds item i of an array: the call of its rule, after which `next` follows. */
static qn_status add_item(qn_schema_compiler *c, const char *keyword, json_t *schema, size_t i, uint32_t next,
                          qn_array_rule *array)
{
    char key[32];
    snprintf(key, sizeof key, "%zu", i);
    QN_TRY(qn_schema_rule(c, schema, QN_FORM_JSON, i < array->n_prefix ? keyword : "items",
                          i < array->n_prefix ? key : NULL, &array->item_rules[i]));
    return qn_schema_inner(c, array->item_rules[i], next, &array->items[i]);
}

qn_status qn_schema_array(qn_schema_compiler *c, json_t *schema, uint32_t *entry)
{
    json_t *items = json_object_get(schema, "items"), *prefix = json_object_get(schema, "prefixItems");
    if (json_is_array(items)) { /* drafts before 2020-12 */
        prefix = items;
        items = json_object_get(schema, "additionalItems");
    }
    uint32_t id, first, between, after, item, node;
    bool is_done;
    QN_TRY(qn_schema_unique(c, schema, entry, &is_done));
    if (is_done)
        return QN_OK;
    if (json_array_size(prefix) > QN_GRAMMAR_ITEMS)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: %zu items with schemas of their own, at most %d are supported",
                       qn_schema_path(c), json_array_size(prefix), QN_GRAMMAR_ITEMS);
    QN_TRY(qn_grammar_add_array(c->grammar, &id));
    qn_array_rule array = { .n_prefix = (uint32_t)json_array_size(prefix) };
    QN_TRY(qn_schema_count(c, schema, "minItems", 0, &array.min));
    QN_TRY(qn_schema_count(c, schema, "maxItems", QN_UNLIMITED, &array.max));
    array.items = calloc(array.n_prefix + 1, sizeof *array.items);
    array.item_rules = calloc(array.n_prefix + 1, sizeof *array.item_rules);
    c->grammar->arrays[id] = array;
    if (!array.items || !array.item_rules)
        return qn_schema_no_memory();
    QN_TRY(qn_schema_byte(c, ']', c->end, &node));
    c->grammar->arrays[id].close_empty = node;
    QN_TRY(qn_schema_before_close(c, node, &c->grammar->arrays[id].close));
    QN_TRY(qn_schema_node(c, QN_ITEM, id, 0, &first));
    QN_TRY(qn_schema_node(c, QN_ITEM, id, 0, &between));
    QN_TRY(qn_schema_node(c, QN_ITEM, id, 0, &item));
    c->grammar->nodes[first].lo = 1;
    c->grammar->nodes[item].lo = 2;
    QN_TRY(qn_schema_any_space(c, between, &after));
    QN_TRY(qn_schema_after_open(c, item, &c->grammar->arrays[id].first));
    QN_TRY(qn_schema_after_comma(c, item, &node));
    QN_TRY(qn_schema_byte(c, ',', node, &c->grammar->arrays[id].comma));
    for (uint32_t i = 0; i <= array.n_prefix; i++)
        QN_TRY(add_item(c, json_is_array(json_object_get(schema, "items")) ? "items" : "prefixItems",
                        i < array.n_prefix ? json_array_get(prefix, i)
                        : items            ? items
                                           : json_true(),
                        i, after, &array));
    QN_TRY(qn_schema_any_space(c, first, &node));
    return qn_schema_byte(c, '[', node, entry);
}

/* ---- Objects ---- */

char *qn_schema_spell(const char *name, size_t length, bool ascii, size_t *n)
{
    static const char codes[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    const size_t size = 6 * length + 1;
    char *out = malloc(size);
    qn_text_buffer to = qn_append_to(out, out ? size : 0);
    for (size_t i = 0, bytes; i < length; i += bytes) {
        uint32_t code;
        qn_utf8_next(name + i, length - i, &bytes, &code);
        const char *special = code && code < 0x80 ? strchr(codes, (int)code) : NULL;
        if (special)
            qn_append(&to, "\\%c", letters[special - codes]);
        else if (code < 0x20 || (ascii && code >= 0x80 && code < 0x10000))
            qn_append(&to, "\\u%04x", code);
        else if (ascii && code >= 0x10000)
            qn_append(&to, "\\u%04x\\u%04x", 0xd7c0 + (code >> 10), 0xdc00 + (code & 0x3ff));
        else
            qn_append_bytes(&to, name + i, bytes);
    }
    *n = to.length;
    return out;
}

static bool is_ascii(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if ((uint8_t)text[i] >= 0x80)
            return false;
    return true;
}

static qn_status too_long(const qn_schema_compiler *c, size_t n)
{
    return qn_fail(QN_ERR_UNSUPPORTED, "%s: a property's name of %zu bytes is too long", qn_schema_path(c), n);
}

qn_status qn_schema_spellings(qn_schema_compiler *c, uint32_t object, const char *key, size_t length, uint32_t property)
{
    qn_object_rule *o = &c->grammar->objects[object];
    for (int ascii = 0; ascii < (is_ascii(key, length) ? 1 : 2); ascii++) {
        size_t n = length;
        if (n > QN_GRAMMAR_SPELLED)
            return too_long(c, n);
        char *text = qn_schema_spell(key, length, ascii, &n);
        if (!text)
            return qn_schema_no_memory();
        if (n > QN_GRAMMAR_SPELLED) {
            free(text);
            return too_long(c, n);
        }
        o->spellings[o->n_spellings++] = (qn_spelling){ text, (uint16_t)n, (uint16_t)property };
    }
    return QN_OK;
}

static int compare_spellings(const void *a, const void *b)
{
    const qn_spelling *x = a, *y = b;
    const int order = memcmp(x->text, y->text, x->length < y->length ? x->length : y->length);
    return order ? order : (int)x->length - (int)y->length;
}

void qn_schema_sort_spellings(qn_object_rule *o)
{
    if (o->n_spellings)
        qsort(o->spellings, o->n_spellings, sizeof *o->spellings, compare_spellings);
}

/* Adds a member from after the quote of its key to `after`, the node after its value. */
static qn_status add_member(qn_schema_compiler *c, uint32_t rule, uint32_t after, uint32_t *node)
{
    QN_TRY(qn_schema_inner(c, rule, after, node));
    QN_TRY(qn_schema_after_colon(c, *node, node));
    QN_TRY(qn_schema_byte(c, ':', *node, node));
    return qn_schema_any_space(c, *node, node);
}

/* Adds property `key`: its spellings, and the nodes from the end of its name to the next member. */
static qn_status add_property(qn_schema_compiler *c, uint32_t object, const char *key, json_t *schema, uint32_t after)
{
    const uint32_t property = c->grammar->objects[object].n_properties++;
    uint32_t rule, node;
    QN_TRY(qn_schema_spellings(c, object, key, strlen(key), property));
    QN_TRY(qn_schema_rule(c, schema, QN_FORM_JSON, "properties", key, &rule));
    QN_TRY(add_member(c, rule, after, &node));
    c->grammar->objects[object].values[property] = node;
    c->grammar->objects[object].value_rules[property] = rule;
    return QN_OK;
}

/* Adds the nodes of additional properties: the rest of a key, and its value. */
static qn_status add_rest(qn_schema_compiler *c, uint32_t object, json_t *schema, uint32_t after)
{
    qn_string_rule rule = { .max = QN_UNLIMITED, .dfa = -1 };
    qn_object_rule *o = &c->grammar->objects[object];
    uint32_t node, value_rule, string;
    if (o->n_spellings)
        rule.form = o->n_spellings > o->n_properties ? QN_STRING_KEY_UNICODE : QN_STRING_KEY;
    QN_TRY(qn_schema_rule(c, schema, QN_FORM_JSON, "additionalProperties", NULL, &value_rule));
    QN_TRY(add_member(c, value_rule, after, &node));
    QN_TRY(qn_grammar_add_string(c->grammar, rule, &string));
    QN_TRY(qn_schema_node(c, QN_STRING, string, node, &o->rest));
    o->rest_value = node;
    o->rest_rule = value_rule;
    return QN_OK;
}

/* Whether an object can do without names that its schema does not declare. */
static bool declares(const json_t *schema, const json_t *properties, const json_t *required)
{
    const json_t *least = json_object_get(schema, "minProperties");
    if (!json_is_object(properties) || json_object_get(schema, "patternProperties"))
        return json_is_object(properties);
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *name = json_string_value(json_array_get(required, i));
        if (name && !json_object_get(properties, name))
            return false;
    }
    return !json_is_integer(least) || json_integer_value(least) <= (json_int_t)json_object_size(properties);
}

qn_status qn_schema_members(qn_schema_compiler *c, json_t *schema, json_t **properties, json_t **required,
                            json_t **rest)
{
    *properties = json_object_get(schema, "properties");
    *required = json_object_get(schema, "required");
    *rest = json_object_get(schema, "additionalProperties");
    *rest = *rest                                                                 ? *rest
            : c->options.style.closed && declares(schema, *properties, *required) ? json_false()
                                                                                  : json_true();
    if ((*properties && !json_is_object(*properties)) ||
        (*required && !json_is_array(*required) && !json_is_boolean(*required)))
        return qn_fail(QN_ERR_INVALID, "%s: malformed properties or required", qn_schema_path(c));
    if (json_object_get(schema, "patternProperties"))
        QN_TRY(qn_schema_match_properties(c, schema, *required, *rest, properties));
    if (json_object_get(schema, "propertyNames"))
        QN_TRY(qn_schema_restrict_properties(c, schema, *required, *rest, properties));
    if (json_object_size(*properties) > QN_GRAMMAR_PROPERTIES || json_array_size(*required) > 2 * QN_GRAMMAR_PROPERTIES)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: more than %d properties", qn_schema_path(c), QN_GRAMMAR_PROPERTIES);
    return QN_OK;
}

qn_status qn_schema_object_counts(const qn_schema_compiler *c, json_t *schema, qn_object_rule *o)
{
    o->is_ordered = c->options.style.order == QN_JSON_ORDER_SCHEMA;
    QN_TRY(qn_schema_count(c, schema, "minProperties", 0, &o->min));
    QN_TRY(qn_schema_count(c, schema, "maxProperties", QN_UNLIMITED, &o->max));
    /* Required names are distinct, and one more member is distinct from them; but two additional names may be equal. */
    if (c->options.strict && o->additional && o->min > o->n_required + 1)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s/minProperties: %u, of which at most one may be an additional property",
                       qn_schema_path(c), o->min);
    return QN_OK;
}

/* The DFA of names that the object does not declare, as JSON spells them. */
static qn_status find_other_names(qn_schema_compiler *c, json_t *properties, json_t *required, qn_dfa *out)
{
    uint32_t any, known, last = 0, part;
    const char *key;
    json_t *value;
    size_t i;
    qn_dfa all, declared;
    QN_TRY(qn_expr_any(&c->exprs, 0, QN_UNLIMITED, &any));
    QN_TRY(qn_expr_add(&c->exprs, (qn_expr){ .kind = QN_EXPR_ALT }, &known));
    json_object_foreach(properties, key, value)
    {
        QN_TRY(qn_expr_characters(&c->exprs, key, strlen(key), &part));
        qn_expr_append(&c->exprs, known, &last, part);
    }
    json_array_foreach(required, i, value)
    {
        QN_TRY(qn_expr_characters(&c->exprs, json_string_value(value), json_string_length(value), &part));
        qn_expr_append(&c->exprs, known, &last, part);
    }
    QN_TRY(qn_dfa_compile(&c->exprs, any, true, qn_schema_path(c), &c->grammar->steps, &all));
    qn_status status =
        last ? qn_dfa_compile(&c->exprs, known, true, qn_schema_path(c), &c->grammar->steps, &declared) : QN_OK;
    if (status == QN_OK && !last) {
        *out = all;
        return QN_OK;
    }
    if (status == QN_OK) {
        status = qn_dfa_meet(&all, &declared, true, qn_schema_path(c), &c->grammar->steps, out);
        qn_dfa_free(&declared);
    }
    qn_dfa_free(&all);
    return status;
}

/* Adds the undeclared members, grouped by the patterns of their names. */
static qn_status add_matching(qn_schema_compiler *c, uint32_t object, json_t *schema, json_t *rest, uint32_t after)
{
    json_t *properties, *required, *others;
    qn_schema_names names[QN_SCHEMA_NAMES];
    uint32_t node, any = QN_NODE_NEVER;
    size_t n;
    qn_dfa all;
    QN_TRY(qn_schema_members(c, schema, &properties, &required, &others));
    qn_status status = find_other_names(c, properties, required, &all);
    if (status == QN_OK)
        status = qn_schema_restrict_names(c, schema, true, &all);
    if (status == QN_ERR_INVALID) {
        c->grammar->objects[object].additional = false;
        return QN_OK;
    }
    QN_TRY(status);
    QN_TRY(qn_schema_find_names(c, json_object_get(schema, "patternProperties"), rest, true, &all, names, &n));
    QN_TRY(qn_schema_other_rules(c, object, names, n, QN_FORM_JSON, "patternProperties"));
    for (size_t i = 0; i < n; i++) {
        QN_TRY(add_member(c, c->grammar->objects[object].other_rules[i], after, &node));
        QN_TRY(qn_schema_byte(c, '"', node, &node));
        QN_TRY(qn_schema_node(c, QN_DFA, names[i].dfa, node, &node));
        QN_TRY(qn_schema_or(c, node, &any));
    }
    c->grammar->objects[object].additional = n > 0;
    return qn_schema_node(c, QN_REST, object, any, &c->grammar->objects[object].others);
}

static qn_status add_properties(qn_schema_compiler *c, uint32_t object, json_t *schema, uint32_t after)
{
    json_t *properties, *required, *rest, *value;
    const char *key;
    size_t i;
    QN_TRY(qn_schema_members(c, schema, &properties, &required, &rest));
    const size_t most = json_object_size(properties) + json_array_size(required);
    qn_object_rule *o = &c->grammar->objects[object];
    o->spellings = calloc(2 * most + 1, sizeof *o->spellings);
    o->values = calloc(most + 1, sizeof *o->values);
    o->value_rules = calloc(most + 1, sizeof *o->value_rules);
    if (!o->spellings || !o->values || !o->value_rules)
        return qn_schema_no_memory();
    json_object_foreach(properties, key, value) QN_TRY(add_property(c, object, key, value, after));
    json_array_foreach(required, i, value)
    {
        uint32_t property = 0;
        key = json_string_value(value);
        if (!key)
            return qn_fail(QN_ERR_INVALID, "%s/required/%zu: not a string", qn_schema_path(c), i);
        if (!json_object_get(properties, key)) {
            bool is_new = true;
            for (size_t k = 0; k < i && is_new; k++)
                is_new = !json_equal(value, json_array_get(required, k));
            if (is_new)
                QN_TRY(add_property(c, object, key, rest, after));
        }
        if (c->grammar->objects[object].n_properties > QN_GRAMMAR_PROPERTIES)
            break;
        o = &c->grammar->objects[object];
        size_t length;
        char *text = qn_schema_spell(key, strlen(key), false, &length);
        for (uint32_t k = 0; text && k < o->n_spellings; k++)
            if (o->spellings[k].length == length && !memcmp(o->spellings[k].text, text, length))
                property = o->spellings[k].property;
        free(text);
        o->required[property / 64] |= UINT64_C(1) << (property % 64);
    }
    o = &c->grammar->objects[object];
    if (o->n_properties > QN_GRAMMAR_PROPERTIES)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: more than %d properties", qn_schema_path(c), QN_GRAMMAR_PROPERTIES);
    for (i = 0; i < 4; i++)
        o->n_required += (uint32_t)__builtin_popcountll(o->required[i]);
    qn_schema_sort_spellings(o);
    if (json_object_get(schema, "patternProperties") || json_object_get(schema, "propertyNames"))
        return add_matching(c, object, schema, rest, after);
    o->additional = !json_is_false(rest);
    return o->additional ? add_rest(c, object, rest, after) : QN_OK;
}

qn_status qn_schema_object(qn_schema_compiler *c, json_t *schema, uint32_t *entry)
{
    uint32_t id, first, between, after, key, node;
    qn_object_rule *o;
    QN_TRY(qn_schema_list_names(c, &schema));
    QN_TRY(qn_grammar_add_object(c->grammar, &id));
    QN_TRY(qn_schema_node(c, QN_MEMBER, id, 0, &first));
    c->grammar->nodes[first].lo = 1;
    QN_TRY(qn_schema_node(c, QN_MEMBER, id, 0, &between));
    QN_TRY(qn_schema_any_space(c, between, &after));
    QN_TRY(add_properties(c, id, schema, after));
    o = &c->grammar->objects[id];
    o->end = '"';
    QN_TRY(qn_schema_object_counts(c, schema, o));
    QN_TRY(qn_schema_byte(c, '}', c->end, &o->close_empty));
    QN_TRY(qn_schema_before_close(c, o->close_empty, &o->close));
    QN_TRY(qn_schema_node(c, QN_KEY, id, 0, &node));
    if (o->others)
        QN_TRY(qn_schema_or(c, o->others, &node));
    QN_TRY(qn_schema_byte(c, '"', node, &key));
    QN_TRY(qn_schema_after_open(c, key, &o->first));
    QN_TRY(qn_schema_after_comma(c, key, &node));
    QN_TRY(qn_schema_byte(c, ',', node, &o->more));
    QN_TRY(qn_schema_any_space(c, first, &node));
    return qn_schema_byte(c, '{', node, entry);
}
