/* A listening socket, and systemd's notifications. Any thread. */
#ifndef QN_HTTP_LISTEN_H
#define QN_HTTP_LISTEN_H

#include "quern/status.h"

#include <stdint.h>
#include <sys/socket.h>

typedef struct qn_listener {
    int fd; /* the caller closes it */
    struct sockaddr_storage address;
    char authority[80]; /* of a URL: "127.0.0.1:8080" */
} qn_listener;

/* qn_listen - listen at a name or address of this machine; of several addresses the first that works is used. Port 0:
 * any free port. QN_ERR_INVALID: the host is unknown. QN_ERR_IO: none of its addresses can be bound. */
qn_status qn_listen(const char *host, uint16_t port, qn_listener *out);

/* qn_notify - send a state such as "READY=1" to systemd, if NOTIFY_SOCKET is set. */
void qn_notify(const char *state);

#endif
