/* Listening sockets, and the datagrams that systemd waits for. */
#include "http/listen.h"

#include "base/status.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 1024 };

static int open_one(const struct addrinfo *at)
{
    const int on = 1;
    const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) && !bind(fd, at->ai_addr, at->ai_addrlen) &&
        !listen(fd, BACKLOG))
        return fd;
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static qn_status describe(qn_listener *listener)
{
    char host[INET6_ADDRSTRLEN + 20], port[8];
    socklen_t length = sizeof listener->address;
    if (getsockname(listener->fd, (struct sockaddr *)&listener->address, &length) ||
        getnameinfo((struct sockaddr *)&listener->address, length, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV))
        return qn_fail(QN_ERR_IO, "cannot read the address of the server: %s", strerror(errno));
    snprintf(listener->authority, sizeof listener->authority,
             listener->address.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
    return QN_OK;
}

qn_status qn_listen(const char *host, uint16_t port, qn_listener *out)
{
    const struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE };
    struct addrinfo *list;
    char service[8];
    snprintf(service, sizeof service, "%u", (unsigned)port);
    const int error = getaddrinfo(strcmp(host, "localhost") ? host : "127.0.0.1", service, &hints, &list);
    if (error)
        return qn_fail(QN_ERR_INVALID, "--host %s: %s", host, gai_strerror(error));
    out->fd = -1;
    for (const struct addrinfo *at = list; at && out->fd < 0; at = at->ai_next)
        out->fd = open_one(at);
    const int why = errno;
    freeaddrinfo(list);
    if (out->fd < 0)
        return qn_fail(QN_ERR_IO, "--host %s --port %u: %s", host, (unsigned)port, strerror(why));
    const qn_status status = describe(out);
    if (status)
        close(out->fd);
    return status;
}

void qn_notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    if (!path || (*path != '/' && *path != '@') || strlen(path) >= sizeof address.sun_path)
        return;
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
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
