/* Threads that read bodies: they parse, render, tokenise and compile grammars, which may take long, and submit
 * scheduler requests. Clients take turns; one client gets all threads only if there is just one thread. */
#ifndef QN_SERVE_WORKER_H
#define QN_SERVE_WORKER_H

#include "serve/answer.h"

typedef struct qn_workers qn_workers;

/* qn_workers_create - start n_threads threads, up to a fixed maximum. QN_ERR_MEMORY: no memory, or no thread. */
qn_status qn_workers_create(size_t n_threads, qn_workers **out);

/* qn_workers_stop - end the threads after their current answers. Answers that wait or are added later are refused with
 * 503; an answer that is ending gets its end from the caller's thread. NULL is allowed. */
void qn_workers_stop(qn_workers *workers);

/* qn_workers_free - stop the workers and free them. NULL is allowed. */
void qn_workers_free(qn_workers *workers);

/* qn_workers_add - have a thread call qn_answer_start. Any thread may call it, without a lock of the answer. The pool
 * holds a reference until the call has returned. */
void qn_workers_add(qn_workers *workers, qn_answer *answer);

#endif
