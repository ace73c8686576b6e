/* A protocol of clients as pure functions: the bytes of a body become scheduler requests, and the scheduler's callbacks
 * become the bytes of an answer. Protocols have no HTTP, threads, clock or random numbers: the server, quern batch and
 * tests supply them. In this folder a request is a scheduler request; a body and its answer are an exchange.
 *
 *     exchange = qn_exchange_parse(protocol, body, length, &limits, &origin, &refusal);     NULL: refused
 *     qn_exchange_bind(exchange, &served, &refusal)                                         false: refused
 *     submit exchange->requests[i] with callbacks; an error is qn_exchange_refuse_status    before any byte is sent
 *     protocol->begin(exchange, &out);
 *     protocol->event(exchange, i, &event, &out);                                           for each callback
 *     status = protocol->end(exchange, &out);                                               after n_requests
 *                                                                                           QN_EXCHANGE_END
 *     qn_exchange_free(exchange);
 *
 * A refusal before `begin` is written by protocol->refuse, with its status. With is_stream, each call of begin, event
 * and end appends complete events of the stream, or nothing. Without it, begin and event append nothing, and end
 * appends the body.
 *
 * Threads: an exchange may be used by any thread, by one at a time. */
#ifndef QN_PROTOCOL_PROTOCOL_H
#define QN_PROTOCOL_PROTOCOL_H

#include "quern/scheduler.h"
#include "http/bytes.h"

#include <jansson.h>

typedef struct qn_protocol qn_protocol;

/* Why a body is not answered. */
typedef struct qn_refusal {
    int status;             /* HTTP status: 400, 404, 429, 500, ... */
    const char *type;       /* a static string; NULL: the default of the status */
    const char *code;       /* a static string, or NULL */
    char param[64];         /* the field of the body, or "" */
    char message[512];      /* UTF-8, on one line */
    const char *id;         /* the origin's, for errors that have an id; set before protocol->refuse. NULL: none */
    size_t n_prompt, n_ctx; /* of the code "context_length_exceeded", else 0 */
    unsigned retry_after;   /* seconds, of 429 and 503; 0 means 1 */
} qn_refusal;

/* qn_refuse - set a refusal; param may be NULL. Returns false. */
bool qn_refuse(qn_refusal *refusal, int status, const char *code, const char *param, const char *format, ...)
    QN_PRINTF(5, 6);

/* Limits of a body. 0: the default in brackets. */
typedef struct qn_protocol_limits {
    uint32_t depth;    /* nesting of its JSON [128] */
    uint32_t messages; /* [4096] */
    uint32_t tools;    /* [512] */
    uint32_t stops;    /* stop strings [64], each of at most stop_bytes [1024] */
    uint32_t stop_bytes;
    uint32_t requests; /* prompts times n [128] */
    uint32_t inputs;   /* texts whose embeddings are computed [1024] */
    uint32_t biases;   /* entries of logit_bias [4096] */
} qn_protocol_limits;

/* The state of reading a body: its limits, and the memory of its values. All JSON values count, also those parsed from
 * strings of the body. It borrows limits and account. Zero it before use, but for these two. */
typedef struct qn_reading {
    const qn_protocol_limits *limits; /* NULL: the defaults */
    qn_account *account;              /* NULL: none */
    size_t most, promised, left;      /* bytes for values: the limit; reserved; of these not used yet */
    bool is_over;                     /* the values needed too much */
    size_t n_omitted;                 /* parts of tools' results that a line of text replaces */
} qn_reading;

/* The values that tell exchanges with the same body apart. Texts are copied by qn_exchange_create. */
typedef struct qn_exchange_origin {
    const char *id;     /* ends the answer's id, after a prefix such as "chatcmpl-" */
    const char *secret; /* ids of calls are derived from it, so that they cannot be guessed */
    int64_t created;    /* seconds since 1970 */
    uint64_t seed;      /* for a body without one */
} qn_exchange_origin;

/* Whether a conversation that does not say is to have reasoning; QN_THINKING_AUTO: as the template has it. */
typedef enum qn_thinking { QN_THINKING_AUTO, QN_THINKING_ON, QN_THINKING_OFF } qn_thinking;

