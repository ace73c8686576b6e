/* Sockets of Windows. WSAStartup is called once, by the first function that needs it. */
#include "base/socket.h"

#include "base/status.h"
#include "base/win32/sockets.h"
#include "base/win32/wide.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { BACKLOG = SOMAXCONN };

static void start(void)
{
    WSADATA data;
    (void)WSAStartup(MAKEWORD(2, 2), &data); /* without it the calls that follow fail and say why */
}

void qn_sockets_start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
}

/* ---- Sockets ---- */

/* Another program could else take the same port: Windows has no rule against it of its own. */
static SOCKET open_one(const struct addrinfo *at)
{
    const BOOL on = TRUE;
    u_long does_not_wait = 1;
    const SOCKET found =
        WSASocketW(at->ai_family, SOCK_STREAM, 0, NULL, 0, WSA_FLAG_OVERLAPPED | WSA_FLAG_NO_HANDLE_INHERIT);
    if (found == INVALID_SOCKET)
        return found;
    if (!ioctlsocket(found, FIONBIO, &does_not_wait) &&
        !setsockopt(found, SOL_SOCKET, SO_EXCLUSIVEADDRUSE, (const char *)&on, sizeof on) &&
        !bind(found, at->ai_addr, (int)at->ai_addrlen) && !listen(found, BACKLOG))
        return found;
    const int error = WSAGetLastError();
    closesocket(found);
    WSASetLastError(error);
    return INVALID_SOCKET;
}

static qn_status describe(SOCKET socket, qn_address *address, uint16_t *port)
{
    union {
        struct sockaddr any;
        struct sockaddr_in ipv4;
        struct sockaddr_in6 ipv6;
    } found;
    int length = sizeof found;
    if (getsockname(socket, &found.any, &length) || !qn_address_from(&found.any, address))
        return qn_fail(QN_ERR_IO, "cannot read the address of the server: %s", qn_windows_error());
    *port = ntohs(address->is_ipv6 ? found.ipv6.sin6_port : found.ipv4.sin_port);
    address->scope = address->is_ipv6 ? (uint32_t)found.ipv6.sin6_scope_id : 0;
    return QN_OK;
}

qn_status qn_socket_listen(const char *host, uint16_t port, qn_socket *out, qn_address *address, uint16_t *bound)
{
    const struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE };
    struct addrinfo *list;
    char service[8];
    qn_sockets_start();
    snprintf(service, sizeof service, "%u", (unsigned)port);
    if (getaddrinfo(host, service, &hints, &list))
        return qn_fail(QN_ERR_INVALID, "--host %s: %s", host, qn_windows_error());
    SOCKET found = INVALID_SOCKET;
    for (const struct addrinfo *at = list; at && found == INVALID_SOCKET; at = at->ai_next)
        found = open_one(at);
    const int error = WSAGetLastError();
    freeaddrinfo(list);
    WSASetLastError(error);
    if (found == INVALID_SOCKET)
        return qn_fail(QN_ERR_IO, "--host %s --port %u: %s", host, (unsigned)port, qn_windows_error());
    const qn_status status = describe(found, address, bound);
    if (status)
        closesocket(found);
    else
        *out = (qn_socket)found;
    return status;
}

void qn_socket_close(qn_socket socket)
{
    closesocket((SOCKET)socket);
}

void qn_socket_shut(qn_socket socket)
{
    shutdown((SOCKET)socket, SD_BOTH);
}

static ptrdiff_t take(qn_socket socket, void *bytes, size_t n, int flags)
{
    const int got = recv((SOCKET)socket, bytes, n < INT32_MAX ? (int)n : INT32_MAX, flags);
    return got >= 0 ? got : WSAGetLastError() == WSAEWOULDBLOCK ? -1 : 0;
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
    (void)send((SOCKET)socket, bytes, n < INT32_MAX ? (int)n : INT32_MAX, 0);
}

size_t qn_socket_allow(size_t wanted)
{
    return wanted; /* Windows has no such limit */
}

void qn_notify_service(const char *state)
{
    (void)state; /* services of Windows are another kind of program */
}
