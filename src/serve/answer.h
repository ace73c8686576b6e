/* The answer to a body that a protocol reads, on its way from the scheduler to a connection: a bounded queue of bytes.
 *
 * Three kinds of threads use one. A worker reads the body and submits its requests (qn_answer_start). The scheduler's thread for
 * callbacks fills the queue. The I/O thread, which serves connections, empties it, and learns through an outbox that there is
 * something new. An answer lives as long as its connection or one of its requests does; a connection that goes away abandons
 * it, which cancels its requests. */
#ifndef QN_SERVE_ANSWER_H
#define QN_SERVE_ANSWER_H

#include "http/keys.h"
#include "serve/registry.h"

typedef struct qn_answer qn_answer;

enum { QN_ANSWER_CLIENT_BYTES = 64 };

/* Bytes that wait for a client which does not read them: with more, it is taken for gone. */
enum { QN_ANSWER_MAX_WAITING = 4 << 20 };

/* The answers that have something new. event_fd becomes readable with the first of them. */
typedef struct qn_outbox {
    pthread_mutex_t lock;
    qn_answer *first, *last;
    int event_fd;
} qn_outbox;

/* Of a request, as it came. Copied, but for the pointers. */
typedef struct qn_answer_request {
    const qn_protocol *protocol;
    const qn_protocol_limits *limits;
    qn_registry *registry;
    qn_account *account;  /* NULL: none; the answer takes a reference */
    const char *scope;    /* of its key; lives as long as the answer's connection; NULL: no keys */
    const char *client;   /* who shares the scheduler and the workers with others; lives as long */
    bool shares_prefixes; /* with other scopes */
    bool has_seed;        /* seed, else a random one */
    uint64_t seed;        /* of a body without one */
    char id[40];
    double arrived; /* qn_now */
    /* Has a worker call qn_answer_start again, once the model is there for which it waited, or its end is to be written. By any
     * thread. */
    void (*restart)(void *user, qn_answer *answer);
    void *restart_user;
} qn_answer_request;

typedef struct qn_answer_usage {
    size_t n_prompt, n_cached, n_generated;
} qn_answer_usage;

/* Where an answer is. */
typedef struct qn_answer_view {
    bool is_stream;
    bool is_accepted; /* the status is known: of a stream, when all requests were submitted */
    bool is_done;     /* nothing more comes */
    bool has_ended;   /* nothing of it is in a scheduler, nor will be: `usage` is all that it had */
    int status;
    unsigned retry_after; /* of a refusal */
    qn_answer_usage usage;
} qn_answer_view;

qn_status qn_outbox_init(qn_outbox *outbox);
void qn_outbox_free(qn_outbox *outbox);

/* qn_outbox_begin - before answers are taken: event_fd becomes unreadable. qn_outbox_take - an answer that has something new, with
 * a reference, which is given back with qn_answer_release; NULL: there is none. qn_outbox_end - if there are still some,
 * event_fd becomes readable again. */
void qn_outbox_begin(qn_outbox *outbox);
qn_answer *qn_outbox_take(qn_outbox *outbox);
void qn_outbox_end(qn_outbox *outbox);

/* qn_answer_create - an answer, with one reference, to a body, which it takes. `user` is what qn_answer_user returns until
 * qn_answer_forget. NULL without memory; the body is freed. */
qn_answer *qn_answer_create(qn_outbox *outbox, const qn_answer_request *request, qn_bytes *body, void *user);

/* qn_answer_hold - take a reference. qn_answer_release - give one back; NULL is allowed. */
void qn_answer_hold(qn_answer *answer);
void qn_answer_release(qn_answer *answer);

/* ---- For workers ---- */

/* qn_answer_start - read the body, and submit its requests; or wait for its model, without a thread, and begin again then; or write
 * the end of one whose requests have ended, for which qn_answer_is_ending is true. */
void qn_answer_start(qn_answer *answer);
bool qn_answer_is_ending(qn_answer *answer);

/* qn_answer_refuse - end it with a refusal, before it is started. */
void qn_answer_refuse(qn_answer *answer, const qn_refusal *refusal);

/* qn_answer_client - whose it is, qn_answer_request.client. */
const char *qn_answer_client(const qn_answer *answer);

/* The queue of the pool that starts answers. Of its lock. */
void qn_answer_link(qn_answer *answer, qn_answer *next);
qn_answer *qn_answer_linked(const qn_answer *answer);

/* ---- For the I/O thread ---- */

void *qn_answer_user(const qn_answer *answer);
void qn_answer_forget(qn_answer *answer);

qn_answer_view qn_answer_look(qn_answer *answer);

/* qn_answer_read - take up to `most` bytes of a stream that is accepted. 0: there are none yet; QN_ANSWER_END: nor will there
 * be; QN_ANSWER_LOST: it was abandoned. */
enum { QN_ANSWER_END = -1, QN_ANSWER_LOST = -2 };
long qn_answer_read(qn_answer *answer, char *out, size_t most);

/* qn_answer_body - take the whole body of an answer that is done and no stream. */
qn_bytes qn_answer_body(qn_answer *answer);

/* qn_answer_open - let a stream that has waited long for its model begin, so that comments can be sent. False: it does not wait,
 * or is no stream. */
bool qn_answer_open(qn_answer *answer);

/* qn_answer_abandon - the connection has gone: cancel what is left. The outbox has it once more when that has ended. qn_answer_stop - end it soon, with a refusal, which a stream
 * that has begun has as an error. */
void qn_answer_abandon(qn_answer *answer);
void qn_answer_stop(qn_answer *answer, const qn_refusal *refusal);

#endif
