/* Bodies of Ollama's /api/chat and /api/generate, rewritten as bodies of chats and completions. Fields that say how a
 * model is loaded are ignored, such as num_ctx and keep_alive: the server has loaded it.
 *
 * `to` is the rewritten body, which takes references to the values of the given one. Messages and tools are changed in
 * place. */
#include "protocol/ollama.h"

#include <string.h>

/* Memory of the values that a rewritten body or message has in addition. */
enum { BODY_BYTES = 4096, MESSAGE_BYTES = 1024 };

/* Sets a member, with a reference of its own; NULL: does nothing. */
static bool set(json_t *object, const char *key, json_t *value, qn_refusal *refusal)
{
    return !value || json_object_set(object, key, value) == 0 || qn_refuse_memory(refusal);
}

/* Sets a member, whose reference is taken over. */
static bool set_new(json_t *object, const char *key, json_t *value, qn_refusal *refusal)
{
    return json_object_set_new(object, key, value) == 0 || qn_refuse_memory(refusal);
}

/* Sets a member of `to` to that of the same name, if there is one. */
static bool copy(const json_t *from, const char *name, json_t *to, qn_refusal *refusal)
{
    return set(to, name, qn_field(from, name), refusal);
}

/* ---- Shared fields ---- */

bool qn_ollama_take_model(const json_t *body, json_t **model, qn_refusal *refusal)
{
    static const char latest[] = ":latest";
    const char *const field = qn_field(body, "model") || !qn_field(body, "name") ? "model" : "name";
    json_t *given = qn_field(body, field);
    enum { MAX_BYTES = 512 };
    if (!json_string_length(given) || json_string_length(given) > MAX_BYTES)
        return qn_refuse_type(refusal, field, given, "a name of at most 512 bytes");
    const size_t n = json_string_length(given), suffix = sizeof latest - 1;
    const bool has_tag = n > suffix && !memcmp(json_string_value(given) + n - suffix, latest, suffix);
    *model = has_tag ? json_stringn(json_string_value(given), n - suffix) : json_incref(given);
    return *model || qn_refuse_memory(refusal);
}

/* Copies the options of sampling and lengths. Of the others, some belong to loading (num_ctx, num_gpu), others change
 * no answer. */
static bool take_options(const json_t *body, json_t *to, qn_refusal *refusal)
{
    static const char *const names[] = { "seed",
                                         "top_k",
                                         "top_p",
                                         "min_p",
                                         "typical_p",
                                         "temperature",
                                         "repeat_penalty",
                                         "presence_penalty",
                                         "frequency_penalty",
                                         "mirostat",
                                         "mirostat_tau",
                                         "mirostat_eta",
                                         "stop",
                                         "tfs_z" };
    const json_t *options = qn_field(body, "options");
    int64_t most = -1, last_n = 0;
    if (options && !json_is_object(options))
        return qn_refuse_type(refusal, "options", options, "an object");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!copy(options, names[i], to, refusal))
            return false;
    if (!qn_field_integer(options, "num_predict", INT32_MIN, INT32_MAX, &most, refusal) ||
        !qn_field_integer(options, "repeat_last_n", -1, INT32_MAX, &last_n, refusal))
        return false;
    if (qn_field(options, "repeat_last_n") &&
        !set_new(to, "repeat_last_n", json_integer(last_n < 0 ? INT32_MAX : last_n), refusal))
        return false;
    return set_new(to, "max_tokens", json_integer(most > 0 ? most : -1), refusal); /* else there is no limit */
}

static bool take_format(const json_t *body, json_t *to, qn_refusal *refusal)
{
    json_t *given = qn_field(body, "format");
    if (json_is_object(given))
        return set(to, "json_schema", given, refusal);
    if (qn_json_is(given, "json"))
        return set_new(to, "response_format", json_pack("{s:s}", "type", "json_object"), refusal);
    return !given || (json_is_string(given) && !json_string_length(given)) ||
           qn_refuse_choice(refusal, "format", given, "\"json\" or a JSON schema");
}

static bool take_think(const json_t *body, json_t *to, qn_refusal *refusal)
{
    json_t *given = qn_field(body, "think");
    if (json_is_string(given))
        return !json_string_length(given) || set(to, "reasoning_effort", given, refusal);
    return !given || json_is_boolean(given) ? set(to, "enable_thinking", given, refusal)
                                            : qn_refuse_type(refusal, "think", given, "true, false or a level");
}

