/* What a chat template supports, and conversations in terms of that. */
#include "text/chat_adapt.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

const char *const qn_effort_levels[QN_EFFORT_LEVELS] = { "none", "minimal", "low", "medium", "high", "xhigh", "max" };

/* ---- Traits ---- */

/* A word that no template has. */
#define PROBE "qn9probe"

static const qn_jinja_limits probe_limits = { .steps = 200000, .memory = 16 << 20, .output = 1 << 20 };

/* Renders messages, with a reasoning_effort unless it is NULL. Free *output with qn_jinja_output_free. */
static bool renders(const qn_jinja *jinja, const char *messages, const char *effort, qn_jinja_output *output)
{
    json_t *list = json_loads(messages, 0, NULL);
    const qn_jinja_variable variables[] = { { "messages", list, false },
                                            { "bos_token", json_string(""), true },
                                            { "eos_token", json_string(""), true },
                                            { "tools", json_null(), false },
                                            { "documents", json_null(), false },
                                            { "add_generation_prompt", json_true(), false },
                                            { "reasoning_effort", effort ? json_string(effort) : json_null(), false } };
    enum { N = sizeof variables / sizeof *variables };
    bool complete = true;
    for (size_t i = 0; i < N; i++)
        complete &= variables[i].value != NULL;
    const bool done = complete && qn_jinja_render(jinja, variables, effort ? N : N - 1, 0, &probe_limits, output) == QN_OK;
    for (size_t i = 0; i < N; i++)
        json_decref(variables[i].value);
    return done;
}

static bool accepts(const qn_jinja *jinja, const char *messages)
{
    qn_jinja_output output = { 0 };
    const bool done = renders(jinja, messages, NULL, &output);
    qn_jinja_output_free(&output);
    return done;
}

/* A template without support for parts fails, prints nothing, or prints a Python list. */
static bool reads_parts(const qn_jinja *jinja)
{
    qn_jinja_output output = { 0 };
    bool reads = false;
    if (renders(jinja, "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"" PROBE "\"}]}]", NULL, &output))
        reads = strstr(output.text, PROBE) && !strstr(output.text, "'" PROBE) && !strstr(output.text, "\"" PROBE);
    qn_jinja_output_free(&output);
    return reads || !accepts(jinja, "[{\"role\": \"user\", \"content\": \"" PROBE "\"}]");
}

#define CALL(arguments)                                                                                                        \
    "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": "     \
    "\"function\", \"id\": \"abcdefghi\", \"function\": {\"name\": \"f\", \"arguments\": " arguments "}}]}]"

static bool reads_argument_text(const qn_jinja *jinja)
{
    return accepts(jinja, CALL("\"{\\\"a\\\": 1}\"")) || !accepts(jinja, CALL("{\"a\": 1}"));
}

struct constants {
    bool has_developer;
    unsigned efforts;
};

static bool visit_constant(const char *text, size_t length, void *user)
{
    struct constants *found = user;
    found->has_developer |= length == strlen("developer") && !memcmp(text, "developer", length);
    for (int i = 0; i < QN_EFFORT_LEVELS; i++)
        if (length == strlen(qn_effort_levels[i]) && !memcmp(text, qn_effort_levels[i], length))
            found->efforts |= 1u << i;
    return true;
}

/* Efforts are the levels that the template spells. One that prints whatever it is given spells none, and one that refuses what
 * it does not know is strict. */
static void find_efforts(const qn_jinja *jinja, unsigned spelled, qn_chat_traits *traits)
{
    static const char question[] = "[{\"role\": \"user\", \"content\": \"a\"}]";
    qn_jinja_output output = { 0 };
    const bool is_accepted = renders(jinja, question, PROBE, &output);
    traits->efforts = is_accepted && strstr(output.text, PROBE) ? 0 : spelled;
    traits->is_strict = !is_accepted && accepts(jinja, question);
    qn_jinja_output_free(&output);
    for (int i = 0; i < QN_EFFORT_LEVELS; i++)
        if (traits->efforts >> i & 1)
            traits->names[traits->n_names++] = qn_effort_levels[i];
}

void qn_chat_traits_of(const qn_jinja *jinja, qn_chat_traits *traits)
{
    struct constants found = { 0 };
    qn_jinja_spells(jinja, visit_constant, &found);
    *traits = (qn_chat_traits){ .has_developer = found.has_developer,
                                .reads_parts = reads_parts(jinja),
                                .reads_argument_text = reads_argument_text(jinja),
                                .has_thinking = qn_jinja_uses(jinja, "enable_thinking"),
                                .has_effort = qn_jinja_uses(jinja, "reasoning_effort") };
    if (traits->has_effort)
        find_efforts(jinja, found.efforts, traits);
}

