/* Sockets of TCP and addresses. What is sent and received here never waits. Any thread. */
#ifndef QN_BASE_SOCKET_H
#define QN_BASE_SOCKET_H

#include "quern/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sockaddr;

/* A descriptor, or a handle of Windows. */
typedef intptr_t qn_socket;
enum { QN_NO_SOCKET = -1 };

typedef struct qn_address {
    bool is_ipv6;
    uint8_t bytes[16]; /* as they are sent; of IPv4 the first four */
    uint32_t scope;    /* of qn_socket_listen: the interface of a link-local address; else 0 */
} qn_address;

enum { QN_ADDRESS_TEXT_BYTES = 46 + 16 /* with an interface, and the zero at the end */ };

/* qn_address_read - read an IPv4 address of four decimal numbers, or an IPv6 address without brackets. */
bool qn_address_read(const char *text, bool is_ipv6, qn_address *out);

/* qn_address_from - the address in the system's structure. False: it is of another kind. */
bool qn_address_from(const struct sockaddr *system, qn_address *out);

/* qn_address_print - the address as a text, with its interface after a '%' if it has one. */
void qn_address_print(const qn_address *address, char text[QN_ADDRESS_TEXT_BYTES]);

/* qn_address_is_mapped - whether it is an IPv4 address, the last four bytes, mapped to IPv6. */
static inline bool qn_address_is_mapped(const qn_address *address)
{
    bool is_mapped = address->is_ipv6 && address->bytes[10] == 0xff && address->bytes[11] == 0xff;
    for (int i = 0; i < 10; i++)
        is_mapped = is_mapped && !address->bytes[i];
    return is_mapped;
}

/* qn_socket_listen - listen at a name or address of this machine; of several addresses the first that works is used.
 * Port 0: any free port. *address and *bound are those that the socket has. QN_ERR_INVALID: the host is unknown.
 * QN_ERR_IO: none of its addresses can be bound. */
qn_status qn_socket_listen(const char *host, uint16_t port, qn_socket *socket, qn_address *address, uint16_t *bound);

void qn_socket_close(qn_socket socket);

/* qn_socket_shut - end both directions: whoever watches the socket sees its end. */
void qn_socket_shut(qn_socket socket);

/* qn_socket_receive, qn_socket_peek - take bytes that have arrived, or copy them and leave them. Return their number, 0
 * at the end or after an error, -1 if none is there. Of a socket that was accepted by one of qn_socket_listen. */
ptrdiff_t qn_socket_receive(qn_socket socket, void *bytes, size_t n);
ptrdiff_t qn_socket_peek(qn_socket socket, void *bytes, size_t n);

/* qn_socket_send - send what the socket takes now. */
void qn_socket_send(qn_socket socket, const void *bytes, size_t n);

/* qn_socket_allow - raise the process's limit to `wanted` open sockets and files. Returns how many there may be. */
size_t qn_socket_allow(size_t wanted);

/* qn_notify_service - send a state such as "READY=1" to the service manager that started the program; nothing if none
 * has asked for it. */
void qn_notify_service(const char *state);

#endif
