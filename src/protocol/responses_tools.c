/* Tools of OpenAI's Responses as functions: custom tools, which take raw input, and namespaces, as which Codex sends
 * the tools of an MCP server. A model calls them by one name; the call has the namespace and the name again. */
#include "protocol/responses.h"

#include <string.h>

/* ---- Names ---- */

/* Memory of a name that is joined, and of its entry in the table of them, without their texts. */
enum { NAME_BYTES = 512 };

json_t *qn_responses_tool_name(const json_t *space, json_t *name, qn_reading *reading)
{
    const size_t n = json_string_length(space), n_name = json_string_length(name);
    if (!n || !json_is_string(name))
        return json_incref(name);
    if (!qn_reading_take(reading, NAME_BYTES + 2 * (n + n_name)))
        return NULL;
    const char *text = json_string_value(space);
    qn_bytes whole = { 0 };
    qn_bytes_add(&whole, text, n);
    if (!strchr("_.-/:", text[n - 1]))
        qn_bytes_add(&whole, "__", 2);
    qn_bytes_add(&whole, json_string_value(name), n_name);
    json_t *joined = whole.has_failed ? NULL : json_stringn(whole.data, whole.length);
    qn_bytes_free(&whole);
    return joined;
}

const json_t *qn_responses_name(const qn_responses *x, const char *name, size_t length)
{
    return length ? json_object_getn(x->names, name, length) : NULL;
}

bool qn_responses_is_custom(const qn_responses *x, const char *name, size_t length)
{
    for (size_t i = 0; i < json_array_size(x->custom); i++) {
        const json_t *of = json_array_get(x->custom, i);
        if (json_string_length(of) == length && !memcmp(json_string_value(of), name, length))
            return true;
    }
    return false;
}

/* ---- Tools ---- */

/* Returns the function that a custom tool becomes, with one text argument, a new reference. A grammar of its input is
 * described to the model. */
static json_t *function_of_custom(const json_t *tool)
{
    json_t *description = qn_field(tool, "description"), *name = json_object_get(tool, "name");
    const json_t *format = qn_field(tool, "format"), *syntax = json_object_get(format, "syntax"),
                 *definition = json_object_get(format, "definition");
    json_t *function =
        json_pack("{s:O?, s:{s:s, s:{s:{s:s}}, s:[s], s:b}}", "name", name, "parameters", "type", "object",
                  "properties", "input", "type", "string", "required", "input", "additionalProperties", 0);
    qn_bytes text = { 0 };
    if (json_is_string(description))
        qn_bytes_add(&text, json_string_value(description), json_string_length(description));
    if (json_is_string(syntax) && json_is_string(definition)) {
        qn_bytes_print(&text, "%sThe input is a text of this %.20s grammar:\n", text.length ? "\n\n" : "",
                       json_string_value(syntax));
        qn_bytes_add(&text, json_string_value(definition), json_string_length(definition));
    }
    if (text.has_failed ||
        (text.length && json_object_set_new(function, "description", json_stringn(text.data, text.length)) != 0)) {
        json_decref(function);
        function = NULL;
    }
    qn_bytes_free(&text);
    return function;
}

static json_t *function_of(const json_t *tool)
{
    static const char *const fields[] = { "name", "description", "parameters", "strict" };
    json_t *function = json_object();
    bool done = function != NULL;
    for (size_t i = 0; done && i < sizeof fields / sizeof *fields; i++) {
        json_t *value = qn_field(tool, fields[i]);
        done = !value || json_object_set(function, fields[i], value) == 0;
    }
    if (done)
        return function;
    json_decref(function);
    return NULL;
}

/* The list that is made, and the number of tools so far, with those that are skipped. */
typedef struct tool_list {
    qn_responses *x;
    qn_reading *reading;
    json_t *tools;
    size_t n;
} tool_list;

/* Notes what a function is called by its client: the tool's name in its namespace, or raw input. */
static bool note_function(tool_list *list, const json_t *function, const json_t *tool, const json_t *space,
                          bool is_custom)
{
    qn_responses *x = list->x;
    json_t *name = json_object_get(function, "name");
    if (is_custom && !x->custom)
        x->custom = json_array();
    if (space && !x->names)
        x->names = json_object();
    return (!is_custom || json_array_append(x->custom, name) == 0) &&
           (!space || json_object_set_new(
                          x->names, json_string_value(name),
                          json_pack("{s:O, s:O}", "namespace", space, "name", json_object_get(tool, "name"))) == 0);
}

/* Adds a function or custom tool; `space` is the name of its namespace, or NULL. */
static bool add_function(tool_list *list, const json_t *tool, const json_t *space, qn_refusal *refusal)
{
    const bool is_custom = qn_json_is(json_object_get(tool, "type"), "custom");
    json_t *function = is_custom ? function_of_custom(tool) : function_of(tool), *name = json_object_get(tool, "name");
    json_t *whole = function ? qn_responses_tool_name(space, name, list->reading) : NULL;
    bool done = function && (!name || (whole && json_object_set(function, "name", whole) == 0));
    json_decref(whole);
    if (!done) {
        json_decref(function);
        return qn_reading_refuse(list->reading, refusal);
    }
    done = qn_openai_check_function(function, list->n, list->tools, json_array_size(list->tools), refusal);
    if (done)
        done = (note_function(list, function, tool, space, is_custom) &&
                json_array_append_new(list->tools, json_pack("{s:s, s:O}", "type", "function", "function", function)) ==
                    0) ||
               qn_refuse_memory(refusal);
    json_decref(function);
    return done;
}

