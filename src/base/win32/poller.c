/* Events by WSAPoll, which reports a socket as long as it has bytes. To report each arrival once, a socket whose bytes
 * were reported and stay unread is left out of the poll: its bytes are counted at each wait, and every few milliseconds
 * within a wait. The count cannot tell whether as many bytes as were read have arrived, so bytes that stay are reported
 * again after a pause, which doubles. */
#include "base/poller.h"

#include "base/memory.h"
#include "base/status.h"
#include "base/win32/sockets.h"
#include "base/win32/wide.h"

#include <stdatomic.h>
#include <stdlib.h>

enum { COUNT_EVERY = 10, LONGEST_PAUSE = 10000 /* milliseconds */ };

struct watched {
    SOCKET socket;
    void *data;
    u_long n_reported;   /* bytes that were there when it was reported last */
    unsigned pause;      /* milliseconds until unread bytes are reported again; 0: the socket is polled */
    ULONGLONG report_at; /* the end of the pause, by GetTickCount64 */
    bool has_ended;      /* it was reported, and nothing can follow */
    size_t place;        /* in `polls`; 0: it is not polled */
};

struct qn_poller {
    SOCKET wake;          /* of UDP, connected to itself: a datagram ends a wait */
    atomic_bool is_woken; /* one was sent */
    struct watched *sockets;
    size_t n_sockets, sockets_capacity;
    WSAPOLLFD *polls; /* `wake` first, then sockets, then those of the sets: reads before writes */
    size_t n_polls, polls_capacity;
};

static SOCKET open_wake(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int length = sizeof address;
    u_long does_not_wait = 1;
    const SOCKET wake = WSASocketW(AF_INET, SOCK_DGRAM, 0, NULL, 0, WSA_FLAG_OVERLAPPED | WSA_FLAG_NO_HANDLE_INHERIT);
    struct sockaddr *const at = (struct sockaddr *)&address;
    if (wake == INVALID_SOCKET || (!bind(wake, at, length) && !getsockname(wake, at, &length) &&
                                   !connect(wake, at, length) && !ioctlsocket(wake, FIONBIO, &does_not_wait)))
        return wake;
    const int error = WSAGetLastError();
    closesocket(wake);
    WSASetLastError(error);
    return INVALID_SOCKET;
}

qn_status qn_poller_create(qn_poller **out)
{
    qn_poller *poller;
    *out = NULL;
    QN_TRY(qn_alloc(&poller, 1, sizeof *poller, "events"));
    qn_sockets_start();
    poller->wake = open_wake();
    if (poller->wake == INVALID_SOCKET) {
        const qn_status status = qn_fail(QN_ERR_IO, "cannot watch events: %s", qn_windows_error());
        qn_free(poller);
        return status;
    }
    *out = poller;
    return QN_OK;
}

void qn_poller_free(qn_poller *poller)
{
    if (!poller)
        return;
    closesocket(poller->wake);
    free(poller->sockets);
    free(poller->polls);
    qn_free(poller);
}

bool qn_poller_add(qn_poller *poller, qn_socket socket, void *data)
{
    if (qn_realloc_array(&poller->sockets, &poller->sockets_capacity, poller->n_sockets + 1, sizeof *poller->sockets,
                         "watched sockets"))
        return false;
    poller->sockets[poller->n_sockets++] = (struct watched){ .socket = (SOCKET)socket, .data = data };
    return true;
}

void qn_poller_remove(qn_poller *poller, qn_socket socket)
{
    for (size_t i = 0; i < poller->n_sockets; i++)
        if (poller->sockets[i].socket == (SOCKET)socket) {
            poller->sockets[i] = poller->sockets[--poller->n_sockets];
            return;
        }
}

void qn_poller_wake(qn_poller *poller)
{
    if (!atomic_exchange(&poller->is_woken, true))
        (void)send(poller->wake, "", 1, 0);
}

/* Whether qn_poller_wake was called. Its datagram is read before is_woken is cleared: a call between the two finds it
 * set, and what that call was for is seen by the caller, who looks afterwards. */
static bool take_wake(qn_poller *poller)
{
    char byte;
    const bool is_woken = recv(poller->wake, &byte, 1, 0) >= 0 || atomic_load(&poller->is_woken);
    atomic_store(&poller->is_woken, false);
    return is_woken;
}

/* ---- What is polled ---- */

static void add_poll(qn_poller *poller, SOCKET socket, short what)
{
    poller->polls[poller->n_polls++] = (WSAPOLLFD){ .fd = socket, .events = what };
}

/* Fills `polls`; without memory for all it is empty, and the wait a pause. */
static void fill_polls(qn_poller *poller, const fd_set *reads, const fd_set *writes)
{
    const size_t most = 1 + poller->n_sockets + (reads ? reads->fd_count + writes->fd_count : 0);
    poller->n_polls = 0;
    if (qn_realloc_array(&poller->polls, &poller->polls_capacity, most, sizeof *poller->polls, "watched sockets"))
        return;
    add_poll(poller, poller->wake, POLLRDNORM);
    for (size_t i = 0; i < poller->n_sockets; i++) {
        struct watched *w = &poller->sockets[i];
        const bool is_polled = !w->pause && !w->has_ended;
        w->place = is_polled ? poller->n_polls : 0;
        if (is_polled)
            add_poll(poller, w->socket, POLLRDNORM);
    }
    for (u_int i = 0; reads && i < reads->fd_count; i++)
        add_poll(poller, reads->fd_array[i], POLLRDNORM);
    for (u_int i = 0; writes && i < writes->fd_count; i++)
        add_poll(poller, writes->fd_array[i], POLLWRNORM);
}

