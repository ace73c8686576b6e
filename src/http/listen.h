/* A listening socket, and systemd's notifications. */
#ifndef QN_HTTP_LISTEN_H
#define QN_HTTP_LISTEN_H

#include "quern/status.h"

#include <stdint.h>
#include <sys/socket.h>

typedef struct qn_listener {
    int fd;
    struct sockaddr_storage address;
    char authority[80]; /* of a URL: "127.0.0.1:8080" */
} qn_listener;

/* qn_listen - a socket that listens at a name or address of this machine, of which the first that works is taken; port 0: any
 * that is free. QN_ERR_INVALID: the host is not known; QN_ERR_IO: none of its addresses can be bound. */
qn_status qn_listen(const char *host, uint16_t port, qn_listener *out);

/* qn_notify - tell systemd a state, such as "READY=1", where it asks for it in NOTIFY_SOCKET. */
void qn_notify(const char *state);

#endif
