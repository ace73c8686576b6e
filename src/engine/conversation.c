/* Conversations as text and tokens: the functions of quern/quern.h over the model's chat template. */
#include "base/status.h"
#include "engine/events.h"

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

/* The members of a conversation that determine how its answer is parsed. */
struct rest {
    json_t *tools; /* a reference, or NULL */
    bool continues;
};

/* Returns the tokens of a conversation, at most `most`, and the number of all. Of the JSON, only the rest is kept in
 * memory meanwhile. */
static qn_status encode(const qn_model *model, const char *conversation, size_t length, int64_t now, size_t most,
                        struct rest *rest, qn_token **tokens, size_t *count)
{
    const qn_tokenizer *tok;
    qn_jinja_output text;
    json_t *json;
    *tokens = NULL;
    *count = 0;
    *rest = (struct rest){ NULL, false };
    QN_TRY(qn_model_tokenizer(model, &tok));
    QN_TRY(qn_load_json("conversation", conversation, length, 0, &json));
    qn_status status = qn_chat_render(tok, model->chat, json, time_or_now(now), &text);
    rest->tools = json_incref(json_object_get(json, "tools"));
    rest->continues = json_is_true(json_object_get(json, "continue_final_message"));
    json_decref(json);
    if (status == QN_OK) {
        status = qn_chat_text_tokens(tok, model->chat, &text, most, tokens, count);
        qn_jinja_output_free(&text);
    }
    return status;
}

qn_status qn_conversation_tokens(const qn_model *model, const char *conversation, size_t length, int64_t now,
                                 qn_token **tokens, size_t *count)
{
    struct rest rest;
    const qn_status status = encode(model, conversation, length, now, SIZE_MAX, &rest, tokens, count);
    json_decref(rest.tools);
    return status;
}

qn_status qn_conversation_count(const qn_model *model, const char *conversation, size_t length, int64_t now,
                                size_t *count)
{
    struct rest rest;
    qn_token *tokens;
    const qn_status status = encode(model, conversation, length, now, 0, &rest, &tokens, count);
    json_decref(rest.tools);
    qn_free_tokens(tokens);
    return status;
}

/* ---- The chat format ---- */

static const char *or_empty(const char *text)
{
    return text ? text : "";
}

void qn_model_find_chat_format(const qn_model *model, qn_chat_format *format)
{
    qn_output_params output;
    *format = (qn_chat_format){ "", model->no_tokenizer, "", "", "", false, false, NULL, 0, "" };
    if (!model->chat)
        return;
    const bool is_parsed = qn_chat_template_output(model->chat, &output);
    const qn_chat_traits *traits = qn_chat_template_traits(model->chat);
    *format = (qn_chat_format){
        .source = qn_chat_template_name(model->chat),
        .problem = qn_chat_template_problem(model->chat),
        .tool_calls = output.form != QN_OUTPUT_PLAIN ? qn_output_form_name(output.form)
                      : is_parsed                    ? ""
                                                     : "unknown",
        .think_open = or_empty(output.think_open.text),
        .think_close = or_empty(output.think_close.text),
        .text = qn_chat_template_text(model->chat),
    };
    if (traits) {
        format->has_enable_thinking = traits->has_thinking;
        format->has_reasoning_effort = traits->has_effort;
        format->efforts = traits->names;
        format->n_efforts = traits->n_names;
    }
}

const qn_chat_format *qn_model_get_chat_format(const qn_model *model)
{
    return &model->chat_format;
}

/* ---- Answers ---- */

qn_status qn_conversation_input(const qn_model *model, const char *conversation, size_t length, size_t most,
                                qn_token **tokens, size_t *count, qn_output_params *output, qn_output_tools **kept)
{
    struct rest rest;
    *output = (qn_output_params){ 0 };
    *kept = NULL;
    qn_status status = encode(model, conversation, length, -1, most, &rest, tokens, count);
    if (status == QN_OK && *count > most)
        status = qn_fail(QN_ERR_CONTEXT, "context: the prompt has %zu tokens, the capacity is %zu", *count, most);
    if (status == QN_OK)
        status = qn_answer_output(model, rest.tools, *tokens, *count, output, kept);
    output->continues = rest.continues;
    json_decref(rest.tools);
    if (status) {
        qn_free_tokens(*tokens);
        *tokens = NULL;
    }
    return status;
}

/* ---- Messages ---- */

/* Contents may contain bytes that are not UTF-8; these are kept. */
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
