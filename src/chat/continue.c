/* The end of the content is found by a mark appended to it, as in transformers: templates trim contents and print
 * them in various places. Space at the content's end is kept. */
#include "chat/continue.h"

#include "base/memory.h"
#include "base/status.h"
#include "base/strings.h"
#include "text/json_scan.h"

#include <string.h>

/* The last occurrence in the text is the mark: a content that contains the word comes before it. */
static const char mark[] = "qn9continue";

static json_t *last_message(const json_t *conversation)
{
    json_t *messages = json_object_get(conversation, "messages");
    return json_array_get(messages, json_array_size(messages) - 1);
}

/* Returns the last text of a content, which may be in parts; NULL if there is none. */
static json_t *last_text(const json_t *content)
{
    json_t *part = json_array_get(content, json_array_size(content) - 1);
    json_t *text = json_is_array(content) ? json_object_get(part, "text") : (json_t *)content;
    return json_is_string(text) ? text : NULL;
}

qn_status qn_chat_continues(const json_t *conversation, bool *continues)
{
    const json_t *given = json_object_get(conversation, "continue_final_message"),
                 *message = last_message(conversation);
    const char *role = json_string_value(json_object_get(message, "role"));
    *continues = json_is_true(given);
    if (given && !json_is_boolean(given) && !json_is_null(given))
        return qn_fail(QN_ERR_INVALID, "continue_final_message: expected true or false");
    if (!*continues)
        return QN_OK;
    if (json_is_true(json_object_get(conversation, "add_generation_prompt")))
        return qn_fail(QN_ERR_INVALID,
                       "continue_final_message is given with add_generation_prompt, expected one of them");
    if (!role || strcmp(role, "assistant") != 0)
        return qn_fail(QN_ERR_INVALID,
                       "continue_final_message: the last message is of the role '%.20s', expected 'assistant'",
                       role ? role : "");
    if (json_array_size(json_object_get(message, "tool_calls")))
        return qn_fail(QN_ERR_INVALID,
                       "continue_final_message: the last message has tool calls, expected content alone");
    return last_text(json_object_get(message, "content"))
               ? QN_OK
               : qn_fail(QN_ERR_INVALID, "continue_final_message: the last message has no text as its content");
}

/* Returns a copy of the text with the mark. The text may contain zero bytes. */
static json_t *marked_text(const json_t *text)
{
    const size_t n = json_string_length(text);
    char *bytes;
    if (qn_alloc(&bytes, n + sizeof mark, 1, "a message"))
        return NULL;
    memcpy(bytes, json_string_value(text), n);
    memcpy(bytes + n, mark, sizeof mark);
    json_t *marked = json_stringn_nocheck(bytes, n + sizeof mark - 1);
    qn_free(bytes);
    return marked;
}

/* Returns a copy of the last message whose content ends with the mark; NULL without memory. */
static json_t *marked_message(const json_t *message)
{
    const json_t *content = json_object_get(message, "content");
    json_t *copy = json_copy((json_t *)message), *text = marked_text(last_text(content)), *parts = NULL;
    bool done = copy && text;
    if (json_is_array(content)) {
        parts = json_deep_copy(content);
        done = done && json_object_set(json_array_get(parts, json_array_size(parts) - 1), "text", text) == 0;
    }
    done = done && json_object_set(copy, "content", parts ? parts : text) == 0;
    json_decref(text);
    json_decref(parts);
    if (done)
        return copy;
    json_decref(copy);
    return NULL;
}

qn_status qn_chat_mark_content(const json_t *conversation, json_t **marked)
{
    json_t *copy = json_copy((json_t *)conversation), *messages = json_copy(json_object_get(conversation, "messages"));
    json_t *message = marked_message(last_message(conversation));
    bool done = message && json_array_set(messages, json_array_size(messages) - 1, message) == 0;
    done = done && copy && json_object_set(copy, "messages", messages) == 0 &&
           json_object_del(copy, "continue_final_message") == 0 &&
           json_object_set_new(copy, "add_generation_prompt", json_false()) == 0;
    json_decref(message);
    json_decref(messages);
    *marked = done ? copy : NULL;
    if (done)
        return QN_OK;
    json_decref(copy);
    return qn_fail(QN_ERR_MEMORY, "no memory for a conversation");
}

/* Returns the offset of the last mark in a text, or the text's length. */
static size_t find_mark(const char *text, size_t length)
{
    const size_t n = sizeof mark - 1;
    for (size_t at = length < n ? 0 : length - n + 1; at-- > 0;)
        if (!memcmp(text + at, mark, n))
            return at;
    return length;
}

/* Returns the part of a content that templates print: the text after its reasoning, without leading space. */
static const char *printed_content(const json_t *content, const char *think_close, size_t *length)
{
    const char *from = json_string_value(content), *end = from + json_string_length(content), *close;
    while (think_close && (close = qn_memmem(from, (size_t)(end - from), think_close, strlen(think_close))))
        from = close + strlen(think_close);
    while (from < end && qn_json_is_space(*from))
        from++;
    *length = (size_t)(end - from);
    return from;
}

static void cut(qn_jinja_output *output, size_t length)
{
    output->length = length;
    output->text[length] = '\0';
    while (output->n_spans && output->spans[output->n_spans - 1].begin >= length)
        output->n_spans--;
    if (output->n_spans)
        output->spans[output->n_spans - 1].end = length;
}

qn_status qn_chat_cut_at_mark(const json_t *conversation, const char *think_close, qn_jinja_output *output)
{
    const json_t *content = last_text(json_object_get(last_message(conversation), "content"));
    size_t n;
    const char *printed = printed_content(content, think_close, &n);
    const size_t end = find_mark(output->text, output->length);
    if (end == output->length || end < n || memcmp(output->text + end - n, printed, n) != 0)
        return qn_fail(QN_ERR_INVALID,
                       "continue_final_message: the chat template does not print the last message's content as "
                       "it is, so that its end cannot be found");
    cut(output, end);
    return QN_OK;
}
