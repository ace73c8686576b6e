/* Functions for all exchanges: memory of their values, refusals of the scheduler, ids. */
#include "protocol/json_body.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

void qn_exchange_give_values(qn_exchange *exchange)
{
    qn_account_give(exchange->account, exchange->n_values);
    exchange->n_values = 0;
}

/* ---- Refusals of the scheduler ---- */

static void set_length(size_t n, const qn_served *served, qn_refusal *refusal)
{
    refusal->type = "exceed_context_size_error";
    refusal->n_prompt = n;
    refusal->n_ctx = served->n_ctx;
}

bool qn_exchange_refuse_length(size_t n, const qn_served *served, qn_refusal *refusal)
{
    qn_refuse(refusal, 400, "context_length_exceeded", NULL,
              "the prompt has %zu tokens, which exceeds the available context size of %u tokens", n,
              (unsigned)served->n_ctx);
    set_length(n, served, refusal);
    return false;
}

bool qn_exchange_check_bytes(size_t length, const qn_served *served, qn_refusal *refusal)
{
    const size_t least = qn_least_tokens(served->model, length);
    if (least <= served->n_ctx)
        return true;
    qn_refuse(refusal, 400, "context_length_exceeded", NULL,
              "the prompt has %zu bytes, at least %zu tokens, which exceeds the available context size of %u tokens",
              length, least, (unsigned)served->n_ctx);
    set_length(least, served, refusal);
    return false;
}

/* Refuses for failures that have the same answer before and after a request begins. False: another status. */
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

/* A grammar may prove too ambiguous for masks only after the answer has begun: QN_ERR_UNSUPPORTED is the client's
 * error. */
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

/* Makes the id number `index` of a request. The ids of all calls differ, also those of different exchanges, as calls of
 * several may become parts of one conversation. */
static void make_id(const qn_exchange *exchange, const char *prefix, size_t request, size_t index,
                    char id[QN_CALL_ID_BYTES])
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
