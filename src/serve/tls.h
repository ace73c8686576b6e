/* Certificates of the server, which can be read anew. Of the I/O thread. */
#ifndef QN_SERVE_TLS_H
#define QN_SERVE_TLS_H

#include "quern/status.h"

#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <microhttpd.h>

typedef struct qn_tls qn_tls;

/* qn_tls_create - read a certificate, with its chain, and its key, files in PEM, whose names outlive the result. QN_ERR_INVALID:
 * they are none, or do not fit. */
qn_status qn_tls_create(const char *certificate, const char *key, qn_tls **out);
void qn_tls_free(qn_tls *tls); /* NULL is allowed */

/* qn_tls_reload - read them again, for connections to come. After an error they stay as they were. */
qn_status qn_tls_reload(qn_tls *tls);

/* qn_tls_send - the last bytes on a connection of libmicrohttpd, as far as they can be sent at once. */
void qn_tls_send(struct MHD_Connection *mhd, const char *bytes, size_t n);

/* qn_tls_use - the one whose certificate qn_tls_retrieve gives. qn_tls_retrieve - GnuTLS's gnutls_certificate_retrieve_function2,
 * which has no other argument to find it by. */
void qn_tls_use(const qn_tls *tls);
int qn_tls_retrieve(gnutls_session_t session, const gnutls_datum_t *authorities, int n_authorities,
                    const gnutls_pk_algorithm_t *algorithms, int n_algorithms, gnutls_pcert_st **certificates,
                    unsigned int *n_certificates, gnutls_privkey_t *key);

#endif