static bool check_images(const json_t *holder, const char *where, qn_refusal *refusal)
{
    const json_t *images = qn_field(holder, "images");
    return !json_array_size(images) ||
           qn_refuse(refusal, 400, "unsupported_content", where, "images are not supported: the model reads only text");
}

static bool take_shared(const json_t *body, json_t *to, qn_refusal *refusal)
{
    json_t *model = NULL, *stream = qn_field(body, "stream");
    if (!qn_ollama_take_model(body, &model, refusal) || !set_new(to, "model", model, refusal))
        return false;
    return set(to, "stream", stream, refusal) && (stream || set_new(to, "stream", json_true(), refusal)) &&
           take_options(body, to, refusal) && take_format(body, to, refusal) && take_think(body, to, refusal) &&
           copy(body, "logprobs", to, refusal) && copy(body, "top_logprobs", to, refusal);
}

/* ---- Chats ---- */

/* Completes the calls of a message: they have no type. Their arguments are an object. */
static bool take_calls(json_t *message, qn_refusal *refusal)
{
    json_t *calls = qn_field(message, "tool_calls");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *call = json_array_get(calls, i);
        if (json_is_object(call) && !qn_field(call, "type") && !set_new(call, "type", json_string("function"), refusal))
            return false;
    }
    return true;
}

static bool take_message(json_t *message, qn_reading *reading, qn_refusal *refusal)
{
    if (!json_is_object(message))
        return qn_refuse_type(refusal, "messages", message, "an array of objects");
    if (!qn_reading_take(reading, MESSAGE_BYTES))
        return qn_reading_refuse(reading, refusal);
    if (!check_images(message, "messages", refusal) || !take_calls(message, refusal))
        return false;
    if (!set(message, "reasoning_content", qn_field(message, "thinking"), refusal) ||
        (!qn_field(message, "name") && !set(message, "name", qn_field(message, "tool_name"), refusal)))
        return false;
    (void)json_object_del(message, "thinking");
    (void)json_object_del(message, "images");
    return qn_field(message, "content") || set_new(message, "content", json_string(""), refusal);
}

/* Completes and copies the tools, which may lack a type. */
static bool take_tools(const json_t *body, json_t *to, qn_refusal *refusal)
{
    json_t *tools = qn_field(body, "tools");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        json_t *tool = json_array_get(tools, i);
        if (json_is_object(tool) && !qn_field(tool, "type") && !set_new(tool, "type", json_string("function"), refusal))
            return false;
    }
    return set(to, "tools", tools, refusal);
}

static bool take_chat(const json_t *body, json_t *to, qn_reading *reading, qn_refusal *refusal)
{
    json_t *messages = qn_field(body, "messages");
    if (messages && !json_is_array(messages))
        return qn_refuse_type(refusal, "messages", messages, "an array");
    if (!qn_openai_check_count(json_array_size(messages), "messages", reading->limits, refusal))
        return false;
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!take_message(json_array_get(messages, i), reading, refusal))
            return false;
    return set(to, "messages", messages, refusal) && take_tools(body, to, refusal);
}

/* ---- Texts ---- */

/* Refuses fields that are not supported. `context` was the tokens of earlier answers, which this server does not
 * send. */
static bool check_unsupported(const json_t *body, qn_refusal *refusal)
{
    static const char *const names[] = { "template", "context" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *given = qn_field(body, names[i]);
        if (json_array_size(given) || json_string_length(given))
            return qn_refuse(refusal, 400, "unsupported", names[i], "'%s' is not supported", names[i]);
    }
    return check_images(body, "images", refusal);
}

