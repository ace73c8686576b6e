/* The server's TLS certificate, which can be reloaded. Threads: only the I/O thread. */
#ifndef QN_SERVE_TLS_H
#define QN_SERVE_TLS_H

#include "quern/status.h"

#include <stddef.h>

struct MHD_Connection;
struct MHD_OptionItem;

typedef struct qn_tls qn_tls;

/* qn_tls_create - read a certificate with its chain, and its key, from PEM files; the paths outlive the result. Free it
 * with qn_tls_free. QN_ERR_INVALID: a file is not valid, or certificate and key do not match. */
qn_status qn_tls_create(const char *certificate, const char *key, qn_tls **out);
void qn_tls_free(qn_tls *tls); /* NULL is allowed */

/* qn_tls_reload - read the files again, for new connections. After an error the old certificate stays. */
qn_status qn_tls_reload(qn_tls *tls);

/* qn_tls_send - send the last bytes of a connection of libmicrohttpd, as far as the socket takes them, and end the
 * session. */
void qn_tls_send(struct MHD_Connection *mhd, const char *bytes, size_t n);

/* qn_tls_use - use this certificate for a daemon of libmicrohttpd that is started with the options. Of one at a time:
 * GnuTLS passes no argument to find a certificate by. Returns the number of options that it writes, at most two. */
size_t qn_tls_use(const qn_tls *tls, struct MHD_OptionItem *options);

#endif