/* Tools of other types are run by OpenAI's servers. */
static bool take_tool(tool_list *list, const json_t *tool, const json_t *space, qn_refusal *refusal)
{
    const json_t *type = json_object_get(tool, "type");
    if (!json_is_object(tool))
        return qn_refuse_type(refusal, "tools", tool, "an array of objects");
    const bool done =
        (!qn_json_is(type, "custom") && !qn_json_is(type, "function")) || add_function(list, tool, space, refusal);
    list->n++;
    return done;
}

static bool take_namespace(tool_list *list, const json_t *space, qn_refusal *refusal)
{
    const json_t *name = json_object_get(space, "name"), *tools = qn_field(space, "tools");
    if (!json_is_string(name) || !json_string_length(name))
        return qn_refuse(refusal, 400, NULL, "tools", "tool %zu: the namespace has no name, expected a string",
                         list->n);
    if (tools && !json_is_array(tools))
        return qn_refuse_type(refusal, "tools", tools, "an array in the namespace");
    if (!qn_openai_check_count(list->n + json_array_size(tools), "tools", list->reading->limits, refusal))
        return false;
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (!take_tool(list, json_array_get(tools, i), name, refusal))
            return false;
    return true;
}

/* ---- The choice ---- */

/* Adds the names of the tools of a namespace to the allowed ones. */
static bool allow_namespace(const qn_responses *x, const json_t *space, json_t *allowed)
{
    const char *name;
    json_t *of;
    json_object_foreach(x->names, name,
                        of) if (json_equal(json_object_get(of, "namespace"), space) &&
                                json_array_append_new(allowed, json_pack("{s:s}", "name", name)) != 0) return false;
    return true;
}

/* Returns the choice of allowed tools with the names that the model knows, a new reference; NULL: no memory. */
static json_t *allowed_by_name(const qn_responses *x, const json_t *choice, qn_reading *reading)
{
    const json_t *tools = json_object_get(choice, "tools");
    json_t *allowed = json_array();
    bool done = allowed != NULL;
    for (size_t i = 0; done && i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *space = qn_field(tool, "namespace");
        json_t *name = json_object_get(tool, "name");
        if (qn_json_is(json_object_get(tool, "type"), "namespace")) {
            done = allow_namespace(x, name, allowed);
            continue;
        }
        json_t *whole = name ? qn_responses_tool_name(space, name, reading) : json_null();
        done = whole && json_array_append_new(allowed, json_pack("{s:O}", "name", whole)) == 0;
        json_decref(whole);
    }
    json_t *named = done ? json_pack("{s:O?, s:O*}", "mode", json_object_get(choice, "mode"), "tools",
                                     json_is_array(tools) ? allowed : NULL)
                         : NULL;
    json_decref(allowed);
    return named;
}

static bool allow(qn_responses *x, const json_t *choice, qn_reading *reading, qn_refusal *refusal)
{
    json_t *named = allowed_by_name(x, choice, reading);
    const bool done = named ? qn_openai_allow(&x->base, named, refusal) : qn_reading_refuse(reading, refusal);
    json_decref(named);
    return done;
}

/* A choice of a skipped tool leaves the choice to the model. is_skipped: all tools are skipped. */
static bool take_tool_choice(qn_responses *x, const json_t *choice, json_t *tools, bool is_skipped, qn_reading *reading,
                             qn_refusal *refusal)
{
    const json_t *type = json_object_get(choice, "type");
    const bool is_named = qn_json_is(type, "function") || qn_json_is(type, "custom");
    if (choice && !json_is_object(choice) && !qn_json_is(choice, "none") && !qn_json_is(choice, "auto") &&
        !qn_json_is(choice, "required"))
        return qn_refuse_choice(refusal, "tool_choice", choice,
                                "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"name\": ...}");
    if (json_array_size(tools) && !qn_json_is(choice, "none"))
        x->base.tools.list = json_incref(tools);
    x->base.tools.is_required = qn_json_is(choice, "required") && !is_skipped;
    if (is_named) {
        json_t *name = json_object_get(choice, "name"),
               *whole = name ? qn_responses_tool_name(qn_field(choice, "namespace"), name, reading) : NULL;
        if (name && !whole)
            return qn_reading_refuse(reading, refusal);
        qn_openai_call(&x->base, whole);
        json_decref(whole);
    }
    /* The choice of a tool that is skipped is none: answers say "auto". */
    if (choice && (!type || is_named || qn_json_is(type, "allowed_tools")))
        qn_json_dump(choice, &x->choice);
    if (x->choice.has_failed)
        return qn_refuse_over(x->base.base.account, refusal);
    return !qn_json_is(type, "allowed_tools") || allow(x, choice, reading, refusal);
}

bool qn_responses_take_tools(qn_responses *x, const json_t *body, qn_reading *reading, json_t *tools,
                             qn_refusal *refusal)
{
    const json_t *given = qn_field(body, "tools");
    tool_list list = { .x = x, .reading = reading, .tools = tools };
    bool is_parallel = true;
    if (given && !json_is_array(given))
        return qn_refuse_type(refusal, "tools", given, "an array");
    if (!qn_openai_check_count(json_array_size(given), "tools", reading->limits, refusal) ||
        !qn_field_bool(body, "parallel_tool_calls", &is_parallel, refusal))
        return false;
    for (size_t i = 0; i < json_array_size(given); i++) {
        const json_t *tool = json_array_get(given, i);
        const bool is_namespace = qn_json_is(json_object_get(tool, "type"), "namespace");
        if (!(is_namespace ? take_namespace(&list, tool, refusal) : take_tool(&list, tool, NULL, refusal)))
            return false;
    }
    const bool is_skipped = json_array_size(given) && !json_array_size(tools);
    x->base.tools.is_single = !is_parallel;
    return take_tool_choice(x, qn_field(body, "tool_choice"), tools, is_skipped, reading, refusal) &&
           qn_openai_check_tools(&x->base, refusal);
}
