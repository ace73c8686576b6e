/* Files of conversations: JSON, with messages as the public functions for conversations take them. */
#include "cli/conversation.h"

#include "base/atomic_file.h"
#include "base/file.h"
#include "base/status.h"
#include "base/utf8.h"
#include "gguf/json.h"
#include "gguf/json_decode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const variables[] = { "enable_thinking", "reasoning_effort" };
enum { N_VARIABLES = sizeof variables / sizeof *variables, MAX_FILE = 256 << 20 };

#define LOADED "loaded_tokens"

/* ---- Reading ---- */

bool qn_conversation_is_file(const char *path)
{
    char bytes[64];
    FILE *file = qn_file_stream(path, "r");
    const size_t n = file ? fread(bytes, 1, sizeof bytes, file) : 0;
    size_t i = qn_utf8_mark(bytes, n);
    if (file)
        fclose(file);
    while (i < n && strchr(" \t\r\n", bytes[i]))
        i++;
    return i < n && bytes[i] == '{';
}

static bool is_system(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0);
}

static qn_status check_messages(const char *path, const json_t *messages)
{
    size_t i;
    const json_t *message;
    if (!json_is_array(messages))
        return qn_fail(QN_ERR_FORMAT, "%s: not a conversation, which is an object with an array 'messages'", path);
    json_array_foreach((json_t *)messages, i, message)
    {
        if (!json_is_string(json_object_get(message, "role")))
            return qn_fail(QN_ERR_FORMAT, "%s: messages[%zu] has no role", path, i);
        if (is_system(message) && (i > 0 || !json_is_string(json_object_get(message, "content"))))
            return qn_fail(
                QN_ERR_FORMAT,
                "%s: messages[%zu] is a system message, which only the first one may be, with text as its content",
                path, i);
    }
    return QN_OK;
}

static qn_status read_file(const char *path, json_t **root)
{
    json_error_t error;
    char *text;
    size_t length;
    QN_TRY(qn_text_read(path, MAX_FILE, true, &text, &length));
    *root = qn_json_load(text, length, JSON_REJECT_DUPLICATES, 0, &error);
    free(text);
    if (!*root)
        return qn_fail(QN_ERR_FORMAT, "%s: line %d: %s", path, error.line, error.text);
    const qn_status status = check_messages(path, json_object_get(*root, "messages"));
    if (status)
        json_decref(*root);
    return status;
}

/* Reads the variables of thinking. Values of another type are dropped: /think could not change them. */
static void take_thinking(qn_conversation *c, const json_t *root)
{
    json_t *enabled = json_object_get(root, variables[0]), *effort = json_object_get(root, variables[1]);
    if (enabled || effort)
        json_object_clear(c->thinking);
    if (json_is_boolean(enabled))
        json_object_set(c->thinking, variables[0], enabled);
    if (json_is_string(effort))
        json_object_set(c->thinking, variables[1], effort);
}

/* Fills an empty conversation. */
static qn_status take(qn_conversation *c, const json_t *root)
{
    qn_cli_prompt prompt;
    size_t i;
    json_t *message;
    take_thinking(c, root);
    json_array_foreach(json_object_get(root, "messages"), i, message)
    {
        if (is_system(message))
            QN_TRY(qn_conversation_set_system(c, json_string_value(json_object_get(message, "content"))));
        else if (json_array_append(c->messages, message))
            return qn_fail(QN_ERR_MEMORY, "no memory for the conversation");
    }
    if (!json_array_size(c->messages))
        return QN_OK;
    QN_TRY(qn_conversation_prompt(c, SIZE_MAX, 0, &prompt));
    qn_cli_prompt_free(&prompt);
    return QN_OK;
}

qn_status qn_conversation_open(qn_conversation *c, const char *path, size_t *n_loaded)
{
    qn_conversation read;
    json_t *root;
    QN_TRY(read_file(path, &root));
    qn_status status = qn_conversation_begin(&read, c->model, NULL, NULL);
    if (status == QN_OK && json_object_update(read.thinking, c->thinking))
        status = qn_fail(QN_ERR_MEMORY, "no memory for the conversation");
    if (status == QN_OK)
        status = take(&read, root);
    const json_int_t loaded = json_integer_value(json_object_get(root, LOADED));
    *n_loaded = loaded > 0 && loaded <= UINT32_MAX ? (size_t)loaded : 0;
    json_decref(root);
    if (status == QN_OK) {
        const qn_conversation replaced = *c;
        *c = read;
        read = replaced;
    }
    qn_conversation_free(&read);
    return status;
}

/* ---- Writing ---- */

static json_t *to_json(const qn_conversation *c)
{
    json_t *root = json_object(), *messages = json_array();
    int failed = json_object_set(root, "messages", messages);
    if (c->system)
        failed |= json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "system", "content", c->system));
    failed |= json_array_extend(messages, c->messages);
    json_decref(messages);
    for (size_t i = 0; i < N_VARIABLES; i++)
        if (json_object_get(c->thinking, variables[i]))
            failed |= json_object_set(root, variables[i], json_object_get(c->thinking, variables[i]));
    if (c->loaded)
        failed |= json_object_set_new(root, LOADED, json_integer((json_int_t)c->n_loaded));
    if (!failed)
        return root;
    json_decref(root);
    return NULL;
}

static qn_status check_target(const char *path)
{
    qn_file_info target;
    json_t *root;
    if (!qn_file_describe(path, &target) || target.kind != QN_FILE_REGULAR || target.size == 0)
        return QN_OK;
    if (read_file(path, &root))
        return qn_fail(QN_ERR_INVALID, "%s: exists and is not a conversation; it is not replaced", path);
    json_decref(root);
    return QN_OK;
}

qn_status qn_conversation_save(const qn_conversation *c, const char *path)
{
    QN_TRY(check_target(path));
    json_t *root = to_json(c);
    char *text = json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    if (!text)
        return qn_fail(QN_ERR_MEMORY, "no memory for the conversation");
    qn_atomic_file file;
    qn_status status = qn_atomic_file_create(&file, path, QN_FILE_PRIVATE);
    if (status == QN_OK)
        status = qn_atomic_file_write(&file, text, strlen(text));
    if (status == QN_OK)
        status = qn_atomic_file_write(&file, "\n", 1);
    if (status == QN_OK)
        status = qn_atomic_file_commit(&file);
    qn_atomic_file_free(&file);
    free(text);
    return status;
}