/* ---- Contents ---- */

static qn_status no_memory(void)
{
    return qn_fail(QN_ERR_MEMORY, "no memory for a conversation");
}

/* The texts of parts one after the other. */
static qn_status text_of_parts(const json_t *parts, size_t index, json_t **out)
{
    size_t length = 0;
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *type = json_object_get(part, "type"),
                     *text = json_is_string(part) ? part : json_object_get(part, "text");
        if (!json_is_string(text) || (type && (!json_is_string(type) || strcmp(json_string_value(type), "text") != 0)))
            return qn_fail(QN_ERR_INVALID, "message %zu: part %zu of the content is %s%.40s, and the model reads only text",
                           index, i, json_is_string(type) ? "of type " : "not a text",
                           json_is_string(type) ? json_string_value(type) : "");
        length += json_string_length(text);
    }
    char *joined = malloc(length + 1);
    if (!joined)
        return no_memory();
    size_t at = 0;
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *text = json_is_string(part) ? part : json_object_get(part, "text");
        memcpy(joined + at, json_string_value(text), json_string_length(text));
        at += json_string_length(text);
    }
    *out = json_stringn_nocheck(joined, length);
    free(joined);
    return *out ? QN_OK : no_memory();
}

/* Two contents with an empty line between them. */
static qn_status join_contents(const json_t *a, const json_t *b, json_t **out)
{
    if (!json_is_string(a) || !json_is_string(b))
        return qn_fail(QN_ERR_INVALID, "the system messages at the beginning have contents that are not text");
    const size_t n = json_string_length(a), m = json_string_length(b);
    char *joined = malloc(n + m + 2);
    if (!joined)
        return no_memory();
    memcpy(joined, json_string_value(a), n);
    memcpy(joined + n, "\n\n", 2);
    memcpy(joined + n + 2, json_string_value(b), m);
    *out = json_stringn_nocheck(joined, n + m + 2);
    free(joined);
    return *out ? QN_OK : no_memory();
}

/* ---- Messages ---- */

static bool has_role(const json_t *message, const char *role)
{
    const char *of = json_string_value(json_object_get(message, "role"));
    return of && !strcmp(of, role);
}

/* The arguments of a call, which are of its function or its own. NULL: there are none. */
static const json_t *arguments_of(const json_t *call)
{
    const json_t *function = json_object_get(call, "function");
    return json_object_get(function ? function : call, "arguments");
}

static bool has_argument_text(const json_t *message)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    for (size_t i = 0; i < json_array_size(calls); i++)
        if (json_is_string(arguments_of(json_array_get(calls, i))))
            return true;
    return false;
}

/* Replaces a call whose arguments are text by a copy in which they are the object that this is. */
static qn_status parse_arguments(json_t *calls, size_t i, size_t index)
{
    const json_t *text = arguments_of(json_array_get(calls, i));
    if (!json_is_string(text))
        return QN_OK;
    json_error_t error;
    json_t *arguments = json_string_length(text)
                            ? json_loadb(json_string_value(text), json_string_length(text), JSON_ALLOW_NUL, &error)
                            : json_object();
    if (!json_is_object(arguments)) {
        json_decref(arguments);
        return qn_fail(QN_ERR_INVALID, "message %zu: the arguments of tool call %zu are '%.60s', expected a JSON object", index,
                       i, json_string_value(text));
    }
    json_t *call = json_copy(json_array_get(calls, i));
    json_t *function = json_copy(json_object_get(call, "function"));
    const bool done = call && json_object_set(function ? function : call, "arguments", arguments) == 0 &&
                      (!function || json_object_set(call, "function", function) == 0) && json_array_set(calls, i, call) == 0;
    json_decref(arguments);
    json_decref(function);
    json_decref(call);
    return done ? QN_OK : no_memory();
}

static qn_status parse_all_arguments(json_t *message, size_t index)
{
    json_t *calls = json_copy(json_object_get(message, "tool_calls"));
    qn_status status = calls ? QN_OK : no_memory();
    for (size_t i = 0; status == QN_OK && i < json_array_size(calls); i++)
        status = parse_arguments(calls, i, index);
    if (status == QN_OK && json_object_set(message, "tool_calls", calls))
        status = no_memory();
    json_decref(calls);
    return status;
}

