/* Events by kqueue, whose EV_CLEAR reports each arrival once. */
#include "base/poller.h"

#include "base/posix/select.h"
#include "base/status.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/event.h>
#include <sys/time.h>
#include <unistd.h>

enum { MOST = 256 /* events of one wait */, WAKE = 1 /* the identifier of the event that qn_poller_wake triggers */ };

struct qn_poller {
    int kqueue_fd;
};

static bool change(const qn_poller *poller, uintptr_t what, int16_t filter, uint16_t flags, uint32_t note, void *data)
{
    struct kevent change;
    EV_SET(&change, what, filter, flags, note, 0, data);
    return !kevent(poller->kqueue_fd, &change, 1, NULL, 0, NULL);
}

qn_status qn_poller_create(qn_poller **out)
{
    qn_poller *poller = malloc(sizeof *poller);
    *out = poller;
    if (!poller)
        return qn_fail(QN_ERR_MEMORY, "no memory for events");
    poller->kqueue_fd = kqueue(); /* started processes do not inherit it */
    if (poller->kqueue_fd >= 0 && change(poller, WAKE, EVFILT_USER, EV_ADD | EV_CLEAR, 0, NULL))
        return QN_OK;
    const int error = errno;
    qn_poller_free(poller);
    *out = NULL;
    return qn_fail(QN_ERR_IO, "cannot watch events: %s", strerror(error));
}

void qn_poller_free(qn_poller *poller)
{
    if (!poller)
        return;
    if (poller->kqueue_fd >= 0)
        close(poller->kqueue_fd);
    free(poller);
}

bool qn_poller_add(qn_poller *poller, qn_socket socket, void *data)
{
    if (change(poller, (uintptr_t)socket, EVFILT_READ, data ? EV_ADD | EV_CLEAR : EV_ADD, 0, data))
        return true;
    (void)qn_fail(QN_ERR_IO, "cannot watch a socket: %s", strerror(errno));
    return false;
}

void qn_poller_remove(qn_poller *poller, qn_socket socket)
{
    (void)change(poller, (uintptr_t)socket, EVFILT_READ, EV_DELETE, 0, NULL);
}

void qn_poller_wake(qn_poller *poller)
{
    const int saved_errno = errno;
    (void)change(poller, WAKE, EVFILT_USER, 0, NOTE_TRIGGER, NULL);
    errno = saved_errno;
}

size_t qn_poller_wait(qn_poller *poller, int milliseconds, const qn_poller_sets *sets, qn_poller_event *out,
                      size_t capacity, bool *is_woken)
{
    struct kevent found[MOST];
    struct timespec limit = { .tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000L };
    size_t n_out = 0;
    if (sets) {
        select_with(poller->kqueue_fd, milliseconds, sets);
        limit = (struct timespec){ 0 };
    }
    const int most = capacity < MOST ? (int)capacity : MOST;
    const int n = kevent(poller->kqueue_fd, NULL, 0, found, most, sets || milliseconds >= 0 ? &limit : NULL);
    *is_woken = false;
    for (int i = 0; i < n; i++) {
        if (found[i].filter == EVFILT_USER)
            *is_woken = true;
        else if (found[i].udata)
            out[n_out++] = (qn_poller_event){ .data = found[i].udata, .has_ended = found[i].flags & EV_EOF };
    }
    return n_out;
}
