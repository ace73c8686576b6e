/* Conversations as text and tokens: the functions of quern/quern.h over the model's chat template. */
#include "base/status.h"
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static int64_t time_or_now(int64_t now)
{
    return now < 0 ? (int64_t)time(NULL) : now;
}

qn_status qn_conversation_text(const qn_model *model, const char *conversation, size_t length, int64_t now, char **text,
                               size_t *text_length)
{
    const qn_tokenizer *tok;
    qn_jinja_output output;
    json_t *json;
    *text = NULL;
    *text_length = 0;
    QN_TRY(qn_model_tokenizer(model, &tok));
    QN_TRY(qn_load_json("conversation", conversation, length, 0, &json));
    const qn_status status = qn_chat_render(tok, model->chat, json, time_or_now(now), &output);
    json_decref(json);
    if (status)
        return status;
    *text = output.text;
    *text_length = output.length;
    output.text = NULL;
    qn_jinja_output_free(&output);
    return QN_OK;
}

void qn_free_text(char *text)
{
    free(text);
}

qn_status qn_conversation_tokens(const qn_model *model, const char *conversation, size_t length, int64_t now, qn_token **tokens,
                                 size_t *count)
{
    const qn_tokenizer *tok;
    json_t *json;
    *tokens = NULL;
    *count = 0;
    QN_TRY(qn_model_tokenizer(model, &tok));
    QN_TRY(qn_load_json("conversation", conversation, length, 0, &json));
    const qn_status status = qn_chat_encode(tok, model->chat, json, time_or_now(now), tokens, count);
    json_decref(json);
    return status;
}

/* ---- Answers ---- */

/* Without tools a call is text. */
static qn_status find_output(const qn_model *model, const json_t *conversation, qn_output_params *output)
{
    json_t *tools = json_object_get(conversation, "tools");
    const bool has_parsed_calls = qn_chat_template_output(model->chat, output);
    if (tools && !json_is_null(tools) && !json_is_array(tools))
        return qn_fail(QN_ERR_INVALID, "tools: they are not an array");
    if (!json_array_size(tools)) {
        output->form = QN_OUTPUT_PLAIN;
        return QN_OK;
    }
    if (!has_parsed_calls)
        return qn_fail(QN_ERR_UNSUPPORTED, "tools: the model's chat template has tools, but its calls cannot be parsed back");
    if (output->form == QN_OUTPUT_PLAIN)
        return qn_fail(QN_ERR_UNSUPPORTED, "tools: the model's chat template has none");
    output->tools = json_incref(tools);
    return QN_OK;
}

static qn_status find_prompt(const qn_model *model, const qn_tokenizer *tok, const json_t *conversation, qn_token **tokens,
                             size_t *count, qn_output_params *output)
{
    qn_jinja_output text;
    QN_TRY(qn_chat_render(tok, model->chat, conversation, time_or_now(-1), &text));
    qn_status status = find_output(model, conversation, output);
    output->starts_in_reasoning = qn_output_prompt_opens_reasoning(output, text.text, text.length);
    if (status == QN_OK)
        status = qn_chat_text_tokens(tok, &text, tokens, count);
    qn_jinja_output_free(&text);
    return status;
}

qn_status qn_conversation_input(const qn_model *model, const char *conversation, size_t length, qn_token **tokens,
                                size_t *count, qn_output_params *output)
{
    const qn_tokenizer *tok;
    json_t *json;
    *tokens = NULL;
    *count = 0;
    *output = (qn_output_params){ 0 };
    QN_TRY(qn_model_tokenizer(model, &tok));
    QN_TRY(qn_load_json("conversation", conversation, length, 0, &json));
    const qn_status status = find_prompt(model, tok, json, tokens, count, output);
    json_decref(json);
    return status;
}

/* ---- Messages ---- */

/* Contents may have bytes that are not UTF-8, which are kept. */
static json_t *message_to_json(const qn_chat_message *message)
{
    json_t *object = json_object();
    json_object_set_new(object, "role", json_string_nocheck(message->role));
    if (json_object_set_new(object, "content", json_string_nocheck(message->content)) == 0)
        return object;
    json_decref(object);
    return NULL;
}

static json_t *messages_to_json(const qn_chat_message *messages, size_t n, bool add_assistant)
{
    json_t *array = json_array();
    for (size_t i = 0; i < n; i++)
        if (json_array_append_new(array, message_to_json(&messages[i]))) {
            json_decref(array);
            return NULL;
        }
    return json_pack("{s:o, s:b}", "messages", array, "add_generation_prompt", add_assistant);
}

qn_status qn_chat_tokens(const qn_model *model, const qn_chat_message *messages, size_t n, bool add_assistant,
                         qn_token **tokens, size_t *count)
{
    const qn_tokenizer *tok;
    *tokens = NULL;
    *count = 0;
    QN_TRY(qn_model_tokenizer(model, &tok));
    for (size_t i = 0; i < n; i++)
        if (!messages[i].role || !messages[i].content)
            return qn_fail(QN_ERR_INVALID, "message %zu has no %s", i, messages[i].role ? "content" : "role");
    json_t *conversation = messages_to_json(messages, n, add_assistant);
    if (!conversation)
        return qn_fail(QN_ERR_MEMORY, "no memory for a conversation of %zu messages", n);
    const qn_status status = qn_chat_encode(tok, model->chat, conversation, time_or_now(-1), tokens, count);
    json_decref(conversation);
    return status;
}
