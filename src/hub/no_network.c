/* Replaces fetch.c, download.c, http.c and digest.c if libcurl or GnuTLS was missing at build time. */
#include "hub/fetch.h"

qn_status qn_hub_fetch(const qn_hub_settings *settings, const qn_hub_params *params, const qn_hub_name *name,
                       char **path)
{
    (void)settings, (void)params;
    *path = NULL;
    return qn_fail(
        QN_ERR_UNSUPPORTED,
        "%s: this quern was built without libcurl and GnuTLS, so it downloads nothing; install libcurl4-gnutls-dev and "
        "libgnutls28-dev and build it again",
        name->repo);
}
