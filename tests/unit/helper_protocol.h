/* Exchanges of unit tests: bodies that are answered with events that the test makes up. */
#ifndef QN_TESTS_HELPER_PROTOCOL_H
#define QN_TESTS_HELPER_PROTOCOL_H

#include "helper_assert.h"

#include "base/status.h"
#include "server/protocol.h"

#include <stdio.h>
#include <stdlib.h>

static qn_model *model;
static qn_served served;

static int load_vocab(void **unused)
{
    (void)unused;
    assert_ok(qn_model_load(QN_SOURCE_DIR "/tests/golden/caller.gguf", &(qn_model_params){ .vocab_only = true }, &model));
    served = (qn_served){ .model = model,
                          .name = "m",
                          .n_ctx = 100,
                          .max_tokens = -1,
                          .sampling = { .temperature = 0.25f,
                                        .top_k = 7,
                                        .top_p = 0.5f,
                                        .min_p = 0.125f,
                                        .repeat_penalty = 1.5f,
                                        .repeat_last_n = 9,
                                        .frequency_penalty = 0.75f,
                                        .presence_penalty = -0.5f,
                                        .seed = 99 } };
    return 0;
}

static int free_vocab(void **unused)
{
    (void)unused;
    qn_model_free(model);
    return 0;
}

/* An exchange up to its requests, or NULL with the refusal. */
static inline qn_exchange *exchange_of(const char *path, const char *body, const qn_protocol_limits *limits,
                                       qn_refusal *refusal)
{
    const qn_origin origin = { .id = "1", .secret = "s", .created = 5, .seed = 11 };
    const qn_protocol *protocol = qn_protocol_find(path);
    assert_non_null(protocol);
    qn_exchange *exchange = qn_exchange_parse(protocol, body, strlen(body), limits, &origin, refusal);
    if (!exchange || protocol->bind(exchange, &served, refusal))
        return exchange;
    qn_exchange_free(exchange);
    return NULL;
}

static inline qn_exchange *must_take(const char *path, const char *body)
{
    qn_refusal refusal;
    qn_exchange *exchange = exchange_of(path, body, NULL, &refusal);
    if (!exchange)
        fail_msg("%s is refused: %s", body, refusal.message);
    return exchange;
}

/* Compares what was appended, and forgets it. */
static inline void assert_bytes(qn_bytes *out, const char *expected)
{
    assert_false(out->has_failed);
    qn_bytes_add(out, "", 1);
    assert_string_equal(out->data, expected);
    out->length = 0;
}

#endif
