/* The format of content: response_format, and the fields of llama-server, vLLM and SGLang for it; how JSON is written.
 * Only one field may set the format. */
#include "protocol/openai.h"

#include "base/memory.h"

#include <string.h>

/* ---- How JSON is written ---- */

/* Sets *which to the index of a field's text in `names`, NULL at the end, which is the value of an enumeration;
 * unchanged without the field. */
static bool take_name(const json_t *body, const char *field, const char *const *names, const char *expected, int *which,
                      qn_refusal *refusal)
{
    const json_t *given = qn_field(body, field);
    for (int i = 0; given && names[i]; i++)
        if (qn_json_is(given, names[i])) {
            *which = i;
            return true;
        }
    return !given || qn_refuse_choice(refusal, field, given, expected);
}

static bool take_style(qn_text_exchange *x, const json_t *body, qn_refusal *refusal)
{
    static const char *const spaces[] = { "default", "indent", "compact", "any", NULL }, *const orders[] = { "schema",
                                                                                                             "any",
                                                                                                             NULL };
    int space = QN_JSON_SPACE_DEFAULT, order = QN_JSON_ORDER_SCHEMA;
    if (!take_name(body, "json_whitespace", spaces, "\"default\", \"indent\", \"compact\" or \"any\"", &space,
                   refusal) ||
        !take_name(body, "json_property_order", orders, "\"schema\" or \"any\"", &order, refusal))
        return false;
    x->style.space = (qn_json_space)space;
    x->style.order = (qn_json_order)order;
    return true;
}

/* ---- Schemas ---- */

bool qn_openai_take_schema(qn_text_exchange *x, json_t *schema, bool is_strict, const char *field, qn_refusal *refusal)
{
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return qn_refuse_type(refusal, field, schema, "a JSON schema");
    x->format = (qn_format){ .is_given = true,
                             .kind = is_strict ? QN_GRAMMAR_SCHEMA_STRICT : QN_GRAMMAR_SCHEMA,
                             .source = json_incref(schema),
                             .field = field };
    return true;
}

static bool take_response_format(qn_text_exchange *x, json_t *given, const char *field, qn_reading *reading,
                                 qn_refusal *refusal)
{
    const json_t *type = json_object_get(given, "type"), *holder = json_object_get(given, "json_schema");
    json_t *schema = qn_field(given, "schema");
    bool is_strict = false;
    (void)reading;
    if (!json_is_object(given))
        return qn_refuse_type(refusal, field, given, "an object");
    if (qn_json_is(type, "text"))
        return true;
    if (qn_json_is(type, "json_object") && schema)
        return qn_openai_take_schema(x, schema, false, "response_format.schema", refusal);
    if (qn_json_is(type, "json_object")) {
        x->format = (qn_format){ .is_given = true, .kind = QN_GRAMMAR_JSON, .field = field };
        return true;
    }
    if (!qn_json_is(type, "json_schema"))
        return qn_refuse_choice(refusal, "response_format.type", type, "\"text\", \"json_object\" or \"json_schema\"");
    if (!json_is_object(holder))
        return qn_refuse_type(refusal, "response_format.json_schema", holder, "an object");
    return qn_field_bool(holder, "strict", &is_strict, refusal) &&
           qn_openai_take_schema(x, json_object_get(holder, "schema"), is_strict, "response_format.json_schema.schema",
                                 refusal);
}

/* Takes a schema, or the text of one. */
static bool take_schema(qn_text_exchange *x, json_t *given, const char *field, qn_reading *reading, qn_refusal *refusal)
{
    if (!json_is_string(given))
        return qn_openai_take_schema(x, given, false, field, refusal);
    json_t *schema = qn_reading_decode(reading, json_string_value(given), json_string_length(given));
    if (!schema && reading->is_over)
        return qn_reading_refuse(reading, refusal);
    const bool done = schema ? qn_openai_take_schema(x, schema, false, field, refusal)
                             : qn_refuse(refusal, 400, NULL, field, "'%s' is a string that is not JSON", field);
    json_decref(schema);
    return done;
}

