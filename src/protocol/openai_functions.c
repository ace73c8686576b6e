/* The fields `functions` and `function_call` of older chats are rewritten as tools, calls and results. Answers have the
 * older form. */
#include "protocol/openai.h"

#include <stdio.h>
#include <string.h>

/* Memory of the values that wrap a function or call of the older form. */
enum { WRAPPED_BYTES = 1024, ID_BYTES = 32 };

/* Sets a member, whose reference is taken over in any case; NULL refuses for lack of memory. */
static bool set_new(json_t *object, const char *key, json_t *value, qn_refusal *refusal)
{
    return json_object_set_new(object, key, value) == 0 || qn_refuse_memory(refusal);
}

static bool refuse_both(const char *old, const char *new, qn_refusal *refusal)
{
    return qn_refuse(refusal, 400, NULL, old, "'%s' is given with '%s', expected one of them", old, new);
}

/* ---- What may be called ---- */

/* Sets `tools` of the body to the functions, each in an object of a tool. */
static bool take_functions(json_t *body, const json_t *functions, qn_reading *reading, qn_refusal *refusal)
{
    const size_t n = json_array_size(functions);
    if (!json_is_array(functions))
        return qn_refuse_type(refusal, "functions", functions, "an array");
    if (!qn_openai_check_count(n, "tools", reading->limits, refusal))
        return false;
    if (!qn_reading_take(reading, n * WRAPPED_BYTES))
        return qn_reading_refuse(reading, refusal);
    for (size_t i = 0; i < n; i++) {
        const json_t *function = json_array_get(functions, i);
        char where[sizeof refusal->param];
        snprintf(where, sizeof where, "functions[%zu]", i);
        if (!json_is_string(json_object_get(function, "name")))
            return qn_refuse(refusal, 400, NULL, where, "function %zu has no name, expected {\"name\": ...}", i);
    }
    json_t *tools = json_array();
    bool done = tools != NULL;
    for (size_t i = 0; done && i < n; i++)
        done = json_array_append_new(
                   tools, json_pack("{s:s, s:O}", "type", "function", "function", json_array_get(functions, i))) == 0;
    if (!done)
        json_decref(tools);
    return done ? set_new(body, "tools", tools, refusal) && set_new(body, "parallel_tool_calls", json_false(), refusal)
                : qn_refuse_memory(refusal);
}

/* Sets `tool_choice` of the body to what function_call says. */
static bool take_choice(json_t *body, json_t *choice, bool has_functions, qn_refusal *refusal)
{
    json_t *name = json_object_get(choice, "name");
    if (qn_json_is(choice, "none") || qn_json_is(choice, "auto"))
        return set_new(body, "tool_choice", json_incref(choice), refusal);
    if (!json_is_string(name))
        return qn_refuse_choice(refusal, "function_call", choice, "\"none\", \"auto\" or {\"name\": ...}");
    if (!has_functions)
        return qn_refuse(refusal, 400, NULL, "function_call", "'function_call' is given, expected 'functions'");
    return set_new(body, "tool_choice", json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name),
                   refusal);
}

/* ---- Messages ---- */

static bool take_call(json_t *message, json_t *call, const char *id, qn_refusal *refusal)
{
    if (json_array_size(qn_field(message, "tool_calls")))
        return refuse_both("function_call", "tool_calls", refusal);
    if (!json_is_object(call))
        return qn_refuse_type(refusal, "function_call", call, "an object");
    json_t *calls = json_pack("[{s:s, s:s, s:O}]", "id", id, "type", "function", "function", call);
    return set_new(message, "tool_calls", calls, refusal) && json_object_del(message, "function_call") == 0;
}

static bool take_result(json_t *message, const char *id, qn_refusal *refusal)
{
    const json_t *name = json_object_get(message, "name");
    if (!json_is_string(name))
        return qn_refuse_type(refusal, "name", name, "the name of a function");
    return set_new(message, "role", json_string("tool"), refusal) &&
           set_new(message, "tool_call_id", json_string(id), refusal);
}

/* Rewrites calls and results in messages. A result belongs to the last call before it: it gets its id. */
static bool take_messages(json_t *messages, qn_reading *reading, qn_refusal *refusal)
{
    char id[ID_BYTES] = "call00000";
    if (!qn_openai_check_count(json_array_size(messages), "messages", reading->limits, refusal))
        return false;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i), *call = qn_field(message, "function_call");
        const bool is_result = qn_json_is(json_object_get(message, "role"), "function");
        if (!call && !is_result)
            continue;
        if (!qn_reading_take(reading, WRAPPED_BYTES))
            return qn_reading_refuse(reading, refusal);
        if (call)
            snprintf(id, sizeof id, "call%05zu", i);
        if (!(call ? take_call(message, call, id, refusal) : take_result(message, id, refusal))) {
            char field[sizeof refusal->param];
            snprintf(field, sizeof field, "messages[%zu].%.32s", i, refusal->param);
            memcpy(refusal->param, field, sizeof field);
            return false;
        }
    }
    return true;
}

void qn_openai_name_functions(qn_refusal *refusal)
{
    static const struct {
        const char *new, *old;
    } names[] = { { "tools", "functions" }, { "tool_choice", "function_call" } };
    char param[sizeof refusal->param];
    memcpy(param, refusal->param, sizeof param);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t n = strlen(names[i].new);
        if (!strncmp(param, names[i].new, n))
            snprintf(refusal->param, sizeof refusal->param, "%s%.40s", names[i].old, param + n);
    }
}

bool qn_openai_take_functions(json_t *body, bool *is_legacy, qn_reading *reading, qn_refusal *refusal)
{
    const json_t *functions = qn_field(body, "functions");
    json_t *choice = qn_field(body, "function_call");
    *is_legacy = functions || choice;
    if (functions && qn_field(body, "tools"))
        return refuse_both("functions", "tools", refusal);
    if (*is_legacy && qn_field(body, "tool_choice"))
        return refuse_both(functions ? "functions" : "function_call", "tool_choice", refusal);
    if (choice && qn_field(body, "tools"))
        return refuse_both("function_call", "tools", refusal);
    return (!functions || take_functions(body, functions, reading, refusal)) &&
           (!choice || take_choice(body, choice, functions, refusal)) &&
           take_messages(json_object_get(body, "messages"), reading, refusal);
}