static bool take_text(const json_t *body, json_t *to, bool *is_completion, qn_reading *reading, qn_refusal *refusal)
{
    json_t *prompt = qn_field(body, "prompt"), *system = qn_field(body, "system"), *suffix = qn_field(body, "suffix");
    bool is_raw = false;
    if (prompt && !json_is_string(prompt))
        return qn_refuse_type(refusal, "prompt", prompt, "a string");
    if (system && !json_is_string(system))
        return qn_refuse_type(refusal, "system", system, "a string");
    if (!qn_field_bool(body, "raw", &is_raw, refusal) || !check_unsupported(body, refusal))
        return false;
    *is_completion = is_raw || suffix;
    if (*is_completion)
        return (prompt ? set(to, "prompt", prompt, refusal) : set_new(to, "prompt", json_string(""), refusal)) &&
               set(to, "suffix", suffix, refusal);
    if (!qn_reading_take(reading, 2 * MESSAGE_BYTES))
        return qn_reading_refuse(reading, refusal);
    json_t *messages = json_array();
    bool done = messages != NULL;
    if (done && json_string_length(system))
        done = json_array_append_new(messages, json_pack("{s:s, s:O}", "role", "system", "content", system)) == 0;
    if (done && prompt)
        done = json_array_append_new(messages, json_pack("{s:s, s:O}", "role", "user", "content", prompt)) == 0;
    if (!done) {
        json_decref(messages);
        return qn_refuse_memory(refusal);
    }
    return set_new(to, "messages", messages, refusal);
}

/* ---- Both ---- */

/* Rewrites `logprobs` and `top_logprobs`, which chats have, as the one number of completions. */
static bool take_logprobs(json_t *to, qn_refusal *refusal)
{
    const json_t *given = json_object_get(to, "logprobs");
    json_t *top = json_incref(json_object_get(to, "top_logprobs"));
    bool done = !given || json_is_boolean(given) || qn_refuse_type(refusal, "logprobs", given, "true or false");
    (void)json_object_del(to, "top_logprobs");
    if (done && json_is_true(given))
        done = set_new(to, "logprobs", top ? json_incref(top) : json_integer(0), refusal);
    else
        (void)json_object_del(to, "logprobs");
    json_decref(top);
    return done;
}

static bool is_empty(bool is_chat, const json_t *body)
{
    return is_chat ? !json_array_size(qn_field(body, "messages"))
                   : !json_string_length(qn_field(body, "prompt")) && !qn_field(body, "suffix");
}

/* Reads the rewritten body: its values become those of the exchange. */
static bool take_body(qn_ollama_exchange *x, const json_t *body, bool is_completion, qn_reading *reading,
                      qn_refusal *refusal)
{
    qn_text_exchange *text = &x->text;
    if (!is_completion) {
        text->base.conversation = qn_openai_conversation(body, reading, refusal);
        text->base.has_events = true;
    }
    if ((!is_completion && !text->base.conversation) || !qn_openai_params(text, body, refusal) ||
        !qn_openai_take_constraints(text, body, reading, refusal))
        return false;
    return !is_completion ||
           (qn_openai_take_suffix(text, body, refusal) && qn_openai_check_prompts(text, body, refusal));
}

static qn_ollama_exchange *create(bool is_chat, bool is_completion, qn_reading *reading, qn_refusal *refusal)
{
    const qn_text_exchange_kind kind = is_completion ? QN_COMPLETION_EXCHANGE : QN_CHAT_EXCHANGE;
    qn_ollama_exchange *x = (qn_ollama_exchange *)qn_text_exchange_alloc(sizeof *x, kind, reading, refusal);
    if (x)
        x->is_chat = is_chat;
    return x;
}

/* Reads a body with nothing to answer: Ollama loads the model, and answers that it has. */
static bool take_load(qn_ollama_exchange *x, const json_t *body, qn_refusal *refusal)
{
    x->is_load = true;
    return qn_openai_take_model(body, &x->text.model, refusal) &&
           qn_field_bool(body, "stream", &x->text.base.is_stream, refusal);
}

qn_exchange *qn_ollama_parse(bool is_chat, const json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    json_t *to = json_object();
    qn_ollama_exchange *x = NULL;
    bool is_completion = false, done;
    if (!to || !qn_reading_take(reading, BODY_BYTES)) {
        qn_reading_refuse(reading, refusal);
        json_decref(to);
        return NULL;
    }
    done = take_shared(body, to, refusal) &&
           (is_chat ? take_chat(body, to, reading, refusal) : take_text(body, to, &is_completion, reading, refusal)) &&
           (!is_completion || take_logprobs(to, refusal)) &&
           (x = create(is_chat, is_completion, reading, refusal)) != NULL &&
           (is_empty(is_chat, body) ? take_load(x, to, refusal) : take_body(x, to, is_completion, reading, refusal));
    json_decref(to);
    if (done) {
        x->text.base.model = json_string_value(x->text.model);
        x->text.base.is_read = x->is_load;
        return &x->text.base;
    }
    if (x)
        qn_text_exchange_free(&x->text.base);
    return NULL;
}
