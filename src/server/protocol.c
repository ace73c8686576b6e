/* The protocols by their paths, and what all exchanges have. */
#include "server/anthropic.h"
#include "server/json_body.h"
#include "server/openai.h"
#include "server/responses.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

const qn_protocol *const qn_protocols[] = { &qn_openai_chat,        &qn_openai_completion, &qn_llama_completion,
                                            &qn_llama_tokenize,     &qn_llama_detokenize,  &qn_llama_template,
                                            &qn_anthropic_messages, &qn_anthropic_count,   &qn_responses_create,
                                            &qn_openai_chat_count,  &qn_responses_count,   NULL };

const qn_protocol *qn_protocol_find(const char *path)
{
    for (size_t i = 0; qn_protocols[i]; i++)
        for (const char *const *known = qn_protocols[i]->paths; *known; known++)
            if (!strcmp(*known, path))
                return qn_protocols[i];
    return NULL;
}

const qn_protocol *qn_protocol_above(const char *path)
{
    for (size_t i = 0; qn_protocols[i]; i++)
        for (const char *const *known = qn_protocols[i]->paths; *known; known++) {
            const size_t length = strlen(*known);
            if (!strncmp(*known, path, length) && (!path[length] || path[length] == '/'))
                return qn_protocols[i];
        }
    return NULL;
}

void qn_exchange_give_values(qn_exchange *exchange)
{
    qn_account_give(exchange->account, exchange->n_values);
    exchange->n_values = 0;
}

qn_exchange *qn_exchange_create(const qn_protocol *protocol, json_t *body, qn_reading *reading, const qn_origin *origin,
                                qn_refusal *refusal)
{
    static const qn_protocol_limits defaults;
    reading->limits = reading->limits ? reading->limits : &defaults;
    qn_exchange *exchange = protocol->parse(body, reading, refusal);
    const size_t n_values = qn_reading_end(reading);
    if (!exchange) {
        qn_account_give(reading->account, n_values);
        return NULL;
    }
    exchange->protocol = protocol;
    exchange->account = reading->account;
    exchange->n_values = n_values;
    if (exchange->is_read)
        qn_exchange_give_values(exchange);
    exchange->created = origin->created;
    exchange->seed = origin->seed;
    exchange->id = strdup(origin->id);
    exchange->secret = strdup(origin->secret);
    if (exchange->id && exchange->secret)
        return exchange;
    qn_refuse_memory(refusal);
    qn_exchange_free(exchange);
    return NULL;
}

qn_exchange *qn_exchange_parse(const qn_protocol *protocol, const char *body, size_t length, const qn_protocol_limits *limits,
                               const qn_origin *origin, qn_refusal *refusal)
{
    qn_reading reading = { .limits = limits };
    json_t *json = qn_body_read(body, length, &reading, refusal);
    qn_exchange *exchange = json ? qn_exchange_create(protocol, json, &reading, origin, refusal) : NULL;
    json_decref(json);
    return exchange;
}

bool qn_exchange_bind(qn_exchange *exchange, const qn_served *served, qn_refusal *refusal)
{
    const bool done = exchange->protocol->bind(exchange, served, refusal);
    if (done)
        qn_exchange_give_values(exchange);
    return done;
}

void qn_exchange_free(qn_exchange *exchange)
{
    if (!exchange)
        return;
    qn_exchange_give_values(exchange);
    free(exchange->id);
    free(exchange->secret);
    exchange->protocol->free(exchange);
}

/* ---- Refusals of the scheduler ---- */

bool qn_exchange_refuse_length(size_t n, const qn_served *served, qn_refusal *refusal)
{
    qn_refuse(refusal, 400, "context_length_exceeded", NULL,
              "the prompt has %zu tokens, which exceeds the available context size of %u tokens", n, (unsigned)served->n_ctx);
    refusal->type = "exceed_context_size_error";
    refusal->n_prompt = n;
    refusal->n_ctx = served->n_ctx;
    return false;
}

/* Failures that have the same answer before a request begins and after. False: it is none of these. */
static bool refuse_failure(qn_status status, const char *text, qn_refusal *refusal)
{
    switch (status) {
    case QN_ERR_BUSY: qn_refuse(refusal, 429, "overloaded", NULL, "%s", text); return true;
    case QN_ERR_MEMORY: qn_refuse(refusal, 500, "out_of_memory", NULL, "%s", text); return true;
    case QN_ERR_DEVICE: qn_refuse(refusal, 503, "device_failed", NULL, "%s", text); return true;
    case QN_ERR_UNSUPPORTED: qn_refuse(refusal, 400, "unsupported", NULL, "%s", text); return true;
    default: return false;
    }
}

void qn_exchange_refuse_status(const qn_served *served, qn_status status, size_t n_prompt, qn_refusal *refusal)
{
    if (status == QN_ERR_CONTEXT)
        qn_exchange_refuse_length(n_prompt, served, refusal);
    else if (!refuse_failure(status, qn_error_text(), refusal))
        qn_refuse(refusal, 400, NULL, NULL, "%s", qn_error_text());
}

/* A grammar may turn out to be too ambiguous for masks after the answer has begun: QN_ERR_UNSUPPORTED is the client's error. */
void qn_exchange_refuse_result(const qn_request_result *result, qn_refusal *refusal)
{
    if (!refuse_failure(result->status, result->error, refusal))
        qn_refuse(refusal, 500, "failed", NULL, "%s", result->error);
}

void qn_exchange_answer_id(const qn_exchange *exchange, size_t request, char id[QN_ANSWER_ID_BYTES])
{
    const XXH128_hash_t hash = XXH3_128bits_withSeed(exchange->secret, strlen(exchange->secret), request);
    snprintf(id, QN_ANSWER_ID_BYTES, "%016llx%016llx", (unsigned long long)hash.high64, (unsigned long long)hash.low64);
}

/* Calls of one exchange have different ids, and so have those of different ones, of which some may become parts of one
 * conversation. */
static void make_id(const qn_exchange *exchange, const char *prefix, size_t request, size_t index, char id[QN_CALL_ID_BYTES])
{
    char answer[QN_ANSWER_ID_BYTES];
    qn_exchange_answer_id(exchange, request, answer);
    snprintf(id, QN_CALL_ID_BYTES, "%s_%zu_%s", prefix, index, answer);
}

void qn_exchange_call_id(const qn_exchange *exchange, size_t request, size_t call, char id[QN_CALL_ID_BYTES])
{
    make_id(exchange, "call", request, call, id);
}

void qn_exchange_reasoning_id(const qn_exchange *exchange, size_t request, size_t reasoning, char id[QN_CALL_ID_BYTES])
{
    make_id(exchange, "rs", request, reasoning, id);
}