static bool take_json(qn_text_exchange *x, json_t *given, const char *field, qn_reading *reading, qn_refusal *refusal)
{
    (void)reading;
    if (!json_is_boolean(given))
        return qn_refuse_type(refusal, field, given, "true or false");
    if (json_is_true(given))
        x->format = (qn_format){ .is_given = true, .kind = QN_GRAMMAR_JSON, .field = field };
    return true;
}

/* ---- Other languages ---- */

/* Takes the text of a grammar or a regular expression, with a reference of its own. */
static bool take_text(qn_text_exchange *x, qn_grammar_kind kind, json_t *given, const char *field, qn_refusal *refusal)
{
    if (!json_is_string(given) || !json_string_length(given))
        return qn_refuse_type(refusal, field, given, "a string that is not empty");
    x->format = (qn_format){ .is_given = true, .kind = kind, .source = json_incref(given), .field = field };
    return true;
}

static bool take_regex(qn_text_exchange *x, json_t *given, const char *field, qn_reading *reading, qn_refusal *refusal)
{
    (void)reading;
    return take_text(x, QN_GRAMMAR_REGEX, given, field, refusal);
}

static bool take_grammar(qn_text_exchange *x, json_t *given, const char *field, qn_reading *reading,
                         qn_refusal *refusal)
{
    (void)reading;
    return take_text(x, QN_GRAMMAR_GBNF, given, field, refusal);
}

/* Takes a grammar. Clients of llama-server send an empty string for none. */
static bool take_gbnf(qn_text_exchange *x, json_t *given, const char *field, qn_reading *reading, qn_refusal *refusal)
{
    const bool is_none = json_is_string(given) && !json_string_length(given);
    return is_none || take_grammar(x, given, field, reading, refusal);
}

static bool take_choice(qn_text_exchange *x, json_t *given, const char *field, qn_reading *reading, qn_refusal *refusal)
{
    const size_t n = json_array_size(given);
    (void)reading;
    if (!n)
        return qn_refuse_type(refusal, field, given, "an array with at least one string");
    for (size_t i = 0; i < n; i++) {
        const json_t *choice = json_array_get(given, i);
        if (!json_is_string(choice) || strlen(json_string_value(choice)) != json_string_length(choice))
            return qn_refuse_type(refusal, field, choice, "an array of strings without U+0000");
    }
    x->format = (qn_format){
        .is_given = true, .is_choice = true, .kind = QN_GRAMMAR_GBNF, .source = json_incref(given), .field = field
    };
    return true;
}

/* ---- Fields ---- */

/* A field that sets the format. `take` sets x->format, with a reference of its own to `given` or a part of it, or
 * leaves it as it is. */
typedef struct format_field {
    const char *name, *where; /* name of the member, and in refusals */
    bool (*take)(qn_text_exchange *x, json_t *given, const char *field, qn_reading *reading, qn_refusal *refusal);
} format_field;

static bool refuse_two(const char *first, const char *second, qn_refusal *refusal)
{
    return qn_refuse(refusal, 400, NULL, second, "'%s' is given with '%s', expected one of them", second, first);
}

/* Takes the format from a field of an object; another field must not have set it. */
static bool take_field(qn_text_exchange *x, const json_t *object, const format_field *field, qn_reading *reading,
                       qn_refusal *refusal)
{
    const qn_format before = x->format;
    json_t *given = qn_field(object, field->name);
    if (!given)
        return true;
    x->format = (qn_format){ 0 };
    const bool done = field->take(x, given, field->where, reading, refusal),
               is_second = x->format.is_given && before.is_given;
    if (!before.is_given)
        return done;
    json_decref(x->format.source);
    x->format = before;
    return done && (!is_second || refuse_two(before.field, field->where, refusal));
}

