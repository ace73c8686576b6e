/* Reads a line of the input of quern batch, in OpenAI's batch format: {"custom_id", "method", "url", "body"}. The url's
 * protocol reads the body. */
#include "cli/batch.h"

#include "base/append.h"
#include "base/memory.h"
#include "gguf/json_decode.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

bool qn_batch_fail(qn_batch_error *error, const qn_batch_job *job, const char *code, const char *format, ...)
{
    va_list arguments;
    qn_text_buffer message = QN_APPEND_TO(error->message);
    qn_append(&message, "line %zu: ", job->line);
    error->code = code;
    va_start(arguments, format);
    qn_append_list(&message, format, arguments);
    va_end(arguments);
    return false;
}

bool qn_batch_refuse(qn_batch_error *error, const qn_batch_job *job, const qn_refusal *refusal)
{
    return qn_batch_fail(error, job, refusal->code ? refusal->code : "invalid_request", "%s", refusal->message);
}

static bool get_protocol(const qn_batch_job *job, const qn_protocol **protocol, qn_batch_error *error)
{
    char found[QN_JSON_FOUND_BYTES];
    const json_t *method = json_object_get(job->json, "method"), *target = json_object_get(job->json, "url");
    const char *url = json_string_value(target);
    if (method && !json_is_null(method) && (!json_is_string(method) || strcmp(json_string_value(method), "POST") != 0))
        return qn_batch_fail(error, job, "invalid_request", "'method' is %s, expected \"POST\"",
                             qn_json_found(method, found));
    if (!url || (strcmp(url, "/v1/chat/completions") != 0 && strcmp(url, "/v1/completions") != 0))
        return qn_batch_fail(error, job, "invalid_request",
                             "'url' is %s, expected \"/v1/chat/completions\" or \"/v1/completions\"",
                             qn_json_found(target, found));
    *protocol = qn_protocol_find(url);
    return true;
}

/* Answers are never streamed. Seeds of lines without one, and ids of calls, are derived from the custom_id. */
static bool get_exchange(qn_batch_job *job, const qn_protocol *protocol, qn_reading *reading, qn_batch_error *error)
{
    json_t *body = json_object_get(job->json, "body");
    qn_refusal refusal;
    char id[24], found[QN_JSON_FOUND_BYTES];
    snprintf(id, sizeof id, "%zu", job->line);
    const qn_exchange_origin origin = { .id = id,
                                        .secret = job->custom_id,
                                        .created = (int64_t)time(NULL),
                                        .seed = XXH64(job->custom_id, strlen(job->custom_id), 0) };
    if (!json_is_object(body))
        return qn_batch_fail(error, job, "invalid_request", "'body' is %s, expected an object",
                             qn_json_found(body, found));
    job->exchange = qn_exchange_create(protocol, body, reading, &origin, &refusal);
    if (!job->exchange)
        return qn_batch_refuse(error, job, &refusal);
    job->exchange->is_stream = false;
    (void)json_object_del(job->json, "body");
    return true;
}

bool qn_batch_parse(const char *text, size_t length, qn_batch_job *job, qn_batch_error *error)
{
    const qn_protocol *protocol = NULL;
    qn_reading reading = { 0 };
    qn_refusal refusal;
    job->json = qn_body_read(text, length, &reading, &refusal);
    if (!job->json)
        return qn_batch_refuse(error, job, &refusal);
    const json_t *id = json_object_get(job->json, "custom_id");
    char found[QN_JSON_FOUND_BYTES];
    if (!json_is_string(id))
        return qn_batch_fail(error, job, "invalid_request", "'custom_id' is %s, expected a string",
                             qn_json_found(id, found));
    if (strlen(json_string_value(id)) != json_string_length(id))
        return qn_batch_fail(error, job, "invalid_request", "'custom_id' has U+0000, expected none");
    job->custom_id = json_string_value(id);
    return get_protocol(job, &protocol, error) && get_exchange(job, protocol, &reading, error);
}

bool qn_batch_bind(qn_batch_job *job, const qn_served *served, qn_batch_error *error)
{
    qn_refusal refusal;
    size_t capacity = 0;
    if (!qn_exchange_bind(job->exchange, served, &refusal))
        return qn_batch_refuse(error, job, &refusal);
    return !qn_realloc_array(&job->slots, &capacity, job->exchange->n_requests, sizeof *job->slots, "requests") ||
           qn_batch_fail(error, job, "out_of_memory", "%s", qn_error_text());
}

void qn_batch_job_free(qn_batch_job *job)
{
    qn_exchange_free(job->exchange);
    json_decref(job->json);
    free(job->slots);
}
