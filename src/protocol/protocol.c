/* The protocols by their paths; exchanges, from their bodies to their ends. */
#include "protocol/anthropic.h"
#include "protocol/embeddings.h"
#include "protocol/json_body.h"
#include "protocol/ollama.h"
#include "protocol/openai.h"
#include "protocol/responses.h"

#include <stdlib.h>
#include <string.h>

const qn_protocol *const qn_protocols[] = { &qn_openai_chat,
                                            &qn_openai_completion,
                                            &qn_llama_completion,
                                            &qn_llama_tokenize,
                                            &qn_llama_detokenize,
                                            &qn_llama_template,
                                            &qn_anthropic_messages,
                                            &qn_anthropic_count,
                                            &qn_responses_create,
                                            &qn_openai_chat_count,
                                            &qn_responses_count,
                                            &qn_openai_embeddings,
                                            &qn_llama_embeddings,
                                            &qn_llama_infill,
                                            &qn_ollama_chat,
                                            &qn_ollama_generate,
                                            &qn_ollama_show,
                                            &qn_ollama_embed,
                                            &qn_ollama_embeddings,
                                            &qn_rerank,
                                            NULL };

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
    return strncmp(path, "/api/", 5) ? NULL : &qn_ollama_chat;
}

qn_exchange *qn_exchange_create(const qn_protocol *protocol, json_t *body, qn_reading *reading,
                                const qn_exchange_origin *origin, qn_refusal *refusal)
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
    exchange->n_omitted = reading->n_omitted;
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

qn_exchange *qn_exchange_parse(const qn_protocol *protocol, const char *body, size_t length,
                               const qn_protocol_limits *limits, const qn_exchange_origin *origin, qn_refusal *refusal)
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