/* The model that answers. Its pointers outlive the exchange. */
typedef struct qn_served {
    qn_model *model;
    const char *name;            /* in answers; NULL: the name in the body, or "" */
    const char *fingerprint;     /* system_fingerprint; NULL: none */
    uint32_t n_ctx;              /* maximum tokens of a request */
    int64_t max_tokens;          /* limit for every answer, in addition to the body's; < 0: none */
    qn_sampling sampling;        /* defaults of the body's fields; its seed and breakers are ignored */
    const char *const *breakers; /* [n_breakers] of DRY, as texts; NULL: the library's defaults */
    size_t n_breakers;
    const char *effort;       /* reasoning_effort of conversations that name none; NULL: the template's own */
    qn_thinking thinking;     /* of conversations that name neither enable_thinking nor an effort */
    int64_t reasoning_budget; /* of requests that have none; -1: no limit */
    qn_pooling pooling;       /* of embeddings; QN_POOLING_NONE: the model's, else that of the last token */
    size_t max_inputs;        /* of a body whose embeddings are computed: requests that may wait; 0: no limit */
} qn_served;

/* A parsed body, and its answer. Callers read these members; protocols append their own. */
typedef struct qn_exchange {
    const qn_protocol *protocol;
    const char *model;    /* the name in the body; NULL: none */
    bool is_stream;       /* the answer is a stream of server-sent events */
    bool has_events;      /* requests need on_event, else on_text */
    bool has_progress;    /* requests need on_progress */
    const char *warning;  /* set by bind: a static text for the operator and the client; NULL: none */
    bool has_failed;      /* after an event: the answer ended with an error; other requests can be cancelled */
    json_t *conversation; /* of a chat, from parse to bind, for qn_request_params; may be changed. Or NULL */
    const char *scope;    /* set before bind: the scope of grammars kept for later requests; NULL: the scope "" */
    size_t n_requests;    /* set by bind. 0: call `end` at once */
    /* [n_requests] set by bind, valid until the exchange is freed. The caller sets callbacks, user, scope, priority and
     * deadline; all requests need on_prompt_token, on_token and on_end, those with `pooling` on_embedding, and with
     * has_progress on_progress. */
    qn_request_params *requests;
    /* Set by qn_exchange_create, for protocols. */
    char *id, *secret;
    qn_account *account; /* of the request, or NULL */
    size_t n_values;     /* bytes reserved for values of the body; they are freed by bind at the latest */
    size_t n_omitted;    /* parts of tools' results that a line of text replaces */
    bool is_read;        /* after parse: the body is not needed any more */
    int64_t created;
    uint64_t seed;
} qn_exchange;

typedef enum qn_exchange_event_kind {
    QN_EXCHANGE_TOKEN,     /* on_token: token, logprobs */
    QN_EXCHANGE_PROMPT,    /* on_prompt_token: index, token, logprobs */
    QN_EXCHANGE_TEXT,      /* on_text: text, length */
    QN_EXCHANGE_OUTPUT,    /* on_event: output */
    QN_EXCHANGE_PROGRESS,  /* on_progress: progress */
    QN_EXCHANGE_EMBEDDING, /* on_embedding: embedding, length */
    QN_EXCHANGE_END        /* on_end: result */
} qn_exchange_event_kind;

/* The arguments of a scheduler callback. Pointers are not kept. */
typedef struct qn_exchange_event {
    qn_exchange_event_kind kind;
    size_t index;
    qn_token token;
    const qn_logprobs *logprobs;
    const char *text;
    size_t length;
    const qn_output_event *output;
    const qn_prompt_progress *progress;
    const float *embedding;
    const qn_request_result *result;
} qn_exchange_event;

struct qn_protocol {
    const char *const *paths; /* for POST, NULL at the end */
    const char *keep_alive;   /* bytes to send on a silent stream */
    const char *stream_type;  /* Content-Type of streams; NULL: "text/event-stream" */
    /* Names of headers, or NULL. request_header: a request that has it gets errors in this protocol's form on unknown
     * paths. id_header: an answer's header with its id, after id_prefix. */
    const char *request_header, *id_header, *id_prefix;
    bool has_reasoning_ids; /* the reasoning in answers has ids */
    bool is_direct;         /* no scheduler requests: bind makes the answer */

    /* Reads a body, an object, which belongs to the caller. May change it; keeps references of its own to the values
     * that it needs. Needs no model; sets exchange->model. NULL: refused. */
    qn_exchange *(*parse)(json_t *body, qn_reading *reading, qn_refusal *refusal);

    /* Makes the requests: tokenises, compiles grammars; may take long. Frees the values that only it needed, also the
     * conversation. False: refused. */
    bool (*bind)(qn_exchange *exchange, const qn_served *served, qn_refusal *refusal);

    /* Append to the answer. begin: once, after bind. event: `request` is the index of the request that called back.
     * Pointers of the event are valid only during the call. */
    void (*begin)(qn_exchange *exchange, qn_bytes *out);
    void (*event)(qn_exchange *exchange, size_t request, const qn_exchange_event *event, qn_bytes *out);

