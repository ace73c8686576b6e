/* Adapts conversations to the traits of a chat template. */
#include "chat/adapt.h"

#include "base/memory.h"
#include "base/status.h"
#include "base/strings.h"
#include "gguf/json_decode.h"

#include <stdlib.h>
#include <string.h>

/* ---- Contents ---- */

static qn_status no_memory(void)
{
    return qn_fail(QN_ERR_MEMORY, "no memory for a conversation");
}

/* Concatenates the texts of parts. */
static qn_status text_of_parts(const json_t *parts, size_t index, json_t **out)
{
    size_t length = 0;
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *type = json_object_get(part, "type"),
                     *text = json_is_string(part) ? part : json_object_get(part, "text");
        if (!json_is_string(text) || (type && (!json_is_string(type) || strcmp(json_string_value(type), "text") != 0)))
            return qn_fail(QN_ERR_INVALID,
                           "message %zu: part %zu of the content is %s%.40s, and the model reads only text", index, i,
                           json_is_string(type) ? "of type " : "not a text",
                           json_is_string(type) ? json_string_value(type) : "");
        length += json_string_length(text);
    }
    char *joined = malloc(length + 1);
    if (!joined)
        return no_memory();
    size_t at = 0;
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i),
                     *text = json_is_string(part) ? part : json_object_get(part, "text");
        memcpy(joined + at, json_string_value(text), json_string_length(text));
        at += json_string_length(text);
    }
    *out = json_stringn_nocheck(joined, length);
    free(joined);
    return *out ? QN_OK : no_memory();
}

/* Adds a text, separated by an empty line, before or after a content that is text or parts. */
static qn_status add_to_content(const json_t *content, const char *text, size_t n, bool before, json_t **out)
{
    const char *given = json_is_string(content) ? json_string_value(content) : "";
    const size_t m = json_is_string(content) ? json_string_length(content) : 0;
    if (json_is_array(content)) {
        json_t *part = json_object();
        *out = json_copy((json_t *)content);
        const bool done = *out && part && json_object_set_new(part, "type", json_string("text")) == 0 &&
                          json_object_set_new(part, "text", json_stringn_nocheck(text, n)) == 0 &&
                          (before ? json_array_insert(*out, 0, part) : json_array_append(*out, part)) == 0;
        json_decref(part);
        return done ? QN_OK : no_memory();
    }
    char *joined = malloc(n + m + 2), *at = joined;
    if (!joined)
        return no_memory();
    at = qn_mempcpy(at, before ? text : given, before ? n : m);
    at = qn_mempcpy(at, "\n\n", n && m ? 2 : 0);
    at = qn_mempcpy(at, before ? given : text, before ? m : n);
    *out = json_stringn_nocheck(joined, (size_t)(at - joined));
    free(joined);
    return *out ? QN_OK : no_memory();
}

/* ---- Messages ---- */

static bool has_role(const json_t *message, const char *role)
{
    const char *of = json_string_value(json_object_get(message, "role"));
    return of && !strcmp(of, role);
}

/* Returns the arguments of a call, in its function or in the call itself. NULL: none. */
static const json_t *arguments_of(const json_t *call)
{
    const json_t *function = json_object_get(call, "function");
    return json_object_get(function ? function : call, "arguments");
}

/* Whether the arguments of a call have another form than the template needs or reads best. */
static bool has_other_arguments(const qn_chat_traits *traits, const json_t *call)
{
    const json_t *arguments = arguments_of(call);
    return traits->wants_argument_text ? json_is_object(arguments) : json_is_string(arguments);
}

static bool has_calls_to_change(const qn_chat_traits *traits, const json_t *message)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    for (size_t i = 0; i < json_array_size(calls); i++)
        if (has_other_arguments(traits, json_array_get(calls, i)))
            return true;
    return false;
}

/* Prints an object as JSON text, as the filter tojson does. *out: a new reference. */
static qn_status text_of_object(json_t *object, json_t **out)
{
    static const char source[] = "{{ x|tojson }}";
    const qn_jinja_variable x = { "x", object, false };
    qn_jinja_output output = { 0 };
    qn_jinja *jinja;
    QN_TRY(qn_jinja_compile(source, sizeof source - 1, &jinja));
    qn_status status = qn_jinja_render(jinja, &x, 1, 0, NULL, &output);
    if (status == QN_OK && !(*out = json_stringn_nocheck(output.text, output.length)))
        status = no_memory();
    qn_jinja_output_free(&output);
    qn_jinja_free(jinja);
    return status;
}

/* Decodes a text that is a JSON object. Any other text is an error, unless the template reads text: *out is NULL
 * then. */
