/* A line of the input of quern batch: OpenAI's batch format, {"custom_id", "method", "url", "body"}, and the bodies of
 * completions; batch_conversation.c has what is of chats alone. Fields that quern does not have are ignored. */
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

bool qn_batch_wrong(qn_batch_error *error, const qn_batch_job *job, const char *name, const json_t *value, const char *expected)
{
    return qn_batch_fail(error, job, "invalid_request", "'%s' is %s, expected %s", name, type_name(value), expected);
}

/* ---- Values of a body ---- */

json_t *qn_batch_field(const json_t *object, const char *name)
{
    json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

static bool get_number(const qn_batch_job *job, const json_t *body, const char *name, double least, double most, float *out,
                       qn_batch_error *error)
{
    const json_t *value = qn_batch_field(body, name);
    if (!value)
        return true;
    if (!json_is_number(value))
        return qn_batch_wrong(error, job, name, value, "a number");
    const double number = json_number_value(value);
    if (!(number >= least && number <= most))
        return qn_batch_fail(error, job, "invalid_request", "'%s' is %g, expected %g to %g", name, number, least, most);
    *out = (float)number;
    return true;
}

static bool get_integer(const qn_batch_job *job, const json_t *body, const char *name, int64_t least, int64_t most,
                        int64_t *out, qn_batch_error *error)
{
    const json_t *value = qn_batch_field(body, name);
    if (!value)
        return true;
    if (!json_is_integer(value))
        return qn_batch_wrong(error, job, name, value, "an integer");
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
    if (!qn_batch_field(body, "logit_bias"))
        return true;
    if (!json_is_object(value))
        return qn_batch_wrong(error, job, "logit_bias", value, "an object of numbers by token ids");
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
            return qn_batch_wrong(error, job, "logit_bias", bias, "a number for each token id");
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
    const json_t *asked = qn_batch_field(body, "logprobs");
    int64_t n = job->is_chat ? 0 : -1;
    if (job->is_chat && asked && !json_is_boolean(asked))
        return qn_batch_wrong(error, job, "logprobs", asked, "true or false");
    if (job->is_chat && !json_is_true(asked) && qn_batch_field(body, "top_logprobs"))
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
    const json_t *value = qn_batch_field(body, "stop");
    const size_t n = json_is_array(value) ? json_array_size(value) : value ? 1 : 0;
    if (n > MAX_STOPS)
        return qn_batch_fail(error, job, "invalid_request", "'stop' has %zu strings, at most %d are allowed", n, MAX_STOPS);
    if (qn_alloc(&job->stop, n, sizeof(char *), "stop strings"))
        return qn_batch_fail(error, job, "out_of_memory", "%s", qn_error_text());
    for (size_t i = 0; i < n; i++) {
        const json_t *text = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_string(text) || !json_string_length(text))
            return qn_batch_wrong(error, job, "stop", text, "a string that is not empty, or an array of such");
        job->stop[i] = json_string_value(text);
    }
    job->params.stop = job->stop;
    job->params.n_stop = n;
    return true;
}

/* ---- Prompts ---- */

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
        return qn_batch_wrong(error, job, "prompt", prompt, expected);
    if (qn_alloc(&job->tokens, n, sizeof *job->tokens, "token ids"))
        return qn_batch_fail(error, job, "out_of_memory", "%s", qn_error_text());
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(prompt, i);
        const json_int_t value = json_integer_value(id);
        if (!json_is_integer(id))
            return qn_batch_wrong(error, job, "prompt", id, expected);
        job->tokens[i] = value >= 0 && value <= INT32_MAX ? (qn_token)value : -1;
    }
    job->params.tokens = job->tokens;
    job->params.n_tokens = n;
    return true;
}

/* ---- Lines ---- */

static bool get_url(qn_batch_job *job, qn_batch_error *error)
{
    const json_t *url = qn_batch_field(job->json, "url"), *method = qn_batch_field(job->json, "method");
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
        return qn_batch_wrong(error, job, "custom_id", id, "a string");
    job->custom_id = json_string_value(id);
    if (!get_url(job, error))
        return false;
    if (!json_is_object(body))
        return qn_batch_wrong(error, job, "body", body, "an object");
    return get_sampling(job, body, error) && get_choices(job, body, error) && get_bias(job, body, error) &&
           get_logprobs(job, body, error) && get_lengths(job, body, error) && get_stop(job, body, error) &&
           (job->is_chat ? qn_batch_conversation : get_prompt)(job, body, error);
}

void qn_batch_job_free(qn_batch_job *job)
{
    free(job->conversation);
    qn_free(job->tokens);
    qn_free(job->bias);
    qn_free(job->stop);
    json_decref(job->json);
    for (size_t i = 0; i < job->n_choices; i++)
        qn_batch_choice_free(&job->choices[i]);
    qn_free(job->choices);
}