/* Leaves the sockets in a set that are ready, whose entries begin at `polls`. Returns the end of its entries. */
static const WSAPOLLFD *keep_ready(const WSAPOLLFD *polls, fd_set *set)
{
    u_int n = 0;
    for (u_int i = 0; i < set->fd_count; i++, polls++)
        if (polls->revents)
            set->fd_array[n++] = polls->fd;
    set->fd_count = n;
    return polls;
}

/* ---- What is reported ---- */

static u_long count_bytes(SOCKET socket)
{
    u_long n = 0;
    return ioctlsocket(socket, FIONREAD, &n) ? 0 : n;
}

static qn_poller_event report(struct watched *w, u_long n, bool has_ended)
{
    w->n_reported = n;
    w->has_ended = has_ended;
    w->pause = w->pause ? w->pause : COUNT_EVERY;
    w->report_at = GetTickCount64() + w->pause;
    return (qn_poller_event){ .data = w->data, .has_ended = has_ended };
}

/* Looks at a socket whose bytes were reported: the poll takes it back once they are read. */
static bool look_again(struct watched *w, qn_poller_event *out)
{
    const u_long n = count_bytes(w->socket);
    const bool is_late = GetTickCount64() >= w->report_at;
    if (!n) {
        w->pause = 0;
        return false;
    }
    if (n == w->n_reported && !is_late)
        return false;
    if (n == w->n_reported)
        w->pause = w->pause < LONGEST_PAUSE ? 2 * w->pause : LONGEST_PAUSE;
    *out = report(w, n, false);
    return true;
}

/* Looks at a socket that the poll has reported. */
static bool look(struct watched *w, short found, qn_poller_event *out)
{
    const u_long n = found ? count_bytes(w->socket) : 0;
    if (!found || !w->data)
        return false;
    /* An end is reported after the bytes before it, or with them. */
    *out = report(w, n, !n || found & (POLLHUP | POLLERR | POLLNVAL));
    return true;
}

/* Looks at sockets whose bytes were reported. Sets *is_paused if some stay so. */
static size_t look_at_paused(qn_poller *poller, qn_poller_event *out, size_t capacity, bool *is_paused)
{
    size_t n_out = 0;
    *is_paused = false;
    for (size_t i = 0; i < poller->n_sockets && n_out < capacity; i++) {
        struct watched *w = &poller->sockets[i];
        if (w->has_ended || !w->pause)
            continue;
        n_out += look_again(w, out + n_out);
        *is_paused = *is_paused || w->pause;
    }
    return n_out;
}

static size_t look_at_polled(qn_poller *poller, qn_poller_event *out, size_t capacity)
{
    size_t n_out = 0;
    for (size_t i = 0; i < poller->n_sockets && n_out < capacity; i++)
        if (poller->sockets[i].place)
            n_out += look(&poller->sockets[i], poller->polls[poller->sockets[i].place].revents, out + n_out);
    return n_out;
}

static void poll_once(qn_poller *poller, int milliseconds)
{
    if (poller->n_polls && WSAPoll(poller->polls, (ULONG)poller->n_polls, milliseconds) >= 0)
        return;
    for (size_t i = 0; i < poller->n_polls; i++)
        poller->polls[i].revents = 0;
    Sleep(COUNT_EVERY); /* no memory: the program goes on */
}

size_t qn_poller_wait(qn_poller *poller, int milliseconds, const qn_poller_sets *sets, qn_poller_event *out,
                      size_t capacity, bool *is_woken)
{
    fd_set *const reads = sets ? sets->read : NULL, *const writes = sets ? sets->write : NULL;
    const ULONGLONG end = GetTickCount64() + (ULONGLONG)(milliseconds < 0 ? 0 : milliseconds);
    bool is_paused, is_ready;
    size_t n_out;
    do {
        n_out = look_at_paused(poller, out, capacity, &is_paused);
        const ULONGLONG now = GetTickCount64();
        int limit = milliseconds < 0 ? -1 : now < end ? (int)(end - now) : 0;
        if (n_out)
            limit = 0;
        else if (is_paused && (limit < 0 || limit > COUNT_EVERY))
            limit = COUNT_EVERY;
        fill_polls(poller, reads, writes);
        poll_once(poller, limit);
        is_ready = n_out || limit == 0;
        for (size_t i = 0; i < poller->n_polls; i++)
            is_ready = is_ready || poller->polls[i].revents;
    } while (!is_ready && (milliseconds < 0 || GetTickCount64() < end));
    *is_woken = take_wake(poller);
    n_out += look_at_polled(poller, out + n_out, capacity - n_out);
    if (sets && poller->n_polls)
        (void)keep_ready(keep_ready(poller->polls + poller->n_polls - reads->fd_count - writes->fd_count, reads),
                         writes);
    return n_out;
}