static qn_status object_of_text(const qn_chat_traits *traits, const json_t *text, size_t i, size_t index, json_t **out)
{
    json_error_t error;
    *out = json_string_length(text) ? qn_json_decode(json_string_value(text), json_string_length(text), 0, NULL, &error)
                                    : json_object();
    if (json_is_object(*out))
        return QN_OK;
    json_decref(*out);
    *out = NULL;
    return traits->reads_argument_text
               ? QN_OK
               : qn_fail(QN_ERR_INVALID,
                         "message %zu: the arguments of tool call %zu are '%.60s', expected a JSON object", index, i,
                         json_string_value(text));
}

/* Replaces a call by a copy whose arguments have the template's form. */
static qn_status change_arguments(const qn_chat_traits *traits, json_t *calls, size_t i, size_t index)
{
    json_t *given = (json_t *)arguments_of(json_array_get(calls, i)), *arguments = NULL;
    if (!has_other_arguments(traits, json_array_get(calls, i)))
        return QN_OK;
    QN_TRY(json_is_object(given) ? text_of_object(given, &arguments)
                                 : object_of_text(traits, given, i, index, &arguments));
    if (!arguments)
        return QN_OK;
    json_t *call = json_copy(json_array_get(calls, i));
    json_t *function = json_copy(json_object_get(call, "function"));
    const bool done = call && json_object_set(function ? function : call, "arguments", arguments) == 0 &&
                      (!function || json_object_set(call, "function", function) == 0) &&
                      json_array_set(calls, i, call) == 0;
    json_decref(arguments);
    json_decref(function);
    json_decref(call);
    return done ? QN_OK : no_memory();
}

static qn_status change_all_arguments(const qn_chat_traits *traits, json_t *message, size_t index)
{
    json_t *calls = json_copy(json_object_get(message, "tool_calls"));
    qn_status status = calls ? QN_OK : no_memory();
    for (size_t i = 0; status == QN_OK && i < json_array_size(calls); i++)
        status = change_arguments(traits, calls, i, index);
    if (status == QN_OK && json_object_set(message, "tool_calls", calls))
        status = no_memory();
    json_decref(calls);
    return status;
}

static bool has_null_content(const json_t *message)
{
    const json_t *content = json_object_get(message, "content");
    return (!content || json_is_null(content)) && json_array_size(json_object_get(message, "tool_calls"));
}

static bool has_other_reasoning(const json_t *message)
{
    const json_t *content = json_object_get(message, "reasoning_content");
    return json_is_string(json_object_get(message, "reasoning")) && (!content || json_is_null(content));
}

/* Changes a message, which must be a copy, where the template does not accept it. */
static qn_status adapt_message(const qn_chat_traits *traits, json_t *message, size_t index)
{
    json_t *content;
    if (!traits->has_developer && has_role(message, "developer") &&
        json_object_set_new(message, "role", json_string("system")))
        return no_memory();
    if (!traits->reads_parts && json_is_array(json_object_get(message, "content"))) {
        QN_TRY(text_of_parts(json_object_get(message, "content"), index, &content));
        if (json_object_set_new(message, "content", content))
            return no_memory();
    }
    if (traits->refuses_null && has_null_content(message) && json_object_set_new(message, "content", json_string("")))
        return no_memory();
    if (!traits->reads_reasoning && has_other_reasoning(message) &&
        (json_object_set(message, "reasoning_content", json_object_get(message, "reasoning")) ||
         json_object_del(message, "reasoning")))
        return no_memory();
    return has_calls_to_change(traits, message) ? change_all_arguments(traits, message, index) : QN_OK;
}

static bool needs_change(const qn_chat_traits *traits, const json_t *message)
{
    return (!traits->has_developer && has_role(message, "developer")) ||
           (!traits->reads_parts && json_is_array(json_object_get(message, "content"))) ||
           (traits->refuses_null && has_null_content(message)) ||
           (!traits->reads_reasoning && has_other_reasoning(message)) || has_calls_to_change(traits, message);
}

/* ---- System messages ---- */

/* The messages so far, and the text of later system messages that waits for a place. */
typedef struct turns {
    const qn_chat_traits *traits;
    json_t *messages; /* adapted */
    char *waiting;
    size_t n_waiting;
    char *tail; /* text to append to a message, collected so that joining many system messages takes linear time */
    size_t n_tail, tail_capacity, tail_index;
    bool has_begun; /* there are messages other than the system's */
} turns;

