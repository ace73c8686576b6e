/* Replaces tls.c if GnuTLS was missing at build time: no certificate can be had, so the other functions are not called.
 */
#include "serve/tls.h"

#include "base/status.h"

qn_status qn_tls_create(const char *certificate, const char *key, qn_tls **out)
{
    (void)key;
    *out = NULL;
    return qn_fail(
        QN_ERR_UNSUPPORTED,
        "--tls-cert %s: this quern was built without GnuTLS, so its server has no TLS; put a proxy before it",
        certificate);
}

void qn_tls_free(qn_tls *tls)
{
    (void)tls;
}

qn_status qn_tls_reload(qn_tls *tls)
{
    (void)tls;
    return QN_OK;
}

void qn_tls_send(struct MHD_Connection *mhd, const char *bytes, size_t n)
{
    (void)mhd, (void)bytes, (void)n;
}

size_t qn_tls_use(const qn_tls *tls, struct MHD_OptionItem *options)
{
    (void)tls, (void)options;
    return 0;
}