/* Takes vLLM's object: one member sets the format; others, about its libraries, are ignored. */
static bool take_structured(qn_text_exchange *x, json_t *given, const char *field, qn_reading *reading,
                            qn_refusal *refusal)
{
    static const format_field members[] = { { "json", "structured_outputs.json", take_schema },
                                            { "json_object", "structured_outputs.json_object", take_json },
                                            { "regex", "structured_outputs.regex", take_regex },
                                            { "choice", "structured_outputs.choice", take_choice },
                                            { "grammar", "structured_outputs.grammar", take_grammar } };
    static const char *const ignored[] = { "disable_fallback", "disable_any_whitespace",
                                           "disable_additional_properties" };
    enum { N_MEMBERS = sizeof members / sizeof *members, N_IGNORED = sizeof ignored / sizeof *ignored };
    const char *name;
    json_t *value;
    if (!json_is_object(given))
        return qn_refuse_type(refusal, field, given, "an object");
    json_object_foreach(given, name, value)
    {
        size_t i = 0, k = 0;
        while (i < N_MEMBERS && strcmp(name, members[i].name) != 0)
            i++;
        while (k < N_IGNORED && strcmp(name, ignored[k]) != 0)
            k++;
        if (i == N_MEMBERS && k == N_IGNORED && !json_is_null(value))
            return qn_refuse(refusal, 400, "unsupported", field,
                             "'%s' has '%.40s', expected json, json_object, regex, choice or grammar", field, name);
        if (i < N_MEMBERS && !take_field(x, given, &members[i], reading, refusal))
            return false;
    }
    return x->format.is_given ||
           qn_refuse(refusal, 400, NULL, field, "'%s' has none of json, json_object, regex, choice and grammar", field);
}

bool qn_openai_take_format(qn_text_exchange *x, const json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    static const format_field fields[] = { { "response_format", "response_format", take_response_format },
                                           { "json_schema", "json_schema", take_schema },
                                           { "grammar", "grammar", take_gbnf },
                                           { "guided_json", "guided_json", take_schema },
                                           { "guided_regex", "guided_regex", take_regex },
                                           { "guided_choice", "guided_choice", take_choice },
                                           { "guided_grammar", "guided_grammar", take_grammar },
                                           { "structured_outputs", "structured_outputs", take_structured },
                                           { "regex", "regex", take_regex },
                                           { "ebnf", "ebnf", take_grammar } };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!take_field(x, body, &fields[i], reading, refusal))
            return false;
    return take_style(x, body, refusal);
}

/* ---- Grammars ---- */

static qn_status compile_choices(qn_text_exchange *x)
{
    const json_t *list = x->format.source;
    const char **choices;
    QN_TRY(qn_alloc(&choices, json_array_size(list), sizeof *choices, "choices"));
    for (size_t i = 0; i < json_array_size(list); i++)
        choices[i] = json_string_value(json_array_get(list, i));
    const qn_status status = qn_grammar_create_choices_in(x->served->model, x->base.scope, choices,
                                                          json_array_size(list), &x->params.grammar);
    qn_free(choices);
    return status;
}

/* Compiles a text, which may be JSON. */
static qn_status compile_text(qn_text_exchange *x, const char *text, size_t length)
{
    return qn_grammar_create_in(x->served->model, x->base.scope, &x->style, x->format.kind, text, length,
                                &x->params.grammar);
}

static qn_status compile_json(qn_text_exchange *x)
{
    qn_bytes schema = { .account = x->base.account };
    if (x->format.source)
        qn_json_dump(x->format.source, &schema);
    const qn_status status = schema.has_failed ? QN_ERR_MEMORY : compile_text(x, schema.data, schema.length);
    qn_bytes_free(&schema);
    return status;
}

bool qn_openai_compile_format(qn_text_exchange *x, qn_refusal *refusal)
{
    const qn_format *f = &x->format;
    const qn_status status = f->is_choice ? compile_choices(x)
                             : json_is_string(f->source)
                                 ? compile_text(x, json_string_value(f->source), json_string_length(f->source))
                                 : compile_json(x);
    if (status == QN_ERR_MEMORY)
        return qn_refuse_over(x->base.account, refusal);
    return status == QN_OK || qn_refuse(refusal, 400, status == QN_ERR_UNSUPPORTED ? "unsupported" : NULL, f->field,
                                        "%s", qn_error_text());
}
