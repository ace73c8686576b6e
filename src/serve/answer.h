/* The answer to a body that a protocol reads: a bounded queue of bytes from the scheduler to a connection.
 *
 * Three kinds of threads use an answer. A worker reads the body and submits its scheduler requests (qn_answer_start).
 * The scheduler's callback thread fills the queue. The I/O thread, which serves connections, empties it; an outbox
 * tells it which answers have news. An answer lives as long as its connection or one of its scheduler requests. A
 * connection that closes abandons its answer, which cancels those requests. */
#ifndef QN_SERVE_ANSWER_H
#define QN_SERVE_ANSWER_H

#include "base/poller.h"
#include "http/keys.h"
#include "serve/registry.h"

typedef struct qn_answer qn_answer;

enum { QN_ANSWER_CLIENT_BYTES = 64 };

/* The most bytes of a stream that may wait for a client that does not read, besides the beginning of the stream; with
 * more, the client is considered gone. */
enum { QN_ANSWER_MAX_WAITING = 4 << 20 };

/* The answers that have news, the oldest news first. The first of them wakes the I/O thread. Any thread adds
 * answers; only the I/O thread takes them. `lock` protects the list. */
typedef struct qn_outbox {
    pthread_mutex_t lock;
    qn_answer *first, *last;
    qn_poller *poller;
} qn_outbox;

/* Where a body came from and what its answer needs. Copied, but for the objects pointed to, which outlive the
 * answer. */
typedef struct qn_answer_params {
    const qn_protocol *protocol;
    const qn_protocol_limits *limits;
    qn_registry *registry;
    qn_account *account;  /* NULL: none; the answer takes a reference */
    const char *scope;    /* of the API key, copied; NULL: no keys */
    const char *client;   /* who shares the scheduler and the workers with others, copied */
    bool shares_prefixes; /* with other scopes */
    bool has_seed;        /* use `seed`, else a random one */
    uint64_t seed;        /* for a body without a seed */
    char id[40];
    double arrived; /* qn_now */
    /* Has a worker call qn_answer_start again: when the model that the answer waits for is loaded, or when a worker is
     * to write the end of the answer. Called by any thread, without a lock of the answer. */
    void (*restart)(void *user, qn_answer *answer);
    void *restart_user;
} qn_answer_params;

typedef struct qn_answer_usage {
    size_t n_prompt, n_cached, n_generated;
} qn_answer_usage;

/* A copy of the state of an answer. Its texts are valid as long as the registry. */
typedef struct qn_answer_view {
    bool is_stream;
    bool is_accepted; /* the status is known; for a stream: all its scheduler requests were submitted */
    bool is_done;     /* the last bytes are in the queue */
    bool has_ended;   /* it has no scheduler requests and will have none; `usage` is final */
    int status;
    unsigned retry_after; /* seconds, of a refusal */
    size_t n_omitted;     /* parts of tools' results that a line of text replaces */
    const char *warning;  /* a static text; NULL: none */
    const char *model;    /* with `warning`: the registry's name of the model */
    qn_answer_usage usage;
} qn_answer_view;

/* qn_outbox_init - create the outbox, empty. News wakes `poller`, which outlives it. QN_ERR_MEMORY: no lock. */
qn_status qn_outbox_init(qn_outbox *outbox, qn_poller *poller);

/* qn_outbox_free - free the outbox; its answers must have been taken. */
void qn_outbox_free(qn_outbox *outbox);

/* qn_outbox_take - take an answer that has news, with a reference, which qn_answer_release gives back. NULL: there is
 * none. */
qn_answer *qn_outbox_take(qn_outbox *outbox);

/* qn_outbox_end - wake the poller again if answers are left. */
void qn_outbox_end(qn_outbox *outbox);

/* qn_answer_create - create an answer, with one reference, to a body, which it takes over. qn_answer_user returns
 * `user` until qn_answer_forget. NULL: no memory; the body is freed. */
qn_answer *qn_answer_create(qn_outbox *outbox, const qn_answer_params *params, qn_bytes *body, void *user);

/* qn_answer_hold - take a reference. */
void qn_answer_hold(qn_answer *answer);

/* qn_answer_release - give a reference back; the last one frees the answer. NULL is allowed. */
void qn_answer_release(qn_answer *answer);

/* ---- For workers ---- */

/* qn_answer_start - do the next work of an answer, which belongs to the calling thread meanwhile. At first: read the
 * body, get the model and submit the scheduler requests. While the model is not loaded the answer waits without a
 * thread; restart() is called when it is. At the end, when qn_answer_is_ending: write the end of the answer. */
void qn_answer_start(qn_answer *answer);

/* qn_answer_is_ending - whether all scheduler requests have ended and a worker is to write the end. */
bool qn_answer_is_ending(qn_answer *answer);

/* qn_answer_refuse - end an answer that has no scheduler requests, with a refusal. Called by the thread that the answer
 * belongs to: a worker, or one that ended its wait. */
void qn_answer_refuse(qn_answer *answer, const qn_refusal *refusal);

/* qn_answer_client - returns qn_answer_params.client. */
const char *qn_answer_client(const qn_answer *answer);

/* qn_answer_link - set the next answer in a queue of the worker pool. The caller holds the pool's lock, or the answer
 * is in no queue yet. */
void qn_answer_link(qn_answer *answer, qn_answer *next);

/* qn_answer_linked - returns the next answer in that queue. The caller holds the pool's lock. */
qn_answer *qn_answer_linked(const qn_answer *answer);

/* ---- For the I/O thread ---- */

/* qn_answer_user - returns the `user` of qn_answer_create; NULL after qn_answer_forget. */
void *qn_answer_user(const qn_answer *answer);

/* qn_answer_forget - set `user` to NULL. */
void qn_answer_forget(qn_answer *answer);

/* qn_answer_look - returns the state of the answer. Any thread may call it. */
qn_answer_view qn_answer_look(qn_answer *answer);

/* qn_answer_read - take up to `most` bytes of an accepted stream. Returns their number; 0: none yet; QN_ANSWER_END: the
 * stream has ended; QN_ANSWER_LOST: it was abandoned. */
enum { QN_ANSWER_END = -1, QN_ANSWER_LOST = -2 };
long qn_answer_read(qn_answer *answer, char *out, size_t most);

/* qn_answer_body - take the whole body of an answer that is done and not a stream. The caller frees it. */
qn_bytes qn_answer_body(qn_answer *answer);

/* qn_answer_open - begin a stream that still waits for its model, so that comments can be sent. Later errors arrive as
 * stream events. False: the answer does not wait, or is not a stream. */
bool qn_answer_open(qn_answer *answer);

/* qn_answer_abandon - the connection has closed: cancel the scheduler requests, and a wait for the model. The answer
 * comes to the outbox again when they have ended. */
void qn_answer_abandon(qn_answer *answer);

/* qn_answer_stop - end the answer soon, with a refusal; a stream that has begun gets it as an error event. */
void qn_answer_stop(qn_answer *answer, const qn_refusal *refusal);

#endif
