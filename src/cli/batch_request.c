/* A line of the input of quern batch: OpenAI's batch format, {"custom_id", "method", "url", "body"}, and the bodies of chat
 * completions and completions. Fields that quern does not have are ignored. */
#include "cli/batch.h"

#include "base/memory.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* As OpenAI has it. */
enum { COMPLETION_TOKENS = 16, MAX_STOPS = 64 };

bool qn_batch_fail(qn_batch_error *error, const qn_batch_job *job, const char *code, const char *format, ...)
{
    va_list arguments;
    const int n = snprintf(error->message, sizeof error->message, "line %zu: ", job->line);
    error->code = code;
    va_start(arguments, format);
    vsnprintf(error->message + n, sizeof error->message - (size_t)n, format, arguments);
    va_end(arguments);
    return false;
}

static const char *type_name(const json_t *value)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array", [JSON_STRING] = "a string", [JSON_INTEGER] = "an integer",
        [JSON_REAL] = "a number",    [JSON_TRUE] = "true",      [JSON_FALSE] = "false",     [JSON_NULL] = "null"
    };
    return value ? names[json_typeof(value)] : "missing";
}

static bool wrong(qn_batch_error *error, const qn_batch_job *job, const char *name, const json_t *value, const char *expected)
{
    return qn_batch_fail(error, job, "invalid_request", "'%s' is %s, expected %s", name, type_name(value), expected);
}

/* ---- Values of a body ---- */

/* A field that is missing or null is not there. */
static const json_t *field(const json_t *body, const char *name)
{
    const json_t *value = json_object_get(body, name);
    return json_is_null(value) ? NULL : value;
}

static bool get_number(const qn_batch_job *job, const json_t *body, const char *name, double least, double most, float *out,
                       qn_batch_error *error)
{
    const json_t *value = field(body, name);
    if (!value)
        return true;
    if (!json_is_number(value))
        return wrong(error, job, name, value, "a number");
    const double number = json_number_value(value);
    if (!(number >= least && number <= most))
        return qn_batch_fail(error, job, "invalid_request", "'%s' is %g, expected %g to %g", name, number, least, most);
    *out = (float)number;
    return true;
}

static bool get_integer(const qn_batch_job *job, const json_t *body, const char *name, int64_t least, int64_t most,
                        int64_t *out, qn_batch_error *error)
{
    const json_t *value = field(body, name);
    if (!value)
        return true;
    if (!json_is_integer(value))
        return wrong(error, job, name, value, "an integer");
    const json_int_t number = json_integer_value(value);
    if (number < least || number > most)
        return qn_batch_fail(error, job, "invalid_request", "'%s' is %lld, expected %lld to %lld", name, (long long)number,
                             (long long)least, (long long)most);
    *out = number;
    return true;
}

static bool get_sampling(qn_batch_job *job, const json_t *body, qn_batch_error *error)
{
    qn_sampling *s = &job->params.sampling;
    int64_t seed = (int64_t)XXH64(job->custom_id, strlen(job->custom_id), 0), top_k = 0;
    *s = (qn_sampling){ .temperature = 1, .top_p = 1, .repeat_penalty = 1 };
    if (!get_number(job, body, "temperature", 0, 2, &s->temperature, error) ||
        !get_number(job, body, "top_p", 1e-9, 1, &s->top_p, error) ||
        !get_number(job, body, "min_p", 0, 0.999999, &s->min_p, error) ||
        !get_integer(job, body, "top_k", 0, INT32_MAX, &top_k, error) ||
        !get_number(job, body, "frequency_penalty", -2, 2, &s->frequency_penalty, error) ||
        !get_number(job, body, "presence_penalty", -2, 2, &s->presence_penalty, error) ||
        !get_integer(job, body, "seed", INT64_MIN, INT64_MAX, &seed, error))
        return false;
    s->top_k = (int)top_k;
    s->seed = (uint64_t)seed;
    return true;
}

uint64_t qn_batch_seed(uint64_t seed, size_t choice)
{
    const uint64_t number = choice;
    return choice ? XXH64(&number, sizeof number, seed) : seed;
}

static bool get_choices(qn_batch_job *job, const json_t *body, qn_batch_error *error)
{
    int64_t n = 1;
    if (!get_integer(job, body, "n", 1, QN_BATCH_MAX_CHOICES, &n, error))
        return false;
    if (qn_alloc(&job->choices, (size_t)n, sizeof *job->choices, "choices"))
        return qn_batch_fail(error, job, "out_of_memory", "%s", qn_error_text());
    job->n_choices = (size_t)n;
    return true;
}