/* Replaces a message by a copy with a text before or after its content. */
static qn_status add_to_message(turns *t, size_t i, const char *text, size_t n, bool before)
{
    json_t *content = NULL, *message = json_copy(json_array_get(t->messages, i));
    if (!message)
        return no_memory();
    qn_status status = add_to_content(json_object_get(message, "content"), text, n, before, &content);
    if (status == QN_OK &&
        (json_object_set_new(message, "content", content) || json_array_set(t->messages, i, message)))
        status = no_memory();
    json_decref(message);
    return status;
}

/* Appends the tail to its message. */
static qn_status put_tail(turns *t)
{
    const size_t n = t->n_tail;
    t->n_tail = 0;
    return n ? add_to_message(t, t->tail_index, t->tail, n, false) : QN_OK;
}

/* Appends text to the content of a message, after an empty line. If the content is not text, it is appended at once. */
static qn_status add_behind(turns *t, size_t i, const char *text, size_t n)
{
    size_t need;
    if (t->n_tail && t->tail_index != i)
        QN_TRY(put_tail(t));
    if (!json_is_string(json_object_get(json_array_get(t->messages, i), "content")))
        return add_to_message(t, i, text, n, false);
    if (!n)
        return QN_OK;
    if (!qn_add_size(t->n_tail, 2, &need) || !qn_add_size(need, n, &need))
        return no_memory();
    QN_TRY(qn_realloc_array(&t->tail, &t->tail_capacity, need, 1, "a conversation"));
    char *at = t->tail + t->n_tail;
    at = qn_mempcpy(at, "\n\n", t->n_tail ? 2 : 0);
    at = qn_mempcpy(at, text, n);
    t->n_tail = (size_t)(at - t->tail);
    t->tail_index = i;
    return QN_OK;
}

/* Finds the content of a system message as text, since it is joined with other texts. *out: a new reference. */
static qn_status text_of_system(const json_t *message, size_t index, json_t **out)
{
    json_t *content = json_object_get(message, "content");
    if (json_is_array(content))
        return text_of_parts(content, index, out);
    *out = json_is_string(content) ? json_incref(content) : json_string("");
    return *out ? QN_OK : no_memory();
}

static qn_status keep_waiting(turns *t, const json_t *text)
{
    static const char open[] = QN_REMINDER_OPEN, end[] = "\n" QN_REMINDER_CLOSE;
    const size_t n = json_string_length(text);
    const bool has_tags = n >= sizeof open - 1 && !memcmp(json_string_value(text), open, sizeof open - 1);
    char *waiting = n ? realloc(t->waiting, t->n_waiting + n + sizeof open + sizeof end + 2) : NULL;
    if (!n)
        return QN_OK;
    if (!waiting)
        return no_memory();
    t->waiting = waiting;
    char *at = waiting + t->n_waiting;
    at = qn_mempcpy(at, "\n\n", t->n_waiting ? 2 : 0);
    at = qn_mempcpy(at, open, has_tags ? 0 : sizeof open - 1);
    at = qn_mempcpy(at, "\n", has_tags ? 0 : 1);
    at = qn_mempcpy(at, json_string_value(text), n);
    at = qn_mempcpy(at, end, has_tags ? 0 : sizeof end - 1);
    t->n_waiting = (size_t)(at - waiting);
    return QN_OK;
}

static const json_t *last_of(const turns *t)
{
    const size_t n = json_array_size(t->messages);
    return n ? json_array_get(t->messages, n - 1) : NULL;
}

/* Appends the waiting text to the preceding message; after an assistant's message it becomes a user's message. */
static qn_status put_waiting(turns *t)
{
    const json_t *last = last_of(t);
    const size_t n = t->n_waiting;
    t->n_waiting = 0;
    if (!n)
        return QN_OK;
    if (has_role(last, "user") || has_role(last, "tool"))
        return add_behind(t, json_array_size(t->messages) - 1, t->waiting, n);
    json_t *message = json_object();
    const bool done = message && json_object_set_new(message, "role", json_string("user")) == 0 &&
                      json_object_set_new(message, "content", json_stringn_nocheck(t->waiting, n)) == 0 &&
                      json_array_append(t->messages, message) == 0;
    json_decref(message);
    return done ? QN_OK : no_memory();
}

/* Appends a message that is not the system's. The waiting text goes after the last of several tool results, or into
 * the user's next message. */
static qn_status append_other(turns *t, json_t *message)
{
    const bool is_user = has_role(message, "user");
    if (!is_user && !has_role(message, "tool"))
        QN_TRY(put_waiting(t));
    if (json_array_append(t->messages, message))
        return no_memory();
    const size_t n = t->n_waiting;
    if (!is_user || !n)
        return QN_OK;
    t->n_waiting = 0;
    return add_to_message(t, json_array_size(t->messages) - 1, t->waiting, n, true);
}

