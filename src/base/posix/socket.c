/* Sockets of POSIX, and the datagrams that systemd waits for. */
#include "base/socket.h"

#include "base/posix/sockets.h"
#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* the program ignores SIGPIPE */
#endif
#ifndef SOCK_CLOEXEC
#define SOCK_CLOEXEC 0 /* macOS: a process that another thread starts between socket and fcntl inherits the socket */
#endif

enum { BACKLOG = 1024 };

/* ---- Sockets ---- */

/* A socket that processes which are started do not inherit. */
static int make_socket(int family, int type)
{
    const int fd = socket(family, type | SOCK_CLOEXEC, 0);
    if (fd >= 0 && !SOCK_CLOEXEC)
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fd;
}

static int open_one(const struct addrinfo *at)
{
    const int on = 1;
    const int fd = make_socket(at->ai_family, SOCK_STREAM);
    if (fd < 0)
        return -1;
    /* Not by SOCK_NONBLOCK, which macOS lacks. */
    if (!fcntl(fd, F_SETFL, O_NONBLOCK) && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) &&
        !bind(fd, at->ai_addr, at->ai_addrlen) && !listen(fd, BACKLOG))
        return fd;
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static qn_status describe(int fd, qn_address *address, uint16_t *port)
{
    union {
        struct sockaddr any;
        struct sockaddr_in ipv4;
        struct sockaddr_in6 ipv6;
    } found;
    socklen_t length = sizeof found;
    if (getsockname(fd, &found.any, &length) || !qn_address_from(&found.any, address))
        return qn_fail(QN_ERR_IO, "cannot read the address of the server: %s", strerror(errno));
    *port = ntohs(address->is_ipv6 ? found.ipv6.sin6_port : found.ipv4.sin_port);
    address->scope = address->is_ipv6 ? (uint32_t)found.ipv6.sin6_scope_id : 0;
    return QN_OK;
}

qn_status qn_socket_listen(const char *host, uint16_t port, qn_socket *out, qn_address *address, uint16_t *bound)
{
    const struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE };
    struct addrinfo *list;
    char service[8];
    snprintf(service, sizeof service, "%u", (unsigned)port);
    const int error = getaddrinfo(host, service, &hints, &list);
    if (error)
        return qn_fail(QN_ERR_INVALID, "--host %s: %s", host, gai_strerror(error));
    int fd = -1;
    for (const struct addrinfo *at = list; at && fd < 0; at = at->ai_next)
        fd = open_one(at);
    const int why = errno;
    freeaddrinfo(list);
    if (fd < 0)
        return qn_fail(QN_ERR_IO, "--host %s --port %u: %s", host, (unsigned)port, strerror(why));
    const qn_status status = describe(fd, address, bound);
    if (status)
        close(fd);
    else
        *out = fd;
    return status;
}

void qn_socket_close(qn_socket socket)
{
    close((int)socket);
}

void qn_socket_shut(qn_socket socket)
{
    shutdown((int)socket, SHUT_RDWR);
}

static ptrdiff_t take(qn_socket socket, void *bytes, size_t n, int flags)
{
    const ssize_t got = recv((int)socket, bytes, n, flags | MSG_DONTWAIT);
    return got >= 0 ? got : errno == EAGAIN ? -1 : 0;
}

ptrdiff_t qn_socket_receive(qn_socket socket, void *bytes, size_t n)
{
    return take(socket, bytes, n, 0);
}

ptrdiff_t qn_socket_peek(qn_socket socket, void *bytes, size_t n)
{
    return take(socket, bytes, n, MSG_PEEK);
}

void qn_socket_send(qn_socket socket, const void *bytes, size_t n)
{
    const ssize_t sent = send((int)socket, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)sent;
}

size_t qn_socket_allow(size_t wanted)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= wanted)
        return wanted;
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    return setrlimit(RLIMIT_NOFILE, &limit) ? (size_t)before : (size_t)limit.rlim_cur;
}

/* ---- The service manager ---- */

void qn_notify_service(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    if (!path || (*path != '/' && *path != '@') || strlen(path) >= sizeof address.sun_path)
        return;
    const int fd = make_socket(AF_UNIX, SOCK_DGRAM);
    if (fd < 0)
        return;
    memcpy(address.sun_path, path, strlen(path));
    const socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    if (*path == '@')
        address.sun_path[0] = 0; /* an abstract socket */
    const ssize_t n = sendto(fd, state, strlen(state), MSG_NOSIGNAL, (const struct sockaddr *)&address, length);
    (void)n; /* if the datagram is lost, systemd's time limit reports it */
    close(fd);
}