/* "1234": 5. */
static bool get_bias(qn_batch_job *job, const json_t *body, qn_batch_error *error)
{
    json_t *value = json_object_get(body, "logit_bias"), *bias;
    const char *key;
    if (!field(body, "logit_bias"))
        return true;
    if (!json_is_object(value))
        return wrong(error, job, "logit_bias", value, "an object of numbers by token ids");
    if (qn_alloc(&job->bias, json_object_size(value), sizeof *job->bias, "logit_bias"))
        return qn_batch_fail(error, job, "out_of_memory", "%s", qn_error_text());
    job->params.bias = job->bias;
    json_object_foreach(value, key, bias)
    {
        char *end;
        const long token = strtol(key, &end, 10);
        if (key[0] < '0' || key[0] > '9' || *end || token > INT32_MAX)
            return qn_batch_fail(error, job, "invalid_request", "'logit_bias' has the key '%.40s', expected a token id", key);
        if (!json_is_number(bias))
            return wrong(error, job, "logit_bias", bias, "a number for each token id");
        if (fabs(json_number_value(bias)) > 100)
            return qn_batch_fail(error, job, "invalid_request", "'logit_bias' of %ld is %g, expected -100 to 100", token,
                                 json_number_value(bias));
        job->bias[job->params.n_bias++] = (qn_logit_bias){ (qn_token)token, (float)json_number_value(bias) };
    }
    return true;
}

/* Chats have a bool and a number of tokens, completions the number alone. */
static bool get_logprobs(qn_batch_job *job, const json_t *body, qn_batch_error *error)
{
    const json_t *asked = field(body, "logprobs");
    int64_t n = job->is_chat ? 0 : -1;
    if (job->is_chat && asked && !json_is_boolean(asked))
        return wrong(error, job, "logprobs", asked, "true or false");
    if (job->is_chat && !json_is_true(asked) && field(body, "top_logprobs"))
        return qn_batch_fail(error, job, "invalid_request", "'top_logprobs' is there, expected 'logprobs' to be true");
    if (!get_integer(job, body, job->is_chat ? "top_logprobs" : "logprobs", 0, QN_MAX_LOGPROBS, &n, error))
        return false;
    job->params.n_logprobs = job->is_chat && !json_is_true(asked) ? -1 : (int)n;
    return true;
}

static bool get_lengths(qn_batch_job *job, const json_t *body, qn_batch_error *error)
{
    int64_t *most = &job->params.max_tokens;
    *most = job->is_chat ? -1 : COMPLETION_TOKENS;
    return get_integer(job, body, "max_tokens", 1, INT32_MAX, most, error) &&
           get_integer(job, body, "max_completion_tokens", 1, INT32_MAX, most, error);
}

static bool get_stop(qn_batch_job *job, const json_t *body, qn_batch_error *error)
{
    const json_t *value = field(body, "stop");
    const size_t n = json_is_array(value) ? json_array_size(value) : value ? 1 : 0;
    if (n > MAX_STOPS)
        return qn_batch_fail(error, job, "invalid_request", "'stop' has %zu strings, at most %d are allowed", n, MAX_STOPS);
    if (qn_alloc(&job->stop, n, sizeof(char *), "stop strings"))
        return qn_batch_fail(error, job, "out_of_memory", "%s", qn_error_text());
    for (size_t i = 0; i < n; i++) {
        const json_t *text = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_string(text) || !json_string_length(text))
            return wrong(error, job, "stop", text, "a string that is not empty, or an array of such");
        job->stop[i] = json_string_value(text);
    }
    job->params.stop = job->stop;
    job->params.n_stop = n;
    return true;
}

/* ---- Prompts ---- */

/* The text of a message whose content is an array of parts. */
static bool join_parts(qn_batch_job *job, const json_t *parts, size_t index, qn_batch_error *error)
{
    size_t length = 0, n = json_array_size(parts);
    for (size_t i = 0; i < n; i++) {
        const json_t *part = json_array_get(parts, i), *type = json_object_get(part, "type"),
                     *text = json_object_get(part, "text");
        if (!json_is_string(type) || strcmp(json_string_value(type), "text") != 0 || !json_is_string(text))
            return qn_batch_fail(error, job, "unsupported_content",
                                 "message %zu: part %zu is not a text, which is all that is supported", index, i);
        length += json_string_length(text);
    }
    if (qn_alloc(&job->contents[index], length + 1, 1, "message"))
        return qn_batch_fail(error, job, "out_of_memory", "%s", qn_error_text());
    for (size_t i = 0, at = 0; i < n; i++) {
        const json_t *text = json_object_get(json_array_get(parts, i), "text");
        memcpy(job->contents[index] + at, json_string_value(text), json_string_length(text));
        at += json_string_length(text);
    }
    return true;
}

static bool get_message(qn_batch_job *job, const json_t *message, size_t index, qn_batch_error *error)
{
    const json_t *role = json_object_get(message, "role"), *content = json_object_get(message, "content");
    if (!json_is_string(role))
        return wrong(error, job, "role", role, "a string");
    if (json_is_array(content)) {
        if (!join_parts(job, content, index, error))
            return false;
    } else if (!json_is_string(content)) {
        return wrong(error, job, "content", content, "a string or an array of texts");
    }
    static const char *const roles[] = { "system", "developer", "user", "assistant" };
    const char *name = json_string_value(role);
    size_t i = 0;
    while (i < sizeof roles / sizeof *roles && strcmp(name, roles[i]) != 0)
        i++;
    if (i == sizeof roles / sizeof *roles)
        return wrong(error, job, "role", role, "\"system\", \"developer\", \"user\" or \"assistant\"");
    job->messages[index] =
        (qn_chat_message){ .role = strcmp(name, "developer") ? name : "system",
                           .content = job->contents[index] ? job->contents[index] : json_string_value(content) };
    return true;
}

