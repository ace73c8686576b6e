/* Exchanges of unit tests: bodies, answered with events that the test makes up. */
#ifndef QN_TESTS_HELPER_PROTOCOL_H
#define QN_TESTS_HELPER_PROTOCOL_H

#include "helper_create.h"

#include "base/append.h"
#include "base/status.h"
#include "protocol/protocol.h"

static qn_model *model;
static qn_served served;

static int load_vocab(void)
{
    model = create_model(QN_SOURCE_DIR "/tests/golden/caller.gguf", &CPU_MODEL(.vocab_only = true));
    served = (qn_served){ .model = model,
                          .name = "m",
                          .n_ctx = 100,
                          .max_tokens = -1,
                          .reasoning_budget = -1,
                          .sampling = { .size = sizeof(qn_sampling),
                                        .temperature = 0.25f,
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

static int free_vocab(void)
{
    qn_model_free(model);
    return 0;
}

/* An exchange up to its requests; NULL, with the refusal, if the body is refused. */
static inline qn_exchange *exchange_of(const char *path, const char *body, const qn_protocol_limits *limits,
                                       qn_refusal *refusal)
{
    const qn_exchange_origin origin = { .id = "1", .secret = "s", .created = 5, .seed = 11 };
    const qn_protocol *protocol = qn_protocol_find(path);
    assert_non_null(protocol);
    qn_exchange *exchange = qn_exchange_parse(protocol, body, strlen(body), limits, &origin, refusal);
    if (!exchange || qn_exchange_bind(exchange, &served, refusal))
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

/* Asserts the conversation of an accepted body. */
static inline void assert_conversation(const char *path, const char *body, const char *expected)
{
    label("%s %s", path, body);
    qn_exchange *x = must_take(path, body);
    json_t *found = json_loadb(x->requests->conversation, x->requests->conversation_length, JSON_ALLOW_NUL, NULL),
           *wanted = json_loads(expected, JSON_ALLOW_NUL, NULL);
    assert_non_null(wanted);
    if (!json_equal(found, wanted))
        fail_msg("%s", x->requests->conversation);
    json_decref(found);
    json_decref(wanted);
    qn_exchange_free(x);
}

/* Asserts that a body is refused, with this field and this part of the message. */
static inline void assert_refused(const char *path, const char *body, const qn_protocol_limits *limits,
                                  const char *param, const char *part)
{
    label("%s %s", path, body);
    qn_refusal refusal = { 0 };
    assert_null(exchange_of(path, body, limits, &refusal));
    assert_int_equal(refusal.status, 400);
    assert_string_equal(refusal.param, param);
    if (!strstr(refusal.message, part))
        fail_msg("the message is '%s', expected '%s' in it", refusal.message, part);
}

/* Replaces ' by " in a text. Returns one of four buffers in turn. */
static inline const char *quoted(const char *text)
{
    static char buffers[4][8000];
    static unsigned turn;
    char *to = buffers[turn++ % 4];
    qn_print(to, sizeof buffers[0], "%s", text);
    for (char *c = to; *c; c++)
        *c = *c == '\'' ? '"' : *c;
    return to;
}

/* Compares the appended bytes, and empties the buffer. */
static inline void assert_bytes(qn_bytes *out, const char *expected)
{
    assert_false(out->has_failed);
    qn_bytes_add(out, "", 1);
    assert_string_equal(out->data, expected);
    out->length = 0;
}

#endif
