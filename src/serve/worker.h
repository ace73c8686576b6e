/* Threads that read bodies: they parse, render, tokenise and compile grammars, which may take long, and submit requests. Clients
 * take turns, and none has all threads, but where there is one. */
#ifndef QN_SERVE_WORKER_H
#define QN_SERVE_WORKER_H

#include "serve/answer.h"

typedef struct qn_workers qn_workers;

/* qn_workers_create - so many threads. qn_workers_stop - end them, after the answers that they are at; those that wait, and those
 * that are added later, are refused with 503, or end. qn_workers_free - then. NULL is allowed. */
qn_status qn_workers_create(size_t n_threads, qn_workers **out);
void qn_workers_stop(qn_workers *workers);
void qn_workers_free(qn_workers *workers);

/* qn_workers_add - an answer to start, of which a reference is held until then. */
void qn_workers_add(qn_workers *workers, qn_answer *answer);

#endif
