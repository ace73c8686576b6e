/* Waits for many sockets at once. Bytes that arrive are reported once, also if they are not read: of the sockets that
 * were added the program hears when there is something new. One thread adds, removes and waits; any may wake it. */
#ifndef QN_BASE_POLLER_H
#define QN_BASE_POLLER_H

#include "base/socket.h"

typedef struct qn_poller qn_poller;

typedef struct qn_poller_event {
    void *data;     /* as added */
    bool has_ended; /* the other side will send no more, or the connection is lost; else bytes have arrived */
} qn_poller_event;

/* Sockets for one call of qn_poller_wait: fd_set of the system's select(), in which those that are ready stay. */
typedef struct qn_poller_sets {
    void *read, *write;
    int highest; /* the first argument of select(), less one */
} qn_poller_sets;

/* qn_poller_create - QN_ERR_IO: the system gives no descriptor for it. Free it with qn_poller_free. */
qn_status qn_poller_create(qn_poller **out);
void qn_poller_free(qn_poller *poller); /* NULL is allowed */

/* qn_poller_add - report what arrives at a connected socket, from what is there already. False with an error text.
 *
 *   data   NULL: no event is reported, but a wait ends at once as long as the socket is readable */
bool qn_poller_add(qn_poller *poller, qn_socket socket, void *data);

/* qn_poller_remove - before the socket is closed. */
void qn_poller_remove(qn_poller *poller, qn_socket socket);

/* qn_poller_wake - end a wait, the next one if none is in progress. Any thread; signal handlers. Keeps errno. */
void qn_poller_wake(qn_poller *poller);

/* qn_poller_wait - wait for news, a call of qn_poller_wake, a socket of the sets, or the time.
 *
 *   milliseconds   -1: no limit
 *   sets           NULL: none
 *   out            [capacity] events
 *   is_woken       whether qn_poller_wake was called
 *
 * Returns the number of events. */
size_t qn_poller_wait(qn_poller *poller, int milliseconds, const qn_poller_sets *sets, qn_poller_event *out,
                      size_t capacity, bool *is_woken);

#endif
