/* Threads that read bodies: they parse, render, tokenise and compile grammars, which may take long, and submit requests. Clients
 * take turns, and none has all threads, but where there is one. */
#ifndef QN_SERVER_WORKER_H
#define QN_SERVER_WORKER_H

#include "server/answer.h"

typedef struct qn_workers qn_workers;

/* qn_workers_create - so many threads. qn_workers_free - after the answers that they are at; those that wait are refused with
 * 503. NULL is allowed. */
qn_status qn_workers_create(size_t n_threads, qn_workers **out);
void qn_workers_free(qn_workers *workers);

/* qn_workers_add - an answer to start, of which a reference is held until then. */
void qn_workers_add(qn_workers *workers, qn_answer *answer);

#endif