/* Appends an adapted message. */
static qn_status append(turns *t, json_t *message, size_t index)
{
    const json_t *last = last_of(t);
    const bool is_system = has_role(message, "system"), is_developer = has_role(message, "developer"),
               merges = is_system && !t->has_begun && last && t->traits->merges_system,
               folds = t->has_begun &&
                       ((is_system && t->traits->folds_system) || (is_developer && t->traits->folds_developer));
    t->has_begun = t->has_begun || (!is_system && !is_developer);
    json_t *text;
    if (!merges && !folds)
        return append_other(t, message);
    QN_TRY(text_of_system(message, index, &text));
    qn_status status =
        merges ? add_behind(t, 0, json_string_value(text), json_string_length(text)) : keep_waiting(t, text);
    json_decref(text);
    if (status == QN_OK && folds && (has_role(last, "user") || has_role(last, "tool")))
        status = put_waiting(t);
    return status;
}

/* Puts an empty message of the user after the system messages at the beginning, unless there is a message of the user.
 */
static qn_status add_user(json_t *messages)
{
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (has_role(json_array_get(messages, i), "user"))
            return QN_OK;
    while (n < json_array_size(messages) &&
           (has_role(json_array_get(messages, n), "system") || has_role(json_array_get(messages, n), "developer")))
        n++;
    json_t *message = json_pack("{s:s, s:s}", "role", "user", "content", "");
    return message && json_array_insert_new(messages, n, message) == 0 ? QN_OK : no_memory();
}

static qn_status adapt_messages(const qn_chat_traits *traits, const json_t *messages, json_t *out)
{
    turns t = { .traits = traits, .messages = out };
    qn_status status = QN_OK;
    for (size_t i = 0; status == QN_OK && i < json_array_size(messages); i++) {
        json_t *given = json_array_get(messages, i),
               *message = needs_change(traits, given) ? json_copy(given) : json_incref(given);
        status = message ? QN_OK : no_memory();
        if (status == QN_OK && message != given)
            status = adapt_message(traits, message, i);
        if (status == QN_OK)
            status = append(&t, message, i);
        json_decref(message);
    }
    if (status == QN_OK)
        status = put_waiting(&t);
    if (status == QN_OK)
        status = put_tail(&t);
    if (status == QN_OK && traits->needs_user && json_array_size(out))
        status = add_user(out);
    free(t.waiting);
    free(t.tail);
    return status;
}

/* ---- Effort ---- */

static int level_of(const json_t *effort)
{
    for (int i = 0; json_is_string(effort) && i < QN_EFFORT_LEVELS; i++)
        if (!strcmp(json_string_value(effort), qn_effort_levels[i]))
            return i;
    return -1;
}

/* Returns the nearest level of `known` from `least` to `most`, preferring higher ones; -1: none. */
static int nearest_level(unsigned known, int level, int least, int most)
{
    for (int i = level; i <= most; i++)
        if (known >> i & 1)
            return i;
    for (int i = level; i-- > least;)
        if (known >> i & 1)
            return i;
    return -1;
}

/* Maps a level that a template accepts but does not distinguish. The template treats it as no level, that is, not
 * below its low levels nor above its high ones. */
static int known_level(const qn_chat_traits *traits, int level)
{
    enum { MINIMAL = 1, LOW, MEDIUM, HIGH, MAX = QN_EFFORT_LEVELS - 1 };
    if (traits->is_strict)
        return nearest_level(traits->efforts, level, 0, MAX);
    if (level == 0 || level == MEDIUM)
        return -1;
    return level < MEDIUM ? nearest_level(traits->efforts, level, MINIMAL, LOW)
                          : nearest_level(traits->efforts, level, HIGH, MAX);
}

static bool adapt_effort(const qn_chat_traits *traits, json_t *conversation)
{
    const json_t *effort = json_object_get(conversation, "reasoning_effort");
    const int level = level_of(effort);
    if (json_is_null(effort))
        return json_object_del(conversation, "reasoning_effort") == 0;
    if (level < 0 || (traits->efforts >> level & 1))
        return true;
    if (level == 0 && traits->has_thinking)
        return json_object_del(conversation, "reasoning_effort") == 0 &&
               (json_object_get(conversation, "enable_thinking") ||
                json_object_set_new(conversation, "enable_thinking", json_false()) == 0);
    const int known = known_level(traits, level);
    return known < 0 ||
           json_object_set_new(conversation, "reasoning_effort", json_string(qn_effort_levels[known])) == 0;
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