/* Replaces what the template does not accept in a message that is a copy. */
static qn_status adapt_message(const qn_chat_traits *traits, json_t *message, size_t index)
{
    json_t *content;
    if (!traits->has_developer && has_role(message, "developer") && json_object_set_new(message, "role", json_string("system")))
        return no_memory();
    if (!traits->reads_parts && json_is_array(json_object_get(message, "content"))) {
        QN_TRY(text_of_parts(json_object_get(message, "content"), index, &content));
        if (json_object_set_new(message, "content", content))
            return no_memory();
    }
    return !traits->reads_argument_text && has_argument_text(message) ? parse_all_arguments(message, index) : QN_OK;
}

static bool needs_change(const qn_chat_traits *traits, const json_t *message)
{
    return (!traits->has_developer && has_role(message, "developer")) ||
           (!traits->reads_parts && json_is_array(json_object_get(message, "content"))) ||
           (!traits->reads_argument_text && has_argument_text(message));
}

/* Appends a message. Of several system messages at the beginning it makes one, if `merge`: templates accept one at most. */
static qn_status append(json_t *messages, json_t *message, bool merge)
{
    json_t *first = json_array_get(messages, 0), *content;
    if (!merge || json_array_size(messages) != 1 || !has_role(first, "system") || !has_role(message, "system"))
        return json_array_append(messages, message) ? no_memory() : QN_OK;
    QN_TRY(join_contents(json_object_get(first, "content"), json_object_get(message, "content"), &content));
    first = json_copy(first);
    const bool done = first && json_object_set(first, "content", content) == 0 && json_array_set(messages, 0, first) == 0;
    json_decref(first);
    json_decref(content);
    return done ? QN_OK : no_memory();
}

static qn_status adapt_messages(const qn_chat_traits *traits, const json_t *messages, json_t *out)
{
    bool merge = false;
    for (size_t i = 0; i < json_array_size(messages); i++)
        merge |= !traits->has_developer && has_role(json_array_get(messages, i), "developer");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *given = json_array_get(messages, i),
               *message = needs_change(traits, given) ? json_copy(given) : json_incref(given);
        qn_status status = message ? QN_OK : no_memory();
        if (status == QN_OK && message != given)
            status = adapt_message(traits, message, i);
        if (status == QN_OK)
            status = append(out, message, merge);
        json_decref(message);
        QN_TRY(status);
    }
    return QN_OK;
}

/* ---- Effort ---- */

static int level_of(const json_t *effort)
{
    for (int i = 0; json_is_string(effort) && i < QN_EFFORT_LEVELS; i++)
        if (!strcmp(json_string_value(effort), qn_effort_levels[i]))
            return i;
    return -1;
}

/* The nearest level that the template has; -1: it has none. */
static int nearest_level(unsigned known, int level)
{
    for (int i = level; i < QN_EFFORT_LEVELS; i++)
        if (known >> i & 1)
            return i;
    for (int i = level; i-- > 0;)
        if (known >> i & 1)
            return i;
    return -1;
}

static bool adapt_effort(const qn_chat_traits *traits, json_t *conversation)
{
    const int level = level_of(json_object_get(conversation, "reasoning_effort"));
    if (level < 0 || (traits->efforts >> level & 1))
        return true;
    if (level == 0 && traits->has_thinking)
        return json_object_del(conversation, "reasoning_effort") == 0 &&
               (json_object_get(conversation, "enable_thinking") ||
                json_object_set_new(conversation, "enable_thinking", json_false()) == 0);
    const int nearest = traits->is_strict ? nearest_level(traits->efforts, level) : -1;
    return nearest < 0 || json_object_set_new(conversation, "reasoning_effort", json_string(qn_effort_levels[nearest])) == 0;
}

qn_status qn_chat_adapt(const qn_chat_traits *traits, const json_t *conversation, json_t **out)
{
    *out = NULL;
    json_t *copy = json_copy((json_t *)conversation), *messages = json_array();
    const json_t *given = json_object_get(conversation, "messages");
    qn_status status = copy && messages && adapt_effort(traits, copy) ? QN_OK : no_memory();
    if (status == QN_OK && json_is_array(given))
        status = adapt_messages(traits, given, messages);
    if (status == QN_OK && json_is_array(given) && json_object_set(copy, "messages", messages))
        status = no_memory();
    json_decref(messages);
    if (status)
        json_decref(copy);
    else
        *out = copy;
    return status;
}