static bool get_messages(qn_batch_job *job, const json_t *body, qn_batch_error *error)
{
    const json_t *messages = json_object_get(body, "messages");
    const size_t n = json_array_size(messages);
    if (!json_is_array(messages) || !n)
        return wrong(error, job, "messages", messages, "an array with at least one message");
    job->params.n_messages = n;
    if (qn_alloc(&job->messages, n, sizeof *job->messages, "messages") ||
        qn_alloc(&job->contents, n, sizeof(char *), "messages"))
        return qn_batch_fail(error, job, "out_of_memory", "%s", qn_error_text());
    job->params.messages = job->messages;
    for (size_t i = 0; i < n; i++)
        if (!get_message(job, json_array_get(messages, i), i, error))
            return false;
    return true;
}

/* A text, an array of one, or an array of token ids. */
static bool get_prompt(qn_batch_job *job, const json_t *body, qn_batch_error *error)
{
    static const char expected[] = "a string, an array of one string, or an array of token ids";
    const json_t *prompt = json_object_get(body, "prompt");
    const size_t n = json_array_size(prompt);
    if (n == 1 && json_is_string(json_array_get(prompt, 0)))
        prompt = json_array_get(prompt, 0);
    if (json_is_string(prompt)) {
        job->params.text = json_string_value(prompt);
        return true;
    }
    if (!n)
        return wrong(error, job, "prompt", prompt, expected);
    if (qn_alloc(&job->tokens, n, sizeof *job->tokens, "token ids"))
        return qn_batch_fail(error, job, "out_of_memory", "%s", qn_error_text());
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(prompt, i);
        const json_int_t value = json_integer_value(id);
        if (!json_is_integer(id))
            return wrong(error, job, "prompt", id, expected);
        job->tokens[i] = value >= 0 && value <= INT32_MAX ? (qn_token)value : -1;
    }
    job->params.tokens = job->tokens;
    job->params.n_tokens = n;
    return true;
}

/* ---- Lines ---- */

static bool get_url(qn_batch_job *job, qn_batch_error *error)
{
    const json_t *url = field(job->json, "url"), *method = field(job->json, "method");
    const char *text = json_string_value(url);
    if (method && (!json_is_string(method) || strcmp(json_string_value(method), "POST") != 0))
        return qn_batch_fail(error, job, "invalid_request", "'method' is not \"POST\"");
    job->is_chat = text && strcmp(text, "/v1/chat/completions") == 0;
    if (!job->is_chat && (!text || strcmp(text, "/v1/completions") != 0))
        return qn_batch_fail(error, job, "invalid_request",
                             "'url' is %s, expected \"/v1/chat/completions\" or \"/v1/completions\"",
                             text ? "another one" : type_name(url));
    return true;
}

bool qn_batch_parse(const char *text, size_t length, qn_batch_job *job, qn_batch_error *error)
{
    json_error_t why;
    job->params = qn_request_defaults();
    job->json = json_loadb(text, length, 0, &why);
    if (!job->json)
        return qn_batch_fail(error, job, "invalid_json", "column %d: %s", why.column, why.text);
    if (!json_is_object(job->json))
        return qn_batch_fail(error, job, "invalid_json", "it is %s, expected an object", type_name(job->json));
    const json_t *id = json_object_get(job->json, "custom_id"), *body = json_object_get(job->json, "body");
    if (!json_is_string(id))
        return wrong(error, job, "custom_id", id, "a string");
    job->custom_id = json_string_value(id);
    if (!get_url(job, error))
        return false;
    if (!json_is_object(body))
        return wrong(error, job, "body", body, "an object");
    return get_sampling(job, body, error) && get_choices(job, body, error) && get_bias(job, body, error) &&
           get_logprobs(job, body, error) && get_lengths(job, body, error) && get_stop(job, body, error) &&
           (job->is_chat ? get_messages : get_prompt)(job, body, error);
}

void qn_batch_job_free(qn_batch_job *job)
{
    for (size_t i = 0; job->contents && i < job->params.n_messages; i++)
        qn_free(job->contents[i]);
    qn_free(job->contents);
    qn_free(job->messages);
    qn_free(job->tokens);
    qn_free(job->bias);
    qn_free(job->stop);
    json_decref(job->json);
    for (size_t i = 0; i < job->n_choices; i++) {
        free(job->choices[i].text);
        free(job->choices[i].tokens);
    }
    qn_free(job->choices);
}