    /* Returns the status of the answer: 200, or with has_failed that of its error. */
    int (*end)(qn_exchange *exchange, qn_bytes *out);

    /* Ends a stream with an error, instead of `end`. May be called before bind, for a stream that waited. */
    void (*fail)(qn_exchange *exchange, const qn_refusal *refusal, qn_bytes *out);

    /* Writes the body of a refusal. */
    void (*refuse)(const qn_refusal *refusal, qn_bytes *out);

    /* Frees the members after those of qn_exchange. */
    void (*free)(qn_exchange *exchange);
};

/* The protocols, NULL at the end. */
extern const qn_protocol *const qn_protocols[];

/* qn_protocol_find - returns the protocol of a path; NULL: none. */
const qn_protocol *qn_protocol_find(const char *path);

/* qn_protocol_above - returns the protocol of a path, or of a path above it, for the form of its errors; NULL: none. */
const qn_protocol *qn_protocol_above(const char *path);

/* qn_body_read - parse a body, a JSON object. Escaped lone surrogates become U+FFFD. Its values may use
 * QN_REQUEST_MEMORY bytes, and QN_REQUEST_FACTOR for each byte of the body. Returns a new reference; NULL: refused, and
 * nothing stays reserved. */
json_t *qn_body_read(const char *body, size_t length, qn_reading *reading, qn_refusal *refusal);

/* qn_exchange_create - create an exchange for a body that was read, which it may change. The caller keeps its reference
 * to the body. NULL: refused. */
qn_exchange *qn_exchange_create(const qn_protocol *protocol, json_t *body, qn_reading *reading,
                                const qn_exchange_origin *origin, qn_refusal *refusal);

/* qn_exchange_parse - create an exchange for the bytes of a body, without an account. NULL: refused. */
qn_exchange *qn_exchange_parse(const qn_protocol *protocol, const char *body, size_t length,
                               const qn_protocol_limits *limits, const qn_exchange_origin *origin, qn_refusal *refusal);
void qn_exchange_free(qn_exchange *exchange); /* NULL is allowed */

/* qn_exchange_give_values - the values of the body were freed: give back their memory to the account. */
void qn_exchange_give_values(qn_exchange *exchange);

/* qn_exchange_bind - call protocol->bind, then qn_exchange_give_values. False: refused. */
bool qn_exchange_bind(qn_exchange *exchange, const qn_served *served, qn_refusal *refusal);

/* qn_exchange_refuse_status - the refusal when qn_scheduler_submit_all failed with `status`: the HTTP status for it,
 * the thread's qn_error_text() and, for a prompt that is too long, its n_prompt tokens. */
void qn_exchange_refuse_status(const qn_served *served, qn_status status, size_t n_prompt, qn_refusal *refusal);

/* qn_is_cancelled - whether a request was ended by the server: by a call or by a callback. */
static inline bool qn_is_cancelled(const qn_request_result *result)
{
    return result->finish == QN_FINISH_CANCELLED || result->finish == QN_FINISH_CALLBACK;
}

/* qn_exchange_refuse_result - the refusal of a request that ended with QN_FINISH_ERROR. */
void qn_exchange_refuse_result(const qn_request_result *result, qn_refusal *refusal);

/* qn_exchange_refuse_length - the refusal of a prompt of n tokens, more than the context has. Returns false. */
bool qn_exchange_refuse_length(size_t n, const qn_served *served, qn_refusal *refusal);

/* qn_exchange_check_bytes - refuses a text of so many bytes that it has more tokens than the context, before it is
 * tokenised. False: refused. */
bool qn_exchange_check_bytes(size_t length, const qn_served *served, qn_refusal *refusal);

enum { QN_ANSWER_ID_BYTES = 33, QN_CALL_ID_BYTES = 64 };

/* qn_exchange_answer_id - the end of all ids of an answer, after a '_'. It cannot be guessed. */
void qn_exchange_answer_id(const qn_exchange *exchange, size_t request, char id[QN_ANSWER_ID_BYTES]);

/* qn_exchange_call_id - the id of a tool call. */
void qn_exchange_call_id(const qn_exchange *exchange, size_t request, size_t call, char id[QN_CALL_ID_BYTES]);

/* qn_exchange_reasoning_id - the id of a reasoning text: number 0 is the first, 1 follows content or calls, ... If a
 * client sends it back, its message in the conversation has it as `reasoning_id`. */
void qn_exchange_reasoning_id(const qn_exchange *exchange, size_t request, size_t reasoning, char id[QN_CALL_ID_BYTES]);

#endif
