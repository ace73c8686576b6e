/* Events by epoll, whose edge-triggered mode reports each arrival once. */
#include "base/poller.h"

#include "base/posix/select.h"
#include "base/status.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { MOST = 256 /* events of one wait */ };

struct qn_poller {
    int epoll_fd, wake_fd;
};

/* Watches a descriptor, with the poller as its data unless `data` is one of the program. */
static bool watch(const qn_poller *poller, int fd, uint32_t what, void *data)
{
    struct epoll_event event = { .events = what, .data.ptr = data };
    return !epoll_ctl(poller->epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

qn_status qn_poller_create(qn_poller **out)
{
    qn_poller *poller = malloc(sizeof *poller);
    *out = poller;
    if (!poller)
        return qn_fail(QN_ERR_MEMORY, "no memory for events");
    poller->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    poller->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (poller->epoll_fd >= 0 && poller->wake_fd >= 0 && watch(poller, poller->wake_fd, EPOLLIN, poller))
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
    if (poller->wake_fd >= 0)
        close(poller->wake_fd);
    if (poller->epoll_fd >= 0)
        close(poller->epoll_fd);
    free(poller);
}

bool qn_poller_add(qn_poller *poller, qn_socket socket, void *data)
{
    if (watch(poller, (int)socket, data ? EPOLLIN | EPOLLRDHUP | EPOLLET : EPOLLIN, data))
        return true;
    (void)qn_fail(QN_ERR_IO, "cannot watch a socket: %s", strerror(errno));
    return false;
}

void qn_poller_remove(qn_poller *poller, qn_socket socket)
{
    epoll_ctl(poller->epoll_fd, EPOLL_CTL_DEL, (int)socket, NULL);
}

void qn_poller_wake(qn_poller *poller)
{
    static const uint64_t one = 1;
    const int saved_errno = errno;
    const ssize_t n = write(poller->wake_fd, &one, sizeof one);
    (void)n; /* a counter at its limit wakes the thread as well */
    errno = saved_errno;
}

static void clear_wake(const qn_poller *poller)
{
    uint64_t count;
    const ssize_t n = read(poller->wake_fd, &count, sizeof count);
    (void)n; /* it is readable: epoll has said so */
}

size_t qn_poller_wait(qn_poller *poller, int milliseconds, const qn_poller_sets *sets, qn_poller_event *out,
                      size_t capacity, bool *is_woken)
{
    struct epoll_event found[MOST];
    size_t n_out = 0;
    if (sets)
        select_with(poller->epoll_fd, milliseconds, sets);
    const int most = capacity < MOST ? (int)capacity : MOST;
    const int n = epoll_wait(poller->epoll_fd, found, most, sets ? 0 : milliseconds);
    *is_woken = false;
    for (int i = 0; i < n; i++) {
        void *const data = found[i].data.ptr;
        if (data == poller)
            *is_woken = true;
        else if (data)
            out[n_out++] = (qn_poller_event){ .data = data, .has_ended = found[i].events & ~(uint32_t)EPOLLIN };
    }
    if (*is_woken)
        clear_wake(poller);
    return n_out;
}
