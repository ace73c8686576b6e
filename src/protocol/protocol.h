/* A protocol of clients as pure functions: from the bytes of a body to requests of a scheduler, and from what the scheduler
 * calls back to the bytes of an answer. No HTTP, no threads, no clock and no random numbers: the server, quern batch and tests
 * bring them.
 *
 *     exchange = qn_exchange_parse(protocol, body, length, &limits, &origin, &refusal);     NULL: refused
 *     qn_exchange_bind(exchange, &served, &refusal)                                         false: refused
 *     submit exchange->requests[i] with callbacks; an error is qn_exchange_refuse_status    before any byte is sent
 *     protocol->begin(exchange, &out);
 *     protocol->event(exchange, i, &event, &out);                                           of each callback
 *     status = protocol->end(exchange, &out);                                               after n_requests QN_EXCHANGE_END
 *     qn_exchange_free(exchange);
 *
 * A refusal before `begin` is written by protocol->refuse, with its status. With is_stream, each call of begin, event and end
 * appends complete events of the stream, or nothing. Without it begin and event append nothing, and end appends the body.
 *
 * Threads: an exchange may be used by any thread, by one at a time. */
#ifndef QN_PROTOCOL_PROTOCOL_H
#define QN_PROTOCOL_PROTOCOL_H

#include "quern/scheduler.h"
#include "http/bytes.h"

#include <jansson.h>

typedef struct qn_protocol qn_protocol;

/* Why a request is not answered. */
typedef struct qn_refusal {
    int status;             /* HTTP's: 400, 404, 429, 500, ... */
    const char *type;       /* a static string; NULL: the one of the status */
    const char *code;       /* a static string, or NULL */
    char param[64];         /* the field of the body, or "" */
    char message[512];      /* UTF-8, on one line */
    const char *id;         /* the origin's, for errors that have one; set before protocol->refuse. NULL: none */
    size_t n_prompt, n_ctx; /* of the code "context_length_exceeded", else 0 */
    unsigned retry_after;   /* seconds, of 429 and 503; 0: 1 */
} qn_refusal;

/* qn_refuse - set a refusal; param may be NULL. Returns false. */
bool qn_refuse(qn_refusal *refusal, int status, const char *code, const char *param, const char *format, ...) QN_PRINTF(5, 6);

/* What a body may have. 0: the default in brackets. */
typedef struct qn_protocol_limits {
    uint32_t depth;    /* nesting of its JSON [128] */
    uint32_t messages; /* [4096] */
    uint32_t tools;    /* [512] */
    uint32_t stops;    /* stop strings [64], each of at most stop_bytes [1024] */
    uint32_t stop_bytes;
    uint32_t requests; /* prompts times n [128] */
    uint32_t biases;   /* entries of logit_bias [4096] */
} qn_protocol_limits;

/* A body on its way to an exchange: what it may have, and the memory that its values have taken. Zero it before use. All that is
 * JSON in a body counts, also in strings. */
typedef struct qn_reading {
    const qn_protocol_limits *limits; /* NULL: the defaults */
    qn_account *account;              /* NULL: none */
    size_t most, promised, left;      /* bytes of values: that they may take, that are promised, and of these not taken */
    bool is_over;                     /* they were too many */
} qn_reading;

/* What makes an exchange different from others with the same body. Copied. */
typedef struct qn_origin {
    const char *id;     /* in the answer's id, "chatcmpl-" before it */
    const char *secret; /* ids of calls follow from it: unguessable where they must be */
    int64_t created;    /* seconds since 1970 */
    uint64_t seed;      /* of a body without one */
} qn_origin;

/* The model that answers. Its pointers outlive the exchange. */
typedef struct qn_served {
    qn_model *model;
    const char *name;            /* in answers; NULL: the name that the body has, "" without one */
    const char *fingerprint;     /* system_fingerprint; NULL: none */
    uint32_t n_ctx;              /* most tokens of a request */
    int64_t max_tokens;          /* of an answer, whatever the body says; < 0: no limit */
    qn_sampling sampling;        /* for what the body does not have; its seed and breakers are ignored */
    const char *const *breakers; /* [n_breakers] of DRY, as texts; NULL: the library's defaults */
    size_t n_breakers;
} qn_served;

/* A body that was parsed, and the answer to it. The caller reads these members; protocols have more behind them. */
typedef struct qn_exchange {
    const qn_protocol *protocol;
    const char *model;    /* the name that the body has; NULL: none */
    bool is_stream;       /* the answer is a stream of server-sent events */
    bool has_events;      /* requests need on_event, else on_text */
    bool has_failed;      /* after an event: the answer ended with an error, other requests can be cancelled */
    json_t *conversation; /* from parse to bind: of a chat, for qn_request_params.conversation, or NULL. May be changed */
    const char *scope;    /* set before bind: of the grammars that are kept for further requests; NULL: the scope "" */
    size_t n_requests;    /* from bind on. 0: end can be called at once */
    /* [n_requests] from bind on, valid until the exchange is freed. Without callbacks, user, scope, priority and deadline,
     * which the caller sets; all need on_token and on_end. */
    qn_request_params *requests;
    /* Of qn_exchange_create, for protocols. */
    char *id, *secret;
    qn_account *account; /* of the request, or NULL */
    size_t n_values;     /* bytes promised to values of the body, until they are freed: by bind at last */
    bool is_read;        /* after parse: nothing of the body is needed any more */
    int64_t created;
    uint64_t seed;
} qn_exchange;

typedef enum qn_exchange_event_kind {
    QN_EXCHANGE_TOKEN,  /* on_token: token, logprobs */
    QN_EXCHANGE_TEXT,   /* on_text: text, length */
    QN_EXCHANGE_OUTPUT, /* on_event: output */
    QN_EXCHANGE_END     /* on_end: result */
} qn_exchange_event_kind;

