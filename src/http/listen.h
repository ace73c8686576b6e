/* A listening socket. Any thread. */
#ifndef QN_HTTP_LISTEN_H
#define QN_HTTP_LISTEN_H

#include "base/socket.h"

typedef struct qn_listener {
    qn_socket socket; /* the caller closes it */
    qn_address address;
    char authority[80]; /* of a URL: "127.0.0.1:8080" */
} qn_listener;

/* qn_listen - listen as qn_socket_listen does; "localhost" is 127.0.0.1. */
qn_status qn_listen(const char *host, uint16_t port, qn_listener *out);

#endif
