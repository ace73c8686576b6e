/* Certificates, in generations: a handshake in progress may still read an older one. Times are of qn_now, in seconds.
 * Static functions return GnuTLS's error codes, which are below 0. */
#include "serve/tls.h"

#include "base/status.h"
#include "http/clock.h"

#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <microhttpd.h>
#include <stdlib.h>

enum { MAX_CHAIN = 16, RETIRED_SECONDS = 600 /* longer than any handshake */ };

/* A certificate as it was read once. */
typedef struct generation {
    gnutls_pcert_st chain[MAX_CHAIN];
    unsigned int n;
    gnutls_privkey_t key;
    double retired; /* when a newer one replaced it */
    struct generation *older;
} generation;

struct qn_tls {
    const char *certificate, *key;
    generation *current;
};

/* For retrieve. Used by the I/O thread, and by its creator before that runs and after it has ended. */
static const qn_tls *in_use;

static void free_generation(generation *g)
{
    for (unsigned int i = 0; i < g->n; i++)
        gnutls_pcert_deinit(&g->chain[i]);
    gnutls_privkey_deinit(g->key);
    free(g);
}

/* Checks that certificate and key match. */
static int check_pair(const qn_tls *tls)
{
    gnutls_certificate_credentials_t pair;
    int error = gnutls_certificate_allocate_credentials(&pair);
    if (error < 0)
        return error;
    error = gnutls_certificate_set_x509_key_file(pair, tls->certificate, tls->key, GNUTLS_X509_FMT_PEM);
    gnutls_certificate_free_credentials(pair);
    return error;
}

/* Reads the private key into `key`; clears the text that was read. */
static int load_key(const qn_tls *tls, gnutls_privkey_t key)
{
    gnutls_datum_t text;
    int error = gnutls_load_file(tls->key, &text);
    if (error < 0)
        return error;
    error = gnutls_privkey_import_x509_raw(key, &text, GNUTLS_X509_FMT_PEM, NULL, 0);
    gnutls_memset(text.data, 0, text.size);
    gnutls_free(text.data);
    return error;
}

/* Reads certificate and key as a new generation. *out is set only on success. */
static int load_generation(const qn_tls *tls, generation **out)
{
    int error = check_pair(tls);
    generation *g = error < 0 ? NULL : calloc(1, sizeof *g);
    if (!g)
        return error < 0 ? error : GNUTLS_E_MEMORY_ERROR;
    error = gnutls_privkey_init(&g->key);
    if (error < 0) {
        free(g);
        return error;
    }
    unsigned int n = MAX_CHAIN;
    error = gnutls_pcert_list_import_x509_file(g->chain, &n, tls->certificate, GNUTLS_X509_FMT_PEM, NULL, NULL, 0);
    if (error >= 0) {
        g->n = n;
        error = load_key(tls, g->key);
    }
    if (error < 0)
        free_generation(g);
    else
        *out = g;
    return error;
}

/* Frees the generations older than `current` that no handshake can still read. */
static void free_retired(generation *current, double now)
{
    generation **link = &current->older;
    while (*link) {
        generation *g = *link;
        if (now - g->retired < RETIRED_SECONDS) {
            link = &g->older;
        } else {
            *link = g->older;
            free_generation(g);
        }
    }
}

qn_status qn_tls_reload(qn_tls *tls)
{
    generation *g;
    const int error = load_generation(tls, &g);
    const double now = qn_now();
    if (error < 0)
        return qn_fail(QN_ERR_INVALID, "%s with %s: %s", tls->certificate, tls->key, gnutls_strerror(error));
    g->older = tls->current;
    if (g->older)
        g->older->retired = now;
    tls->current = g;
    free_retired(g, now);
    return QN_OK;
}

qn_status qn_tls_create(const char *certificate, const char *key, qn_tls **out)
{
    qn_tls *tls = calloc(1, sizeof *tls);
    *out = NULL;
    if (!tls)
        return qn_fail(QN_ERR_MEMORY, "no memory for certificates");
    tls->certificate = certificate;
    tls->key = key;
    const qn_status status = qn_tls_reload(tls);
    if (status)
        free(tls);
    else
        *out = tls;
    return status;
}

void qn_tls_free(qn_tls *tls)
{
    if (!tls)
        return;
    while (tls->current) {
        generation *g = tls->current;
        tls->current = g->older;
        free_generation(g);
    }
    if (in_use == tls)
        in_use = NULL;
    free(tls);
}

void qn_tls_send(struct MHD_Connection *mhd, const char *bytes, size_t n)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    if (!info)
        return;
    const gnutls_session_t session = info->tls_session;
    if (gnutls_record_send(session, bytes, n) >= 0)
        (void)gnutls_bye(session, GNUTLS_SHUT_WR);
}

/* A gnutls_certificate_retrieve_function2. */
static int retrieve(gnutls_session_t session, const gnutls_datum_t *authorities, int n_authorities,
                    const gnutls_pk_algorithm_t *algorithms, int n_algorithms, gnutls_pcert_st **certificates,
                    unsigned int *n_certificates, gnutls_privkey_t *key)
{
    (void)session;
    (void)authorities;
    (void)n_authorities;
    (void)algorithms;
    (void)n_algorithms;
    if (!in_use)
        return -1;
    *certificates = in_use->current->chain;
    *n_certificates = in_use->current->n;
    *key = in_use->current->key;
    return 0;
}

size_t qn_tls_use(const qn_tls *tls, struct MHD_OptionItem *options)
{
    /* Only forward secrecy and authenticated ciphers. */
    static char priorities[] = "SECURE128:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-KX-ALL:+ECDHE-ECDSA:+ECDHE-RSA:"
                               "-CIPHER-ALL:+AES-256-GCM:+CHACHA20-POLY1305:+AES-128-GCM:-MAC-ALL:+AEAD";
    in_use = tls;
    options[0] = (struct MHD_OptionItem){ MHD_OPTION_HTTPS_CERT_CALLBACK, 0, (void *)(intptr_t)retrieve };
    options[1] = (struct MHD_OptionItem){ MHD_OPTION_HTTPS_PRIORITIES, 0, priorities };
    return 2;
}