/* What a callback of a request received. Its pointers are not kept. */
typedef struct qn_exchange_event {
    qn_exchange_event_kind kind;
    qn_token token;
    const qn_logprobs *logprobs;
    const char *text;
    size_t length;
    const qn_output_event *output;
    const qn_request_result *result;
} qn_exchange_event;

struct qn_protocol {
    const char *const *paths; /* of POST requests, NULL at the end */
    const char *keep_alive;   /* what a silent stream sends now and then */
    /* Headers, or NULL: one of requests, by which errors have this protocol's form on paths of none, too; one of answers, which
     * has the id with a prefix. */
    const char *request_header, *id_header, *id_prefix;
    bool has_reasoning_ids; /* answers have ids of their reasoning */
    bool is_direct;         /* there are no requests: the answer is there after bind */

    /* The body, an object, which it may change, and of which the exchange keeps what it needs. NULL: refused. Needs no model:
     * exchange->model says which. */
    qn_exchange *(*parse)(json_t *body, qn_reading *reading, qn_refusal *refusal);

    /* Makes the requests: tokenises, compiles grammars; may take long. Frees what they alone needed, the conversation too. False:
     * refused. */
    bool (*bind)(qn_exchange *exchange, const qn_served *served, qn_refusal *refusal);

    void (*begin)(qn_exchange *exchange, qn_bytes *out);
    void (*event)(qn_exchange *exchange, size_t request, const qn_exchange_event *event, qn_bytes *out);

    /* Returns the status of the answer: 200, or with has_failed that of its error. */
    int (*end)(qn_exchange *exchange, qn_bytes *out);

    /* An error in the middle of a stream, and its end, in place of `end`. A stream that waited may have it before bind. */
    void (*fail)(qn_exchange *exchange, const qn_refusal *refusal, qn_bytes *out);

    /* The body of an answer that refuses. */
    void (*refuse)(const qn_refusal *refusal, qn_bytes *out);

    /* Frees what lies behind the members of qn_exchange. */
    void (*free)(qn_exchange *exchange);
};

/* The protocols, NULL at the end. */
extern const qn_protocol *const qn_protocols[];

/* qn_protocol_find - the protocol of a path; NULL: none has it. qn_protocol_above - that of the path, or of one that it is below. */
const qn_protocol *qn_protocol_find(const char *path);
const qn_protocol *qn_protocol_above(const char *path);

/* qn_body_read - the JSON object of a body. Escapes of lone surrogates become U+FFFD. NULL: refused. Its values may take
 * QN_REQUEST_MEMORY bytes, and QN_REQUEST_FACTOR for each of its own. */
json_t *qn_body_read(const char *body, size_t length, qn_reading *reading, qn_refusal *refusal);

/* qn_exchange_create - the exchange of a body that was read, which it may change. qn_exchange_parse - of its bytes, without an
 * account. NULL: refused. */
qn_exchange *qn_exchange_create(const qn_protocol *protocol, json_t *body, qn_reading *reading, const qn_origin *origin,
                                qn_refusal *refusal);
qn_exchange *qn_exchange_parse(const qn_protocol *protocol, const char *body, size_t length, const qn_protocol_limits *limits,
                               const qn_origin *origin, qn_refusal *refusal);
void qn_exchange_free(qn_exchange *exchange); /* NULL is allowed */

/* qn_exchange_give_values - the values of the body were freed, and count no more. */
void qn_exchange_give_values(qn_exchange *exchange);

/* qn_exchange_bind - protocol->bind, and qn_exchange_give_values. False: refused. */
bool qn_exchange_bind(qn_exchange *exchange, const qn_served *served, qn_refusal *refusal);

/* qn_exchange_refuse_status - the refusal of requests that qn_scheduler_submit_all did not take: its status, qn_error_text() of this
 * thread, and the tokens of the prompt, as it says. */
void qn_exchange_refuse_status(const qn_served *served, qn_status status, size_t n_prompt, qn_refusal *refusal);

/* qn_is_cancelled - whether a request was ended by the server: by a call or by a callback. */
static inline bool qn_is_cancelled(const qn_request_result *result)
{
    return result->finish == QN_FINISH_CANCELLED || result->finish == QN_FINISH_CALLBACK;
}

/* qn_exchange_refuse_result - the refusal of a request that ended with QN_FINISH_ERROR. */
void qn_exchange_refuse_result(const qn_request_result *result, qn_refusal *refusal);

/* qn_exchange_refuse_length - the refusal of a prompt of n tokens, which is longer than the context. Returns false. */
bool qn_exchange_refuse_length(size_t n, const qn_served *served, qn_refusal *refusal);

/* qn_exchange_answer_id - what all ids of an answer end with, after a '_'. qn_exchange_call_id - the id of a tool call of an
 * answer. qn_exchange_reasoning_id - of the reasoning of an answer: 0 for the
 * first, 1 for what comes after content or calls, ... Conversations have it as `reasoning_id` of the message, where a client sent
 * it. None can be guessed. */
enum { QN_ANSWER_ID_BYTES = 33, QN_CALL_ID_BYTES = 64 };
void qn_exchange_answer_id(const qn_exchange *exchange, size_t request, char id[QN_ANSWER_ID_BYTES]);
void qn_exchange_call_id(const qn_exchange *exchange, size_t request, size_t call, char id[QN_CALL_ID_BYTES]);
void qn_exchange_reasoning_id(const qn_exchange *exchange, size_t request, size_t reasoning, char id[QN_CALL_ID_BYTES]);

#endif
